"""A named pipe beside the embedded database: one process of this machine tells another that something changed.

What is told goes to whoever reads, and to one of them where several do. It is lost where nobody reads or the pipe is
full, and costs whoever waits for it a slower look, as over Redis. Where there can be no pipe nobody hears anything.
"""

import os
import select
import stat
from contextlib import suppress
from pathlib import Path

import structlog

_READ_BYTES = 1 << 16  # what a pipe holds

log = structlog.get_logger(__name__)


class NamedPipe:
    """One pipe, for who tells and for who hears; opened by the latter.

    Parameters
    ----------
    path : Path
        Only its owner may read and write there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._is_impossible = False

    def tell(self, line: str) -> None:
        """Say a line of at most 4 kB, if anybody listens. Never waits, never raises."""
        with suppress(OSError):  # nobody reads, or the pipe is full
            file = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if stat.S_ISFIFO(os.fstat(file).st_mode):
                    os.write(file, line.encode() + b"\n")
            finally:
                os.close(file)

    def open(self) -> int | None:
        """Begin to listen; the file to wait at, None where there can be no pipe."""
        if self._file is None and not self._is_impossible:
            try:
                self._file = self._opened()
            except OSError as error:
                self._is_impossible = True
                log.warning("no_named_pipe", error=type(error).__name__, consequence="the database is polled")
        return self._file

    def _opened(self) -> int:
        with suppress(FileExistsError):
            os.mkfifo(self._path, 0o600)
        # for writing too: the pipe has no end then, whoever else comes and goes
        file = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISFIFO(os.fstat(file).st_mode):
            os.close(file)
            raise FileExistsError
        return file

    def hear(self) -> list[str]:
        """The lines that were told since; none where there are none."""
        heard = b""
        if self._file is not None:
            with suppress(BlockingIOError):
                heard = os.read(self._file, _READ_BYTES)
        return heard.decode("ascii", "replace").splitlines()

    def wait(self, seconds: float) -> bool:
        """Whether anything was told within this time; forgets it. Returns at once where nobody listens."""
        if self._file is None:
            return False
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        is_there = bool(poll.poll(max(0.0, 1000 * seconds)))
        if is_there:
            self.hear()
        return is_there

    def close(self) -> None:
        """Listen no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
