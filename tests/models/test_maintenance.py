"""Deleting a dataset: jobs and rounds end, reports are deleted, ledger and results remain."""

import time
from collections.abc import Callable

import pytest

from models import datasets, maintenance
from models.collection import aggregation_leases, report_intake, rounds
from models.errors import Conflict, LimitExceeded, NotFound, RoundClosed
from models.jobs import jobs, lifecycle
from models.jobs import jobs as job
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from models.tables import rounds as rounds_tables
from models.tables.datasets import Dataset
from models.tables.jobs import JobState
from models.tables.rounds import RoundState
from sfumato.privacy.accounting import NANO
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import LEASE, NOW, Thread, World, cost_of, spec, together, wait_until_blocked

COST = cost_of(spec())


def remove(world: World, dataset_id: str) -> None:
    world.write(maintenance.delete_dataset, world.caller, dataset_id, now=world.now)


class TestDelete:
    def test_cancels_jobs_closes_rounds_and_deletes_all_reports(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO, keep_reports=True)
        collecting = world.submit(within, epsilon_nano=2 * NANO)
        asked = world.open_for(world.claimed())
        running, queued = world.submit(within), None
        held = world.claimed()
        queued = world.submit(within)
        open_, closed, tallied = (world.open_standalone(within) for _ in range(3))
        for each in (asked, open_, closed, tallied):
            world.receive(each.id, 1, b"report")
        for each in (closed, tallied):
            world.close(each.id)
        world.write(rounds.store_tally, tallied.id, b"tally", 1, now=NOW)

        remove(world, within.id)

        assert [world.job(each.id).state for each in (collecting, queued)] == [JobState.CANCELED] * 2
        assert (world.job(running.id).state, world.job(running.id).cancel_requested) == (JobState.RUNNING, True)
        states = [world.round(each.id).state for each in (asked, open_, closed, tallied)]
        assert states == [RoundState.CLOSED] * 3 + [RoundState.TALLIED]
        assert [world.log(each.id) for each in (asked, open_, closed, tallied)] == [[]] * 4
        world.write(lifecycle.cancel_claimed, held, now=NOW)
        assert world.balance(within.id) == Balance(100 * NANO, 0, 4 * COST)

    def test_hides_the_dataset_and_keeps_its_ledger_and_results(self, world: World) -> None:
        within = world.new_dataset()
        done = world.submit(within)
        world.write(lifecycle.succeed, world.claimed(), {"a": 1}, software_version="1", now=NOW)
        opened = world.open_standalone(within)

        remove(world, within.id)

        with world.database.reading() as session:
            with pytest.raises(NotFound):
                datasets.get(session, world.caller, within.id)
            with pytest.raises(NotFound):
                rounds.get(session, world.caller, opened.id)
            assert datasets.page(session, world.caller, after="", limit=10) == []
            assert datasets.get(session, world.caller, within.id, deleted=True).deleted_at == NOW
            assert rounds.list_open(session, within.id, now=NOW) == []
            assert ledger.verify(session, within.id).ok
            assert jobs.get_result(session, job.get(session, world.caller, done.id).id).document == {"a": 1}

    def test_does_not_affect_other_datasets(self, world: World) -> None:
        within, other = world.new_dataset(), world.new_dataset()
        queued, opened = world.submit(other), world.open_standalone(other)
        world.receive(opened.id, 1, b"report")

        remove(world, within.id)

        assert world.job(queued.id).state == JobState.QUEUED
        assert (world.round(opened.id).state, world.log(opened.id)) == (RoundState.OPEN, [b"report"])

    def test_frees_the_tenants_limit(self, world: World) -> None:
        first = world.new_dataset(max_datasets=1)
        with pytest.raises(LimitExceeded):
            world.new_dataset(max_datasets=1)
        remove(world, first.id)

        assert world.new_dataset(max_datasets=1).deleted_at is None

    def test_twice_or_by_another_tenant_raises_not_found(self, world: World) -> None:
        within = world.new_dataset()
        stranger = world.new_caller("stranger")
        with pytest.raises(NotFound), world.database.transaction() as session:
            maintenance.delete_dataset(session, stranger, within.id, now=NOW)
        remove(world, within.id)

        with pytest.raises(NotFound):
            remove(world, within.id)


