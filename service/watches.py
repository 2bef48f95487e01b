"""Who waits for which job, and the looks into the database that all who wait for one job share.

A job somebody waits for is looked at when the bulletin says that it changed (`service.notices`),
and now and then besides: a notice may be lost. Where what other processes do is not heard,
without Redis or while it is away, looks follow one another more closely.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from models import job as jobs
from models import round as rounds
from models.db import Database, canonical_json
from models.errors import NotFound
from models.job import Job
from models.tenant import Caller, Key
from service import views
from service.notices import Notices
from service.problems import is_database_away

FIRST_SECONDS = 0.05  # until the second look
LONGEST_SECONDS = 1.0  # between two looks at a job where nothing happens
NOTICED_SECONDS = 5.0  # the same where notices are heard; a lost one costs so much
KEY_SECONDS = 1.0  # between looks at the keys of all who wait
SPREAD_SECONDS = 1.0  # over which jobs are looked at anew when the subscription came or went
_SLOWER = 1.5


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as a look found it, and who may see it.

    Attributes
    ----------
    document : bytes
        The schema `Job`.
    row : Job
    """

    document: bytes
    row: Job

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.row.is_final

    def by(self, caller: Caller) -> "Seen":
        """This, for who may see it; raises NotFound for everybody else."""
        jobs.check_seen(self.row, caller)
        return self


class Watch:
    """One request that waits for a job."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.seen: Seen | None = None  # the newest look
        self.is_key_dead = False
        self.woken = asyncio.Event()

    async def change(self, seconds: float) -> None:
        """Return when there is something new (a look, the key's end, the server's), or after this time."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.woken.wait()
        except TimeoutError:
            return
        self.woken.clear()


class _Topic:
    """A job that somebody waits for."""

    def __init__(self) -> None:
        self.watches: dict[Watch, None] = {}
        self.is_due = asyncio.Event()
        self.pause_seconds = FIRST_SECONDS
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def tell(self, seen: Seen) -> None:
        for watch in self.watches:
            watch.seen = seen
            watch.woken.set()


class Watches:
    """Everybody who waits in this gateway. It belongs to the event loop.

    Parameters
    ----------
    database : Database
    notices : Notices
    stopping : Event
        Wakes everybody, once it is set.
    """

    def __init__(self, database: Database, notices: Notices, stopping: asyncio.Event) -> None:
        self._database = database
        self._notices = notices
        self._stopping = stopping
        self._topics: dict[str, _Topic] = {}
        self._begun: dict[str, asyncio.Task[Seen | None]] = {}
        self._due: dict[str, asyncio.Task[Seen | None]] = {}
        self._keeper: asyncio.Task[None] | None = None
        notices.listen(self._changed, self._subscription_changed)

    # ---- looks ----

    async def look(self, caller: Caller, job_id: str) -> Seen:
        """The job as a look finds it that begins from now on; raises NotFound."""
        seen = await self._look(job_id)
        if seen is None:
            raise NotFound("job")
        return seen.by(caller)

    async def _look(self, job_id: str) -> Seen | None:
        """One look for all who ask before it begins; at most one of a job is under way."""
        task = self._due.get(job_id)
        if task is None:
            task = self._due[job_id] = asyncio.create_task(self._look_after(job_id, self._begun.get(job_id)))
            task.add_done_callback(_heard)
        return await asyncio.shield(task)

    async def _look_after(self, job_id: str, earlier: "asyncio.Task[Seen | None] | None") -> Seen | None:
        if earlier is not None:
            await asyncio.wait([earlier])
        task = self._begun[job_id] = self._due.pop(job_id)
        try:
            return await run_in_threadpool(self._read, job_id)
        finally:
            if self._begun.get(job_id) is task:
                del self._begun[job_id]

    def _read(self, job_id: str) -> Seen | None:
        with self._database.reading() as session:
            row = session.get(Job, job_id)
            if row is None:
                return None
            own = [] if row.round_ids else rounds.of_job(session, job_id)
            return Seen(canonical_json(views.job(row, own)).encode(), row)

    # ---- waiting ----

    @contextmanager
    def watching(self, caller: Caller, job_id: str) -> Iterator[Watch]:
        """Be woken at every change of a job from now on, beginning with how it stands.

        Whether the caller may see the job a look of its own says.
        """
        topic = self._topics.get(job_id)
        if topic is None:
            topic = self._topics[job_id] = _Topic()
            topic.task = asyncio.create_task(self._follow(job_id, topic))
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        watch = Watch(caller)
        topic.watches[watch] = None
        topic.pause_seconds = FIRST_SECONDS
        topic.is_due.set()  # for what happened since the look that let it in
        try:
            yield watch
        finally:
            del topic.watches[watch]
            if not topic.watches:
                del self._topics[job_id]
                topic.end()
            if not self._topics and self._keeper is not None:
                self._keeper.cancel()
                self._keeper = None

    async def _follow(self, job_id: str, topic: _Topic) -> None:
        """Look at a job while somebody waits for it."""
        last: Seen | None = None
        while True:
            pause = NOTICED_SECONDS if self._notices.is_subscribed else topic.pause_seconds
            try:
                async with asyncio.timeout(pause):
                    await topic.is_due.wait()
            except TimeoutError:
                topic.pause_seconds = min(topic.pause_seconds * _SLOWER, LONGEST_SECONDS)
            topic.is_due.clear()
            try:
                seen = await self._look(job_id)
            except Exception as error:
                if not is_database_away(error):
                    raise
                topic.pause_seconds = LONGEST_SECONDS
                continue
            if seen is not None and (last is None or seen.document != last.document):
                topic.pause_seconds = FIRST_SECONDS
                topic.tell(seen)
                last = seen

    def _changed(self, job_id: str) -> None:
        if (topic := self._topics.get(job_id)) is not None:
            topic.is_due.set()

    def _subscription_changed(self) -> None:
        """Look at everything once: notices may have been lost, or be lost from now on."""
        loop, n_topics = asyncio.get_running_loop(), max(1, len(self._topics))
        for place, topic in enumerate(self._topics.values()):
            topic.pause_seconds = FIRST_SECONDS
            loop.call_later(SPREAD_SECONDS * place / n_topics, topic.is_due.set)

    # ---- what ends a wait ----

    async def _keep(self) -> None:
        """Wake those whose key ends, within about a second; everybody, as the server ends."""
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(KEY_SECONDS):
                    await self._stopping.wait()
            except TimeoutError:
                await self._check_keys()
        for topic in self._topics.values():
            for watch in topic.watches:
                watch.woken.set()

    async def _check_keys(self) -> None:
        asked = {watch.caller.key_id for topic in self._topics.values() for watch in topic.watches}
        try:
            live = await run_in_threadpool(self._live, asked)
        except Exception as error:
            if not is_database_away(error):
                raise
            return
        for topic in self._topics.values():
            for watch in topic.watches:
                if watch.caller.key_id in asked - live:
                    watch.is_key_dead = True
                    watch.woken.set()

    def _live(self, key_ids: set[str]) -> set[str]:
        """Those of the keys that still open anything: one statement for all."""
        with self._database.reading() as session:
            now = self._database.clock()
            return {key.id for key in session.scalars(select(Key).where(Key.id.in_(key_ids))) if key.is_live(now)}


def _heard(task: "asyncio.Task[Seen | None]") -> None:
    """A look nobody waits for any more may fail unheard."""
    if not task.cancelled():
        task.exception()
