"""One line on a terminal that says how far a job is, drawn anew each time.

collecting  [##########--------------------]   3,412 of 10,000 reports, round 1, 0:42
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from sfumato.resources import Job

Shown = bool | Callable[[Job], None] | None

BAR_CELLS = 30


@contextmanager
def shown(progress: Shown) -> Iterator[Callable[[Job], None] | None]:
    """Whom to tell how a job goes on: nobody, the caller's function, or a line that ends with this context."""
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not _is_terminal(sys.stderr)):
        yield None
        return
    line = ProgressLine(sys.stderr)
    try:
        yield line.tell
    finally:
        line.end()


class ProgressLine:
    """The line.

    Parameters
    ----------
    stream : TextIO
        Where it is drawn.
    clock : callable
        Seconds, of which the differences count.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._drawn = 0

    def tell(self, job: Job) -> None:
        """Draw the job as it stands."""
        width = shutil.get_terminal_size().columns - 1  # the last column would break the line
        text = described(job, self._clock() - self._began)[:width]
        self._stream.write("\r" + text.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(text)

    def end(self) -> None:
        """Leave the line as it is, and what follows to the next."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()


def described(job: Job, seconds: float) -> str:
    """A job in one line.

    While reports come in the bar says how many of those that are waited for; a computation
    has no known length, so there is no bar for it.
    """
    clock = f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    progress = job.progress
    if job.state != "collecting" or not progress.target_reports:
        return f"{job.state}, {clock}"
    full = min(BAR_CELLS, BAR_CELLS * progress.n_received // progress.target_reports)
    bar = "#" * full + "-" * (BAR_CELLS - full)
    counted = f"{progress.n_received:,} of {progress.target_reports:,} reports"
    return f"{job.state} [{bar}] {counted}, round {progress.rounds_opened}, {clock}"


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
