"""The remaining reservation of a job: one row, so that a charge reads no earlier charges."""

import pytest
from sqlalchemy import event, select

from models.errors import BudgetExhausted
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.ledger import LedgerReservation
from tests.models.world import World, charge

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


@pytest.fixture
def dataset_id(world: World) -> str:
    """A ledger with 100 granted, of which job_a has reserved 40."""
    dataset = world.new_dataset(epsilon_nano=100)
    enter(world, dataset.id, "reserve", 40, "job_a")
    return dataset.id


def enter(world: World, dataset_id: str, kind: str, amount: int, reference: str, job_id: str | None = None) -> None:
    world.write(charge, dataset_id, kind, amount, reference, job_id)


def remaining(world: World, dataset_id: str, job_id: str = "job_a") -> Amounts:
    return world.read(ledger.reserved_for, dataset_id, job_id)


class TestRemainingReservation:
    def test_changes_with_the_entries_of_its_job_only(self, world: World, dataset_id: str) -> None:
        assert remaining(world, dataset_id) == Amounts(40)
        enter(world, dataset_id, "charge", 15, "rnd_1", "job_a")
        enter(world, dataset_id, "charge", 5, "rnd_2")
        enter(world, dataset_id, "reserve", 10, "job_b")
        assert remaining(world, dataset_id) == Amounts(25)
        assert remaining(world, dataset_id, "job_b") == Amounts(10)

    def test_row_is_deleted_when_nothing_remains(self, world: World, dataset_id: str) -> None:
        enter(world, dataset_id, "charge", 30, "rnd_1", "job_a")
        enter(world, dataset_id, "release", 0, "job_a")
        assert remaining(world, dataset_id) == Amounts(0)
        with world.database.reading() as session:
            assert session.scalars(select(LedgerReservation)).all() == []
        with pytest.raises(BudgetExhausted):
            enter(world, dataset_id, "charge", 1, "rnd_2", "job_a")

    def test_rejected_charge_does_not_change_it(self, world: World, dataset_id: str) -> None:
        with pytest.raises(BudgetExhausted):
            enter(world, dataset_id, "charge", 41, "rnd_1", "job_a")
        assert remaining(world, dataset_id) == Amounts(40)

    def test_repeated_charge_changes_it_once(self, world: World, dataset_id: str) -> None:
        for _ in range(2):
            enter(world, dataset_id, "charge", 15, "rnd_1", "job_a")
        assert remaining(world, dataset_id) == Amounts(25)

    def test_charge_sums_no_earlier_entries(self, world: World, dataset_id: str) -> None:
        statements: list[str] = []
        event.listen(world.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        enter(world, dataset_id, "charge", 1, "rnd_1", "job_a")
        assert statements
        assert not any("sum(" in statement for statement in statements)
