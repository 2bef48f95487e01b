"""What reservations still hold: the row that says it, and entries behind it that older processes wrote."""

import pytest
from sqlalchemy import delete, event, select, update

from models import ledger, ledger_hold
from models.errors import BudgetExhausted
from models.ledger import Amounts
from models.ledger_hold import Held, LedgerHold
from tests.models.world import World, charge


@pytest.fixture
def book(world: World) -> str:
    """A ledger with 100 granted, of which job_a holds 40."""
    made = world.new_dataset(epsilon_nano=100)
    with world.database.transaction() as session:
        charge(session, made.id, "reserve", 40, "job_a", None)
    return made.id


def enter(world: World, book: str, kind: str, amount: int, reference: str, job_id: str | None = None) -> None:
    with world.database.transaction() as session:
        charge(session, book, kind, amount, reference, job_id)


def left(world: World, book: str, job_id: str = "job_a") -> Amounts:
    with world.database.reading() as session:
        return ledger.reserved_for(session, book, job_id)


def row(world: World, book: str, job_id: str = "job_a") -> Held:
    with world.database.reading() as session:
        return ledger_hold.find(session, book, job_id)


class TestTheRow:
    def test_follows_every_entry_of_its_reservation_and_no_other(self, world: World, book: str) -> None:
        assert row(world, book) == Held(2, 40, 0)
        enter(world, book, "post", 15, "rnd_1", "job_a")
        assert row(world, book) == Held(3, 25, 0)
        enter(world, book, "post", 5, "rnd_2")
        enter(world, book, "reserve", 10, "job_b")
        assert row(world, book) == Held(3, 25, 0)
        assert row(world, book, "job_b") == Held(5, 10, 0)

    def test_goes_when_nothing_is_left(self, world: World, book: str) -> None:
        enter(world, book, "post", 30, "rnd_1", "job_a")
        enter(world, book, "release", 0, "job_a")
        assert row(world, book) == Held()
        assert left(world, book) == Amounts(0, 0)
        with world.database.reading() as session:
            assert session.scalars(select(LedgerHold)).all() == []

    def test_is_undone_with_what_it_tells_of(self, world: World, book: str) -> None:
        with pytest.raises(BudgetExhausted):
            enter(world, book, "post", 41, "rnd_1", "job_a")
        assert row(world, book) == Held(2, 40, 0)

    def test_is_not_charged_twice_by_a_retry(self, world: World, book: str) -> None:
        for _ in range(2):
            enter(world, book, "post", 15, "rnd_1", "job_a")
        assert row(world, book) == Held(3, 25, 0)


class TestOlderProcesses:
    """They write entries and no row."""

    def test_what_they_wrote_behind_the_row_is_added(self, world: World, book: str) -> None:
        enter(world, book, "post", 15, "rnd_1", "job_a")
        with world.database.transaction() as session:
            session.execute(update(LedgerHold).values(seq=2, epsilon_nano=40))  # as it was before that entry

        assert left(world, book) == Amounts(25, 0)
        with pytest.raises(BudgetExhausted):
            enter(world, book, "post", 26, "rnd_2", "job_a")
        enter(world, book, "post", 25, "rnd_3", "job_a")
        assert left(world, book) == Amounts(0, 0)

    def test_a_reservation_without_a_row_is_added_up(self, world: World, book: str) -> None:
        enter(world, book, "post", 15, "rnd_1", "job_a")
        with world.database.transaction() as session:
            session.execute(delete(LedgerHold))

        assert left(world, book) == Amounts(25, 0)
        enter(world, book, "post", 5, "rnd_2", "job_a")
        assert row(world, book) == Held(4, 20, 0)

    def test_a_row_they_left_behind_after_a_release_holds_nothing(self, world: World, book: str) -> None:
        before = row(world, book)
        enter(world, book, "release", 0, "job_a")
        with world.database.transaction() as session:
            ledger_hold.keep(session, book, "job_a", before)

        assert left(world, book) == Amounts(0, 0)
        with pytest.raises(BudgetExhausted):
            enter(world, book, "post", 1, "rnd_1", "job_a")


def test_a_post_reads_no_more_entries_the_more_there_are(world: World, book: str) -> None:
    """Of a reservation's entries the sum reads those behind the row: none."""
    for number in range(20):
        enter(world, book, "post", 1, f"rnd_{number}", "job_a")
    sums = []

    def hear(_c, _cursor, statement, values, _context, _many):  # type: ignore[no-untyped-def]
        if "sum(" in statement:
            sums.append(values)

    event.listen(world.database.engine, "before_cursor_execute", hear)
    enter(world, book, "post", 1, "rnd_last", "job_a")
    event.remove(world.database.engine, "before_cursor_execute", hear)

    (asked,) = sums
    assert 22 in (asked.values() if isinstance(asked, dict) else asked)  # seq of the last entry that is counted in
