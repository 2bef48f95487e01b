"""Jobs: every transition, one holder at a time, one result, and nothing held when it is over."""

from functools import partial

import pytest

from models import fold as folds
from models import job
from models import round as rounds
from models.errors import BudgetExhausted, Conflict, LimitExceeded, NotFound
from models.job import Claim, Job, JobState
from models.ledger import Balance
from models.round import Collect, RoundState
from sfumato.accounting import NANO
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


class TestSubmitting:
    def test_queues_the_job_and_reserves_what_it_declares(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=3 * NANO)

        queued = world.submit(within, epsilon_nano=2 * NANO, collect=Collect(7, 3, 60))

        found = world.job(queued.id)
        assert (found.state, found.attempts, found.fence, found.lease_until) == (JobState.QUEUED, 0, 0, None)
        assert (found.algorithm, found.created_by, found.created_at) == (ALGORITHM, world.caller.key_id, NOW)
        assert found.collect == Collect(7, 3, 60)
        assert world.chain(within.id)[-1] == ("reserve", 2 * NANO, queued.id)

    def test_beyond_the_budget_is_refused_and_leaves_no_job(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=NANO)

        with pytest.raises(BudgetExhausted):
            world.submit(within, epsilon_nano=NANO + 1)

        assert world.claim() is None
        assert world.balance(within.id) == Balance(NANO, 0, 0)

    def test_a_rollback_takes_the_reservation_along(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=NANO)

        with rolled_back(world.database) as session:
            submit(session, world.caller, within, epsilon_nano=NANO, now=NOW)

        assert world.balance(within.id) == Balance(NANO, 0, 0)
        assert world.claim() is None

    def test_stops_at_the_limit_of_unfinished_jobs_though_many_ask_at_once(self, world: World) -> None:
        within = [world.new_dataset(epsilon_nano=100 * NANO) for _ in range(8)]

        outcomes = together([partial(world.submit, each, max_active_jobs=3) for each in within])

        assert sum(isinstance(each, Job) for each in outcomes) == 3
        assert {type(each) for each in outcomes} == {Job, LimitExceeded}
        assert sum(world.balance(each.id).reserved_nano for each in within) == 3 * NANO

    def test_a_finished_job_makes_room(self, world: World) -> None:
        within = world.new_dataset()
        cancel(world, world.submit(within, max_active_jobs=1).id)

        assert world.submit(within, max_active_jobs=1).state == JobState.QUEUED


class TestSubmittingOverEarlierRounds:
    def test_reserves_nothing(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=COST)
        earlier = world.close(world.open_standalone(within).id)

        queued = world.submit(within, epsilon_nano=COST, round_ids=[earlier.id])

        assert (queued.epsilon_nano, queued.round_ids) == (0, [earlier.id])
        assert world.balance(within.id) == Balance(COST, 0, COST)

    def test_is_refused_while_one_is_open(self, world: World) -> None:
        within = world.new_dataset()
        with pytest.raises(Conflict, match="open"):
            world.submit(within, round_ids=[world.open_standalone(within).id])

    def test_is_refused_where_they_cost_more_than_is_declared(self, world: World) -> None:
        within = world.new_dataset()
        earlier = [world.close(world.open_standalone(within).id).id for _ in range(2)]

        with pytest.raises(Conflict, match="cost more"):
            world.submit(within, epsilon_nano=2 * COST - 1, round_ids=earlier)

        assert world.submit(within, epsilon_nano=2 * COST, round_ids=earlier).round_ids == earlier

    def test_counts_the_rounds_of_one_collection_by_its_draw(self, world: World) -> None:
        within = world.new_dataset()
        first_job = world.submit(within, epsilon_nano=NANO)
        for lo, hi in ((0.0, 0.5), (0.5, 1.0)):
            world.close(world.open_for(world.claimed(), lo=lo, hi=hi).id)
        with world.database.reading() as session:
            earlier = [r.id for r in rounds.of_job(session, first_job.id)]

        assert world.submit(within, epsilon_nano=COST, round_ids=earlier).round_ids == earlier

    def test_is_refused_where_one_is_named_twice(self, world: World) -> None:
        within = world.new_dataset()
        earlier = world.close(world.open_standalone(within).id)

        with pytest.raises(Conflict, match="twice"):
            world.submit(within, epsilon_nano=5 * NANO, round_ids=[earlier.id, earlier.id])

    def test_does_not_find_rounds_of_another_dataset(self, world: World) -> None:
        within, other = world.new_dataset(), world.new_dataset()
        elsewhere = world.close(world.open_standalone(other).id)

        with pytest.raises(NotFound):
            world.submit(within, epsilon_nano=5 * NANO, round_ids=[elsewhere.id])


