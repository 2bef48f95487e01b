"""Rounds: charged before they open, closed for good, tallied once."""

import random
import time

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from models import job
from models import round as rounds
from models.db import SECOND, Database
from models.errors import BudgetExhausted, LimitExceeded, NotFound, RoundClosed
from models.job import JobState
from models.ledger import Balance
from models.round import Collect, Round, RoundState
from sfumato.accounting import NANO
from tests.models.world import NOW, Thread, World, cost_of, rolled_back, spec, together, wait_until_blocked

POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
COST = cost_of(spec())


def count_rounds(database: Database) -> int:
    with database.reading() as session:
        return session.execute(text("SELECT count(*) FROM rounds")).scalar_one()


class TestOpening:
    def test_posts_the_cost_of_the_published_mechanism(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=2 * NANO)

        opened = world.open_standalone(within)

        assert 0 < COST <= NANO
        assert world.chain(within.id)[-1] == ("post", COST, opened.id)
        assert world.balance(within.id) == Balance(2 * NANO, 0, COST)
        assert (opened.state, opened.epsilon_nano, opened.collection_id, opened.n_received) == (
            RoundState.OPEN,
            COST,
            opened.id,
            0,
        )
        assert opened.closes_at == NOW + 3600 * SECOND
        assert world.round(opened.id).spec == spec()

    def test_a_refused_charge_leaves_nothing(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=COST - 1)

        with pytest.raises(BudgetExhausted):
            world.open_standalone(within)

        assert count_rounds(world.database) == 0
        assert world.balance(within.id) == Balance(COST - 1, 0, 0)

    def test_takes_the_larger_of_the_two_minima(self, world: World) -> None:
        within = world.new_dataset(min_reports=50)

        minima = [world.open_standalone(within, collect=Collect(100, n, 3600)).min_reports for n in (10, 90)]

        assert minima == [50, 90]

    def test_is_not_full_before_it_can_be_used(self, world: World) -> None:
        within = world.new_dataset(min_reports=50)

        opened = world.open_standalone(within, collect=Collect(3, 0, 3600))

        assert (opened.target_reports, opened.min_reports) == (50, 50)
        assert not world.receive(opened.id, 49).is_full
        assert world.receive(opened.id, 1).is_full

    def test_stops_at_the_limit_of_open_rounds_though_many_ask_at_once(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)

        outcomes = together([lambda: world.open_standalone(within, max_open_rounds=3)] * 8)

        assert sum(isinstance(each, Round) for each in outcomes) == 3
        assert {type(each) for each in outcomes} == {Round, LimitExceeded}
        assert count_rounds(world.database) == 3
        assert world.balance(within.id).posted_nano == 3 * COST

    def test_a_closed_round_makes_room(self, world: World) -> None:
        within = world.new_dataset()
        world.close(world.open_standalone(within, max_open_rounds=1).id)

        assert world.open_standalone(within, max_open_rounds=1).state == RoundState.OPEN


