"""What costs are, written down once more: slowly, and with nothing of `sfumato.accounting` but its units."""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

Charged = tuple[tuple[int, int], int]  # the draws that answer a round, and what an answer costs


def cost_by_hand(rounds: Sequence[Charged], draws: Sequence[int]) -> int:
    """The most that any of these draws pays."""
    return max((sum(epsilon for (lo, hi), epsilon in rounds if lo <= draw < hi) for draw in draws), default=0)


def places(rounds: Sequence[Charged]) -> list[int]:
    """Draws between which nothing changes: every interval's ends, and a draw on both sides of each."""
    return sorted({end + by for ends, _ in rounds for end in ends for by in (-1, 0, 1)})


def normal_delta(rho: float, epsilon: float) -> float:
    """The least delta beside this epsilon of normal noise that is worth exactly rho.

    Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8, at a
    shift of sqrt(2 rho) standard deviations. No rule that holds of all that is worth rho can promise less.
    """
    shift = float(np.sqrt(2 * rho))
    here, there = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    gap = epsilon + float(log_ndtr(there)) - float(log_ndtr(here))  # below 0
    return float(np.exp(log_ndtr(here)) * -np.expm1(gap))


def discrete_delta(rho: float, epsilon: float) -> float:
    """The same of discrete Gaussian noise on a count: the sum over outcomes of what e^epsilon does not cover."""
    deviation = float(np.sqrt(1 / (2 * rho)))  # of a count, which one record changes by 1
    reach = int(40 * deviation) + 40
    outcomes = np.arange(-reach, reach + 1)
    weights = np.exp(-(outcomes.astype(np.float64) ** 2) / (2 * deviation**2))
    loss = (1 - 2 * outcomes) / (2 * deviation**2)  # log of P(z) / P(z - 1)
    uncovered = loss > epsilon
    return float((weights * -np.expm1(np.minimum(epsilon - loss, 0.0)) * uncovered).sum() / weights.sum())
