"""Persistent HTTP/1.1 connection of a client, with minimal work per response, and the log of its requests."""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

JSON = b"Content-Type: application/json\r\n"
TIMEOUT_SECONDS = 60.0
KEEP_SECONDS = 50.0  # lifetime of an idle connection; gateways keep one for 65 s, so that the client closes it first


# Errors that a correct service returns: a round that closed before a report arrived, and limits.
EXPECTED = frozenset({"409 round_closed", "429 rate_limited"})


@dataclass
class EventLog:
    """Times in seconds by kind of request, errors by code, reports acknowledged by round."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    at: list[tuple[float, float]] = field(default_factory=list)  # time and duration of each report

    def reset(self) -> None:
        """Clear the log except for acknowledged reports, which are compared with all counted ones at the end."""
        self.seconds.clear()
        self.errors.clear()
        self.at.clear()

    @property
    def unexpected(self) -> dict[str, int]:
        """Return errors that a correct service does not return."""
        return {code: n for code, n in self.errors.items() if code not in EXPECTED}


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the service."""

    status: int
    headers: dict[bytes, bytes]  # names in lower case
    body: bytes


class Broken(Exception):
    """No complete response arrived: refused, cut short, or timed out."""


class Connection:
    """A connection that sends one request at a time, and connects on demand.

    Parameters
    ----------
    url, key : str
        Address of a gateway, and a bearer key.
    """

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {key}\r\n".encode()
        self._wire: _Wire | None = None
        self._used_at = 0.0

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: bytes = b"",
        until: Callable[[bytes], bool] | None = None,
    ) -> Response:
        """Send a request and return its response.

        Parameters
        ----------
        headers : bytes
            Further header lines, each with its CRLF.
        until : callable, optional
            Takes the body so far; once it returns True the connection is closed, because event streams do not end.

        Raises
        ------
        Broken
            There is no complete response.
        """
        length = b"Content-Length: %d\r\n" % len(body) if body or method == "POST" else b""
        request = b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (method.encode(), path.encode(), self._head, headers, length) + body
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                wire = await self._connected()
                response = await wire.request(request, until)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            self.close()
            raise Broken(type(error).__name__) from None
        except BaseException:
            self.close()
            raise
        if until is not None or response.headers.get(b"connection") == b"close":
            self.close()
        return response

    def close(self) -> None:
        """Close the connection."""
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
    """The protocol of a connection, with the callbacks of its parser."""

    def __init__(self) -> None:
        self.is_over = False
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[Response] | None = None
        self._until: Callable[[bytes], bool] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()

    async def request(self, request: bytes, until: Callable[[bytes], bool] | None) -> Response:
        assert self._transport is not None
        self._begin()
        self._until = until
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._response

    def close(self) -> None:
        self.is_over = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # not a subclass in uvloop

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.connection_lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        if self._response is not None and not self._response.done():
            self._response.set_exception(error if isinstance(error, OSError) else ConnectionError())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, part: bytes) -> None:
        self._body += part
        if self._until is not None and self._until(bytes(self._body)):
            self._finish()

    def on_message_complete(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_result(Response(self._parser.get_status_code(), self._headers, bytes(self._body)))


async def timed(
    log: EventLog, kind: str, connection: Connection, method: str, path: str, body: bytes = b"", **options: Any
) -> Any:
    """Send a request and log its time or error; return the response, or None without one."""
    began = time.perf_counter()
    try:
        response = await connection.request(method, path, body, **options)
    except Broken as broken:
        log.errors[f"no response: {broken}"] += 1
        return None
    took = time.perf_counter() - began  # the clock of uvloop has a resolution of milliseconds
    if response.status >= 400:
        log.errors[f"{response.status} {code(response.body)}"] += 1
    else:
        log.seconds[kind].append(took)
        if kind == "report":
            log.at.append((began, took))
    return response


def code(body: bytes) -> str:
    """Return the code of a problem document."""
    try:
        return str(json.loads(body)["code"])
    except (ValueError, KeyError, TypeError):
        return "without a problem"
