"""Composition of shuffled rounds, against exact releases that dp-accounting composes."""

from fractions import Fraction
from math import log

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO, epsilon_of, is_covered, least_delta
from sfumato.privacy.shuffled_rounds import GaussianCost, gaussian_cost
from sfumato.privacy.shuffling import Blanket, delta, epsilon

COIN = Blanket(Fraction(3), Fraction(1, 2), Fraction(0))  # binary randomised response at epsilon ln 3
MICRO = ATTO // 10**6


def compose_exactly(n: int, n_rounds: int, delta_atto: int) -> float:
    """Return the epsilon of rounds of randomised response, when all other people have one symbol.

    A release is the number of values of the other symbol: Bin(n - 1, 1/4) plus the person's own value.
    """
    counts = range(n + 1)
    others = [binom.pmf(count, n - 1, 0.25) for count in counts]
    before = [0.0, *others[:-1]]
    one, other = ({count: float(p * before[count] + (1 - p) * others[count]) for count in counts} for p in (0.75, 0.25))
    one, other = ({count: mass for count, mass in each.items() if mass > 0} for each in (one, other))
    found = pld.from_two_probability_mass_functions(
        *({count: float(log(mass)) for count, mass in each.items()} for each in (one, other)),
        value_discretization_interval=1e-4,
    )
    return float(found.self_compose(n_rounds).get_epsilon_for_delta(delta_atto / ATTO))


def compose(release: GaussianCost, n_rounds: int, delta_atto: int) -> float:
    """Return the epsilon of equal releases: the sum of mu^2, at the delta that the sum of delta_0 leaves."""
    found = epsilon_of(n_rounds * release[0], delta_atto - n_rounds * release[1])
    assert found is not None
    return found / NANO


class TestComposition:
    @pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # in scipy's logsumexp
    @pytest.mark.parametrize("n_rounds", [4, 52])
    def test_covers_exact_releases(self, n_rounds: int) -> None:
        total = n_rounds * MICRO
        week = gaussian_cost(COIN, 2000, MICRO // 10)
        found = compose(week, n_rounds, total)
        exact = compose_exactly(2000, n_rounds, total)
        assert exact <= found < 1.6 * exact
        assert found < n_rounds * epsilon(COIN, 2000, MICRO) / NANO

    def test_of_a_year_is_a_seventh_of_the_sum(self) -> None:
        """The figure of docs/privacy.md: 52 rounds of epsilon .5 at 100,000 honest reports."""
        blanket = Blanket(Fraction(88_452, 100), Fraction(1, 169), Fraction(0))
        assert epsilon(blanket, 100_000, MICRO) == pytest.approx(NANO / 2, rel=0.01)
        week = gaussian_cost(blanket, 100_000, MICRO // 10)
        assert compose(week, 52, 52 * MICRO) == pytest.approx(3.62, abs=0.05)


class TestGaussianCost:
    def test_dominates_the_curve_between_its_steps(self) -> None:
        mu2, atto = gaussian_cost(COIN, 2000, MICRO)
        for step in range(60):
            nano = 1_234_567 + step * COIN.local_epsilon_nano // 61
            curve = atto / ATTO + (1 - atto / ATTO) * float(least_delta(mu2, nano))
            assert delta(COIN, 2000, nano) / ATTO <= curve

    def test_with_a_fifth_less_mu2_does_not(self) -> None:
        mu2, atto = gaussian_cost(COIN, 2000, MICRO)
        worst = max(
            delta(COIN, 2000, nano) / ATTO - atto / ATTO - float(least_delta(mu2 * 4 // 5, nano))
            for nano in range(0, epsilon(COIN, 2000, MICRO), NANO // 200)
        )
        assert worst > 0

    @pytest.mark.parametrize("atto", [0, ATTO])
    def test_refuses_a_delta_out_of_range(self, atto: int) -> None:
        with pytest.raises(InvalidSpec, match="delta must be above 0 and below 1, not "):
            gaussian_cost(COIN, 2000, atto)

    def test_refuses_a_release_without_protection(self) -> None:
        with pytest.raises(InvalidSpec, match="not private enough"):
            gaussian_cost(Blanket(Fraction(10**9), Fraction(1, 2), Fraction(0)), 1, 1)

    def test_least_delta_is_that_of_the_cover(self) -> None:
        least = int(least_delta(PICO, NANO) * ATTO)
        assert not is_covered(PICO, NANO, least)
        assert is_covered(PICO, NANO, least + least // 10**9)
