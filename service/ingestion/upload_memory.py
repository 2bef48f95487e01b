"""Memory limits of a gateway for reports and records, and the reading of uploaded records within them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, Self, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from starlette.requests import ClientDisconnect
from typing_extensions import TypeVarTuple, Unpack

from runtime.process import return_memory
from service.http.problems import BadRequest, Problem, Unavailable
from service.ingestion.record_formats import RecordReader

PIECE_BYTES = 256 << 10  # bytes passed to a reader at once
LARGE_BYTES = 1 << 20  # memory of a request after which freed memory is returned to the system
QUIET_SECONDS = 1.0  # time without the end of a large request before that, because the next one would need the memory

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


class MemoryLimit:
    """A limit on the memory that all requests of one kind take together.

    Parameters
    ----------
    max_bytes : int
    detail : str
        Detail of the problem that a request gets if the limit is reached.
    """

    def __init__(self, max_bytes: int, detail: str) -> None:
        self._max_bytes = max_bytes
        self._detail = detail
        self._lock = threading.Lock()  # readers run in threads
        self.n_bytes = 0
        self.n_large = 0  # large requests that have ended

    def try_reserve(self, n_bytes: int) -> bool:
        """Reserve memory. Return False if it does not fit."""
        with self._lock:
            has_room = self.n_bytes + n_bytes <= self._max_bytes
            if has_room:
                self.n_bytes += n_bytes
        return has_room

    def reserve(self, n_bytes: int) -> None:
        """Reserve memory. Raise Unavailable if it does not fit."""
        if not self.try_reserve(n_bytes):
            raise Unavailable(self._detail)

    def release(self, n_bytes: int) -> None:
        """Return reserved memory."""
        with self._lock:
            self.n_bytes -= n_bytes
            self.n_large += n_bytes >= LARGE_BYTES


async def return_freed_memory(limits: Sequence[MemoryLimit]) -> None:
    """Return freed memory to the system whenever large requests have ended. Never return."""
    n_returned = n_before = 0
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        n_large = sum(limit.n_large for limit in limits)
        if n_returned < n_large == n_before:
            n_returned = n_large
            await to_thread.run_sync(return_memory)
        n_before = n_large


class MemoryReservation:
    """The memory of one request, released at the end of a `with` block."""

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._n_bytes = 0

    def grow(self, n_bytes: int) -> None:
        """Reserve more memory. Raise Unavailable if it does not fit."""
        self._limit.reserve(n_bytes)
        self._n_bytes += n_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._limit.release(self._n_bytes)
        self._n_bytes = 0


_parsers: RunVar[CapacityLimiter] = RunVar("parsers")
MAX_PARSERS = 2  # parsers of large bodies at the same time, which share the interpreter's lock with the event loop


async def run_parser(parse: Callable[[Unpack[Given]], Result], *given: *Given) -> Result:
    """Run a parser of a large body in a thread, after those of other requests."""
    try:
        limiter = _parsers.get()
    except LookupError:
        limiter = CapacityLimiter(MAX_PARSERS)
        _parsers.set(limiter)
    return await to_thread.run_sync(parse, *given, limiter=limiter)


class Digest(Protocol):
    """A hash function, with or without a key."""

    def update(self, data: bytes, /) -> None:
        """Add data."""


async def read_upload(body: AsyncIterator[bytes], reader: RecordReader, digest: Digest | None = None) -> None:
    """Feed the whole body to a reader and a digest.

    After an error the rest of the body is read and dropped, because a client that still sends would not read
    the response.

    Raises
    ------
    Problem
        Raised by the reader.
    BadRequest
        The body is incomplete.
    """
    piece = bytearray()
    try:
        async for chunk in body:
            if digest is not None:
                digest.update(chunk)
            piece += chunk
            if len(piece) >= PIECE_BYTES:
                await run_parser(reader.feed, bytes(piece))
                piece.clear()
        await run_parser(reader.feed, bytes(piece))
        await run_parser(reader.finish)
    except ClientDisconnect:
        raise BadRequest("the body is incomplete: the client disconnected") from None
    except Problem:
        await _drain(body)
        raise


async def _drain(body: AsyncIterator[bytes]) -> None:
    try:
        async for _ in body:
            pass
    except (ClientDisconnect, Problem):  # the first error is the one to report
        pass
