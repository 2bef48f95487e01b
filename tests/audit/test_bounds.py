"""Lower bounds from trials: they exceed epsilon at most with their error probability, and they detect 30 %."""

import numpy as np
import pytest

from audit.checks.bounds import bound_epsilon, bound_probability, distinguish, distinguish_outcomes


def randomise_responses(epsilon: float, n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return randomised responses of two neighbours."""
    keep = np.exp(epsilon) / (1 + np.exp(epsilon))
    return (random.random(n) < keep).astype(float), (random.random(n) >= keep).astype(float)


class TestProbabilityBounds:
    @pytest.mark.parametrize("probability", [0.0005, 0.02, 0.5, 0.97])
    @pytest.mark.parametrize("trials", [50, 1000])
    def test_each_bound_fails_at_most_with_its_error_probability(self, probability: float, trials: int) -> None:
        random = np.random.default_rng(5)
        hits = random.binomial(trials, probability, 10_000)
        low, high = bound_probability(hits, trials, 0.01)
        assert (low > probability).mean() < 0.014  # four standard deviations above
        assert (high < probability).mean() < 0.014
        assert ((low >= 0) & (low <= hits / trials) & (hits / trials <= high) & (high <= 1)).all()

    def test_the_interval_is_narrow(self) -> None:
        low, high = bound_probability(500, 1000, 0.01)
        assert 0.46 < low < 0.47
        assert 0.53 < high < 0.54

    def test_the_ends_are_zero_and_one(self) -> None:
        low, high = bound_probability([0, 10], 10, 0.05)
        assert low[0] == 0
        assert high[1] == 1
        assert high[0] == pytest.approx(1 - 0.05 ** (1 / 10))

    @pytest.mark.parametrize(("hits", "trials"), [(-1, 5), (6, 5), (0, 0)])
    def test_impossible_counts_are_rejected(self, hits: int, trials: int) -> None:
        with pytest.raises(ValueError, match="hits must lie in"):
            bound_probability(hits, trials, 0.05)


class TestEpsilonBound:
    def test_the_bound_exceeds_epsilon_at_most_with_its_error_probability(self) -> None:
        random = np.random.default_rng(6)
        p, q = 0.6, 0.6 / np.e
        bounds = bound_epsilon(
            random.binomial(400, p, 20_000), 400, random.binomial(400, q, 20_000), 400, error_probability=0.02
        )
        assert 0 < (bounds > 1).mean() < 0.02
        assert np.median(bounds) > 0.6

    def test_delta_is_subtracted(self) -> None:
        assert bound_epsilon(600, 1000, 0, 1000, delta=0.7) == 0
        assert bound_epsilon(600, 1000, 100, 1000, delta=0.1) < bound_epsilon(600, 1000, 100, 1000)


class TestDistinguish:
    @pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
    def test_the_bound_is_below_epsilon_and_close(self, epsilon: float) -> None:
        random = np.random.default_rng(7)
        bounds = [distinguish(*randomise_responses(epsilon, 2000, random)).epsilon for _ in range(60)]
        assert max(bounds) <= epsilon
        n = 200_000
        assert distinguish(*randomise_responses(epsilon, n, random)).epsilon > 0.8 * epsilon

    @pytest.mark.parametrize("charged", [0.5, 1.0, 2.0])
    def test_an_excess_of_30_percent_is_detected(self, charged: float) -> None:
        random = np.random.default_rng(8)
        for _ in range(5):
            sample, other = randomise_responses(1.3 * charged, 40_000, random)
            assert distinguish(sample, other).epsilon > charged
            assert distinguish_outcomes(sample.tolist(), other.tolist()).epsilon > charged

    def test_equal_distributions_give_zero(self) -> None:
        random = np.random.default_rng(9)
        assert all(distinguish(random.normal(size=4000), random.normal(size=4000)).epsilon == 0 for _ in range(20))

    def test_the_event_may_be_at_either_end_and_more_probable_on_either_side(self) -> None:
        random = np.random.default_rng(10)
        sample, other = random.normal(size=5000), random.normal(3, size=5000)
        for pair in ((sample, other), (other, sample), (-sample, -other), (-other, -sample)):
            assert distinguish(*pair).epsilon > 3

    def test_selection_and_measurement_use_different_trials(self) -> None:
        n = 5000
        sample, other = np.zeros(2 * n), np.zeros(2 * n)
        sample[:n] = 1
        assert distinguish(sample, other).epsilon == 0
        assert distinguish(np.ones(2 * n), other).epsilon > 5


class TestDistinguishOutcomes:
    def test_unordered_outcomes_are_ranked_by_their_likelihood_ratio(self) -> None:
        random = np.random.default_rng(12)
        names = np.array(["b", "d", "a", "c"])
        sample = names[random.choice(4, 20_000, p=[0.4, 0.1, 0.1, 0.4])].tolist()
        other = names[random.choice(4, 20_000, p=[0.1, 0.4, 0.4, 0.1])].tolist()
        assert 1.1 < distinguish_outcomes(sample, other).epsilon < np.log(4)

    def test_an_outcome_absent_from_the_first_half_is_neutral(self) -> None:
        sample = [0] * 1000 + [1] * 1000
        assert distinguish_outcomes(sample, [0] * 2000).epsilon == 0
