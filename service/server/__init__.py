"""The HTTP/1.1 server of a gateway: sockets, timeouts and graceful shutdown.

Bytes of client connections enter; ASGI requests leave to the application.
"""
