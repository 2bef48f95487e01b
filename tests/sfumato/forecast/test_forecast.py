"""Forecasts over reports: properties for every algorithm, required reports, and refusals."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfumato import mechanisms
from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    Band,
    Forecast,
    Insufficient,
    Needed,
    forecast,
    forecast_from_wire,
    forecast_to_wire,
    reports_needed,
)
from sfumato.forecast.inverse import smallest
from sfumato.forecast.noise import information
from sfumato.forecast.quality import PLACES, TABLE, cluster_class, feature_class, quality_of
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import EPSILON_MIN_NANO, NANO, cost, parse_epsilon
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import MAX_JSON_INT
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
)
from sfumato.specs.attributes import Categorical

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
    st.builds(PhaseSketch, epsilons, st.one_of(st.none(), st.integers(1, 64))),
    st.builds(NoisyFcm, epsilons, st.integers(2, MAX_CLUSTERS)),
    st.builds(GridKmeans, epsilons, st.integers(1, MAX_CLUSTERS), st.one_of(st.none(), st.integers(2, 1024))),
    st.builds(LdpKmeans, epsilons, st.integers(1, MAX_CLUSTERS), st.integers(3, 32)),
)


def forecast_or_none(algorithm: Algorithm, n_features: int, n_reports: int) -> Forecast | None:
    """Return the forecast, or None if the algorithm cannot run."""
    try:
        return forecast(algorithm, n_features=n_features, expected_reports=n_reports)
    except InvalidSpec:
        return None


def numbers_in(made: Forecast) -> list[float]:
    values = [made.n_eff, made.detectable_mass, made.gap_mass, made.size_error, made.centre_error]
    values += [] if made.quality is None else [made.quality.lower, made.quality.median, made.quality.upper]
    return [value for value in values if value is not None]


class TestEveryForecast:
    def test_covers_every_algorithm(self) -> None:
        found = {tag for tag, kind in LOCAL_ALGORITHMS.items() if forecast_or_none(kind(1.0, 2), 3, 1000) is not None}
        assert found == set(LOCAL_ALGORITHMS)

    @settings(max_examples=80)
    @given(algorithms, st.integers(1, 64), numbers)
    def test_is_consistent_and_equal_through_json(self, algorithm: Algorithm, n_features: int, n_reports: int) -> None:
        made = forecast_or_none(algorithm, n_features, n_reports)
        assume(made is not None)
        assert made is not None
        assert all(math.isfinite(value) and value >= 0 for value in numbers_in(made))
        for share in (made.detectable_mass, made.gap_mass, made.size_error, made.centre_error):
            assert share is None or 0 <= share <= 1
        assert 0 < made.epsilon_nano <= parse_epsilon(algorithm.epsilon)
        assert made.epsilon_nano == cost(
            ((each.participation.lo, each.participation.hi), each.epsilon_nano) for each in made.rounds
        )
        assert all(0 < each.share <= 1 and each.report_bytes > 20 for each in made.rounds)
        assert made.quality is None or 0 <= made.quality.lower <= made.quality.median <= made.quality.upper <= 1
        assert made.insufficient is None or made.verdict is Verdict.DOUBTFUL
        assert isinstance(algorithm, Auto) == (made.reason is not None)
        assert not isinstance(made.algorithm, Auto)
        assert made == forecast_or_none(algorithm, n_features, n_reports)
        wire = json.loads(json.dumps(forecast_to_wire(made), allow_nan=False))
        assert forecast_from_wire(wire) == made
        assert forecast_from_wire(wire | {"colour": "red"}) == made

    @settings(max_examples=60)
    @given(algorithms, st.integers(1, 8), numbers, numbers, epsilons)
    def test_improves_with_reports_and_epsilon(
        self, algorithm: Algorithm, n_features: int, fewer: int, more: int, epsilon: float
    ) -> None:
        fewer, more = sorted((fewer, more))
        lower, higher = sorted((algorithm.epsilon, epsilon))
        for worse, better in (
            ((algorithm, fewer), (algorithm, more)),
            ((replace(algorithm, epsilon=lower), fewer), (replace(algorithm, epsilon=higher), fewer)),
        ):
            low, high = (forecast_or_none(each, n_features, n_reports) for each, n_reports in (worse, better))
            if low is None or high is None:
                continue
            assert low.n_eff <= high.n_eff
            assert low.gap_mass >= high.gap_mass
            if low.detectable_mass is not None and high.detectable_mass is not None:
                assert low.detectable_mass >= high.detectable_mass * (1 - 1e-12)
            if low.quality is not None and high.quality is not None:
                for name in ("lower", "median", "upper"):
                    assert getattr(low.quality, name) <= getattr(high.quality, name) + 1e-12

    @pytest.mark.parametrize(("epsilon", "cells"), [(0.1, 2), (1.0, 9), (8.0, 20)])
    def test_errors_of_sizes_decrease_with_reports(self, epsilon: float, cells: int) -> None:
        algorithm = ShiftedGrid(epsilon, 3, cells=cells)
        errors = [forecast(algorithm, n_features=2, expected_reports=10**n).size_error for n in range(9)]
        assert errors == sorted(errors, reverse=True)  # type: ignore[type-var]

    def test_has_the_cost_of_the_mechanisms_of_its_rounds(self) -> None:
        algorithm = UniformGrid(1.0, 3)
        (planned,) = planned_rounds(algorithm, 2, 10_000)
        assert planned.encoding is not None
        mechanism = mechanisms.design("auto", planned.encoding.n_symbols, NANO)
        (shown,) = forecast(algorithm, n_features=2, expected_reports=10_000).rounds
        assert shown.epsilon_nano == mechanism.epsilon_nano()
        assert (shown.mechanism, shown.n_symbols) == (mechanism.type, mechanism.n_symbols)
        assert shown.report_bytes == 16 + 4 + mechanism.value_bytes

    @pytest.mark.parametrize(("n_features", "n_reports"), [(0, 10), (4, 10), (2, 0), (2, MAX_JSON_INT + 1)])
    def test_refuses_impossible_numbers(self, n_features: int, n_reports: int) -> None:
        with pytest.raises(InvalidSpec):
            forecast(ShiftedGrid(1.0), n_features=n_features, expected_reports=n_reports)

    @pytest.mark.parametrize(
        "change",
        [
            {"verdict": "great"},
            {"rounds": [{"participation": {"lo": "0"}}]},
            {"algorithm": {"type": "x"}},
            {"quality": {"lower": 1}},
        ],
    )
    def test_refuses_an_invalid_document(self, change: dict[str, Any]) -> None:
        wire = forecast_to_wire(forecast(ShiftedGrid(1.0), n_features=2, expected_reports=10))
        with pytest.raises(InvalidSpec):
            forecast_from_wire(wire | change)


class TestInsufficient:
    def test_states_the_required_reports(self) -> None:
        made = forecast(AdaptiveGridTree(1.0), n_features=2, expected_reports=1000)
        assert made.insufficient is not None
        needed = made.insufficient.reports_needed
        assert needed is not None
        assert str(needed) in made.insufficient.reason
        assert forecast(AdaptiveGridTree(1.0), n_features=2, expected_reports=needed).insufficient is None
        assert forecast(AdaptiveGridTree(1.0), n_features=2, expected_reports=needed - 1).insufficient is not None

    def test_attributes_of_phases_need_more_reports(self) -> None:
        attributes = tuple(Categorical(f"a{place}", ["p", "q"], use="cluster") for place in range(4))
        needed = []
        for n_attributes in range(5):
            made = forecast(
                PhaseSketch(1.0, 3), n_features=3, expected_reports=10, attributes=attributes[:n_attributes]
            )
            assert made.insufficient is not None
            assert made.insufficient.reports_needed is not None
            needed.append(made.insufficient.reports_needed / 1000 * math.tanh(0.5) ** 2)
        assert needed == pytest.approx([1.0, 1.4, 1.9, 2.2, 2.2], rel=1e-3)

    def test_clusters_of_categories_must_stand_out_too(self) -> None:
        attributes = (Categorical("a", ["p", "q"], use="cluster"),)
        n_reports = 40_000  # twice what two categories need
        few, many = (
            forecast(ShiftedGrid(2.0, k), n_features=2, expected_reports=n_reports, attributes=attributes)
            for k in (8, 64)
        )
        assert few.insufficient is None
        plain = forecast(ShiftedGrid(2.0, 64), n_features=2, expected_reports=n_reports)
        assert many.insufficient == plain.insufficient is not None
        both = forecast(ShiftedGrid(2.0, 64), n_features=2, expected_reports=1000, attributes=attributes)
        assert both.insufficient is not None
        assert plain.insufficient is not None
        assert both.insufficient.reports_needed == plain.insufficient.reports_needed

    def test_quality_with_attributes_of_phases_is_not_forecast(self) -> None:
        attribute = Categorical("a", ["p", "q"], use="cluster")
        made = forecast(PhaseSketch(1.0, 4), n_features=4, expected_reports=100_000, attributes=(attribute,))
        plain = forecast(PhaseSketch(1.0, 4), n_features=4, expected_reports=100_000)
        assert plain.quality is not None
        assert made.quality is None
        assert any("was not measured" in each for each in made.warnings)
        one_round = forecast(PhaseSketch(1.0, 4, refine="none"), n_features=4, expected_reports=100_000)
        assert one_round.detectable_mass is not None
        assert made.detectable_mass == pytest.approx(one_round.detectable_mass * math.sqrt(1.4))

    @pytest.mark.parametrize("algorithm", [AdaptiveGridIterative(1.0), AdaptiveGridTree(1.0)])
    def test_plans_that_need_ten_thousand_effective_reports(self, algorithm: Algorithm) -> None:
        made = forecast(algorithm, n_features=2, expected_reports=20_000)
        assert made.insufficient is not None
        assert "all people would be in one cluster" in made.insufficient.reason
        assert made.quality is not None
        assert made.quality.upper == 0
        assert made.insufficient.reports_needed == 36_827  # 4e / (e - 1)^2 times ten thousand

    def test_a_shifted_grid_warns_about_few_reports(self) -> None:
        few = forecast(ShiftedGrid(1.0), n_features=2, expected_reports=20_000)
        assert few.insufficient is None
        assert any("About 36827 reports are enough" in warning for warning in few.warnings)
        assert forecast(ShiftedGrid(1.0), n_features=2, expected_reports=36_827).warnings == ()

    @pytest.mark.parametrize(
        ("algorithm", "n_features"), [(ShiftedGrid(0.5), 2), (UniformGrid(0.5, 20), 2), (PhaseSketch(0.5, 20), 9)]
    )
    def test_too_small_clusters_are_insufficient(self, algorithm: Algorithm, n_features: int) -> None:
        few = forecast(algorithm, n_features=n_features, expected_reports=100)
        assert few.insufficient is not None
        assert few.insufficient.reports_needed is not None
        enough = forecast(algorithm, n_features=n_features, expected_reports=few.insufficient.reports_needed)
        assert enough.insufficient is None

    def test_may_hold_for_every_number(self) -> None:
        made = forecast(AdaptiveGridTree(0.000001), n_features=2, expected_reports=10**6)
        assert made.insufficient is not None
        assert made.insufficient == Insufficient(None, made.insufficient.reason)
        assert "No number of reports" in made.insufficient.reason
        assert forecast(ShiftedGrid(0.1, 1), n_features=2, expected_reports=1).insufficient is None


class TestReportsNeeded:
    @pytest.mark.parametrize(
        "wish",
        [{"quality": 0.6}, {"size_error": 0.01}, {"size_error": 0.1}, {"detectable_mass": 0.02}],
        ids=lambda wish: "-".join(map(str, *wish.items())),
    )
    @pytest.mark.parametrize("algorithm", [Auto(1.0, 3), UniformGrid(2.0, 3), AdaptiveGridTree(1.0, 3)])
    def test_is_the_smallest_number_that_meets_the_target(self, algorithm: Algorithm, wish: dict[str, float]) -> None:
        ((name, value),) = wish.items()
        found = reports_needed(algorithm, 2, **wish)
        if found.n_reports is None:
            assert "ceiling" in found.reason
            return

        def is_met(n_reports: int) -> bool:
            made = forecast(algorithm, n_features=2, expected_reports=n_reports)
            if name == "quality":
                assert made.quality is not None
                return made.quality.median >= value and made.insufficient is None
            return bool(getattr(made, name) <= value)

        assert not is_met(found.n_reports - 1)
        assert all(is_met(int(found.n_reports * factor)) for factor in (1, 1.5, 3, 20))
        assert f"{found.n_reports} reports" in found.reason

    @pytest.mark.parametrize(("algorithm", "n_features"), [(ShiftedGrid(1.0, 3), 2), (PhaseSketch(1.0, 3), 6)])
    def test_is_sufficient(self, algorithm: Algorithm, n_features: int) -> None:
        needed = reports_needed(algorithm, n_features, quality=0.01).n_reports
        assert needed is not None
        assert forecast(algorithm, n_features=n_features, expected_reports=needed).insufficient is None
        assert forecast(algorithm, n_features=n_features, expected_reports=needed - 1).insufficient is not None

    def test_a_target_beyond_the_ceiling_has_no_number(self) -> None:
        found = reports_needed(UniformGrid(1.0, 20), 2, quality=1.0)
        assert found.n_reports is None
        assert "the ceiling is" in found.reason
        assert reports_needed(ShiftedGrid(0.000001), 2, detectable_mass=0.000001).n_reports is None

    @pytest.mark.parametrize(
        ("algorithm", "wish"),
        [
            (UniformGrid(1.0, 3, cells=7), {"quality": 0.5}),
            (UniformGrid(1.0, 3, variant="paper"), {"size_error": 0.5}),
            (NoisyFcm(1.0, 3), {"detectable_mass": 0.5}),
        ],
    )
    def test_an_unknown_relation_has_no_number(self, algorithm: Algorithm, wish: dict[str, float]) -> None:
        found = reports_needed(algorithm, 2, **wish)
        assert found == Needed(None, found.reason)
        assert "not" in found.reason

    @pytest.mark.parametrize(
        ("wish", "message"),
        [
            ({}, "exactly one of quality, size_error and detectable_mass, not none"),
            ({"quality": 0.5, "size_error": 0.5}, "exactly one of .*, not quality, size_error"),
            ({"quality": 0}, "quality must be more than 0 and at most 1, not 0"),
            ({"size_error": 1.1}, "size_error must be more than 0 and at most 1, not 1.1"),
        ],
    )
    def test_refuses_other_than_one_target_in_range(self, wish: dict[str, float], message: str) -> None:
        with pytest.raises(InvalidSpec, match=message):
            reports_needed(ShiftedGrid(1.0), 2, **wish)
        with pytest.raises(InvalidSpec):
            reports_needed(ShiftedGrid(1.0), 5, quality=0.5)

    def test_continues_after_a_gap(self) -> None:
        assert smallest(lambda n: 100 <= n < 1000 or n >= 5000) == 5000
        assert smallest(lambda n: n >= 1) == 1
        assert smallest(lambda n: n < 10) is None


class TestQuality:
    def test_is_measured_for_grids(self) -> None:
        for kind in ("shifted_grid", "uniform_grid", "adaptive_grid_iterative", "adaptive_grid_tree"):
            for n_features in (1, 2, 3):
                for n_clusters in (2, 5, 12, None):
                    assert (kind, feature_class(n_features), cluster_class(n_clusters), "all") in TABLE

    def test_is_measured_for_centroids(self) -> None:
        for n_features, clusters in ((4, 3), (6, 12), (8, None), (16, 6), (64, None)):
            assert quality_of(PhaseSketch(2.0, clusters), n_features, 10**6) is not None
        for n_features, clusters in ((1, 2), (2, 5), (3, 12)):
            assert quality_of(GridKmeans(2.0, clusters), n_features, 10**6) is not None
            assert quality_of(LdpKmeans(2.0, clusters), n_features, 10**6) is not None
            assert quality_of(LdpKmeans(2.0, clusters), 20, 10**6) is not None

    @pytest.mark.parametrize(("n_features", "clusters", "quality"), [(2, 3, 0.8), (6, None, 0.8), (16, 3, 0.5)])
    def test_auto_meets_its_target(self, n_features: int, clusters: int | None, quality: float) -> None:
        algorithm = Auto(1.0, clusters)
        needed = reports_needed(algorithm, n_features, quality=quality).n_reports
        assert needed is not None
        met, missed = (
            forecast(algorithm, n_features=n_features, expected_reports=n).quality for n in (needed, needed - 1)
        )
        assert met is not None
        assert missed is not None
        assert missed.median < quality <= met.median

    def test_tables_increase(self) -> None:
        assert list(PLACES) == sorted(PLACES)
        for n_runs, *quartiles in TABLE.values():
            assert n_runs >= 3
            assert all(len(quartile) == len(PLACES) and list(quartile) == sorted(quartile) for quartile in quartiles)
            assert all(0 <= a <= b <= c <= 1 for a, b, c in zip(*quartiles, strict=True))

    def test_is_interpolated_and_constant_outside(self) -> None:
        _, *quartiles = TABLE["shifted_grid", "2", "2-3", "all"]
        algorithm = ShiftedGrid(1.0, 2)
        reports = [10**place / information(1, NANO) for place in PLACES]
        first, last = quality_of(algorithm, 2, 1), quality_of(algorithm, 2, MAX_JSON_INT)
        assert first is not None
        assert last is not None
        assert (first.lower, first.median, first.upper) == tuple(q[0] for q in quartiles)
        assert (last.lower, last.median, last.upper) == pytest.approx(tuple(q[-1] for q in quartiles))
        between = quality_of(algorithm, 2, round(math.sqrt(reports[3] * reports[4])))
        assert between is not None
        assert between.median == pytest.approx((quartiles[1][3] + quartiles[1][4]) / 2, abs=0.01)

    @pytest.mark.parametrize(
        "algorithm",
        [ShiftedGrid(1, 1), ShiftedGrid(1, 2, shifts=2), UniformGrid(1, 2, variant="paper"), Auto(1.0)],
    )
    def test_is_unknown_without_measurements(self, algorithm: Algorithm) -> None:
        assert quality_of(algorithm, 2, 1000) is None

    def test_differs_by_family_and_the_least_favourable_one_decides(self) -> None:
        about = {"n_features": 2, "expected_reports": 20_000}
        given = UniformGrid(1.0, 3)
        made = forecast(given, **about)
        alone = [forecast(given, **about, family=each.family) for each in made.families]
        assert [each.family for each in made.families] == ["compact", "elongated", "curved"]
        for each, band in zip(alone, made.families, strict=True):
            assert each.family == band.family
            assert each.quality == Band(band.lower, band.median, band.upper, band.n_runs)
            assert each.families == made.families
        order = list(Verdict)
        assert made.verdict == max((each.verdict for each in alone), key=order.index)
        assert made.family is None
        unmeasured = forecast(given, **about, family="many_small")
        assert (unmeasured.quality, unmeasured.verdict) == (None, Verdict.DOUBTFUL)
        with pytest.raises(InvalidSpec, match="compact, elongated, curved, many_small"):
            forecast(given, **about, family="square")  # type: ignore[arg-type]

    def test_decides_the_verdict(self) -> None:
        verdicts = [forecast(ShiftedGrid(1.0, 2), n_features=2, expected_reports=10**n).verdict for n in range(2, 9)]
        assert verdicts[0] is Verdict.DOUBTFUL
        assert {Verdict.UNCERTAIN, Verdict.RELIABLE} & set(verdicts)
