"""How exact estimates from a mechanism's reports are: variances by its exact support, and the terms of N_eff."""

from dataclasses import dataclass
from fractions import Fraction
from math import inf, sqrt

from sfumato.errors import InvalidSpec
from sfumato.mechanisms import ratio, support
from sfumato.specs import GrrMechanism, Mechanism, SsMechanism


@dataclass(frozen=True, slots=True)
class Precision:
    """What the noise of estimated frequencies is; made by `precision` (STATISTICS, section 1).

    Estimates are (C/n - q) / (p - q), and where a report does not name a fixed number of
    symbols, what they lack of one is shared out evenly.

    Attributes
    ----------
    names_so_many : bool
        Whether every report names the same number of symbols: `grr` and `ss`.
    zero_variance : float
        n times the variance of an estimate at frequency 0: v = q (1-q) / (p-q)^2, or
        v (1 - 1/k) + u/k^2 where the sum is made one.
    slope_variance : float
        u = (p (1-p) - q (1-q)) / (p-q)^2: what a frequency f adds to it, times f; or
        u (1 - 2/k).
    spread_variance : float
        n times the variance of a weighted sum of estimates at frequency 0, for each unit of
        sum (w - mean w)^2: v k/(k-1), or v.
    signal : float
        sinh^2(epsilon/2), the information of one report: (e^eps - 1)^2 / (4 e^eps).
        Infinite where nothing is perturbed.
    contrast : float
        tanh(epsilon/2), in (0, 1].
    """

    names_so_many: bool
    zero_variance: float
    slope_variance: float
    spread_variance: float
    signal: float
    contrast: float


def precision(mechanism: Mechanism) -> Precision:
    """The precision of a mechanism as published.

    p, q and every difference of them are taken as exact fractions and rounded once.

    Raises
    ------
    InvalidSpec
        A report says nothing about its symbol (p = q).
    """
    p, q = support(mechanism)
    if p == q:
        raise InvalidSpec("reports of this mechanism say nothing about their symbol")
    gap = p - q
    try:
        odds = ratio(mechanism)
    except ZeroDivisionError:  # unbounded: nothing is perturbed
        signal, contrast = inf, 1.0
    else:
        signal, contrast = signal_of(odds), contrast_of(odds)
    k = mechanism.n_symbols
    at_zero, slope = q * (1 - q) / gap**2, (p * (1 - p) - q * (1 - q)) / gap**2
    names_so_many = isinstance(mechanism, GrrMechanism | SsMechanism)
    return Precision(
        names_so_many=names_so_many,
        zero_variance=float(at_zero if names_so_many else at_zero * Fraction(k - 1, k) + slope / k**2),
        slope_variance=float(slope if names_so_many else slope * Fraction(k - 2, k)),
        spread_variance=float(at_zero * Fraction(k, k - 1) if names_so_many else at_zero),
        signal=signal,
        contrast=contrast,
    )


def signal_of(odds: Fraction) -> float:
    """(e^eps - 1)^2 / (4 e^eps) at e^eps = odds: N times this is N_eff, the effective number of reports."""
    return float((odds - 1) ** 2 / (4 * odds))


def contrast_of(odds: Fraction) -> float:
    """tanh(eps/2) at e^eps = odds."""
    return float((odds - 1) / (odds + 1))


def mass_noise(n_reports: int, contrast: float) -> float:
    """δ = 1 / (2 sqrt(N) tanh(eps/2)): the mass of people that noise can fake (STATISTICS 3.2)."""
    return 1 / (2 * sqrt(n_reports) * contrast)
