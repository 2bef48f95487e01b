"""Pure ASGI middleware for every request: request ids, errors as problem documents, access log, body limits, CORS."""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import structlog
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connections.connection import PACE_BYTES
from connections.log_records import describe
from connections.problems import BadRequest, Problem, new_request_id
from models.database.failures import is_database_unavailable
from models.tables.identity import Scope as KeyScope
from service.http.headers import content_codings, header
from service.http.metrics import GatewayMetrics, route_of
from service.http.problems import (
    InternalError,
    PayloadTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
    from_exception,
)
from service.http.rate_limits import headers as rate_limit_headers
from service.http.route_table import ENTRIES, REPORTS, Body, entry_of
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE

BODY_SECONDS = 60  # longest time for a body to arrive
UPLOAD_SECONDS = 900  # the same for records and batches, which may be large on a slow connection
CONTROL_BODY_BYTES = 1 << 20  # largest body of requests without reports, records or points
POINTS_BODY_BYTES = 32 << 20
UNPACKED_BYTES = 256 << 10  # piece of an unpacked body
MAX_RATIO = 20  # largest ratio of an unpacked body to the packed one
UNCOUNTED_BYTES = 1 << 20  # unpacked bytes for which any ratio is accepted
PREFLIGHT_SECONDS = 600  # time for which browsers may cache a preflight response; some use less
# Instrumentation of a page adds the last three to all requests. The service ignores them.
CORS_REQUEST_HEADERS = ("Authorization", "Content-Type", "If-None-Match", "traceparent", "tracestate", "baggage")
CORS_RESPONSE_HEADERS = ("ETag", "Retry-After")  # headers that a device reads
NO_STORE = (b"cache-control", b"no-store")
NO_SNIFF = (b"x-content-type-options", b"nosniff")
_CLOSE = (b"connection", b"close")

log = structlog.get_logger(__name__)


