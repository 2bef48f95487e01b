"""The OpenAPI document with its descriptions and links, and the reference page."""
