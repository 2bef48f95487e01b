"""The fence: a worker that was overtaken writes nothing, so a job has one result."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from models import job, result
from models.errors import JobNotFinished, StaleFence
from models.job import Claim, Job, JobState
from sfumato.accounting import NANO
from tests.models.world import (
    LEASE,
    NOW,
    World,
    document_of,
    rolled_back,
    succeed,
    together,
)


class TestTheFence:
    """What a worker that was overtaken writes: nothing."""

    @pytest.mark.parametrize(
        "write",
        [
            lambda s, held: job.renew(s, held, now=NOW, lease_microseconds=LEASE),
            lambda s, held: job.held_job(s, held),
            lambda s, held: job.suspend(s, held, now=NOW),
            lambda s, held: succeed(s, held),
            lambda s, held: job.fail(s, held, JobState.FAILED, code="c", detail="d", now=NOW),
            lambda s, held: job.let_go(s, held, now=NOW),
            lambda s, held: job.hand_back(s, held, is_attempt=True, now=NOW),
        ],
        ids=["renew", "held_job", "suspend", "succeed", "fail", "let_go", "hand_back"],
    )
    def test_a_stale_worker_writes_nothing(self, world: World, write: Callable[[Session, Claim], object]) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)

        def overtaken() -> Claim:
            held = world.claimed()
            world.now += LEASE
            world.claimed()
            return held

        def over() -> Claim:
            held = world.claimed()
            with world.database.transaction() as session:
                succeed(session, held)
            return held

        def handed_back() -> Claim:
            held = world.claimed()
            with world.database.transaction() as session:
                job.hand_back(session, held, is_attempt=True, now=world.now + LEASE)
            return held

        def collecting() -> Claim:
            held = world.claimed()
            world.open_for(held)
            return held

        for happened in (overtaken, over, collecting, handed_back):
            queued = world.submit(within)
            held = happened()
            assert held.job_id == queued.id
            before = (row(world, queued.id), world.chain(within.id))

            with pytest.raises(StaleFence), world.database.transaction() as session:
                write(session, held)

            assert (row(world, queued.id), world.chain(within.id)) == before

    def test_an_unknown_job_is_held_by_nobody(self, world: World) -> None:
        with pytest.raises(StaleFence), world.database.transaction() as session:
            job.held_job(session, Claim("job_unknown", 1))

    def test_a_session_that_read_the_job_before_sees_the_fence_of_now(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        held = world.claimed()
        with world.database.transaction() as session:
            known = session.get_one(Job, queued.id)
            session.execute(text("UPDATE jobs SET fence = 2"))
            with pytest.raises(StaleFence):
                job.held_job(session, held)

        assert known.fence == 2


def row(world: World, job_id: str) -> tuple[Any, ...]:
    with world.database.reading() as session:
        return tuple(session.execute(select(Job.__table__).where(Job.id == job_id)).one())


class TestTheResult:
    def test_is_published_exactly_once_though_workers_race(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=2 * NANO)
        world.close(world.open_for(world.claimed()).id)
        holders = []
        for _ in range(5):
            holders.append(world.claimed())
            world.now += LEASE

        def publish(held: Claim) -> int:
            with world.database.transaction() as session:
                succeed(session, held, {"fence": held.fence})
            return held.fence

        outcomes = together([partial(publish, held) for held in [*holders, holders[-1], holders[-1]]])

        assert [each for each in outcomes if not isinstance(each, StaleFence)] == [holders[-1].fence]
        assert document_of(world, queued.id) == {"fence": holders[-1].fence}
        assert [kind for kind, _, _ in world.chain(within.id)] == ["grant", "reserve", "post", "release"]

    def test_and_its_release_are_one_transaction(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        held = world.claimed()

        with rolled_back(world.database) as session:
            succeed(session, held)

        assert world.job(queued.id).state == JobState.RUNNING
        assert world.balance(within.id).reserved_nano == NANO
        with pytest.raises(JobNotFinished), world.database.reading() as session:
            result.get(session, queued.id)
