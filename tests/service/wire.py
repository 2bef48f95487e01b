"""A gateway in this process behind a real socket, for tests that send bytes in any pieces."""

import socket
import threading
from types import TracebackType
from typing import Any, Self

import httpx
from fastapi import FastAPI

from connections.server import IDLE_SECONDS, bind, configuration
from devservers.loopback import NO_TLS
from service.server import server

PATIENCE_SECONDS = 120


class OnTheWire:
    """A running application and its server.

    Attributes
    ----------
    client : httpx.Client
    n_regular : int
        Number of uploads of reports that the front left to the application.
    """

    client: httpx.Client

    def __init__(self, app: FastAPI, *, slow_seconds: float = 20.0, idle_seconds: int = IDLE_SECONDS) -> None:
        self.app: Any = app
        self.n_regular = 0
        self.bound = bind("127.0.0.1", 0)
        config = configuration(app, slow_seconds, idle_seconds, self.app.reports)
        self._begun = threading.Event()
        self.server = server.Server(config, app.state.context, self._begun.set)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.bound]}, daemon=True)
        uploads = self.app.uploads

        async def count(*given: Any) -> None:
            self.n_regular += 1
            await uploads(*given)

        self.app.uploads = count

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        host, port = self.bound.getsockname()
        return host, port

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(PATIENCE_SECONDS)
        self.client = httpx.Client(
            base_url="http://{}:{}".format(*self.address), timeout=PATIENCE_SECONDS, verify=NO_TLS
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        self.bound.close()

    def connect(self) -> socket.socket:
        """Return a client socket with a timeout."""
        connected = socket.create_connection(self.address, timeout=PATIENCE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected


def read_answers(connected: socket.socket, n_answers: int) -> list[tuple[int, dict[str, str], bytes]]:
    """Return status, headers and body of the next responses of a connection."""
    answers = []
    with connected.makefile("rb") as stream:
        for _ in range(n_answers):
            status = int(stream.readline().split()[1])
            headers = dict(iter(lambda: _header(stream), ("", "")))
            answers.append((status, headers, stream.read(int(headers["content-length"]))))
    return answers


def _header(stream: Any) -> tuple[str, str]:
    name, _, value = stream.readline().decode().strip().partition(": ")
    return name, value
