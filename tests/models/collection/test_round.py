"""Rounds: charged before they open, closed for good, tallied once."""

import random
import time

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from models.collection import report_intake, rounds
from models.database.engine import Database
from models.database.types import SECOND
from models.errors import BudgetExhausted, LimitExceeded, NotFound, RoundClosed
from models.jobs import lifecycle
from models.ledger.amounts import Balance
from models.tables.jobs import JobState
from models.tables.rounds import CollectionTarget, Round, RoundState
from sfumato.privacy.accounting import NANO
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import NOW, Thread, World, cost_of, rolled_back, spec, together, wait_until_blocked

COST, HALF_COST = cost_of(spec()), cost_of(spec(epsilon_nano=NANO // 2))


def count_rounds(database: Database) -> int:
    with database.reading() as session:
        return session.execute(text("SELECT count(*) FROM rounds")).scalar_one()


class TestOpenStandalone:
    def test_charges_the_cost_of_the_published_mechanism(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=2 * NANO)

        opened = world.open_standalone(within)

        assert 0 < COST <= NANO
        assert world.chain(within.id)[-1] == ("charge", COST, opened.id)
        assert world.balance(within.id) == Balance(2 * NANO, 0, COST)
        assert (opened.state, opened.epsilon_nano, opened.collection_id, opened.n_received) == (
            RoundState.OPEN,
            COST,
            opened.id,
            0,
        )
        assert opened.closes_at == NOW + 3600 * SECOND
        assert world.round(opened.id).spec == spec()

    def test_rejected_charge_stores_no_round(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=COST - 1)

        with pytest.raises(BudgetExhausted):
            world.open_standalone(within)

        assert count_rounds(world.database) == 0
        assert world.balance(within.id) == Balance(COST - 1, 0, 0)

    def test_uses_the_larger_minimum(self, world: World) -> None:
        within = world.new_dataset(min_reports=50)

        minima = [world.open_standalone(within, collect=CollectionTarget(100, n, 3600)).min_reports for n in (10, 90)]

        assert minima == [50, 90]

    def test_target_is_at_least_the_minimum(self, world: World) -> None:
        within = world.new_dataset(min_reports=50)

        opened = world.open_standalone(within, collect=CollectionTarget(3, 0, 3600))

        assert (opened.target_reports, opened.min_reports) == (50, 50)
        assert not world.receive(opened.id, 49).is_full
        assert world.receive(opened.id, 1).is_full

    def test_concurrent_requests_do_not_exceed_the_limit(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)

        outcomes = together([lambda: world.open_standalone(within, max_open_rounds=3)] * 8)

        assert sum(isinstance(each, Round) for each in outcomes) == 3
        assert {type(each) for each in outcomes} == {Round, LimitExceeded}
        assert count_rounds(world.database) == 3
        assert world.balance(within.id).charged_nano == 3 * COST

    def test_closed_rounds_do_not_count_for_the_limit(self, world: World) -> None:
        within = world.new_dataset()
        world.close(world.open_standalone(within, max_open_rounds=1).id)

        assert world.open_standalone(within, max_open_rounds=1).state == RoundState.OPEN


@on_sqlite
class TestOpenForJob:
    def test_charges_the_reservation(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=5 * NANO)
        queued = world.submit(within, epsilon_nano=2 * NANO)

        opened = world.open_for(world.claimed())

        assert (opened.index, opened.job_id, opened.collection_id) == (0, queued.id, queued.id)
        assert world.balance(within.id) == Balance(5 * NANO, 2 * NANO - COST, COST)

    @pytest.mark.parametrize(
        ("opened", "expected"),
        [
            ([(NANO, 0, 0.5), (NANO, 0.5, 1)], [COST, 0]),  # other devices
            ([(NANO // 2, 0, 0.6), (NANO, 0.4, 1)], [HALF_COST, COST]),  # some devices take part in both
            ([(NANO // 2, 0, 0.5), (NANO, 0.5, 1)], [HALF_COST, COST - HALF_COST]),  # other devices, larger cost
        ],
    )
    def test_charges_the_increase_of_the_cost(self, world: World, opened: list, expected: list[int]) -> None:
        within = world.new_dataset()
        queued = world.submit(within, epsilon_nano=2 * NANO)

        for epsilon_nano, lo, hi in opened:
            world.close(world.open_for(world.claimed(), epsilon_nano=epsilon_nano, lo=lo, hi=hi).id)

        assert [amount for kind, amount, _ in world.chain(within.id) if kind == "charge"] == expected
        assert world.balance(within.id).reserved_nano == 2 * NANO - sum(expected)
        assert world.job(queued.id).state == JobState.COLLECTING

    def test_above_the_reservation_stores_no_round(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=10 * NANO)
        queued = world.submit(within, epsilon_nano=COST)
        world.close(world.open_for(world.claimed()).id)
        held = world.claimed()

        with pytest.raises(BudgetExhausted):
            world.open_for(held, epsilon_nano=1_000_000)

        assert count_rounds(world.database) == 1
        assert world.job(queued.id).state == JobState.RUNNING
        assert world.balance(within.id) == Balance(10 * NANO, 0, COST)


class TestReceive:
    def test_stores_and_counts_the_reports(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())

        received = [world.receive(opened.id, n, packed) for n, packed in ((2, b"first"), (3, b"second"))]

        assert received == [report_intake.Received(False, None, opened.dataset_id)] * 2
        assert world.log(opened.id) == [b"first", b"second"]
        assert world.round(opened.id).n_received == 5

    def test_closes_a_round_at_its_target(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed(), collect=CollectionTarget(5, 1, 3600))

        received = [world.receive(opened.id, n) for n in (4, 3)]

        assert received == [report_intake.Received(is_full, queued.id, opened.dataset_id) for is_full in (False, True)]
        found = world.round(opened.id)
        assert (found.state, found.n_received, found.closed_at) == (RoundState.CLOSED, 7, NOW)

    def test_rejects_reports_to_a_closed_round(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        world.receive(opened.id, 1, b"in time")
        world.close(opened.id)

        with pytest.raises(RoundClosed):
            world.receive(opened.id, 1, b"late")

        assert world.log(opened.id) == [b"in time"]
        assert world.round(opened.id).n_received == 1

    def test_rejects_reports_after_the_closing_time(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset(), collect=CollectionTarget(100, 1, 60))
        world.now = NOW + 60 * SECOND - 1
        world.receive(opened.id)
        world.now += 1

        with pytest.raises(RoundClosed):
            world.receive(opened.id)

        assert world.n_logged(opened.id) == 1

    def test_rejects_reports_to_an_unknown_round(self, world: World) -> None:
        with pytest.raises(RoundClosed):
            world.receive("rnd_unknown")

    def test_stores_the_other_reports_of_a_group(self, world: World) -> None:
        within = world.new_dataset()
        closed, open_ = world.open_standalone(within), world.open_standalone(within)
        world.close(closed.id)

        with world.database.transaction() as session:
            with pytest.raises(RoundClosed):
                report_intake.receive(session, closed.id, 1, b"refused", now=NOW)
            report_intake.receive(session, open_.id, 1, b"stored", now=NOW)

        assert (world.log(closed.id), world.log(open_.id)) == ([], [b"stored"])

    def test_rollback_stores_nothing(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())

        with rolled_back(world.database) as session:
            report_intake.receive(session, opened.id, 100, b"lost", now=NOW)

        found = world.round(opened.id)
        assert (found.n_received, found.state, world.log(opened.id)) == (0, RoundState.OPEN, [])


class TestConcurrentClose:
    def test_stores_every_acknowledged_report_and_none_after_the_close(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        opened = [world.open_standalone(within, collect=CollectionTarget(60, 1, 3600)).id for _ in range(3)]
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
                            report_intake.receive(session, round_id, n_reports, b"r" * n_reports, now=NOW)
                        except RoundClosed:
                            continue
                        taken.append(round_id)
                for round_id in taken:
                    acknowledged[round_id] += n_reports
            return acknowledged

        def close() -> dict[str, int]:
            time.sleep(0.1)
            world.write(rounds.close, world.caller, opened[1], now=NOW)
            at_close[opened[1]] = world.n_logged(opened[1])
            world.write(rounds.close_due, now=NOW + 3600 * SECOND)
            at_close[opened[2]] = world.n_logged(opened[2])
            return {}

        outcomes = together([*(lambda seed=seed: receive(seed) for seed in range(4)), close])

        for round_id in opened:
            acknowledged = sum(outcome.get(round_id, 0) for outcome in outcomes)
            found = world.round(round_id)
            assert found.n_received == world.n_logged(round_id) == acknowledged
            assert at_close.get(round_id, acknowledged) == acknowledged
            assert found.state == RoundState.CLOSED

    @on_postgresql
    def test_waits_for_an_uncommitted_group(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        with world.database.transaction() as session:
            report_intake.receive(session, opened.id, 2, b"in time", now=NOW)
            closing = Thread(lambda: world.close(opened.id))
            wait_until_blocked(world.database)

        assert closing.outcome().n_received == 2
        assert world.log(opened.id) == [b"in time"]

    @on_postgresql
    @pytest.mark.parametrize("how", ["by hand", "past its time", "job cancelled", "dataset closed"])
    def test_rejects_a_group_that_waited_for_it(self, world: World, how: str) -> None:
        within = world.new_dataset()
        queued = world.submit(within)
        opened = world.open_for(world.claimed())

        def close(session: Session) -> None:
            if how == "by hand":
                rounds.close(session, world.caller, opened.id, now=NOW)
            elif how == "past its time":
                rounds.close_due(session, now=opened.closes_at)
            elif how == "job cancelled":
                lifecycle.cancel(session, world.caller, queued.id, now=NOW)
            else:
                rounds.close_all(session, now=NOW, dataset_id=within.id)

        with world.database.transaction() as session:
            close(session)
            late = Thread(lambda: world.receive(opened.id, 1, b"late"))
            wait_until_blocked(world.database)

        with pytest.raises(RoundClosed):
            late.outcome()
        assert world.log(opened.id) == []


class TestClose:
    def test_twice_keeps_the_first_time(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        first = world.close(opened.id)
        world.now += 5

        second = world.close(opened.id)

        assert (first.state, first.closed_at) == (second.state, second.closed_at) == (RoundState.CLOSED, NOW)

    def test_of_due_rounds_returns_their_jobs(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        queued = world.submit(within)
        world.open_for(world.claimed(), collect=CollectionTarget(100, 1, 60))
        alone, later = (
            world.open_standalone(within, collect=CollectionTarget(100, 1, seconds)) for seconds in (60, 61)
        )

        closed = world.write(rounds.close_due, now=NOW + 60 * SECOND)
        again = world.write(rounds.close_due, now=NOW + 60 * SECOND)

        assert sorted(closed, key=str) == [None, queued.id]
        assert again == []
        assert [world.round(r.id).state for r in (alone, later)] == [RoundState.CLOSED, RoundState.OPEN]

    def test_of_another_tenants_round_raises_not_found(self, world: World) -> None:
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

        world.write(rounds.close_all, now=NOW, job_id=queued.id)

        assert [world.round(r.id).state for r in (mine, other)] == [RoundState.CLOSED, RoundState.OPEN]


@on_sqlite
class TestListOpen:
    def test_returns_the_rounds_of_the_dataset_that_accept_reports(self, world: World) -> None:
        within, other = world.new_dataset(epsilon_nano=100 * NANO), world.new_dataset()
        first, second, brief, closed = (
            world.open_standalone(within, collect=CollectionTarget(100, 1, seconds)) for seconds in (60, 60, 30, 60)
        )
        world.open_standalone(other)
        world.close(closed.id)

        seen = [r.id for r in world.read(rounds.list_open, within.id, now=NOW + 30 * SECOND)]

        assert seen == sorted([first.id, second.id])
        assert brief.id not in seen


@on_sqlite
class TestFind:
    def test_returns_rounds_in_the_given_order(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = [world.open_standalone(within).id for _ in range(3)]

        with world.database.reading() as session:
            found = [r.id for r in rounds.list_by_ids(session, within.id, ids[::-1])]
            with pytest.raises(NotFound):
                rounds.list_by_ids(session, within.id, [*ids, "rnd_unknown"])
            with pytest.raises(NotFound):
                rounds.list_by_ids(session, "ds_other", ids)

        assert found == ids[::-1]

    def test_reads_the_row_afresh(self, world: World) -> None:
        within = world.new_dataset()
        opened = world.open_standalone(within)
        with world.database.transaction() as session:
            known = session.get_one(Round, opened.id)
            session.execute(text("UPDATE rounds SET state = 'closed' WHERE id = :id"), {"id": opened.id})
            (found,) = rounds.list_by_ids(session, within.id, [opened.id])

        assert known is found
        assert found.state == RoundState.CLOSED

    def test_pages_list_all_rounds_of_a_dataset(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = sorted(world.open_standalone(within).id for _ in range(5))
        world.open_standalone(world.new_dataset())

        pages, after = [], ""
        with world.database.reading() as session:
            while page := rounds.page(session, within.id, after=after, limit=2):
                pages.append([r.id for r in page])
                after = page[-1].id

        assert pages == [ids[:2], ids[2:4], ids[4:]]

    def test_groups_rounds_by_job(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        first, second, none = (world.submit(within, epsilon_nano=3 * NANO).id for _ in range(3))
        held = {claim.job_id: claim for claim in (world.claimed() for _ in range(3))}
        opened = {job_id: [world.open_for(held[job_id], suspend=False).id] for job_id in (first, second)}
        opened[first].append(world.open_for(held[first]).id)

        found = world.read(rounds.list_for_jobs, [first, second, none])

        assert {job_id: [r.id for r in of] for job_id, of in found.items()} == {**opened, none: []}
