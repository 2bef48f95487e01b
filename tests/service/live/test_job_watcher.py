"""Watchers of a job share queries, wake up on changes and see only jobs of their own."""

import asyncio
import time
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from models.database.engine import Database
from models.errors import NotFound
from models.identity.caller import Caller
from models.jobs import lifecycle
from models.tables.identity import Key
from models.tables.jobs import Job
from service.http.problems import Unauthenticated
from service.live import event_stream, job_watcher
from service.live.change_feed import ChangeFeed
from service.live.job_watcher import JobSnapshot, JobWatchers
from tests.models.world import World
from tests.service.api import SQLITE_ONLY

pytestmark = [SQLITE_ONLY, pytest.mark.anyio]
TIMEOUT_SECONDS = 60  # longest wait for expected events


@pytest.fixture
def world(database: Database) -> World:
    world = World(database)
    world.caller = world.new_caller(f"tenant {time.time_ns()}")
    return world


@pytest.fixture
def job(world: World) -> Job:
    return world.submit(world.new_dataset())


class CountingWatchers(JobWatchers):
    """Counts its queries."""

    n_queries = 0
    n_key_queries = 0

    def _read(self, job_id: str) -> JobSnapshot | None:
        self.n_queries += 1
        return super()._read(job_id)

    def _valid_keys(self, key_ids: set[str]) -> set[str]:
        self.n_key_queries += 1
        return super()._valid_keys(key_ids)


class Gateway:
    """The watchers of a gateway without Redis and their change feed."""

    def __init__(self, database: Database) -> None:
        self.change_feed = ChangeFeed(None)
        self.watchers = CountingWatchers(database, self.change_feed, asyncio.Event())
        self.change_feed.start()

    def wait(self, caller: Caller, job_id: str, seconds: float = TIMEOUT_SECONDS) -> Awaitable[JobSnapshot]:
        async def is_disconnected() -> bool:
            return False

        return event_stream.wait(self.watchers, caller, job_id, seconds, is_disconnected)

    async def stream(self, caller: Caller, job_id: str) -> Any:
        first = await self.watchers.fetch(caller, job_id)
        return event_stream.stream(self.watchers, caller, job_id, first)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def gateway(world: World) -> Gateway:
    return Gateway(world.database)


def cancel(world: World, job_id: str) -> None:
    with world.database.transaction() as session:
        lifecycle.cancel(session, world.caller, job_id, now=world.now)


async def read_all(stream: Any) -> list[bytes]:
    return [event async for event in stream]


