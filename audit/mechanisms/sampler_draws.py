"""Check samples of the shipped samplers against their distribution, and between neighbours.

Chi-square detects a scale that is wrong by 3 % or more, and a sign or value that is too frequent. For neighbouring
counts, the size and the lowest bit of the noisy count bound epsilon from below. The lowest bit reveals noise that was
computed in floating point (Mironov 2012, "On significance of the least significant bits for differential privacy").
`audit.mechanisms.sampler_distributions` detects faults that are rarer than one sample in some thousands.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

from audit.checks.bounds import distinguish
from audit.checks.check import Check, Finding, Setting
from clustering.central import noise
from sfumato.privacy.entropy import Entropy, below_many, bernoulli_exp_many
from sfumato.specs import DiscreteLaplaceMechanism

Sample = Callable[[int, Entropy], NDArray[np.int64]]
NoisyCounts = Callable[[int, int, Entropy], NDArray[Any]]

MIN_P_VALUE = 1e-10  # probability that a sound sampler fails
EPSILON = 1.0  # charged for a noisy count

_N_SAMPLES = 40_000
_SCALE = Fraction(7, 2)
_SIGMA_SQUARED = Fraction(21, 2)


def laplace_probabilities(scale: Fraction, sizes: int) -> NDArray[np.float64]:
    """Return the probabilities of -sizes or less, ..., sizes or more: shape (2 sizes + 1,)."""
    r = float(np.exp(-1 / float(scale)))
    probabilities = (1 - r) / (1 + r) * r ** np.abs(np.arange(-sizes, sizes + 1))
    probabilities[[0, -1]] = r**sizes / (1 + r)
    return np.asarray(probabilities)


def gaussian_probabilities(variance: Fraction, sizes: int) -> NDArray[np.float64]:
    """Return the same probabilities of the discrete Gaussian distribution."""
    reach = sizes + int(40 * float(variance) ** 0.5)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * float(variance)))
    weights /= weights.sum()
    probabilities = weights[reach - sizes : reach + sizes + 1].copy()
    probabilities[[0, -1]] = weights[: reach - sizes + 1].sum()
    return np.asarray(probabilities)


def check_samples(sample: Sample, probabilities: NDArray[np.float64], name: str, setting: Setting) -> list[Finding]:
    """Check samples by chi-square. Values beyond -m .. m count as the ends."""
    n, reach = setting.effort.trials(_N_SAMPLES), len(probabilities) // 2
    values = sample(n, setting.entropy(name))
    observed = np.bincount(np.clip(values, -reach, reach) + reach, minlength=len(probabilities))
    p = float(chisquare(observed, probabilities * n).pvalue)
    why = "" if p > MIN_P_VALUE else f"samples like these have probability {p:.1e}"
    return [Finding(name, "samples follow the distribution", "chi-square", n, holds=not why, why=why)]


def lowest_bit(noisy_counts: NDArray[Any]) -> NDArray[np.float64]:
    """Return the exponent of the lowest set bit of each number; 64 for 0."""
    mantissas, exponents = np.frexp(np.asarray(noisy_counts, dtype=np.float64))
    whole = np.abs(np.ldexp(mantissas, 53)).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64), where=whole != 0, out=np.full(len(whole), 117.0))
    return np.where(whole == 0, 64.0, exponents - 53 + lowest)


def check_noisy_counts(noisy_counts: NoisyCounts, name: str, setting: Setting) -> list[Finding]:
    """Check how well noisy counts distinguish a count of 0 from a count of 1 at epsilon 1."""
    n = setting.effort.trials(_N_SAMPLES)
    observed, other = (noisy_counts(count, n, setting.entropy(f"{name} {count}")) for count in (0, 1))
    sizes = distinguish(observed.astype(np.float64), other.astype(np.float64))
    bits = distinguish(lowest_bit(observed), lowest_bit(other))
    largest = max(sizes.epsilon, bits.epsilon)
    statistic = "the lowest bit" if bits.epsilon == largest else "the size"
    why = "" if largest <= EPSILON else f"{statistic} distinguishes neighbours"
    claim = "noisy counts distinguish neighbours by at most the charge"
    return [Finding(name, claim, "black box", 2 * n, EPSILON, largest, not why, why)]


def laplace_counts(count: int, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return noisy counts with the service's noise at epsilon 1."""
    return count + noise.discrete_laplace(Fraction(1), n, entropy)


def laplace_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return the service's Laplace noise."""
    return noise.discrete_laplace(_SCALE, n, entropy)


def gaussian_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return the service's Gaussian noise."""
    return noise.discrete_gaussian(_SIGMA_SQUARED, n, entropy)


def device_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return the noise of devices, computed from the values they send."""
    mechanism = DiscreteLaplaceMechanism(1, 4, _SCALE.numerator, _SCALE.denominator, 60)
    reports = mechanism.perturb_many(np.full((n, 1), 2), entropy)
    return mechanism.vectors_of(reports)[:, 0].astype(np.int64) - 2


def choice_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return choices among 11 values, centred at 0."""
    return below_many(entropy, 11, n) - 5


def coin_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return coins of exp(-1/2): 0 for heads; 1 or -1 with equal probability for tails, so that 0 is the middle."""
    tails = ~bernoulli_exp_many(np.ones(n, dtype=np.int64), 2, entropy)
    return np.where(tails, 2 * below_many(entropy, 2, n) - 1, 0)


LAPLACE_PROBABILITIES = laplace_probabilities(_SCALE, 14)
GAUSSIAN_PROBABILITIES = gaussian_probabilities(_SIGMA_SQUARED, 9)
_CHOICE_PROBABILITIES = np.full(11, 1 / 11)
_TAILS = (1 - np.exp(-0.5)) / 2
_COIN_PROBABILITIES = np.array([_TAILS, np.exp(-0.5), _TAILS])


def _make_check(sample: Sample, probabilities: NDArray[np.float64], name: str) -> Check:
    return Check(name, partial(check_samples, sample, probabilities, name))


CHECKS: tuple[Check, ...] = (
    _make_check(laplace_draws, LAPLACE_PROBABILITIES, "samples of Laplace noise"),
    _make_check(gaussian_draws, GAUSSIAN_PROBABILITIES, "samples of Gaussian noise"),
    _make_check(device_draws, LAPLACE_PROBABILITIES, "samples of device noise"),
    _make_check(choice_draws, _CHOICE_PROBABILITIES, "samples of below_many"),
    _make_check(coin_draws, _COIN_PROBABILITIES, "samples of bernoulli_exp"),
    Check("counts with Laplace noise", partial(check_noisy_counts, laplace_counts, "counts with Laplace noise")),
)