class TestOpeningForAJob:
    def test_posts_out_of_the_reservation(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=5 * NANO)
        queued = world.submit(within, epsilon_nano=2 * NANO)

        opened = world.open_for(world.claimed())

        assert (opened.index, opened.job_id, opened.collection_id) == (0, queued.id, queued.id)
        assert world.balance(within.id) == Balance(5 * NANO, 2 * NANO - COST, COST)

    def test_rounds_for_other_devices_cost_nothing_more(self, world: World) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=NANO)
        halves = [(0.0, 0.5), (0.5, 1.0)]

        for lo, hi in halves:
            opened = world.open_for(world.claimed(), lo=lo, hi=hi)
            world.close(opened.id)

        posts = [amount for kind, amount, _ in world.chain(within.id) if kind == "post"]
        assert posts == [COST, 0]
        assert world.job(queued.id).state == JobState.COLLECTING

    def test_rounds_for_the_same_devices_add_up(self, world: World) -> None:
        within = world.new_dataset()
        world.submit(within, epsilon_nano=2 * NANO)
        costs = [cost_of(spec(epsilon_nano=nano)) for nano in (NANO // 2, NANO)]

        world.close(world.open_for(world.claimed(), epsilon_nano=NANO // 2, lo=0, hi=0.6).id)
        world.close(world.open_for(world.claimed(), epsilon_nano=NANO, lo=0.4, hi=1).id)

        posts = [amount for kind, amount, _ in world.chain(within.id) if kind == "post"]
        assert posts == costs
        assert world.balance(within.id).reserved_nano == 2 * NANO - sum(costs)

    def test_posts_only_what_exceeds_the_dearest_so_far(self, world: World) -> None:
        within = world.new_dataset()
        world.submit(within, epsilon_nano=2 * NANO)
        cheap, dear = cost_of(spec(epsilon_nano=NANO // 2)), COST

        world.close(world.open_for(world.claimed(), epsilon_nano=NANO // 2, lo=0, hi=0.5).id)
        world.close(world.open_for(world.claimed(), epsilon_nano=NANO, lo=0.5, hi=1).id)

        posts = [amount for kind, amount, _ in world.chain(within.id) if kind == "post"]
        assert posts == [cheap, dear - cheap]

    def test_more_than_the_job_declared_is_refused_and_leaves_nothing(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=10 * NANO)
        queued = world.submit(within, epsilon_nano=COST)
        world.close(world.open_for(world.claimed()).id)
        held = world.claimed()

        with pytest.raises(BudgetExhausted):
            world.open_for(held, epsilon_nano=1_000_000)

        assert count_rounds(world.database) == 1
        assert world.job(queued.id).state == JobState.RUNNING
        assert world.balance(within.id) == Balance(10 * NANO, 0, COST)


class TestReceiving:
    def test_stores_the_row_and_counts_it(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())

        received = [world.receive(opened.id, n, packed) for n, packed in ((2, b"first"), (3, b"second"))]

        assert received == [rounds.Received(False, None, opened.dataset_id)] * 2
        assert world.log(opened.id) == [b"first", b"second"]
        assert world.round(opened.id).n_received == 5

    def test_closes_the_round_that_reaches_its_target(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed(), collect=Collect(5, 1, 3600))

        received = [world.receive(opened.id, n) for n in (4, 3)]

        assert received == [rounds.Received(is_full, queued.id, opened.dataset_id) for is_full in (False, True)]
        found = world.round(opened.id)
        assert (found.state, found.n_received, found.closed_at) == (RoundState.CLOSED, 7, NOW)

    def test_a_closed_round_takes_nothing(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        world.receive(opened.id, 1, b"in time")
        world.close(opened.id)

        with pytest.raises(RoundClosed):
            world.receive(opened.id, 1, b"late")

        assert world.log(opened.id) == [b"in time"]
        assert world.round(opened.id).n_received == 1

    def test_a_round_past_its_time_takes_nothing_though_nobody_closed_it(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset(), collect=Collect(100, 1, 60))
        world.now = NOW + 60 * SECOND - 1
        world.receive(opened.id)
        world.now += 1

        with pytest.raises(RoundClosed):
            world.receive(opened.id)

        assert world.n_logged(opened.id) == 1

    def test_an_unknown_round_takes_nothing(self, world: World) -> None:
        with pytest.raises(RoundClosed):
            world.receive("rnd_unknown")

    def test_a_round_that_refuses_leaves_the_rest_of_its_group_whole(self, world: World) -> None:
        within = world.new_dataset()
        closed, open_ = world.open_standalone(within), world.open_standalone(within)
        world.close(closed.id)

        with world.database.transaction() as session:
            with pytest.raises(RoundClosed):
                rounds.receive(session, closed.id, 1, b"refused", now=NOW)
            rounds.receive(session, open_.id, 1, b"stored", now=NOW)

        assert (world.log(closed.id), world.log(open_.id)) == ([], [b"stored"])

    def test_a_group_that_fails_stores_nothing(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())

        with rolled_back(world.database) as session:
            rounds.receive(session, opened.id, 100, b"lost", now=NOW)

        found = world.round(opened.id)
        assert (found.n_received, found.state, world.log(opened.id)) == (0, RoundState.OPEN, [])


class TestReceiversAndClosers:
    def test_every_acknowledged_report_is_in_the_log_and_none_came_after_the_close(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        opened = [world.open_standalone(within, collect=Collect(60, 1, 3600)).id for _ in range(3)]
        at_close: dict[str, int] = {}

        def receive(seed: int) -> dict[str, int]:
            order, acknowledged = random.Random(seed), dict.fromkeys(opened, 0)  # noqa: S311 - a test's order
            for _ in range(15):
                group = sorted(order.sample(opened, order.randint(1, 3)))
                n_reports = order.randint(1, 3)
                taken = []
                with world.database.transaction() as session:
                    for round_id in group:
                        try:
                            rounds.receive(session, round_id, n_reports, b"r" * n_reports, now=NOW)
                        except RoundClosed:
                            continue
                        taken.append(round_id)
                for round_id in taken:
                    acknowledged[round_id] += n_reports
            return acknowledged

        def close() -> dict[str, int]:
            time.sleep(0.1)
            with world.database.transaction() as session:
                rounds.close(session, world.caller, opened[1], now=NOW)
            at_close[opened[1]] = world.n_logged(opened[1])
            with world.database.transaction() as session:
                rounds.close_due(session, now=NOW + 3600 * SECOND)
            at_close[opened[2]] = world.n_logged(opened[2])
            return {}

        outcomes = together([*(lambda seed=seed: receive(seed) for seed in range(4)), close])

        for round_id in opened:
            acknowledged = sum(outcome.get(round_id, 0) for outcome in outcomes)
            found = world.round(round_id)
            assert found.n_received == world.n_logged(round_id) == acknowledged
            assert at_close.get(round_id, acknowledged) == acknowledged
            assert found.state == RoundState.CLOSED

    @POSTGRES
    def test_a_close_waits_for_the_group_that_is_being_committed(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        with world.database.transaction() as session:
            rounds.receive(session, opened.id, 2, b"in time", now=NOW)
            closing = Thread(lambda: world.close(opened.id))
            wait_until_blocked(world.database)

        assert closing.outcome().n_received == 2
        assert world.log(opened.id) == [b"in time"]

    @POSTGRES
    @pytest.mark.parametrize("how", ["by hand", "past its time", "job cancelled", "dataset closed"])
    def test_a_group_that_waits_for_a_close_is_refused(self, world: World, how: str) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        opened = world.open_for(world.claimed())

        def close(session: Session) -> None:
            if how == "by hand":
                rounds.close(session, world.caller, opened.id, now=NOW)
            elif how == "past its time":
                rounds.close_due(session, now=opened.closes_at)
            elif how == "job cancelled":
                job.cancel(session, world.caller, queued.id, now=NOW)
            else:
                rounds.close_all(session, now=NOW, dataset_id=within.id)

        with world.database.transaction() as session:
            close(session)
            late = Thread(lambda: world.receive(opened.id, 1, b"late"))
            wait_until_blocked(world.database)

        with pytest.raises(RoundClosed):
            late.outcome()
        assert world.log(opened.id) == []


class TestClosing:
    def test_by_hand_once_and_again(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        first = world.close(opened.id)
        world.now += 5

        second = world.close(opened.id)

        assert (first.state, first.closed_at) == (second.state, second.closed_at) == (RoundState.CLOSED, NOW)

    def test_when_due_closes_exactly_what_is_past_its_time_and_names_the_jobs(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        queued = world.submit(within)
        world.open_for(world.claimed(), collect=Collect(100, 1, 60))
        alone, later = (world.open_standalone(within, collect=Collect(100, 1, seconds)) for seconds in (60, 61))

        with world.database.transaction() as session:
            closed = rounds.close_due(session, now=NOW + 60 * SECOND)
        with world.database.transaction() as session:
            again = rounds.close_due(session, now=NOW + 60 * SECOND)

        assert sorted(closed, key=str) == [None, queued.id]
        assert again == []
        assert [world.round(r.id).state for r in (alone, later)] == [RoundState.CLOSED, RoundState.OPEN]

    def test_of_another_tenant_is_not_found(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        stranger = world.new_caller("stranger")

        with pytest.raises(NotFound), world.database.transaction() as session:
            rounds.close(session, stranger, opened.id, now=NOW)

        assert world.round(opened.id).state == RoundState.OPEN

    def test_of_one_job_leaves_other_rounds_open(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        queued = world.submit(within)
        mine = world.open_for(world.claimed())
        other = world.open_standalone(within)

        with world.database.transaction() as session:
            rounds.close_all(session, now=NOW, job_id=queued.id)

        assert [world.round(r.id).state for r in (mine, other)] == [RoundState.CLOSED, RoundState.OPEN]


class TestWhatDevicesSee:
    def test_only_open_rounds_of_their_dataset_in_time(self, world: World) -> None:
        within, other = world.new_dataset(epsilon_nano=100 * NANO), world.new_dataset()
        first, second, brief, closed = (
            world.open_standalone(within, collect=Collect(100, 1, seconds)) for seconds in (60, 60, 30, 60)
        )
        world.open_standalone(other)
        world.close(closed.id)

        with world.database.reading() as session:
            seen = [r.id for r in rounds.open_rounds(session, within.id, now=NOW + 30 * SECOND)]

        assert seen == sorted([first.id, second.id])
        assert brief.id not in seen


class TestFinding:
    def test_rounds_come_in_the_order_asked(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = [world.open_standalone(within).id for _ in range(3)]

        with world.database.reading() as session:
            found = [r.id for r in rounds.by_ids(session, within.id, ids[::-1])]
            with pytest.raises(NotFound):
                rounds.by_ids(session, within.id, [*ids, "rnd_unknown"])
            with pytest.raises(NotFound):
                rounds.by_ids(session, "ds_other", ids)

        assert found == ids[::-1]

    def test_a_round_read_before_is_read_again(self, world: World) -> None:
        within = world.new_dataset()
        opened = world.open_standalone(within)
        with world.database.transaction() as session:
            known = session.get_one(Round, opened.id)
            session.execute(text("UPDATE rounds SET state = 'closed' WHERE id = :id"), {"id": opened.id})
            (found,) = rounds.by_ids(session, within.id, [opened.id])

        assert known is found
        assert found.state == RoundState.CLOSED

    def test_pages_go_through_all_of_a_dataset(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = sorted(world.open_standalone(within).id for _ in range(5))
        world.open_standalone(world.new_dataset())

        pages, after = [], ""
        with world.database.reading() as session:
            while page := rounds.page(session, within.id, after=after, limit=2):
                pages.append([r.id for r in page])
                after = page[-1].id

        assert pages == [ids[:2], ids[2:4], ids[4:]]

    def test_of_several_jobs_each_has_its_own(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        first, second, none = (world.submit(within, epsilon_nano=3 * NANO).id for _ in range(3))
        held = {claim.job_id: claim for claim in (world.claimed() for _ in range(3))}
        opened = {job_id: [world.open_for(held[job_id], suspend=False).id] for job_id in (first, second)}
        opened[first].append(world.open_for(held[first]).id)

        with world.database.reading() as session:
            found = rounds.of_jobs(session, [first, second, none])

        assert {job_id: [r.id for r in of] for job_id, of in found.items()} == {**opened, none: []}
