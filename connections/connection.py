"""Connections of clients: limits for each request, and timeouts for slow clients.

A `Connection` passes the bytes of one request at a time to the protocol of uvicorn. It uses only the public interfaces
of asyncio and the constructor of that protocol. Before uvicorn parses a request, the connection

- limits the size and the number of fields of the head;
- requires a request line of HTTP/1 and one `Host`;
- removes trailers and chunk extensions, so that a field after the body never acts as a header;
- limits the bytes that chunks add to a body.

A `Shortcut` may answer complete requests without uvicorn. The gateway and the shuffler share this module.
"""

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from connections.joined_transport import JoinedTransport, WriteQueue
from connections.problems import BadRequest, HeadTooLarge, Problem, new_request_id
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE

PACE_BYTES = 20 << 10  # a client must send this much of a body, or read this much of a response, per `slow_seconds`
MAX_HEAD_BYTES = 32 << 10  # request line and headers
MAX_FIELDS = 100  # headers of a request
MIN_LINE_BYTES = 3  # a shorter line ends the head
MAX_LENGTH_DIGITS = 18  # digits in a Content-Length
MAX_FRAMING_BYTES = 16 << 10  # chunk lines and trailers, in addition to half of the body
MAX_WAITING_BYTES = 64 << 10  # data of later requests on a connection; more is left to the kernel
WHOLE_BYTES = 16 << 10  # a body up to this size is passed on with its head, because many clients send them apart
WHOLE_SECONDS = 0.1  # longest wait for such a body
SMALL_BYTES = 1 << 10  # unsent bytes without a write timeout; the kernel buffers as much for each client anyway

_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding|upgrade|expect):[ \t]*([^\r]*)", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r]*", re.IGNORECASE)
_REQUEST_LINE_END = re.compile(rb" HTTP/1\.[01]")
_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_EXTENSION = rb";[ \t]*" + _TOKEN + rb"[ \t]*(?:=[ \t]*(?:" + _TOKEN + rb'|"(?:[^"\\\r\n\0]|\\[^\r\n\0])*")[ \t]*)?'
_CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:" + _EXTENSION + rb")*")
_TRAILER = re.compile(_TOKEN + rb":[^\r\n\0]*")
_STATE = "connection"  # key of a request's connection in the state of its scope

Finish = Callable[[bytes | None], None]


