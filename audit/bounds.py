"""Lower bounds on epsilon from what was seen: nothing is believed of a mechanism but its outputs.

For neighbours D, D' and a set S of outputs fixed beforehand, P(S|D) <= e^epsilon P(S|D') + delta.
Trials of both bound the two probabilities (Clopper and Pearson 1934), and so epsilon from below. The
set is chosen on one half of the trials and judged on the other, so that choosing costs no confidence.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

MISTAKE = 1e-7  # probability that a bound lies above the truth

_MOST_PLACES = 512  # thresholds tried


class Bound(NamedTuple):
    """A lower bound on epsilon, and the trials it took."""

    epsilon: float
    trials: int


def probability_bounds(hits: ArrayLike, trials: int, mistake: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(low, high) of probabilities, each missed with probability `mistake` at most (Clopper-Pearson).

    Parameters
    ----------
    hits : array-like of int
        In 0 .. trials.
    trials : int
    mistake : float
    """
    hits = np.asarray(hits)
    if trials < 1 or (hits < 0).any() or (hits > trials).any():
        raise ValueError("hits lie in 0 .. trials, which is at least 1")
    low = beta.ppf(mistake, np.maximum(hits, 1), trials - hits + 1)
    high = beta.ppf(1 - mistake, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits == 0, 0.0, low), np.where(hits == trials, 1.0, high)


def epsilon_bound(
    hits: ArrayLike,
    trials: int,
    other_hits: ArrayLike,
    other_trials: int,
    delta: float = 0.0,
    mistake: float = MISTAKE,
) -> NDArray[np.float64]:
    """What epsilon is at least, where an event came `hits` times under D and `other_hits` under D'; 0 or more."""
    low = probability_bounds(hits, trials, mistake / 2)[0] - delta
    high = probability_bounds(other_hits, other_trials, mistake / 2)[1]
    return np.asarray(np.maximum(0.0, np.log(np.maximum(low, 1e-300) / high)))


def distinguish(seen: NDArray[np.float64], other: NDArray[np.float64], delta: float = 0.0) -> Bound:
    """The best bound from one number for each trial under D (`seen`) and under D' (`other`).

    The event is "at least" or "at most" some threshold, and either of the two may be the likelier.

    Parameters
    ----------
    seen, other : ndarray of shape (n,), two trials at least
    delta : float
    """
    pairs = (np.asarray(seen, dtype=np.float64), np.asarray(other, dtype=np.float64))
    halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in pairs]
    best, chosen = -1.0, (0.0, 1, 0)
    for sign in (1, -1):
        train = [np.sort(sign * first) for first, _ in halves]
        values = np.unique(np.concatenate(train))
        places = values[np.unique(np.linspace(0, len(values) - 1, _MOST_PLACES).astype(np.int64))]
        hits = [len(part) - np.searchsorted(part, places) for part in train]
        for likelier in (0, 1):
            a, b = likelier, 1 - likelier
            bounds = epsilon_bound(hits[a], len(train[a]), hits[b], len(train[b]), delta)
            if bounds.max() > best:
                best, chosen = float(bounds.max()), (float(places[bounds.argmax()]), sign, likelier)
    place, sign, likelier = chosen
    judged = [(int((sign * second >= place).sum()), len(second)) for _, second in halves]
    bound = epsilon_bound(*judged[likelier], *judged[1 - likelier], delta)
    return Bound(float(bound), len(pairs[0]) + len(pairs[1]))


def distinguish_outcomes(seen: Sequence[Hashable], other: Sequence[Hashable], delta: float = 0.0) -> Bound:
    """The best bound from outcomes without an order: the first half says how much likelier each is under D."""
    counts: dict[Hashable, list[int]] = {}
    for side, part in enumerate((seen, other)):
        for outcome in part[: len(part) // 2]:
            counts.setdefault(outcome, [0, 0])[side] += 1
    score = {outcome: float(np.log((a + 0.5) / (b + 0.5))) for outcome, (a, b) in counts.items()}
    ranked = [np.array([score.get(outcome, 0.0) for outcome in outcomes]) for outcomes in (seen, other)]
    return distinguish(ranked[0], ranked[1], delta)
