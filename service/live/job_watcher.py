"""Watchers of jobs: requests that wait for a job to change. All watchers of a job share one polling query.

A watched job is polled when the change feed reports a change (`service.live.change_feed`), and at long intervals
in case a notification is lost. Without notifications, because Redis is not configured or not available,
the polling interval is short.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from models.collection import rounds
from models.database.engine import Database
from models.database.failures import is_database_unavailable
from models.database.types import canonical_json
from models.errors import NotFound
from models.identity.caller import Caller
from models.jobs import jobs
from models.tables.identity import Key
from models.tables.jobs import Job
from service.http.problems import RateLimited
from service.live.change_feed import ChangeFeed
from service.schemas import serializers

MAX_WATCHERS = 1000  # watchers of one gateway, each with an open connection
FIRST_POLL_SECONDS = 0.05  # polling interval after a change
SLOWEST_POLL_SECONDS = 1.0  # longest polling interval of a job that does not change
NOTIFIED_POLL_SECONDS = 5.0  # polling interval with notifications; bounds the delay caused by a lost message
KEY_CHECK_SECONDS = 1.0  # interval between checks of all watchers' keys
SPREAD_SECONDS = 1.0  # period over which all jobs are polled after the subscription started or ended
_SLOWDOWN = 1.5


class ConcurrencyLimit:
    """A count of the current watchers with an upper limit. Use it as a context manager around each wait."""

    def __init__(self) -> None:
        self._n = 0

    @property
    def n_waiting(self) -> int:
        """Return the number of current watchers."""
        return self._n

    @property
    def is_full(self) -> bool:
        """Return whether the limit is reached."""
        return self._n >= MAX_WATCHERS

    def check(self) -> None:
        """Raise RateLimited if the limit is reached."""
        if self.is_full:
            raise RateLimited(f"too many requests wait for jobs: at most {MAX_WATCHERS}; poll without waiting")

    def __enter__(self) -> None:
        self._n += 1

    def __exit__(self, *_error: object) -> None:
        self._n -= 1


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The state of a job at one query.

    Attributes
    ----------
    document : bytes
        JSON of the schema `Job`.
    row : Job
    """

    document: bytes
    row: Job

    @property
    def is_final(self) -> bool:
        """Return whether the job is in a final state."""
        return self.row.is_final


class JobWatcher:
    """One request that waits for a job."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.snapshot: JobSnapshot | None = None  # the latest
        self.is_key_invalid = False
        self.changed = asyncio.Event()

    async def wait_for_change(self, seconds: float) -> None:
        """Return after a new snapshot, the end of the key or the stop of the server, or after `seconds`."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.changed.wait()
        except TimeoutError:
            return
        self.changed.clear()


class _WatchedJob:
    """The watchers of one job and the task that polls for them."""

    def __init__(self) -> None:
        self.watchers: dict[JobWatcher, None] = {}
        self.is_due = asyncio.Event()
        self.poll_seconds = FIRST_POLL_SECONDS
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def notify(self, snapshot: JobSnapshot) -> None:
        for watcher in self.watchers:
            watcher.snapshot = snapshot
            watcher.changed.set()


