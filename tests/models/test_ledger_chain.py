"""The ledger's chain: append-only, and every change shows."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Executable, delete, insert, text, update
from sqlalchemy.exc import DBAPIError

from models import ledger
from models.dataset import Trust
from models.ledger import GENESIS_HASH, Amounts, Balance, Kind, LedgerEntry, LedgerHead
from tests.models.world import NOW, World, charge, rolled_back, together

POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
COLUMNS = [column.key for column in LedgerEntry.__table__.columns]


@pytest.fixture
def chained(world: World) -> str:
    """A dataset with six entries of every kind."""
    dataset = world.new_dataset(epsilon_nano=100, trust=Trust.CENTRAL, delta_atto=50)
    with world.database.transaction() as session:
        charge(session, dataset.id, "reserve", 40, "job_a", None, delta=20)
        charge(session, dataset.id, "post", 10, "rnd_a", "job_a", delta=5)
        charge(session, dataset.id, "release", 0, "job_a", None)
        charge(session, dataset.id, "post", 20, "rnd_b", None)
        charge(session, dataset.id, "grant", 5, "grant_b", None)
    return dataset.id


class TestTheTrigger:
    def test_refuses_to_change_or_remove_entries(self, world: World, chained: str) -> None:
        for change in ("UPDATE ledger_entries SET epsilon_nano = 0", "DELETE FROM ledger_entries"):
            with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
                session.execute(text(change))

        with world.database.reading() as session:
            assert ledger.verify(session, chained).n_entries == 6

    @POSTGRES
    def test_refuses_to_empty_the_table(self, world: World, chained: str) -> None:
        with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
            session.execute(text("TRUNCATE ledger_entries"))

        with world.database.reading() as session:
            assert ledger.verify(session, chained).n_entries == 6


class TestVerify:
    """Each change is made by somebody with the database in hand, who drops the trigger first."""

    @pytest.fixture
    def after(self, world: World, chained: str) -> Callable[..., tuple[int | None, str]]:
        """What `verify` finds after some statements; they are undone afterwards."""

        def found_after(*statements: Executable) -> tuple[int | None, str]:
            with rolled_back(world.database) as session:
                if world.database.is_sqlite:
                    for change in ("update", "delete"):
                        session.execute(text(f"DROP TRIGGER ledger_append_only_{change}"))
                else:
                    session.execute(text("DROP TRIGGER ledger_append_only ON ledger_entries"))
                known = ledger.page(session, chained, after_seq=0, limit=10)  # what was read before is no evidence
                for statement in statements:
                    session.execute(statement, execution_options={"synchronize_session": False})
                found = ledger.verify(session, chained)
            assert len(known) == 6
            assert found.ok == (found.broken_at is None)
            return found.broken_at, found.reason

        return found_after

    def test_an_untouched_chain_holds(self, world: World, chained: str, after: Any) -> None:
        assert after() == (None, "")
        with world.database.reading() as session:
            found = ledger.verify(session, chained)
            assert found == ledger.Verification(6, ledger.head(session, chained).hash, None)

    def test_a_chain_without_entries_holds(self, world: World) -> None:
        with world.database.transaction() as session:
            ledger.open_ledger(session, "ds_new")
            assert ledger.verify(session, "ds_new") == ledger.Verification(0, GENESIS_HASH, None)
            assert ledger.balance(session, "ds_new") == Balance(0, 0, 0)

    def test_finds_an_edited_entry(self, after: Any) -> None:
        edits = {
            "id": "led_other",
            "kind": "grant",
            "epsilon_nano": 1,
            "reference": "rnd_other",
            "reservation": None,
            "actor": "key_other",
            "at": NOW + 1,
            "granted_nano": 101,
            "reserved_nano": 29,
            "posted_nano": 9,
            "prev_hash": "f" * 64,
            "hash": "f" * 64,
            "delta_atto": 4,
            "granted_delta_atto": 51,
            "reserved_delta_atto": 14,
            "posted_delta_atto": 6,
        }
        assert set(edits) == set(COLUMNS) - {"dataset_id", "seq"}

        found = {column: after(edit(3, **{column: value})) for column, value in edits.items()}

        assert found == dict.fromkeys(edits, (3, "an entry was changed"))

    def test_finds_an_edit_whose_hash_was_made_to_fit(self, world: World, chained: str, after: Any) -> None:
        with world.database.reading() as session:
            (last,) = ledger.page(session, chained, after_seq=5, limit=1)

        def forge(**values: object) -> list[Executable]:
            columns = {column: getattr(last, column) for column in COLUMNS}
            forged = ledger._hash(LedgerEntry(**columns | values))
            return [edit(6, **values, hash=forged), update(LedgerHead).values(hash=forged)]

        assert after(*forge(epsilon_nano=1_000)) == (6, "a balance does not add up")
        assert after(*forge(delta_atto=1_000)) == (6, "a balance does not add up")
        assert after(*forge(posted_delta_atto=0)) == (6, "a balance does not add up")
        assert after(*forge(kind="refund")) == (6, "an entry is of no known kind")

    @pytest.fixture
    def forged(self, world: World, chained: str) -> Callable[..., list[Executable]]:
        """Entries behind the last one, each kind, epsilon, delta and reservation, that fit but for what they say."""
        with world.database.reading() as session:
            (last,) = ledger.page(session, chained, after_seq=5, limit=1)

        def made(*steps: tuple[str, int, int, str | None]) -> list[Executable]:
            before, statements = last, []
            for kind, epsilon, delta, reservation in steps:
                amounts, seq = Amounts(epsilon, delta), before.seq + 1
                after = ledger.balance_after(before).after(Kind(kind), amounts, reservation)
                columns = {column: getattr(last, column) for column in COLUMNS} | amounts._asdict() | after._asdict()
                columns |= {"id": f"led_{seq}", "seq": seq, "kind": kind, "reference": f"of_{seq}"}
                columns |= {"reservation": reservation, "prev_hash": before.hash}
                before = LedgerEntry(**columns)
                before.hash = ledger._hash(before)
                statements.append(insert(LedgerEntry).values(**columns | {"hash": before.hash}))
            return [*statements, update(LedgerHead).values(seq=before.seq, hash=before.hash)]

        return made

    @pytest.mark.parametrize(
        "steps",
        [
            [("post", 11, 0, "job_b")],
            [("post", 0, 5, "job_b")],
            [("post", 6, 4, "job_b"), ("post", 5, 0, "job_b")],
            [("release", 11, 4, "job_b")],
            [("release", 10, 5, "job_b")],
            [("post", 10, 4, "job_b"), ("release", 1, 0, "job_b")],
            [("release", 10, 4, "job_b"), ("post", 1, 0, "job_b")],
            [("post", 1, 0, "job_a")],  # which released what it had
            [("post", 1, 0, "job_unknown")],
            [("release", 1, 0, None)],
            [("reserve", 1, 0, None)],
        ],
    )
    def test_finds_a_job_that_spent_or_gave_back_what_another_holds(self, after: Any, forged: Any, steps: Any) -> None:
        """No balance tells: what two jobs hold together bears it."""
        held = [("reserve", 10, 4, "job_b"), ("reserve", 10, 4, "job_c")]
        within = [("post", 4, 4, "job_b"), ("post", 10, 0, "job_c"), ("release", 6, 0, "job_b"), ("post", 9, 9, None)]

        assert after(*forged(*held, *within)) == (None, "")
        found = after(*forged(*held, *steps))

        assert found == (8 + len(steps), "a job spent or gave back more than it had reserved")

    @pytest.mark.parametrize("step", [("post", -5, 0, None), ("post", 0, -5, None), ("grant", -5, 0, None)])
    def test_finds_a_negative_amount(self, world: World, after: Any, forged: Any, step: Any) -> None:
        """Made by somebody who lifts the database's own check too."""
        if world.database.is_sqlite:
            lift, restore = ([text(f"PRAGMA ignore_check_constraints = {value}")] for value in ("ON", "OFF"))
        else:
            checks = [check.name for check in LedgerEntry.__table__.constraints if "not_negative" in str(check.name)]
            lift = [text(f'ALTER TABLE ledger_entries DROP CONSTRAINT "{name}"') for name in checks]
            restore = []
            assert len(lift) == 2

        assert after(*lift, *forged(step), *restore) == (7, "an amount is negative")

    def test_holds_no_more_than_jobs_still_do(self) -> None:
        held: dict[str, Amounts] = {}
        for kind, amounts, job in [
            (Kind.RESERVE, Amounts(5, 2), "job_a"), (Kind.RESERVE, Amounts(4), "job_b"),
            (Kind.POST, Amounts(3, 2), "job_a"), (Kind.POST, Amounts(4), "job_b"),
        ]:  # fmt: skip
            assert ledger._is_borne(kind, amounts, job, held)
        assert held == {"job_a": Amounts(2, 0)}
        assert ledger._is_borne(Kind.RELEASE, Amounts(2), "job_a", held)
        assert held == {}

    def test_finds_a_removed_entry(self, after: Any) -> None:
        found = {seq: after(remove(LedgerEntry.seq == seq)) for seq in (1, 3, 5)}

        assert found == {seq: (seq, "an entry is missing") for seq in (1, 3, 5)}

    def test_finds_a_cut_tail(self, after: Any) -> None:
        found = {seq: after(remove(LedgerEntry.seq >= seq)) for seq in (1, 5, 6)}

        assert found == {seq: (seq, "the last entries are missing") for seq in (1, 5, 6)}

    def test_finds_swapped_entries(self, after: Any) -> None:
        assert after(edit(3, seq=100), edit(4, seq=3), edit(100, seq=4)) == (3, "an entry was changed")

    def test_finds_an_end_that_is_not_the_one_written(self, after: Any) -> None:
        assert after(update(LedgerHead).values(hash="f" * 64)) == (6, "the end is not the one that was written")

    def test_finds_an_end_that_was_set_back(self, world: World, chained: str, after: Any) -> None:
        with world.database.reading() as session:
            (fourth,) = ledger.page(session, chained, after_seq=3, limit=1)

        found = after(update(LedgerHead).values(seq=4, hash=fourth.hash))

        assert found == (5, "an entry was added behind the end")

    @pytest.mark.parametrize("unit", ["reading", "transaction"])
    def test_raises_no_false_alarm_while_entries_are_added(self, world: World, chained: str, unit: str) -> None:
        def append() -> int:
            for i in range(60):
                with world.database.transaction() as session:
                    charge(session, chained, "grant", 1, f"grant_{i}", None)
            return 60

        def watch() -> list[ledger.Verification]:
            found: list[ledger.Verification] = []
            while not found or found[-1].n_entries < 66:
                with getattr(world.database, unit)() as session:
                    found.append(ledger.verify(session, chained))
            return found

        appended, seen = together([append, watch])

        assert appended == 60
        assert [each for each in seen if not each.ok] == []

    def test_walks_a_chain_longer_than_a_page(
        self, world: World, chained: str, after: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for size in (1, 2, 5, 6, 7):
            monkeypatch.setattr(ledger, "_ENTRIES_AT_ONCE", size)
            assert after() == (None, "")
            assert after(edit(5, actor="key_other")) == (5, "an entry was changed")


def edit(seq: int, /, **values: object) -> Executable:
    return update(LedgerEntry).where(LedgerEntry.seq == seq).values(values)


def remove(which: Any) -> Executable:
    return delete(LedgerEntry).where(which)
