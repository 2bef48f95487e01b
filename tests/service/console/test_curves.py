"""Tests of the curves of a forecast."""

import pytest

from service.console.curves import BOTTOM, FACTORS, LEFT, RIGHT, TOP, curves_of
from service.console.forms import Json
from sfumato.forecast import forecast
from sfumato.specs import ShiftedGrid


def shifted(epsilon: float, size: int, clusters: int | None = 3, noun: str = "devices") -> Json:
    """Return the curves of a shifted grid over two features."""
    algorithm = {"type": "shifted_grid", "epsilon": epsilon, "clusters": clusters}
    return curves_of(algorithm, n_features=2, size=size, max_records_per_user=1, noun=noun)


class TestCurves:
    def test_have_the_values_of_the_forecast_at_each_choice(self) -> None:
        by_size, by_epsilon = shifted(0.2, 20_000)["pictures"]
        chosen = forecast(ShiftedGrid(0.2, clusters=3), n_features=2, expected_reports=20_000).quality
        more = forecast(ShiftedGrid(0.36, clusters=3), n_features=2, expected_reports=20_000).quality
        assert chosen is not None
        assert more is not None
        assert len(by_size["points"]) == len(by_epsilon["points"]) == len(FACTORS)
        assert ("20,000", chosen.lower, chosen.median, chosen.upper) in by_size["points"]
        assert ("0.36", more.lower, more.median, more.upper) in by_epsilon["points"]
        height = BOTTOM - chosen.median * (BOTTOM - TOP)
        assert by_size["chosen"] == by_epsilon["chosen"] == pytest.approx(((LEFT + RIGHT) / 2, height), abs=0.06)

    def test_name_the_smallest_choices_that_are_reliable(self) -> None:
        better = shifted(0.5, 50_000)["improvement"]
        assert better["verdict"] == "reliable"
        for option in better["options"]:
            epsilon = float(option.removeprefix("ε ")) if option.startswith("ε") else 0.5
            size = 50_000 if option.startswith("ε") else int(option.removesuffix(" devices").replace(",", ""))
            for factor in (1.0, 0.5):
                less = (epsilon * factor, size) if option.startswith("ε") else (epsilon, round(size * factor))
                made = forecast(ShiftedGrid(less[0], clusters=3), n_features=2, expected_reports=less[1])
                assert (made.verdict.value == "reliable") == (factor == 1.0), (option, factor)

    def test_name_less_than_a_reliable_choice_and_nothing_without_hope(self) -> None:
        better = shifted(4.0, 400_000)["improvement"]
        assert better["verdict"] == "reliable"
        size, epsilon = better["options"]
        assert int(size.removesuffix(" devices").replace(",", "")) < 400_000
        assert float(epsilon.removeprefix("ε ")) < 4
        assert shifted(0.01, 100, clusters=None)["improvement"] is None

    def test_over_records_start_at_the_quality_without_noise(self) -> None:
        algorithm = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 3}
        found = curves_of(algorithm, n_features=2, size=2_000, max_records_per_user=1, noun="records")
        assert found["measure"].startswith("Squared distance")
        used = curves_of(algorithm, n_features=2, size=2_000, max_records_per_user=9, noun="records")
        middle = len(FACTORS) // 2
        ratios = [each["pictures"][0]["points"][middle][2] for each in (found, used)]
        assert 1 <= ratios[0] < ratios[1]  # more records of each user need more noise

    def test_that_were_not_measured_are_not_drawn(self) -> None:
        algorithm = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 3}
        found = curves_of(algorithm, n_features=2, size=20_000, max_records_per_user=1, noun="devices")
        assert (found["pictures"], found["improvement"]) == ([], None)

    def test_omit_epsilons_beyond_the_limit(self) -> None:
        _, by_epsilon = shifted(16.0, 20_000)["pictures"]
        assert [point[0] for point in by_epsilon["points"]][-1] == "29"
