"""Broken samplers, and randomness from forbidden sources."""

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.checks.check import Finding, Leak, Setting
from audit.checks.randomness import check_sources, read_sources
from audit.mechanisms.sampler_distributions import check_choices, check_coins, check_laplace
from audit.mechanisms.sampler_draws import (
    GAUSSIAN_PROBABILITIES,
    LAPLACE_PROBABILITIES,
    check_noisy_counts,
    check_samples,
)
from clustering.central import noise
from sfumato.privacy.entropy import Entropy, bernoulli_exp_many, pick, pick_many, word

_SCALE, _SIGMA_SQUARED = Fraction(7, 2), Fraction(21, 2)  # parameters of the distributions


def choose_by_remainder(entropy: Entropy, bound: int) -> Any:
    """Return the remainder of a word: choices below 2^64 mod `bound` have one word more."""
    return word(entropy) % bound


def choose_by_float(entropy: Entropy, bound: int) -> int:
    """Multiply a float in [0, 1) by the bound: some choices have a thousand words more than others."""
    return int((int(word(entropy)) >> 11) * 2.0**-53 * bound)


def toss_short_series(a: int, b: int, entropy: Entropy) -> bool:
    """Return a coin of exp(-a/b) that uses only the first four terms of the series."""
    k = 1
    while k < 4 and pick(entropy, b) < a and pick(entropy, k) == 0:
        k += 1
    return k % 2 == 1


def sample_with_negative_zero(scale: Fraction, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Sample discrete Laplace noise that accepts negative zero, so that zero is twice as probable."""
    t, s = scale.numerator, scale.denominator
    drawn = np.zeros(n, dtype=np.int64)
    waiting = np.arange(n)
    while waiting.size:
        parts = pick_many(entropy, t, waiting.size)
        kept = bernoulli_exp_many(parts, t, entropy)
        turns = np.zeros(waiting.size, dtype=np.int64)
        counting = np.flatnonzero(kept)
        while counting.size:
            counting = counting[bernoulli_exp_many(np.ones(counting.size, dtype=np.int64), 1, entropy)]
            turns[counting] += 1
        sizes = (parts + t * turns) // s
        is_negative = pick_many(entropy, 2, waiting.size) == 1
        drawn[waiting[kept]] = np.where(is_negative, -sizes, sizes)[kept]
        waiting = waiting[~kept]
    return drawn


def add_float_noise(count: int, n: int, entropy: Entropy) -> NDArray[np.float64]:
    """Add the textbook's Laplace noise to a count, by a logarithm in floats."""
    uniform = ((entropy.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    signs = np.where(entropy.words(n) >> np.uint64(63), 1.0, -1.0)
    return np.asarray(count - signs * np.log(uniform))


def sample_laplace_at_70(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Sample Laplace noise at 70 % of its scale."""
    return noise.discrete_laplace(_SCALE * Fraction(7, 10), n, entropy)


def sample_gaussian_at_70(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Sample Gaussian noise at 70 % of its standard deviation."""
    return noise.discrete_gaussian(_SIGMA_SQUARED * Fraction(49, 100), n, entropy)


def add_noise_at_70(count: int, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Add noise at 70 % of its scale to a count, which spends 1.43 times the charged epsilon."""
    return count + noise.discrete_laplace(Fraction(7, 10), n, entropy)


_NUMPY_NOISE = "import numpy as np\nnoise = np.random.default_rng().laplace(scale=1.0, size=8)\n"
_SEEDED_NOISE = "from clustering.random import SeededEntropy\nentropy = SeededEntropy(0)\n"


def _check_with_source(path: str, text: str, setting: Setting) -> list[Finding]:
    return check_sources(read_sources() | {path: text}, setting)


LEAKS: tuple[Leak, ...] = (
    Leak("modulo bias", "below", lambda _: check_choices(choose_by_remainder, "below")),
    Leak("choice by a float", "below", lambda _: check_choices(choose_by_float, "below")),
    Leak("truncated series", "bernoulli_exp", lambda _: check_coins(toss_short_series, "bernoulli_exp")),
    Leak(
        "negative zero accepted",
        "discrete Laplace noise",
        lambda _: check_laplace(sample_with_negative_zero, "discrete Laplace noise"),
    ),
    Leak(
        "float Laplace low bits",
        "counts with Laplace noise",
        partial(check_noisy_counts, add_float_noise, "counts with Laplace noise"),
    ),
    Leak(
        "Laplace noise at 70 %",
        "samples of Laplace noise",
        partial(check_samples, sample_laplace_at_70, LAPLACE_PROBABILITIES, "samples of Laplace noise"),
    ),
    Leak(
        "Gaussian noise at 70 %",
        "samples of Gaussian noise",
        partial(check_samples, sample_gaussian_at_70, GAUSSIAN_PROBABILITIES, "samples of Gaussian noise"),
    ),
    Leak(
        "counts at 70 % of their noise",
        "counts with Laplace noise",
        partial(check_noisy_counts, add_noise_at_70, "counts with Laplace noise"),
    ),
    Leak("numpy noise", "sources of randomness", partial(_check_with_source, "clustering/planted.py", _NUMPY_NOISE)),
    Leak(
        "seeded noise in a worker",
        "sources of randomness",
        partial(_check_with_source, "workers/planted.py", _SEEDED_NOISE),
    ),
)