class JobWatchers:
    """All watchers of a gateway. Only the event loop's thread may use it.

    Parameters
    ----------
    database : Database
    change_feed : ChangeFeed
    stopping : Event
        Once it is set, all watchers wake up.
    """

    def __init__(self, database: Database, change_feed: ChangeFeed, stopping: asyncio.Event) -> None:
        self._database = database
        self._change_feed = change_feed
        self.stopping = stopping
        self.limit = ConcurrencyLimit()
        self._jobs: dict[str, _WatchedJob] = {}
        self._running: dict[str, asyncio.Task[JobSnapshot | None]] = {}
        self._next: dict[str, asyncio.Task[JobSnapshot | None]] = {}
        self._expiry: asyncio.Task[None] | None = None
        change_feed.add_listener(self._job_changed, self._subscription_changed)

    # ---- queries ----

    async def fetch(self, caller: Caller, job_id: str) -> JobSnapshot:
        """Return a snapshot from a query that starts after this call. Raise NotFound if the caller may not see it."""
        snapshot = await self._fetch(job_id)
        if snapshot is None:
            raise NotFound("job")
        jobs.check_access(snapshot.row, caller)
        return snapshot

    async def _fetch(self, job_id: str) -> JobSnapshot | None:
        """Share one query among all calls before it starts. At most one query per job runs at a time."""
        task = self._next.get(job_id)
        if task is None:
            task = self._next[job_id] = asyncio.create_task(self._fetch_after(job_id, self._running.get(job_id)))
            task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    async def _fetch_after(self, job_id: str, earlier: "asyncio.Task[JobSnapshot | None] | None") -> JobSnapshot | None:
        if earlier is not None:
            await asyncio.wait([earlier])
        task = self._running[job_id] = self._next.pop(job_id)
        try:
            return await run_in_threadpool(self._read, job_id)
        finally:
            if self._running.get(job_id) is task:
                del self._running[job_id]

    def _read(self, job_id: str) -> JobSnapshot | None:
        with self._database.reading() as session:
            row = session.get(Job, job_id)
            if row is None:
                return None
            used = rounds.list_used(session, [row])[job_id]
            return JobSnapshot(canonical_json(serializers.job(row, used)).encode(), row)

    # ---- watchers ----

    @contextmanager
    def watch(self, caller: Caller, job_id: str) -> Iterator[JobWatcher]:
        """Subscribe to changes of a job, starting with its current state. Counts against the limit.

        The caller must check its access separately with `fetch`.
        """
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = _WatchedJob()
            job.task = asyncio.create_task(self._follow(job_id, job))
        if self._expiry is None:
            self._expiry = asyncio.create_task(self._expire_watchers())
        watcher = JobWatcher(caller)
        job.watchers[watcher] = None
        job.poll_seconds = FIRST_POLL_SECONDS
        job.is_due.set()  # the job may have changed since the caller's `fetch`
        with self.limit:
            try:
                yield watcher
            finally:
                del job.watchers[watcher]
                if not job.watchers:
                    del self._jobs[job_id]
                    job.end()
                if not self._jobs and self._expiry is not None:
                    self._expiry.cancel()
                    self._expiry = None

    async def _follow(self, job_id: str, job: _WatchedJob) -> None:
        """Poll a job and notify its watchers of changes."""
        last: JobSnapshot | None = None
        while True:
            try:
                async with asyncio.timeout(
                    NOTIFIED_POLL_SECONDS if self._change_feed.is_subscribed else job.poll_seconds
                ):
                    await job.is_due.wait()
            except TimeoutError:
                job.poll_seconds = min(job.poll_seconds * _SLOWDOWN, SLOWEST_POLL_SECONDS)
            job.is_due.clear()
            try:
                snapshot = await self._fetch(job_id)
            except Exception as error:
                if not is_database_unavailable(error):
                    raise
                job.poll_seconds = SLOWEST_POLL_SECONDS
                continue
            if snapshot is not None and (last is None or snapshot.document != last.document):
                job.poll_seconds = FIRST_POLL_SECONDS
                job.notify(snapshot)
                last = snapshot

    def _job_changed(self, job_id: str) -> None:
        if (job := self._jobs.get(job_id)) is not None:
            job.is_due.set()

    def _subscription_changed(self) -> None:
        """Poll every job once, because notifications may have been lost or may be lost from now on."""
        loop, n_jobs = asyncio.get_running_loop(), max(1, len(self._jobs))
        for index, job in enumerate(self._jobs.values()):
            job.poll_seconds = FIRST_POLL_SECONDS
            loop.call_later(SPREAD_SECONDS * index / n_jobs, job.is_due.set)

    # ---- end of a wait ----

    async def _expire_watchers(self) -> None:
        """Wake the watchers of keys that are no longer valid, within about a second, and all when the server stops."""
        while not self.stopping.is_set():
            try:
                async with asyncio.timeout(KEY_CHECK_SECONDS):
                    await self.stopping.wait()
            except TimeoutError:
                await self._check_keys()
        for job in self._jobs.values():
            for watcher in job.watchers:
                watcher.changed.set()

    async def _check_keys(self) -> None:
        key_ids = {watcher.caller.key_id for job in self._jobs.values() for watcher in job.watchers}
        try:
            valid = await run_in_threadpool(self._valid_keys, key_ids)
        except Exception as error:
            if not is_database_unavailable(error):
                raise
            return
        for job in self._jobs.values():
            for watcher in job.watchers:
                if watcher.caller.key_id in key_ids - valid:
                    watcher.is_key_invalid = True
                    watcher.changed.set()

    def _valid_keys(self, key_ids: set[str]) -> set[str]:
        """Return the ids of the keys that are still valid, by one query."""
        with self._database.reading() as session:
            now = self._database.clock()
            return {key.id for key in session.scalars(select(Key).where(Key.id.in_(key_ids))) if key.is_live(now)}


def _retrieve_exception(task: "asyncio.Task[JobSnapshot | None]") -> None:
    """Mark the exception as retrieved, because asyncio otherwise logs it if all callers have left."""
    if not task.cancelled():
        task.exception()
