"""No figure of a forecast gets worse with more reports, more records or a larger epsilon, for any algorithm."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise, product
from typing import Any

import pytest

from sfumato.errors import InvalidSpec
from sfumato.forecast import Forecast, forecast, forecast_central
from sfumato.forecast.noise import plan_variance
from sfumato.model.precision import Verdict
from sfumato.sizing import planned_rounds
from sfumato.specs import CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, ShiftedGrid

NUMBERS = (1_000, 20_000, 50_000, 1_000_000)
EPSILONS = (0.5, 1.0, 4.0)
CHOICES = (*product((None, 3, 16), (2, 3, 6)),)  # clusters, features
ORDER = list(Verdict)  # the best first


def steps() -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    """Yield pairs of a choice and a better one: more reports, or a larger epsilon."""
    for epsilon in EPSILONS:
        yield from pairwise((number, epsilon) for number in NUMBERS)
    for number in NUMBERS:
        yield from pairwise((number, epsilon) for epsilon in EPSILONS)


def table(kind: Any, clusters: int | None, make: Any) -> dict[tuple[int, float], Any]:
    """Return the forecasts that the algorithm supports, by number and epsilon."""
    found = {}
    for number, epsilon in product(NUMBERS, EPSILONS):
        try:
            found[number, epsilon] = make(kind(epsilon, clusters), number)
        except InvalidSpec:
            continue
    return found


def assert_not_worse(worse: Forecast, better: Forecast, where: object) -> None:
    for name in ("size_error", "centre_error", "detectable_mass", "gap_mass"):
        before, after = getattr(worse, name), getattr(better, name)
        assert (before is None) == (after is None), (name, where)
        assert before is None or after <= before * (1 + 1e-12), (name, before, after, where)
    assert worse.n_eff <= better.n_eff
    assert (worse.quality is None) == (better.quality is None)
    bands = [(worse.quality, better.quality), *zip(worse.families, better.families, strict=True)]
    for low, high in bands:
        for name in ("lower", "median", "upper"):
            assert low is None or getattr(low, name) <= getattr(high, name) + 1e-12, (name, where)  # type: ignore[arg-type]
    assert worse.insufficient is not None or better.insufficient is None, where
    assert ORDER.index(better.verdict) <= ORDER.index(worse.verdict), where


class TestOverReports:
    @pytest.mark.parametrize("tag", LOCAL_ALGORITHMS)
    def test_no_figure_gets_worse(self, tag: str) -> None:
        n_compared = 0
        for clusters, n_features in CHOICES:
            made = table(
                LOCAL_ALGORITHMS[tag],
                clusters,
                lambda params, number, d=n_features: forecast(params, n_features=d, expected_reports=number),
            )
            for worse, better in steps():
                # `auto` may select another method, which has other figures
                if worse in made and better in made and type(made[worse].algorithm) is type(made[better].algorithm):
                    assert_not_worse(made[worse], made[better], (tag, clusters, n_features, worse, better))
                    n_compared += 1
        assert n_compared > 50

    def test_the_headline_is_that_of_the_least_favourable_family(self) -> None:
        made = forecast(ShiftedGrid(1.0, 3), n_features=2, expected_reports=20_000)
        assert made.quality is not None
        assert len(made.families) > 1
        for name in ("lower", "median", "upper"):
            assert getattr(made.quality, name) == min(getattr(each, name) for each in made.families)

    def test_errors_cover_those_of_the_finer_grids_of_more_reports(self) -> None:
        """Between 32,000 and 64,000 reports the grid gets finer, and the error of its own plan rises."""
        params, raised = ShiftedGrid(1.0, 3), 0
        for number in range(10_000, 400_000, 10_000):
            stated = forecast(params, n_features=2, expected_reports=number).size_error
            own, before = (
                plan_variance(params, planned_rounds(params, 2, each), each) for each in (number, number - 10_000 or 1)
            )
            assert stated is not None
            assert own is not None
            assert before is not None
            raised += own > before
            assert stated >= 0.75 * (2 / 9 * own) ** 0.5  # interpolated between the places of the lattice
        assert raised > 0


class TestOverRecords:
    @pytest.mark.parametrize(
        ("tag", "delta"),
        [
            (tag, delta)
            for tag, kind in CENTRAL_ALGORITHMS.items()
            for delta in (0.0, 1e-6)
            if delta == 0 or any(field.name == "delta" and field.init for field in fields(kind))
        ],
    )
    def test_no_figure_gets_worse(self, tag: str, delta: float) -> None:
        def kind(epsilon: float, clusters: int | None) -> Any:
            given = {} if delta == 0 else {"delta": delta}
            return CENTRAL_ALGORITHMS[tag](epsilon, clusters, **given)

        for clusters, n_features in CHOICES:
            made = table(kind, clusters, lambda params, number, d=n_features: forecast_central(params, d, number))
            for worse, better in steps():
                if worse not in made or better not in made:
                    continue
                low, high = made[worse], made[better]
                where = (tag, clusters, n_features, worse, better)
                assert (low.ratio is None) == (high.ratio is None)
                for name in ("ratio", "lower", "upper"):
                    assert low.ratio is None or getattr(high, name) <= getattr(low, name) + 1e-12, (name, where)
                assert low.ratio is None or low.ratio == max(each.ratio for each in low.families)
                assert ORDER.index(high.verdict) <= ORDER.index(low.verdict), where
