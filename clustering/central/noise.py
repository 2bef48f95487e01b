"""Exact discrete Laplace and Gaussian noise over the integers.

Algorithms 2 and 3 of Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential
privacy", in integer arithmetic: no floating-point number decides a probability. A scale that is not
representable is rounded up, so that the privacy loss never exceeds the charge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt

import numpy as np
from numpy.typing import NDArray

from sfumato.privacy.entropy import Entropy, bernoulli_exp_many, pick_many
from sfumato.privacy.gaussian_privacy import ADDED_VARIANCE

MAX_SCALE = 1 << 56  # largest Laplace scale; a sum with more noise carries no information
MAX_SIGMA = 1 << 55  # largest Gaussian deviation, for the same reason

_BLOCK = 1 << 13  # draws in one step of big integers; their list needs several times the memory of the results
_MAX_COINS = 1 << 62  # cap on consecutive successes of exp(-1) coins; its probability is negligible
_SCALE_BITS = 40  # precision of long fractions: a scale grows by at most 2^-39 of itself, below 1 by 2^-40


def representable(scale: Fraction) -> tuple[int, int]:
    """Return t and s with t/s the smallest representable scale at least `scale`; t is below 2^57.

    Raises
    ------
    ValueError
        The scale is not positive or is above 2^56.
    """
    if not 0 < scale <= MAX_SCALE:
        raise ValueError("scale must lie in (0, 2^56]")
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
        Sensitivity divided by epsilon, in (0, 2^56]. See `representable`.
    n : int
    entropy : Entropy
        The system's entropy source. Only simulations pass a seeded one.

    Returns
    -------
    ndarray of shape (n,), int64
        Exact within the range of int64. The geometric count is capped at 2^62/t, which has a
        probability below e^-32 for the largest scales and below e^-(2^21) for scales up to 2^40.
        The curator clamps the noisy sum, which hides the cap.

    Raises
    ------
    ValueError
        The scale is out of range.
    """
    t, s = representable(scale)
    max_turns = (1 << 62) // t
    drawn = np.zeros(n, dtype=np.int64)
    waiting = np.arange(n)
    while waiting.size:
        parts = pick_many(entropy, t, waiting.size)
        accepted = bernoulli_exp_many(parts, t, entropy)
        turns = np.zeros(waiting.size, dtype=np.int64)
        counting = np.flatnonzero(accepted)
        while counting.size:
            counting = counting[bernoulli_exp_many(np.ones(counting.size, dtype=np.int64), 1, entropy)]
            turns[counting] += 1
            counting = counting[turns[counting] < max_turns]
        sizes = (parts + t * turns) // s
        is_negative = pick_many(entropy, 2, waiting.size) == 1
        done = accepted & ~(is_negative & (sizes == 0))
        drawn[waiting[done]] = np.where(is_negative, -sizes, sizes)[done]
        waiting = waiting[~done]
    return drawn


def laplace_variance(scale: Fraction) -> float:
    """Return the variance of `discrete_laplace`, 2r/(1-r)^2 with r = exp(-1/scale)."""
    t, s = representable(scale)
    return float(0.5 / np.sinh(s / t / 2) ** 2)


