"""Lower bounds on epsilon from samples of outputs, without assumptions about the mechanism; e^x; normal noise.

For neighbours D, D' and a set S of outputs that is fixed before sampling, P(S|D) <= e^epsilon P(S|D') + delta.
Samples of both bound the two probabilities (Clopper and Pearson 1934), and therefore epsilon from below.
One half of the samples selects the set, and the other half measures it, so that selection costs no confidence.
"""

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr
from scipy.stats import beta

ERROR_PROBABILITY = 1e-7  # probability that a bound exceeds the true epsilon

_MAX_THRESHOLDS = 512
_EXP_BITS = 512  # binary places of `bound_exp`


class Bound(NamedTuple):
    """A lower bound on epsilon, and the number of samples used."""

    epsilon: float
    trials: int


def bound_exp(x: Fraction) -> tuple[Fraction, Fraction]:
    """Return (low, high) with low <= e^x <= high, at a relative distance of 1e-80, for 0 <= x <= 64.

    Sums the series. Shares no code with `sfumato.privacy.accounting`.
    """
    scale = 1 << _EXP_BITS
    numerator, denominator = x.numerator, x.denominator
    low_term = high_term = scale
    low = high = scale
    n = 0
    while n < 2 * x or high_term > 1:
        n += 1
        low_term = low_term * numerator // (denominator * n)
        high_term = -(-high_term * numerator // (denominator * n))
        low += low_term
        high += high_term
    high += 2 * high_term  # each later term is less than half of the previous one
    return Fraction(low, scale), Fraction(high, scale)


def compute_normal_delta(rho: float, epsilon: float) -> float:
    """Return the least delta for this epsilon of normal noise with exactly this rho.

    Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8, at a shift of sqrt(2
    rho) standard deviations.
    """
    shift = float(np.sqrt(2 * rho))
    own, neighbour = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    gap = epsilon + float(log_ndtr(neighbour)) - float(log_ndtr(own))  # negative
    return float(np.exp(log_ndtr(own)) * -np.expm1(gap))


def bound_probability(
    hits: ArrayLike, trials: int, error_probability: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Clopper-Pearson bounds (low, high) of probabilities.

    Parameters
    ----------
    hits : array-like of int
        Number of trials with the event, in 0 .. trials.
    trials : int
    error_probability : float
        Largest probability that the true value lies below `low`, and that it lies above `high`.
    """
    hits = np.asarray(hits)
    if trials < 1 or (hits < 0).any() or (hits > trials).any():
        raise ValueError("hits must lie in 0 .. trials, and trials must be at least 1")
    low = beta.ppf(error_probability, np.maximum(hits, 1), trials - hits + 1)
    high = beta.ppf(1 - error_probability, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits == 0, 0.0, low), np.where(hits == trials, 1.0, high)


def bound_epsilon(
    hits: ArrayLike,
    trials: int,
    other_hits: ArrayLike,
    other_trials: int,
    delta: float = 0.0,
    error_probability: float = ERROR_PROBABILITY,
) -> NDArray[np.float64]:
    """Return a lower bound on epsilon for an event with `hits` under D and `other_hits` under D'; at least 0."""
    low = bound_probability(hits, trials, error_probability / 2)[0] - delta
    high = bound_probability(other_hits, other_trials, error_probability / 2)[1]
    return np.asarray(np.maximum(0.0, np.log(np.maximum(low, 1e-300) / high)))


def distinguish(sample: NDArray[np.float64], other: NDArray[np.float64], delta: float = 0.0) -> Bound:
    """Return the best lower bound on epsilon from one number per trial under D (`sample`) and under D' (`other`).

    The event is "at least" or "at most" a threshold. It may be more probable under D or under D'.

    Parameters
    ----------
    sample, other : ndarray of shape (n,), at least two trials
    delta : float
    """
    pairs = (np.asarray(sample, dtype=np.float64), np.asarray(other, dtype=np.float64))
    halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in pairs]
    best, choice = -1.0, (0.0, 1, 0)
    for sign in (1, -1):
        train = [np.sort(sign * first) for first, _ in halves]
        values = np.unique(np.concatenate(train))
        thresholds = values[np.unique(np.linspace(0, len(values) - 1, _MAX_THRESHOLDS).astype(np.int64))]
        hits = [len(part) - np.searchsorted(part, thresholds) for part in train]
        for a, b in ((0, 1), (1, 0)):
            bounds = bound_epsilon(hits[a], len(train[a]), hits[b], len(train[b]), delta)
            if bounds.max() > best:
                best, choice = float(bounds.max()), (float(thresholds[bounds.argmax()]), sign, a)
    threshold, sign, a = choice
    test = [(int((sign * second >= threshold).sum()), len(second)) for _, second in halves]
    bound = bound_epsilon(*test[a], *test[1 - a], delta)
    return Bound(float(bound), len(pairs[0]) + len(pairs[1]))


def distinguish_outcomes(sample: Sequence[Hashable], other: Sequence[Hashable], delta: float = 0.0) -> Bound:
    """Return the best bound from unordered outcomes, ranked by their likelihood ratio in the first halves."""
    counts: dict[Hashable, list[int]] = {}
    for side, part in enumerate((sample, other)):
        for outcome in part[: len(part) // 2]:
            counts.setdefault(outcome, [0, 0])[side] += 1
    score = {outcome: float(np.log((a + 0.5) / (b + 0.5))) for outcome, (a, b) in counts.items()}
    ranked = [np.array([score.get(outcome, 0.0) for outcome in outcomes]) for outcomes in (sample, other)]
    return distinguish(ranked[0], ranked[1], delta)
