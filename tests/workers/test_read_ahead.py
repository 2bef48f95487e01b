"""Reading ahead: the same chunks, at the same time as they are worked on, and never after the end."""

import threading
import time
from collections.abc import Iterator

import pytest

from workers.aggregation.aggregate import MAX_CHUNKS_AHEAD, read_ahead

CHUNKS = [bytes([i]) * i for i in range(20)]


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "read-ahead"]


class TestReadingAhead:
    def test_gives_the_same_chunks_in_their_order(self) -> None:
        with read_ahead(CHUNKS) as ready:
            assert list(ready) == CHUNKS
        assert threads() == []

    def test_of_nothing_gives_nothing(self) -> None:
        with read_ahead([]) as ready:
            assert list(ready) == []

    def test_goes_on_while_chunks_are_worked_on(self) -> None:
        is_read = [threading.Event() for _ in CHUNKS]

        def observed() -> Iterator[bytes]:
            for chunk, event in zip(CHUNKS, is_read, strict=True):
                event.set()
                yield chunk

        with read_ahead(observed()) as ready:
            for number, _ in enumerate(ready):  # the next chunk is read during the work on this one
                assert is_read[min(number + 1, len(CHUNKS) - 1)].wait(60)

    def test_holds_few_chunks(self) -> None:
        n_read = 0

        def counted() -> Iterator[bytes]:
            nonlocal n_read
            for chunk in CHUNKS:
                n_read += 1
                yield chunk

        with read_ahead(counted()) as ready:
            next(ready)
            time.sleep(0.2)
            assert n_read <= MAX_CHUNKS_AHEAD + 2

    def test_ends_with_whoever_takes_no_more(self) -> None:
        with read_ahead(CHUNKS) as ready:
            assert next(ready) == CHUNKS[0]
            assert threads() == ["read-ahead"]
        assert threads() == []

    def test_raises_what_reading_raises_where_it_happened(self) -> None:
        def broken() -> Iterator[bytes]:
            yield b"one"
            raise ConnectionError("the database went away")

        with read_ahead(broken()) as ready:
            assert next(ready) == b"one"
            with pytest.raises(ConnectionError, match="went away"):
                next(ready)
        assert threads() == []
