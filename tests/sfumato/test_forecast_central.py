"""Forecasts over records: how they move, what they warn of, and that a number of records is never looked up."""

import pytest

from sfumato.errors import InvalidEpsilon, InvalidSpec
from sfumato.forecast.central import forecast_central
from sfumato.sizing.records import clusters_told, usable_epsilon
from sfumato.specs import Auto, DpKmeans, GatedGridKmeans

PLACES = [(2, 15), (4, 5), (5, 3), (8, 8), (23, 5), (64, 2)]


class TestRatio:
    @pytest.mark.parametrize(("d", "k"), PLACES)
    def test_falls_with_records_and_epsilon_towards_one(self, d: int, k: int) -> None:
        by_records = [forecast_central(GatedGridKmeans(0.5, k), d, n).ratio for n in (10**3, 10**4, 10**5, 10**9)]
        assert by_records == sorted(by_records, reverse=True)  # type: ignore[type-var]
        assert by_records[-1] == pytest.approx(1, abs=1e-3)
        by_epsilon = [forecast_central(GatedGridKmeans(e, k), d, 10**5).ratio for e in (0.01, 0.1, 1.0, 10.0)]
        assert by_epsilon == sorted(by_epsilon, reverse=True)  # type: ignore[type-var]

    @pytest.mark.parametrize(("d", "k"), PLACES)
    def test_lies_in_its_band(self, d: int, k: int) -> None:
        for n in (1, 100, 10**6):
            forecast = forecast_central(GatedGridKmeans(0.1, k), d, n)
            assert forecast.lower is not None
            assert forecast.ratio is not None
            assert forecast.upper is not None
            assert 1 < forecast.lower < forecast.ratio < forecast.upper

    def test_ten_records_of_a_user_are_a_tenth_of_epsilon(self) -> None:
        assert forecast_central(GatedGridKmeans(1, 5), 2, 10**4, max_per_user=10) == forecast_central(
            GatedGridKmeans(0.1, 5), 2, 10**4
        )

    def test_auto_is_forecast_as_what_it_runs_and_other_methods_not_at_all(self) -> None:
        assert forecast_central(Auto(1, 5), 2, 10**4) == forecast_central(GatedGridKmeans(1, 5), 2, 10**4)
        other = forecast_central(DpKmeans(1, 5), 2, 10**4)
        assert other.ratio is None
        assert other.clusters == 5
        assert len(other.warnings) == 1
        assert "was not fitted" in other.warnings[0]

    def test_of_other_methods_it_is_told_all_the_same_that_records_are_few(self) -> None:
        _, said = forecast_central(DpKmeans(0.1, 5), 8, 1499).warnings
        assert "About 1499 records are few for 5 clusters" in said
        assert "about 1500 would do" in said
        assert len(forecast_central(DpKmeans(0.1, 5), 8, 1500).warnings) == 1
        assert len(forecast_central(DpKmeans(1, 5), 8, 1499, max_per_user=10).warnings) == 2


class TestWarnings:
    def test_enough_records_warn_of_nothing(self) -> None:
        for d, k in PLACES:
            assert forecast_central(GatedGridKmeans(1, k), d, 10**5).warnings == ()

    @pytest.mark.parametrize(("d", "k"), PLACES)
    def test_what_would_do_does(self, d: int, k: int) -> None:
        few = forecast_central(GatedGridKmeans(0.1, k), d, 50)
        (said,) = few.warnings
        enough = int("".join(c for c in said.split("about ")[-1].split()[0] if c.isdigit()))
        assert forecast_central(GatedGridKmeans(0.1, k), d, enough).warnings == ()
        assert forecast_central(GatedGridKmeans(0.1, k), d, 0.97 * enough).warnings != ()

    def test_above_four_features_clusters_that_noise_hides_are_not_looked_for(self) -> None:
        assert forecast_central(GatedGridKmeans(1, 8), 10, 150).clusters == 1
        some = forecast_central(GatedGridKmeans(1, 8), 10, 300)
        assert 1 < some.clusters < 8
        assert f"at most {some.clusters} clusters" in some.warnings[0]
        assert clusters_told(10**6, usable_epsilon(10**9), 10, 8) == 8


class TestRefusals:
    @pytest.mark.parametrize(
        ("d", "n", "most"), [(0, 100, 1), (65, 100, 1), (2, 0, 1), (2, float("nan"), 1), (2, 10, 0)]
    )
    def test_numbers_out_of_range(self, d: int, n: float, most: int) -> None:
        with pytest.raises(InvalidSpec):
            forecast_central(GatedGridKmeans(1, 3), d, n, most)

    def test_no_number_of_clusters_and_no_epsilon(self) -> None:
        with pytest.raises(InvalidSpec, match="number of clusters"):
            forecast_central(Auto(1), 2, 1000)
        with pytest.raises(InvalidEpsilon):
            forecast_central(GatedGridKmeans(0, 3), 2, 1000)
