"""Aggregation of rounds without a job: a bounded number of attempts, then the state failed."""

import pytest

from models.collection import aggregation_leases, rounds
from models.errors import RoundClosed
from models.jobs import lifecycle
from models.tables.datasets import Dataset
from models.tables.jobs import JobState
from models.tables.rounds import RoundState
from tests.models.world import LEASE, NOW, World, rolled_back

MAX_ATTEMPTS = 3


def claim(world: World) -> str | None:
    return world.write(
        aggregation_leases.claim_aggregation, now=world.now, lease_microseconds=LEASE, max_attempts=MAX_ATTEMPTS
    )


def give_up(world: World) -> str | None:
    return world.write(aggregation_leases.fail_aggregation, now=world.now, max_attempts=MAX_ATTEMPTS)


def closed_round(world: World) -> str:
    """A round of its own with two reports."""
    opened = world.open_standalone(world.new_dataset())
    world.receive(opened.id, 2, b"reports")
    world.close(opened.id)
    return opened.id


def lose(world: World, round_id: str, n: int = MAX_ATTEMPTS) -> None:
    """Let the given number of workers claim the aggregation and disappear."""
    for _ in range(n):
        assert claim(world) == round_id
        world.now += LEASE


class TestAttempts:
    def test_aggregation_fails_after_the_last_attempt(self, world: World) -> None:
        round_id = closed_round(world)
        lose(world, round_id, MAX_ATTEMPTS - 1)
        assert give_up(world) is None
        assert claim(world) == round_id
        assert give_up(world) is None  # the last one is still at it
        world.now += LEASE

        assert claim(world) is None
        assert give_up(world) == round_id

        found = world.round(round_id)
        assert (found.state, found.aggregation_attempts, found.n_reports) == (RoundState.FAILED, MAX_ATTEMPTS, None)
        assert world.log(round_id) == [b"reports"]
        assert (give_up(world), claim(world)) == (None, None)

    def test_failed_round_does_not_block_others(self, world: World) -> None:
        round_id = closed_round(world)
        lose(world, round_id)
        other = closed_round(world)

        assert claim(world) == other

    def test_requested_stop_is_no_attempt(self, world: World) -> None:
        round_id = closed_round(world)
        for _ in range(MAX_ATTEMPTS + 1):
            assert claim(world) == round_id
            world.write(aggregation_leases.release_aggregation, round_id, now=world.now)

        assert claim(world) == round_id  # at once, without waiting for a lease
        assert world.round(round_id).aggregation_attempts == 1

    def test_round_of_an_ended_job_fails_too(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed())
        world.receive(opened.id)
        world.write(lifecycle.cancel, world.caller, queued.id, now=world.now)
        lose(world, opened.id)

        assert give_up(world) == opened.id


class TestFailedRound:
    def failed_round(self, world: World) -> str:
        round_id = closed_round(world)
        lose(world, round_id)
        give_up(world)
        return round_id

    def test_accepts_no_reports_and_closing_it_changes_nothing(self, world: World) -> None:
        round_id = self.failed_round(world)
        with pytest.raises(RoundClosed):
            world.receive(round_id)

        assert world.close(round_id).state == RoundState.FAILED

    def test_job_may_aggregate_it_once(self, world: World) -> None:
        round_id = self.failed_round(world)
        with world.database.transaction() as session:
            within = session.get_one(Dataset, world.round(round_id).dataset_id)
        queued = world.submit(within, round_ids=[round_id])

        world.write(rounds.store_tally, round_id, b"tally", 2, now=NOW)

        assert world.job(queued.id).state == JobState.QUEUED
        assert (world.round(round_id).state, world.log(round_id)) == (RoundState.TALLIED, [])

    def test_slow_worker_may_still_store_its_tally(self, world: World) -> None:
        round_id = self.failed_round(world)
        with rolled_back(world.database) as session:
            stored = rounds.store_tally(session, round_id, b"tally", 2, now=NOW)
            assert stored.state == RoundState.TALLIED
