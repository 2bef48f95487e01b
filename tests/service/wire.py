"""A gateway in this process that is spoken to over a socket, as it is served: bytes as they come, in any pieces."""

import socket
import threading
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn
from fastapi import FastAPI

from service import server
from service.protocol import protocol_of

PATIENCE_SECONDS = 120


class OnTheWire:
    """An application and its server from their start to their end.

    Attributes
    ----------
    client : httpx.Client
    taken : list of bool
        Of each request that looked as if the fast path may take it, whether it did.
    """

    client: httpx.Client

    def __init__(self, app: FastAPI, *, slow_seconds: float = 20.0, idle_seconds: int = server.IDLE_SECONDS) -> None:
        self.app = app
        self.taken: list[bool] = []
        self.bound = server.bind("127.0.0.1", 0)
        config = uvicorn.Config(
            app,
            http=protocol_of(slow_seconds, app.state.fast_path),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=idle_seconds,
        )
        self._begun = threading.Event()
        self.server = server.Server(config, app.state.services, self._begun.set)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.bound]}, daemon=True)
        self._watch(app.state.fast_path)

    def _watch(self, fast_path: Any) -> None:
        take = fast_path.take

        def seen(*given: Any) -> bool:
            self.taken.append(bool(take(*given)))
            return self.taken[-1]

        fast_path.take = seen

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.bound.getsockname()
        return host, port

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(PATIENCE_SECONDS)
        self.client = httpx.Client(base_url="http://{}:{}".format(*self.address), timeout=PATIENCE_SECONDS)
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
        """A client that waits for no answer without end."""
        connected = socket.create_connection(self.address, timeout=PATIENCE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected


def read_answers(connected: socket.socket, n_answers: int) -> list[tuple[int, dict[str, str], bytes]]:
    """The next answers of a connection: status, headers, body."""
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
