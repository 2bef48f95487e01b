"""Samplers that leak and randomness from elsewhere, put to the checks of the sound ones."""

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.check import Finding, Leak, Setting
from audit.randomness import look as look_at_sources
from audit.randomness import sources
from audit.sampler_draws import GAUSSIAN_LAW, LAPLACE_LAW, look_at_answers, look_at_draws
from audit.sampler_laws import look_at_choices, look_at_coins, look_at_laplace
from clustering import noise
from sfumato.entropy import Entropy, word
from sfumato.exact_coins import bernoulli_exp_many, pick, pick_many

_SCALE, _SIGMA_SQUARED = Fraction(7, 2), Fraction(21, 2)  # of the laws


def remainder_below(entropy: Entropy, bound: int) -> Any:
    """A word's remainder: choices below 2^64 mod `bound` own one word more."""
    return word(entropy) % bound


def float_below(entropy: Entropy, bound: int) -> int:
    """A float in [0, 1) times the bound: some choices own a thousand words more than others."""
    return int((int(word(entropy)) >> 11) * 2.0**-53 * bound)


def short_coin(a: int, b: int, entropy: Entropy) -> bool:
    """exp(-a/b) by the first four terms of its series alone."""
    k = 1
    while k < 4 and pick(entropy, b) < a and pick(entropy, k) == 0:
        k += 1
    return k % 2 == 1


def laplace_with_two_zeros(scale: Fraction, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Discrete Laplace noise, but minus zero is kept: zero comes twice as often as it should."""
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


def float_laplace_answers(count: int, n: int, entropy: Entropy) -> NDArray[np.float64]:
    """A count with the textbook's Laplace noise, by a logarithm in doubles."""
    uniform = ((entropy.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    signs = np.where(entropy.words(n) >> np.uint64(63), 1.0, -1.0)
    return np.asarray(count - signs * np.log(uniform))


def quiet_laplace(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Laplace noise of 70 % of its scale."""
    return noise.discrete_laplace(_SCALE * Fraction(7, 10), n, entropy)


def quiet_gaussian(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Gaussian noise of 70 % of its standard deviation."""
    return noise.discrete_gaussian(_SIGMA_SQUARED * Fraction(49, 100), n, entropy)


def quiet_answers(count: int, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """A count with noise of 70 % of its scale: 1.43 times the epsilon that is charged."""
    return count + noise.discrete_laplace(Fraction(7, 10), n, entropy)


_NUMPY_NOISE = "import numpy as np\nnoise = np.random.default_rng().laplace(scale=1.0, size=8)\n"
_SEEDED_NOISE = "from clustering.seeded_entropy import SeededEntropy\nentropy = SeededEntropy(0)\n"


def _with_source(path: str, text: str, setting: Setting) -> list[Finding]:
    return look_at_sources(sources() | {path: text}, setting)


LEAKS: tuple[Leak, ...] = (
    Leak("modulo bias", "below", lambda _: look_at_choices(remainder_below, "below")),
    Leak("choice by a float", "below", lambda _: look_at_choices(float_below, "below")),
    Leak("series cut short", "bernoulli_exp", lambda _: look_at_coins(short_coin, "bernoulli_exp")),
    Leak(
        "minus zero kept",
        "discrete Laplace noise",
        lambda _: look_at_laplace(laplace_with_two_zeros, "discrete Laplace noise"),
    ),
    Leak(
        "float Laplace low bits",
        "answers with Laplace noise",
        partial(look_at_answers, float_laplace_answers, "answers with Laplace noise"),
    ),
    Leak(
        "Laplace noise at 70 %",
        "draws of Laplace noise",
        partial(look_at_draws, quiet_laplace, LAPLACE_LAW, "draws of Laplace noise"),
    ),
    Leak(
        "Gaussian noise at 70 %",
        "draws of Gaussian noise",
        partial(look_at_draws, quiet_gaussian, GAUSSIAN_LAW, "draws of Gaussian noise"),
    ),
    Leak(
        "answers at 70 % of their noise",
        "answers with Laplace noise",
        partial(look_at_answers, quiet_answers, "answers with Laplace noise"),
    ),
    Leak("noise of numpy", "randomness", partial(_with_source, "clustering/planted.py", _NUMPY_NOISE)),
    Leak("seeded noise in a worker", "randomness", partial(_with_source, "workers/planted.py", _SEEDED_NOISE)),
)
