"""Exact discrete noise for released numbers: Laplace and Gaussian over the integers, of the system's randomness.

Algorithms 2 and 3 of Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential
privacy", by integers alone: no float decides a probability. The noise has the scale that was
asked for or, where that is not representable, the next above: what is charged is never less
than what is spent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt

import numpy as np
from numpy.typing import NDArray

from sfumato.entropy import Entropy
from sfumato.exact_coins import bernoulli_exp_many, pick_many

MAX_SCALE = 1 << 56  # of Laplace noise: beyond it a sum says nothing whatever is added
MAX_SIGMA = 1 << 55  # of Gaussian noise, of which the same holds

_MOST_COINS = 1 << 62  # of exp(-1), all of which must fall alike: nobody tosses so long
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

    Laplace draws of the whole scale t = floor(sigma) + 1, each kept with probability
    exp(-(|z| - variance/t)^2/(2 variance)); those that are not are drawn again.

    Parameters
    ----------
    variance : Fraction
        The parameter, in (0, 2^110]; the variance itself is no larger.
    n : int
    entropy : Entropy

    Returns
    -------
    ndarray of shape (n,), int64
    """
    if not 0 < variance <= MAX_SIGMA**2:
        raise ValueError("a variance lies in (0, 2^110]")
    t = isqrt(variance.numerator // variance.denominator) + 1
    drawn = np.zeros(n, dtype=np.int64)
    waiting = np.arange(n)
    while waiting.size:
        tried = discrete_laplace(Fraction(t), waiting.size, entropy)
        kept = _kept(tried, t, variance, entropy)
        drawn[waiting[kept]] = tried[kept]
        waiting = waiting[~kept]
    return drawn


def _kept(tried: NDArray[np.int64], t: int, variance: Fraction, entropy: Entropy) -> NDArray[np.bool_]:
    """A coin of probability exp(-(|z| - variance/t)^2/(2 variance)) for each z, by integers of any length."""
    p, q = variance.numerator, variance.denominator
    denominator = 2 * p * q * t * t
    exponents = [divmod((size * t * q - p) ** 2, denominator) for size in np.abs(tried).tolist()]
    whole = np.array([min(turns, _MOST_COINS) for turns, _ in exponents], dtype=np.int64)
    kept = np.ones(len(tried), dtype=np.bool_)
    for turn in range(int(whole.max(initial=0))):
        (tossing,) = np.nonzero(kept & (whole > turn))
        if tossing.size == 0:
            break
        kept[tossing] = bernoulli_exp_many(np.ones(tossing.size, dtype=np.int64), 1, entropy)
    (going,) = np.nonzero(kept)
    kept[going] = _coins([exponents[i][1] for i in going.tolist()], denominator, entropy)
    return kept


def _coins(parts: list[int], b: int, entropy: Entropy) -> NDArray[np.bool_]:
    """What `bernoulli_exp_many` tosses, exp(-a/b) for each a < b, for integers longer than a word too.

    A coin of a/b compares a word with the first 64 binary digits of a/b, and further ones where
    the word equals them.
    """
    digits = np.array([(a << 64) // b for a in parts], dtype=np.uint64)
    odd = np.zeros(len(parts), dtype=np.bool_)
    going = np.arange(len(parts))
    k = 1
    while going.size:
        words = entropy.words(going.size)
        goes_on = words < digits[going]
        for place in np.flatnonzero(words == digits[going]).tolist():
            goes_on[place] = _is_below((parts[going[place]] << 64) % b, b, entropy)
        goes_on[goes_on] = pick_many(entropy, k, int(goes_on.sum())) == 0
        odd[going[~goes_on]] = k % 2 == 1
        going = going[goes_on]
        k += 1
    return odd


def _is_below(a: int, b: int, entropy: Entropy) -> bool:
    """A coin of probability a/b: words are compared with the binary digits of a/b until they differ."""
    rest = a
    while rest:
        digits, rest = divmod(rest << 64, b)
        word = int(entropy.words(1)[0])
        if word != digits:
            return word < digits
    return False


@dataclass(frozen=True, slots=True, eq=False)
class LaplaceNoise:
    """Laplace noise for an answer: of scale `unit` times the sensitivity of each value.

    Parameters
    ----------
    unit : Fraction
        Scale for a value that one record changes by one: `max_per_user` over epsilon.
    sensitivities : ndarray of shape (n,), int64
        At least 1. Changed values in units of their sensitivities are, for one record, at most
        one in absolute sum.

    Raises
    ------
    ValueError
        A scale that is not drawn: see `MAX_SCALE`.
    """

    unit: Fraction
    sensitivities: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check_sensitivities(self.sensitivities)
        if not 0 < self.scale(int(self.sensitivities.max(initial=1))) <= MAX_SCALE:
            raise ValueError("a scale lies in (0, 2^56]")

    def scale(self, sensitivity: int) -> Fraction:
        """Of the noise on a value of this sensitivity, exactly."""
        return self.unit * sensitivity

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        """Noise for each value: ndarray of shape (n,); equal scales are drawn together."""
        return _drawn(self.sensitivities, lambda s, n: discrete_laplace(self.scale(s), n, entropy))


@dataclass(frozen=True, slots=True, eq=False)
class GaussianNoise:
    """Gaussian noise for an answer: of variance `unit` times the square of each value's sensitivity.

    Parameters
    ----------
    unit : Fraction
        Variance for a value that one record changes by one: `max_per_user`^2 over 2 rho.
    sensitivities : ndarray of shape (n,), int64
        At least 1. Changed values in units of their sensitivities have, for one record, a
        Euclidean norm of at most one.

    Raises
    ------
    ValueError
        A variance that is not drawn: see `MAX_SIGMA`.
    """

    unit: Fraction
    sensitivities: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check_sensitivities(self.sensitivities)
        if not 0 < self.variance(int(self.sensitivities.max(initial=1))) <= MAX_SIGMA**2:
            raise ValueError("a variance lies in (0, 2^110]")

    def variance(self, sensitivity: int) -> Fraction:
        """The parameter of the noise on a value of this sensitivity, exactly."""
        return self.unit * sensitivity**2

    def draw(self, entropy: Entropy) -> NDArray[np.int64]:
        """Noise for each value: ndarray of shape (n,); equal variances are drawn together."""
        return _drawn(self.sensitivities, lambda s, n: discrete_gaussian(self.variance(s), n, entropy))


Noise = LaplaceNoise | GaussianNoise


def _check_sensitivities(sensitivities: NDArray[np.int64]) -> None:
    if sensitivities.ndim != 1 or (sensitivities < 1).any():
        raise ValueError("a sensitivity is at least 1")


def _drawn(sensitivities: NDArray[np.int64], draw: Callable[[int, int], NDArray[np.int64]]) -> NDArray[np.int64]:
    noise = np.empty(len(sensitivities), dtype=np.int64)
    for sensitivity in np.unique(sensitivities):
        (alike,) = np.nonzero(sensitivities == sensitivity)
        noise[alike] = draw(int(sensitivity), len(alike))
    return noise