@on_sqlite
class TestAfterDeletion:
    def test_no_job_or_round_can_begin(self, world: World) -> None:
        within = world.new_dataset()
        opened = world.open_standalone(within)
        remove(world, within.id)
        before = world.chain(within.id)

        for begin in (lambda: world.submit(within), lambda: world.open_standalone(within)):
            with pytest.raises(NotFound):
                begin()
        with pytest.raises(RoundClosed):
            world.receive(opened.id)

        assert world.chain(within.id) == before

    def test_no_round_is_aggregated(self, world: World) -> None:
        within = world.new_dataset()
        opened = world.open_standalone(within)
        world.receive(opened.id)
        world.close(opened.id)
        remove(world, within.id)

        assert (
            world.write(aggregation_leases.claim_aggregation, now=NOW, lease_microseconds=LEASE, max_attempts=5) is None
        )
        with pytest.raises(Conflict), world.database.transaction() as session:
            rounds.store_tally(session, opened.id, b"folded before", 1, now=NOW)

    def test_job_that_opens_a_round_ends_at_the_next_claim(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        held = world.claimed()
        remove(world, within.id)
        opened = world.open_for(held)

        assert world.claim() is None
        assert (world.job(queued.id).state, world.round(opened.id).state) == (JobState.CANCELED, RoundState.CLOSED)


class TestDuringDeletion:
    """The first transaction succeeds, the second sees its result, and the database aborts neither."""

    @on_postgresql
    @pytest.mark.parametrize("begin", ["job", "round"])
    def test_concurrent_jobs_and_rounds_are_rejected_or_ended(self, world: World, begin: str) -> None:
        def start(within: Dataset) -> Callable[[], object]:
            return lambda: world.submit(within) if begin == "job" else world.open_standalone(within)

        first, second = world.new_dataset(), world.new_dataset()

        with world.database.transaction() as session:
            maintenance.delete_dataset(session, world.caller, first.id, now=NOW)
            starting = Thread(start(first))
            wait_until_blocked(world.database)
        with pytest.raises(NotFound):
            starting.outcome()

        with world.database.transaction() as session:
            if begin == "job":
                begun = lifecycle.submit(
                    session,
                    world.caller,
                    second,
                    lifecycle.NewJob({"type": "uniform_grid"}, Amounts(1), rounds_tables.CollectionTarget(1, 1, 1)),
                    max_active_jobs=9,
                    now=NOW,
                )
            else:
                begun = rounds.open_standalone(
                    session,
                    world.caller,
                    second,
                    spec(),
                    rounds_tables.CollectionTarget(9, 1, 9),
                    max_open_rounds=9,
                    now=NOW,
                )
            removing = Thread(lambda: remove(world, second.id))
            wait_until_blocked(world.database)
        removing.outcome()
        ended = world.job(begun.id).state if begin == "job" else world.round(begun.id).state
        assert ended == (JobState.CANCELED if begin == "job" else RoundState.CLOSED)

    @on_postgresql
    def test_group_commit_does_not_deadlock(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        opened = ["rnd_1", "rnd_2", "rnd_3"]
        monkeypatch.setattr(rounds, "new_id", lambda prefix, left=[*opened]: left.pop())  # not as the rows will lie
        world.open_standalone(within)
        world.submit(within)
        world.open_for(world.claimed())
        world.open_standalone(within)

        with world.database.transaction() as session:
            report_intake.receive(session, opened[0], 1, b"r", now=NOW)
            removing = Thread(lambda: remove(world, within.id))
            wait_until_blocked(world.database)
            for round_id in opened[1:]:
                report_intake.receive(session, round_id, 1, b"r", now=NOW)
        removing.outcome()

        assert [world.log(round_id) for round_id in opened] == [[], [], []]
        assert [world.round(round_id).n_received for round_id in opened] == [1, 1, 1]

    def test_concurrent_actions_leave_nothing_open_or_reserved(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=1000 * NANO)
        first = world.open_standalone(within).id

        def again(call: Callable[[], object]) -> Callable[[], None]:
            def calls() -> None:
                for _ in range(6):
                    try:
                        call()
                    except (NotFound, RoundClosed, LimitExceeded):
                        continue

            return calls

        def work() -> None:
            held = world.claim()
            if held is not None:
                world.open_for(held)

        def remove_soon() -> None:
            time.sleep(0.03)
            remove(world, within.id)

        calls = [
            lambda: world.submit(within),
            lambda: world.open_standalone(within),
            lambda: world.receive(first),
            work,
        ]
        assert together([*(again(call) for call in calls * 2), remove_soon]) == [None] * 9
        world.now += LEASE
        for _ in range(20):
            world.claim()

        with world.database.reading() as session:
            found = rounds.page(session, within.id, after="", limit=100)
            jobs = job.page(session, world.caller, dataset_id=within.id, after="", limit=100)
            assert ledger.verify(session, within.id).ok
        assert {each.state for each in found} == {RoundState.CLOSED}
        assert all(each.is_final for each in jobs)
        assert sum(world.n_logged(each.id) for each in found) == 0
        assert world.balance(within.id).reserved_nano == 0
