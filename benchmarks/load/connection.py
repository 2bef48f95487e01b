"""One client's kept-alive HTTP/1.1 connection: as little work an answer as a load generator can have."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

TIMEOUT_SECONDS = 60.0
KEEP_SECONDS = 50.0  # an idle connection; gateways keep one for 65 s, so that who asks closes it, as pools do


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[bytes, bytes]  # names in lower case
    body: bytes


class Broken(Exception):
    """No whole answer came: refused, cut short, or too late."""


class Connection:
    """Sends one request at a time; connects when it has to.

    Parameters
    ----------
    url, key : str
        A gateway, and a bearer key.
    """

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {key}\r\n".encode()
        self._wire: _Wire | None = None
        self._used_at = 0.0

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: bytes = b"",
        until: Callable[[bytes], bool] | None = None,
    ) -> Answer:
        """The answer to a request.

        Parameters
        ----------
        headers : bytes
            More lines, each with its CRLF.
        until : callable, optional
            Looks at the body so far; once it is content the connection is closed (event streams do not end).

        Raises
        ------
        Broken
            There is none.
        """
        length = b"Content-Length: %d\r\n" % len(body) if body or method == "POST" else b""
        request = b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (method.encode(), path.encode(), self._head, headers, length) + body
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                wire = await self._connected()
                answer = await wire.ask(request, until)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            self.close()
            raise Broken(type(error).__name__) from None
        except BaseException:
            self.close()
            raise
        if until is not None or answer.headers.get(b"connection") == b"close":
            self.close()
        return answer

    def close(self) -> None:
        """Leave."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _connected(self) -> "_Wire":
        loop = asyncio.get_running_loop()
        if loop.time() > self._used_at + KEEP_SECONDS:
            self.close()
        if self._wire is None or self._wire.is_over:
            _, self._wire = await loop.create_connection(_Wire, self._host, self._port)
        self._used_at = loop.time()
        return self._wire


class _Wire(asyncio.Protocol):
    """The connection's protocol, and what its parser calls back."""

    def __init__(self) -> None:
        self.is_over = False
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._until: Callable[[bytes], bool] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()

    async def ask(self, request: bytes, until: Callable[[bytes], bool] | None) -> Answer:
        assert self._transport is not None
        self._begin()
        self._until = until
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        self.is_over = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.connection_lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error if isinstance(error, OSError) else ConnectionError())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, part: bytes) -> None:
        self._body += part
        if self._until is not None and self._until(bytes(self._body)):
            self._finish()

    def on_message_complete(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(Answer(self._parser.get_status_code(), self._headers, bytes(self._body)))
