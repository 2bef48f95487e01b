"""A named pipe next to the embedded database, which notifies another process of the same machine.

Each line reaches one reader. It is lost if there is no reader or the pipe is full, and then the reader finds the
change at its next poll. If no pipe can be created, readers poll.
"""

import os
import select
import stat
from contextlib import suppress
from pathlib import Path

import structlog

_PIPE_BYTES = 1 << 16  # capacity of a pipe

log = structlog.get_logger(__name__)


class NamedPipe:
    """One end of a named pipe. The reader creates the pipe.

    Parameters
    ----------
    path : Path
        File of the pipe. Only its owner can read and write it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._is_impossible = False

    def write_line(self, line: str) -> None:
        """Write a line of at most 4 kB if there is a reader. Never wait and never raise."""
        with suppress(OSError):  # no reader, or the pipe is full
            file = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if stat.S_ISFIFO(os.fstat(file).st_mode):
                    os.write(file, line.encode() + b"\n")
            finally:
                os.close(file)

    def open(self) -> int | None:
        """Open the pipe for reading. Return its file descriptor, or None if no pipe can be created."""
        if self._file is None and not self._is_impossible:
            try:
                self._file = self._open_file()
            except OSError as error:
                self._is_impossible = True
                log.warning("named_pipe_failed", error=type(error).__name__, consequence="the database is polled")
        return self._file

    def _open_file(self) -> int:
        with suppress(FileExistsError):
            os.mkfifo(self._path, 0o600)
        # opened for writing too, so that the reader sees no end of file when a writer closes the pipe
        file = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISFIFO(os.fstat(file).st_mode):
            os.close(file)
            raise FileExistsError
        return file

    def read_lines(self) -> list[str]:
        """Return the lines that arrived since the last call. Never wait."""
        data = b""
        if self._file is not None:
            with suppress(BlockingIOError):
                data = os.read(self._file, _PIPE_BYTES)
        return data.decode("ascii", "replace").splitlines()

    def wait(self, seconds: float) -> bool:
        """Wait for a line, then discard all lines. Return whether any arrived. Return at once if the pipe is closed."""
        if self._file is None:
            return False
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        is_readable = bool(poll.poll(max(0.0, 1000 * seconds)))
        if is_readable:
            self.read_lines()
        return is_readable

    def close(self) -> None:
        """Close the pipe for reading."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
