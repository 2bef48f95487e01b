"""Delta in the ledger: granted to central datasets, never over, and rejected by the database if inconsistent."""

from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from models import datasets
from models.errors import BudgetExhausted, Conflict, LimitExceeded
from models.jobs import claims, curator_answers, lifecycle
from models.jobs.curator_answers import ChargedQuery
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from models.tables.datasets import Dataset, Trust
from models.tables.jobs import Job, JobState
from models.tables.ledger import LedgerEntry
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import DELTA_MAX_ATTO, NANO, parse_delta
from sfumato.privacy.ledger import GENESIS_HASH
from tests.databases import on_sqlite
from tests.models.world import LEASE, NOW, World, cancel, succeed, together

MICRO = parse_delta("1e-6")
BLOCK = ChargedQuery("concentrated block", NANO // 2, 0, "a" * 32, delta_atto=MICRO)
PAID_FOR = ChargedQuery("sums", 0, 12, "b" * 32)


@pytest.fixture
def within(world: World) -> Dataset:
    return world.new_dataset(trust=Trust.CENTRAL, delta_atto=5 * MICRO)


def submit(world: World, within: Dataset, delta_atto: int = 2 * MICRO) -> Job:
    return world.submit(within, epsilon_nano=NANO, delta_atto=delta_atto)


def ask(world: World, held: claims.Claim, index: int, question: ChargedQuery) -> bytes | None:
    return world.write(curator_answers.charge, held, index, question, now=world.now)


def grant(world: World, within: Dataset, epsilon_nano: int, delta_atto: int) -> LedgerEntry:
    return world.write(
        datasets.grant, world.caller, within.id, epsilon_nano=epsilon_nano, delta_atto=delta_atto, now=world.now
    )


@on_sqlite
class TestGrant:
    def test_epsilon_and_delta_are_one_entry(self, world: World, within: Dataset) -> None:
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO, 0, 0)
        assert len(world.chain(within.id)) == 1
        grant(world, within, NANO, MICRO)
        assert world.balance(within.id) == Balance(11 * NANO, 0, 0, 6 * MICRO, 0, 0)
        assert len(world.chain(within.id)) == 2

    def test_may_have_delta_only(self, world: World, within: Dataset) -> None:
        grant(world, within, 0, 1)
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO + 1, 0, 0)

    def test_delta_is_rejected_for_a_local_dataset(self, world: World) -> None:
        with pytest.raises(InvalidSpec, match="central"):
            world.new_dataset(delta_atto=MICRO)
        local = world.new_dataset()
        with pytest.raises(InvalidSpec, match="central"):
            grant(world, local, NANO, MICRO)
        assert world.balance(local.id) == Balance(10 * NANO)

    def test_total_delta_is_at_most_one_in_a_thousand(self, world: World, within: Dataset) -> None:
        with pytest.raises(LimitExceeded):
            grant(world, within, NANO, DELTA_MAX_ATTO - 5 * MICRO + 1)
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO, 0, 0)
        grant(world, within, NANO, DELTA_MAX_ATTO - 5 * MICRO)
        grant(world, within, NANO, 0)
        assert world.balance(within.id).granted_delta_atto == DELTA_MAX_ATTO


