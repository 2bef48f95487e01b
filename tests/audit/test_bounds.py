"""Bounds from trials: below the truth as often as they say, and close enough to see 30 % too much."""

import numpy as np
import pytest

from audit.bounds import distinguish, distinguish_outcomes, epsilon_bound, probability_bounds


def responses(epsilon: float, n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response of two neighbours."""
    keep = np.exp(epsilon) / (1 + np.exp(epsilon))
    return (random.random(n) < keep).astype(float), (random.random(n) >= keep).astype(float)


class TestProbabilityBounds:
    @pytest.mark.parametrize("chance", [0.0005, 0.02, 0.5, 0.97])
    @pytest.mark.parametrize("trials", [50, 1000])
    def test_each_side_is_missed_at_most_as_often_as_it_says(self, chance: float, trials: int) -> None:
        random = np.random.default_rng(5)
        hits = random.binomial(trials, chance, 20_000)
        low, high = probability_bounds(hits, trials, 0.01)
        assert (low > chance).mean() < 0.013  # four standard deviations above
        assert (high < chance).mean() < 0.013
        assert ((low >= 0) & (low <= hits / trials) & (hits / trials <= high) & (high <= 1)).all()

    def test_they_are_not_needlessly_wide(self) -> None:
        low, high = probability_bounds(500, 1000, 0.01)
        assert 0.46 < low < 0.47
        assert 0.53 < high < 0.54

    def test_the_ends_are_zero_and_one(self) -> None:
        low, high = probability_bounds([0, 10], 10, 0.05)
        assert low[0] == 0
        assert high[1] == 1
        assert high[0] == pytest.approx(1 - 0.05 ** (1 / 10))

    @pytest.mark.parametrize(("hits", "trials"), [(-1, 5), (6, 5), (0, 0)])
    def test_impossible_counts_are_refused(self, hits: int, trials: int) -> None:
        with pytest.raises(ValueError, match="hits lie in"):
            probability_bounds(hits, trials, 0.05)


class TestEpsilonBound:
    def test_it_lies_above_the_truth_as_seldom_as_it_says(self) -> None:
        random = np.random.default_rng(6)
        p, q = 0.6, 0.6 / np.e
        bounds = epsilon_bound(random.binomial(400, p, 20_000), 400, random.binomial(400, q, 20_000), 400, mistake=0.02)
        assert 0 < (bounds > 1).mean() < 0.02
        assert np.median(bounds) > 0.6

    def test_delta_is_taken_off(self) -> None:
        assert epsilon_bound(600, 1000, 0, 1000, delta=0.7) == 0
        assert epsilon_bound(600, 1000, 100, 1000, delta=0.1) < epsilon_bound(600, 1000, 100, 1000)


class TestDistinguish:
    @pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
    def test_it_stays_below_the_truth_and_comes_close(self, epsilon: float) -> None:
        random = np.random.default_rng(7)
        bounds = [distinguish(*responses(epsilon, 2000, random)).epsilon for _ in range(60)]
        assert max(bounds) <= epsilon
        n = 200_000
        assert distinguish(*responses(epsilon, n, random)).epsilon > 0.8 * epsilon

    @pytest.mark.parametrize("charged", [0.5, 1.0, 2.0])
    def test_an_excess_of_30_percent_is_seen(self, charged: float) -> None:
        random = np.random.default_rng(8)
        for _ in range(5):
            seen, other = responses(1.3 * charged, 40_000, random)
            assert distinguish(seen, other).epsilon > charged
            assert distinguish_outcomes(seen.tolist(), other.tolist()).epsilon > charged

    def test_equal_laws_are_not_told_apart(self) -> None:
        random = np.random.default_rng(9)
        assert all(distinguish(random.normal(size=4000), random.normal(size=4000)).epsilon == 0 for _ in range(20))

    def test_either_side_and_either_end_may_be_the_likelier(self) -> None:
        random = np.random.default_rng(10)
        seen, other = random.normal(size=5000), random.normal(3, size=5000)
        for pair in ((seen, other), (other, seen), (-seen, -other), (-other, -seen)):
            assert distinguish(*pair).epsilon > 3

    def test_choosing_and_judging_use_different_trials(self) -> None:
        """What only the first halves tell is worth nothing."""
        n = 5000
        seen, other = np.zeros(2 * n), np.zeros(2 * n)
        seen[:n] = 1
        assert distinguish(seen, other).epsilon == 0
        assert distinguish(np.ones(2 * n), other).epsilon > 5


class TestDistinguishOutcomes:
    def test_outcomes_without_an_order_are_ranked_by_how_much_likelier_they_are(self) -> None:
        random = np.random.default_rng(12)
        names = np.array(["b", "d", "a", "c"])
        seen = names[random.choice(4, 20_000, p=[0.4, 0.1, 0.1, 0.4])].tolist()
        other = names[random.choice(4, 20_000, p=[0.1, 0.4, 0.4, 0.1])].tolist()
        assert 1.1 < distinguish_outcomes(seen, other).epsilon < np.log(4)

    def test_an_outcome_that_never_came_before_counts_for_neither(self) -> None:
        seen = [0] * 1000 + [1] * 1000
        assert distinguish_outcomes(seen, [0] * 2000).epsilon == 0