class TestFetch:
    async def test_concurrent_calls_share_one_query(self, world: World, gateway: Gateway, job: Job) -> None:
        snapshots = await asyncio.gather(*(gateway.watchers.fetch(world.caller, job.id) for _ in range(100)))
        assert {each.row.id for each in snapshots} == {job.id}
        assert gateway.watchers.n_queries == 1

    async def test_calls_during_a_query_wait_for_the_next_query(self, world: World, gateway: Gateway, job: Job) -> None:
        """A running query may have started before a commit, so its result may be outdated."""
        read = gateway.watchers._read

        def read_slowly(job_id: str) -> JobSnapshot | None:
            snapshot = read(job_id)
            time.sleep(0.2)
            return snapshot

        gateway.watchers._read = read_slowly  # type: ignore[method-assign]
        early = asyncio.ensure_future(gateway.watchers.fetch(world.caller, job.id))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(cancel, world, job.id)
        late = [asyncio.ensure_future(gateway.watchers.fetch(world.caller, job.id)) for _ in range(20)]
        assert {(await each).row.state for each in late} == {"canceled"}
        assert (await early).row.id == job.id
        assert gateway.watchers.n_queries == 2

    async def test_a_shared_query_shows_the_job_only_to_its_callers(self, world: World, gateway: Gateway) -> None:
        dataset = world.new_dataset()
        job = world.submit(dataset)
        strangers = [
            world.new_caller(f"other {time.time_ns()}"),
            Caller("key_x", world.caller.tenant_id, world.caller.scopes, world.new_dataset().id, None),
        ]
        bound = Caller("key_y", world.caller.tenant_id, world.caller.scopes, dataset.id, None)

        callers = [world.caller, *strangers, bound] * 5
        results = await asyncio.gather(
            *(gateway.watchers.fetch(each, job.id) for each in callers), return_exceptions=True
        )
        for caller, result in zip(callers, results, strict=True):
            assert isinstance(result, NotFound if caller in strangers else JobSnapshot)
        assert gateway.watchers.n_queries == 1
        for caller in strangers:
            with pytest.raises(NotFound):
                await gateway.wait(caller, job.id)
        with pytest.raises(NotFound):
            await gateway.wait(world.caller, "job_" + "0" * 26)
        assert gateway.watchers.limit.n_waiting == 0

    async def test_a_failed_query_fails_for_all_its_callers_and_is_not_repeated(
        self, world: World, gateway: Gateway, job: Job
    ) -> None:
        def fail(_job_id: str) -> JobSnapshot:
            raise OperationalError("s", {}, Exception())

        gateway.watchers._read = fail  # type: ignore[method-assign, assignment]
        results = await asyncio.gather(
            *(gateway.watchers.fetch(world.caller, job.id) for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(each, OperationalError) for each in results)
        del gateway.watchers._read
        assert (await gateway.watchers.fetch(world.caller, job.id)).row.id == job.id


class TestWait:
    async def test_500_watchers_of_a_job_need_few_queries(self, world: World, gateway: Gateway, job: Job) -> None:
        gateway.change_feed.is_subscribed = True  # disables frequent polling
        waits = [asyncio.ensure_future(gateway.wait(world.caller, job.id)) for _ in range(500)]
        while gateway.watchers.limit.n_waiting < 500:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        n_before = gateway.watchers.n_queries
        assert n_before <= 3
        await asyncio.to_thread(cancel, world, job.id)
        gateway.change_feed.publish(job.id)
        assert {(await each).row.state for each in waits} == {"canceled"}
        assert gateway.watchers.n_queries <= n_before + 2

    @pytest.mark.parametrize("way", ["published", "message lost", "subscription lost"])
    async def test_finds_a_change(
        self, world: World, gateway: Gateway, job: Job, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        poll_seconds = 0.5 if way == "message lost" else 10 * TIMEOUT_SECONDS
        monkeypatch.setattr(job_watcher, "NOTIFIED_POLL_SECONDS", poll_seconds)
        gateway.change_feed.is_subscribed = True
        wait = asyncio.ensure_future(gateway.wait(world.caller, job.id, 5 * TIMEOUT_SECONDS))
        await asyncio.sleep(0.2)
        if way == "subscription lost":
            gateway.change_feed._set_subscribed(is_subscribed=False)
            await asyncio.sleep(0.2)
        await asyncio.to_thread(cancel, world, job.id)
        if way == "published":
            gateway.change_feed.publish(job.id)
        assert (await asyncio.wait_for(wait, TIMEOUT_SECONDS)).row.state == "canceled"

    async def test_leaves_no_tasks(self, world: World, gateway: Gateway, job: Job) -> None:
        watchers, tasks = gateway.watchers, asyncio.all_tasks()
        await asyncio.gather(*(gateway.wait(world.caller, job.id, 0.2) for _ in range(10)))
        stream = await gateway.stream(world.caller, job.id)
        assert (await anext(stream)).startswith(b"retry: ")
        await stream.aclose()
        assert watchers.limit.n_waiting == 0
        assert (watchers._jobs, watchers._expiry) == ({}, None)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while watchers._running or watchers._next or asyncio.all_tasks() != tasks:
                await asyncio.sleep(0.01)

    async def test_ends_when_the_server_stops(self, world: World, gateway: Gateway, job: Job) -> None:
        wait = asyncio.ensure_future(gateway.wait(world.caller, job.id))
        events = asyncio.ensure_future(read_all(await gateway.stream(world.caller, job.id)))
        await asyncio.sleep(0.2)
        gateway.watchers.stopping.set()
        assert (await wait).row.state == "queued"
        assert (await events)[-1].startswith(b"id: ")


class TestKeys:
    async def test_of_all_watchers_are_checked_by_one_query_per_interval(
        self, world: World, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_watcher, "KEY_CHECK_SECONDS", 0.2)
        stranger = world.new_caller(f"other {time.time_ns()}")
        jobs = [world.submit(world.new_dataset()) for _ in range(3)]

        streams = [await gateway.stream(world.caller, each.id) for each in jobs for _ in range(10)]
        start = time.monotonic()
        events = [asyncio.ensure_future(read_all(stream)) for stream in streams]
        with pytest.raises(NotFound):
            await gateway.stream(stranger, jobs[0].id)
        while gateway.watchers.n_key_queries < 3:
            await asyncio.sleep(0.02)
        assert not any(each.done() for each in events)
        assert gateway.watchers.n_key_queries <= (time.monotonic() - start) / 0.2 + 1
        with world.database.transaction() as session:
            session.get_one(Key, world.caller.key_id).revoked_at = world.database.clock()
        wait = asyncio.ensure_future(gateway.wait(world.caller, jobs[0].id))
        for each in events:
            assert sum(b"data: " in event for event in await each) == 1
        with pytest.raises(Unauthenticated):
            await wait

    async def test_stay_valid_while_the_database_is_unavailable(
        self, world: World, gateway: Gateway, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_watcher, "KEY_CHECK_SECONDS", 0.05)
        n_failed = 0

        def fail(_key_ids: set[str]) -> set[str]:
            nonlocal n_failed
            n_failed += 1
            raise OperationalError("s", {}, Exception())

        gateway.watchers._valid_keys = fail  # type: ignore[method-assign]
        assert (await gateway.wait(world.caller, job.id, 0.5)).row.state == "queued"
        assert n_failed >= 2


class TestSlowReader:
    async def test_gets_the_latest_state_without_a_queue(self, world: World, gateway: Gateway, job: Job) -> None:
        stream = await gateway.stream(world.caller, job.id)
        assert b"retry" in await anext(stream)
        assert b'"state":"queued"' in await anext(stream)
        row = SimpleNamespace(is_final=False)
        (watched,) = gateway.watchers._jobs.values()
        for number in range(10_000):  # without a read in between
            watched.notify(JobSnapshot(b"%d" % number, cast(Any, row)))
        assert b"data: 9999\n" in await anext(stream)
        await asyncio.to_thread(cancel, world, job.id)
        gateway.change_feed.publish(job.id)
        rest = await read_all(stream)
        assert b'"state":"canceled"' in rest[-1]
        assert len(rest) <= 2
