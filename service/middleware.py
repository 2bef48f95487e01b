"""What every request passes, as pure ASGI: an id, problems for errors, the access log, the body's limits."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Generator
from functools import partial
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.limits import headers as limit_headers
from service.logs import describe
from service.metrics import GatewayMetrics, route_of
from service.problems import (
    MEDIA_TYPE,
    InternalError,
    PayloadTooLarge,
    Problem,
    RequestTimeout,
    from_exception,
    is_database_away,
)

BODY_SECONDS = 60  # a body that takes longer to arrive is given up
PACE_BYTES = 20 << 10  # in `slow_seconds` a client sends so much of a body, or reads so much of its answer
RECORDS_SECONDS = 900  # the same for records: a curator's upload may be large, and its line slow
CONTROL_BODY_BYTES = 1 << 20  # largest body where no reports or points are sent
POINTS_BODY_BYTES = 32 << 20

# how long these take is private
TELLING = re.compile("/v1/datasets/[^/]+(/records)?|/v1/jobs/[^/]+(/events)?|/console/.*")

_NO_STORE = (b"cache-control", b"no-store")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_CLOSE = (b"connection", b"close")

log = structlog.get_logger(__name__)


class RequestIds:
    """Names of requests: random, since one that counted would tell whoever asks how many others did."""

    _N_DRAWN = 512  # at once: to ask the system for each costs more

    def __init__(self) -> None:
        self._drawn = b""
        self._place = 0

    def new(self) -> str:
        """Another one."""
        if self._place >= len(self._drawn):
            self._drawn, self._place = secrets.token_bytes(_ID_BYTES * self._N_DRAWN), 0
        self._place += _ID_BYTES
        return self._drawn[self._place - _ID_BYTES : self._place].hex()


_ID_BYTES = 8
new_request_id = RequestIds().new


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


async def send_body(send: Send, status: int, media_type: bytes, body: bytes, *more: tuple[bytes, bytes]) -> None:
    """Answer with a body that is at hand."""
    headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class RequestContext:
    """The outermost: names the request, answers every error with its problem, logs the access.

    The log holds the method, the path without its query, the status and the time taken; not
    who asked, since that may be one person's device. Reports that were stored are not logged
    one by one: the report log keeps no times, and this one is not to tell them either. How many
    records there are is private, so the time it took to take or count them, or to wait for a job
    over them, is not logged.

    Parameters
    ----------
    metrics : GatewayMetrics
        Counts what is answered, by route and status.
    stopping : Event
        Once it is set, answers ask clients to take their next request elsewhere.
    """

    def __init__(self, app: ASGIApp, *, metrics: GatewayMetrics, stopping: asyncio.Event) -> None:
        self._app = app
        self._metrics = metrics
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode()), _NO_SNIFF]
                for name, _ in headers:
                    if name == b"cache-control":
                        break
                else:
                    headers.append(_NO_STORE)
                if told := scope["state"].get("rate_limits"):
                    headers += limit_headers(told)
                if self._stopping.is_set() or status == RequestTimeout.status:
                    headers.append(_CLOSE)
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as error:
            problem = from_exception(error)
            if isinstance(problem, InternalError):
                log.error("request_failed", request_id=request_id, **describe(error))
            elif is_database_away(error):
                log.warning("database_away", request_id=request_id, error=type(error).__name__)
            if status == 0:  # else the answer breaks off, and the server closes the connection
                await send_problem(send_named, problem, request_id)
        finally:
            self._metrics.answered(scope["method"], route_of(scope), status, time.perf_counter() - began)
            if not (status == 202 and scope["path"].endswith("/reports")):
                took = {"ms": round(1000 * (time.perf_counter() - began), 1)}
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0][:200],
                    status=status,
                    **({} if TELLING.fullmatch(scope["path"]) else took),
                    request_id=request_id,
                )


async def send_problem(send: Send, problem: Problem, request_id: str) -> None:
    """Answer with a problem."""
    more = [(name.lower().encode(), value.encode()) for name, value in (problem.headers or {}).items()]
    await send_body(send, problem.status, MEDIA_TYPE.encode(), problem.body(request_id), *more)


class Begun:
    """An awaitable that was run up to where it first waits.

    Attributes
    ----------
    is_over : bool
        It waits for nothing: `result` is what it came to. What it raised was raised here.
    """

    __slots__ = ("_step", "_waits_for", "is_over", "result")

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._step: Generator[Any, Any, Any] = awaitable.__await__()
        self._waits_for: Any = None
        self.is_over = False
        self.result: Any = None
        try:
            self._waits_for = next(self._step)
        except StopIteration as end:
            self.is_over, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, Any]:
        """The rest of it; whoever cancels it cancels what it waits for."""
        waits_for = self._waits_for
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                go_on = partial(self._step.throw, error)
            else:
                go_on = partial(self._step.send, sent)
            try:
                waits_for = go_on()
            except StopIteration as end:
                return end.value


class BodyLimit:
    """Refuses bodies that are too large, by their declared length or as they arrive, or too slow.

    Parameters
    ----------
    max_bytes : int
        For reports; other bodies are smaller.
    max_records_bytes : int
        For records.
    slow_seconds : float
        How long PACE_BYTES of a body may be waited for, or what is left of it where that is less.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_records_bytes: int, slow_seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_records_bytes = max_records_bytes
        self._slow_seconds = slow_seconds

    def _limit(self, path: str) -> int:
        if path.endswith("/records"):
            return self._max_records_bytes
        if path.endswith("/reports"):
            return self._max_bytes
        return min(self._max_bytes, POINTS_BODY_BYTES if path.endswith("/assign") else CONTROL_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        declared = header(scope, b"content-length")
        if declared is not None and (not declared.isdigit() or int(declared) > limit):
            raise PayloadTooLarge(f"this path takes {limit} bytes")
        seconds = RECORDS_SECONDS if scope["path"].endswith("/records") else BODY_SECONDS
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        patience = self._slow_seconds  # for the client alone: while the service works, nobody waits
        received = paced = 0
        is_over = False

        async def receive_limited() -> Message:
            nonlocal received, paced, patience, is_over
            if is_over:  # what comes now is the disconnect, whenever that is
                return await receive()
            began = clock()
            begun = Begun(receive())
            message: Message
            try:
                if begun.is_over:  # most bodies come with their head, and to look costs less than a timer
                    message = begun.result
                else:
                    async with asyncio.timeout_at(min(deadline, began + patience)):
                        message = await begun
            except TimeoutError:
                pace = f"less than {PACE_BYTES} bytes of it in {self._slow_seconds:g}"
                raise RequestTimeout(f"the body did not arrive within {seconds} seconds, or {pace}") from None
            is_over = not message.get("more_body", False)
            n_bytes = len(message.get("body", b""))
            received, paced, patience = received + n_bytes, paced + n_bytes, patience - (clock() - began)
            if paced >= PACE_BYTES:
                paced, patience = 0, self._slow_seconds
            if received > limit:
                raise PayloadTooLarge(f"this path takes {limit} bytes")
            return message

        await self._app(scope, receive_limited, send)
