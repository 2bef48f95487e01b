"""Waits for a job: until its next round opens, or until it has a final state."""

import time
from collections.abc import Callable

from sfumato.api.parsers import parse_job, parse_round
from sfumato.api.resources import Job, Round
from sfumato.errors import JobTimeout
from sfumato.transport.exchange import Request, Steps, get

LONG_POLL_SECONDS = 30.0
PROGRESS_SECONDS = 1.0  # seconds between two calls of on_progress
PAUSE_SECONDS = 0.1  # minimum seconds between two polls if the service does not wait


class Deadline:
    """The end of a wait; without a limit if the seconds are None."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._seconds = timeout_seconds
        self._end = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def left(self, most: float) -> float:
        """Return the seconds until the end, at most `most`."""
        return most if self._end is None else min(most, max(0.0, self._end - time.monotonic()))

    def check(self, job: Job) -> None:
        """Raise JobTimeout at the end."""
        if self._end is not None and time.monotonic() >= self._end:
            raise JobTimeout(job, self._seconds or 0.0)


def _poll(job_id: str, deadline: Deadline, longest: float, pause: float) -> Steps[Job]:
    """Return a job after at most `longest` seconds, or when it has a final state."""
    left = deadline.left(longest + pause)
    wait = int(max(0.0, left - pause))
    poll = Request(
        "GET", f"jobs/{job_id}", params={"wait": str(wait)}, extra_seconds=wait, after_seconds=min(left, pause)
    )
    return (yield poll).read(parse_job)


def next_round(job_id: str, previous: str | None, deadline: Deadline) -> Steps[Round | Job]:
    """Return the next open round of a job, or the job in its final state. Raise JobTimeout."""
    pause = 0.0
    while True:
        job = yield from _poll(job_id, deadline, 0.0, pause)
        round_id = job.progress.open_round_id
        if job.is_final:
            return job
        if round_id not in (None, previous):
            return (yield get(f"rounds/{round_id}")).read(parse_round)
        deadline.check(job)
        pause = PAUSE_SECONDS


def final_job(job_id: str, deadline: Deadline, on_progress: Callable[[Job], None] | None) -> Steps[Job]:
    """Return a job in its final state. Raise JobTimeout. `on_progress` receives the job about once a second."""
    longest = PROGRESS_SECONDS if on_progress else LONG_POLL_SECONDS
    pause = 0.0
    while True:
        job = yield from _poll(job_id, deadline, longest, pause)
        if on_progress is not None:
            on_progress(job)
        if job.is_final:
            return job
        deadline.check(job)
        pause = PAUSE_SECONDS
