"""Broken cost functions."""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from math import log

from audit.checks.check import Leak
from audit.ledger.accounting import ChargedRound, check_ratios, check_rhos, check_rounds
from sfumato.privacy.accounting import DRAW_SPAN, NANO, cost
from sfumato.privacy.gaussian_privacy import PICO, rho_of


def cost_of_largest_round(rounds: Sequence[ChargedRound]) -> int:
    """Ignore participation intervals, as if each device reports to one round only."""
    return max((epsilon for _, epsilon in rounds), default=0)


def mean_cost(rounds: Sequence[ChargedRound]) -> int:
    """Return the mean cost over all draws, rounded up."""
    span = max((hi for (_, hi), _ in rounds), default=DRAW_SPAN)
    return -(-sum((hi - lo) * epsilon for (lo, hi), epsilon in rounds) // span)


def cost_of_short_intervals(rounds: Sequence[ChargedRound]) -> int:
    """Shorten every interval by its first draw, so that adjacent rounds never overlap."""
    return cost([((lo + 1, hi), epsilon) for (lo, hi), epsilon in rounds if lo + 1 < hi])


def cost_in_floats(rounds: Sequence[ChargedRound]) -> int:
    """Sum epsilon as floats and truncate to nano-epsilon."""
    draws = [lo for (lo, _), _ in rounds]
    sums = [sum(epsilon / NANO for (lo, hi), epsilon in rounds if lo <= draw < hi) for draw in draws]
    return int(max(sums, default=0.0) * NANO)


def round_to_nearest(ratio: Fraction) -> int:
    """Round the logarithm of a ratio to the nearest nano-epsilon."""
    return round((log(ratio.numerator) - log(ratio.denominator)) * NANO)


def rho_at_130_percent(epsilon_nano: int, delta_atto: int) -> int:
    """Return 130 % of the correct rho."""
    return rho_of(epsilon_nano, delta_atto) * 13 // 10


def rho_without_delta(epsilon_nano: int, delta_atto: int) -> int:  # noqa: ARG001 - the fault
    """Convert epsilon to rho as epsilon^2 / 2. Pure privacy implies this rho, but the converse needs a delta."""
    return epsilon_nano * epsilon_nano * PICO // (2 * NANO * NANO)


LEAKS: tuple[Leak, ...] = (
    Leak("participation interval ignored", "accounting: rounds", partial(check_rounds, cost_of_largest_round)),
    Leak("cost as mean over draws", "accounting: rounds", partial(check_rounds, mean_cost)),
    Leak("interval too short by one draw", "accounting: rounds", partial(check_rounds, cost_of_short_intervals)),
    Leak("epsilon in floats", "accounting: rounds", partial(check_rounds, cost_in_floats)),
    Leak("epsilon rounded to nearest", "accounting: ratios", partial(check_ratios, round_to_nearest)),
    Leak("rho at 130 %", "accounting: rho", partial(check_rhos, rho_at_130_percent)),
    Leak("rho without delta", "accounting: rho", partial(check_rhos, rho_without_delta)),
)
