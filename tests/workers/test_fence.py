"""Claims that were overtaken, on both databases: whoever is stale writes nothing."""

import threading

import pytest
from sqlalchemy import func, select

from clustering.plan import Plan
from models import job as jobs
from models.job import Claim, JobState
from models.result import Result
from models.round import RoundState
from sfumato.accounting import NANO, cost
from tests.workers.collection import Collection
from tests.workers.driving import LEASE, TOY, claim, must_claim, reports_in_log, step
from tests.workers.toy import Toy
from workers.runner import Outcome, run


class TestFence:
    def overtaken(self, collection: Collection) -> tuple[Claim, Claim]:
        stale = must_claim(collection.database)
        return stale, must_claim(collection.database, later=2 * LEASE)

    def test_a_stale_claim_opens_no_round(self, collection: Collection) -> None:
        job_id = collection.submit()
        stale, _ = self.overtaken(collection)
        assert run(collection.database, stale, start=TOY) is Outcome.STALE
        assert collection.rounds_of(job_id) == []
        assert collection.posts() == []

    def test_a_stale_claim_stores_no_tally(self, collection: Collection) -> None:
        job_id = collection.submit()
        step(collection)
        asked = collection.open_round()
        assert asked is not None
        collection.fill(asked)
        stale, _ = self.overtaken(collection)
        assert run(collection.database, stale, start=TOY) is Outcome.STALE
        assert [r.state for r in collection.rounds_of(job_id)] == [RoundState.CLOSED]
        assert reports_in_log(collection.database, asked.id) == asked.target_reports

    def test_a_stale_claim_publishes_no_result_and_fails_nothing(self, collection: Collection) -> None:
        job_id = collection.submit()
        stale, held = self.overtaken(collection)
        assert run(collection.database, stale, start=Toy(draws=())) is Outcome.STALE
        broken = {"type": "shifted_grid"}

        def start(params, features, expected) -> Plan:
            raise ValueError(broken)

        assert run(collection.database, stale, start=start) is Outcome.STALE
        assert collection.job(job_id).state == JobState.RUNNING
        assert run(collection.database, held, start=Toy(draws=())) is Outcome.SUCCEEDED

    def test_a_claim_that_was_handed_back_is_void(self, collection: Collection) -> None:
        job_id = collection.submit()
        held = must_claim(collection.database)
        with collection.database.transaction() as session:
            jobs.hand_back(session, held, is_attempt=False, now=collection.database.clock())
        assert run(collection.database, held, start=TOY) is Outcome.STALE
        assert collection.job(job_id).attempts == 0
        assert step(collection) is Outcome.COLLECTING  # at once, without waiting for the lease

    @pytest.mark.parametrize("seed", range(3))
    def test_two_workers_racing_for_one_job_leave_one_result(self, collection: Collection, seed: int) -> None:
        job_id = collection.submit()
        while collection.job(job_id).state in (JobState.QUEUED, JobState.COLLECTING):
            # Both believe that they hold the job: the first one's lease lapsed in between.
            stale, held = self.overtaken(collection)
            outcomes: dict[Claim, Outcome] = {}
            barrier = threading.Barrier(2)

            def work(mine: Claim, barrier: threading.Barrier = barrier, outcomes: dict = outcomes) -> None:
                barrier.wait()
                outcomes[mine] = run(collection.database, mine, start=TOY)

            workers = [threading.Thread(target=work, args=(mine,)) for mine in (stale, held)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert outcomes[stale] is Outcome.STALE
            if outcomes[held] is Outcome.COLLECTING:
                asked = collection.open_round()
                assert asked is not None
                collection.fill(asked, seed=seed)
        own = [((r.spec.draw.lo, r.spec.draw.hi), r.epsilon_nano) for r in collection.rounds_of(job_id)]
        assert collection.job(job_id).state == JobState.SUCCEEDED
        assert len(own) == 3
        assert collection.balance().posted_nano == cost(own)
        with collection.database.reading() as session:
            assert session.scalar(select(func.count()).select_from(Result)) == 1

    def test_workers_that_claim_at_the_same_time_get_different_jobs(self, collection: Collection) -> None:
        job_ids = {collection.submit(epsilon_nano=NANO // 4) for _ in range(8)}
        claimed: list[str] = []
        barrier = threading.Barrier(4)

        def work() -> None:
            barrier.wait()
            while (held := claim(collection.database)) is not None:
                claimed.append(held.job_id)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(claimed) == sorted(job_ids)