async def send_body(send: Send, status: int, media_type: bytes, body: bytes, *more: tuple[bytes, bytes]) -> None:
    """Send a response with a complete body and optional further headers."""
    headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class DeviceCors:
    """Middleware that lets web pages of allowed origins call the two device endpoints.

    No other endpoint sends CORS headers. The service uses no cookies for the API: a page sends its key itself.
    This middleware surrounds all others, so that pages can read problem documents too. It answers
    preflight requests, which carry no key, without authentication, rate limits or access log.

    Parameters
    ----------
    origins : tuple of str
        Allowed origins as browsers send them; `*` allows every origin.
    """

    def __init__(self, app: ASGIApp, *, origins: tuple[str, ...]) -> None:
        self._app = app
        self._cors_by_method = {
            method: CORSMiddleware(
                app,
                allow_origins=origins,
                allow_methods=(method,),
                allow_headers=CORS_REQUEST_HEADERS,
                allow_credentials=False,
                expose_headers=CORS_RESPONSE_HEADERS,
                max_age=PREFLIGHT_SECONDS,
            )
            for method in {entry.cors for entry in ENTRIES if entry.cors}
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            method = entry_of(scope).cors
            if method is not None and scope["method"] in (method, "OPTIONS"):
                await self._cors_by_method[method](scope, receive, send)
                return
        await self._app(scope, receive, send)


class RequestContext:
    """Middleware that assigns the request id, turns errors into problem documents and writes the access log.

    The log has the method, the path without query, the status, the duration and the id of the key. It does not name
    a key with only the scope `device`, which may be that of one person. Stored reports are not logged, because the
    report log deliberately has no times. The duration is omitted unless it is public (`Entry.timed`).

    Parameters
    ----------
    metrics : GatewayMetrics
        Counts requests by route and status.
    stopping : Event
        Once it is set, responses close their connection, so that clients connect to another gateway.
    explain : callable
        Returns why the database cannot be used, for the log.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: GatewayMetrics,
        stopping: asyncio.Event,
        explain: Callable[[BaseException], str],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._stopping = stopping
        self._explain = explain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        request_id = new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode()), NO_SNIFF]
                for name, _ in headers:
                    if name == b"cache-control":
                        break
                else:
                    headers.append(NO_STORE)
                if limits := scope["state"].get("rate_limits"):
                    headers += rate_limit_headers(limits)
                if self._stopping.is_set() or status == RequestTimeout.status:
                    headers.append(_CLOSE)
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            problem = from_exception(error)
            if isinstance(problem, InternalError):
                log.error("request_failed", request_id=request_id, **describe(error))
            elif is_database_unavailable(error):
                reason = self._explain(error)
                log.warning("database_unavailable", request_id=request_id, error=type(error).__name__, reason=reason)
            if status == 0:  # after the response has started, the server can only close the connection
                await send_problem(send_with_headers, problem, request_id)
            _drop_frames(error)
        finally:
            entry, seconds = entry_of(scope), time.perf_counter() - start
            self._metrics.count_request(scope["method"], route_of(scope), status, seconds)
            if not (status == 202 and entry is REPORTS):
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0][:200],
                    status=status,
                    **({"ms": round(1000 * seconds, 1)} if scope["method"] in entry.timed else {}),
                    request_id=request_id,
                    **_named_key(scope),
                )


def _drop_frames(error: BaseException | None) -> None:
    """Release the bodies in the frames of an error: the future of a thread refers to the error, and a frame to it."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _named_key(scope: Scope) -> dict[str, str]:
    """Return the id of the request's key for the log. A key for devices only may be that of one person."""
    caller = scope["state"].get("caller")
    return {} if caller is None or caller.scopes <= {KeyScope.DEVICE} else {"key": caller.key_id}


async def send_problem(send: Send, problem: Problem, request_id: str) -> None:
    """Send a problem document as the response."""
    more = [(name.lower().encode(), value.encode()) for name, value in (problem.headers or {}).items()]
    await send_body(send, problem.status, PROBLEM_MEDIA_TYPE.encode(), problem.body(request_id), *more)


class EagerAwaitable:
    """Runs an awaitable in its constructor up to its first suspension.

    The constructor also raises the exceptions of this first part.

    Attributes
    ----------
    is_done : bool
        Whether the awaitable completed without suspending.
    result : object
        The return value if `is_done`.
    """

    __slots__ = ("_awaited", "_steps", "is_done", "result")

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._steps: Generator[Any, Any, Any] = awaitable.__await__()
        self._awaited: Any = None
        self.is_done = False
        self.result: Any = None
        try:
            self._awaited = next(self._steps)
        except StopIteration as end:
            self.is_done, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the rest and return its value. Cancellation reaches the suspended awaitable."""
        awaited = self._awaited
        while True:
            try:
                sent = yield awaited
            except BaseException as error:
                resume = partial(self._steps.throw, error)
            else:
                resume = partial(self._steps.send, sent)
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value


class BodyLimit:
    """Middleware that rejects bodies that are too large or arrive too slowly, and unpacks gzip.

    It checks the declared length first, then the bytes as they arrive, and the unpacked bytes.

    Parameters
    ----------
    max_bytes : int
        Largest body with reports. Other bodies have lower limits, except records and batches.
    max_records_bytes : int
        Largest body with records, or with a batch of sealed reports.
    slow_seconds : float
        Longest wait for PACE_BYTES of a body, or for the rest of a body if it is shorter.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_records_bytes: int, slow_seconds: float) -> None:
        self._app = app
        self._limits = {
            Body.DOCUMENT: min(max_bytes, CONTROL_BODY_BYTES),
            Body.POINTS: min(max_bytes, POINTS_BODY_BYTES),
            Body.REPORTS: max_bytes,
            Body.UPLOAD: max_records_bytes,
        }
        self._slow_seconds = slow_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kind = entry_of(scope).body
        limit = self._limits[kind]
        declared = header(scope, b"content-length")
        if declared is not None and (not declared.strip().isdigit() or int(declared) > limit):
            raise _too_large(limit)
        seconds = UPLOAD_SECONDS if kind is Body.UPLOAD else BODY_SECONDS
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        allowance = self._slow_seconds  # counts only the time spent waiting for the client
        received = paced = 0
        is_complete = False

        async def receive_limited() -> Message:
            nonlocal received, paced, allowance, is_complete
            if is_complete:  # only the disconnect message follows, which has no time limit
                return await receive()
            start = clock()
            pending = EagerAwaitable(receive())
            message: Message
            try:
                if pending.is_done:  # most bodies arrive with their head; this check costs less than a timer
                    message = pending.result
                else:
                    async with asyncio.timeout_at(min(deadline, start + allowance)):
                        message = await pending
            except TimeoutError:
                raise RequestTimeout(
                    f"the body arrived too slowly: at most {seconds} seconds in total, and at least {PACE_BYTES} bytes "
                    f"per {self._slow_seconds:g} seconds; send it in smaller parts or over a faster connection"
                ) from None
            is_complete = not message.get("more_body", False)
            n_bytes = len(message.get("body", b""))
            received, paced, allowance = received + n_bytes, paced + n_bytes, allowance - (clock() - start)
            if paced >= PACE_BYTES:
                paced, allowance = 0, self._slow_seconds
            if received > limit:
                raise _too_large(limit)
            return message

        codings = content_codings(scope)
        if not codings or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self._app(scope, receive_limited, send)
        elif codings == [b"gzip"]:
            await self._app(scope, _Unpacked(receive_limited, limit, int(declared or 0)).receive, send)
        else:
            raise UnsupportedMediaType(
                "this Content-Encoding is not supported: send the body as it is, or with gzip",
                headers=[("accept-encoding", "gzip")],
            )


