"""The HTTP server around the gateway: sockets, limits on heads, an end in good order."""

import asyncio
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.middleware import PACE_BYTES
from service.services import Services

MAX_HEAD_BYTES = 32 << 10  # request line and headers
IDLE_SECONDS = 65  # longer than proxies and pools keep a connection, so that they close it
STOP_SECONDS = 30  # for requests under way, once the server is to end


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 that waits for no client without end: closes the connection instead.

    Not for a head, from the connection's beginning or the head's first byte; not for the rest of
    a body that nobody needs, since it was answered already; not for a client that does not read
    its answer. Bodies that are needed are `BodyLimit`'s.
    """

    slow_seconds = 20.0  # for a head; for each PACE_BYTES of an answer

    _in_head = True
    _in_body = False
    _head_bytes = 0
    _patience: asyncio.TimerHandle | None = None
    _unsent_bytes = 0  # of answers, when that was looked at last
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._patience = self.loop.call_later(self.slow_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.close()
            elif self._patience is None:
                self._patience = self.loop.call_later(self.slow_seconds, self.transport.close)

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The last byte of a head."""
        self._in_head, self._in_body = False, True
        self._be_patient()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The last byte of a body."""
        self._in_body = False
        super().on_message_complete()
        if self.cycle.response_complete:  # its bytes made the connection look busy
            self._be_patient()
            self._unset_keepalive_if_required()
            idle = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = idle

    def on_response_complete(self) -> None:
        """An answer is written, not yet sent."""
        super().on_response_complete()
        self._watch_reader()
        if self._in_body and self.cycle.response_complete and self._patience is None:
            self._patience = self.loop.call_later(self.slow_seconds, self.transport.close)

    def pause_writing(self) -> None:
        """The client reads slower than it is answered."""
        super().pause_writing()
        self._watch_reader()

    def connection_lost(self, error: Exception | None) -> None:
        """The client left."""
        self._be_patient()
        self._watch_no_more()
        super().connection_lost(error)

    def _watch_reader(self) -> None:
        """See to it that what is unsent gets less."""
        self._watch_no_more()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._look = self.loop.call_later(self.slow_seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left and self._unsent_bytes - left < PACE_BYTES:
            self.transport.abort()  # to close would wait for the reader first
        else:
            self._watch_reader()

    def _watch_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def patient(seconds: float) -> type[Protocol]:
    """The protocol that waits for so long."""
    return type("PatientProtocol", (Protocol,), {"slow_seconds": seconds})


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
        http=patient(app.state.services.settings.slow_seconds),
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
