"""Enumerate the exact distributions of choices, coins and noise.

The checks detect a bias of one word of 2^64 in a choice, a coin with a probability wrong by 2^-34 (in arrays, by
2^-20), and noise with probabilities not exactly proportional to their distribution. Noise is checked in parts:
coins of exp(-a/b) have a check of their own, and the samplers run with coins of a power of a fraction, in which the
distribution is an identity. The probability of unexplored paths is part of each comparison. The checks do not cover the
operating system's random words.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from math import isqrt
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from audit.checks.bounds import bound_exp
from audit.checks.check import Check, Finding, Setting
from audit.mechanisms.symbolic_random import Distribution, ExecutionPath, NotEnumerable, exact_distribution
from clustering.central import noise
from sfumato.mechanisms import discrete_laplace as of_devices
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.privacy.entropy import Entropy, below, below_many, bernoulli_exp, bernoulli_exp_many
from sfumato.specs import DiscreteLaplaceMechanism

Choose = Callable[[Entropy, int], Any]
TossCoin = Callable[[int, int, Entropy], Any]
SampleNoise = Callable[[Fraction, int, Entropy], NDArray[np.int64]]

_SMALL_BOUNDS = (2, 3, 5, 6, 7, 12, 60, 100)  # bounds with a complete enumeration
_LARGE_BOUNDS = (
    3,
    168,
    2**31 - 1,
    2**32 + 1,
    2**53 + 1,
    2**62 - 57,
    2**63 - 25,
)  # bounds with a check of the border words
_SHARES = ((0, 3), (1, 3), (5, 8), (1, 1))  # a/b of coins
_FEW_SHARES = ((0, 3), (1, 3), (1, 1))
_LONG_SHARES = ((1, 3), (7 * 10**29, 10**30))  # the second has a denominator longer than a word
_SCALES = (Fraction(1), Fraction(3), Fraction(3, 2))
_REACH = 4  # largest noise value with a comparison of its probability
_MIN_PROBABILITY = Fraction(1, 1 << 40)  # smallest followed probability; larger for arrays, which have more paths
_MIN_PROBABILITY_IN_ARRAYS = Fraction(1, 1 << 26)


class _FixedEntropy:
    """Entropy that returns given words once each, then 0, which every choice accepts."""

    def __init__(self, *words: int) -> None:
        self._words = [*words]
        self.n_drawn = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        self.n_drawn += n
        drawn = [self._words.pop(0) if self._words else 0 for _ in range(n)]
        return np.array(drawn, dtype=np.uint64)


def check_choices(choose: Choose, name: str) -> list[Finding]:
    """Check uniform choices: the complete distribution for small bounds, the border words for large ones."""
    n_cases, why = 0, ""
    for bound in _SMALL_BOUNDS:
        try:
            distribution = exact_distribution(lambda path, bound=bound: int(choose(path, bound)))  # type: ignore[misc]
        except NotEnumerable as error:
            why = why or str(error)
            continue
        n_cases += distribution.n_paths
        if distribution.probabilities != dict.fromkeys(range(bound), Fraction(1, bound)):
            why = why or f"choices below {bound} are not uniform"
    for bound in _LARGE_BOUNDS:
        run = DRAW_SPAN // bound
        cases: list[tuple[int, int, int]] = []  # word, expected choice, words drawn
        for choice in (0, 1, bound // 2, bound - 1):
            cases += [(choice * run, choice, 1), (choice * run + run - 1, choice, 1)]
        if bound * run < DRAW_SPAN:
            cases += [(bound * run, 0, 2), (DRAW_SPAN - 1, 0, 2)]
        for word, choice, n_drawn in cases:
            words = _FixedEntropy(word)
            found = int(choose(words, bound))
            n_cases += 1
            if (found, words.n_drawn) != (choice, n_drawn):
                why = why or f"below {bound}, the word {word} gives {found} after {words.n_drawn} words"
    return [Finding(name, "every choice has the same number of words", "exact", n_cases, holds=not why, why=why)]


def check_coins(
    sample: TossCoin,
    name: str,
    shares: tuple[tuple[int, int], ...] = _SHARES,
    min_probability: Fraction = _MIN_PROBABILITY,
) -> list[Finding]:
    """Check coins of exp(-a/b) against two fractions. Skip paths with less than `min_probability`."""
    n_paths, why = 0, ""
    for a, b in shares:
        distribution = exact_distribution(lambda path, a=a, b=b: bool(sample(a, b, path)), min_probability)  # type: ignore[misc]
        n_paths += distribution.n_paths
        low, high = bound_exp(Fraction(a, b))
        heads_probability = distribution.probabilities.get(True, Fraction(0))
        if distribution.unexplored > 64 * min_probability:
            why = why or f"at {a}/{b}, a probability of {float(distribution.unexplored):.1e} is not explored"
        elif not 1 / high - distribution.unexplored <= heads_probability <= 1 / low + distribution.unexplored:
            why = why or f"the coin of exp(-{a}/{b}) has probability {float(heads_probability):.17g}"
    return [Finding(name, "the coin has probability exp(-a/b)", "exact", n_paths, holds=not why, why=why)]


@contextmanager
def _power_coins(module: Any, t: int, base: Fraction) -> Iterator[None]:
    """Replace coins of exp(-a/b) in a module by base^(a t/b); count a choice below t as an iteration of its loop."""

    def pick_many(path: ExecutionPath, bound: int, n: int) -> NDArray[np.int64]:
        if bound == t:
            path.count_iteration()
        return np.asarray(original_pick(path, bound, n), dtype=np.int64)

    def coins(parts: NDArray[np.int64], b: int, path: ExecutionPath) -> NDArray[np.bool_]:
        return np.array([path.coin(base ** int(Fraction(a * t, b))) for a in parts.tolist()], dtype=np.bool_)

    original_pick = module.pick_many
    with patch.multiple(module, pick_many=pick_many, bernoulli_exp_many=coins):
        yield


def check_laplace(draw: SampleNoise, name: str) -> list[Finding]:
    """Check that discrete Laplace noise is exactly proportional to r^|z|, also after a retry."""
    n_paths, why = 0, ""
    for scale in _SCALES:
        t, s = scale.numerator, scale.denominator
        base = Fraction(round(np.exp(-1 / t) * 16), 16)
        distributions: list[Distribution[int]] = []
        with _power_coins(sys.modules[draw.__module__], t, base):
            for max_retries in (0, 1):
                sample = partial(_sample_one, draw, scale)
                distributions.append(exact_distribution(sample, Fraction(1, 1 << 24) * base**t, max_retries))
        first, second = distributions
        n_paths += second.n_paths
        at = first.probabilities
        for z in range(-_REACH, _REACH + 1):
            if at.get(z) != at[0] * base ** (s * abs(z)):
                why = why or f"at scale {scale}, the probability of {z} is wrong"
        retry_probability, excess = first.retry_probability, 1 - first.retry_probability - sum(at.values(), Fraction(0))
        if retry_probability and any(
            abs(second.probabilities[z] - at[z] * (1 + retry_probability)) > first.unexplored + second.unexplored
            for z in range(-2, 3)
        ):
            why = why or f"at scale {scale}, a retry has another distribution"
        if not 0 <= excess <= first.unexplored:
            why = why or "the probabilities do not add up"
    return [Finding(name, "has the discrete Laplace distribution", "exact", n_paths, holds=not why, why=why)]


def _sample_one(draw: SampleNoise, scale: Fraction, path: ExecutionPath) -> int:
    path.begin_loop()
    return int(draw(scale, 1, path)[0])


def device_noise(scale: Fraction, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return noise of the mechanism `discrete_laplace` in an array of devices, with a very large margin."""
    mechanism = DiscreteLaplaceMechanism(1, 1, scale.numerator, scale.denominator, 64)
    return of_devices._noise_many(mechanism, n, entropy)


