"""Folds that no job does: tried a bounded number of times, and given up in sight of everybody."""

from contextlib import closing

import pytest
from alembic import command
from sqlalchemy import text

from models import db, job
from models import fold as folds
from models import round as rounds
from models.dataset import Dataset
from models.db import Database, migrate
from models.job import JobState
from models.round import Round, RoundState
from tests.models.world import LEASE, NOW, World, rolled_back

MAX_ATTEMPTS = 3


def claim(world: World) -> str | None:
    with world.database.transaction() as session:
        return folds.claim_fold(session, now=world.now, lease_microseconds=LEASE, max_attempts=MAX_ATTEMPTS)


def give_up(world: World) -> str | None:
    with world.database.transaction() as session:
        return folds.give_up_fold(session, now=world.now, max_attempts=MAX_ATTEMPTS)


def closed_round(world: World) -> str:
    """A round of its own with two reports."""
    opened = world.open_standalone(world.new_dataset())
    world.receive(opened.id, 2, b"reports")
    world.close(opened.id)
    return opened.id


def lose(world: World, round_id: str, n: int = MAX_ATTEMPTS) -> None:
    """So many workers claim the fold and are not heard of again."""
    for _ in range(n):
        assert claim(world) == round_id
        world.now += LEASE


class TestAttempts:
    def test_a_fold_is_tried_so_often_and_then_given_up(self, world: World) -> None:
        round_id = closed_round(world)
        lose(world, round_id, MAX_ATTEMPTS - 1)
        assert give_up(world) is None
        assert claim(world) == round_id
        assert give_up(world) is None  # the last one is still at it
        world.now += LEASE

        assert claim(world) is None
        assert give_up(world) == round_id

        found = world.round(round_id)
        assert (found.state, found.fold_attempts, found.n_reports) == (RoundState.FAILED, MAX_ATTEMPTS, None)
        assert world.log(round_id) == [b"reports"]
        assert (give_up(world), claim(world)) == (None, None)

    def test_one_that_is_given_up_holds_up_no_other(self, world: World) -> None:
        round_id = closed_round(world)
        lose(world, round_id)
        other = closed_round(world)

        assert claim(world) == other

    def test_a_worker_that_was_told_to_stop_costs_none(self, world: World) -> None:
        round_id = closed_round(world)
        for _ in range(MAX_ATTEMPTS + 1):
            assert claim(world) == round_id
            with world.database.transaction() as session:
                folds.let_go_fold(session, round_id, now=world.now)

        assert claim(world) == round_id  # at once, without waiting for a lease
        assert world.round(round_id).fold_attempts == 1

    def test_what_a_job_left_is_given_up_as_well(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed())
        world.receive(opened.id)
        with world.database.transaction() as session:
            job.cancel(session, world.caller, queued.id, now=world.now)
        lose(world, opened.id)

        assert give_up(world) == opened.id


class TestGivenUp:
    def failed_round(self, world: World) -> str:
        round_id = closed_round(world)
        lose(world, round_id)
        give_up(world)
        return round_id

    def test_it_takes_no_reports_and_stays_as_it_is_when_closed_again(self, world: World) -> None:
        round_id = self.failed_round(world)
        with pytest.raises(rounds.RoundClosed):
            world.receive(round_id)

        assert world.close(round_id).state == RoundState.FAILED

    def test_a_job_may_name_it_and_its_tally_is_stored_once(self, world: World) -> None:
        round_id = self.failed_round(world)
        with world.database.transaction() as session:
            within = session.get_one(Dataset, world.round(round_id).dataset_id)
        queued = world.submit(within, round_ids=[round_id])

        with world.database.transaction() as session:
            rounds.store_tally(session, round_id, b"tally", 2, now=NOW)

        assert world.job(queued.id).state == JobState.QUEUED
        assert (world.round(round_id).state, world.log(round_id)) == (RoundState.TALLIED, [])

    def test_a_worker_that_was_only_slow_may_still_store_its_tally(self, world: World) -> None:
        round_id = self.failed_round(world)
        with rolled_back(world.database) as session:
            stored = rounds.store_tally(session, round_id, b"tally", 2, now=NOW)
            assert stored.state == RoundState.TALLIED


class TestMigrating:
    def test_rounds_of_before_have_been_tried_by_nobody(self, empty_database_url: str) -> None:
        config = db._alembic(empty_database_url)
        with closing(Database(empty_database_url)) as database:
            config.attributes["engine"] = database.engine
            command.upgrade(config, "0001")
            with database.transaction() as session:
                session.execute(text("INSERT INTO tenants VALUES ('ten_1', 't', 1)"))
                session.execute(
                    text(
                        "INSERT INTO datasets (id, tenant_id, name, trust, features, min_reports, keep_reports, "
                        "created_at) VALUES ('ds_1', 'ten_1', 'd', 'local', '[]', 1, :keep, 1)"
                    ),
                    {"keep": False},
                )
                session.execute(
                    text(
                        'INSERT INTO rounds (id, dataset_id, collection_id, "index", spec, epsilon_nano, '
                        "target_reports, min_reports, closes_at, state, n_received, opened_at) "
                        "VALUES ('rnd_1', 'ds_1', 'rnd_1', 0, '{}', 1, 1, 1, 1, 'closed', 0, 1)"
                    )
                )

            migrate(empty_database_url)

            with database.transaction() as session:
                assert session.get_one(Round, "rnd_1").fold_attempts == 0
                assert folds.claim_fold(session, now=NOW, lease_microseconds=LEASE, max_attempts=1) == "rnd_1"
