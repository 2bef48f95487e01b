"""Gaussian differential privacy: conversion between rho and (epsilon, delta), with safe rounding.

A block of adaptive queries with discrete Gaussian noise is one charge of (epsilon, delta). A value of
sensitivity s that costs rho has noise of the variance parameter s^2 / (2 rho) + `ADDED_VARIANCE`, and
costs add up. The whole block then is as private as continuous Gaussian noise on one number that changes
by mu = sqrt(2 rho) standard deviations. docs/decisions/0030-gaussian-accounting-of-blocks.md has the
proof. It follows from Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy",
theorem 8, that the block satisfies (epsilon, delta) with

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),

up to a factor e^(n xi) of delta and an addition of 2 n xi to epsilon, where n is the number of values and
xi < 2e-25. `_MARGIN` covers both for n up to 2^40.
"""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from math import erfc, exp, sqrt
from statistics import NormalDist

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, EPSILON_MAX_NANO, NANO

PICO = 1_000_000_000_000  # pico-rho in one rho
ADDED_VARIANCE = 3  # variance that turns continuous noise into discrete noise; in squared integers

_DIGITS = 80
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
_FAR = 20  # Phi is below 1e-88 beyond
_MARGIN = Decimal("1e-12")  # absolute in epsilon, relative in delta
_ERROR = Decimal("1e-30")  # the error of a delta in `_DIGITS` digits is below 1e-60
_ROUNDING = Decimal("1e-60")  # the error of a normal tail in `_DIGITS` digits is below 1e-75
_RHO_BITS = 50  # 2^50 pico-rho exceed every epsilon and delta that are allowed


@lru_cache(maxsize=256)
def rho_of(epsilon_nano: int, delta_atto: int) -> int:
    """Return the largest rho that (epsilon, delta) permits.

    Parameters
    ----------
    epsilon_nano : int
        In 1 .. `EPSILON_MAX_NANO`.
    delta_atto : int
        In 1 .. 10^18 - 1.

    Returns
    -------
    int
        Pico-rho, rounded down: a block of this rho is (epsilon, delta)-private. 0 where less than
        one pico-rho is covered.

    Raises
    ------
    InvalidSpec
        Epsilon or delta is out of range.
    """
    if not 0 < epsilon_nano <= EPSILON_MAX_NANO or not 0 < delta_atto < ATTO:
        raise InvalidSpec("a block must have an epsilon above 0 and at most 32, and a delta between 0 and 1")
    epsilon, delta = epsilon_nano / NANO, delta_atto / ATTO
    guess = _bisect(lambda rho: delta_in_floats(2 * rho, epsilon) > delta, 0, 1 << _RHO_BITS)
    with localcontext(Context(prec=_DIGITS)):
        return least_near(guess, lambda rho: not is_covered(2 * rho, epsilon_nano, delta_atto), 0, 1 << _RHO_BITS) - 1


@lru_cache(maxsize=256)
def epsilon_of(mu2_pico: int, delta_atto: int) -> int | None:
    """Return the least nano-epsilon with which (epsilon, delta) covers mu^2, rounded up; None if it is above 32.

    Parameters
    ----------
    mu2_pico : int
        In units of 1e-12, at least 0.
    delta_atto : int
        In 1 .. 10^18 - 1.
    """
    if mu2_pico == 0:
        return 0
    if not is_covered(mu2_pico, EPSILON_MAX_NANO, delta_atto):
        return None
    delta = delta_atto / ATTO
    guess = _bisect(lambda nano: delta_in_floats(mu2_pico, nano / NANO) <= delta, 0, EPSILON_MAX_NANO)
    with localcontext(Context(prec=_DIGITS)):
        return least_near(guess, lambda nano: is_covered(mu2_pico, nano, delta_atto), 0, EPSILON_MAX_NANO)


