"""Group commit: sealed reports that arrive together become durable in one transaction."""

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from shuffler.queue import Queue, Submission, Verdict

MAX_WAITING = 10_000  # submissions that wait for a commit; more are rejected with 503


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
    """

    def __init__(self, queue: Queue, stored: Callable[[], None]) -> None:
        self._queue, self._stored = queue, stored
        self._waiting: list[tuple[Submission, asyncio.Future[Verdict]]] = []
        self._commits: asyncio.Task[None] | None = None

    async def submit(self, submission: Submission) -> Verdict:
        """Return the outcome of a submission after its commit. Raise Overloaded."""
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded
        outcome: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append((submission, outcome))
        if self._commits is None or self._commits.done():
            self._commits = asyncio.create_task(self._commit_all())
        return await outcome

    async def _commit_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                verdicts = await run_in_threadpool(self._queue.store, [each for each, _ in group], time.time())
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
