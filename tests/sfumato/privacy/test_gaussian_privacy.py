"""The rho of an epsilon and a delta: never overstated, and the most that Gaussian noise allows."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO, rho_of

epsilons = st.integers(1000, 31 * NANO)
deltas = st.integers(1000, ATTO // 1000)
PAIRS = [(1.0, 1e-6), (0.05, 1e-9), (0.001, 1e-6), (32.0, 1e-15), (0.5, 1e-12)]


def bound_tail(x: Decimal) -> tuple[Decimal, Decimal]:
    """Return bounds of Phi(-x) for x > 1: two convergents of Laplace's fraction phi(x) / (x + 1/(x + 2/(x + ...)))."""
    density = (-x * x / 2).exp() / (2 * Decimal("3.141592653589793238462643383279502884197")).sqrt()
    ends = []
    for n in (3000, 3001):
        below = x
        for i in range(n, 0, -1):
            below = x + i / below
        ends.append(density / below)
    return min(ends), max(ends)


def bound_delta(rho: Decimal, epsilon: Decimal) -> tuple[Decimal, Decimal]:
    """Return bounds of the delta of normal noise with this rho."""
    mu = (2 * rho).sqrt()
    own, other = bound_tail(epsilon / mu - mu / 2), bound_tail(epsilon / mu + mu / 2)
    return own[0] - epsilon.exp() * other[1], own[1] - epsilon.exp() * other[0]


class TestRho:
    @pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
    def test_is_covered_and_a_little_more_is_not(self, epsilon: float, delta: float) -> None:
        rho = rho_of(round(epsilon * NANO), round(delta * ATTO))
        assert rho > 0
        with localcontext(prec=35):
            allowed = Decimal(round(delta * ATTO)) / ATTO
            exact = Decimal(round(epsilon * NANO)) / NANO
            assert bound_delta(Decimal(rho) / PICO, exact)[1] < allowed
            assert bound_delta((Decimal(rho) * (1 + Decimal("1e-9")) + 1) / PICO, exact)[0] > allowed

    @given(epsilons, deltas, st.integers(0, NANO), st.integers(0, ATTO // 10_000))
    @pytest.mark.slow
    def test_increases_with_epsilon_and_delta(
        self, epsilon_nano: int, delta_atto: int, more_nano: int, more_atto: int
    ) -> None:
        assert rho_of(epsilon_nano, delta_atto) <= rho_of(epsilon_nano + more_nano, delta_atto + more_atto)

    def test_is_zero_for_the_least_epsilon_and_delta(self) -> None:
        assert rho_of(1000, 1000) == 0

    @pytest.mark.parametrize(
        ("epsilon_nano", "delta_atto"),
        [(0, 1000), (-1, 1000), (32 * NANO + 1, 1000), (NANO, 0), (NANO, -1), (NANO, ATTO)],
    )
    def test_refuses_an_epsilon_or_a_delta_out_of_range(self, epsilon_nano: int, delta_atto: int) -> None:
        with pytest.raises(InvalidSpec, match="a block must have an epsilon"):
            rho_of(epsilon_nano, delta_atto)
