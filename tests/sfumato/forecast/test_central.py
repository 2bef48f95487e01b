"""Forecasts over records: monotony, bands, warnings, and refusals."""

from dataclasses import replace

import pytest

from sfumato.errors import InvalidEpsilon, InvalidSpec
from sfumato.forecast import choose, choose_central
from sfumato.forecast.central import RELIABLE_UPPER, forecast_central
from sfumato.forecast.families import FAMILIES, PLACES, ROUTES, TABLE, RouteName, forecast_families
from sfumato.model.precision import Verdict
from sfumato.sizing.private_bounds import plan_bounds
from sfumato.sizing.required_reports import detectable_clusters, usable_epsilon
from sfumato.specs import Auto, DensityMap, DpKmeans, PrivateKmeans

MEANS = [(2, 15), (4, 5), (5, 3), (8, 8), (23, 5), (64, 2)]


class TestRatio:
    @pytest.mark.parametrize(("d", "k"), MEANS)
    def test_decreases_to_one_with_records_and_epsilon_in_its_band(self, d: int, k: int) -> None:
        by_records = [forecast_central(PrivateKmeans(0.5, k), d, n).ratio for n in (10**3, 10**4, 10**5, 10**9)]
        assert by_records == sorted(by_records, reverse=True)  # type: ignore[type-var]
        assert by_records[-1] == pytest.approx(1, abs=1e-3)
        by_epsilon = [forecast_central(PrivateKmeans(e, k), d, 10**5).ratio for e in (0.01, 0.1, 1.0, 10.0)]
        assert by_epsilon == sorted(by_epsilon, reverse=True)  # type: ignore[type-var]
        for n in (1, 100, 10**6):
            forecast = forecast_central(PrivateKmeans(0.1, k), d, n)
            assert 1 < forecast.lower <= forecast.ratio <= forecast.upper  # type: ignore[operator]

    @pytest.mark.parametrize(("d", "k"), [(5, 3), (64, 2)])
    def test_a_delta_has_rows_of_its_own_above_four_features(self, d: int, k: int) -> None:
        params = [PrivateKmeans(e, k, delta=1e-6) for e in (0.01, 0.1, 1.0, 10.0)]
        by_epsilon = [forecast_central(each, d, 10**5) for each in params]
        ratios = [forecast.ratio for forecast in by_epsilon]
        assert ratios == sorted(ratios, reverse=True)  # type: ignore[type-var]
        assert ratios != [forecast_central(PrivateKmeans(each.epsilon, k), d, 10**5).ratio for each in params]
        assert all(forecast.clusters == k for forecast in by_epsilon)
        assert forecast_central(params[0], 2, 10**5) == forecast_central(PrivateKmeans(0.01, k), 2, 10**5)

    def test_ten_records_per_user_are_a_tenth_of_epsilon(self) -> None:
        shared = forecast_central(PrivateKmeans(1, 5), 2, 10**4, max_per_user=10)
        assert shared == forecast_central(PrivateKmeans(0.1, 5), 2, 10**4)

    def test_is_simulated_only_for_the_selected_algorithm(self) -> None:
        assert forecast_central(Auto(1, 5), 2, 10**4) == forecast_central(PrivateKmeans(1, 5), 2, 10**4)
        other = forecast_central(DpKmeans(1, 5), 2, 10**4)
        assert other.ratio is None
        assert other.clusters == 5
        assert len(other.warnings) == 1
        assert "was not simulated" in other.warnings[0]

    def test_other_methods_have_warnings_about_few_records(self) -> None:
        _, warning = forecast_central(DpKmeans(0.1, 5), 8, 1499).warnings
        assert "About 1499 records are few for 5 clusters" in warning
        assert "about 1500 would do" in warning
        assert len(forecast_central(DpKmeans(0.1, 5), 8, 1500).warnings) == 1
        assert len(forecast_central(DpKmeans(1, 5), 8, 1499, max_per_user=10).warnings) == 2


class TestFamilies:
    @pytest.mark.parametrize("k", [4, 32])
    def test_the_band_covers_all_families_with_so_many_clusters(self, k: int) -> None:
        forecast = forecast_central(PrivateKmeans(0.3, k), 2, 20_000)
        families = forecast.families
        names = [each.family for each in families]
        assert names == ["compact", "elongated", "curved", *["many_small"] * (k == 32)]
        assert forecast.upper == max(each.upper for each in families)
        assert forecast.lower == min(each.lower for each in families)
        assert all(1 < each.lower <= each.ratio <= each.upper for each in families)

    def test_a_given_family_alone_determines_the_forecast(self) -> None:
        whole = forecast_central(PrivateKmeans(0.3, 4), 2, 20_000)
        for each in whole.families:
            alone = forecast_central(PrivateKmeans(0.3, 4), 2, 20_000, family=each.family)
            assert (alone.ratio, alone.lower, alone.upper) == (each.ratio, each.lower, each.upper)
            assert alone.families == (each,)
        with pytest.raises(InvalidSpec, match="compact, elongated, curved, many_small"):
            forecast_central(PrivateKmeans(0.3, 4), 2, 20_000, family="square")  # type: ignore[arg-type]

    @pytest.mark.parametrize("route", ROUTES)
    def test_rows_fall_and_are_ordered(self, route: RouteName) -> None:
        for family in FAMILIES:
            row = TABLE[route, family]
            columns = (row.lower, row.median, row.upper)
            assert all(len(column) == len(PLACES) for column in columns)
            assert all(list(column) == sorted(column, reverse=True) for column in columns)
            assert all(low <= middle <= high for low, middle, high in zip(*columns, strict=True))

    @pytest.mark.parametrize("route", ROUTES)
    def test_are_interpolated_between_places_and_fall_beyond_the_last(self, route: RouteName) -> None:
        unit = ROUTES[route](1.0, 6, 3)
        row = TABLE[route, "compact"]

        def upper(place: float) -> float:
            return forecast_families(route, 10**place / unit, 6, 3)[0].upper - 1

        assert upper(PLACES[2]) == pytest.approx(row.upper[2])
        assert upper((PLACES[2] + PLACES[3]) / 2) == pytest.approx((row.upper[2] + row.upper[3]) / 2)
        assert upper(PLACES[0] - 3) == pytest.approx(row.upper[0])
        assert upper(PLACES[-1] + 1) == pytest.approx(row.upper[-1] / 10)

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_no_wide_band_is_reliable(self, delta: float) -> None:
        for d, k in MEANS:
            for n in (100, 3000, 10**5, 10**7):
                forecast = forecast_central(PrivateKmeans(1, k, delta=delta), d, n)
                is_narrow = forecast.upper <= RELIABLE_UPPER and not forecast.warnings  # type: ignore[operator]
                assert (forecast.verdict is Verdict.RELIABLE) == is_narrow


