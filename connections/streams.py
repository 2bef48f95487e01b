"""Standard streams that never hold the process: writes return at once, also if the reader stops.

A reader of the log may be slow, stopped or gone, and the stream may be closed or on a full disk. One thread per stream
writes. If the reader is too slow, lines wait in memory up to a limit, then they are lost and counted.
"""

import atexit
import errno
import io
import json
import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TextIO

MAX_WAITING_BYTES = 1 << 20  # lines in memory per stream
EXIT_SECONDS = 1.0  # longest delay of an exit by lines that are not written yet
_RETRY_MILLISECONDS = 1000  # between attempts at a stream that accepts nothing and was set to fail at once

_guarded: list["QueuedFile"] = []


class QueuedFile(io.RawIOBase):
    """A binary file over a descriptor. `write` only queues; a thread writes.

    The thread calls the system directly, because a lock of Python's own buffers would hold the exit of the process
    while the thread waits for the reader.

    Parameters
    ----------
    descriptor : int
        File descriptor, which stays open.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all lines and the thread. For a forked process: its parent's thread writes the lines that wait."""
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._n_bytes = 0  # waiting, or being written
        self._n_lost = 0
        self._thread: threading.Thread | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Queue `data`, or count it as lost if too much is waiting. Return its length. Never wait and never raise."""
        piece = bytes(data)
        with self._changed:
            if self._n_bytes + len(piece) > MAX_WAITING_BYTES:
                self._n_lost += 1
                return len(piece)
            self._waiting.append(piece)
            self._n_bytes += len(piece)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stream-writer", daemon=True)
                with suppress(RuntimeError):  # the interpreter is shutting down
                    self._thread.start()
            self._changed.notify_all()
        return len(piece)

    def drain(self, seconds: float) -> None:
        """Wait until the thread has written everything, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._n_bytes, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                pieces, self._waiting = self._waiting, deque()
            for piece in pieces:
                self._write_all(piece)
                with self._changed:
                    self._n_bytes -= len(piece)
            with self._changed:
                n_lost, self._n_lost = (0, self._n_lost) if self._waiting else (self._n_lost, 0)
                self._changed.notify_all()
            if n_lost:
                lost = {"event": "log_lines_lost", "level": "warning", "n_lines": n_lost}
                self._write_all(json.dumps(lost).encode() + b"\n")

    def _write_all(self, piece: bytes) -> None:
        """Write one piece. Give it up at any error but a descriptor that must be tried again."""
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                    return
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll(_RETRY_MILLISECONDS)


def _start_anew() -> None:
    for file in _guarded:
        file.start_anew()


os.register_at_fork(after_in_child=_start_anew)


def hold_descriptors() -> None:
    """Open the null device in place of closed standard descriptors.

    The next file that a process opens gets the lowest free descriptor. Without this function, a database could become
    the standard error of the process and of its children.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def guard_streams(*, stdout: bool = True) -> None:
    """Replace `sys.stderr` and `sys.stdout` by streams with writes that never wait. Repeating it changes nothing.

    Parameters
    ----------
    stdout : bool
        Whether to replace `sys.stdout` too. A command that prints data keeps it: its output must be complete.
    """
    hold_descriptors()
    # Streams that something else has replaced, such as a test or a notebook, stay.
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _guarded_stream(sys.stderr, 2)
    if stdout and (sys.stdout is None or sys.stdout is sys.__stdout__):
        sys.stdout = _guarded_stream(sys.stdout, 1)


def _guarded_stream(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is not None:
        with suppress(OSError, ValueError):
            stream.flush()
    file = QueuedFile(descriptor)
    if not _guarded:
        atexit.register(drain_streams)
    _guarded.append(file)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=True)  # type: ignore[type-var]


def drain_streams(seconds: float = EXIT_SECONDS) -> None:
    """Wait until all queued lines are written, at most this long for each stream. For the end of a process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    for file in _guarded:
        file.drain(seconds)
