"""Jobs: every transition, one lease at a time, one result, and no reservation after the end."""

from functools import partial

import pytest

from models.collection import rounds
from models.errors import BudgetExhausted, Conflict, LimitExceeded, NotFound
from models.jobs import claims, jobs, lifecycle
from models.jobs.claims import Claim
from models.ledger.amounts import Balance
from models.tables.jobs import Job, JobState
from models.tables.rounds import CollectionTarget, RoundState
from sfumato.privacy.accounting import NANO
from tests.databases import on_sqlite
from tests.models.world import (
    ALGORITHM,
    DOCUMENT,
    LEASE,
    NOW,
    World,
    cancel,
    cost_of,
    document_of,
    rolled_back,
    spec,
    submit,
    succeed,
    together,
)

COST = cost_of(spec())


class TestSubmit:
    def test_queues_the_job_and_reserves_its_epsilon(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=3 * NANO)

        queued = world.submit(within, epsilon_nano=2 * NANO, collect=CollectionTarget(7, 3, 60))

        found = world.job(queued.id)
        assert (found.state, found.attempts, found.fence, found.lease_until) == (JobState.QUEUED, 0, 0, None)
        assert (found.algorithm, found.created_by, found.created_at) == (ALGORITHM, world.caller.key_id, NOW)
        assert found.collection_target == CollectionTarget(7, 3, 60)
        assert world.chain(within.id)[-1] == ("reserve", 2 * NANO, queued.id)

    def test_above_the_budget_stores_no_job(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=NANO)

        with pytest.raises(BudgetExhausted):
            world.submit(within, epsilon_nano=NANO + 1)

        assert world.claim() is None
        assert world.balance(within.id) == Balance(NANO, 0, 0)

    def test_rollback_undoes_the_reservation(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=NANO)

        with rolled_back(world.database) as session:
            submit(session, world.caller, within, epsilon_nano=NANO, now=NOW)

        assert world.balance(within.id) == Balance(NANO, 0, 0)
        assert world.claim() is None

    def test_concurrent_requests_do_not_exceed_the_limit(self, world: World) -> None:
        within = [world.new_dataset(epsilon_nano=100 * NANO) for _ in range(8)]

        outcomes = together([partial(world.submit, each, max_active_jobs=3) for each in within])

        assert sum(isinstance(each, Job) for each in outcomes) == 3
        assert {type(each) for each in outcomes} == {Job, LimitExceeded}
        assert sum(world.balance(each.id).reserved_nano for each in within) == 3 * NANO

    def test_ended_jobs_do_not_count_for_the_limit(self, world: World) -> None:
        within = world.new_dataset()
        cancel(world, world.submit(within, max_active_jobs=1).id)

        assert world.submit(within, max_active_jobs=1).state == JobState.QUEUED


@on_sqlite
class TestSubmitOverEarlierRounds:
    def test_reserves_nothing(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=COST)
        earlier = world.close(world.open_standalone(within).id)

        queued = world.submit(within, epsilon_nano=COST, round_ids=[earlier.id])

        assert (queued.epsilon_nano, queued.round_ids) == (0, [earlier.id])
        assert world.balance(within.id) == Balance(COST, 0, COST)

    def test_rejects_an_open_round(self, world: World) -> None:
        within = world.new_dataset()
        with pytest.raises(Conflict, match="open"):
            world.submit(within, round_ids=[world.open_standalone(within).id])

    def test_rejects_rounds_that_cost_more_than_the_job(self, world: World) -> None:
        within = world.new_dataset()
        earlier = [world.close(world.open_standalone(within).id).id for _ in range(2)]

        with pytest.raises(Conflict, match="cost epsilon 2, more than"):
            world.submit(within, epsilon_nano=2 * COST - 1, round_ids=earlier)

        assert world.submit(within, epsilon_nano=2 * COST, round_ids=earlier).round_ids == earlier

    def test_rounds_for_disjoint_devices_cost_as_one(self, world: World) -> None:
        within = world.new_dataset()
        first_job = world.submit(within, epsilon_nano=NANO)
        for lo, hi in ((0.0, 0.5), (0.5, 1.0)):
            world.close(world.open_for(world.claimed(), lo=lo, hi=hi).id)
        earlier = [r.id for r in world.read(rounds.list_for_job, first_job.id)]

        assert world.submit(within, epsilon_nano=COST, round_ids=earlier).round_ids == earlier

    def test_rejects_a_repeated_round(self, world: World) -> None:
        within = world.new_dataset()
        earlier = world.close(world.open_standalone(within).id)

        with pytest.raises(Conflict, match=f"round_ids must be unique: {earlier.id} occurs more than once"):
            world.submit(within, epsilon_nano=5 * NANO, round_ids=[earlier.id, earlier.id])

    def test_rejects_a_round_of_another_dataset(self, world: World) -> None:
        within, other = world.new_dataset(), world.new_dataset()
        elsewhere = world.close(world.open_standalone(other).id)

        with pytest.raises(NotFound):
            world.submit(within, epsilon_nano=5 * NANO, round_ids=[elsewhere.id])


