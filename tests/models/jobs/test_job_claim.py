"""Claims on jobs: one claim at a time, and no deadlocks."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Select, text
from sqlalchemy.orm import Session

from models.collection import report_intake, rounds
from models.database.types import SECOND
from models.errors import NotFound, RoundClosed, StaleFence
from models.jobs import claims, lifecycle
from models.jobs.claims import Claim
from models.ledger import ledger
from models.ledger.amounts import Balance
from models.tables.jobs import Job, JobState
from models.tables.ledger import LedgerHead
from models.tables.rounds import CollectionTarget, RoundState
from sfumato.privacy.accounting import NANO
from tests.databases import on_postgresql
from tests.models.world import LEASE, NOW, Thread, World, cancel, cost_of, spec, succeed, together, wait_until_blocked

COST = cost_of(spec())


class TestClaim:
    def test_takes_the_oldest_job(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = []
        for _ in range(4):
            ids.append(world.submit(within).id)
            time.sleep(0.002)  # identifiers sort by the millisecond

        assert [world.claimed().job_id for _ in range(4)] == ids
        assert world.claim() is None

    def test_skips_a_job_with_an_open_round(self, world: World) -> None:
        within = world.new_dataset()
        world.submit(within)
        world.open_for(world.claimed())
        time.sleep(0.002)
        second = world.submit(within)

        assert world.claimed().job_id == second.id

    def test_takes_a_job_after_its_lease_expired(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        world.claimed()

        world.now += LEASE - 1
        early = world.claim()
        world.now += 1
        late = world.claim()

        assert (early, late) == (None, Claim(queued.id, 2))
        assert world.job(queued.id).attempts == 2

    def test_renewed_lease_counts_from_its_renewal(self, world: World) -> None:
        world.submit(world.new_dataset())
        held = world.claimed()
        world.now += LEASE - 1
        world.write(claims.renew, held, now=world.now, lease_microseconds=LEASE)

        world.now += LEASE - 1

        assert world.claim() is None

    def test_fails_a_job_after_too_many_lost_workers_and_takes_the_next(self, world: World) -> None:
        within = world.new_dataset()
        doomed = world.submit(within)
        for _ in range(3):
            assert world.claimed().job_id == doomed.id
            world.now += LEASE
        sound = world.submit(within)

        held = world.claim(max_attempts=3)

        found = world.job(doomed.id)
        assert (found.state, found.error_code) == (JobState.FAILED, claims.WORKER_LOST)
        assert held == Claim(sound.id, 1)
        assert world.balance(within.id).reserved_nano == NANO

    def test_every_lost_job_ends_eventually(self, world: World) -> None:
        within = world.new_dataset()
        lost = [world.submit(within).id for _ in range(3)]
        for _ in lost:
            world.claimed()
        world.now += LEASE

        taken = [world.claim(max_attempts=1) for _ in range(3)]

        assert taken == [None, None, None]
        assert {world.job(job_id).state for job_id in lost} == {JobState.FAILED}
        assert world.balance(within.id).reserved_nano == 0

    def test_idle_check_finds_claimable_jobs_without_locks(self, world: World) -> None:
        def sees_and_takes() -> tuple[bool, bool]:
            seen = world.read(claims.is_any_waiting, now=world.now)
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

    def test_progress_resets_the_attempts(self, world: World) -> None:
        queued = world.submit(world.new_dataset(), epsilon_nano=2 * NANO)
        world.claimed()
        world.now += LEASE
        world.close(world.open_for(world.claimed()).id)

        assert world.claim(max_attempts=1) == Claim(queued.id, 3)

    def test_requeued_job_can_be_claimed_at_once(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        counts = []
        for is_attempt in (True, False):
            held = world.claimed()
            world.write(lifecycle.requeue, held, is_attempt=is_attempt, now=world.now)
            counts.append(world.job(queued.id).attempts)

        assert counts == [1, 1]
        assert world.claimed().job_id == queued.id

    def test_concurrent_claims_have_different_fences(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=1000 * NANO)
        ids = [world.submit(within).id for _ in range(6)]

        def work() -> list[Claim]:
            held = []
            for _ in range(8):
                claim = world.write(
                    claims.claim, now=NOW, lease_microseconds=0, max_attempts=10_000
                )  # every lease has lapsed by the next claim
                if claim is not None:
                    held.append(claim)
            return held

        held = [claim for taken in together([work] * 6) for claim in taken]

        assert len(held) == len(set(held)) >= 8
        for job_id in ids:
            fences = sorted(claim.fence for claim in held if claim.job_id == job_id)
            assert fences == list(range(1, world.job(job_id).fence + 1))

    def test_concurrent_claims_take_each_job_once(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=1000 * NANO)
        ids = {world.submit(within).id for _ in range(5)}

        taken = [claim for claim in together([world.claim] * 12) if claim is not None]

        assert len(taken) == len({claim.job_id for claim in taken})
        assert {claim.job_id for claim in taken} <= ids
        assert {claim.fence for claim in taken} == {1}

    @on_postgresql
    def test_skips_a_locked_job(self, world: World) -> None:
        within = world.new_dataset()
        first = world.submit(within)
        time.sleep(0.002)
        second = world.submit(within)

        with world.database.transaction() as session:
            session.get_one(Job, first.id, with_for_update=True)
            assert world.claimed().job_id == second.id

    @on_postgresql
    def test_does_not_take_a_job_that_opened_another_round_concurrently(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A statement sees the rounds as they were at its start, but the job's row as it is once it is locked."""
        queued = world.submit(world.new_dataset(), epsilon_nano=2 * NANO)
        world.close(world.open_for(world.claimed(), lo=0, hi=0.5).id)
        lapsed = world.claimed()
        world.now += LEASE
        oldest, calls = claims._first, []

        def slow(session: Session, query: Select[Job], values: dict[str, Any]) -> Job | None:
            calls.append(threading.current_thread())
            if isinstance(calls[-1], Thread) and calls.count(calls[-1]) == 2:  # the second query selects a job to claim
                query = query.where(text("(SELECT true FROM pg_advisory_xact_lock(1))"))
            return oldest(session, query, values)

        monkeypatch.setattr(claims, "_first", slow)
        with world.database.transaction() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(1)"))
            claiming = Thread(world.claim)
            wait_until_blocked(world.database)
            opened = world.open_for(lapsed, lo=0.5, hi=1)  # no worker has claimed the job again

        assert claiming.outcome() is None
        found = world.job(queued.id)
        assert (found.state, found.fence, world.round(opened.id).state) == (JobState.COLLECTING, 2, RoundState.OPEN)


