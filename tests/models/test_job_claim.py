"""Claims on jobs: one holder at a time, and transactions that do not wait in a circle."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Select, text
from sqlalchemy.orm import Session

from models import job, ledger
from models import round as rounds
from models.db import SECOND
from models.errors import NotFound, RoundClosed, StaleFence
from models.job import Claim, Job, JobState
from models.ledger import Balance, LedgerHead
from models.round import Collect, RoundState
from sfumato.accounting import NANO
from tests.models.world import (
    LEASE,
    NOW,
    Thread,
    World,
    cancel,
    cost_of,
    spec,
    succeed,
    together,
    wait_until_blocked,
)

POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
COST = cost_of(spec())


class TestClaiming:
    def test_takes_the_oldest_first(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = []
        for _ in range(4):
            ids.append(world.submit(within).id)
            time.sleep(0.002)  # identifiers sort by the millisecond

        assert [world.claimed().job_id for _ in range(4)] == ids
        assert world.claim() is None

    def test_passes_a_job_that_waits_for_devices(self, world: World) -> None:
        within = world.new_dataset()
        world.submit(within)
        world.open_for(world.claimed())
        time.sleep(0.002)
        second = world.submit(within)

        assert world.claimed().job_id == second.id

    def test_takes_a_job_whose_lease_lapsed_and_not_before(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        world.claimed()

        world.now += LEASE - 1
        early = world.claim()
        world.now += 1
        late = world.claim()

        assert (early, late) == (None, Claim(queued.id, 2))
        assert world.job(queued.id).attempts == 2

    def test_a_renewed_lease_counts_from_its_renewal(self, world: World) -> None:
        world.submit(world.new_dataset())
        held = world.claimed()
        world.now += LEASE - 1
        with world.database.transaction() as session:
            job.renew(session, held, now=world.now, lease_microseconds=LEASE)

        world.now += LEASE - 1

        assert world.claim() is None

    def test_after_so_many_lost_workers_the_job_fails_and_the_next_is_taken(self, world: World) -> None:
        within = world.new_dataset()
        doomed = world.submit(within)
        for _ in range(3):
            assert world.claimed().job_id == doomed.id
            world.now += LEASE
        sound = world.submit(within)

        held = world.claim(max_attempts=3)

        found = world.job(doomed.id)
        assert (found.state, found.error_code) == (JobState.FAILED, job.WORKER_LOST)
        assert held == Claim(sound.id, 1)
        assert world.balance(within.id).reserved_nano == NANO

    def test_every_lost_job_ends_in_the_end(self, world: World) -> None:
        within = world.new_dataset()
        lost = [world.submit(within).id for _ in range(3)]
        for _ in lost:
            world.claimed()
        world.now += LEASE

        taken = [world.claim(max_attempts=1) for _ in range(3)]

        assert taken == [None, None, None]
        assert {world.job(job_id).state for job_id in lost} == {JobState.FAILED}
        assert world.balance(within.id).reserved_nano == 0

    def test_an_idle_worker_sees_without_a_lock_whether_there_is_something_to_claim(self, world: World) -> None:
        def sees_and_takes() -> tuple[bool, bool]:
            with world.database.reading() as session:
                seen = job.is_any_waiting(session, now=world.now)
            return seen, world.claim() is not None

        found = [sees_and_takes()]
        world.submit(world.new_dataset(), epsilon_nano=2 * NANO)
        found += [sees_and_takes(), sees_and_takes()]
        world.now += LEASE
        found += [sees_and_takes()]
        held = Claim(world.submit(world.new_dataset()).id, 1)
        found += [sees_and_takes(), sees_and_takes()]
        opened = world.open_for(held)
        found += [sees_and_takes()]
        world.close(opened.id)
        found += [sees_and_takes()]

        assert [seen for seen, _ in found] == [taken for _, taken in found]
        assert [seen for seen, _ in found] == [False, True, False, True, True, False, False, True]

    def test_a_job_that_got_on_has_its_attempts_anew(self, world: World) -> None:
        queued = world.submit(world.new_dataset(), epsilon_nano=2 * NANO)
        world.claimed()
        world.now += LEASE
        world.close(world.open_for(world.claimed()).id)

        assert world.claim(max_attempts=1) == Claim(queued.id, 3)

    def test_a_job_handed_back_is_free_at_once(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        counts = []
        for is_attempt in (True, False):
            held = world.claimed()
            with world.database.transaction() as session:
                job.hand_back(session, held, is_attempt=is_attempt, now=world.now)
            counts.append(world.job(queued.id).attempts)

        assert counts == [1, 1]
        assert world.claimed().job_id == queued.id

    def test_of_many_at_once_no_two_hold_one_fence(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=1000 * NANO)
        ids = [world.submit(within).id for _ in range(6)]

        def work() -> list[Claim]:
            held = []
            for _ in range(8):
                with world.database.transaction() as session:  # every lease has lapsed by the next claim
                    claim = job.claim(session, now=NOW, lease_microseconds=0, max_attempts=10_000)
                if claim is not None:
                    held.append(claim)
            return held

        held = [claim for taken in together([work] * 6) for claim in taken]

        assert len(held) == len(set(held)) >= 8
        for job_id in ids:
            fences = sorted(claim.fence for claim in held if claim.job_id == job_id)
            assert fences == list(range(1, world.job(job_id).fence + 1))

    def test_of_many_at_once_each_queued_job_goes_to_one(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=1000 * NANO)
        ids = {world.submit(within).id for _ in range(5)}

        taken = [claim for claim in together([world.claim] * 12) if claim is not None]

        assert len(taken) == len({claim.job_id for claim in taken})
        assert {claim.job_id for claim in taken} <= ids
        assert {claim.fence for claim in taken} == {1}

    @POSTGRES
    def test_passes_a_job_whose_row_somebody_holds(self, world: World) -> None:
        within = world.new_dataset()
        first = world.submit(within)
        time.sleep(0.002)
        second = world.submit(within)

        with world.database.transaction() as session:
            session.get_one(Job, first.id, with_for_update=True)
            assert world.claimed().job_id == second.id

    @POSTGRES
    def test_does_not_take_a_job_that_moved_on_to_another_round_meanwhile(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A statement sees the rounds as they were at its start, but the job's row as it is once it is locked."""
        queued = world.submit(world.new_dataset(), epsilon_nano=2 * NANO)
        world.close(world.open_for(world.claimed(), lo=0, hi=0.5).id)
        lapsed = world.claimed()
        world.now += LEASE
        oldest, calls = job._oldest, []

        def slow(session: Session, query: Select[Job], values: dict[str, Any]) -> Job | None:
            calls.append(threading.current_thread())
            if isinstance(calls[-1], Thread) and calls.count(calls[-1]) == 2:  # the second looks for a job to take
                query = query.where(text("(SELECT true FROM pg_advisory_xact_lock(1))"))
            return oldest(session, query, values)

        monkeypatch.setattr(job, "_oldest", slow)
        with world.database.transaction() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(1)"))
            claiming = Thread(world.claim)
            wait_until_blocked(world.database)
            opened = world.open_for(lapsed, lo=0.5, hi=1)  # nobody has claimed the job from it yet

        assert claiming.outcome() is None
        found = world.job(queued.id)
        assert (found.state, found.fence, world.round(opened.id).state) == (JobState.COLLECTING, 2, RoundState.OPEN)


