"""Forecasts of the cost of releases, compared with the accountant, and their inverse."""

from fractions import Fraction
from typing import Any

import pytest

from sfumato.errors import InvalidSpec
from sfumato.forecast import forecast_releases, local_epsilon_for
from sfumato.privacy import shuffling
from sfumato.privacy.accounting import NANO, parse_epsilon
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import expected_reports
from sfumato.specs import AdaptiveGridIterative, Algorithm, Auto, PhaseSketch, ShiftedGrid, UniformGrid, design_for

TERMS: dict[str, Any] = {
    "n_features": 2,
    "expected_reports": 100_000,
    "min_batch": 100_000,
    "honest_share": Fraction(1),
    "delta_atto": 10**12,
}


class TestCost:
    def test_is_that_of_the_accountant_for_the_planned_round(self) -> None:
        algorithm = UniformGrid(4.0, 3)
        (planned,) = planned_rounds(algorithm, 2, 100_000)
        assert planned.encoding is not None
        mechanism = design_for(planned.encoding, "auto", parse_epsilon(4.0))
        expected = shuffling.epsilon(mechanism.blanket(), 50_000, 10**12)
        assert forecast_releases(algorithm, **TERMS | {"honest_share": Fraction(1, 2)}) == (expected, 10**12)

    def test_of_parts_is_the_most_costly_one_with_its_share_of_the_batch(self) -> None:
        algorithm = ShiftedGrid(2.0, 3)
        planned = planned_rounds(algorithm, 2, 100_000)
        parts = [expected_reports(100_000, each.participation) for each in planned]
        costs = [
            shuffling.epsilon(each.mechanism().blanket(), n, 10**12) for each, n in zip(planned, parts, strict=True)
        ]
        assert forecast_releases(algorithm, **TERMS) == (max(costs), 10**12)

    def test_of_auto_is_that_of_its_choice(self) -> None:
        assert forecast_releases(Auto(2.0, 3), **TERMS)[0] > 0

    @pytest.mark.parametrize("algorithm", [AdaptiveGridIterative(2.0, 3), PhaseSketch(2.0, 3, refine="sign")])
    def test_is_unknown_for_rounds_that_adapt(self, algorithm: Algorithm) -> None:
        with pytest.raises(InvalidSpec, match="depends on earlier rounds"):
            forecast_releases(algorithm, **TERMS)

    def test_of_circles_has_their_symbols_and_rounds(self) -> None:
        on_circles = TERMS | {"circles": (0,)}
        algorithm = ShiftedGrid(2.0, 3, cells=3)
        assert forecast_releases(algorithm, **on_circles)[0] != forecast_releases(algorithm, **TERMS)[0]
        many = on_circles | {"n_features": 4}
        assert forecast_releases(PhaseSketch(2.0, 3), **many)[0] > 0  # a round of phases, and none about centroids


class TestInverse:
    def test_is_the_step_before_the_cost_is_exceeded(self) -> None:
        found = local_epsilon_for(UniformGrid(1.0, 3), NANO // 2, **TERMS)
        assert 6 * NANO < found < 8 * NANO
        cost, above = (forecast_releases(UniformGrid(e / NANO, 3), **TERMS)[0] for e in (found, found + NANO // 100))
        assert cost <= NANO // 2 < above

    def test_fails_if_the_least_local_epsilon_costs_more(self) -> None:
        with pytest.raises(InvalidSpec, match="costs more than"):
            local_epsilon_for(UniformGrid(1.0, 3), 1000, **TERMS | {"min_batch": 10})
