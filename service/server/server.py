"""The HTTP server of a gateway: process settings and graceful shutdown."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from connections.server import configuration
from runtime.process import GATEWAY_KEPT_BYTES, keep_freed_memory, leave_no_core
from service.app import Gateway
from service.context import GatewayContext
from service.ingestion.upload_memory import return_freed_memory

SWITCH_SECONDS = 0.0005  # longest wait of the event loop for a thread that runs Python code
GC_THRESHOLD = 20_000  # new objects between garbage collections, which also traverse the objects of current requests


class Server(uvicorn.Server):
    """uvicorn's server with a start callback and a drain period before it stops."""

    def __init__(self, config: uvicorn.Config, context: GatewayContext, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._context = context
        self._on_start = on_start
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_draining = False
        self._returning: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then call `on_start`."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            gc.set_threshold(GC_THRESHOLD)
            sys.setswitchinterval(SWITCH_SECONDS)
            limits = (self._context.body_memory, self._context.upload_memory)
            self._returning = asyncio.create_task(return_freed_memory(limits))
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown: `/readyz` fails and requests that wait for a job are answered at once.

        After SIGTERM, the server accepts requests for the drain period, so that load balancers notice `/readyz`,
        and each response closes its connection. After SIGINT or a second signal, it stops at once.
        """
        seconds = self._context.settings.drain_seconds
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._context.stopping.set)
        if sig == signal.SIGTERM and seconds and self._loop is not None and not self._is_draining:
            self._is_draining = True
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, super().handle_exit, sig, frame)
        else:
            super().handle_exit(sig, frame)


def run(app: Gateway, bound: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT, finish the current requests, store the queued reports and return."""
    context = app.state.context
    settings = context.settings
    server = Server(configuration(app, settings.slow_seconds, settings.idle_seconds, app.reports), context, on_start)
    leave_no_core()
    keep_freed_memory(GATEWAY_KEPT_BYTES, max_arenas=1)
    previous = {sig: signal.signal(sig, _ignore) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[bound])  # uvicorn raises the signal again at its end, for the previous handler
    finally:
        for sig, handler in previous.items():
            signal.signal(sig, handler)
        bound.close()


def _ignore(_sig: int, _frame: Any) -> None:
    """Ignore a signal that arrives after the server has stopped."""