class Shortcut(Protocol):
    """Function that answers requests with a complete body in place of the application."""

    def __call__(self, head: bytes, body: bytes, client: tuple[str, int] | None, finish: Finish) -> bool:
        """Return whether this function answers a request, which it does later.

        Parameters
        ----------
        head : bytes
            Request line and headers, without the empty line.
        body : bytes
        client : tuple of str and int, optional
            Address and port of the peer.
        finish : callable
            Takes the rest of a response with status 202: headers, empty line and body. None leaves the request to the
            application. It must be called once, at a later iteration of the event loop.
        """


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection of a client in front of uvicorn's protocol.

    Parameters
    ----------
    queue : WriteQueue
    slow_seconds : float
        Read timeout of a head and of the rest of an answered body. Write timeout for each PACE_BYTES of a response.
        `BodyLimit` covers all other bodies.
    idle_seconds : float
        Longest time between a response and the first byte of the next request.
    shortcut : Shortcut, optional
    config : uvicorn.Config
        Its `timeout_keep_alive` must be long, because uvicorn knows no requests that the shortcut answered.
    server_state : ServerState
    app_state : dict
        State of the application.
    **arguments
        Further arguments of uvicorn's protocol.
    """

    def __init__(
        self,
        *,
        queue: WriteQueue,
        slow_seconds: float,
        idle_seconds: float,
        shortcut: Shortcut | None,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        **arguments: Any,
    ) -> None:
        # uvicorn copies the state into the scope of each request, where `TrackRequests` finds this connection.
        self._state = app_state | {_STATE: self}
        self._inner = HttpToolsProtocol(config=config, server_state=server_state, app_state=self._state, **arguments)
        self._connections: set[Any] = server_state.connections  # uvicorn's server shuts these down
        self._pass_on = self._inner.data_received
        self._queue, self._slow_seconds, self._idle_seconds = queue, slow_seconds, idle_seconds
        self._shortcut, self._server_state = shortcut, server_state
        self._unread = b""
        self._at = 0  # start of the unread part of `_unread`
        self._step = self._read_head
        self._in_body = False  # whether the end of the current request's body has not arrived
        self._is_answering = False  # whether the application has a request of this connection
        self._left_bytes = 0  # bytes up to the end of the body or chunk
        self._framing_bytes = 0  # bytes of chunk lines and trailers that may still arrive
        self._first_byte = 0  # position of the response in all written bytes
        self._is_holding = self._is_late = False  # whether a head waits for its body, and has waited
        self._is_idle = False  # whether no byte of the next request has arrived since the last response
        self._request = b""  # the request that the shortcut answers now
        self._is_paused = False  # whether the client reads too slowly
        self._is_stopping = False  # whether `shutdown` was called
        self._sent_bytes = self._unsent_bytes = 0  # at the last check

    # ---- events of the transport ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the read timeout of a new connection."""
        self._loop = asyncio.get_running_loop()
        self._transport = JoinedTransport(transport, self._queue)
        peer = transport.get_extra_info("peername")
        self._client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._inner.connection_made(self._transport)
        self._connections.remove(self._inner)
        self._connections.add(self)
        self._deadline: float | None = self._loop.time() + self._slow_seconds  # loop time; None during a request
        self._timer = self._loop.call_later(self._slow_seconds, self._check)

    def data_received(self, data: bytes) -> None:
        """Pass on the data of the current request, and keep the data of later ones."""
        self._unread = self._unread + data if self._unread else data
        self._read()

    def pause_writing(self) -> None:
        """Let the application wait until the client reads."""
        self._is_paused = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Let the application continue."""
        self._is_paused = False
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and free the data, because the collector frees the connection later."""
        self._timer.cancel()
        self._unread = self._request = b""
        self._connections.discard(self)
        self._inner.connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection after the current request, also if its head waits for its body."""
        self._pass_on_held_head()
        self._is_stopping = True
        if not self._request:
            self._inner.shutdown()

    # ---- requests ----

    def begin_request(self) -> None:
        """Stop the read timeout, because the application has the request."""
        self._deadline = None

    def end_request(self) -> None:
        """Wait for the rest of the body or the next request, after the application has finished."""
        self._is_answering = False
        if self._in_body:
            self._deadline = self._loop.time() + self._slow_seconds
        else:
            self._expect_request()
        if self._unread and not self._transport.is_closing():
            self._transport.resume_reading()
            self._loop.call_soon(self._read)

    def _expect_request(self) -> None:
        self._is_idle = True
        self._deadline = self._loop.time() + self._idle_seconds

    def _read(self) -> None:
        try:
            while self._at < len(self._unread) and not self._transport.is_closing():
                if self._is_answering and not self._in_body:
                    if len(self._unread) - self._at > MAX_WAITING_BYTES:
                        self._transport.pause_reading()
                    break
                if not self._step():
                    break
        except Problem as problem:
            if not self._in_body or self._transport.n_written == self._first_byte:
                self._transport.write(_response(problem))
            self._transport.close()
        self._unread, self._at = self._unread[self._at :], 0

    def _read_head(self) -> bool:
        """Pass on a head, with its body as far as that has arrived. Return False if the head is incomplete."""
        data, start = self._unread, self._at
        while data[start : start + 1] in (b"\r", b"\n"):  # empty lines may precede a request
            start += 1
        end = data.find(b"\r\n\r\n", start)
        head_bytes = (len(data) if end < 0 else end) - start
        if head_bytes > MAX_HEAD_BYTES or (
            head_bytes > MIN_LINE_BYTES * MAX_FIELDS and data.count(b"\r\n", start, start + head_bytes) > MAX_FIELDS
        ):
            raise HeadTooLarge(
                f"the head is too large: at most {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields; "
                "send fewer or shorter headers"
            )
        if end < 0:
            self._at = start
            if self._is_idle and head_bytes:
                self._is_idle, self._deadline = False, self._loop.time() + self._slow_seconds
            return False
        _check_head(data, start, end)
        fields = lengths = _FRAMING.findall(data, start, end)
        if len(fields) != 1 or len(fields[0][0]) != len(b"content-length"):
            if any(len(name) == len(b"upgrade") for name, _ in fields):  # no upgrade is supported
                self._unread, self._at = _UPGRADE.sub(b"", data[start:end]) + data[end:], 0
                return True
            lengths = [field for field in fields if len(field[0]) > len(b"upgrade")]
        length = _body_length(lengths) if lengths else 0
        body, stop = end + 4, end + 4 + (length or 0)
        if len(data) < stop <= body + WHOLE_BYTES and lengths is fields and not self._is_late:
            self._hold()
            return False
        self._is_answering, self._deadline = True, self._loop.time() + self._slow_seconds
        self._is_holding = self._is_late = self._is_idle = False
        self._first_byte = self._transport.n_written
        self._at = min(stop, len(data))
        self._left_bytes = stop - self._at
        if length is None:
            self._framing_bytes, self._in_body, self._step = MAX_FRAMING_BYTES, True, self._read_chunk_line
        elif self._left_bytes:
            self._in_body, self._step = True, self._read_body
        request = data[start : self._at]
        if (
            self._shortcut is not None
            and length
            and not (self._in_body or self._is_paused)
            and self._shortcut(data[start:end], data[body:stop], self._client, self._finish)
        ):
            self._request, self._deadline = request, None
        else:
            self._pass_on(request)
        return True

    def _finish(self, rest: bytes | None) -> None:
        """Write the response of the shortcut, or pass its request on."""
        request, self._request = self._request, b""
        if self._transport.is_closing():
            return
        if rest is None:
            self._deadline = self._loop.time() + self._slow_seconds
            self._pass_on(request)
        else:
            default = b"".join([b"%b: %b\r\n" % header for header in self._server_state.default_headers])
            self._transport.write(b"HTTP/1.1 202 Accepted\r\n%b%b" % (default, rest))
            self.end_request()
        if self._is_stopping:
            self._inner.shutdown()

    def _hold(self) -> None:
        """Wait a short time for the body of a head."""
        if not self._is_holding:
            self._is_holding, self._is_idle = True, False
            self._deadline = self._loop.time() + WHOLE_SECONDS
            self._timer.cancel()
            self._timer = self._loop.call_later(WHOLE_SECONDS, self._check)

    def _pass_on_held_head(self) -> None:
        if self._is_holding:
            self._is_late = True
            self._read()

    def _read_body(self) -> bool:
        piece = self._take_piece()
        if not self._left_bytes:
            self._end_body()
        self._pass_on(piece)
        return True

    def _read_chunk_line(self) -> bool:
        line = self._take_line()
        if line is not None:
            size = _CHUNK_LINE.fullmatch(line)
            if size is None:
                raise BadRequest("the size of a chunk cannot be read")
            self._left_bytes = int(size[1], 16)
            self._step = self._read_chunk if self._left_bytes else self._read_trailer
        return line is not None

    def _read_chunk(self) -> bool:
        piece = self._take_piece()
        self._framing_bytes += len(piece) // 2
        if not self._left_bytes:
            self._step = self._read_chunk_end
        self._pass_on(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _read_chunk_end(self) -> bool:
        line = self._take_line()
        if line:
            raise BadRequest("a chunk is longer than its size")
        self._step = self._read_chunk_line if line is not None else self._step
        return line is not None

    def _read_trailer(self) -> bool:
        """Drop a trailer, or end the body at an empty line."""
        line = self._take_line()
        if line == b"":
            self._end_body()
            self._pass_on(b"0\r\n\r\n")
        elif line is not None and _TRAILER.fullmatch(line) is None:
            raise BadRequest("a trailer cannot be read")
        return line is not None

    def _take_piece(self) -> bytes:
        piece = self._unread[self._at : self._at + self._left_bytes]
        self._at += len(piece)
        self._left_bytes -= len(piece)
        return piece

    def _take_line(self) -> bytes | None:
        """Return the next line between chunks, or None if it is incomplete."""
        end = self._unread.find(b"\r\n", self._at)
        n_bytes = (len(self._unread) if end < 0 else end + 2) - self._at
        if n_bytes > self._framing_bytes:
            raise BadRequest("the chunks are too small or have too many extensions or trailers")
        if end < 0:
            return None
        line = self._unread[self._at : end]
        self._at += n_bytes
        self._framing_bytes -= n_bytes
        return line

    def _end_body(self) -> None:
        self._in_body, self._step = False, self._read_head
        if not self._is_answering:
            self._expect_request()

    # ---- timeouts ----

    def _check(self) -> None:
        """Close a connection that is slower than its timeouts allow. This is the only timer of a connection."""
        now, is_closing = self._loop.time(), self._transport.is_closing()
        unsent = self._transport.get_write_buffer_size()
        sent = self._transport.n_written - unsent
        if self._unsent_bytes > (0 if is_closing else SMALL_BYTES) and unsent and sent - self._sent_bytes < PACE_BYTES:
            self._transport.abort()  # close() would wait until the client reads the rest
            return
        self._sent_bytes, self._unsent_bytes = sent, unsent
        seconds = self._slow_seconds
        if self._deadline is not None and not is_closing:
            seconds = min(seconds, self._deadline - now)
            if seconds <= 0:
                if self._is_holding:
                    self._pass_on_held_head()
                else:
                    if self._is_answering and self._transport.n_written == self._first_byte:
                        self._transport.write(_response(BadRequest()))  # uvicorn started no request for this head
                    self._transport.close()
                seconds = self._slow_seconds
        self._timer = self._loop.call_later(seconds, self._check)


class TrackRequests:
    """ASGI application that reports the end of each request to its connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or the lifespan."""
        connection: Connection | None = scope["state"].pop(_STATE, None)
        if connection is not None:
            connection.begin_request()
        try:
            await self._app(scope, receive, send)
        finally:
            if connection is not None:
                connection.end_request()


def _check_head(data: bytes, start: int, end: int) -> None:
    """Raise BadRequest unless a head has a request line of HTTP/1 and, from HTTP/1.1 on, one `Host`."""
    line_end = data.find(b"\r\n", start, end + 2)
    version = data[line_end - len(b" HTTP/1.1") : line_end]
    if not _REQUEST_LINE_END.fullmatch(version):
        raise BadRequest("the request line cannot be read: send a method, a path and HTTP/1.1, or HTTP/1.0")
    n_hosts = data[line_end:end].lower().count(b"\r\nhost:")
    if n_hosts > 1 or (n_hosts == 0 and version.endswith(b"1.1")):
        raise BadRequest(f"the request has {n_hosts} `Host` headers: send one")


def _body_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    """Return the length of a body, or None if it is chunked. Raise BadRequest if it is neither."""
    if len(fields) == 1:
        name, value = fields[0]
        value = value.strip(b" \t")
        if len(name) == len(b"content-length"):
            if value.isdigit() and len(value) <= MAX_LENGTH_DIGITS:
                return int(value)
        elif value.lower() == b"chunked":
            return None
    raise BadRequest("the length of the body cannot be read: send one Content-Length, or Transfer-Encoding: chunked")


def _response(problem: Problem) -> bytes:
    """Return a complete response that closes the connection."""
    request_id = new_request_id()
    body = problem.body(request_id)
    return (
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\ncontent-type: {PROBLEM_MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\nx-content-type-options: nosniff\r\n"
        "cache-control: no-store\r\nconnection: close\r\n\r\n"
    ).encode() + body