def discrete_gaussian(variance: Fraction, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Draw n integers z with P(z) proportional to exp(-z^2/(2 variance)).

    Rejection sampling: draw Laplace noise of the integer scale t = floor(sigma) + 1 and accept it
    with probability exp(-(|z| - variance/t)^2/(2 variance)).

    Parameters
    ----------
    variance : Fraction
        Parameter sigma^2, in (0, 2^110]. The variance of the result is at most this.
    n : int
    entropy : Entropy

    Returns
    -------
    ndarray of shape (n,), int64

    Raises
    ------
    ValueError
        The variance is out of range.
    """
    if not 0 < variance <= MAX_SIGMA**2:
        raise ValueError("variance must lie in (0, 2^110]")
    t = isqrt(variance.numerator // variance.denominator) + 1
    drawn = np.zeros(n, dtype=np.int64)
    waiting = np.arange(n)
    while waiting.size:
        tried = discrete_laplace(Fraction(t), waiting.size, entropy)
        accepted = _accept(tried, t, variance, entropy)
        drawn[waiting[accepted]] = tried[accepted]
        waiting = waiting[~accepted]
    return drawn


def _accept(tried: NDArray[np.int64], t: int, variance: Fraction, entropy: Entropy) -> NDArray[np.bool_]:
    """Toss a coin of probability exp(-(|z| - variance/t)^2/(2 variance)) for each z, with big integers."""
    p, q = variance.numerator, variance.denominator
    denominator, step = 2 * p * q * t * t, t * q
    whole, parts = np.empty(len(tried), dtype=np.int64), np.empty(len(tried), dtype=object)
    for begin in range(0, len(tried), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        exponents = [divmod((size * step - p) ** 2, denominator) for size in np.abs(tried[block]).tolist()]
        whole[block] = [turns if turns < _MAX_COINS else _MAX_COINS for turns, _ in exponents]
        parts[block] = [part for _, part in exponents]
    accepted = np.ones(len(tried), dtype=np.bool_)
    for turn in range(int(whole.max(initial=0))):
        (tossing,) = np.nonzero(accepted & (whole > turn))
        if tossing.size == 0:
            break
        accepted[tossing] = bernoulli_exp_many(np.ones(tossing.size, dtype=np.int64), 1, entropy)
    (going,) = np.nonzero(accepted)
    parts = parts[going]  # frees the others
    accepted[going] = _toss_exp(parts, denominator, entropy)
    return accepted


def _toss_exp(parts: Sequence[int] | NDArray[np.object_], b: int, entropy: Entropy) -> NDArray[np.bool_]:
    """Toss a coin of probability exp(-a/b) for each a < b. Unlike `bernoulli_exp_many`, a and b may exceed 64 bits.

    A coin of probability a/b compares a random word with the first 64 binary digits of a/b. If they
    are equal, it compares further words with further digits.
    """
    digits = np.fromiter(((a << 64) // b for a in parts), dtype=np.uint64, count=len(parts))
    odd = np.zeros(len(parts), dtype=np.bool_)
    going = np.arange(len(parts))
    k = 1
    while going.size:
        words, own = entropy.words(going.size), digits[going]
        continues = words < own
        for place in np.flatnonzero(words == own).tolist():
            continues[place] = _toss((parts[going[place]] << 64) % b, b, entropy)
        continues[continues] = pick_many(entropy, k, int(continues.sum())) == 0
        odd[going[~continues]] = k % 2 == 1
        going = going[continues]
        k += 1
    return odd


def _toss(a: int, b: int, entropy: Entropy) -> bool:
    """Toss a coin of probability a/b: compare random words with the binary digits of a/b until they differ."""
    rest = a
    while rest:
        digits, rest = divmod(rest << 64, b)
        word = int(entropy.words(1)[0])
        if word != digits:
            return word < digits
    return False


@dataclass(frozen=True, slots=True, eq=False)
class LaplaceNoise:
    """Laplace noise of an answer. The scale of a value is `unit` times its sensitivity.

    Parameters
    ----------
    unit : Fraction
        Scale at sensitivity 1: `max_per_user` divided by epsilon.
    sensitivities : ndarray of shape (n,), int64
        At least 1. One record's changes, each divided by its sensitivity, have an L1 norm of at
        most 1.

    Raises
    ------
    ValueError
        A scale exceeds `MAX_SCALE`.
    """

    unit: Fraction
    sensitivities: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check_sensitivities(self.sensitivities)
        if not 0 < self.scale(int(self.sensitivities.max(initial=1))) <= MAX_SCALE:
            raise ValueError("scale must lie in (0, 2^56]")

    def scale(self, sensitivity: int) -> Fraction:
        """Return the exact scale for a value of this sensitivity."""
        return self.unit * sensitivity

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        """Draw noise for each value: ndarray of shape (n,). Equal scales are drawn together."""
        return _draw_by_sensitivity(self.sensitivities, lambda s, n: discrete_laplace(self.scale(s), n, entropy))


@dataclass(frozen=True, slots=True, eq=False)
class GaussianNoise:
    """Gaussian noise of an answer. A value has `unit` times its squared sensitivity + `ADDED_VARIANCE` as variance.

    See `sfumato.privacy.gaussian_privacy` for the reason.

    Parameters
    ----------
    unit : Fraction
        `max_per_user`^2 / (2 rho). Positive.
    sensitivities : ndarray of shape (n,), int64
        At least 1. One record's changes, each divided by its sensitivity, have an L2 norm of at
        most 1.

    Raises
    ------
    ValueError
        A deviation exceeds `MAX_SIGMA`.
    """

    unit: Fraction
    sensitivities: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check_sensitivities(self.sensitivities)
        if self.unit <= 0 or self.variance(int(self.sensitivities.max(initial=1))) > MAX_SIGMA**2:
            raise ValueError("variance must lie in (0, 2^110]")

    def variance(self, sensitivity: int) -> Fraction:
        """Return the exact variance parameter for a value of this sensitivity."""
        return self.unit * sensitivity**2 + ADDED_VARIANCE

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        """Draw noise for each value: ndarray of shape (n,). Equal variances are drawn together."""
        return _draw_by_sensitivity(self.sensitivities, lambda s, n: discrete_gaussian(self.variance(s), n, entropy))


Noise = LaplaceNoise | GaussianNoise


def _check_sensitivities(sensitivities: NDArray[np.int64]) -> None:
    if sensitivities.ndim != 1 or (sensitivities < 1).any():
        raise ValueError("sensitivities must be a vector of integers, at least 1 each")


def _draw_by_sensitivity(
    sensitivities: NDArray[np.int64], draw: Callable[[int, int], NDArray[np.int64]]
) -> NDArray[np.int64]:
    noise = np.empty(len(sensitivities), dtype=np.int64)
    for sensitivity in np.unique(sensitivities):
        (equal,) = np.nonzero(sensitivities == sensitivity)
        noise[equal] = draw(int(sensitivity), len(equal))
    return noise