def is_covered(mu2_pico: int, epsilon_nano: int, delta_atto: int) -> bool:
    """Return whether a block with mu^2 in units of 1e-12 is certainly (epsilon, delta)-private."""
    if mu2_pico == 0:
        return True
    with localcontext(Context(prec=_DIGITS)):
        epsilon = Decimal(epsilon_nano) / NANO - _MARGIN
        limit = Decimal(delta_atto) / ATTO * (1 - _MARGIN) - _ERROR
        return _delta(mu2_pico, epsilon) <= limit


def least_delta(mu2_pico: int, epsilon_nano: int) -> Decimal:
    """Return the least delta with which (epsilon, delta) covers mu^2, rounded down."""
    with localcontext(Context(prec=_DIGITS)):
        return _delta(mu2_pico, Decimal(epsilon_nano) / NANO) - _ERROR if mu2_pico else Decimal()


def _delta(mu2_pico: int, epsilon: Decimal) -> Decimal:
    mu = (Decimal(mu2_pico) / PICO).sqrt()
    return _normal_cdf(mu / 2 - epsilon / mu) - epsilon.exp() * _normal_cdf(-mu / 2 - epsilon / mu)


@lru_cache(maxsize=256)
def mu2_of_pure(epsilon_nano: int) -> int:
    """Return mu^2 of a pure mechanism, in units of 1e-12, rounded up.

    A pure epsilon mechanism is mu-Gaussian private for mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)), as the trade-off
    function of mu lies below that of epsilon at the kink of the latter (Dong, Roth and Su 2019, section 2).

    Parameters
    ----------
    epsilon_nano : int
        At least 0.

    Returns
    -------
    int
        At most 8 epsilon.
    """
    with localcontext(Context(prec=_DIGITS)):
        tail = 1 / (1 + (Decimal(epsilon_nano) / NANO).exp())

        def is_enough(mu2_pico: int) -> bool:
            return _normal_cdf(-(Decimal(mu2_pico) / PICO).sqrt() / 2) <= tail - _ROUNDING

        enough = 8 * epsilon_nano * (PICO // NANO)  # Phi(-x) <= exp(-x^2 / 2) / 2
        guess = int(4 * NormalDist().inv_cdf(float(tail)) ** 2 * PICO) if epsilon_nano < EPSILON_MAX_NANO else enough
        return least_near(guess, is_enough, -1, enough)


def least_near(guess: int, is_enough: Callable[[int], bool], too_little: int, enough: int) -> int:
    """Return the least integer above `too_little`, and at most `enough`, that is enough. A good guess saves tests.

    `is_enough` is monotone, and assumed to hold for `enough` and not for `too_little`.
    """
    for part in (10**9, 10**6):
        for near in (guess - guess // part - 1, guess + guess // part + 1):
            if too_little < near < enough:
                too_little, enough = (too_little, near) if is_enough(near) else (near, enough)
    return _bisect(is_enough, too_little, enough)


def _bisect(is_enough: Callable[[int], bool], too_little: int, enough: int) -> int:
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        too_little, enough = (too_little, middle) if is_enough(middle) else (middle, enough)
    return enough


def delta_in_floats(mu2_pico: int, epsilon: float) -> float:
    """Return about the delta of a block, to begin a search."""
    mu = sqrt(mu2_pico / PICO)
    own, neighbour = ((epsilon / mu - sign * mu / 2) / sqrt(2) for sign in (1, -1))
    return (erfc(own) - exp(epsilon) * erfc(neighbour)) / 2


def _normal_cdf(x: Decimal) -> Decimal:
    """Return Phi(x), with an error below 1e-75, in a context of `_DIGITS` digits.

    The series 1/2 + phi(x) (x + x^3/3 + x^5/(3 5) + ...) has terms of one sign. It ends where a term no
    longer changes the sum. The terms then fall by more than half each, so all others are smaller together.
    """
    if abs(x) > _FAR:
        return Decimal(x > 0)
    square, term, total, odd, before = x * x, x, x, 1, Decimal()
    while total != before:
        odd += 2
        term = term * square / odd
        before, total = total, total + term
    return Decimal("0.5") + (-square / 2).exp() / (2 * _PI).sqrt() * total
