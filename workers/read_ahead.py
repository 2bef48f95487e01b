"""Reading a log while what was read of it is worked on."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import Full, Queue

AHEAD = 2  # chunks that wait

_LOOK_SECONDS = 0.1  # how often a reader that waits for room looks whether anybody still wants it


@contextmanager
def read_ahead(chunks: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """The same chunks in their order, read by a thread of their own, `AHEAD` at most before they are taken.

    Whatever it raises is raised where the chunk would have come. In the end, also in the middle of the log, the
    thread has ended: nobody reads on from a connection that was given back.
    """
    waiting: Queue[bytes | BaseException | None] = Queue(AHEAD)
    is_over = threading.Event()

    def put(chunk: bytes | BaseException | None) -> bool:
        while not is_over.is_set():
            try:
                waiting.put(chunk, timeout=_LOOK_SECONDS)
            except Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            if all(put(chunk) for chunk in chunks):
                put(None)
        except BaseException as error:  # raised again where the chunk would have come
            put(error)

    def taken() -> Iterator[bytes]:
        while (chunk := waiting.get()) is not None:
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        is_over.set()
        thread.join()
