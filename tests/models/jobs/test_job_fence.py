"""The fence: a stale worker writes nothing, so a job has one result."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from models.errors import JobNotFinished, StaleFence
from models.jobs import claims, jobs, lifecycle
from models.jobs.claims import Claim
from models.tables.jobs import Job, JobState
from sfumato.privacy.accounting import NANO
from tests.models.world import LEASE, NOW, World, document_of, rolled_back, succeed, together


class TestFence:
    @pytest.mark.parametrize(
        "write",
        [
            lambda s, held: claims.renew(s, held, now=NOW, lease_microseconds=LEASE),
            lambda s, held: claims.load_claimed(s, held),
            lambda s, held: lifecycle.wait_for_reports(s, held, now=NOW),
            lambda s, held: succeed(s, held),
            lambda s, held: lifecycle.fail(s, held, JobState.FAILED, code="c", detail="d", now=NOW),
            lambda s, held: lifecycle.cancel_claimed(s, held, now=NOW),
            lambda s, held: lifecycle.requeue(s, held, is_attempt=True, now=NOW),
        ],
        ids=["renew", "load_claimed", "wait_for_reports", "succeed", "fail", "cancel_claimed", "requeue"],
    )
    def test_stale_worker_writes_nothing(self, world: World, write: Callable[[Session, Claim], object]) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)

        def overtaken() -> Claim:
            held = world.claimed()
            world.now += LEASE
            world.claimed()
            return held

        def over() -> Claim:
            held = world.claimed()
            world.write(succeed, held)
            return held

        def handed_back() -> Claim:
            held = world.claimed()
            world.write(lifecycle.requeue, held, is_attempt=True, now=world.now + LEASE)
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

    def test_unknown_job_raises_stale_fence(self, world: World) -> None:
        with pytest.raises(StaleFence), world.database.transaction() as session:
            claims.load_claimed(session, Claim("job_unknown", 1))

    def test_fence_is_read_afresh(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        held = world.claimed()
        with world.database.transaction() as session:
            known = session.get_one(Job, queued.id)
            session.execute(text("UPDATE jobs SET fence = 2"))
            with pytest.raises(StaleFence):
                claims.load_claimed(session, held)

        assert known.fence == 2


def row(world: World, job_id: str) -> tuple[Any, ...]:
    with world.database.reading() as session:
        return tuple(session.execute(select(Job.__table__).where(Job.id == job_id)).one())


class TestResult:
    def test_is_stored_once_by_racing_workers(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=2 * NANO)
        world.close(world.open_for(world.claimed()).id)
        holders = []
        for _ in range(5):
            holders.append(world.claimed())
            world.now += LEASE

        def publish(held: Claim) -> int:
            world.write(succeed, held, {"fence": held.fence})
            return held.fence

        outcomes = together([partial(publish, held) for held in [*holders, holders[-1], holders[-1]]])

        assert [each for each in outcomes if not isinstance(each, StaleFence)] == [holders[-1].fence]
        assert document_of(world, queued.id) == {"fence": holders[-1].fence}
        assert [kind for kind, _, _ in world.chain(within.id)] == ["grant", "reserve", "charge", "release"]

    def test_and_release_are_one_transaction(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        held = world.claimed()

        with rolled_back(world.database) as session:
            succeed(session, held)

        assert world.job(queued.id).state == JobState.RUNNING
        assert world.balance(within.id).reserved_nano == NANO
        with pytest.raises(JobNotFinished), world.database.reading() as session:
            jobs.get_result(session, queued.id)
