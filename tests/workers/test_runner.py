"""The job runner: rounds, costs, results, replays, and how a job ends."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from clustering.rounds.plan import Plan
from models.collection import rounds
from models.database.engine import Database
from models.database.types import canonical_json
from models.tables.jobs import JobState
from models.tables.rounds import RoundState
from sfumato.model.cluster_model import model_from_wire
from sfumato.privacy.accounting import NANO
from sfumato.specs import RoundSpec
from tests.databases import on_both_databases
from tests.workers.collection import ALGORITHM, Collection
from tests.workers.driving import (
    LEASE,
    TOY,
    claim,
    cost_of_rounds,
    grid_spec,
    must_claim,
    reports_in_log,
    step,
    work_to_the_end,
)
from tests.workers.processes import ROOT
from tests.workers.toy import THREE_ROUNDS, Toy
from workers.job_runner import ClaimOutcome, aggregate_without_job, run

TWO_ROUNDS = Toy(draws=((0.0, 1.0), (0.0, 1.0)))  # every device participates in both


class DyingDatabase(Database):
    """The database of a process that dies at its n-th write, right before or right after the commit."""

    def __init__(self, database: Database, nth: int, after_commit: bool) -> None:
        self._database, self._nth, self._after_commit = database, nth, after_commit
        self.clock = database.clock
        self._n_writes = 0

    @property
    def has_died(self) -> bool:
        return self._n_writes > self._nth

    def reading(self) -> AbstractContextManager[Session]:
        return self._database.reading()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        dies, self._n_writes = self._n_writes == self._nth, self._n_writes + 1
        with self._database.transaction() as session:
            yield session
            if dies and not self._after_commit:
                raise OperationalError("", {}, Exception())
        if dies:
            raise OperationalError("", {}, Exception())


class TestSuccessfulJob:
    @on_both_databases
    @pytest.mark.parametrize("keep", [False, True])
    def test_stores_one_model_and_scrubs_the_reports_unless_the_round_keeps_them(
        self, database: Database, keep: bool
    ) -> None:
        collection = Collection.create(database, keep_reports=keep)
        job_id = collection.submit()
        assert work_to_the_end(collection) is ClaimOutcome.SUCCEEDED
        job, document, own = collection.job(job_id), collection.document(job_id), collection.rounds_of(job_id)
        assert (job.state, job.lease_until, job.error_code) == (JobState.SUCCEEDED, None, None)
        assert [r.state for r in own] == [RoundState.TALLIED] * 3
        assert document["algorithm"] == ALGORITHM
        assert document["rounds"] == [
            {"id": r.id, "index": i, "n_reports": r.target_reports, "epsilon_nano": r.epsilon_nano}
            for i, r in enumerate(own)
        ]
        assert model_from_wire(document["model"]).n_clusters == 4
        assert [reports_in_log(database, r.id) for r in own] == [r.target_reports if keep else 0 for r in own]

    @pytest.mark.parametrize(
        "draws",
        [THREE_ROUNDS, ((0.0, 0.5), (0.5, 1.0)), ((0.0, 1.0), (0.0, 1.0)), ((0.1, 0.6), (0.5, 0.9), (0.55, 0.58))],
        ids=["mixed", "disjoint", "in sequence", "nested"],
    )
    def test_charges_what_the_accounting_computes(self, collection: Collection, draws: tuple) -> None:
        job_id = collection.submit()
        work_to_the_end(collection, start=Toy(draws=draws))
        own = collection.rounds_of(job_id)
        assert len(own) == len(draws)
        increases = [cost_of_rounds(own[: i + 1]) - cost_of_rounds(own[:i]) for i in range(len(own))]
        assert [charge.epsilon_nano for charge in collection.charges()] == increases
        balance = collection.balance()
        assert (balance.charged_nano, balance.reserved_nano) == (sum(increases), 0)
        assert collection.document(job_id)["epsilon_nano"] == sum(increases)
        if draws == ((0.0, 0.5), (0.5, 1.0)):  # disjoint rounds cost as one
            assert increases[1] <= 2  # the numbers of cells differ, so the rounded epsilons may differ

    def test_charges_a_round_before_a_device_can_see_it(self, collection: Collection) -> None:
        collection.submit(target_reports=321)
        expected_reports: list[int] = []

        def start(params, features, expected, attributes=()) -> Plan:
            expected_reports.append(expected)
            return TOY(params, features, expected)

        assert step(collection, start=start) is ClaimOutcome.COLLECTING
        opened = collection.get_open_round()
        assert [charge.epsilon_nano for charge in collection.charges()] == [opened.epsilon_nano]
        assert expected_reports == [321]


class TestReplay:
    @on_both_databases
    @pytest.mark.parametrize("after_commit", [False, True], ids=["before", "after"])
    @pytest.mark.slow
    def test_a_crash_at_any_commit_changes_no_byte(self, collection: Collection, after_commit: bool) -> None:
        undisturbed = collection.submit()
        work_to_the_end(collection)
        expected, cost = canonical_json(collection.document(undisturbed)["model"]), collection.balance().charged_nano
        for nth in range(7):  # three rounds opened, three tallies stored, one result
            job_id = collection.submit()
            dying, later = DyingDatabase(collection.database, nth, after_commit), 0
            while not collection.job(job_id).is_final:
                later += 2 * LEASE  # earlier leases have expired
                claimed = claim(collection.database, later=later)
                if claimed is None:
                    collection.fill(collection.get_open_round())
                else:
                    with suppress(OperationalError):
                        run(dying, claimed, start=TOY)
            assert dying.has_died
            assert canonical_json(collection.document(job_id)["model"]) == expected
            assert len(collection.rounds_of(job_id)) == 3
            assert collection.balance().charged_nano == (2 + nth) * cost

    def test_gives_the_plan_the_published_spec(self, collection: Collection) -> None:
        collection.submit()
        collected_specs: list[RoundSpec] = []
        n_starts = 0

        def start(params, features, expected, attributes=()) -> Plan:
            nonlocal n_starts
            n_starts += 1
            collected = yield grid_spec(11 + n_starts)  # the replay computes another spec
            collected_specs.append(collected.spec)
            return (yield from TOY(params, features, expected))

        step(collection, start=start)
        collection.fill(collection.get_open_round())
        step(collection, start=start)
        assert collected_specs == [grid_spec(12)]


class TestReportsPerRound:
    def test_the_target_follows_from_the_participation(self, collection: Collection) -> None:
        job_id = collection.submit(target_reports=20_000)
        assert work_to_the_end(collection) is ClaimOutcome.SUCCEEDED
        own = collection.rounds_of(job_id)
        half = 10_000 - 213  # three standard deviations of 70.7, and the cut to a whole number
        assert [r.target_reports for r in own] == [half] * 3
        assert [r["n_reports"] for r in collection.document(job_id)["rounds"]] == [half] * 3

    @pytest.mark.parametrize(("n", "outcome"), [(34, ClaimOutcome.FAILED), (35, ClaimOutcome.COLLECTING)])
    def test_the_minimum_follows_from_the_participation(
        self, collection: Collection, n: int, outcome: ClaimOutcome
    ) -> None:
        collection.submit(min_reports=100)
        step(collection)
        opened = collection.get_open_round()
        assert opened.min_reports == 35  # half of 100, less three standard deviations of 5
        collection.answer(opened, n)
        collection.close(opened.id)
        assert step(collection) is outcome

    def test_the_minimum_of_the_dataset_holds_for_each_round(self, database: Database) -> None:
        collection = Collection.create(database, min_reports=90)
        collection.submit(target_reports=100, min_reports=100)
        step(collection)
        opened = collection.get_open_round()
        assert (opened.target_reports, opened.min_reports) == (90, 90)


class TestTooFewReports:
    def collect(self, collection: Collection, n: int, *, closed_by_tenant: bool) -> str:
        job_id = collection.submit(target_reports=200, min_reports=100, seconds=60)
        step(collection, start=TWO_ROUNDS)
        opened = collection.get_open_round()
        collection.answer(opened, n)
        if closed_by_tenant:
            collection.close(opened.id)
        else:
            with collection.database.transaction() as session:
                assert rounds.close_due(session, now=opened.closes_at) == [job_id]
        return job_id

    @pytest.mark.parametrize(
        ("closed_by_tenant", "is_tallied", "state"),
        [(True, False, JobState.FAILED), (False, False, JobState.EXPIRED), (True, True, JobState.FAILED)],
        ids=["closed", "expired", "tallied before a crash"],
    )
    def test_ends_the_job_and_keeps_its_charges(
        self, collection: Collection, closed_by_tenant: bool, is_tallied: bool, state: JobState
    ) -> None:
        job_id = self.collect(collection, 99, closed_by_tenant=closed_by_tenant)
        (own,) = collection.rounds_of(job_id)
        if is_tallied:
            aggregate_without_job(collection.database, own.id)
        assert step(collection, start=TWO_ROUNDS) is ClaimOutcome.FAILED
        job = collection.job(job_id)
        assert (job.state, job.error_code) == (state, "too_few_reports")
        assert job.error_detail == (
            "the round is closed with 99 reports, at least 100 are needed: submit a new job with a longer "
            "collect_seconds, more devices or a lower minimum"
        )
        balance = collection.balance()
        assert (balance.charged_nano, balance.reserved_nano) == (own.epsilon_nano, 0)
        assert reports_in_log(collection.database, own.id) == 0

    def test_does_not_apply_at_the_minimum(self, collection: Collection) -> None:
        self.collect(collection, 100, closed_by_tenant=False)
        assert step(collection, start=TWO_ROUNDS) is ClaimOutcome.COLLECTING  # the second round

    def test_repeated_reports_do_not_count(self, collection: Collection) -> None:
        job_id = collection.submit(target_reports=120, min_reports=100)
        step(collection, start=TWO_ROUNDS)
        opened = collection.get_open_round()
        collection.answer(opened, 60)
        collection.answer(opened, 60)  # the same reports: 120 arrived, of 60 devices
        collection.close(opened.id)
        assert step(collection, start=TWO_ROUNDS) is ClaimOutcome.FAILED
        assert "closed with 60 reports, at least 100 are needed" in str(collection.job(job_id).error_detail)


class TestFailingJob:
    def test_has_the_code_of_the_plans_error(self, collection: Collection) -> None:
        job_id = collection.submit(algorithm={"type": "shifted_grid", "epsilon": 1.0, "cells": 99})
        assert run(collection.database, must_claim(collection.database)) is ClaimOutcome.FAILED
        job = collection.job(job_id)
        expected = (JobState.FAILED, "validation_failed", "cells must lie in the range 2 to 64")
        assert (job.state, job.error_code, job.error_detail) == expected
        balance = collection.balance()
        assert (balance.reserved_nano, balance.charged_nano) == (0, 0)

    def test_does_not_quote_an_unexpected_error(
        self, collection: Collection, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job_id = collection.submit()

        def start(params, features, expected, attributes=()) -> Plan:
            yield grid_spec()
            raise ValueError("the private value Zw9-4711")

        assert work_to_the_end(collection, start=start) is ClaimOutcome.FAILED
        job, logged = collection.job(job_id), "".join(capsys.readouterr())
        assert (job.state, job.error_code) == (JobState.FAILED, "internal_error")
        assert "ValueError" in logged
        assert "Zw9-4711" not in logged + str(job.error_detail)

    def test_stops_at_a_round_beyond_its_epsilon(self, collection: Collection) -> None:
        job_id = collection.submit(epsilon_nano=NANO // 4)
        start = Toy(draws=((0.0, 1.0), (0.5, 1.0)))
        assert work_to_the_end(collection, start=start) is ClaimOutcome.FAILED
        assert collection.job(job_id).error_code == "budget_exhausted"
        (own,) = collection.rounds_of(job_id)
        assert collection.balance().charged_nano == own.epsilon_nano

    def test_refuses_a_model_that_json_cannot_express(self, collection: Collection) -> None:
        job_id = collection.submit()

        def start(params, features, expected, attributes=()) -> Plan:
            model = yield from Toy(draws=())(params, features, expected)
            return replace(model, diagnostics={"x": float("nan")})

        assert step(collection, start=start) is ClaimOutcome.FAILED
        assert collection.job(job_id).error_code == "internal_error"

    def test_passes_a_memory_error_to_the_caller(self, collection: Collection) -> None:
        collection.submit()

        def start(params, features, expected, attributes=()) -> Plan:
            raise MemoryError

        with pytest.raises(MemoryError):
            step(collection, start=start)

    def test_opens_no_round_after_a_cancellation(self, collection: Collection) -> None:
        job_id = collection.submit()
        claimed = must_claim(collection.database)
        collection.cancel(job_id)
        assert run(collection.database, claimed, start=TOY) is ClaimOutcome.CANCELED
        assert collection.job(job_id).state == JobState.CANCELED
        assert collection.rounds_of(job_id) == []
        balance = collection.balance()
        assert (balance.reserved_nano, balance.charged_nano) == (0, 0)


WITHOUT_SCHEDULER = """
import sys
from models.database.engine import Database
from tests.workers.driving import TOY, must_claim
from workers.job_runner import run

database = Database(sys.argv[1])
outcome = run(database, must_claim(database), start=TOY)
loaded = [name for name in sys.modules if name.startswith("workers.distributed") or name in ("dask", "distributed")]
print(outcome.value, sorted(loaded))
"""


@pytest.mark.slow
def test_a_run_without_a_scheduler_loads_no_code_for_dask(collection: Collection, database_url: str) -> None:
    job_id = collection.submit()
    assert step(collection) is ClaimOutcome.COLLECTING
    collection.fill(collection.get_open_round())
    command = [sys.executable, "-c", WITHOUT_SCHEDULER, database_url]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stdout.splitlines()[-1] == "collecting []", process.stderr
    assert [each.state for each in collection.rounds_of(job_id)] == [RoundState.TALLIED, RoundState.OPEN]
