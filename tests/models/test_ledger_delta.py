"""Delta in the ledger: granted to central datasets, never over, and chains of before there was one still hold."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from alembic import command
from sqlalchemy import column, insert, table, text, update
from sqlalchemy.exc import DBAPIError

from models import answer, job, ledger
from models import dataset as datasets
from models.answer import Asked
from models.dataset import Dataset, Trust
from models.db import Database, _alembic
from models.errors import BudgetExhausted, Conflict, LimitExceeded
from models.job import Job, JobState
from models.ledger import GENESIS_HASH, Amounts, Balance, LedgerEntry, LedgerHead
from sfumato.accounting import DELTA_MAX_ATTO, NANO, parse_delta
from sfumato.errors import InvalidSpec
from tests.models.world import LEASE, NOW, World, cancel, charge, succeed, together

MICRO = parse_delta("1e-6")
BLOCK = Asked("concentrated block", NANO // 2, 0, "a" * 32, delta_atto=MICRO)
PAID_FOR = Asked("sums", 0, 12, "b" * 32)


@pytest.fixture
def within(world: World) -> Dataset:
    return world.new_dataset(trust=Trust.CENTRAL, delta_atto=5 * MICRO)


def submit(world: World, within: Dataset, delta_atto: int = 2 * MICRO) -> Job:
    return world.submit(within, epsilon_nano=NANO, delta_atto=delta_atto)


def ask(world: World, held: job.Claim, index: int, question: Asked) -> bytes | None:
    with world.database.transaction() as session:
        return answer.charge(session, held, index, question, now=world.now)


def grant(world: World, within: Dataset, epsilon_nano: int, delta_atto: int) -> LedgerEntry:
    with world.database.transaction() as session:
        return datasets.grant(
            session, world.caller, within.id, epsilon_nano=epsilon_nano, delta_atto=delta_atto, now=world.now
        )


class TestAGrant:
    def test_of_both_is_one_entry(self, world: World, within: Dataset) -> None:
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO, 0, 0)
        assert len(world.chain(within.id)) == 1
        grant(world, within, NANO, MICRO)
        assert world.balance(within.id) == Balance(11 * NANO, 0, 0, 6 * MICRO, 0, 0)
        assert len(world.chain(within.id)) == 2

    def test_may_be_of_delta_alone(self, world: World, within: Dataset) -> None:
        grant(world, within, 0, 1)
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO + 1, 0, 0)

    def test_of_delta_is_refused_to_a_local_dataset(self, world: World) -> None:
        with pytest.raises(InvalidSpec, match="central"):
            world.new_dataset(delta_atto=MICRO)
        local = world.new_dataset()
        with pytest.raises(InvalidSpec, match="central"):
            grant(world, local, NANO, MICRO)
        assert world.balance(local.id) == Balance(10 * NANO)

    def test_comes_to_one_in_a_thousand_in_all_and_no_further(self, world: World, within: Dataset) -> None:
        with pytest.raises(LimitExceeded):
            grant(world, within, NANO, DELTA_MAX_ATTO - 5 * MICRO + 1)
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO, 0, 0)
        grant(world, within, NANO, DELTA_MAX_ATTO - 5 * MICRO)
        grant(world, within, NANO, 0)
        assert world.balance(within.id).granted_delta_atto == DELTA_MAX_ATTO


class TestAJob:
    def test_reserves_posts_and_releases_both(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        assert world.balance(within.id) == Balance(10 * NANO, NANO, 0, 5 * MICRO, 2 * MICRO, 0)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        assert world.balance(within.id) == Balance(10 * NANO, NANO // 2, NANO // 2, 5 * MICRO, MICRO, MICRO)
        with world.database.transaction() as session:
            succeed(session, held)
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO // 2, 5 * MICRO, 0, MICRO)
        with world.database.reading() as session:
            entries = ledger.page(session, within.id, after_seq=0, limit=10)
            assert ledger.reserved_for(session, within.id, queued.id) == Amounts(0, 0)
            assert ledger.verify(session, within.id).ok
        assert [(e.kind, e.epsilon_nano, e.delta_atto) for e in entries] == [
            ("grant", 10 * NANO, 5 * MICRO),
            ("reserve", NANO, 2 * MICRO),
            ("post", NANO // 2, MICRO),
            ("release", NANO // 2, MICRO),
        ]

    def test_short_of_delta_by_one_atto_is_refused_and_holds_nothing(self, world: World, within: Dataset) -> None:
        first = submit(world, within)
        with pytest.raises(BudgetExhausted) as refused:
            submit(world, within, 3 * MICRO + 1)
        error = refused.value
        amounts = (error.requested, error.granted, error.reserved, error.posted)
        assert (error.short, amounts) == ("delta", (3 * MICRO + 1, 5 * MICRO, 2 * MICRO, 0))
        assert "3.000000000001e-6" in str(error)
        with world.database.reading() as session:
            (reserve,) = ledger.page(session, within.id, after_seq=1, limit=10)
        assert (reserve.reference, error.entries) == (first.id, (reserve.id,))
        assert world.balance(within.id) == Balance(10 * NANO, NANO, 0, 5 * MICRO, 2 * MICRO, 0)
        assert submit(world, within, 3 * MICRO).delta_atto == 3 * MICRO

    def test_of_twenty_at_once_a_delta_for_five_serves_five(self, world: World, within: Dataset) -> None:
        outcomes = together([lambda: world.submit(within, epsilon_nano=NANO // 10, delta_atto=MICRO)] * 20)
        assert sum(isinstance(outcome, Job) for outcome in outcomes) == 5
        assert {type(outcome) for outcome in outcomes} == {Job, BudgetExhausted}
        assert world.balance(within.id) == Balance(10 * NANO, NANO // 2, 0, 5 * MICRO, 5 * MICRO, 0)

    def test_over_a_dataset_without_delta_has_none(self, world: World) -> None:
        pure = world.new_dataset(trust=Trust.CENTRAL)
        with pytest.raises(BudgetExhausted) as refused:
            submit(world, pure, 1000)
        assert (refused.value.short, refused.value.granted) == ("delta", 0)
        assert world.balance(pure.id) == Balance(10 * NANO)

    def test_that_lacks_both_is_told_of_epsilon(self, world: World, within: Dataset) -> None:
        with pytest.raises(BudgetExhausted) as refused:
            world.submit(within, epsilon_nano=11 * NANO, delta_atto=6 * MICRO)
        assert (refused.value.short, refused.value.requested) == ("epsilon", 11 * NANO)

    def test_cancelled_before_its_first_question_gives_all_back(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        assert cancel(world, queued.id).state == JobState.CANCELED
        assert world.balance(within.id) == Balance(10 * NANO, 0, 0, 5 * MICRO, 0, 0)

    def test_cancelled_after_it_keeps_what_was_posted(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        cancel(world, queued.id)
        with world.database.transaction() as session:
            job.let_go(session, held, now=world.now)
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO // 2, 5 * MICRO, 0, MICRO)

    def test_that_has_spent_its_epsilon_still_gives_delta_back(self, world: World, within: Dataset) -> None:
        submit(world, within)
        held = world.claimed()
        ask(world, held, 0, Asked("counts", NANO, 12))
        with world.database.transaction() as session:
            succeed(session, held)
        assert world.balance(within.id) == Balance(10 * NANO, 0, NANO, 5 * MICRO, 0, 0)


class TestAQuestion:
    def test_beyond_the_jobs_delta_by_one_atto_is_refused_though_the_dataset_has_it(
        self, world: World, within: Dataset
    ) -> None:
        submit(world, within)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        with pytest.raises(BudgetExhausted) as refused:
            ask(world, held, 1, Asked("concentrated block", NANO // 4, 0, delta_atto=MICRO + 1))
        assert refused.value.short == "delta"
        assert world.balance(within.id).posted_delta_atto == MICRO
        ask(world, held, 1, Asked("concentrated block", NANO // 4, 0, delta_atto=MICRO))
        assert world.balance(within.id).posted_delta_atto == 2 * MICRO

    def test_that_another_one_paid_for_is_posted_with_nothing(self, world: World, within: Dataset) -> None:
        queued = submit(world, within)
        held = world.claimed()
        ask(world, held, 0, BLOCK)
        before = world.balance(within.id)
        assert [ask(world, held, 1, PAID_FOR) for _ in range(2)] == [None, None]
        assert world.balance(within.id) == before
        assert world.chain(within.id)[-1] == ("post", 0, f"{queued.id}#1")
        with world.database.transaction() as session:
            answer.keep(session, held, 1, b"noisy")
        assert ask(world, held, 1, PAID_FOR) == b"noisy"
        with world.database.reading() as session:
            assert ledger.verify(session, within.id).ok

    def test_asked_again_after_a_crash_pays_once(self, world: World, within: Dataset) -> None:
        submit(world, within)
        ask(world, world.claimed(), 0, BLOCK)
        world.now += 2 * LEASE
        held = world.claimed()
        assert ask(world, held, 0, BLOCK) is None
        assert world.balance(within.id).posted_delta_atto == MICRO
        with pytest.raises(Conflict):
            ask(world, held, 0, Asked(BLOCK.what, BLOCK.epsilon_nano, 0, BLOCK.digest, delta_atto=MICRO - 1))


class TestTheDatabaseItself:
    def forge(self, world: World, within: Dataset, **values: int) -> None:
        plain: dict[str, Any] = {
            "id": "led_forged",
            "dataset_id": within.id,
            "kind": "post",
            "reference": "x",
            "seq": 2,
        }
        plain |= {"reservation": None, "actor": "key", "at": NOW, "prev_hash": GENESIS_HASH, "hash": GENESIS_HASH}
        plain |= {"epsilon_nano": 0, "granted_nano": 10 * NANO, "reserved_nano": 0, "posted_nano": 0}
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
        ids=["over", "over_with_what_is_held", "amount", "reserved", "posted"],
    )
    def test_refuses_an_entry_that_is_over_or_negative(
        self, world: World, within: Dataset, amounts: tuple[int, ...], why: str
    ) -> None:
        with pytest.raises(DBAPIError, match=why):
            self.forge(world, within, **dict(zip(DELTA_COLUMNS, amounts, strict=True)))
        self.forge(world, within, **dict(zip(DELTA_COLUMNS, (0, 5 * MICRO, 0, 0), strict=True)))

    def test_refuses_the_entry_of_a_process_that_knows_no_delta(self, world: World, within: Dataset) -> None:
        with pytest.raises(DBAPIError, match="forgets the delta"):
            self.forge(world, within)
        pure = world.new_dataset(trust=Trust.CENTRAL)
        self.forge(world, pure)
        assert world.balance(pure.id) == Balance(10 * NANO)


DELTA_COLUMNS = ("delta_atto", "granted_delta_atto", "reserved_delta_atto", "posted_delta_atto")
OLD_COLUMNS = (
    *("id", "dataset_id", "seq", "kind", "epsilon_nano", "reference", "reservation", "actor", "at"),
    *("granted_nano", "reserved_nano", "posted_nano", "prev_hash"),
)
OLD_TABLE = table("ledger_entries", *(column(name) for name in (*OLD_COLUMNS, "hash")))
OLD_STEPS = [  # as the software of before the migration wrote them
    ("grant", 8, "ds_old", None, (8, 0, 0)),
    ("reserve", 3, "job_1", "job_1", (8, 3, 0)),
    ("post", 1, "job_1#0", "job_1", (8, 2, 1)),
    ("post", 0, "rnd_0", None, (8, 2, 1)),
    ("release", 2, "job_1", "job_1", (8, 0, 1)),
]


@pytest.fixture
def old_database(empty_database_url: str) -> Iterator[Database]:
    """A database of the schema before, with a chain hashed as it was then."""
    database = Database(empty_database_url)
    config = _alembic(empty_database_url)
    config.attributes["engine"] = database.engine
    command.upgrade(config, "0004")
    with database.transaction() as session:
        head = GENESIS_HASH
        session.execute(text("INSERT INTO ledger_heads VALUES ('ds_old', 0, :hash)"), {"hash": head})
        for seq, (kind, amount, reference, reservation, balance) in enumerate(OLD_STEPS, 1):
            values = (f"led_{seq}", "ds_old", seq, kind, amount, reference, reservation, "key_Ä", NOW + seq)
            row = dict(zip(OLD_COLUMNS, (*values, *balance, head), strict=True))
            canonical = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            head = hashlib.sha256(canonical.encode()).hexdigest()
            session.execute(insert(OLD_TABLE).values(row | {"hash": head}))
            session.execute(text("UPDATE ledger_heads SET seq = :seq, hash = :hash"), {"seq": seq, "hash": head})
    command.upgrade(config, "head")
    yield database
    database.close()


class TestAChainOfBefore:
    def test_holds_and_goes_on_with_a_delta(self, old_database: Database) -> None:
        with old_database.reading() as session:
            found = ledger.verify(session, "ds_old")
            assert (found.ok, found.n_entries) == (True, len(OLD_STEPS))
            assert ledger.balance(session, "ds_old") == Balance(8, 0, 1)
        with old_database.transaction() as session:
            charge(session, "ds_old", "post", 1, "rnd_1", None)
            charge(session, "ds_old", "grant", 0, "grant_1", None, delta=MICRO)
            charge(session, "ds_old", "post", 1, "rnd_2", None)
            charge(session, "ds_old", "post", 1, "job_2#0", None, delta=MICRO)
        with old_database.reading() as session:
            assert ledger.verify(session, "ds_old").n_entries == len(OLD_STEPS) + 4
            assert ledger.balance(session, "ds_old") == Balance(8, 0, 4, MICRO, 0, MICRO)

    @pytest.mark.parametrize("name", [*DELTA_COLUMNS[:2], "epsilon_nano"])
    def test_shows_what_is_written_into_it_later(self, old_database: Database, name: str) -> None:
        with old_database.transaction() as session:
            triggers = ["_update", "_delete"] if old_database.is_sqlite else [" ON ledger_entries"]
            for trigger in triggers:
                session.execute(text(f"DROP TRIGGER ledger_append_only{trigger}"))
            session.execute(update(LedgerEntry).where(LedgerEntry.seq == 3).values({name: 7}))
        with old_database.reading() as session:
            found = ledger.verify(session, "ds_old")
        assert (found.broken_at, found.reason) == (3, "an entry was changed")

    def test_is_still_append_only(self, old_database: Database) -> None:
        for change in ("UPDATE ledger_entries SET delta_atto = 1", "DELETE FROM ledger_entries"):
            with pytest.raises(DBAPIError, match="append-only"), old_database.transaction() as session:
                session.execute(text(change))
        with old_database.reading() as session:
            assert session.get_one(LedgerHead, "ds_old").seq == len(OLD_STEPS)
