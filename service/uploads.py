"""Uploads under way in one gateway: read piece by piece, bounded in memory together, checked in threads."""

import threading
from collections.abc import AsyncIterator
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from service.problems import BadRequest, Problem, Unavailable
from service.record_formats import RecordReader

PIECE_BYTES = 1 << 20  # handed to a reader at once


class Uploads:
    """The memory all uploads of a gateway hold.

    Parameters
    ----------
    max_bytes : int
        Most that they hold together: what was sealed and waits for its commit, and bodies that
        are read whole.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._changing = threading.Lock()  # readers run in threads
        self.n_bytes = 0

    def begin(self) -> "Held":
        """What one more upload holds: nothing yet."""
        return Held(self)

    def change(self, n_bytes: int) -> None:
        """Hold more, or less; raises Unavailable where that is too much."""
        with self._changing:
            if n_bytes > 0 and self.n_bytes + n_bytes > self._max_bytes:
                raise Unavailable("too many records are on their way in; send the upload again")
            self.n_bytes += n_bytes


class Held:
    """The memory one upload holds, given back at the end of a `with`."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._n_bytes = 0

    def take(self, n_bytes: int) -> None:
        """Hold more; raises Unavailable."""
        self._uploads.change(n_bytes)
        self._n_bytes += n_bytes

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_error: object) -> None:
        self._uploads.change(-self._n_bytes)


class Digest(Protocol):
    """A hash, with a key or without."""

    def update(self, data: bytes, /) -> None:
        """Take more."""


async def read(body: AsyncIterator[bytes], reader: RecordReader, digest: Digest) -> None:
    """Feed a reader the whole body, which goes into the digest as well.

    What is refused half-way is answered only when the body is over: a client that is still
    sending would not see the answer.

    Raises
    ------
    Problem
        What the reader raises; BadRequest where the body breaks off.
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
        raise BadRequest("the body broke off") from None
    except Problem:
        await _let_it_end(body)
        raise


async def _let_it_end(body: AsyncIterator[bytes]) -> None:
    try:
        async for _ in body:
            pass
    except (ClientDisconnect, Problem):  # whatever else is wrong with it
        pass
