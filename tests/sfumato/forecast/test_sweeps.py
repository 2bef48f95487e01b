"""Sweeps of forecasts over epsilon and sizes."""

import math

import pytest

from sfumato import sweep
from sfumato.errors import InvalidSpec
from sfumato.forecast import forecast, forecast_records
from sfumato.specs import AdaptiveGridTree, PrivateKmeans, ShiftedGrid, UniformGrid


class TestFromForecasts:
    def test_has_the_bands_and_verdicts_of_the_forecasts(self) -> None:
        found = sweep(
            {"type": "shifted_grid", "epsilon": 9, "clusters": 3}, epsilons=[1, 2], sizes=[10**5], n_features=2
        )
        expected = [forecast(ShiftedGrid(e, 3), n_features=2, expected_reports=10**5) for e in (1.0, 2.0)]
        assert found.to_columns()["epsilon"].tolist() == [1, 2]
        assert [each.accuracy for each in found.points] == [each.quality.median for each in expected if each.quality]
        assert [each.verdict for each in found.points] == [each.verdict.value for each in expected]

    def test_is_for_one_family_if_it_is_given(self) -> None:
        (point,) = sweep(ShiftedGrid(1.0, 3), sizes=[10**5], n_features=2, family="curved").points
        made = forecast(ShiftedGrid(1.0, 3), n_features=2, expected_reports=10**5, family="curved")
        assert made.quality is not None
        assert (point.accuracy, point.verdict) == (made.quality.median, made.verdict.value)
        (over,) = sweep(PrivateKmeans(1.0, 3), sizes=[1000], n_features=2, family="compact").points
        expected = forecast_records(PrivateKmeans(1.0, 3), n_features=2, expected_records=1000, family="compact")
        assert over.accuracy == expected.expected.ratio

    def test_over_records_has_ratios_and_unknown_ones_are_nan(self) -> None:
        found = sweep(PrivateKmeans(1.0, 3), sizes=[1000, 10**5], n_features=2)
        ratio = forecast_records(PrivateKmeans(1.0, 3), n_features=2, expected_records=10**5).expected.ratio
        assert ("relative to k-means" in found.measure, found.points[1].accuracy) == (True, ratio)
        assert math.isnan(sweep(AdaptiveGridTree(1.0, 3, variant="paper"), sizes=[10], n_features=2).points[0].accuracy)

    def test_needs_a_size(self) -> None:
        with pytest.raises(InvalidSpec, match="at least one number of reports or records"):
            sweep(UniformGrid(1.0), sizes=[], n_features=2)


class TestShowing:
    def test_is_a_line_for_each_size_and_a_table(self) -> None:
        found = sweep(ShiftedGrid(1.0, 3), epsilons=[1, 2], sizes=[10**4, 10**5], n_features=2)
        (axes,) = found.plot().axes
        assert [line.get_label() for line in axes.lines] == ["size 10,000", "size 100,000"]
        assert axes.get_xlabel() == "epsilon"
        assert f"<td>{found.measure}</td>" in found._repr_html_()
        assert sweep(ShiftedGrid(1.0, 3), sizes=[10**4, 10**5], n_features=2).plot().axes[0].get_xlabel() == "size"
