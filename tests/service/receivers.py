"""Well-behaved and misbehaving webhook receivers on 127.0.0.1."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PATIENCE_SECONDS = 120.0

Answer = Callable[[socket.socket, int], None]  # arguments: connection, number of the request from 1


@dataclass
class Request:
    """A received request."""

    line: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass
class Receiver:
    """A server that records its requests, with one thread per connection."""

    answer: Answer
    trust: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._socket.getsockname()[1]
        self.ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    def ids(self) -> list[str]:
        """Return the `webhook-id` of each request in order of arrival."""
        with self._changed:
            return [each.headers["webhook-id"] for each in self.requests]

    def wait_for(self, n_requests: int) -> list[Request]:
        """Wait for this number of requests and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= n_requests, PATIENCE_SECONDS), self.requests
            return list(self.requests)

    def stop(self) -> None:
        self.ending.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._accepting.join()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=[connection], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.settimeout(PATIENCE_SECONDS)
            if self.trust is None:
                self._talk(connection)
            else:
                with self.trust.wrap_socket(connection, server_side=True) as wrapped:
                    self._talk(wrapped)

    def _talk(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            part = connection.recv(65536)
            if not part:
                return
            received += part
        head, _, body = received.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        while len(body) < int(headers["content-length"]):
            body += connection.recv(65536)
        with self._changed:
            self.requests.append(Request(line, headers, body, time.time()))
            place = len(self.requests)
            self._changed.notify_all()
        self.answer(connection, place)


def respond(*statuses: str, more: str = "", body: bytes = b"") -> Answer:
    """Respond with these statuses in turn; the last one repeats: `respond("500 Error", "200 OK")`."""

    def answer(connection: socket.socket, place: int) -> None:
        status = statuses[min(place, len(statuses)) - 1]
        head = f"HTTP/1.1 {status}\r\n{more}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    return answer


@contextmanager
def receiving(answer: Answer, trust: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver within a `with` block."""
    receiver = Receiver(answer, trust)
    try:
        yield receiver
    finally:
        receiver.stop()
