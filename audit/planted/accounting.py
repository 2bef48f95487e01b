"""Broken rules of what things cost."""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from math import log

from audit.accounting import ratios, rhos, rounds
from audit.accounting_reference import Charged
from audit.check import Leak
from sfumato.accounting import DRAW_SPAN, NANO, cost
from sfumato.concentrated import PICO, rho_of


def of_the_dearest(of: Sequence[Charged]) -> int:
    """Draw intervals ignored: all rounds are taken to be for different devices."""
    return max((epsilon for _, epsilon in of), default=0)


def of_the_mean(of: Sequence[Charged]) -> int:
    """What a device pays on average over its draw, rounded up."""
    span = max((hi for (_, hi), _ in of), default=DRAW_SPAN)
    return -(-sum((hi - lo) * epsilon for (lo, hi), epsilon in of) // span)


def of_closed_intervals(of: Sequence[Charged]) -> int:
    """Every interval without its first draw: rounds that meet there are taken to overlap nowhere."""
    return cost([((lo + 1, hi), epsilon) for (lo, hi), epsilon in of if lo + 1 < hi])


def in_floats(of: Sequence[Charged]) -> int:
    """Epsilon as a number with a point: summed, then cut to nano-epsilon."""
    draws = [lo for (lo, _), _ in of]
    sums = [sum(epsilon / NANO for (lo, hi), epsilon in of if lo <= draw < hi) for draw in draws]
    return int(max(sums, default=0.0) * NANO)


def to_the_nearest(ratio: Fraction) -> int:
    """A ratio's logarithm rounded to the nearest nano-epsilon."""
    return round((log(ratio.numerator) - log(ratio.denominator)) * NANO)


def thirty_percent_more(epsilon_nano: int, delta_atto: int) -> int:
    """Of rho."""
    return rho_of(epsilon_nano, delta_atto) * 13 // 10


def without_delta(epsilon_nano: int, delta_atto: int) -> int:  # noqa: ARG001 - which is what is wrong with it
    """epsilon^2 / 2 is what pure privacy is worth in rho; the other way round it takes a delta."""
    return epsilon_nano * epsilon_nano * PICO // (2 * NANO * NANO)


LEAKS: tuple[Leak, ...] = (
    Leak("a draw interval ignored", "accounting: rounds", partial(rounds, of_the_dearest)),
    Leak("cost as the mean over draws", "accounting: rounds", partial(rounds, of_the_mean)),
    Leak("intervals a draw too short", "accounting: rounds", partial(rounds, of_closed_intervals)),
    Leak("epsilon in floats", "accounting: rounds", partial(rounds, in_floats)),
    Leak("epsilon rounded to the nearest", "accounting: ratios", partial(ratios, to_the_nearest)),
    Leak("30 % more rho", "accounting: rho", partial(rhos, thirty_percent_more)),
    Leak("rho without its delta", "accounting: rho", partial(rhos, without_delta)),
)
