"""The exact law of choices, coins and noise, by following every way their words can fall.

It sees a bias of one word of 2^64 in a choice, a coin whose chance is off by 2^-34 (in arrays by 2^-20), and noise
whose probabilities are not in the exact proportion of their law. Of noise it does so in parts:
coins of exp(-a/b) are looked at by themselves, and in the samplers a coin of a fraction's power
takes their place, in which the law is an identity. What is left out is stated as a chance and
judged with it. It does not see whether the operating system's words are what they are said to be.
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

from audit.check import Check, Finding, Setting
from audit.exact_exponential import exp_bounds
from audit.exact_words import Law, NotEnumerable, Way, exact_law
from clustering import noise
from sfumato.accounting import DRAW_SPAN
from sfumato.entropy import Entropy, below, below_many
from sfumato.exact_coins import bernoulli_exp, bernoulli_exp_many
from sfumato.mechanisms import discrete_laplace as of_devices
from sfumato.specs import DiscreteLaplaceMechanism

Choose = Callable[[Entropy, int], Any]
Toss = Callable[[int, int, Entropy], Any]
Draw = Callable[[Fraction, int, Entropy], NDArray[np.int64]]

_SMALL = (2, 3, 5, 6, 7, 12, 60, 100)  # bounds whose whole law is followed
_LARGE = (3, 168, 2**31 - 1, 2**32 + 1, 2**53 + 1, 2**62 - 57, 2**63 - 25)  # whose border words are played
_SHARES = ((0, 3), (1, 3), (5, 8), (1, 1))  # a/b of coins
_FEW_SHARES = ((0, 3), (1, 3), (1, 1))
_LONG_SHARES = ((1, 3), (7 * 10**29, 10**30))  # of which the latter is longer than a word
_SCALES = (Fraction(1), Fraction(3), Fraction(3, 2))
_REACH = 4  # of noise whose chances are compared
_LEAST = Fraction(1, 1 << 40)  # of a way of a coin; in arrays every choice is followed, so there are more ways
_LEAST_OF_MANY = Fraction(1, 1 << 26)


class _Played:
    """Given words, each once; then 0, which every choice takes."""

    def __init__(self, *words: int) -> None:
        self._words = [*words]
        self.n_drawn = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        self.n_drawn += n
        drawn = [self._words.pop(0) if self._words else 0 for _ in range(n)]
        return np.array(drawn, dtype=np.uint64)


def look_at_choices(choose: Choose, name: str) -> list[Finding]:
    """Uniform choices: the whole law of small bounds, the words at the borders of large ones."""
    n_cases, why = 0, ""
    for bound in _SMALL:
        try:
            law = exact_law(lambda way, bound=bound: int(choose(way, bound)))  # type: ignore[misc]
        except NotEnumerable as error:
            why = why or str(error)
            continue
        n_cases += law.n_ways
        if law.chances != dict.fromkeys(range(bound), Fraction(1, bound)):
            why = why or f"choices below {bound} are not alike"
    for bound in _LARGE:
        run = DRAW_SPAN // bound
        played: list[tuple[int, int, int]] = []  # word, choice, words drawn
        for choice in (0, 1, bound // 2, bound - 1):
            played += [(choice * run, choice, 1), (choice * run + run - 1, choice, 1)]
        if bound * run < DRAW_SPAN:
            played += [(bound * run, 0, 2), (DRAW_SPAN - 1, 0, 2)]
        for word, choice, n_drawn in played:
            words = _Played(word)
            found = int(choose(words, bound))
            n_cases += 1
            if (found, words.n_drawn) != (choice, n_drawn):
                why = why or f"below {bound}, the word {word} says {found} after {words.n_drawn} words"
    return [Finding(name, "every choice owns as many words", "exact", n_cases, holds=not why, why=why)]


def look_at_coins(
    toss: Toss, name: str, shares: tuple[tuple[int, int], ...] = _SHARES, least: Fraction = _LEAST
) -> list[Finding]:
    """Coins of exp(-a/b), between two fractions; ways less likely than `least` are not followed."""
    n_ways, why = 0, ""
    for a, b in shares:
        law = exact_law(lambda way, a=a, b=b: bool(toss(a, b, way)), least)  # type: ignore[misc]
        n_ways += law.n_ways
        low, high = exp_bounds(Fraction(a, b))
        heads = law.chances.get(True, Fraction(0))
        if law.unseen > 64 * least:
            why = why or f"of {a}/{b}, a chance of {float(law.unseen):.1e} is not seen"
        elif not 1 / high - law.unseen <= heads <= 1 / low + law.unseen:
            why = why or f"exp(-{a}/{b}) comes with chance {float(heads):.17g}"
    return [Finding(name, "falls with chance exp(-a/b)", "exact", n_ways, holds=not why, why=why)]


@contextmanager
def _power_coins(module: Any, t: int, base: Fraction) -> Iterator[None]:
    """For so long, coins of exp(-a/b) in a module are of base^(a t/b); a choice below t begins its loop anew."""

    def pick_many(way: Way, bound: int, n: int) -> NDArray[np.int64]:
        if bound == t:
            way.loop()
        return np.asarray(noise_pick(way, bound, n), dtype=np.int64)

    def coins(parts: NDArray[np.int64], b: int, way: Way) -> NDArray[np.bool_]:
        return np.array([way.coin(base ** int(Fraction(a * t, b))) for a in parts.tolist()], dtype=np.bool_)

    noise_pick = module.pick_many
    with patch.multiple(module, pick_many=pick_many, bernoulli_exp_many=coins):
        yield


def look_at_laplace(draw: Draw, name: str) -> list[Finding]:
    """Chances of discrete Laplace noise in the exact proportion r^|z|; what is drawn again forgets."""
    n_ways, why = 0, ""
    for scale in _SCALES:
        t, s = scale.numerator, scale.denominator
        base = Fraction(round(np.exp(-1 / t) * 16), 16)
        laws: list[Law[int]] = []
        with _power_coins(sys.modules[draw.__module__], t, base):
            for loops in (0, 1):
                toss = partial(_first, draw, scale)
                laws.append(exact_law(toss, Fraction(1, 1 << 24) * base**t, loops))
        first, second = laws
        n_ways += second.n_ways
        at = first.chances
        for z in range(-_REACH, _REACH + 1):
            if at.get(z) != at[0] * base ** (s * abs(z)):
                why = why or f"at scale {scale}, {z} is not as likely as it should be"
        again, total = first.again, 1 - first.again - sum(at.values(), Fraction(0))
        if again and any(
            abs(second.chances[z] - at[z] * (1 + again)) > first.unseen + second.unseen for z in range(-2, 3)
        ):
            why = why or f"at scale {scale}, what is drawn again is drawn otherwise"
        if not 0 <= total <= first.unseen:
            why = why or "chances do not add up"
    return [Finding(name, "is of the discrete Laplace law", "exact", n_ways, holds=not why, why=why)]


def _first(draw: Draw, scale: Fraction, way: Way) -> int:
    way.begin()
    return int(draw(scale, 1, way)[0])


def of_a_device(scale: Fraction, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """The noise of the mechanism `discrete_laplace` in an array of devices, clamped far out."""
    mechanism = DiscreteLaplaceMechanism(1, 1, scale.numerator, scale.denominator, 64)
    return of_devices._noise_many(mechanism, n, entropy)


of_a_device.__module__ = of_devices.__name__  # where its coins lie


def look_at_gaussian(_setting: Setting) -> list[Finding]:
    """Discrete Gaussian noise: a Laplace draw times the coins it must pass, in exact exponents."""
    n_cases, why = 0, ""
    for variance in (Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(10**6 + 1, 9), Fraction(2**90 + 1, 3)):
        t = isqrt(variance.numerator // variance.denominator) + 1
        for z in (0, 1, -1, 2, -3, t, -2 * t - 1):
            scale, exponent = _passed(variance, z)
            n_cases += 1
            constant = variance / (2 * Fraction(t) ** 2)
            if abs(z) / scale + exponent != Fraction(z) ** 2 / (2 * variance) + constant:
                why = why or f"of variance {variance}, {z} is kept too often or too seldom"
    name, claim = "discrete Gaussian noise", "is of the discrete Gaussian law"
    return [Finding(name, claim, "exact", n_cases, holds=not why, why=why)]


def _passed(variance: Fraction, z: int) -> tuple[Fraction, Fraction]:
    """The scale of the Laplace draw, and the exponents of all coins that must fall for it to be kept."""
    asked: list[Fraction] = []
    tossed: list[Fraction] = []

    def laplace(scale: Fraction, n: int, _: Entropy) -> NDArray[np.int64]:
        asked.append(scale)
        return np.full(n, z)

    def coins(parts: Any, b: int, _: Entropy) -> NDArray[np.bool_]:
        tossed.extend(Fraction(int(a), b) for a in parts)
        return np.ones(len(parts), dtype=np.bool_)

    with patch.multiple(noise, discrete_laplace=laplace, bernoulli_exp_many=coins, _coins=coins):
        noise.discrete_gaussian(variance, 1, _Played())
    return asked[0], sum(tossed, Fraction(0))


def first_below(entropy: Entropy, bound: int) -> Any:
    """`below_many`, of one."""
    return below_many(entropy, bound, 1)[0]


def first_coin(a: int, b: int, entropy: Entropy) -> Any:
    """`bernoulli_exp_many`, of one."""
    return bernoulli_exp_many(np.array([a]), b, entropy)[0]


def first_long_coin(a: int, b: int, entropy: Entropy) -> Any:
    """The coins of the discrete Gaussian sampler, of one."""
    return noise._coins([a], b, entropy)[0]


CHECKS: tuple[Check, ...] = (
    Check("below", lambda _: look_at_choices(below, "below")),
    Check("below_many", lambda _: look_at_choices(first_below, "below_many")),
    Check("bernoulli_exp", lambda _: look_at_coins(bernoulli_exp, "bernoulli_exp")),
    Check("bernoulli_exp_many", lambda _: look_at_coins(first_coin, "bernoulli_exp_many", _FEW_SHARES, _LEAST_OF_MANY)),
    Check(
        "coins of long fractions",
        lambda _: look_at_coins(first_long_coin, "coins of long fractions", _LONG_SHARES, _LEAST_OF_MANY),
    ),
    Check("discrete Laplace noise", lambda _: look_at_laplace(noise.discrete_laplace, "discrete Laplace noise")),
    Check("noise of devices", lambda _: look_at_laplace(of_a_device, "noise of devices")),
    Check("discrete Gaussian noise", look_at_gaussian),
)