class TestLocks:
    """Transactions that meet wait for one another in one order, so none is ended by the database."""

    @on_postgresql
    def test_cancel_all_and_a_worker_that_opens_a_round_do_not_deadlock(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        world.submit(within)
        time.sleep(0.002)
        world.submit(within)
        first, second = world.claimed(), world.claimed()
        world.open_for(first)

        def end() -> None:
            world.write(lifecycle.cancel_all, within.id, now=NOW)

        with world.database.transaction() as session:
            held = claims.load_claimed(session, second)
            ending = Thread(end)
            wait_until_blocked(world.database)
            rounds.open_for_job(
                session, within, spec(), held.collection_target, job_id=held.id, actor=held.created_by, now=NOW
            )
            lifecycle.wait_for_reports(session, second, now=NOW)
        ending.outcome()

        assert [world.job(held.job_id).state for held in (first, second)] == [JobState.CANCELED] * 2
        assert {r.state for r in world.read(rounds.page, within.id, after="", limit=10)} == {RoundState.CLOSED}
        assert world.balance(within.id) == Balance(100 * NANO, 0, 2 * COST)

    @on_postgresql
    def test_two_claims_that_end_lost_jobs_do_not_deadlock(self, world: World) -> None:
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

    def test_concurrent_actions_on_a_few_jobs_end_every_job_consistently(self, world: World) -> None:
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
            n_rounds = len(world.read(rounds.list_for_job, held.job_id))
            if n_rounds < 2:
                world.open_for(held, lo=n_rounds / 2, hi=(n_rounds + 1) / 2, collect=CollectionTarget(3, 1, 3600))
            else:
                world.write(succeed, held)

        def send() -> None:
            for _ in range(12):
                with world.database.reading() as session:
                    open_ids = [r.id for each in within for r in rounds.list_open(session, each.id, now=NOW)]
                with world.database.transaction() as session:
                    for round_id in sorted(open_ids):
                        ignoring(partial(report_intake.receive, session, round_id, 1, b"r", now=NOW))

        def sweep() -> None:
            for turn in range(12):
                world.write(rounds.close_due, now=NOW + 3600 * SECOND if turn == 6 else NOW)
                time.sleep(0.01)

        def cancel_some() -> None:
            for job_id in ids[::3]:
                cancel(world, job_id)
                time.sleep(0.02)

        outcomes = together([work, work, send, send, sweep, cancel_some])

        assert outcomes == [None] * 6
        for each in within:
            world.write(lifecycle.cancel_all, each.id, now=NOW)
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
