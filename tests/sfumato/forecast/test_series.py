"""Forecasts of series: their cost, and the changes that they find."""

from fractions import Fraction
from itertools import pairwise

import pytest

from sfumato import ShiftedGrid
from sfumato.errors import InvalidSpec
from sfumato.forecast import SeriesRelease, forecast_series, series_forecast_from_wire, series_forecast_to_wire
from sfumato.mechanisms import design
from sfumato.model.precision import precision


def test_the_cost_is_that_of_a_window_a_cycle_and_a_year() -> None:
    found = forecast_series(ShiftedGrid(epsilon=1), n_features=2, target_reports=100_000, cycle=13)
    assert (found.epsilon_per_window, found.epsilon_per_cycle, found.epsilon_per_year) == (1.0, 1.0, 4.0)
    assert found.reports_per_window == 7692
    assert found.n_eff == pytest.approx(2089, abs=1)
    assert series_forecast_from_wire(series_forecast_to_wire(found)) == found


def test_a_shift_has_one_cell_less_along_a_circle() -> None:
    release = SeriesRelease(90_000, Fraction(1), 10**12)
    given = {"n_features": 2, "target_reports": 100_000, "cycle": 1, "release": release}
    plain, mixed, torus = (
        forecast_series(ShiftedGrid(epsilon=1, cells=8), circles=circles, **given)  # type: ignore[arg-type]
        for circles in ((), (1,), (0, 1))
    )
    for found, n_symbols in ((plain, 81), (mixed, 72), (torus, 64)):
        assert found.n_eff == 100_000 * precision(design("auto", n_symbols, 10**9)).signal
    changes = [each.smallest_changes[0].share for each in (plain, mixed, torus)]
    assert changes == sorted(changes, reverse=True)
    assert len(set(changes)) == len({each.releases for each in (plain, mixed, torus)}) == 3


def test_small_windows_never_find_a_small_change_and_say_so() -> None:
    found = forecast_series(ShiftedGrid(epsilon=0.5), n_features=2, target_reports=5000, cycle=1)
    assert [each.windows for each in found.delays][:2] == [None, None]
    assert "never found" in found.warnings[0]
    assert "effective reports" in found.warnings[1]


@pytest.mark.parametrize("n_features", [1, 2, 3])
def test_more_reports_find_smaller_changes_sooner(n_features: int) -> None:
    made = [
        forecast_series(ShiftedGrid(epsilon=1, cells=8), n_features=n_features, target_reports=n, cycle=1)
        for n in (10_000, 100_000, 10_000_000)
    ]
    for one, other in pairwise(made):
        for worse, better in zip(one.smallest_changes, other.smallest_changes, strict=True):
            assert (better.share or 1) < (worse.share or 1.01)
        for worse, better in zip(one.delays, other.delays, strict=True):
            assert (better.windows or 99) <= (worse.windows or 99)
    assert made[-1].warnings == ()


def test_the_interval_of_a_delay_contains_it_and_narrows_with_the_signal() -> None:
    def ends(n: int) -> list[tuple[int, int, int]]:
        made = forecast_series(ShiftedGrid(epsilon=1, cells=16), n_features=2, target_reports=n, cycle=1).delays
        return [(each.earliest or 99, each.windows or 99, each.latest or 99) for each in made]

    few, many = ends(30_000), ends(1_000_000)
    assert all(first <= windows <= last for first, windows, last in few + many)
    assert few[1][0] < few[1][1] < few[1][2]
    assert many[1] == (1, 1, 1)


def test_changes_of_a_wide_cluster_are_found_later() -> None:
    narrow, wide = (
        forecast_series(ShiftedGrid(epsilon=1), n_features=2, target_reports=30_000, cycle=1, cluster_width=width)
        for width in (0.03, 0.08)
    )
    assert (narrow.delays[1].windows or 99) < (wide.delays[1].windows or 99)
    assert narrow.smallest_changes[0].share < wide.smallest_changes[0].share  # type: ignore[operator]
    with pytest.raises(InvalidSpec, match=r"cluster_width must be from 0\.01 to 0\.3"):
        forecast_series(ShiftedGrid(epsilon=1), n_features=2, target_reports=1000, cycle=1, cluster_width=0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cycle": 0}, "cycle must be at least 1, not 0"),
        ({"target_reports": 0}, "target_reports must be at least 1, not 0"),
        ({"max_records_per_user": 0}, "max_records_per_user must be at least 1, not 0"),
        ({"every": "hour"}, "every must be one of day, week, month, not 'hour'"),
        ({"least_change": 0.6}, "least_change must be from 0 to 0.5, not 0.6"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, object], message: str) -> None:
    given = {"n_features": 2, "target_reports": 1000, "cycle": 1} | wrong
    with pytest.raises(InvalidSpec, match=message):
        forecast_series(ShiftedGrid(epsilon=1), **given)  # type: ignore[arg-type]