class TestTransitions:
    """The diagram at the head of `models/job.py`, arrow by arrow."""

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

    def test_running_to_collecting_as_a_round_opens(self, world: World) -> None:
        queued = world.submit(world.new_dataset())

        world.open_for(world.claimed())

        found = world.job(queued.id)
        assert (found.state, found.lease_until, found.attempts) == (JobState.COLLECTING, None, 0)
        assert world.claim() is None

    def test_collecting_to_running_once_its_round_is_closed(self, world: World) -> None:
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

        with world.database.transaction() as session:
            succeed(session, held)

        found = world.job(queued.id)
        assert (found.state, found.finished_at, found.lease_until) == (JobState.SUCCEEDED, NOW + 9, None)
        assert found.is_final
        assert document_of(world, queued.id) == DOCUMENT
        assert world.chain(within.id)[-1] == ("release", 2 * NANO - COST, queued.id)
        assert world.balance(within.id) == Balance(5 * NANO, 0, COST)

    @pytest.mark.parametrize("state", [JobState.FAILED, JobState.EXPIRED])
    def test_running_to_failed_or_expired_keeps_what_was_posted(self, world: World, state: JobState) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=2 * NANO)
        opened = world.open_for(world.claimed(), suspend=False)
        held = Claim(queued.id, 1)

        with world.database.transaction() as session:
            job.fail(session, held, state, code="too_few_reports", detail="x" * 900, now=NOW)

        found = world.job(queued.id)
        assert (found.state, found.error_code, found.error_detail) == (state, "too_few_reports", "x" * 500)
        assert world.round(opened.id).state == RoundState.CLOSED
        assert world.balance(within.id) == Balance(10 * NANO, 0, COST)

    def test_failing_before_the_first_round_gives_everything_back(self, world: World) -> None:
        within = world.new_dataset()
        world.submit(within)
        with world.database.transaction() as session:
            job.fail(session, Claim(world.claimed().job_id, 1), JobState.FAILED, code="c", detail="", now=NOW)

        assert world.balance(within.id) == Balance(10 * NANO, 0, 0)

    def test_a_job_over_earlier_rounds_ends_without_touching_the_ledger(self, world: World) -> None:
        within = world.new_dataset()
        earlier = world.close(world.open_standalone(within).id)
        queued = world.submit(within, epsilon_nano=COST, round_ids=[earlier.id])
        before = world.chain(within.id)

        with world.database.transaction() as session:
            succeed(session, Claim(world.claimed().job_id, 1))

        assert world.job(queued.id).state == JobState.SUCCEEDED
        assert world.chain(within.id) == before
        assert world.round(earlier.id).state == RoundState.CLOSED


