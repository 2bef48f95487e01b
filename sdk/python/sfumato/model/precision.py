"""Precision of frequencies that are estimated from a mechanism's reports, and the verdict on a result.

Variances follow from the exact support of the mechanism.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import inf, sqrt

from sfumato.errors import InvalidSpec
from sfumato.specs import Mechanism


class Verdict(StrEnum):
    """The quality of a result or a forecast."""

    RELIABLE = "reliable"
    UNCERTAIN = "uncertain"
    DOUBTFUL = "doubtful"

    @classmethod
    def unmeasured(cls, *, is_low: bool) -> "Verdict":
        """Return the verdict on a result without an estimated accuracy: doubtful if it has few data."""
        return cls.DOUBTFUL if is_low else cls.UNCERTAIN

    def or_worse(self, other: "Verdict") -> "Verdict":
        """Return the worse of two verdicts."""
        return max(self, other, key=list(Verdict).index)


@dataclass(frozen=True, slots=True)
class ExpectedAgreement:
    """The expected adjusted Rand index of a result with that of another run, with an 80 % interval.

    It is calibrated on data sets. Repeated runs can reproduce a result that differs from the true groups.

    Attributes
    ----------
    value, lower, upper : float
        0 <= lower <= value <= upper <= 1.

    Raises
    ------
    InvalidSpec
        The values are not in this order.
    """

    value: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        """Check the order."""
        if not 0 <= self.lower <= self.value <= self.upper <= 1:
            raise InvalidSpec("an expected agreement must lie in its interval, and the interval in [0, 1]")

    @property
    def sentence(self) -> str:
        """Return the statement as a sentence."""
        return (
            f"Another run would agree with these clusters to about {self.value:.2f} (80 % interval: {self.lower:.2f} "
            f"to {self.upper:.2f})."
        )


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """The expected loss of centroids, relative to the best ones of the same number, with an 80 % interval.

    The loss is the mean squared distance of points from their nearest centroid. The best centroids are those of
    k-means without noise.

    Attributes
    ----------
    value, lower, upper : float
        1 <= lower <= value <= upper.

    Raises
    ------
    InvalidSpec
        The values are not in this order.
    """

    value: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        """Check the order."""
        if not 1 <= self.lower <= self.value <= self.upper:
            raise InvalidSpec("an expected loss must lie in its interval, and the interval must start at 1 or above")

    @property
    def sentence(self) -> str:
        """Return the statement as a sentence."""
        return (
            f"The loss is about {self.value:.2f} times that of the best centroids (80 % interval: {self.lower:.2f} to "
            f"{self.upper:.2f})."
        )


@dataclass(frozen=True, slots=True)
class Precision:
    """The noise of estimated frequencies; see `precision`.

    Estimates are (C/n - q) / (p - q). If reports name different numbers of symbols, the
    difference between 1 and the sum of the estimates is distributed evenly over the symbols.

    Attributes
    ----------
    has_fixed_size : bool
        Whether every report names the same number of symbols, as with `grr` and `ss`.
    zero_variance : float
        n times the variance of an estimate at frequency 0: v = q (1-q) / (p-q)^2, or
        v (1 - 1/k) + u/k^2 if the sum is adjusted to 1.
    slope_variance : float
        Increase of n times the variance per unit of frequency: u = (p (1-p) - q (1-q)) / (p-q)^2,
        or u (1 - 2/k).
    spread_variance : float
        n times the variance of a weighted sum of estimates at frequency 0, for each unit of
        sum (w - mean w)^2: v k/(k-1), or v.
    signal : float
        sinh^2(epsilon/2) = (e^eps - 1)^2 / (4 e^eps), the information of one report. Infinite if
        reports are not perturbed.
    contrast : float
        tanh(epsilon/2), in (0, 1].
    """

    has_fixed_size: bool
    zero_variance: float
    slope_variance: float
    spread_variance: float
    signal: float
    contrast: float


def precision(mechanism: Mechanism) -> Precision:
    """Return the precision of a mechanism.

    p, q and their differences are exact fractions, which are rounded once.

    Raises
    ------
    InvalidSpec
        Reports are independent of their symbol (p = q).
    """
    p, q = mechanism.support()
    if p == q:
        raise InvalidSpec("reports of this mechanism are independent of their symbol")
    gap = p - q
    try:
        odds = mechanism.ratio()
    except ZeroDivisionError:  # unbounded: reports are not perturbed
        signal, contrast = inf, 1.0
    else:
        signal, contrast = signal_of(odds), contrast_of(odds)
    k = mechanism.n_symbols
    at_zero, slope = q * (1 - q) / gap**2, (p * (1 - p) - q * (1 - q)) / gap**2
    has_fixed_size = mechanism.n_named is not None
    return Precision(
        has_fixed_size=has_fixed_size,
        zero_variance=float(at_zero if has_fixed_size else at_zero * Fraction(k - 1, k) + slope / k**2),
        slope_variance=float(slope if has_fixed_size else slope * Fraction(k - 2, k)),
        spread_variance=float(at_zero * Fraction(k, k - 1) if has_fixed_size else at_zero),
        signal=signal,
        contrast=contrast,
    )


def signal_of(odds: Fraction) -> float:
    """Return (e^eps - 1)^2 / (4 e^eps) for e^eps = odds. N times this is N_eff, the effective number of reports."""
    return float((odds - 1) ** 2 / (4 * odds))


def contrast_of(odds: Fraction) -> float:
    """Return tanh(eps/2) for e^eps = odds."""
    return float((odds - 1) / (odds + 1))


def mass_noise(n_reports: int, contrast: float) -> float:
    """Return δ = 1 / (2 sqrt(N) tanh(eps/2)), the share of people that noise can imitate."""
    return 1 / (2 * sqrt(n_reports) * contrast)
