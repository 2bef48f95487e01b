"""Opening of the batch of a shuffled round: sealed reports become packed reports in the order of their random ids.

Opening takes most of the time and holds the interpreter's lock, so each core has a process of its own. The processes
load no numba and no database. They get the private key through a pipe, and end when the pipe closes, even after the job
process was killed. The opened reports exist in memory only. Nothing of the order of the batch remains.

Frames on the pipes are a length (8 bytes) and as many bytes.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from queue import SimpleQueue
from threading import Lock, Thread
from typing import IO

import numpy as np
from numpy.typing import NDArray

from sfumato.device.sealing import open_sealed, sealed_length

MIN_REPORTS_PER_PROCESS = 10_000  # a process for fewer reports starts in more time than it saves
_REPORTS_PER_FRAME = 4_096
_HEADER_BYTES = 20  # id and slot of a packed report


class OpenerLost(Exception):
    """A process that opens reports has died."""


def count_cores() -> int:
    """Return the number of usable cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_batch(
    rows: Iterable[bytes],
    n_expected: int,
    value_bytes: int,
    round_id: str,
    round_bytes: bytes,
    private_key: bytes,
    *,
    n_processes: int | None = None,
) -> NDArray[np.uint8]:
    """Return the packed reports of a batch, sorted by their bytes, which start with the random id.

    Reports that do not open, or open to another length, are left out.

    Parameters
    ----------
    rows : iterable of bytes
        Whole sealed reports, in any division.
    n_expected : int
        Number of sealed reports.
    value_bytes : int
        Length of a value of the round's mechanism.
    round_id : str
    round_bytes : bytes
        The round as devices receive it.
    private_key : bytes
        HPKE private key of the round.
    n_processes : int, optional
        By default, one for each core, and none in addition to this one for a small batch.

    Returns
    -------
    ndarray of shape (n_opened, 20 + value_bytes), uint8

    Raises
    ------
    OpenerLost
        A process died.
    """
    width = _HEADER_BYTES + value_bytes
    frames = _frames(rows, sealed_length(value_bytes))
    if n_processes is None:
        n_processes = min(count_cores(), n_expected // MIN_REPORTS_PER_PROCESS)
    settings = (round_id, round_bytes, private_key, value_bytes)
    opened = b"".join(
        (_open_frame(frame, *settings) for frame in frames)
        if n_processes < 2
        else _open_in_processes(frames, settings, n_processes)
    )
    records = np.frombuffer(opened, dtype=f"V{width}")
    return np.sort(records).view(np.uint8).reshape(-1, width)


def _frames(rows: Iterable[bytes], length: int) -> Iterator[bytes]:
    step = _REPORTS_PER_FRAME * length
    for row in rows:
        for start in range(0, len(row), step):
            yield row[start : start + step]


def _open_frame(frame: bytes, round_id: str, round_bytes: bytes, private_key: bytes, value_bytes: int) -> bytes:
    """Return the packed reports of some sealed reports, in the format of the report log."""
    length = sealed_length(value_bytes)
    sealed = (frame[at : at + length] for at in range(0, len(frame), length))
    return b"".join(
        each.report_id + each.slot.to_bytes(4, "little") + each.value
        for each in open_sealed(sealed, round_id, round_bytes, private_key)
        if each is not None and len(each.value) == value_bytes
    )


# ---- processes ----

_Settings = tuple[str, bytes, bytes, int]


def _open_in_processes(frames: Iterator[bytes], settings: _Settings, n_processes: int) -> list[bytes]:
    opened: list[bytes] = []
    errors: SimpleQueue[BaseException] = SimpleQueue()
    lock = Lock()

    def next_frame() -> bytes | None:
        with lock:  # the frames come from one database cursor
            return next(frames, None)

    def feed(process: "subprocess.Popen[bytes]") -> None:
        try:
            assert process.stdin is not None  # noqa: S101 - for the type checker
            assert process.stdout is not None  # noqa: S101
            round_id, round_bytes, private_key, value_bytes = settings
            for part in (round_id.encode(), round_bytes, private_key, value_bytes.to_bytes(4, "big")):
                _write(process.stdin, part)
            while (frame := next_frame()) is not None:
                _write(process.stdin, frame)
                answer = _read(process.stdout)
                if answer is None:
                    raise OpenerLost(f"exit status {process.wait()}")
                opened.append(answer)
        except BaseException as error:  # raised in the caller's thread
            errors.put(OpenerLost("the pipe is closed") if isinstance(error, OSError) else error)

    with ExitStack() as stack:
        command = [sys.executable, "-m", __name__]
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(n_processes)
        ]
        threads = [Thread(target=feed, args=(each,), name="open-batch", daemon=True) for each in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if not errors.empty():
        raise errors.get()
    return opened


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "big") + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes | None:
    """Return the next frame, or None at the end."""
    head = pipe.read(8)
    return pipe.read(int.from_bytes(head, "big")) if len(head) == 8 else None


def main() -> None:
    """Open the frames of the standard input until it ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    parts = [_read(source) or b"" for _ in range(4)]
    round_id, value_bytes = parts[0].decode(), int.from_bytes(parts[3], "big")
    while (frame := _read(source)) is not None:
        _write(sink, _open_frame(frame, round_id, parts[1], parts[2], value_bytes))


if __name__ == "__main__":
    main()
