"""Memory limits of a gateway for reports and records, and the reading of uploaded records within them."""

import threading
from collections.abc import AsyncIterator
from typing import Protocol, Self

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from service.http.problems import BadRequest, Problem, Unavailable
from service.ingestion.record_formats import RecordReader

PIECE_BYTES = 1 << 20  # bytes passed to a reader at once


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


class Digest(Protocol):
    """A hash function, with or without a key."""

    def update(self, data: bytes, /) -> None:
        """Add data."""


async def read_upload(body: AsyncIterator[bytes], reader: RecordReader, digest: Digest) -> None:
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
            digest.update(chunk)
            piece += chunk
            if len(piece) >= PIECE_BYTES:
                await run_in_threadpool(reader.feed, bytes(piece))
                piece.clear()
        await run_in_threadpool(reader.feed, bytes(piece))
        await run_in_threadpool(reader.finish)
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
