"""The runner on both databases: rounds, costs, results, replays, and how a job ends."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from clustering.plan import Plan
from models import job as jobs
from models import round as rounds
from models.db import Database, canonical_json
from models.job import JobState
from models.round import RoundState
from sfumato.accounting import NANO, cost
from sfumato.cluster_model import model_from_wire
from sfumato.specs import RoundSpec
from tests.workers.collection import ALGORITHM, Collection
from tests.workers.driving import LEASE, TOY, claim, grid_spec, must_claim, reports_in_log, step, work_to_the_end
from tests.workers.toy import THREE_ROUNDS, Toy
from workers.runner import Outcome, fold_alone, run

EVERYBODY = Toy(draws=((0.0, 1.0), (0.0, 1.0)))  # two rounds that every device answers


class Dying(Database):
    """The database of a process that dies at its n-th write, right before the commit or right after it."""

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


class TestAPlanToItsResult:
    def test_it_ends_with_one_model_and_the_rounds_it_used(self, collection: Collection) -> None:
        job_id = collection.submit()
        assert work_to_the_end(collection) is Outcome.SUCCEEDED
        job, document, own = collection.job(job_id), collection.document(job_id), collection.rounds_of(job_id)
        assert (job.state, job.lease_until, job.error_code) == (JobState.SUCCEEDED, None, None)
        assert [r.state for r in own] == [RoundState.TALLIED] * 3
        assert document["algorithm"] == ALGORITHM
        assert document["rounds"] == [
            {"id": r.id, "index": i, "n_reports": r.target_reports, "epsilon_nano": r.epsilon_nano}
            for i, r in enumerate(own)
        ]
        assert model_from_wire(document["model"]).n_clusters == 4

    @pytest.mark.parametrize(
        "draws",
        [THREE_ROUNDS, ((0.0, 0.5), (0.5, 1.0)), ((0.0, 1.0), (0.0, 1.0)), ((0.1, 0.6), (0.5, 0.9), (0.55, 0.58))],
        ids=["mixed", "disjoint", "in sequence", "nested"],
    )
    def test_posts_add_up_to_what_accounting_says(self, collection: Collection, draws: tuple) -> None:
        job_id = collection.submit()
        work_to_the_end(collection, start=Toy(draws=draws))
        own = [((r.spec.draw.lo, r.spec.draw.hi), r.epsilon_nano) for r in collection.rounds_of(job_id)]
        assert len(own) == len(draws)
        increases = [cost(own[: i + 1]) - cost(own[:i]) for i in range(len(own))]
        assert collection.posts() == increases
        balance = collection.balance()
        assert (balance.posted_nano, balance.reserved_nano) == (cost(own), 0)
        assert collection.document(job_id)["epsilon_nano"] == cost(own)

    def test_rounds_in_parallel_cost_as_one(self, collection: Collection) -> None:
        collection.submit()
        work_to_the_end(collection, start=Toy(draws=((0.0, 0.5), (0.5, 1.0))))
        assert collection.posts()[1] <= 2  # the cells differ, so the realised epsilon may by a rounding
        assert collection.balance().posted_nano <= NANO // 4

    def test_a_round_is_posted_before_any_device_can_see_it(self, collection: Collection) -> None:
        collection.submit()
        assert step(collection) is Outcome.COLLECTING
        asked = collection.open_round()
        assert asked is not None
        assert collection.posts() == [asked.epsilon_nano]

    def test_reports_are_scrubbed_with_their_tally(self, collection: Collection) -> None:
        job_id = collection.submit()
        work_to_the_end(collection)
        assert [reports_in_log(collection.database, r.id) for r in collection.rounds_of(job_id)] == [0, 0, 0]

    @pytest.mark.parametrize("keep", [True])
    def test_a_dataset_may_keep_them(self, database: Database, keep: bool) -> None:
        collection = Collection.create(database, keep_reports=keep)
        job_id = collection.submit()
        work_to_the_end(collection)
        own = collection.rounds_of(job_id)
        assert [reports_in_log(database, r.id) for r in own] == [r.target_reports for r in own]


class TestReplay:
    @pytest.mark.parametrize("after_commit", [False, True], ids=["before", "after"])
    @pytest.mark.slow
    @pytest.mark.ci
    def test_a_worker_that_dies_at_any_commit_changes_no_byte(self, collection: Collection, after_commit: bool) -> None:
        whole = collection.submit()
        work_to_the_end(collection)
        expected, price = canonical_json(collection.document(whole)["model"]), collection.balance().posted_nano
        for nth in range(7):  # three rounds opened, three tallies stored, one result
            job_id = collection.submit()
            dying, later = Dying(collection.database, nth, after_commit), 0
            while not collection.job(job_id).is_final:
                later += 2 * LEASE  # whatever was claimed has lapsed
                held = claim(collection.database, later=later)
                if held is None:
                    asked = collection.open_round()
                    assert asked is not None
                    collection.fill(asked)
                else:
                    with suppress(OperationalError):
                        run(dying, held, start=TOY)
            assert dying.has_died
            assert canonical_json(collection.document(job_id)["model"]) == expected
            assert len(collection.rounds_of(job_id)) == 3
            assert collection.balance().posted_nano == (2 + nth) * price

    def test_a_plan_goes_on_from_the_spec_as_published(self, collection: Collection) -> None:
        collection.submit()
        seen: list[RoundSpec] = []

        def start(params, features, expected) -> Plan:
            wanted = grid_spec(13 if seen else 12)  # as if another machine computed it
            collected = yield wanted
            seen.append(collected.spec)
            return (yield from TOY(params, features, expected))

        step(collection, start=start)
        asked = collection.open_round()
        assert asked is not None
        collection.fill(asked)
        seen.append(grid_spec())
        step(collection, start=start)
        assert seen[1] == grid_spec(12)

    def test_the_plan_is_told_the_reports_it_may_expect(self, collection: Collection) -> None:
        collection.submit(target_reports=321)
        told: list[int] = []

        def start(params, features, expected) -> Plan:
            told.append(expected)
            return TOY(params, features, expected)

        step(collection, start=start)
        assert told == [321]


class TestSharesOfTheCollection:
    def test_a_round_waits_for_the_devices_its_draws_leave_it(self, collection: Collection) -> None:
        job_id = collection.submit(target_reports=20_000)
        assert work_to_the_end(collection) is Outcome.SUCCEEDED
        own = collection.rounds_of(job_id)
        half = 10_000 - 213  # three standard deviations of 70.7, and the cut to a whole number
        assert [r.target_reports for r in own] == [half] * 3
        assert [r["n_reports"] for r in collection.document(job_id)["rounds"]] == [half] * 3

    @pytest.mark.parametrize(("n", "outcome"), [(34, Outcome.FAILED), (35, Outcome.COLLECTING)])
    def test_it_needs_its_share_of_the_minimum(self, collection: Collection, n: int, outcome: Outcome) -> None:
        collection.submit(min_reports=100)
        step(collection)
        asked = collection.open_round()
        assert asked is not None
        assert asked.min_reports == 35  # half of 100, less three standard deviations of 5
        collection.answer(asked, n)
        collection.close(asked.id)
        assert step(collection) is outcome

    def test_what_the_dataset_needs_is_not_shared_out(self, database: Database) -> None:
        collection = Collection.create(database, min_reports=90)
        collection.submit(target_reports=100, min_reports=100)
        step(collection)
        asked = collection.open_round()
        assert asked is not None
        assert (asked.target_reports, asked.min_reports) == (90, 90)


class TestTooFewReports:
    def collect(self, collection: Collection, n: int, *, by_hand: bool) -> str:
        job_id = collection.submit(target_reports=200, min_reports=100, seconds=60)
        step(collection, start=EVERYBODY)
        asked = collection.open_round()
        assert asked is not None
        collection.answer(asked, n)
        if by_hand:
            collection.close(asked.id)
        else:
            with collection.database.transaction() as session:
                assert rounds.close_due(session, now=asked.closes_at) == [job_id]
        return job_id

    @pytest.mark.parametrize(("by_hand", "state"), [(True, JobState.FAILED), (False, JobState.EXPIRED)])
    def test_the_job_ends_and_what_was_posted_stays(
        self, collection: Collection, by_hand: bool, state: JobState
    ) -> None:
        job_id = self.collect(collection, 99, by_hand=by_hand)
        assert step(collection, start=EVERYBODY) is Outcome.FAILED
        job, (asked,) = collection.job(job_id), collection.rounds_of(job_id)
        assert (job.state, job.error_code) == (state, "too_few_reports")
        assert job.error_detail == "99 reports arrived, at least 100 are needed"
        balance = collection.balance()
        assert (balance.posted_nano, balance.reserved_nano) == (asked.epsilon_nano, 0)
        assert reports_in_log(collection.database, asked.id) == 0

    def test_the_minimum_is_enough(self, collection: Collection) -> None:
        self.collect(collection, 100, by_hand=False)
        assert step(collection, start=EVERYBODY) is Outcome.COLLECTING  # the second round

    def test_repeats_do_not_count(self, collection: Collection) -> None:
        job_id = collection.submit(target_reports=120, min_reports=100)
        step(collection, start=EVERYBODY)
        asked = collection.open_round()
        assert asked is not None
        collection.answer(asked, 60)
        collection.answer(asked, 60)  # the very same reports: the round is full, and holds 60
        assert step(collection, start=EVERYBODY) is Outcome.FAILED
        assert collection.job(job_id).error_detail == "60 reports arrived, at least 100 are needed"

    def test_it_holds_for_a_tally_that_was_stored_before_a_crash(self, collection: Collection) -> None:
        job_id = self.collect(collection, 99, by_hand=True)
        fold_alone(collection.database, collection.rounds_of(job_id)[0].id)
        assert step(collection, start=EVERYBODY) is Outcome.FAILED
        assert collection.job(job_id).error_code == "too_few_reports"


class TestWhatEndsAJob:
    def failing(self, error: Exception):
        def start(params, features, expected) -> Plan:
            yield grid_spec()
            raise error

        return start

    def test_a_plan_s_own_error_carries_its_code(self, collection: Collection) -> None:
        job_id = collection.submit(algorithm={"type": "shifted_grid", "epsilon": 1.0, "cells": 99})
        assert run(collection.database, must_claim(collection.database)) is Outcome.FAILED
        job = collection.job(job_id)
        assert (job.state, job.error_code, job.error_detail) == (
            JobState.FAILED,
            "validation_failed",
            "cells lies in 2..64",
        )
        balance = collection.balance()
        assert (balance.reserved_nano, balance.posted_nano) == (0, 0)

    def test_an_unexpected_error_is_not_quoted(
        self, collection: Collection, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job_id = collection.submit()
        start = self.failing(ValueError("the private value Zw9-4711"))
        assert work_to_the_end(collection, start=start) is Outcome.FAILED
        job, logged = collection.job(job_id), "".join(capsys.readouterr())
        assert (job.state, job.error_code) == (JobState.FAILED, "internal_error")
        assert "ValueError" in logged
        assert "Zw9-4711" not in logged + str(job.error_detail)

    def test_a_plan_that_asks_for_more_than_was_declared_stops_there(self, collection: Collection) -> None:
        job_id = collection.submit(epsilon_nano=NANO // 4)
        start = Toy(draws=((0.0, 1.0), (0.5, 1.0)))
        assert work_to_the_end(collection, start=start) is Outcome.FAILED
        assert collection.job(job_id).error_code == "budget_exhausted"
        assert len(collection.rounds_of(job_id)) == 1
        assert collection.balance().posted_nano == collection.rounds_of(job_id)[0].epsilon_nano

    def test_a_model_that_is_no_json_is_an_internal_error(self, collection: Collection) -> None:
        job_id = collection.submit()

        def start(params, features, expected) -> Plan:
            model = yield from Toy(draws=())(params, features, expected)
            return replace(model, diagnostics={"x": float("nan")})

        assert step(collection, start=start) is Outcome.FAILED
        assert collection.job(job_id).error_code == "internal_error"

    def test_no_memory_is_left_to_the_caller(self, collection: Collection) -> None:
        collection.submit()

        def start(params, features, expected) -> Plan:
            raise MemoryError

        with pytest.raises(MemoryError):
            step(collection, start=start)

    def test_a_cancelled_job_opens_no_further_round(self, collection: Collection) -> None:
        job_id = collection.submit()
        held = must_claim(collection.database)
        with collection.database.transaction() as session:
            jobs.cancel(session, collection.caller, job_id, now=collection.database.clock())
        assert run(collection.database, held, start=TOY) is Outcome.CANCELED
        assert collection.job(job_id).state == JobState.CANCELED
        assert collection.rounds_of(job_id) == []
        balance = collection.balance()
        assert (balance.reserved_nano, balance.posted_nano) == (0, 0)
