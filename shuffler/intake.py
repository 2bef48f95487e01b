"""Group commit: sealed reports that arrive together become durable in one transaction."""

import asyncio
import logging
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from shuffler.queue import Queue, Submission, Verdict

MAX_WAITING = 10_000  # submissions that wait for a commit; more are rejected with 503
MAX_WAITING_BYTES = 64 << 20
MAX_GROUP = 512  # submissions of a commit, so that other requests do not wait long for the database

logger = logging.getLogger(__name__)


class Overloaded(Exception):
    """Too many submissions wait, or the database cannot be written now."""


class Intake:
    """The submissions that wait for the next commit. Only the event loop's thread uses it.

    Parameters
    ----------
    queue : Queue
    stored : callable
        Called after each commit.
    clock : callable
        Seconds since the epoch.
    """

    def __init__(self, queue: Queue, stored: Callable[[], None], clock: Callable[[], float]) -> None:
        self._queue, self._stored, self._clock = queue, stored, clock
        self._n_bytes = 0  # length of the waiting submissions
        self._waiting: list[tuple[Submission, asyncio.Future[Verdict]]] = []
        self._commits: asyncio.Task[None] | None = None

    async def submit(self, submission: Submission) -> Verdict:
        """Return the outcome of a submission after its commit. Raise Overloaded."""
        if len(self._waiting) >= MAX_WAITING or self._n_bytes >= MAX_WAITING_BYTES:
            raise Overloaded
        outcome: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append((submission, outcome))
        self._n_bytes += len(submission.wrapped)
        if self._commits is None or self._commits.done():
            self._commits = asyncio.create_task(self._commit_all())
        return await outcome

    async def _commit_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
            self._n_bytes -= sum(len(each.wrapped) for each, _ in group)
            try:
                verdicts = await run_in_threadpool(self._queue.store, [each for each, _ in group], self._clock())
            except Exception:
                logger.exception("the reports cannot be stored")
                for _, outcome in group:
                    if not outcome.done():
                        outcome.set_exception(Overloaded())
                continue
            for (_, outcome), verdict in zip(group, verdicts, strict=True):
                if not outcome.done():  # its client disconnected
                    outcome.set_result(verdict)
            self._stored()
