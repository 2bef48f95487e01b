"""Leases written before a clock was set back hold nothing for longer than two leases."""

import pytest

from models import fold as folds
from models import job, lease
from models import round as rounds
from models.db import SECOND
from tests.models.world import LEASE, NOW, World, cancel

QUARTER = 900 * SECOND


def shorten(world: World) -> None:
    with world.database.transaction() as session:
        lease.shorten(session, now=world.now, lease_microseconds=LEASE)


def claim_fold(world: World) -> str | None:
    with world.database.transaction() as session:
        return folds.claim_fold(session, now=world.now, lease_microseconds=LEASE, max_attempts=5)


@pytest.fixture
def ahead(world: World) -> World:
    """A world whose clock will be set back to NOW."""
    world.now = NOW + QUARTER
    return world


class TestAClockThatWasSetBack:
    def test_holds_up_no_job_of_a_dead_worker(self, ahead: World) -> None:
        queued = ahead.submit(ahead.new_dataset())
        ahead.claimed()
        ahead.now = NOW
        shorten(ahead)
        assert ahead.claim() is None  # its worker may live, and is about to lengthen it

        ahead.now = NOW + 2 * LEASE
        assert ahead.claimed().job_id == queued.id

    def test_holds_up_no_fold_of_a_dead_worker(self, ahead: World) -> None:
        opened = ahead.open_standalone(ahead.new_dataset())
        ahead.close(opened.id)
        assert claim_fold(ahead) == opened.id
        ahead.now = NOW
        shorten(ahead)
        assert claim_fold(ahead) is None

        ahead.now = NOW + 2 * LEASE
        assert claim_fold(ahead) == opened.id

    def test_holds_up_no_round_that_a_cancelled_job_left(self, ahead: World) -> None:
        queued = ahead.submit(ahead.new_dataset())
        opened = ahead.open_for(ahead.claimed())
        cancel(ahead, queued.id)
        ahead.now = NOW
        shorten(ahead)

        ahead.now = NOW + 2 * LEASE
        assert claim_fold(ahead) == opened.id

    def test_takes_no_job_from_a_worker_that_lives(self, ahead: World) -> None:
        ahead.submit(ahead.new_dataset())
        held = ahead.claimed()
        ahead.now = NOW
        for _ in range(20):
            shorten(ahead)
            ahead.now += LEASE // 4
            assert ahead.claim() is None
            with ahead.database.transaction() as session:
                assert job.renew(session, held, now=ahead.now, lease_microseconds=LEASE).fence == held.fence


class TestWhatIsHeldAsItShouldBe:
    def test_stays_so(self, world: World) -> None:
        within = world.new_dataset()
        running, waiting = world.submit(within), world.submit(within)
        world.claimed()
        opened = world.open_standalone(within)
        world.close(opened.id)
        assert claim_fold(world) == opened.id
        world.now -= LEASE  # a worker's look at the clock may be as old
        shorten(world)

        found = [world.job(running.id).lease_until, world.round(opened.id).fold_lease_until]
        assert found == [NOW + LEASE, NOW + LEASE]
        assert world.job(waiting.id).lease_until is None

    def test_of_what_is_over_nothing_changes(self, ahead: World) -> None:
        opened = ahead.open_standalone(ahead.new_dataset())
        ahead.close(opened.id)
        claim_fold(ahead)
        with ahead.database.transaction() as session:
            rounds.store_tally(session, opened.id, b"tally", 0, now=ahead.now)
        ahead.now = NOW
        shorten(ahead)

        assert ahead.round(opened.id).fold_lease_until == NOW + QUARTER + LEASE