class _Unpacked:
    """Body of a request that arrives as gzip, unpacked in pieces.

    It must fit into `limit` bytes. Beyond UNCOUNTED_BYTES, it must be at most MAX_RATIO times the packed body.

    Parameters
    ----------
    receive : callable
        Returns the messages with the packed body.
    limit : int
        Largest unpacked body.
    declared : int
        Stated length of the packed body; 0 if it is not stated.
    """

    def __init__(self, receive: Receive, limit: int, declared: int) -> None:
        self._receive = receive
        self._declared = declared
        self._limit = limit
        self._unpack = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # gzip only
        self._packed = b""  # has arrived, but is not unpacked yet
        self._has_more = True  # packed pieces
        self._is_complete = False
        self._n_packed = self._n_bytes = 0

    async def receive(self) -> Message:
        """Return the next message."""
        if self._is_complete:
            return await self._receive()
        if self._packed or (self._n_packed and not self._has_more):
            await asyncio.sleep(0)  # lets other requests run, because a small message may unpack to many pieces
        else:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._packed, self._has_more = message.get("body", b""), message.get("more_body", False)
            self._n_packed += len(self._packed)
        return self._unpack_piece()

    def _unpack_piece(self) -> Message:
        try:
            piece = self._unpack.decompress(self._packed, UNPACKED_BYTES)
        except zlib.error:
            raise BadRequest("the body is not gzip, as its Content-Encoding states") from None
        self._packed = self._unpack.unconsumed_tail
        self._n_bytes += len(piece)
        if self._n_bytes > self._limit:
            raise _too_large(self._limit)
        if self._n_bytes > max(UNCOUNTED_BYTES, MAX_RATIO * max(self._n_packed, self._declared)):
            raise PayloadTooLarge(
                f"the gzip body unpacks to more than {MAX_RATIO} times its length: send it without compression"
            )
        if self._unpack.unused_data:
            raise BadRequest("the body continues after the end of its gzip data: send one gzip member")
        if not self._has_more and not self._packed and len(piece) < UNPACKED_BYTES:
            if self._n_packed and not self._unpack.eof:
                raise BadRequest("the gzip body is truncated: send it completely")
            self._is_complete = True
        return {"type": "http.request", "body": piece, "more_body": not self._is_complete}


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is too large: this path accepts at most {limit} bytes; send smaller requests")
