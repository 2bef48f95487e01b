"""Jobs over earlier rounds, and rounds that no job aggregates."""

import pytest

from clustering.rounds.plan import Plan
from models.collection import aggregation_leases
from models.database.engine import Database
from models.tables.jobs import Job, JobState
from models.tables.rounds import Round, RoundState
from sfumato.mechanisms import design
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, RoundSpec, ShiftedGridEncoding
from tests.workers.collection import Collection
from tests.workers.driving import LEASE, ONE_ROUND, TOY, grid_spec, must_claim, reports_in_log, step
from workers.job_runner import aggregate_without_job, run


def shifted_spec(cells: int = 4) -> RoundSpec:
    """Return a round of a shifted grid at epsilon 1."""
    encoding = ShiftedGridEncoding(1, cells=cells, shifts=2)
    return RoundSpec((Feature("x", 0.0, 10.0),), encoding, design("ss", encoding.n_symbols, NANO))


class TestEarlierRounds:
    def collect(
        self, collection: Collection, spec: RoundSpec | None = None, *, n: int = 150, seed: int = 0, minimum: int = 0
    ) -> str:
        """Open a standalone round, send n reports, and close it."""
        round_id = collection.open_alone(spec or grid_spec(), target_reports=10_000, min_reports=minimum)
        collection.answer(collection.get_open_round(), n, seed=seed)
        collection.close(round_id)
        return round_id

    def run_job(self, collection: Collection, round_ids: list[str], *, start: object = TOY) -> Job:
        job_id = collection.submit(round_ids=round_ids, epsilon_nano=2 * NANO)
        run(collection.database, must_claim(collection.database), start=start)
        return collection.job(job_id)

    def test_reach_the_plan_in_order_and_cost_nothing(self, collection: Collection) -> None:
        ids = [self.collect(collection, grid_spec(cells), n=100 + cells, seed=cells) for cells in (12, 14, 13)]
        charged = collection.balance().charged_nano
        received: list[object] = []

        def start(params, features, expected, attributes=()) -> Plan:
            received.append(expected)
            plan = TOY(params, features, expected)
            requested = next(plan)
            while True:
                collected = yield requested
                received.append((collected.spec, collected.tally.n_reports))
                try:
                    requested = plan.send(collected)
                except StopIteration as done:
                    return done.value

        job = self.run_job(collection, ids, start=start)
        assert job.state == JobState.SUCCEEDED
        assert received == [339, (grid_spec(12), 112), (grid_spec(14), 114), (grid_spec(13), 113)]
        document = collection.document(job.id)
        assert [r["id"] for r in document["rounds"]] == ids
        assert document["epsilon_nano"] == charged == collection.balance().charged_nano
        assert collection.balance().reserved_nano == 0

    @pytest.mark.parametrize("n", [1, 150])
    def test_give_the_same_result_again(self, collection: Collection, n: int) -> None:
        round_id = self.collect(collection, n=n)
        documents = [collection.document(self.run_job(collection, [round_id], start=ONE_ROUND).id) for _ in range(2)]
        assert documents[0] == documents[1]
        assert documents[0]["rounds"][0]["n_reports"] == n

    @pytest.mark.parametrize("n_rounds", [2, 4])
    def test_of_another_number_are_refused(self, collection: Collection, n_rounds: int) -> None:
        job = self.run_job(collection, [self.collect(collection, seed=i) for i in range(n_rounds)])
        assert (job.state, job.error_code) == (JobState.FAILED, "validation_failed")
        assert f"names {n_rounds} rounds" in str(job.error_detail)

    def test_of_another_encoding_are_refused(self, collection: Collection) -> None:
        encoding = ShiftedGridEncoding(1, cells=4, shifts=2)
        spec = RoundSpec((Feature("x", 0.0, 10.0),), encoding, design("ss", encoding.n_symbols, NANO // 4))
        job = self.run_job(collection, [self.collect(collection, spec)])
        assert (job.state, job.error_code) == (JobState.FAILED, "validation_failed")
        assert "has the encoding shifted_grid, but this algorithm needs grid" in str(job.error_detail)

    def test_of_one_shifted_grid_are_pooled(self, collection: Collection) -> None:
        """Three rounds with one grid give the map of all reports, and each costs the epsilon of the algorithm."""
        ids = [self.collect(collection, shifted_spec(), n=400, seed=seed) for seed in range(3)]
        algorithm = {"type": "shifted_grid", "epsilon": 1.0, "clusters": 2, "cells": 4}
        job_id = collection.submit(round_ids=ids, epsilon_nano=NANO, algorithm=algorithm)
        run(collection.database, must_claim(collection.database))
        document = collection.document(job_id)
        assert [each["id"] for each in document["rounds"]] == ids
        assert document["epsilon_nano"] == 3 * NANO
        assert document["model"]["diagnostics"]["n_reports"] == 1200

    def test_of_two_shifted_grids_are_refused(self, collection: Collection) -> None:
        ids = [self.collect(collection, shifted_spec(cells), seed=cells) for cells in (4, 5)]
        algorithm = {"type": "shifted_grid", "epsilon": 1.0, "clusters": 2, "cells": 4}
        job_id = collection.submit(round_ids=ids, epsilon_nano=NANO, algorithm=algorithm)
        run(collection.database, must_claim(collection.database))
        job = collection.job(job_id)
        assert job.state == JobState.FAILED
        assert "same encoding and mechanism" in str(job.error_detail)

    def test_with_too_few_reports_are_refused(self, collection: Collection) -> None:
        job = self.run_job(collection, [self.collect(collection, n=9, minimum=10)])
        assert (job.state, job.error_code) == (JobState.FAILED, "too_few_reports")


class TestAggregationWithoutJob:
    def claim_aggregation(self, database: Database, *, later: int = 0) -> str | None:
        with database.transaction() as session:
            return aggregation_leases.claim_aggregation(
                session, now=database.clock() + later, lease_microseconds=LEASE, max_attempts=5
            )

    def test_tallies_a_standalone_round_once(self, collection: Collection) -> None:
        database = collection.database
        round_id = collection.open_alone(grid_spec(), target_reports=100)
        assert self.claim_aggregation(database) is None  # still open
        collection.answer(collection.get_open_round(), 100)
        assert self.claim_aggregation(database) == round_id
        stored = []
        for _ in range(2):
            aggregate_without_job(database, round_id)
            with database.reading() as session:
                tallied = session.get_one(Round, round_id)
                stored.append((tallied.state, tallied.n_reports, tallied.tally))
        assert stored[0] == stored[1]
        assert stored[0][:2] == (RoundState.TALLIED, 100)
        assert reports_in_log(database, round_id) == 0
        assert self.claim_aggregation(database, later=2 * LEASE) is None

    def test_tallies_and_scrubs_the_round_of_a_canceled_job(self, collection: Collection) -> None:
        job_id = collection.submit()
        step(collection)
        opened = collection.get_open_round()
        collection.answer(opened, 50)
        assert self.claim_aggregation(collection.database) is None  # the worker of the job aggregates it
        collection.cancel(job_id)
        assert self.claim_aggregation(collection.database) == opened.id
        aggregate_without_job(collection.database, opened.id)
        with collection.database.reading() as session:
            assert session.get_one(Round, opened.id).n_reports == 50
        assert reports_in_log(collection.database, opened.id) == 0
