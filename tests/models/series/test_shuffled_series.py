"""Series over shuffled datasets: a cycle costs the release of one window, and the budget must cover all cycles."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from models.collection import releases
from models.errors import BudgetExhausted, Conflict
from models.ledger import ledger
from models.series import series
from models.tables.datasets import Dataset, OutOfBounds, Trust
from models.tables.ledger import Kind
from models.tables.rounds import ReleaseTerms, Round
from models.tables.series import SeriesState
from sfumato.errors import InvalidSpec
from sfumato.privacy.accountant import Cost, cost_of_releases
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.records.outside import count_outside
from sfumato.settings import Shuffler
from sfumato.sizing import planned_rounds
from sfumato.specs import local_algorithm_from_wire
from tests.models.series.test_series import ALGORITHM, Run, at, create, starts
from tests.models.world import World

TERMS = ReleaseTerms(800, NANO // 2, ATTO // 10**6)
PLAN: dict[str, Any] = {"target_reports": 3000, "release": TERMS}  # three windows of 1,000 devices

LATER = PLAN | {"n_windows": 3, "first": date(2027, 2, 8)}


def shuffled(world: World, **given: Any) -> Dataset:
    """Create a dataset with a large budget towards the service."""
    world.now = at("2027-01-15 12:00")
    shuffler = Shuffler("s", "https://shuffler.example", "")
    options = {"shuffled": (8 * NANO, ATTO // 1000), "out_of_bounds": OutOfBounds.CLIP, **given}
    return world.new_dataset(trust=Trust.SHUFFLED, shuffler=shuffler, epsilon_nano=NANO, **options)


def open_next(run: Run) -> Round:
    """Open the round of the next window, with the grid of the series."""
    (job_id,) = run.advance(starts(run, len(run.windows) - 1))
    (planned,) = planned_rounds(local_algorithm_from_wire(ALGORITHM), 2, 1000)
    published = planned.spec(run.dataset.features)
    counts = run.dataset.out_of_bounds == OutOfBounds.COUNT
    opened = run.open_round(job_id, count_outside(published) if counts else published)
    run.cancel(job_id)
    return opened


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)  # the next test charges releases on both
@pytest.mark.parametrize("accounting", ["additive", "gaussian"])
@pytest.mark.parametrize("out_of_bounds", [OutOfBounds.CLIP, OutOfBounds.COUNT])
def test_a_cycle_costs_the_release_of_one_window(world: World, accounting: str, out_of_bounds: OutOfBounds) -> None:
    """Its windows have disjoint draws, so that the second one costs nothing, and the next cycle the same again."""
    run = Run.create(world, shuffled(world, accounting=accounting, out_of_bounds=out_of_bounds), **PLAN)
    of_window = run.row.release_cost
    assert of_window.epsilon_nano > 0
    assert (of_window.mu2_pico > 0) == (accounting == "gaussian")
    opened = [open_next(run) for _ in range(4)]
    assert [each.release for each in opened] == [TERMS] * 4
    assert [each.collection_id for each in opened] == [f"{run.id}-0"] * 3 + [f"{run.id}-1"]
    charges = world.read(ledger.page, run.dataset.id, after_seq=0, limit=99, kind=Kind.CHARGE)
    costs = [Cost(each.shuffled_nano, each.shuffled_delta_atto, each.mu2_pico or 0) for each in charges]
    nothing = Cost(0, 0, 0)
    assert costs == [of_window, nothing, nothing, of_window]
    assert [each.epsilon_nano for each in charges] == [NANO, 0, 0, NANO]
    run.entries()  # verifies the ledger twice
    with world.database.reading() as session:
        assert releases.find_wrong_charge(session, run.dataset.id) == ""


def test_the_budget_must_cover_the_releases_of_all_cycles(world: World) -> None:
    """A series counts the cycles that other series have not begun."""
    nano = Run.create(world, shuffled(world), **PLAN).row.shuffled_nano or 0
    dataset = shuffled(world, shuffled=(3 * nano, ATTO // 1000))
    run = Run.create(world, dataset, **PLAN)
    with pytest.raises(BudgetExhausted, match="needs shuffled epsilon") as refused:
        create(world, dataset, **PLAN)
    assert (refused.value.requested, refused.value.granted) == (4 * nano, 3 * nano)
    open_next(run)
    open_next(run)
    create(world, dataset, **LATER)  # one cycle is charged, and two are planned
    with pytest.raises(BudgetExhausted):
        create(world, dataset, **LATER)
    world.write(series.change, world.caller, run.id, name=None, state=SeriesState.ENDED, now=world.now)
    create(world, dataset, **LATER)
    assert ledger_of(world, dataset).charged_shuffled_nano == nano


def test_delta_counts_as_well(world: World) -> None:
    dataset = shuffled(world, shuffled=(8 * NANO, 2 * TERMS.delta_atto - 1))
    with pytest.raises(BudgetExhausted, match="needs shuffled delta"):
        create(world, dataset, **PLAN)
    assert len(world.chain(dataset.id)) == 1


def ledger_of(world: World, dataset: Dataset) -> ledger.Balance:
    """Return the balance of a dataset."""
    return world.read(ledger.balance, dataset.id)


def test_a_release_larger_than_windows_expect_is_refused(world: World) -> None:
    many = replace(TERMS, min_batch=1000)
    with pytest.raises(InvalidSpec, match=r"windows expect 9\d\d reports at least"):
        create(world, shuffled(world), **PLAN | {"release": many})


def test_terms_belong_to_shuffled_datasets_alone(world: World) -> None:
    for dataset, terms in ((shuffled(world), None), (world.new_dataset(), TERMS)):
        with pytest.raises(Conflict, match="terms of a release"):
            create(world, dataset, **PLAN | {"release": terms})


def test_the_cost_of_many_releases() -> None:
    """Additive costs add up. Gaussian ones cost less epsilon than their sum, at twice the sum of the deltas."""
    release = Cost(NANO // 2, ATTO // 10**6, 4 * 10**10)
    assert cost_of_releases("additive", release, 4) == (2 * NANO, 4 * release.delta_atto)
    assert cost_of_releases("additive", release, 65) == (None, 65 * release.delta_atto)
    nano, atto = cost_of_releases("gaussian", release, 52)
    assert nano is not None
    assert nano < 26 * NANO
    assert atto == 104 * release.delta_atto
