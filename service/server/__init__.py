"""The HTTP server of a gateway: process settings and graceful shutdown."""