@on_sqlite
class TestTransitions:
    """The diagram at the head of `models/jobs/jobs.py`, arrow by arrow."""

    def test_queued_to_running_by_a_claim(self, world: World) -> None:
        queued = world.submit(world.new_dataset())

        held = world.claimed()

        found = world.job(queued.id)
        assert held == Claim(queued.id, 1)
        assert (found.state, found.attempts, found.lease_until, found.started_at) == (
            JobState.RUNNING,
            1,
            NOW + LEASE,
            NOW,
        )

    def test_running_to_collecting_when_a_round_opens(self, world: World) -> None:
        queued = world.submit(world.new_dataset())

        world.open_for(world.claimed())

        found = world.job(queued.id)
        assert (found.state, found.lease_until, found.attempts) == (JobState.COLLECTING, None, 0)
        assert world.claim() is None

    def test_collecting_to_running_after_its_round_closed(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed())
        world.receive(opened.id, 100)

        world.now += 1
        held = world.claimed()

        found = world.job(queued.id)
        assert (held, found.state, found.started_at) == (Claim(queued.id, 2), JobState.RUNNING, NOW)

    def test_running_to_succeeded_with_its_result_and_the_release(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=5 * NANO)
        queued = world.submit(within, epsilon_nano=2 * NANO)
        world.close(world.open_for(world.claimed()).id)
        held = world.claimed()

        world.write(succeed, held)

        found = world.job(queued.id)
        assert (found.state, found.finished_at, found.lease_until) == (JobState.SUCCEEDED, NOW + 9, None)
        assert found.is_final
        assert document_of(world, queued.id) == DOCUMENT
        assert world.chain(within.id)[-1] == ("release", 2 * NANO - COST, queued.id)
        assert world.balance(within.id) == Balance(5 * NANO, 0, COST)

    @pytest.mark.parametrize("state", [JobState.FAILED, JobState.EXPIRED])
    def test_running_to_failed_or_expired_keeps_the_charges(self, world: World, state: JobState) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=2 * NANO)
        opened = world.open_for(world.claimed(), suspend=False)
        held = Claim(queued.id, 1)

        world.write(lifecycle.fail, held, state, code="too_few_reports", detail="x" * 900, now=NOW)

        found = world.job(queued.id)
        assert (found.state, found.error_code, found.error_detail) == (state, "too_few_reports", "x" * 500)
        assert world.round(opened.id).state == RoundState.CLOSED
        assert world.balance(within.id) == Balance(10 * NANO, 0, COST)

    def test_failure_before_the_first_round_releases_everything(self, world: World) -> None:
        within = world.new_dataset()
        world.submit(within)
        world.write(lifecycle.fail, Claim(world.claimed().job_id, 1), JobState.FAILED, code="c", detail="", now=NOW)

        assert world.balance(within.id) == Balance(10 * NANO, 0, 0)

    def test_job_over_earlier_rounds_does_not_change_the_ledger(self, world: World) -> None:
        within = world.new_dataset()
        earlier = world.close(world.open_standalone(within).id)
        queued = world.submit(within, epsilon_nano=COST, round_ids=[earlier.id])
        before = world.chain(within.id)

        world.write(succeed, Claim(world.claimed().job_id, 1))

        assert world.job(queued.id).state == JobState.SUCCEEDED
        assert world.chain(within.id) == before
        assert world.round(earlier.id).state == RoundState.CLOSED


