"""Socket and settings of an HTTP server with limited connections."""

import socket
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from connections.connection import Connection, Shortcut, TrackRequests
from connections.joined_transport import WriteQueue

IDLE_SECONDS = 65  # longer than the idle timeout of proxies and connection pools, so that they close the connection
UNUSED_SECONDS = 365 * 86_400  # timeout of uvicorn for idle connections, which `Connection` replaces
STOP_SECONDS = 30  # longest time for current requests after the server stops accepting connections


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to host and port; port 0 selects a free port. Raise OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def address(bound: socket.socket, public_url: str | None) -> str:
    """Return the URL of the server: the public URL, or one for clients on this machine."""
    if public_url is not None:
        return public_url.rstrip("/")
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configuration(
    app: ASGIApp, slow_seconds: float, idle_seconds: int = IDLE_SECONDS, shortcut: Shortcut | None = None
) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    connection: Any = partial(
        Connection, queue=WriteQueue(), slow_seconds=slow_seconds, idle_seconds=idle_seconds, shortcut=shortcut
    )
    return uvicorn.Config(
        TrackRequests(app),
        http=connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=UNUSED_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
