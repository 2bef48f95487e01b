"""Revisions of a series: they begin with a cycle, keep within the total, and leave earlier windows as they are."""

from typing import Any

import pytest

from models.collection import rounds
from models.errors import BudgetExhausted, Conflict
from models.series import revisions, series
from models.tables.jobs import Job
from models.tables.rounds import ReleaseTerms
from models.tables.series import SeriesRevision, SeriesState
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from tests.models.series.test_series import Run, starts
from tests.models.series.test_shuffled_series import LATER, TERMS, open_next, shuffled
from tests.models.world import World

CHEAPER = {"algorithm": {"type": "shifted_grid", "epsilon": 0.5, "cells": 5}, "epsilon_nano": NANO // 2, "season": 2}


def revise(run: Run, changed: dict[str, Any], release: ReleaseTerms | None = None) -> SeriesRevision:
    """Revise a series as its owner."""
    with run.world.database.transaction() as session:
        locked = series.get(session, run.world.caller, run.id, lock=True)
        return revisions.revise(session, run.world.caller, locked, changed, release=release, now=run.world.now)


def revisions_of(run: Run) -> list[tuple[int, int, int]]:
    """Return the number, the first window and the cost of each revision."""
    with run.world.database.reading() as session:
        rows = revisions.page(session, run.row, after_seq=0, limit=9)
        return [(each.number, each.first_window, each.epsilon_nano) for each in rows]


@pytest.fixture
def run(world: World) -> Run:
    from tests.models.series.test_series import at

    world.now = at("2027-01-15 12:00")
    return Run.create(world)


def test_a_revision_begins_with_the_next_cycle(run: Run) -> None:
    """Cycle 0 has begun, so its other windows keep their terms and its cost."""
    (first,) = run.advance(starts(run, 0))
    run.cancel(first)
    assert revise(run, CHEAPER).first_window == 3
    opened = [run.advance(starts(run, index)) for index in range(1, 4)]
    with run.world.database.reading() as session:
        algorithms = [session.get_one(Job, job_id).algorithm["cells"] for (job_id,) in opened]
    assert algorithms == [4, 4, 5]
    assert [each.revision for each in run.windows[:4]] == [0, 0, 0, 1]
    assert (run.row.epsilon_nano, run.row.season, run.row.revision) == (NANO // 2, 2, 1)
    grants = run.entries("grant", "reserve")
    assert [amount for _, amount, _ in grants] == [NANO, NANO, NANO // 2, NANO // 2]
    assert revisions_of(run) == [(0, 0, NANO), (1, 3, NANO // 2)]


def test_a_revision_before_the_first_window_applies_at_once(run: Run) -> None:
    """No window will have the former terms, so that the series states the new ones."""
    assert revise(run, CHEAPER).first_window == 0
    assert (run.row.epsilon_nano, run.row.season, run.row.revision) == (NANO // 2, 2, 1)
    run.advance(starts(run, 0))
    assert run.windows[0].revision == 1
    assert [amount for _, amount, _ in run.entries("grant")] == [NANO // 2]


def test_a_series_has_the_terms_of_its_next_window(run: Run) -> None:
    run.advance(starts(run, 0))
    revise(run, CHEAPER)
    run.advance(starts(run, 1))
    assert (run.row.epsilon_nano, run.row.revision) == (NANO, 0)
    run.advance(starts(run, 2))
    assert (run.row.epsilon_nano, run.row.revision) == (NANO // 2, 1)
    assert [each.revision for each in run.windows] == [0, 0, 0, 1]
    run.advance(starts(run, 3))
    assert [amount for _, amount, _ in run.entries("grant")] == [NANO, NANO // 2]


def test_a_revision_that_has_not_begun_is_replaced(run: Run) -> None:
    run.advance(starts(run, 0))
    revise(run, CHEAPER)
    assert revise(run, {"season": 3}).number == 1
    assert revisions_of(run) == [(0, 0, NANO), (1, 3, NANO)]


def test_a_revision_of_the_next_window_is_replaced_and_its_other_terms_stay(run: Run) -> None:
    revise(run, CHEAPER)
    assert revise(run, {"season": 3}).number == 1
    assert revisions_of(run) == [(0, 0, NANO), (1, 0, NANO // 2)]
    assert (run.row.season, run.row.revision, run.windows[0].revision) == (3, 1, 1)
    with pytest.raises(InvalidSpec, match="has these terms already"):
        revise(run, {"season": 3})


def test_later_cycles_must_not_cost_more_than_what_is_left(run: Run) -> None:
    dearer = CHEAPER | {"epsilon_nano": 2 * NANO}
    run.advance(starts(run, 0))
    with pytest.raises(InvalidSpec, match="the later 1 cycles cost epsilon 2, and 1 of the total is left"):
        revise(run, dearer)
    roomy = Run.create(run.world, total_nano=5 * NANO, first=LATER["first"])
    assert revise(roomy, dearer).number == 1
    assert revisions_of(run) == [(0, 0, NANO)]


def test_the_last_cycle_and_an_ended_series_have_no_revision(run: Run) -> None:
    for index in range(4):
        run.advance(starts(run, index))
    with pytest.raises(Conflict, match="the last cycle of this series has begun"):
        revise(run, CHEAPER)
    run.world.write(series.change, run.world.caller, run.id, name=None, state=SeriesState.ENDED, now=run.world.now)
    with pytest.raises(Conflict, match="has ended"):
        revise(run, CHEAPER)


def test_a_shuffled_revision_has_a_release_of_its_own(world: World) -> None:
    """The later cycle costs what its terms cost, also for the series that are created later."""
    of = shuffled(world)
    run = Run.create(world, of, target_reports=3000, release=TERMS)
    open_next(run)
    smaller = ReleaseTerms(400, TERMS.honest_share_nano, TERMS.delta_atto)
    with pytest.raises(Conflict, match="terms of a release"):
        revise(run, {"season": 2})
    found = revise(run, {"season": 2}, smaller)
    assert (found.shuffled_nano or 0) > (run.row.shuffled_nano or 0)
    for _ in range(2):
        open_next(run)
    opened = open_next(run)
    assert opened.release == smaller
    assert opened.shuffled_nano == found.shuffled_nano
    with world.database.reading() as session:
        assert len(rounds.list_for_collection(session, f"{run.id}-1")) == 1
    poor = shuffled(world, shuffled=(2 * (found.shuffled_nano or 0) - 1, 10**15))
    other = Run.create(world, poor, target_reports=3000, release=TERMS)
    with pytest.raises(BudgetExhausted):
        revise(other, {"season": 2}, smaller)
