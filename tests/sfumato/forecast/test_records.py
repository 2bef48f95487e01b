"""Forecasts over records from public facts and an expected number of records."""

import pytest

from sfumato.errors import InvalidSpec
from sfumato.forecast import choose_central, forecast_records, records_forecast_from_wire, records_forecast_to_wire
from sfumato.model.precision import Verdict
from sfumato.specs import Auto, DensityMap, DpKmeans, PrivateKmeans


class TestAuto:
    def test_selects_private_kmeans_with_a_reason(self) -> None:
        choice = choose_central(Auto(0.5, 4), 3)
        assert choice.algorithm == PrivateKmeans(0.5, 4)
        assert "3 features" in choice.reason
        made = forecast_records(Auto(0.5, 4), n_features=3, expected_records=10_000)
        assert (made.algorithm, made.reason) == (choice.algorithm, choice.reason)
        assert made.expected == forecast_records(choice.algorithm, n_features=3, expected_records=10_000).expected

    @pytest.mark.parametrize("clusters", [4, None])
    def test_selects_a_label_map_by_the_declared_shape(self, clusters: int | None) -> None:
        made = forecast_records(Auto(0.5, clusters, "any"), n_features=3, expected_records=10_000)
        assert made.algorithm == DensityMap(0.5, clusters)
        assert "any shape in up to 3 features" in (made.reason or "")
        assert (made.expected.ratio, made.expected.clusters, made.expected.warnings) == (None, clusters, ())
        assert choose_central(Auto(0.5, 4, "round"), 3).algorithm == PrivateKmeans(0.5, 4)
        wider = choose_central(Auto(0.5, 4, "any"), 4)
        assert wider.algorithm == PrivateKmeans(0.5, 4)
        assert "too many cells above 3 features" in wider.reason

    def test_a_label_map_of_few_records_has_a_warning(self) -> None:
        made = forecast_records(DensityMap(0.5), n_features=2, expected_records=1999)
        assert made.expected.warnings == (
            "About 1999 records are few for a label map at this epsilon: clusters may be missing or noise; "
            "about 2000 would do.",
        )
        with pytest.raises(InvalidSpec, match="1 to 3 features"):
            forecast_records(DensityMap(0.5), n_features=4, expected_records=1999)

    @pytest.mark.parametrize(("params", "n_features"), [(Auto(1.0), 2), (Auto(1.0, shape="any"), 4)])
    def test_without_a_number_of_clusters_the_job_counts_them(self, params: Auto, n_features: int) -> None:
        assert choose_central(params, n_features).algorithm == PrivateKmeans(1.0, None)
        expected = forecast_records(params, n_features=n_features, expected_records=10**6).expected
        assert (expected.clusters, expected.ratio, expected.verdict) == (None, None, Verdict.DOUBTFUL)
        assert "which the job estimates" in expected.warnings[0]


class TestVerdict:
    def test_is_reliable_only_if_the_whole_band_is_near_one(self) -> None:
        verdicts = []
        for n_records in (100, 400, 100_000, 10**8):
            expected = forecast_records(PrivateKmeans(1.0, 5), n_features=2, expected_records=n_records).expected
            verdicts.append(expected.verdict)
            assert expected.upper is not None
            assert (expected.verdict is Verdict.RELIABLE) == (expected.upper <= 1.3 and not expected.warnings)
        assert verdicts == [Verdict.DOUBTFUL, Verdict.UNCERTAIN, Verdict.RELIABLE, Verdict.RELIABLE]

    def test_of_a_method_without_measurements_is_doubtful(self) -> None:
        expected = forecast_records(DpKmeans(1.0, 2), n_features=2, expected_records=10**6).expected
        assert expected.verdict is Verdict.DOUBTFUL


class TestForecast:
    def test_has_the_cost_that_the_job_reserves(self) -> None:
        assert forecast_records(DpKmeans(0.75, 2), n_features=2, expected_records=100).epsilon_nano == 750_000_000

    def test_improves_with_records_and_worsens_with_records_per_user(self) -> None:
        few, many = (forecast_records(PrivateKmeans(1.0, 4), n_features=2, expected_records=n) for n in (1000, 10**6))
        shared = forecast_records(PrivateKmeans(1.0, 4), n_features=2, expected_records=1000, max_records_per_user=10)
        assert few.expected.ratio is not None
        assert many.expected.ratio is not None
        assert shared.expected.ratio is not None
        assert 1 <= many.expected.ratio < few.expected.ratio < shared.expected.ratio

    @pytest.mark.parametrize("expected_records", [0, 2**53])
    def test_refuses_an_impossible_number_of_records(self, expected_records: int) -> None:
        with pytest.raises(InvalidSpec):
            forecast_records(PrivateKmeans(1.0, 4), n_features=2, expected_records=expected_records)

    def test_stays_equal_through_its_wire_form(self) -> None:
        for params in (Auto(1.0, 3), DpKmeans(1.0, 3), DensityMap(1.0)):
            made = forecast_records(params, n_features=2, expected_records=1000, max_records_per_user=2)
            assert records_forecast_from_wire(records_forecast_to_wire(made)) == made
