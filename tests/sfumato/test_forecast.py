"""Forecasts: what they promise for every algorithm that can be asked for, and what they refuse."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfumato import mechanisms
from sfumato.accounting import EPSILON_MIN_NANO, NANO, cost, parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    Forecast,
    Insufficient,
    Needed,
    forecast,
    forecast_from_wire,
    forecast_to_wire,
    reports_needed,
)
from sfumato.forecast.limits import information
from sfumato.forecast.needs import smallest
from sfumato.forecast.quality import cluster_class, feature_class, quality_of
from sfumato.forecast.table import PLACES, TABLE
from sfumato.sizing import MAX_JSON_INT, planned_rounds
from sfumato.specs import (
    LOCAL_ALGORITHMS,
    MAX_CLUSTERS,
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    Auto,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
    ValleyHashing,
)

epsilons = st.integers(EPSILON_MIN_NANO, 32 * NANO).map(lambda nano: nano / NANO)
numbers = st.one_of(st.integers(1, 10_000_000), st.integers(1, MAX_JSON_INT))
clusters = st.one_of(st.none(), st.integers(1, MAX_CLUSTERS))
variants = st.sampled_from(["sound", "paper"])

algorithms: st.SearchStrategy[Algorithm] = st.one_of(
    st.builds(Auto, epsilons, clusters),
    st.builds(
        ShiftedGrid, epsilons, clusters, cells=st.one_of(st.none(), st.integers(2, 64)), shifts=st.integers(1, 8)
    ),
    st.builds(UniformGrid, epsilons, clusters, st.one_of(st.none(), st.integers(2, 1024)), variants),
    st.builds(AdaptiveGridIterative, epsilons, clusters, st.integers(3, 8), variants),
    st.builds(AdaptiveGridTree, epsilons, clusters, st.one_of(st.none(), st.integers(1, 9)), variants),
    st.builds(ValleyHashing, epsilons, clusters, cuts=st.integers(1, 12)),
    st.builds(PhaseSketch, epsilons, st.one_of(st.none(), st.integers(1, 64))),
    st.builds(NoisyFcm, epsilons, st.integers(2, MAX_CLUSTERS)),
    st.builds(GridKmeans, epsilons, st.integers(1, MAX_CLUSTERS), st.one_of(st.none(), st.integers(2, 1024))),
    st.builds(LdpKmeans, epsilons, st.integers(1, MAX_CLUSTERS), st.integers(3, 32)),
)


def forecast_or_none(algorithm: Algorithm, n_features: int, n_reports: int) -> Forecast | None:
    """The forecast, where there can be one."""
    try:
        return forecast(algorithm, n_features=n_features, expected_reports=n_reports)
    except InvalidSpec:
        return None


def numbers_in(made: Forecast) -> list[float]:
    values = [made.n_eff, made.detectable_mass, made.gap_mass, made.size_error, made.centre_error]
    values += [] if made.quality is None else [made.quality.lower, made.quality.median, made.quality.upper]
    return [value for value in values if value is not None]


class TestEveryForecast:
    def test_is_asked_of_every_algorithm_there_is(self) -> None:
        found = {tag for tag, kind in LOCAL_ALGORITHMS.items() if forecast_or_none(kind(1.0, 2), 3, 1000) is not None}
        assert found == set(LOCAL_ALGORITHMS)

    @settings(deadline=None, max_examples=300)
    @given(algorithms, st.integers(1, 64), numbers)
    def test_is_finite_and_means_what_it_says(self, algorithm: Algorithm, n_features: int, n_reports: int) -> None:
        made = forecast_or_none(algorithm, n_features, n_reports)
        assume(made is not None)
        assert made is not None
        assert all(math.isfinite(value) and value >= 0 for value in numbers_in(made))
        for share in (made.detectable_mass, made.gap_mass, made.size_error, made.centre_error):
            assert share is None or 0 <= share <= 1
        assert 0 < made.epsilon_nano <= parse_epsilon(algorithm.epsilon)
        assert made.epsilon_nano == cost(((each.draw.lo, each.draw.hi), each.epsilon_nano) for each in made.rounds)
        assert all(0 < each.share <= 1 and each.report_bytes > 20 for each in made.rounds)
        assert made.quality is None or 0 <= made.quality.lower <= made.quality.median <= made.quality.upper <= 1
        assert (made.confidence == "none") == (made.insufficient is not None)
        assert isinstance(algorithm, Auto) == (made.reason is not None)
        assert not isinstance(made.algorithm, Auto)
        assert made == forecast_or_none(algorithm, n_features, n_reports)

    @settings(deadline=None, max_examples=100)
    @given(algorithms, st.integers(1, 8), numbers)
    def test_comes_back_equal_through_json(self, algorithm: Algorithm, n_features: int, n_reports: int) -> None:
        made = forecast_or_none(algorithm, n_features, n_reports)
        assume(made is not None)
        assert made is not None
        wire = json.loads(json.dumps(forecast_to_wire(made), allow_nan=False))
        assert forecast_from_wire(wire) == made
        assert forecast_from_wire(wire | {"colour": "red"}) == made

    @settings(deadline=None, max_examples=200)
    @given(algorithms, st.integers(1, 8), numbers, numbers, epsilons)
    def test_gets_no_worse_with_more_reports_or_more_epsilon(
        self, algorithm: Algorithm, n_features: int, fewer: int, more: int, epsilon: float
    ) -> None:
        fewer, more = sorted((fewer, more))
        lower, higher = sorted((algorithm.epsilon, epsilon))
        for worse, better in (
            ((algorithm, fewer), (algorithm, more)),
            ((replace(algorithm, epsilon=lower), fewer), (replace(algorithm, epsilon=higher), fewer)),
        ):
            low, high = (forecast_or_none(asked, n_features, n_reports) for asked, n_reports in (worse, better))
            if low is None or high is None:
                continue
            assert low.n_eff <= high.n_eff
            assert low.gap_mass >= high.gap_mass
            if low.detectable_mass is not None and high.detectable_mass is not None:
                assert low.detectable_mass >= high.detectable_mass * (1 - 1e-12)
            if low.quality is not None and high.quality is not None:
                for name in ("lower", "median", "upper"):
                    assert getattr(low.quality, name) <= getattr(high.quality, name) + 1e-12

    @settings(deadline=None, max_examples=50)
    @given(epsilons, st.integers(2, 20), numbers, numbers)
    def test_of_a_grid_that_stays_knows_sizes_better_with_more_reports(
        self, epsilon: float, cells: int, fewer: int, more: int
    ) -> None:
        fewer, more = sorted((fewer, more))
        asked = ShiftedGrid(epsilon, 3, cells=cells)
        few, many = (forecast(asked, n_features=2, expected_reports=n) for n in (fewer, more))
        assert few.size_error is not None
        assert many.size_error is not None
        assert few.size_error >= many.size_error

    def test_takes_a_cost_that_the_rounds_mechanisms_have(self) -> None:
        asked = UniformGrid(1.0, 3)
        (planned,) = planned_rounds(asked, 2, 10_000)
        assert planned.encoding is not None
        made = mechanisms.design("auto", planned.encoding.n_symbols, NANO)
        (shown,) = forecast(asked, n_features=2, expected_reports=10_000).rounds
        assert shown.epsilon_nano == mechanisms.epsilon_nano(made)
        assert (shown.mechanism, shown.n_symbols) == (made.type, made.n_symbols)
        assert shown.report_bytes == 16 + 4 + mechanisms.value_bytes(made)

    @pytest.mark.parametrize(("n_features", "n_reports"), [(0, 10), (4, 10), (2, 0), (2, MAX_JSON_INT + 1)])
    def test_of_what_cannot_run_is_refused(self, n_features: int, n_reports: int) -> None:
        with pytest.raises(InvalidSpec):
            forecast(ShiftedGrid(1.0), n_features=n_features, expected_reports=n_reports)

    @pytest.mark.parametrize(
        "change",
        [
            {"confidence": "great"},
            {"rounds": None},
            {"rounds": [{"draw": {"lo": "0"}}]},
            {"algorithm": {"type": "x"}},
            {"quality": {"lower": 1}},
            {"quality": []},
        ],
    )
    def test_that_is_none_is_not_read(self, change: dict[str, Any]) -> None:
        wire = forecast_to_wire(forecast(ShiftedGrid(1.0), n_features=2, expected_reports=10))
        with pytest.raises(InvalidSpec):
            forecast_from_wire(wire | change)


class TestWhatIsNotEnough:
    def test_says_what_would_do(self) -> None:
        made = forecast(AdaptiveGridTree(1.0), n_features=2, expected_reports=1000)
        assert made.insufficient is not None
        needed = made.insufficient.reports_needed
        assert needed is not None
        assert str(needed) in made.insufficient.reason
        assert forecast(AdaptiveGridTree(1.0), n_features=2, expected_reports=needed).insufficient is None
        assert forecast(AdaptiveGridTree(1.0), n_features=2, expected_reports=needed - 1).insufficient is not None

    @pytest.mark.parametrize("asked", [AdaptiveGridIterative(1.0), AdaptiveGridTree(1.0)])
    def test_is_said_of_plans_that_do_not_count_below_ten_thousand_effective_reports(self, asked: Algorithm) -> None:
        made = forecast(asked, n_features=2, expected_reports=20_000)
        assert made.insufficient is not None
        assert "everybody would be put in one" in made.insufficient.reason
        assert made.quality is not None
        assert made.quality.upper == 0
        assert made.insufficient.reports_needed == 36_827  # 4e / (e - 1)^2 times ten thousand

    def test_is_not_said_of_a_shifted_grid_that_counts_all_the_same_but_it_is_cautious(self) -> None:
        few = forecast(ShiftedGrid(1.0), n_features=2, expected_reports=20_000)
        assert few.insufficient is None
        assert any("about 36827 would do" in said for said in few.warnings)
        assert forecast(ShiftedGrid(1.0), n_features=2, expected_reports=36_827).warnings == ()

    @pytest.mark.parametrize(
        ("asked", "n_features"),
        [(ShiftedGrid(0.5), 2), (UniformGrid(0.5, 20), 2), (PhaseSketch(0.5, 20), 9), (PhaseSketch(2.0), 5)],
    )
    def test_of_many_clusters_says_it_too(self, asked: Algorithm, n_features: int) -> None:
        few = forecast(asked, n_features=n_features, expected_reports=100)
        assert few.insufficient is not None
        assert few.insufficient.reports_needed is not None
        enough = forecast(asked, n_features=n_features, expected_reports=few.insufficient.reports_needed)
        assert enough.insufficient is None

    def test_may_be_every_number(self) -> None:
        made = forecast(AdaptiveGridTree(0.000001), n_features=2, expected_reports=10**6)
        assert made.insufficient is not None
        assert made.insufficient == Insufficient(None, made.insufficient.reason)
        assert "no number of reports" in made.insufficient.reason

    def test_is_nothing_for_one_cluster(self) -> None:
        assert forecast(ShiftedGrid(0.1, 1), n_features=2, expected_reports=1).insufficient is None


class TestNeeded:
    @pytest.mark.parametrize(
        "wish",
        [{"quality": 0.6}, {"size_error": 0.01}, {"size_error": 0.1}, {"detectable_mass": 0.02}],
        ids=lambda wish: "-".join(map(str, *wish.items())),
    )
    @pytest.mark.parametrize("asked", [Auto(1.0, 3), UniformGrid(2.0, 3), AdaptiveGridTree(1.0, 3)])
    def test_is_the_smallest_number_from_which_on_it_is_met(self, asked: Algorithm, wish: dict[str, float]) -> None:
        ((name, value),) = wish.items()
        found = reports_needed(asked, 2, **wish)
        if found.n_reports is None:
            assert "ceiling" in found.reason
            return

        def is_met(n_reports: int) -> bool:
            made = forecast(asked, n_features=2, expected_reports=n_reports)
            if name == "quality":
                assert made.quality is not None
                return made.quality.median >= value and made.insufficient is None
            return bool(getattr(made, name) <= value)

        assert not is_met(found.n_reports - 1)
        assert all(is_met(int(found.n_reports * factor)) for factor in (1, 1.1, 1.5, 2, 3, 7, 20, 100))
        assert f"{found.n_reports} reports" in found.reason

    @pytest.mark.parametrize(("asked", "n_features"), [(ShiftedGrid(1.0, 3), 2), (PhaseSketch(1.0, 3), 6)])
    def test_is_no_number_that_is_insufficient(self, asked: Algorithm, n_features: int) -> None:
        needed = reports_needed(asked, n_features, quality=0.01).n_reports
        assert needed is not None
        assert forecast(asked, n_features=n_features, expected_reports=needed).insufficient is None
        assert forecast(asked, n_features=n_features, expected_reports=needed - 1).insufficient is not None

    def test_of_a_wish_beyond_the_ceiling_says_where_that_lies(self) -> None:
        found = reports_needed(UniformGrid(1.0, 20), 2, quality=1.0)
        assert found.n_reports is None
        assert "the ceiling is" in found.reason

    def test_of_more_reports_than_can_be_counted_is_none(self) -> None:
        found = reports_needed(ShiftedGrid(0.000001), 2, detectable_mass=0.000001)
        assert found.n_reports is None

    @pytest.mark.parametrize(
        ("asked", "wish"),
        [
            (UniformGrid(1.0, 3, cells=7), {"quality": 0.5}),
            (UniformGrid(1.0, 3, variant="paper"), {"size_error": 0.5}),
            (NoisyFcm(1.0, 3), {"detectable_mass": 0.5}),
        ],
    )
    def test_of_what_does_not_follow_is_none(self, asked: Algorithm, wish: dict[str, float]) -> None:
        found = reports_needed(asked, 2, **wish)
        assert found == Needed(None, found.reason)
        assert "not" in found.reason

    @pytest.mark.parametrize("wish", [{}, {"quality": 0.5, "size_error": 0.5}, {"quality": 0}, {"size_error": 1.1}])
    def test_needs_one_wish_in_range(self, wish: dict[str, float]) -> None:
        with pytest.raises(InvalidSpec):
            reports_needed(ShiftedGrid(1.0), 2, **wish)

    def test_needs_an_algorithm_that_can_run(self) -> None:
        with pytest.raises(InvalidSpec):
            reports_needed(ShiftedGrid(1.0), 5, quality=0.5)

    def test_looks_beyond_a_number_that_meets_it_for_a_while(self) -> None:
        assert smallest(lambda n: 100 <= n < 1000 or n >= 5000) == 5000
        assert smallest(lambda n: n >= 1) == 1
        assert smallest(lambda n: n < 10) is None


class TestQuality:
    def test_is_measured_for_the_grids_in_one_to_three_features(self) -> None:
        for kind in ("shifted_grid", "uniform_grid", "adaptive_grid_iterative", "adaptive_grid_tree"):
            for n_features in (1, 2, 3):
                for n_clusters in (2, 5, 12, None):
                    assert (kind, feature_class(n_features), cluster_class(n_clusters)) in TABLE

    def test_is_measured_for_what_finds_centroids(self) -> None:
        for n_features, clusters in ((4, 3), (6, 12), (8, None), (16, 6), (64, None)):
            assert quality_of(PhaseSketch(2.0, clusters), n_features, 10**6) is not None
        for n_features, clusters in ((1, 2), (2, 5), (3, 12)):
            assert quality_of(GridKmeans(2.0, clusters), n_features, 10**6) is not None
            assert quality_of(LdpKmeans(2.0, clusters), n_features, 10**6) is not None
            assert quality_of(LdpKmeans(2.0, clusters), 20, 10**6) is not None

    @pytest.mark.parametrize(("n_features", "clusters"), [(2, 3), (6, None), (16, 3)])
    def test_that_is_wished_of_auto_takes_a_number_that_forecasts_it(
        self, n_features: int, clusters: int | None
    ) -> None:
        asked = Auto(1.0, clusters)
        needed = reports_needed(asked, n_features, quality=0.8).n_reports
        assert needed is not None
        met, missed = (forecast(asked, n_features=n_features, expected_reports=n).quality for n in (needed, needed - 1))
        assert met is not None
        assert missed is not None
        assert missed.median < 0.8 <= met.median

    def test_tables_rise(self) -> None:
        assert list(PLACES) == sorted(PLACES)
        for n_runs, *quartiles in TABLE.values():
            assert n_runs >= 3
            assert all(len(quartile) == len(PLACES) and list(quartile) == sorted(quartile) for quartile in quartiles)
            assert all(0 <= a <= b <= c <= 1 for a, b, c in zip(*quartiles, strict=True))

    def test_is_read_between_rows_and_held_outside_of_them(self) -> None:
        _, *quartiles = TABLE["shifted_grid", "2", "2-3"]
        asked = ShiftedGrid(1.0, 2)
        at = [10**place / information(1, NANO) for place in PLACES]
        first, last = quality_of(asked, 2, 1), quality_of(asked, 2, MAX_JSON_INT)
        assert first is not None
        assert last is not None
        assert (first.lower, first.median, first.upper) == tuple(q[0] for q in quartiles)
        assert (last.lower, last.median, last.upper) == pytest.approx(tuple(q[-1] for q in quartiles))
        between = quality_of(asked, 2, round(math.sqrt(at[3] * at[4])))
        assert between is not None
        assert between.median == pytest.approx((quartiles[1][3] + quartiles[1][4]) / 2, abs=0.01)

    @pytest.mark.parametrize(
        "asked", [ShiftedGrid(1.0, 1), ShiftedGrid(1.0, 2, shifts=2), UniformGrid(1.0, 2, variant="paper"), Auto(1.0)]
    )
    def test_is_not_told_of_what_was_not_measured(self, asked: Algorithm) -> None:
        assert quality_of(asked, 2, 1000) is None

    def test_decides_the_word(self) -> None:
        words = {forecast(ShiftedGrid(1.0, 2), n_features=2, expected_reports=10**n).confidence for n in range(2, 9)}
        assert {"none", "low"} & words
        assert {"fair", "high"} & words
        assert forecast(ValleyHashing(8.0, 2), n_features=2, expected_reports=10**9).confidence == "low"
