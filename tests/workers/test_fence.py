"""A worker with a stale claim writes nothing."""

import pytest
from sqlalchemy import func, select

from clustering.rounds.plan import Plan
from models.jobs import lifecycle
from models.jobs.claims import Claim
from models.tables.jobs import JobState, Result
from models.tables.rounds import RoundState
from tests.databases import on_both_databases
from tests.models.world import together
from tests.workers.collection import Collection
from tests.workers.driving import LEASE, TOY, cost_of_rounds, must_claim, reports_in_log, step
from tests.workers.toy import Toy
from workers.job_runner import ClaimOutcome, run


@on_both_databases
class TestStaleClaim:
    def overtake(self, collection: Collection) -> tuple[Claim, Claim]:
        """Return a stale claim, and the claim of the worker that took over the job."""
        stale = must_claim(collection.database)
        return stale, must_claim(collection.database, later=2 * LEASE)

    def test_opens_no_round(self, collection: Collection) -> None:
        job_id = collection.submit()
        stale, _ = self.overtake(collection)
        assert run(collection.database, stale, start=TOY) is ClaimOutcome.STALE
        assert collection.rounds_of(job_id) == []
        assert collection.charges() == []

    def test_stores_no_tally(self, collection: Collection) -> None:
        job_id = collection.submit()
        step(collection)
        opened = collection.get_open_round()
        collection.fill(opened)
        stale, _ = self.overtake(collection)
        assert run(collection.database, stale, start=TOY) is ClaimOutcome.STALE
        assert [r.state for r in collection.rounds_of(job_id)] == [RoundState.CLOSED]
        assert reports_in_log(collection.database, opened.id) == opened.target_reports

    def test_stores_no_result_and_fails_nothing(self, collection: Collection) -> None:
        job_id = collection.submit()
        stale, current = self.overtake(collection)
        assert run(collection.database, stale, start=Toy(draws=())) is ClaimOutcome.STALE

        def fail(params, features, expected, attributes=()) -> Plan:
            raise ValueError

        assert run(collection.database, stale, start=fail) is ClaimOutcome.STALE
        assert collection.job(job_id).state == JobState.RUNNING
        assert run(collection.database, current, start=Toy(draws=())) is ClaimOutcome.SUCCEEDED

    def test_is_a_claim_that_was_requeued(self, collection: Collection) -> None:
        job_id = collection.submit()
        claimed = must_claim(collection.database)
        with collection.database.transaction() as session:
            lifecycle.requeue(session, claimed, is_attempt=False, now=collection.database.clock())
        assert run(collection.database, claimed, start=TOY) is ClaimOutcome.STALE
        assert collection.job(job_id).attempts == 0
        assert step(collection) is ClaimOutcome.COLLECTING  # without waiting for the lease

    @pytest.mark.parametrize("seed", range(3))
    def test_loses_the_race_for_one_job(self, collection: Collection, seed: int) -> None:
        job_id = collection.submit()
        while collection.job(job_id).state in (JobState.QUEUED, JobState.COLLECTING):
            claims = self.overtake(collection)
            outcomes = together([lambda each=each: run(collection.database, each, start=TOY) for each in claims])
            assert outcomes[0] is ClaimOutcome.STALE
            if outcomes[1] is ClaimOutcome.COLLECTING:
                collection.fill(collection.get_open_round(), seed=seed)
        own = collection.rounds_of(job_id)
        assert collection.job(job_id).state == JobState.SUCCEEDED
        assert len(own) == 3
        assert collection.balance().charged_nano == cost_of_rounds(own)
        with collection.database.reading() as session:
            assert session.scalar(select(func.count()).select_from(Result)) == 1
