"""Progress line of a job on a terminal or in a notebook.

collecting  [##########--------------------]   3,412 of 10,000 reports, round 1, 0:42
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from sfumato.api.resources import Job

ProgressDisplay = bool | Callable[[Job], None] | None

BAR_CELLS = 30


@contextmanager
def show_progress(display: ProgressDisplay) -> Iterator[Callable[[Job], None] | None]:
    """Yield the function that receives the job's progress, or None. A progress line ends with the context.

    Parameters
    ----------
    display : bool or callable, optional
        True draws a line on standard error. False draws nothing. None draws a line if standard
        error is a terminal or a notebook. A callable is yielded as it is.
    """
    if callable(display):
        yield display
        return
    if display is False or (display is None and not _shows_lines(sys.stderr)):
        yield None
        return
    line = ProgressLine(sys.stderr)
    try:
        yield line.update
    finally:
        line.end()


class ProgressLine:
    """A line that is redrawn at every update.

    Parameters
    ----------
    stream : TextIO
        Terminal that shows the line.
    clock : callable
        Function that returns a time in seconds. Only differences are used.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start = clock()
        self._width = 0  # characters of the last update

    def update(self, job: Job) -> None:
        """Draw the progress of a job."""
        width = shutil.get_terminal_size().columns - 1  # the last column would break the line
        text = format_job(job, self._clock() - self._start)[:width]
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def end(self) -> None:
        """End the line, so that later output starts on a new one."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()


def format_job(job: Job, seconds: float) -> str:
    """Return a job's progress as one line.

    While the job collects reports, a bar shows the share of the target. A computation has no
    known length, so it has no bar.
    """
    clock = f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    progress = job.progress
    if job.state != "collecting" or not progress.target_reports:
        return f"{job.state}, {clock}"
    full = min(BAR_CELLS, BAR_CELLS * progress.n_received // progress.target_reports)
    bar = "#" * full + "-" * (BAR_CELLS - full)
    counts = f"{progress.n_received:,} of {progress.target_reports:,} reports"
    return f"{job.state} [{bar}] {counts}, round {progress.rounds_opened}, {clock}"


def _shows_lines(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal or the output of a notebook, where a carriage return redraws a line."""
    if stream is None or stream.closed:
        return False
    return stream.isatty() or type(stream).__module__.startswith("ipykernel.")
