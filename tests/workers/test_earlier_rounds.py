"""Jobs over rounds collected before, and rounds that no job folds."""

import pytest

from clustering.plan import Plan
from models import fold as folds
from models import job as jobs
from models import report
from models.db import Database
from models.job import JobState
from models.round import Round, RoundState
from sfumato.accounting import NANO
from sfumato.mechanisms import design
from sfumato.specs import Draw, Feature, RoundSpec, ShiftedGridEncoding
from tests.workers.collection import Collection
from tests.workers.driving import LEASE, TOY, grid_spec, must_claim, reports_in_log, step
from tests.workers.toy import Toy
from workers.runner import fold_alone, run


class TestEarlierRounds:
    def collected(self, collection: Collection, spec: RoundSpec, *, n: int = 150, seed: int = 0, low: int = 0) -> str:
        round_id = collection.open_alone(spec, target_reports=10_000, min_reports=low)
        asked = collection.open_round()
        assert asked is not None
        assert asked.id == round_id
        collection.answer(asked, n, seed=seed)
        collection.close(round_id)
        return round_id

    def over(self, collection: Collection, round_ids: list[str], *, start: object = TOY) -> str:
        job_id = collection.submit(round_ids=round_ids, epsilon_nano=2 * NANO)
        run(collection.database, must_claim(collection.database), start=start)
        return job_id

    def test_they_answer_in_order_and_cost_nothing_more(self, collection: Collection) -> None:
        ids = [self.collected(collection, grid_spec(cells), n=100 + cells, seed=cells) for cells in (12, 14, 13)]
        posted = collection.balance().posted_nano
        told: list[object] = []

        def start(params, features, expected) -> Plan:
            told.append(expected)
            plan = TOY(params, features, expected)
            wanted = next(plan)
            while True:
                collected = yield wanted
                told.append((collected.spec, collected.tally.n_reports))
                try:
                    wanted = plan.send(collected)
                except StopIteration as done:
                    return done.value

        job_id = self.over(collection, ids, start=start)
        assert collection.job(job_id).state == JobState.SUCCEEDED
        assert told == [339, (grid_spec(12), 112), (grid_spec(14), 114), (grid_spec(13), 113)]
        document = collection.document(job_id)
        assert [r["id"] for r in document["rounds"]] == ids
        assert document["epsilon_nano"] == posted == collection.balance().posted_nano
        assert collection.balance().reserved_nano == 0

    def test_one_that_a_worker_has_tallied_before_serves_as_well(self, collection: Collection) -> None:
        round_id = self.collected(collection, grid_spec())
        one = Toy(draws=((0.0, 1.0),))
        first = self.over(collection, [round_id], start=one)
        second = self.over(collection, [round_id], start=one)
        assert collection.document(first) == collection.document(second)

    @pytest.mark.parametrize("n_rounds", [2, 4])
    def test_too_few_or_too_many_are_refused(self, collection: Collection, n_rounds: int) -> None:
        ids = [self.collected(collection, grid_spec(), seed=i) for i in range(n_rounds)]
        job = collection.job(self.over(collection, ids))
        assert (job.state, job.error_code) == (JobState.FAILED, "validation_failed")
        assert f"names {n_rounds} rounds" in str(job.error_detail)

    def test_one_of_another_encoding_is_refused(self, collection: Collection) -> None:
        encoding = ShiftedGridEncoding(1, cells=4, shifts=2)
        spec = RoundSpec((Feature("x", 0.0, 10.0),), encoding, design("ss", encoding.n_symbols, NANO // 4), Draw())
        job = collection.job(self.over(collection, [self.collected(collection, spec)]))
        assert (job.state, job.error_code) == (JobState.FAILED, "validation_failed")
        assert "was collected through shifted_grid, this algorithm needs grid" in str(job.error_detail)

    def test_one_with_too_few_reports_is_refused(self, collection: Collection) -> None:
        job = collection.job(self.over(collection, [self.collected(collection, grid_spec(), n=9, low=10)]))
        assert (job.state, job.error_code) == (JobState.FAILED, "too_few_reports")

    def test_one_that_nobody_answered_reaches_the_plan(self, collection: Collection) -> None:
        round_id = self.collected(collection, grid_spec(), n=0)
        job_id = self.over(collection, [round_id], start=Toy(draws=((0.0, 1.0),)))
        assert collection.document(job_id)["rounds"][0]["n_reports"] == 0


class TestFoldsOfNoJob:
    def claim_fold(self, database: Database, *, later: int = 0, max_attempts: int = 5) -> str | None:
        with database.transaction() as session:
            return folds.claim_fold(
                session, now=database.clock() + later, lease_microseconds=LEASE, max_attempts=max_attempts
            )

    def test_a_round_of_its_own_is_tallied_once(self, collection: Collection) -> None:
        database = collection.database
        round_id = collection.open_alone(grid_spec(), target_reports=100)
        assert self.claim_fold(database) is None  # still open
        asked = collection.open_round()
        assert asked is not None
        collection.answer(asked, 100)
        assert self.claim_fold(database) == round_id
        assert self.claim_fold(database) is None  # somebody is at it
        assert self.claim_fold(database, later=2 * LEASE) == round_id  # and was lost
        fold_alone(database, round_id)
        with database.reading() as session:
            tallied = session.get_one(Round, round_id)
            tally = tallied.tally
        fold_alone(database, round_id)
        with database.reading() as session:
            again = session.get_one(Round, round_id)
            assert (again.state, again.n_reports, again.tally) == (RoundState.TALLIED, 100, tally)
        assert reports_in_log(database, round_id) == 0
        assert self.claim_fold(database, later=4 * LEASE) is None

    def test_a_fold_that_is_kept_is_not_taken_and_one_given_up_is(self, collection: Collection) -> None:
        database = collection.database
        round_id = collection.open_alone(grid_spec())
        collection.close(round_id)
        assert self.claim_fold(database) == round_id
        for until, expected in ((database.clock() + 3 * LEASE, None), (database.clock(), round_id)):
            with database.transaction() as session:
                folds.keep_fold(session, round_id, until=until)
            assert self.claim_fold(database, later=LEASE) == expected

    def test_what_a_cancelled_job_collected_is_tallied_and_scrubbed(self, collection: Collection) -> None:
        database = collection.database
        job_id = collection.submit()
        step(collection)
        asked = collection.open_round()
        assert asked is not None
        collection.answer(asked, 50)
        assert self.claim_fold(database) is None  # the job's own worker will fold it
        with database.transaction() as session:
            jobs.cancel(session, collection.caller, job_id, now=database.clock())
        assert self.claim_fold(database) == asked.id
        fold_alone(database, asked.id)
        with database.reading() as session:
            assert session.get_one(Round, asked.id).n_reports == 50
            assert list(report.batches(session, asked.id)) == []