class TestLocks:
    """Transactions that meet wait for one another in one order, so none is ended by the database."""

    @POSTGRES
    def test_ending_a_datasets_jobs_and_a_worker_that_opens_a_round(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        world.submit(within)
        time.sleep(0.002)
        world.submit(within)
        first, second = world.claimed(), world.claimed()
        world.open_for(first)

        def end() -> None:
            with world.database.transaction() as session:
                job.cancel_all(session, within.id, now=NOW)

        with world.database.transaction() as session:
            held = job.held_job(session, second)
            ending = Thread(end)
            wait_until_blocked(world.database)
            rounds.open_for_job(session, within, spec(), held.collect, job_id=held.id, actor=held.created_by, now=NOW)
            job.suspend(session, second, now=NOW)
        ending.outcome()

        assert [world.job(held.job_id).state for held in (first, second)] == [JobState.CANCELED] * 2
        with world.database.reading() as session:
            assert {r.state for r in rounds.page(session, within.id, after="", limit=10)} == {RoundState.CLOSED}
        assert world.balance(within.id) == Balance(100 * NANO, 0, 2 * COST)

    @POSTGRES
    def test_two_claims_that_end_lost_jobs_of_two_datasets(self, world: World) -> None:
        within = [world.new_dataset() for _ in range(2)]
        for each in (within[0], within[1], within[1], within[0]):
            world.submit(each)
            time.sleep(0.002)
            world.claimed()
        world.now += LEASE

        with world.database.transaction() as session:  # the two meet: each has one job, and waits for its ledger
            for each in within:
                session.get_one(LedgerHead, each.id, with_for_update=True)
            claiming = [Thread(lambda: world.claim(max_attempts=1)) for _ in range(2)]
            wait_until_blocked(world.database, 2)

        assert [each.outcome() for each in claiming] == [None, None]
        assert sum(world.balance(each.id).reserved_nano for each in within) == 2 * NANO

    def test_everything_at_once_on_a_few_jobs_ends_every_job_and_breaks_nothing(self, world: World) -> None:
        within = [world.new_dataset(epsilon_nano=100 * NANO) for _ in range(2)]
        ids = [world.submit(each, epsilon_nano=2 * NANO).id for each in within for _ in range(4)]

        def ignoring(call: Callable[[], object]) -> None:
            with suppress(StaleFence, RoundClosed, NotFound):
                call()

        def work() -> None:
            for _ in range(12):
                held = world.claim()
                if held is not None:
                    ignoring(partial(advance, held))

        def advance(held: Claim) -> None:
            with world.database.reading() as session:
                n_rounds = len(rounds.of_job(session, held.job_id))
            if n_rounds < 2:
                world.open_for(held, lo=n_rounds / 2, hi=(n_rounds + 1) / 2, collect=Collect(3, 1, 3600))
            else:
                with world.database.transaction() as session:
                    succeed(session, held)

        def send() -> None:
            for _ in range(12):
                with world.database.reading() as session:
                    open_ids = [r.id for each in within for r in rounds.open_rounds(session, each.id, now=NOW)]
                with world.database.transaction() as session:
                    for round_id in sorted(open_ids):
                        ignoring(partial(rounds.receive, session, round_id, 1, b"r", now=NOW))

        def sweep() -> None:
            for turn in range(12):
                with world.database.transaction() as session:
                    rounds.close_due(session, now=NOW + 3600 * SECOND if turn == 6 else NOW)
                time.sleep(0.01)

        def cancel_some() -> None:
            for job_id in ids[::3]:
                cancel(world, job_id)
                time.sleep(0.02)

        outcomes = together([work, work, send, send, sweep, cancel_some])

        assert outcomes == [None] * 6
        for each in within:
            with world.database.transaction() as session:
                job.cancel_all(session, each.id, now=NOW)
        world.now += LEASE
        for _ in ids:
            world.claim()
        assert all(world.job(job_id).is_final for job_id in ids)
        for each in within:
            with world.database.reading() as session:
                assert ledger.verify(session, each.id).ok
                for found in rounds.page(session, each.id, after="", limit=100):
                    assert found.state == RoundState.CLOSED
                    assert found.n_received == world.n_logged(found.id)
            assert world.balance(each.id).reserved_nano == 0
