"""Alarm of a change that is valid at every moment: Bayes factors over channels, change points and sizes.

Let D be the mean of a channel from window k on less its mean before, and d its variance. For a change with a normal
prior of variance τ², the Bayes factor against no change is

    BF = sqrt(d / (d + τ²)) exp(D² τ² / (2 d (d + τ²))).

It is 1 before window k, and a martingale while nothing changes, because D does not depend on the unknown level. So is
the mean M over channels, change points and sizes, under any dependence of the channels. By Ville's inequality, M ever
reaches 20 with a probability of at most 1 in 20. This is exact for normal tallies of known variance. (Facts: Shin,
Ramdas and Rinaldo 2022, "E-detectors", for the general theory.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

THRESHOLD = 20.0  # M of an alarm
FALSE_ALARMS = 1 / THRESHOLD  # bound on the probability of an alarm within `HORIZON` windows without a change
HORIZON = 52  # windows over which the prior of the change point is uniform
BASELINE = 26  # earlier windows, known to have no alarm, that a new horizon keeps
TAUS = (1.5, 4.0)  # standard deviations of the size of a change, in standard errors of a window
LEAST_CHANGE = 0.01  # change of a channel that is no change, in shares of all people
INTERVAL = 0.9  # probability of the interval of the change point


@dataclass(frozen=True)
class Evidence:
    """The evidence for a change, at one window.

    Attributes
    ----------
    value : float
        M.
    change : int
        Index of the most probable first window after the change.
    first, last : int
        Interval of that window with 90 % of the posterior probability.
    """

    value: float
    change: int
    first: int
    last: int

    @property
    def is_alarm(self) -> bool:
        """Return whether M has reached its threshold."""
        return self.value >= THRESHOLD


def evidence(
    indices: Sequence[int],
    values: NDArray[np.float64],
    variances: NDArray[np.float64],
    *,
    test_from: int,
    season: int = 1,
    least: float = LEAST_CHANGE,
) -> Evidence | None:
    """Return the evidence for a change at the last of some windows; None if no change can be tested.

    Parameters
    ----------
    indices : sequence of int
        Numbers of the measured windows, ascending. Other windows have no evidence.
    values, variances : ndarray of shape (n_windows, n_channels), float64
    test_from : int
        First window that may be the first one after a change. The windows before are a baseline.
    season : int
        Windows of a season. With more than one, windows are compared with those at the same place of earlier seasons.
    least : float
        Changes of a channel up to this size are no changes.
    """
    numbers = np.asarray(indices)
    changes = np.flatnonzero(numbers >= test_from)
    changes = changes[changes > 0]
    if len(changes) == 0:
        return None
    logs = _log_factors(numbers % season, values, variances, changes, least)
    n_channels = values.shape[1]
    in_all = logsumexp(logs, axis=1) - np.log(n_channels)  # log of the mean over channels, for each change point
    rest = max(HORIZON - len(changes), 0)
    value = (np.exp(np.minimum(in_all, 700.0)).sum() + rest) / HORIZON
    chances = np.exp(in_all - logsumexp(in_all)).cumsum()
    ends = [int(np.searchsorted(chances, level)) for level in ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)]
    first, last = (int(numbers[changes[min(end, len(changes) - 1)]]) for end in ends)
    best = int(numbers[changes[int(np.argmax(logs.max(axis=1)))]])
    return Evidence(float(value), best, min(first, best), max(last, best))


def _log_factors(
    phases: NDArray[np.int64],
    values: NDArray[np.float64],
    variances: NDArray[np.float64],
    changes: NDArray[np.int64],
    least: float,
) -> NDArray[np.float64]:
    """Return log BF of each change point and channel, the mean over `TAUS`."""
    precision = 1 / np.maximum(variances, 1e-300)
    weights = np.zeros((len(changes), values.shape[1]))
    sums = np.zeros_like(weights)
    for phase in np.unique(phases):
        own = (phases == phase)[:, None]
        mass = np.cumsum(np.where(own, precision, 0.0), axis=0)
        moment = np.cumsum(np.where(own, precision * values, 0.0), axis=0)
        before, sum_before = mass[changes - 1], moment[changes - 1]
        after, sum_after = mass[-1] - before, moment[-1] - sum_before
        both = (before > 0) & (after > 1e-9 * mass[-1])
        weight = np.where(both, before * after / np.where(both, before + after, 1.0), 0.0)
        gap = sum_after / np.where(both, after, 1.0) - sum_before / np.where(both, before, 1.0)
        weights += weight
        sums += np.where(both, weight * gap, 0.0)
    is_known = weights > 0
    variance = 1 / np.where(is_known, weights, 1.0)
    size = np.maximum(np.abs(sums * variance) - least, 0.0)
    logs = []
    for tau in TAUS:
        prior = tau**2 * variances[0]
        total = variance + prior
        log = 0.5 * np.log(variance / total) + size**2 * prior / (2 * variance * total)
        logs.append(np.where(is_known, log, 0.0))
    return np.asarray(np.logaddexp(*logs) - np.log(len(TAUS)), dtype=np.float64)
