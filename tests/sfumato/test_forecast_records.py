"""Forecasts over records: from public facts and a guess, the same wherever they are asked for."""

import pytest

from sfumato.errors import InvalidSpec
from sfumato.forecast import choose_central, forecast_records, records_forecast_from_wire, records_forecast_to_wire
from sfumato.specs import Auto, DpKmeans, GatedGridKmeans


class TestAuto:
    def test_stands_for_the_gated_grid_and_says_why(self) -> None:
        choice = choose_central(Auto(0.5, 4), 3)
        assert choice.algorithm == GatedGridKmeans(0.5, 4)
        assert "3 features" in choice.reason
        made = forecast_records(Auto(0.5, 4), n_features=3, expected_records=10_000)
        assert (made.algorithm, made.reason) == (choice.algorithm, choice.reason)
        assert made.expected == forecast_records(choice.algorithm, n_features=3, expected_records=10_000).expected

    @pytest.mark.parametrize(("params", "n_features"), [(Auto(1.0), 2), (Auto(1.0, 2), 0), (Auto(1.0, 2), 65)])
    def test_needs_the_number_of_clusters_and_features_it_can_take(self, params: Auto, n_features: int) -> None:
        with pytest.raises(InvalidSpec):
            choose_central(params, n_features)


class TestAForecast:
    def test_costs_what_the_job_reserves(self) -> None:
        assert forecast_records(DpKmeans(0.75, 2), n_features=2, expected_records=100).epsilon_nano == 750_000_000

    def test_is_better_with_more_records_and_worse_with_more_of_a_user(self) -> None:
        few, many = (forecast_records(GatedGridKmeans(1.0, 4), n_features=2, expected_records=n) for n in (1000, 10**6))
        shared = forecast_records(GatedGridKmeans(1.0, 4), n_features=2, expected_records=1000, max_records_per_user=10)
        assert few.expected.ratio is not None
        assert many.expected.ratio is not None
        assert shared.expected.ratio is not None
        assert 1 <= many.expected.ratio < few.expected.ratio < shared.expected.ratio

    @pytest.mark.parametrize("expected_records", [0, 2**53])
    def test_needs_a_number_somebody_could_mean(self, expected_records: int) -> None:
        with pytest.raises(InvalidSpec):
            forecast_records(GatedGridKmeans(1.0, 4), n_features=2, expected_records=expected_records)

    def test_goes_over_the_wire_and_back(self) -> None:
        for params in (Auto(1.0, 3), DpKmeans(1.0, 3)):
            made = forecast_records(params, n_features=2, expected_records=1000, max_records_per_user=2)
            assert records_forecast_from_wire(records_forecast_to_wire(made)) == made