class TestCancelling:
    def test_a_queued_job_ends_at_once_and_gives_everything_back(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within)

        ended = cancel(world, queued.id)

        assert (ended.state, ended.finished_at) == (JobState.CANCELED, NOW)
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0)
        assert world.claim() is None

    def test_a_collecting_job_ends_at_once_closes_its_round_and_keeps_what_was_posted(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=2 * NANO)
        opened = world.open_for(world.claimed())

        assert cancel(world, queued.id).state == JobState.CANCELED

        assert world.round(opened.id).state == RoundState.CLOSED
        assert world.balance(within.id) == Balance(10 * NANO, 0, COST)

    def test_a_running_job_ends_when_its_worker_lets_go(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        held = world.claimed()

        asked = cancel(world, queued.id)
        assert (asked.state, asked.cancel_requested) == (JobState.RUNNING, True)
        with world.database.transaction() as session:
            assert job.renew(session, held, now=NOW, lease_microseconds=LEASE).cancel_requested
            job.let_go(session, held, now=NOW)

        assert world.job(queued.id).state == JobState.CANCELED
        assert world.balance(within.id).reserved_nano == 0

    def test_a_running_job_whose_worker_is_gone_ends_at_the_next_claim(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        world.claimed()
        cancel(world, queued.id)
        world.now += LEASE

        assert world.claim() is None
        assert world.job(queued.id).state == JobState.CANCELED

    def test_a_job_that_its_worker_suspended_all_the_same_ends_at_the_next_claim(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        held = world.claimed()
        cancel(world, queued.id)
        opened = world.open_for(held)

        assert world.claim() is None
        assert (world.job(queued.id).state, world.round(opened.id).state) == (JobState.CANCELED, RoundState.CLOSED)

    @pytest.mark.parametrize("how", ["canceled", "succeeded"])
    def test_a_job_that_is_over_stays_as_it_ended(self, world: World, how: str) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        if how == "succeeded":
            with world.database.transaction() as session:
                succeed(session, Claim(world.claimed().job_id, 1))
        else:
            cancel(world, queued.id)
        before = world.chain(within.id)
        world.now += 1

        ended = cancel(world, queued.id)

        assert (ended.state, ended.finished_at) == (how, world.job(queued.id).finished_at)
        assert world.chain(within.id) == before

    def test_another_tenants_job_is_not_found(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        stranger = world.new_caller("stranger")

        with pytest.raises(NotFound), world.database.transaction() as session:
            job.cancel(session, stranger, queued.id, now=NOW)

        assert world.job(queued.id).state == JobState.QUEUED

    def test_what_it_left_untallied_is_folded_and_scrubbed_all_the_same(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed())
        world.receive(opened.id, 2, b"reports")
        cancel(world, queued.id)

        with world.database.transaction() as session:
            round_id = folds.claim_fold(session, now=NOW, lease_microseconds=LEASE, max_attempts=5)
        assert round_id == opened.id
        with world.database.transaction() as session:
            rounds.store_tally(session, opened.id, b"tally", 2, now=NOW)

        assert world.round(opened.id).state == RoundState.TALLIED
        assert world.log(opened.id) == []


class TestSeeing:
    def test_a_job_of_another_tenant_or_beyond_the_keys_dataset_is_not_found(self, world: World) -> None:
        mine, other = world.new_dataset(), world.new_dataset()
        queued = world.submit(mine)
        bound_here, bound_there = (world.new_caller("tenant", each.id) for each in (mine, other))
        stranger = world.new_caller("stranger")

        with world.database.reading() as session:
            assert job.get(session, world.caller, queued.id).id == queued.id
            assert job.get(session, bound_here, queued.id).id == queued.id
            for caller in (bound_there, stranger):
                with pytest.raises(NotFound):
                    job.get(session, caller, queued.id)
                assert job.page(session, caller, dataset_id=None, after="", limit=10) == []

    def test_pages_go_through_all_jobs_of_a_tenant_or_of_a_dataset(self, world: World) -> None:
        first, second = world.new_dataset(epsilon_nano=100 * NANO), world.new_dataset()
        ids = sorted(world.submit(first).id for _ in range(3))
        other = world.submit(second).id

        def page(after: str = "", limit: int = 10, dataset_id: str | None = None) -> list[str]:
            with world.database.reading() as session:
                found = job.page(session, world.caller, dataset_id=dataset_id, after=after, limit=limit)
                return [each.id for each in found]

        everything = sorted([*ids, other])
        assert page() == everything
        assert page(limit=2) == everything[:2]
        assert page(after=everything[1]) == everything[2:]
        assert page(dataset_id=first.id) == ids
