"""The HTTP server around the gateway: sockets, limits on heads, an end in good order."""

import asyncio
import gc
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from service.memory import keep_freed
from service.protocol import protocol_of
from service.services import Services

GARBAGE = 20_000  # new objects between two looks for some that hold each other; requests under way are gone through too
IDLE_SECONDS = 65  # longer than proxies and pools keep a connection, so that they close it
STOP_SECONDS = 30  # for requests under way, once the server is to end


class Server(uvicorn.Server):
    """uvicorn, telling the gateway when it has begun and when it is to end."""

    def __init__(self, config: uvicorn.Config, services: Services, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._services = services
        self._on_start = on_start
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            gc.set_threshold(GARBAGE)
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to end: `/readyz` says no and whoever waits for a job is answered, from now on.

        At SIGTERM requests are still taken for a while, so that whoever balances the load can
        learn of it, and each answer asks its client to connect elsewhere; at SIGINT, and at a
        second signal, no more.
        """
        seconds = self._services.settings.drain_seconds
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._services.stopping.set)
        if sig == signal.SIGTERM and seconds and self._loop is not None and not self._is_draining:
            self._is_draining = True
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, super().handle_exit, sig, frame)
        else:
            super().handle_exit(sig, frame)


def bind(host: str, port: int) -> socket.socket:
    """A socket on host and port; port 0 takes a free one. Raises OSError."""
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
    """Where clients of this machine find it."""
    if public_url is not None:
        return public_url.rstrip("/")
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, bound: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT, then answer what is under way, store what waits, and return."""
    config = uvicorn.Config(
        app,
        http=protocol_of(app.state.services.settings.slow_seconds, app.state.fast_path),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash writes no memory to disk: keys and uploads are in it
    keep_freed()
    server = Server(config, app.state.services, on_start)
    before = {sig: signal.signal(sig, _ignore) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[bound])  # sends itself the signal again at its end, to whoever handled it before
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
        bound.close()


def _ignore(_sig: int, _frame: Any) -> None:
    """The server has ended already."""
