"""Test that estimates are unbiased with the theoretical variance: scales 30 % off fail.

Seeds are fixed. A pass is a p-value above 1e-6, a failure one below 1e-20, so the choice of seed does
not decide.
"""

from math import erfc, sqrt

import numpy as np
import pytest
from scipy.stats import chi2

from clustering.density.deconvolution import blur
from clustering.density.shifted_field import field
from clustering.rounds.counting import count_into
from clustering.rounds.decoders import decoder
from clustering.rounds.tally import Tally
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec, ShiftedGrid, ShiftedGridEncoding, UniformGrid

pytestmark = pytest.mark.release

PASSES, FAILS = 1e-6, 1e-20
XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def mean_p_value(errors, variance):
    """Return the p-value of the mean of independent errors with mean zero."""
    return erfc(abs(errors.mean()) / sqrt(2 * variance / errors.size))


def variance_p_value(errors, variance):
    """Return the p-value of a sum of squares of independent normal errors."""
    squares = (errors**2).sum() / variance
    return 2 * min(chi2.cdf(squares, errors.size), chi2.sf(squares, errors.size))


def repeated_tallies(mechanism, symbols_sent, n_repeats, seed):
    """Return tallies with one slot per repetition: the same symbols, perturbed afresh."""
    return tallies(mechanism, np.tile(symbols_sent, n_repeats), n_repeats, seed)


def tallies(mechanism, symbols_sent, n_repeats, seed):
    """Return tallies with one slot per repetition."""
    tally = Tally(np.zeros((n_repeats, mechanism.n_symbols), dtype=np.int64), np.zeros(n_repeats, dtype=np.int64))
    spec = RoundSpec(XY[:1], GridEncoding((mechanism.n_symbols,)), mechanism)
    reports = mechanism.perturb_many(symbols_sent, SeededEntropy(seed))
    for repeat, values in enumerate(np.split(reports, n_repeats)):
        own = Tally(tally.counts[repeat : repeat + 1], tally.reports[repeat : repeat + 1])
        count_into(own, spec, np.zeros(len(values), dtype=np.int64), values)
    return tally


@pytest.mark.parametrize("kind", ["grr", "ss"])
@pytest.mark.parametrize("epsilon", [0.5, 1, 3])
class TestFrequencies:
    K, N, REPEATS, HEAVY = 12, 500, 2000, 0.4

    def errors(self, kind, epsilon):
        mechanism = design(kind, self.K, int(epsilon * 1e9))
        symbols_sent = np.arange(self.N) % (self.K - 2) + 2  # no device has symbol 1
        symbols_sent[: int(self.HEAVY * self.N)] = 0
        truth = np.bincount(symbols_sent, minlength=self.K) / self.N
        estimates = decoder(mechanism).frequencies(repeated_tallies(mechanism, symbols_sent, self.REPEATS, seed=1))
        return decoder(mechanism), estimates - truth

    def test_are_unbiased(self, kind, epsilon):
        reading, errors = self.errors(kind, epsilon)
        for symbol, frequency in ((0, self.HEAVY), (1, 0.0)):
            variance = reading.variance(frequency, self.N)
            assert mean_p_value(errors[:, symbol], variance) > PASSES
            assert mean_p_value(errors[:, symbol] + sqrt(variance) / 3, variance) < FAILS

    def test_variances_match_theory(self, kind, epsilon):
        reading, errors = self.errors(kind, epsilon)
        for symbol, frequency in ((0, self.HEAVY), (1, 0.0)):
            variance = reading.variance(frequency, self.N)
            assert variance_p_value(errors[:, symbol], variance) > PASSES
            assert variance_p_value(1.3 * errors[:, symbol], variance) < FAILS
            assert variance_p_value(0.7 * errors[:, symbol], variance) < FAILS


@pytest.mark.parametrize("kind", ["grr", "ss"])
def test_weighted_sums_of_sampled_devices_match_theory(kind):
    k, n, repeats = 30, 400, 2000
    mechanism = design(kind, k, 10**9)
    reading = decoder(mechanism)
    rng = np.random.default_rng(2)
    tally = tallies(mechanism, rng.integers(0, k, n * repeats), repeats, seed=2)
    weights = (np.arange(k) < 12).astype(float)
    errors = reading.frequencies(tally) @ weights - 12 / k
    spread = ((weights - weights.mean()) ** 2).sum()
    variance = reading.standard_errors(np.array([spread]), np.array([12.0]), np.array([12 / k]), n)[0] ** 2
    assert mean_p_value(errors, variance) > PASSES
    assert variance_p_value(errors, variance) > PASSES
    assert variance_p_value(1.3 * errors, variance) < FAILS
    assert variance_p_value(0.7 * errors, variance) < FAILS


class TestField:
    ENCODING = ShiftedGridEncoding(2, 4, 2)
    REPEATS, N = 400, 2000

    def fields(self):
        """Return F of many rounds over the same points, and T * f of these points."""
        spec = RoundSpec(XY, self.ENCODING, design("auto", self.ENCODING.n_symbols, 10**9))
        points = np.random.default_rng(3).beta(2, 5, (self.N, 2))
        fine = np.bincount((points * 8).astype(int) @ [8, 1], minlength=64).reshape(8, 8) / self.N
        reading, entropy = decoder(spec.mechanism), SeededEntropy(3)
        draws = entropy.words(self.N)
        observed = np.array(
            [field(self.ENCODING, reading, collect(spec, points, entropy, draws).tally) for _ in range(self.REPEATS)]
        )
        return observed, blur(fine, 2), reading

    def test_is_unbiased_with_variance_v_over_n(self):
        observed, expected, reading = self.fields()
        z = (observed.mean(axis=0) - expected) / (observed.std(axis=0) / sqrt(self.REPEATS))
        assert np.abs(z).max() < 5
        # a fresh shift also varies the symbol, which adds at most m (1 - m)
        upper = (reading.zero_variance + expected * (reading.slope_variance + 1)) / self.N
        ratio = observed.var(axis=0) / upper
        assert 0.85 < ratio.mean() < 1.02
        assert (ratio < 1.3).all()


@pytest.mark.parametrize("algorithm", [ShiftedGrid, UniformGrid])
def test_size_errors_match_the_truth(algorithm):
    """Compare with the true shares of people in the published regions."""
    rng = np.random.default_rng(4)
    labels = rng.choice(3, 30_000, p=[0.5, 0.3, 0.2])
    centres = np.array([[0.25, 0.3], [0.7, 0.75], [0.75, 0.2]])
    points = (centres[labels] + rng.normal(0, 0.07, (30_000, 2))).clip(0, 1)
    normalised = []
    for seed in range(40):
        model = simulate(algorithm(epsilon=1.5, clusters=3), points, seed=seed)
        shares = np.bincount(model.assign(points), minlength=model.n_clusters) / len(points)
        normalised += list((model.sizes - shares) / model.size_errors)
    assert 0.3 < np.sqrt(np.mean(np.square(normalised))) < 1.2
    assert np.mean(np.abs(normalised) > 2) < 0.07