device_noise.__module__ = of_devices.__name__  # `check_laplace` replaces the coins of this module


def check_gaussian(_setting: Setting) -> list[Finding]:
    """Check discrete Gaussian noise: the exponents of the Laplace sample and of the acceptance coins must add up."""
    n_cases, why = 0, ""
    for variance in (Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(10**6 + 1, 9), Fraction(2**90 + 1, 3)):
        t = isqrt(variance.numerator // variance.denominator) + 1
        for z in (0, 1, -1, 2, -3, t, -2 * t - 1):
            scale, exponent = _trace_gaussian(variance, z)
            n_cases += 1
            constant = variance / (2 * Fraction(t) ** 2)
            if abs(z) / scale + exponent != Fraction(z) ** 2 / (2 * variance) + constant:
                why = why or f"at variance {variance}, the acceptance probability of {z} is wrong"
    name, claim = "discrete Gaussian noise", "has the discrete Gaussian distribution"
    return [Finding(name, claim, "exact", n_cases, holds=not why, why=why)]


def _trace_gaussian(variance: Fraction, z: int) -> tuple[Fraction, Fraction]:
    """Return the scale of the Laplace sample and the sum of the exponents of the coins that accept it."""
    scales: list[Fraction] = []
    exponents: list[Fraction] = []

    def laplace(scale: Fraction, n: int, _: Entropy) -> NDArray[np.int64]:
        scales.append(scale)
        return np.full(n, z)

    def coins(parts: Any, b: int, _: Entropy) -> NDArray[np.bool_]:
        exponents.extend(Fraction(int(a), b) for a in parts)
        return np.ones(len(parts), dtype=np.bool_)

    with patch.multiple(noise, discrete_laplace=laplace, bernoulli_exp_many=coins, _toss_exp=coins):
        noise.discrete_gaussian(variance, 1, _FixedEntropy())
    return scales[0], sum(exponents, Fraction(0))


def below_one(entropy: Entropy, bound: int) -> Any:
    """Return one choice of `below_many`."""
    return below_many(entropy, bound, 1)[0]


def coin_one(a: int, b: int, entropy: Entropy) -> Any:
    """Return one coin of `bernoulli_exp_many`."""
    return bernoulli_exp_many(np.array([a]), b, entropy)[0]


def long_coin_one(a: int, b: int, entropy: Entropy) -> Any:
    """Return one coin of the discrete Gaussian sampler."""
    return noise._toss_exp([a], b, entropy)[0]


CHECKS: tuple[Check, ...] = (
    Check("below", lambda _: check_choices(below, "below")),
    Check("below_many", lambda _: check_choices(below_one, "below_many")),
    Check("bernoulli_exp", lambda _: check_coins(bernoulli_exp, "bernoulli_exp")),
    Check(
        "bernoulli_exp_many",
        lambda _: check_coins(coin_one, "bernoulli_exp_many", _FEW_SHARES, _MIN_PROBABILITY_IN_ARRAYS),
    ),
    Check(
        "coins with long fractions",
        lambda _: check_coins(long_coin_one, "coins with long fractions", _LONG_SHARES, _MIN_PROBABILITY_IN_ARRAYS),
    ),
    Check("discrete Laplace noise", lambda _: check_laplace(noise.discrete_laplace, "discrete Laplace noise")),
    Check("device noise", lambda _: check_laplace(device_noise, "device noise")),
    Check("discrete Gaussian noise", check_gaussian),
)