class TestJob:
    def test_reserves_charges_and_releases_both(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        assert world.balance(within.id) == Balance(10 * NANO, NANO, 0, 5 * MICRO, 2 * MICRO, 0)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        assert world.balance(within.id) == Balance(10 * NANO, NANO // 2, NANO // 2, 5 * MICRO, MICRO, MICRO)
        world.write(succeed, held)
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO // 2, 5 * MICRO, 0, MICRO)
        with world.database.reading() as session:
            entries = ledger.page(session, within.id, after_seq=0, limit=10)
            assert ledger.reserved_for(session, within.id, queued.id) == Amounts(0, 0)
            assert ledger.verify(session, within.id).ok
        assert [(e.kind, e.epsilon_nano, e.delta_atto) for e in entries] == [
            ("grant", 10 * NANO, 5 * MICRO),
            ("reserve", NANO, 2 * MICRO),
            ("charge", NANO // 2, MICRO),
            ("release", NANO // 2, MICRO),
        ]

    def test_without_enough_delta_is_rejected_and_reserves_nothing(self, world: World, within: Dataset) -> None:
        first = submit(world, within)
        with pytest.raises(BudgetExhausted) as refused:
            submit(world, within, 3 * MICRO + 1)
        error = refused.value
        amounts = (error.requested, error.granted, error.reserved, error.charged)
        assert (error.short, amounts) == ("delta", (3 * MICRO + 1, 5 * MICRO, 2 * MICRO, 0))
        assert "3.000000000001e-6" in str(error)
        (reserve,) = world.read(ledger.page, within.id, after_seq=1, limit=10)
        assert (reserve.reference, error.entries) == (first.id, (reserve.id,))
        assert world.balance(within.id) == Balance(10 * NANO, NANO, 0, 5 * MICRO, 2 * MICRO, 0)
        assert submit(world, within, 3 * MICRO).delta_atto == 3 * MICRO

    def test_delta_for_five_admits_five_of_twenty_concurrent_jobs(self, world: World, within: Dataset) -> None:
        outcomes = together([lambda: world.submit(within, epsilon_nano=NANO // 10, delta_atto=MICRO)] * 20)
        assert sum(isinstance(outcome, Job) for outcome in outcomes) == 5
        assert {type(outcome) for outcome in outcomes} == {Job, BudgetExhausted}
        assert world.balance(within.id) == Balance(10 * NANO, NANO // 2, 0, 5 * MICRO, 5 * MICRO, 0)

    def test_without_a_granted_delta_is_rejected(self, world: World) -> None:
        pure = world.new_dataset(trust=Trust.CENTRAL)
        with pytest.raises(BudgetExhausted) as refused:
            submit(world, pure, 1000)
        assert (refused.value.short, refused.value.granted) == ("delta", 0)
        assert world.balance(pure.id) == Balance(10 * NANO)

    def test_short_of_both_names_epsilon(self, world: World, within: Dataset) -> None:
        with pytest.raises(BudgetExhausted) as refused:
            world.submit(within, epsilon_nano=11 * NANO, delta_atto=6 * MICRO)
        assert (refused.value.short, refused.value.requested) == ("epsilon", 11 * NANO)

    def test_canceled_before_its_first_query_releases_all(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        assert cancel(world, queued.id).state == JobState.CANCELED
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO, 0, 0)

    def test_canceled_after_a_query_keeps_the_charge(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        cancel(world, queued.id)
        world.write(lifecycle.cancel_claimed, held, now=world.now)
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO // 2, 5 * MICRO, 0, MICRO)

    def test_without_remaining_epsilon_still_releases_delta(self, world: World, within: Dataset) -> None:
        submit(world, within)
        held = world.claimed()
        ask(world, held, 0, ChargedQuery("counts", NANO, 12))
        world.write(succeed, held)
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO, 5 * MICRO, 0, 0)


@on_sqlite
class TestQuery:
    def test_above_the_jobs_delta_is_rejected(self, world: World, within: Dataset) -> None:
        submit(world, within)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        with pytest.raises(BudgetExhausted) as refused:
            ask(world, held, 1, ChargedQuery("concentrated block", NANO // 4, 0, delta_atto=MICRO + 1))
        assert refused.value.short == "delta"
        assert world.balance(within.id).charged_delta_atto == MICRO
        ask(world, held, 1, ChargedQuery("concentrated block", NANO // 4, 0, delta_atto=MICRO))
        assert world.balance(within.id).charged_delta_atto == 2 * MICRO

    def test_paid_by_another_query_is_charged_with_zero(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        before = world.balance(within.id)
        assert [ask(world, held, 1, PAID_FOR) for _ in range(2)] == [None, None]
        assert world.balance(within.id) == before
        assert world.chain(within.id)[-1] == ("charge", 0, f"{queued.id}#1")
        world.write(curator_answers.store, held, 1, b"noisy")
        assert ask(world, held, 1, PAID_FOR) == b"noisy"
        assert world.read(ledger.verify, within.id).ok

    def test_repeated_after_a_crash_is_charged_once(self, world: World, within: Dataset) -> None:
        submit(world, within)
        ask(world, world.claimed(), 0, BLOCK)
        world.now += 2 * LEASE
        held = world.claimed()
        assert ask(world, held, 0, BLOCK) is None
        assert world.balance(within.id).charged_delta_atto == MICRO
        with pytest.raises(Conflict):
            ask(
                world,
                held,
                0,
                ChargedQuery(BLOCK.description, BLOCK.epsilon_nano, 0, BLOCK.digest, delta_atto=MICRO - 1),
            )


class TestDatabaseChecks:
    def forge(self, world: World, within: Dataset, **values: int) -> None:
        plain: dict[str, Any] = {
            "id": "led_forged",
            "dataset_id": within.id,
            "kind": "charge",
            "reference": "x",
            "seq": 2,
        }
        plain |= {"reservation": None, "actor": "key", "at": NOW, "prev_hash": GENESIS_HASH, "hash": GENESIS_HASH}
        plain |= {"epsilon_nano": 0, "granted_nano": 10 * NANO, "reserved_nano": 0, "charged_nano": 0}
        plain |= dict.fromkeys(SHUFFLED_COLUMNS, 0)
        with world.database.transaction() as session:
            session.execute(insert(LedgerEntry).values(plain | values))

    @pytest.mark.parametrize(
        ("amounts", "why"),
        [
            ((6 * MICRO, 5 * MICRO, 0, 5 * MICRO + 1), "never_over_delta"),
            ((1, 5 * MICRO, 5 * MICRO, 1), "never_over_delta"),
            ((-1, 5 * MICRO, 0, 0), "not_negative_delta"),
            ((0, 5 * MICRO, -1, 0), "not_negative_delta"),
            ((0, 5 * MICRO, 0, -1), "not_negative_delta"),
        ],
        ids=["over", "over_with_what_is_held", "amount", "reserved", "charged"],
    )
    def test_overspending_or_negative_entry_is_rejected(
        self, world: World, within: Dataset, amounts: tuple[int, ...], why: str
    ) -> None:
        with pytest.raises(DBAPIError, match=why):
            self.forge(world, within, **dict(zip(DELTA_COLUMNS, amounts, strict=True)))
        self.forge(world, within, **dict(zip(DELTA_COLUMNS, (0, 5 * MICRO, 0, 0), strict=True)))

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ({"charged_shuffled_nano": 1}, "never_over_shuffled"),
            ({"charged_shuffled_delta_atto": 1}, "never_over_shuffled"),
            ({"shuffled_nano": -1}, "not_negative_shuffled"),
            ({"charged_shuffled_delta_atto": -1}, "not_negative_shuffled"),
        ],
    )
    def test_overspending_of_the_shuffled_budget_is_rejected(
        self, world: World, within: Dataset, values: dict[str, int], why: str
    ) -> None:
        with pytest.raises(DBAPIError, match=why):
            self.forge(world, within, **dict.fromkeys(DELTA_COLUMNS, 0) | values)

    def test_rejects_an_entry_without_delta(self, world: World, within: Dataset) -> None:
        with pytest.raises(DBAPIError, match="delta_atto"):
            self.forge(world, within)


SHUFFLED_COLUMNS = tuple(each.key for each in LedgerEntry.__table__.columns if "shuffled" in each.key)
DELTA_COLUMNS = ("delta_atto", "granted_delta_atto", "reserved_delta_atto", "charged_delta_atto")
