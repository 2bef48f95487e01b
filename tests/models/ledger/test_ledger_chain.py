"""The hash chain of the ledger: append-only, and verification detects every change."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Executable, delete, insert, text, update
from sqlalchemy.exc import DBAPIError

from models import hash_chain
from models.hash_chain import ChainVerification
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance, balance_after
from models.ledger.replay import Replay
from models.tables.datasets import Trust
from models.tables.ledger import Kind, LedgerEntry, LedgerHead
from sfumato.privacy.ledger import GENESIS_HASH, MU2_MEMBERS
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import NOW, World, charge, rolled_back, together

COLUMNS = [column.key for column in LedgerEntry.__table__.columns]


@pytest.fixture
def chained(world: World) -> str:
    """A dataset with six entries of every kind."""
    dataset = world.new_dataset(epsilon_nano=100, trust=Trust.CENTRAL, delta_atto=50)
    with world.database.transaction() as session:
        charge(session, dataset.id, "reserve", 40, "job_a", None, delta=20)
        charge(session, dataset.id, "charge", 10, "rnd_a", "job_a", delta=5)
        charge(session, dataset.id, "release", 0, "job_a", None)
        charge(session, dataset.id, "charge", 20, "rnd_b", None)
        charge(session, dataset.id, "grant", 5, "grant_b", None)
    return dataset.id


class TestTrigger:
    def test_rejects_changes_and_deletions(self, world: World, chained: str) -> None:
        for change in ("UPDATE ledger_entries SET epsilon_nano = 0", "DELETE FROM ledger_entries"):
            with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
                session.execute(text(change))

        assert world.read(ledger.verify, chained).n_entries == 6

    @on_postgresql
    def test_rejects_truncation(self, world: World, chained: str) -> None:
        with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
            session.execute(text("TRUNCATE ledger_entries"))

        assert world.read(ledger.verify, chained).n_entries == 6


@on_sqlite
class TestVerify:
    """Each test drops the trigger first, as an attacker with access to the database could."""

    @pytest.fixture
    def after(self, world: World, chained: str) -> Callable[..., tuple[int | None, str]]:
        """Return a function that runs statements, verifies the ledger, and rolls back."""

        def found_after(*statements: Executable) -> tuple[int | None, str]:
            with rolled_back(world.database) as session:
                for change in ("update", "delete"):
                    session.execute(text(f"DROP TRIGGER ledger_entries_reject_{change}"))
                known = ledger.page(session, chained, after_seq=0, limit=10)  # cached rows must not be trusted
                for statement in statements:
                    session.execute(statement, execution_options={"synchronize_session": False})
                found = ledger.verify(session, chained)
            assert len(known) == 6
            assert found.ok == (found.broken_at is None)
            return found.broken_at, found.reason

        return found_after

    def test_unchanged_chain_is_valid(self, world: World, chained: str, after: Any) -> None:
        assert after() == (None, "")
        with world.database.reading() as session:
            found = ledger.verify(session, chained)
            assert found == ChainVerification(6, ledger.head(session, chained).hash, None)

    def test_empty_chain_is_valid(self, world: World) -> None:
        with world.database.transaction() as session:
            ledger.open_ledger(session, "ds_new")
            assert ledger.verify(session, "ds_new") == ChainVerification(0, GENESIS_HASH, None)
            assert ledger.balance(session, "ds_new") == Balance(0, 0, 0)

    def test_detects_a_changed_entry(self, after: Any) -> None:
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
            "charged_nano": 9,
            "prev_hash": "f" * 64,
            "hash": "f" * 64,
            "delta_atto": 4,
            "granted_delta_atto": 51,
            "reserved_delta_atto": 14,
            "charged_delta_atto": 6,
            "shuffled_nano": 1,
            "shuffled_delta_atto": 1,
            "granted_shuffled_nano": 1,
            "charged_shuffled_nano": 1,
            "granted_shuffled_delta_atto": 1,
            "charged_shuffled_delta_atto": 1,
            **dict.fromkeys(MU2_MEMBERS, 0),
        }
        assert set(edits) == set(COLUMNS) - {"dataset_id", "seq"}

        mu2 = dict.fromkeys(MU2_MEMBERS, 0)  # the database refuses one without the others
        granted = {name: {name.replace("charged", "granted"): 1} for name in edits if "charged_shuffled" in name}
        found = {
            column: after(edit(3, **mu2 if column in mu2 else {column: value}, **granted.get(column, {})))
            for column, value in edits.items()
        }

        assert found == dict.fromkeys(edits, (3, "an entry was changed"))

    def test_detects_a_change_with_a_recomputed_hash(self, world: World, chained: str, after: Any) -> None:
        (last,) = world.read(ledger.page, chained, after_seq=5, limit=1)

        def forge(**values: object) -> list[Executable]:
            columns = {column: getattr(last, column) for column in COLUMNS}
            forged = hash_chain.hash_entry(LedgerEntry(**columns | values))
            return [edit(6, **values, hash=forged), update(LedgerHead).values(hash=forged)]

        assert after(*forge(epsilon_nano=1_000)) == (6, "a balance does not add up")
        assert after(*forge(delta_atto=1_000)) == (6, "a balance does not add up")
        assert after(*forge(charged_delta_atto=0)) == (6, "a balance does not add up")
        assert after(*forge(kind="refund")) == (6, "the kind of an entry is unknown")

    @pytest.fixture
    def forged(self, world: World, chained: str) -> Callable[..., list[Executable]]:
        """Return a function that appends entries with valid hashes and balances."""
        (last,) = world.read(ledger.page, chained, after_seq=5, limit=1)

        def forge(*steps: tuple[str, int, int, str | None]) -> list[Executable]:
            before, statements = last, []
            for kind, epsilon, delta, reservation in steps:
                amounts, seq = Amounts(epsilon, delta), before.seq + 1
                after = balance_after(before).after(Kind(kind), amounts, reservation)
                columns = {column: getattr(last, column) for column in COLUMNS} | amounts._asdict() | after._asdict()
                columns |= dict.fromkeys(MU2_MEMBERS)  # additive
                columns |= {"id": f"led_{seq}", "seq": seq, "kind": kind, "reference": f"of_{seq}"}
                columns |= {"reservation": reservation, "prev_hash": before.hash}
                before = LedgerEntry(**columns)
                before.hash = hash_chain.hash_entry(before)
                statements.append(insert(LedgerEntry).values(**columns | {"hash": before.hash}))
            return [*statements, update(LedgerHead).values(seq=before.seq, hash=before.hash)]

        return forge

    @pytest.mark.parametrize(
        "steps",
        [
            [("charge", 11, 0, "job_b")],
            [("charge", 0, 5, "job_b")],
            [("charge", 6, 4, "job_b"), ("charge", 5, 0, "job_b")],
            [("release", 11, 4, "job_b")],
            [("release", 10, 5, "job_b")],
            [("charge", 10, 4, "job_b"), ("release", 1, 0, "job_b")],
            [("release", 10, 4, "job_b"), ("charge", 1, 0, "job_b")],
            [("charge", 1, 0, "job_a")],  # has released its reservation
            [("charge", 1, 0, "job_unknown")],
            [("release", 1, 0, None)],
            [("reserve", 1, 0, None)],
        ],
    )
    def test_detects_a_job_that_uses_the_reservation_of_another(self, after: Any, forged: Any, steps: Any) -> None:
        """The balances are valid, because the two jobs together reserved enough."""
        reserved = [("reserve", 10, 4, "job_b"), ("reserve", 10, 4, "job_c")]
        within = [
            ("charge", 4, 4, "job_b"),
            ("charge", 10, 0, "job_c"),
            ("release", 6, 0, "job_b"),
            ("charge", 9, 9, None),
        ]

        assert after(*forged(*reserved, *within)) == (None, "")
        found = after(*forged(*reserved, *steps))

        assert found == (8 + len(steps), "a job charged or released more than it had reserved")

    @pytest.mark.parametrize("step", [("charge", -5, 0, None), ("charge", 0, -5, None), ("grant", -5, 0, None)])
    def test_detects_a_negative_amount(self, after: Any, forged: Any, step: Any) -> None:
        """The test also disables the check constraint."""
        lift, restore = (text(f"PRAGMA ignore_check_constraints = {value}") for value in ("ON", "OFF"))
        assert after(lift, *forged(step), restore) == (7, "an amount is negative")

    def test_detects_a_deleted_entry(self, after: Any) -> None:
        found = {seq: after(remove(LedgerEntry.seq == seq)) for seq in (1, 3, 5)}

        assert found == {seq: (seq, "an entry is missing") for seq in (1, 3, 5)}

    def test_detects_a_deleted_tail(self, after: Any) -> None:
        found = {seq: after(remove(LedgerEntry.seq >= seq)) for seq in (1, 5, 6)}

        assert found == {seq: (seq, "the last entries are missing") for seq in (1, 5, 6)}

    def test_detects_swapped_entries(self, after: Any) -> None:
        assert after(edit(3, seq=100), edit(4, seq=3), edit(100, seq=4)) == (3, "an entry was changed")

    def test_detects_a_changed_head(self, after: Any) -> None:
        assert after(update(LedgerHead).values(hash="f" * 64)) == (6, "the last hash differs from the head's")

    def test_detects_a_head_that_was_set_back(self, world: World, chained: str, after: Any) -> None:
        (fourth,) = world.read(ledger.page, chained, after_seq=3, limit=1)

        found = after(update(LedgerHead).values(seq=4, hash=fourth.hash))

        assert found == (5, "an entry was added after the head's")

    def test_verifies_a_chain_longer_than_a_page(
        self, world: World, chained: str, after: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for size in (1, 2, 5, 6, 7):
            monkeypatch.setattr(hash_chain, "_ENTRIES_PER_PAGE", size)
            assert after() == (None, "")
            assert after(edit(5, actor="key_other")) == (5, "an entry was changed")


def test_memory_is_bounded_by_open_reservations() -> None:
    replay = Replay()
    for kind, amounts, job in [
        (Kind.RESERVE, Amounts(5, 2), "job_a"), (Kind.RESERVE, Amounts(4), "job_b"),
        (Kind.CHARGE, Amounts(3, 2), "job_a"), (Kind.CHARGE, Amounts(4), "job_b"),
    ]:  # fmt: skip
        assert replay._move_reservation(kind, amounts, job)
    assert replay._reserved == {"job_a": Amounts(2, 0)}
    assert replay._move_reservation(Kind.RELEASE, Amounts(2), "job_a")
    assert replay._reserved == {}


class TestConcurrentAppends:
    @pytest.mark.parametrize("unit", ["reading", "transaction"])
    def test_leave_the_chain_valid(self, world: World, chained: str, unit: str) -> None:
        def append() -> int:
            for i in range(60):
                world.write(charge, chained, "grant", 1, f"grant_{i}", None)
            return 60

        def watch() -> list[ChainVerification]:
            found: list[ChainVerification] = []
            while not found or found[-1].n_entries < 66:
                with getattr(world.database, unit)() as session:
                    found.append(ledger.verify(session, chained))
            return found

        appended, seen = together([append, watch])

        assert appended == 60
        assert [each for each in seen if not each.ok] == []


def edit(seq: int, /, **values: object) -> Executable:
    return update(LedgerEntry).where(LedgerEntry.seq == seq).values(values)


def remove(which: Any) -> Executable:
    return delete(LedgerEntry).where(which)
