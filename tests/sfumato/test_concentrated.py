"""What a rho is worth: never overstated, nearly all that corollary 13 of Canonne, Kamath and Steinke allows."""

from decimal import Decimal, localcontext
from math import log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import ATTO, NANO
from sfumato.concentrated import PICO, rho_of
from sfumato.errors import InvalidSpec

epsilons = st.integers(1000, 32 * NANO)
deltas = st.integers(1000, ATTO // 1000)
SPENT = [(1.0, 1e-6), (0.1, 1e-6), (0.05, 1e-9), (0.001, 1e-6), (32.0, 1e-15), (32.0, 1e-3), (1e-6, 1e-3)]


def log_delta(rho: Decimal, epsilon: Decimal) -> Decimal:
    """ln of the least delta, by corollary 13 as it is printed; to fifty digits, by thirds of the convex exponent."""

    def at(place: Decimal) -> Decimal:
        a = 1 + place.exp()
        return (a - 1) * (a * rho - epsilon) - (a - 1).ln() + a * (1 - 1 / a).ln()

    low, high = Decimal(-10), Decimal(25)
    for _ in range(200):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (low, right) if at(left) < at(right) else (left, high)
    return at(low)


class TestRho:
    @pytest.mark.parametrize(("epsilon", "delta"), SPENT)
    def test_it_is_covered_and_one_pico_more_is_not(self, epsilon: float, delta: float) -> None:
        rho = rho_of(round(epsilon * NANO), round(delta * ATTO))
        assert rho > 0
        with localcontext(prec=60):
            allowed = (Decimal(round(delta * ATTO)) / ATTO).ln()
            exact = Decimal(round(epsilon * NANO)) / NANO
            assert log_delta(Decimal(rho) / PICO, exact) <= allowed
            assert log_delta(Decimal(rho + 1) / PICO, exact) > allowed

    @given(epsilons, deltas)
    @pytest.mark.slow
    @pytest.mark.ci
    def test_it_is_no_less_than_the_plain_conversion_gives(self, epsilon_nano: int, delta_atto: int) -> None:
        """rho + 2 sqrt(rho ln(1/delta)) = epsilon (Bun and Steinke 2016, proposition 1.3), which is looser."""
        epsilon, root = epsilon_nano / NANO, sqrt(log(ATTO / delta_atto))
        plain = (epsilon / (sqrt(root**2 + epsilon) + root)) ** 2
        assert rho_of(epsilon_nano, delta_atto) >= int(plain * PICO * (1 - 1e-9))

    @given(epsilons, deltas, st.integers(0, NANO), st.integers(0, ATTO // 10_000))
    @pytest.mark.slow
    @pytest.mark.ci
    def test_more_pays_for_more(self, epsilon_nano: int, delta_atto: int, more_nano: int, more_atto: int) -> None:
        assert rho_of(epsilon_nano, delta_atto) <= rho_of(epsilon_nano + more_nano, delta_atto + more_atto)

    def test_too_little_pays_for_none(self) -> None:
        assert rho_of(1000, 1000) == 0

    @pytest.mark.parametrize(
        ("epsilon_nano", "delta_atto"), [(0, 1000), (-1, 1000), (NANO, 0), (NANO, -1), (NANO, ATTO)]
    )
    def test_nothing_to_pay_with_is_refused(self, epsilon_nano: int, delta_atto: int) -> None:
        with pytest.raises(InvalidSpec, match="concentrated privacy takes"):
            rho_of(epsilon_nano, delta_atto)