@on_sqlite
class TestCancel:
    def test_ends_a_queued_job_and_releases_everything(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within)

        ended = cancel(world, queued.id)

        assert (ended.state, ended.finished_at) == (JobState.CANCELED, NOW)
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0)
        assert world.claim() is None

    def test_ends_a_collecting_job_closes_its_round_and_keeps_the_charges(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=2 * NANO)
        opened = world.open_for(world.claimed())

        assert cancel(world, queued.id).state == JobState.CANCELED

        assert world.round(opened.id).state == RoundState.CLOSED
        assert world.balance(within.id) == Balance(10 * NANO, 0, COST)

    def test_requests_the_end_of_a_running_job_from_its_worker(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        held = world.claimed()

        asked = cancel(world, queued.id)
        assert (asked.state, asked.cancel_requested) == (JobState.RUNNING, True)
        with world.database.transaction() as session:
            assert claims.renew(session, held, now=NOW, lease_microseconds=LEASE).cancel_requested
            lifecycle.cancel_claimed(session, held, now=NOW)

        assert world.job(queued.id).state == JobState.CANCELED
        assert world.balance(within.id).reserved_nano == 0

    def test_of_a_running_job_takes_effect_after_its_worker_was_lost(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        world.claimed()
        cancel(world, queued.id)
        world.now += LEASE

        assert world.claim() is None
        assert world.job(queued.id).state == JobState.CANCELED

    def test_of_a_running_job_takes_effect_if_its_worker_opens_a_round(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        held = world.claimed()
        cancel(world, queued.id)
        opened = world.open_for(held)

        assert world.claim() is None
        assert (world.job(queued.id).state, world.round(opened.id).state) == (JobState.CANCELED, RoundState.CLOSED)

    @pytest.mark.parametrize("how", ["canceled", "succeeded"])
    def test_does_not_change_an_ended_job(self, world: World, how: str) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        if how == "succeeded":
            world.write(succeed, Claim(world.claimed().job_id, 1))
        else:
            cancel(world, queued.id)
        before = world.chain(within.id)
        world.now += 1

        ended = cancel(world, queued.id)

        assert (ended.state, ended.finished_at) == (how, world.job(queued.id).finished_at)
        assert world.chain(within.id) == before

    def test_of_another_tenants_job_raises_not_found(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        stranger = world.new_caller("stranger")

        with pytest.raises(NotFound), world.database.transaction() as session:
            lifecycle.cancel(session, stranger, queued.id, now=NOW)

        assert world.job(queued.id).state == JobState.QUEUED


class TestRead:
    def test_of_a_job_beyond_the_caller_raises_not_found(self, world: World) -> None:
        mine, other = world.new_dataset(), world.new_dataset()
        queued = world.submit(mine)
        bound_here, bound_there = (world.new_caller("tenant", each.id) for each in (mine, other))
        stranger = world.new_caller("stranger")

        with world.database.reading() as session:
            assert jobs.get(session, world.caller, queued.id).id == queued.id
            assert jobs.get(session, bound_here, queued.id).id == queued.id
            for caller in (bound_there, stranger):
                with pytest.raises(NotFound):
                    jobs.get(session, caller, queued.id)
                assert jobs.page(session, caller, dataset_id=None, after="", limit=10) == []

    def test_pages_list_all_jobs_of_a_tenant_or_of_a_dataset(self, world: World) -> None:
        first, second = world.new_dataset(epsilon_nano=100 * NANO), world.new_dataset()
        ids = sorted(world.submit(first).id for _ in range(3))
        other = world.submit(second).id

        def page(after: str = "", limit: int = 10, dataset_id: str | None = None) -> list[str]:
            with world.database.reading() as session:
                found = jobs.page(session, world.caller, dataset_id=dataset_id, after=after, limit=limit)
                return [each.id for each in found]

        everything = sorted([*ids, other])
        assert page() == everything
        assert page(limit=2) == everything[:2]
        assert page(after=everything[1]) == everything[2:]
        assert page(dataset_id=first.id) == ids
