"""Exact discrete noise for released numbers: Laplace and Gaussian over the integers, of the system's randomness.

Algorithms 2 and 3 of Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential
privacy", by integers alone: no float decides a probability. The noise has the scale that was
asked for or, where that is not representable, the next above: what is charged is never less
than what is spent.
"""

from fractions import Fraction
from math import ceil, isqrt

import numpy as np
from numpy.typing import NDArray

from sfumato.entropy import Entropy
from sfumato.exact_coins import bernoulli_exp_many, pick_many

MAX_SCALE = 1 << 56  # of Laplace noise: beyond it a sum says nothing whatever is added
MAX_SIGMA = 1 << 40  # of Gaussian noise

_SCALE_BITS = 40  # of a scale that is no short fraction: rounded up by at most 2^-39 of itself, below 1 by 2^-40


def representable(scale: Fraction) -> tuple[int, int]:
    """The scale t/s that is drawn: `scale` itself or the next above it, t below 2^57.

    Raises
    ------
    ValueError
        A scale that is not positive, or above 2^56.
    """
    if not 0 < scale <= MAX_SCALE:
        raise ValueError("a scale lies in (0, 2^56]")
    if scale.numerator < 1 << _SCALE_BITS:
        return scale.numerator, scale.denominator
    bits = (scale.numerator // scale.denominator).bit_length()
    s = 1 << max(0, _SCALE_BITS - bits)
    return ceil(scale * s), s


def discrete_laplace(scale: Fraction, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Draw n integers z with P(z) proportional to exp(-|z|/scale).

    Parameters
    ----------
    scale : Fraction
        In (0, 2^56]; sensitivity over epsilon. See `representable`.
    n : int
    entropy : Entropy
        The system's, in the service; seeded in simulations alone.

    Returns
    -------
    ndarray of shape (n,), int64
        Exact to where an int64 ends: more than 2^62/t turns, of probability below e^-32 for the
        largest scales and of e^-(2^21) below 2^40, count as so many. Whoever adds the noise
        clamps the sum, which hides that.
    """
    t, s = representable(scale)
    most_turns = (1 << 62) // t
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
            counting = counting[turns[counting] < most_turns]
        sizes = (parts + t * turns) // s
        is_negative = pick_many(entropy, 2, waiting.size) == 1
        done = kept & ~(is_negative & (sizes == 0))
        drawn[waiting[done]] = np.where(is_negative, -sizes, sizes)[done]
        waiting = waiting[~done]
    return drawn


def laplace_variance(scale: Fraction) -> float:
    """Variance of `discrete_laplace`: 2r/(1-r)^2 with r = exp(-1/scale)."""
    t, s = representable(scale)
    return float(0.5 / np.sinh(s / t / 2) ** 2)


def discrete_gaussian(variance: Fraction, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Draw n integers z with P(z) proportional to exp(-z^2/(2 variance)).

    Laplace draws of the whole scale floor(sigma) + 1, each kept with probability
    exp(-(|z| - variance/scale)^2/(2 variance)); those that are not are drawn again.

    Parameters
    ----------
    variance : Fraction
        The parameter, in (0, 2^80]; the variance itself is no larger.
    n : int
    entropy : Entropy

    Returns
    -------
    ndarray of shape (n,), int64
    """
    if not 0 < variance <= MAX_SIGMA**2:
        raise ValueError("a variance lies in (0, 2^80]")
    t = isqrt(variance.numerator // variance.denominator) + 1
    drawn = np.zeros(n, dtype=np.int64)
    waiting = np.arange(n)
    while waiting.size:
        tried = discrete_laplace(Fraction(t), waiting.size, entropy)
        kept = np.array([_is_kept(abs(z), t, variance, entropy) for z in tried.tolist()], dtype=np.bool_)
        drawn[waiting[kept]] = tried[kept]
        waiting = waiting[~kept]
    return drawn


def _is_kept(size: int, t: int, variance: Fraction, entropy: Entropy) -> bool:
    """A coin of probability exp(-(size - variance/t)^2/(2 variance)), in integers of any length."""
    exponent = (size - variance / t) ** 2 / (2 * variance)
    whole, rest = divmod(exponent.numerator, exponent.denominator)
    return all(_coin(1, 1, entropy) for _ in range(whole)) and _coin(rest, exponent.denominator, entropy)


def _coin(a: int, b: int, entropy: Entropy) -> bool:
    """Probability exp(-a/b), 0 <= a <= b, for integers longer than a word too."""
    k = 1
    while _is_below(a, b * k, entropy):
        k += 1
    return k % 2 == 1


def _is_below(a: int, b: int, entropy: Entropy) -> bool:
    """A coin of probability a/b: words are compared with the binary digits of a/b until they differ."""
    rest = a
    while True:
        digits, rest = divmod(rest << 64, b)
        word = int(entropy.words(1)[0])
        if word != digits:
            return word < digits
        if rest == 0:
            return False