class TestWarnings:
    def test_are_absent_with_enough_records(self) -> None:
        for d, k in MEANS:
            assert forecast_central(PrivateKmeans(1, k), d, 10**5).warnings == ()

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    @pytest.mark.parametrize(("d", "k"), MEANS)
    def test_name_a_sufficient_number(self, d: int, k: int, delta: float) -> None:
        params = PrivateKmeans(0.1, k, delta=delta)
        (warning,) = forecast_central(params, d, 50).warnings
        enough = int("".join(c for c in warning.split("about ")[-1].split()[0] if c.isdigit()))
        assert forecast_central(params, d, enough).warnings == ()
        assert forecast_central(params, d, 0.97 * enough).warnings != ()

    def test_limit_the_clusters_above_four_features(self) -> None:
        assert forecast_central(PrivateKmeans(1, 8), 10, 150).clusters == 1
        some = forecast_central(PrivateKmeans(1, 8), 10, 300)
        assert 1 < some.clusters < 8
        assert f"at most {some.clusters} clusters" in some.warnings[0]
        assert detectable_clusters(10**6, usable_epsilon(10**9), 10, 8) == 8


class TestRefusals:
    @pytest.mark.parametrize(
        ("d", "n", "most", "message"),
        [
            (0, 100, 1, "records must have 1 to 1536 features, not 0"),
            (1537, 100, 1, "records must have 1 to 1536 features, not 1537"),
            (2, 0, 1, "expected_records must be at least 1, not 0"),
            (2, float("nan"), 1, "expected_records must be at least 1, not nan"),
            (2, 10, 0, "max_per_user must be at least 1, not 0"),
        ],
    )
    def test_numbers_out_of_range(self, d: int, n: float, most: int, message: str) -> None:
        with pytest.raises(InvalidSpec, match=message):
            forecast_central(PrivateKmeans(1, 3), d, n, most)

    def test_no_epsilon(self) -> None:
        with pytest.raises(InvalidEpsilon):
            forecast_central(PrivateKmeans(0, 3), 2, 1000)


class TestPrivateBounds:
    def test_cost_eight_percent_and_warn_of_few_records(self) -> None:
        params = PrivateKmeans(1.0, 3, bounds="private")
        known = forecast_central(PrivateKmeans(0.92, 3), 2, 10**5)
        assert forecast_central(params, 2, 10**5) == known
        (few,) = [each for each in forecast_central(params, 2, 100).warnings if "private bounds" in each]
        needed = int(few.split("about ")[-1].split()[0])
        assert not any("private bounds" in each for each in forecast_central(params, 2, needed).warnings)

    def test_find_the_occupied_part_of_declared_bounds(self) -> None:
        declared, private = PrivateKmeans(1.0, 3), PrivateKmeans(1.0, 3, bounds="private")
        wide = forecast_central(declared, 2, 10**5, occupied_share=0.02)
        assert (wide.ratio, wide.clusters, wide.verdict) == (None, 3, "doubtful")
        assert "about 0.02 of the bounds" in wide.warnings[0]
        assert forecast_central(declared, 2, 10**5, occupied_share=0.3) == forecast_central(declared, 2, 10**5)
        assert forecast_central(private, 2, 10**5, occupied_share=0.02) == forecast_central(private, 2, 10**5)
        for wrong in (0.0, 1.1):
            with pytest.raises(InvalidSpec, match=f"occupied_share must be more than 0 and at most 1, not {wrong}"):
                forecast_central(declared, 2, 10**5, occupied_share=wrong)

    def test_need_fewer_records_with_a_delta_in_many_features(self) -> None:
        needed = [plan_bounds(PrivateKmeans(1.0, 3, delta=delta), 32).needed_records for delta in (0.0, 1e-6)]
        assert needed[1] < needed[0] / 10

    def test_of_a_tiny_epsilon_are_refused(self) -> None:
        with pytest.raises(InvalidSpec, match="private bounds"):
            forecast_central(PrivateKmeans(1e-6, 3, bounds="private"), 2, 10**6)

    def test_are_passed_on_by_auto_over_records_only(self) -> None:
        auto = Auto(1.0, 3, bounds="private")
        assert choose_central(auto, 2).algorithm == PrivateKmeans(1.0, 3, bounds="private")
        assert choose_central(replace(auto, shape="any"), 2).algorithm == DensityMap(1.0, 3, bounds="private")
        with pytest.raises(InvalidSpec, match="records"):
            choose(auto, 2, 1000)
