"""Leases that were written before the clock was set back are clamped to two leases."""

import pytest

from models.collection import aggregation_leases, rounds
from models.database.types import SECOND
from models.jobs import claims
from tests.models.world import LEASE, NOW, World, cancel


@pytest.fixture
def database_kind() -> str:
    """Return SQLite only: these tests check rules that do not depend on the database."""
    return "sqlite"


QUARTER = 900 * SECOND


def shorten(world: World) -> None:
    world.write(aggregation_leases.clamp_leases, now=world.now, lease_microseconds=LEASE)


def claim_aggregation(world: World) -> str | None:
    return world.write(aggregation_leases.claim_aggregation, now=world.now, lease_microseconds=LEASE, max_attempts=5)


@pytest.fixture
def ahead(world: World) -> World:
    """A world with a clock that will be set back to NOW."""
    world.now = NOW + QUARTER
    return world


class TestClockSetBack:
    def test_job_of_a_lost_worker_is_claimed_in_time(self, ahead: World) -> None:
        queued = ahead.submit(ahead.new_dataset())
        ahead.claimed()
        ahead.now = NOW
        shorten(ahead)
        assert ahead.claim() is None  # its worker may live, and is about to lengthen it

        ahead.now = NOW + 2 * LEASE
        assert ahead.claimed().job_id == queued.id

    def test_aggregation_of_a_lost_worker_is_claimed_in_time(self, ahead: World) -> None:
        opened = ahead.open_standalone(ahead.new_dataset())
        ahead.close(opened.id)
        assert claim_aggregation(ahead) == opened.id
        ahead.now = NOW
        shorten(ahead)
        assert claim_aggregation(ahead) is None

        ahead.now = NOW + 2 * LEASE
        assert claim_aggregation(ahead) == opened.id

    def test_round_of_a_canceled_job_is_claimed_in_time(self, ahead: World) -> None:
        queued = ahead.submit(ahead.new_dataset())
        opened = ahead.open_for(ahead.claimed())
        cancel(ahead, queued.id)
        ahead.now = NOW
        shorten(ahead)

        ahead.now = NOW + 2 * LEASE
        assert claim_aggregation(ahead) == opened.id

    def test_live_worker_keeps_its_job(self, ahead: World) -> None:
        ahead.submit(ahead.new_dataset())
        held = ahead.claimed()
        ahead.now = NOW
        for _ in range(20):
            shorten(ahead)
            ahead.now += LEASE // 4
            assert ahead.claim() is None
            assert ahead.write(claims.renew, held, now=ahead.now, lease_microseconds=LEASE).fence == held.fence


class TestValidLeases:
    def test_do_not_change(self, world: World) -> None:
        within = world.new_dataset()
        running, waiting = world.submit(within), world.submit(within)
        world.claimed()
        opened = world.open_standalone(within)
        world.close(opened.id)
        assert claim_aggregation(world) == opened.id
        world.now -= LEASE  # a worker may have read the clock so long ago
        shorten(world)

        found = [world.job(running.id).lease_until, world.round(opened.id).aggregation_lease_until]
        assert found == [NOW + LEASE, NOW + LEASE]
        assert world.job(waiting.id).lease_until is None

    def test_ended_jobs_and_rounds_do_not_change(self, ahead: World) -> None:
        opened = ahead.open_standalone(ahead.new_dataset())
        ahead.close(opened.id)
        claim_aggregation(ahead)
        ahead.write(rounds.store_tally, opened.id, b"tally", 0, now=ahead.now)
        ahead.now = NOW
        shorten(ahead)

        assert ahead.round(opened.id).aggregation_lease_until == NOW + QUARTER + LEASE
