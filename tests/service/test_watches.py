"""Who waits for a job shares looks with others, and is shown nothing that is another's."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from models import job as jobs
from models import tenant
from models.db import Database
from models.errors import NotFound
from models.tenant import Caller
from service import events, watches
from service.notices import Notices
from service.problems import Unauthenticated
from service.services import Services, Watchers
from service.watches import Seen, Watches
from tests.models.world import World

PATIENCE_SECONDS = 60  # for what must come


@pytest.fixture
def world(database: Database) -> World:
    made = World(database)
    made.caller = made.new_caller(f"tenant {time.time_ns()}")
    return made


class Counted(Watches):
    """Counts its looks."""

    n_looks = 0
    n_key_looks = 0
    look_seconds = 0.0

    def _read(self, job_id: str) -> Seen | None:
        self.n_looks += 1
        time.sleep(self.look_seconds)
        return super()._read(job_id)

    def _live(self, key_ids: set[str]) -> set[str]:
        self.n_key_looks += 1
        return super()._live(key_ids)


class Gateway:
    """What waiting needs of one."""

    def __init__(self, database: Database) -> None:
        self.stopping, self.notices = asyncio.Event(), Notices(None)
        self.watches = Counted(database, self.notices, self.stopping)
        self.watchers = Watchers()
        self.notices.start()

    def wait(self, caller: Caller, job_id: str, seconds: float = PATIENCE_SECONDS) -> Awaitable[Seen]:
        async def is_gone() -> bool:
            return False

        return events.wait(cast(Services, self), caller, job_id, seconds, is_gone)

    async def stream(self, caller: Caller, job_id: str) -> Any:
        first = await self.watches.look(caller, job_id)
        return events.stream(cast(Services, self), caller, job_id, first)


def run(database: Database, test: Callable[[Gateway], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(3 * PATIENCE_SECONDS):
            await test(Gateway(database))

    asyncio.run(within())


def cancel(world: World, job_id: str) -> None:
    with world.database.transaction() as session:
        jobs.cancel(session, world.caller, job_id, now=world.now)


class TestLooks:
    def test_are_one_for_all_who_ask_at_once(self, world: World) -> None:
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            found = await asyncio.gather(*(gateway.watches.look(world.caller, job.id) for _ in range(100)))
            assert {each.row.id for each in found} == {job.id}
            assert gateway.watches.n_looks == 1

        run(world.database, test)

    def test_begin_after_they_are_asked_for(self, world: World) -> None:
        """Who asks while a look is under way is not told what that one saw: it may have begun before a commit."""
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            gateway.watches.look_seconds = 0.2
            real, gateway.watches._read = gateway.watches._read, lambda job_id: slow(job_id)  # type: ignore[method-assign]

            def slow(job_id: str) -> Seen | None:
                seen = real(job_id)
                time.sleep(0.2)  # what was seen is on its way
                return seen

            early = asyncio.ensure_future(gateway.watches.look(world.caller, job.id))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(cancel, world, job.id)
            late = [asyncio.ensure_future(gateway.watches.look(world.caller, job.id)) for _ in range(20)]
            assert {(await each).row.state for each in late} == {"canceled"}
            assert (await early).row.id == job.id
            assert gateway.watches.n_looks == 2

        run(world.database, test)

    def test_show_nobody_what_is_anothers_though_they_are_shared(self, world: World) -> None:
        within = world.new_dataset()
        job = world.submit(within)
        strangers = [
            world.new_caller(f"other {time.time_ns()}"),
            Caller("key_x", world.caller.tenant_id, world.caller.scopes, world.new_dataset().id, None),
        ]
        bound = Caller("key_y", world.caller.tenant_id, world.caller.scopes, within.id, None)

        async def test(gateway: Gateway) -> None:
            asked = [world.caller, *strangers, bound] * 5
            found = await asyncio.gather(
                *(gateway.watches.look(each, job.id) for each in asked), return_exceptions=True
            )
            for caller, each in zip(asked, found, strict=True):
                assert isinstance(each, NotFound if caller in strangers else Seen)
            assert gateway.watches.n_looks == 1
            for caller in strangers:
                with pytest.raises(NotFound):
                    await gateway.wait(caller, job.id)
            with pytest.raises(NotFound):
                await gateway.wait(world.caller, "job_" + "0" * 26)
            assert gateway.watchers.n_waiting == 0

        run(world.database, test)

    def test_that_fail_fail_for_all_who_asked_and_the_next_is_another(self, world: World) -> None:
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            def fail(_job_id: str) -> Seen:
                raise OperationalError("s", {}, Exception())

            gateway.watches._read = fail  # type: ignore[method-assign, assignment]
            found = await asyncio.gather(
                *(gateway.watches.look(world.caller, job.id) for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(each, OperationalError) for each in found)
            del gateway.watches._read
            assert (await gateway.watches.look(world.caller, job.id)).row.id == job.id

        run(world.database, test)


class TestWaiting:
    def test_of_many_for_one_job_costs_one_look_at_a_time(self, world: World) -> None:
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            gateway.notices.is_subscribed = True  # as if: no polling but the slow one
            waiting = [asyncio.ensure_future(gateway.wait(world.caller, job.id)) for _ in range(500)]
            while gateway.watchers.n_waiting < 500:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            n_before = gateway.watches.n_looks
            assert n_before <= 3  # to let them in, and one more for what came in between
            await asyncio.to_thread(cancel, world, job.id)
            gateway.notices.tell(job.id)
            assert {(await each).row.state for each in waiting} == {"canceled"}
            assert gateway.watches.n_looks <= n_before + 2

        run(world.database, test)

    def test_hears_of_a_change_at_once_where_it_is_told(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watches, "NOTICED_SECONDS", 10 * PATIENCE_SECONDS)
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            gateway.notices.is_subscribed = True
            waiting = asyncio.ensure_future(gateway.wait(world.caller, job.id, 5 * PATIENCE_SECONDS))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(cancel, world, job.id)
            gateway.notices.tell(job.id)
            assert (await asyncio.wait_for(waiting, PATIENCE_SECONDS)).row.state == "canceled"

        run(world.database, test)

    def test_outlasts_a_lost_notice(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watches, "NOTICED_SECONDS", 0.5)
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            gateway.notices.is_subscribed = True
            waiting = asyncio.ensure_future(gateway.wait(world.caller, job.id))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(cancel, world, job.id)
            assert (await waiting).row.state == "canceled"

        run(world.database, test)

    def test_goes_back_to_polling_as_the_subscription_ends(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watches, "NOTICED_SECONDS", 10 * PATIENCE_SECONDS)
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            gateway.notices.is_subscribed = True
            waiting = asyncio.ensure_future(gateway.wait(world.caller, job.id))
            await asyncio.sleep(0.3)
            gateway.notices._note(is_subscribed=False)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(cancel, world, job.id)  # and nobody is told
            assert (await asyncio.wait_for(waiting, PATIENCE_SECONDS)).row.state == "canceled"

        run(world.database, test)

    def test_leaves_nothing_behind(self, world: World) -> None:
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            await asyncio.gather(*(gateway.wait(world.caller, job.id, 0.2) for _ in range(10)))
            stream = await gateway.stream(world.caller, job.id)
            assert (await anext(stream)).startswith(b"retry: ")
            await stream.aclose()
            assert gateway.watchers.n_waiting == 0
            assert (gateway.watches._topics, gateway.watches._keeper) == ({}, None)
            await asyncio.sleep(0.1)
            assert (gateway.watches._begun, gateway.watches._due) == ({}, {})
            assert len(asyncio.all_tasks()) == 1

        run(world.database, test)

    def test_ends_with_the_server(self, world: World) -> None:
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            waiting = asyncio.ensure_future(gateway.wait(world.caller, job.id))
            stream = await gateway.stream(world.caller, job.id)
            told = asyncio.ensure_future(_all(stream))
            await asyncio.sleep(0.2)
            gateway.stopping.set()
            assert (await waiting).row.state == "queued"
            assert (await told)[-1].startswith(b"id: ")

        run(world.database, test)


async def _all(stream: Any) -> list[bytes]:
    return [event async for event in stream]


class TestKeys:
    def test_of_all_streams_are_looked_up_once_a_second_together(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watches, "KEY_SECONDS", 0.2)
        callers = [world.caller, world.new_caller(f"other {time.time_ns()}")]
        listed = [world.submit(world.new_dataset()) for _ in range(3)]

        async def test(gateway: Gateway) -> None:
            streams = [await gateway.stream(world.caller, each.id) for each in listed for _ in range(10)]
            began = time.monotonic()
            told = [asyncio.ensure_future(_all(stream)) for stream in streams]
            with pytest.raises(NotFound):
                await gateway.stream(callers[1], listed[0].id)
            while gateway.watches.n_key_looks < 3:
                await asyncio.sleep(0.02)
            assert not any(each.done() for each in told)
            assert gateway.watches.n_key_looks <= (time.monotonic() - began) / 0.2 + 1
            with world.database.transaction() as session:
                key = session.get_one(tenant.Key, world.caller.key_id)
                key.revoked_at = world.database.clock()
            poll = asyncio.ensure_future(gateway.wait(world.caller, listed[0].id))
            for each in told:
                assert sum(b"data: " in event for event in await each) == 1
            with pytest.raises(Unauthenticated):
                await poll

        run(world.database, test)

    def test_stay_live_while_nobody_can_say(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watches, "KEY_SECONDS", 0.05)
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            n_failed = 0

            def fail(_key_ids: set[str]) -> set[str]:
                nonlocal n_failed
                n_failed += 1
                raise OperationalError("s", {}, Exception())

            gateway.watches._live = fail  # type: ignore[method-assign]
            waiting = asyncio.ensure_future(gateway.wait(world.caller, job.id, 1.0))
            assert (await waiting).row.state == "queued"
            assert n_failed >= 2

        run(world.database, test)


class TestASlowReader:
    def test_is_sent_what_is_newest_and_nothing_is_kept_for_it(self, world: World) -> None:
        job = world.submit(world.new_dataset())

        async def test(gateway: Gateway) -> None:
            stream = await gateway.stream(world.caller, job.id)
            assert b"retry" in await anext(stream)
            assert b'"state":"queued"' in await anext(stream)
            row = SimpleNamespace(is_final=False)
            (topic,) = gateway.watches._topics.values()
            for number in range(10_000):  # it reads none of these
                topic.tell(Seen(b"%d" % number, cast(Any, row)))
            assert b"data: 9999\n" in await anext(stream)
            await asyncio.to_thread(cancel, world, job.id)
            gateway.notices.tell(job.id)
            rest = await _all(stream)
            assert b'"state":"canceled"' in rest[-1]
            assert len(rest) <= 2

        run(world.database, test)
