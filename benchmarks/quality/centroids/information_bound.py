"""Information bound: a lower bound on the error of the means that holds for every protocol under local privacy.

**Setting.** n people; x ~ sum_c pi_c N(mu_c, s^2 I) in d features. The spread s and the shares pi_c are known, the C
means are unknown. Each person reports through an epsilon-private channel Q(y|x), which may depend on earlier reports,
so that interactive protocols are included.

**One report.** Let S(x) be the score of the C d coordinates of the means if the person's cluster z is revealed: S_z =
(x - mu_z)/s^2, and 0 elsewhere. Revealing it can only add information (data processing), so the bound also holds for
overlapping clusters. Privacy means q(y|x) = q_y (1 + E h_y(x)) with E = e^epsilon - 1 and 0 <= h_y <= 1. Scores have
mean zero, so the information I_Q of the report has the trace

    sum_y |E[S q(y|x)]|^2 / m(y) = sum_y m(y) E^2 |E[S h_y]|^2 / (1 + E E[h_y])^2
                                <= max over h of E^2 |E[S h]|^2 / (1 + E E[h])^2,

where m(y) = q_y (1 + E E[h_y]) is the probability of y. |E[S h]| is the largest E[a.S h] over unit vectors a. For a
given E[h] it is largest if h is 1 above a threshold of a.S and 0 below (Neyman and Pearson): a half-space in each
cluster, tau_c standard deviations from its mean. With phi and Phi of the normal law, the maximum is that over tau of

    E^2 sum_c (pi_c phi(tau_c)/s)^2 / (1 + E sum_c pi_c (1 - Phi(tau_c)))^2.

At the maximum pi_c phi(tau_c) is proportional to 1/tau_c, because a.S has one threshold. With equal shares at most
two different tau_c occur, one of them possibly infinite. The code searches the two values and the number of clusters
that have each. Without privacy the trace is d/s^2.

**n reports.** Information adds up, also in interactive protocols (chain rule). By Cramer and Rao, and by tr I^-1 >=
(C d)^2 / tr I, the mean squared error of a coordinate of an unbiased estimate is at least C d / (n tr I).

**Limits.** The bound counts every direction at once although one report informs on a single one, so it may be
unreachable. It leaves out what the spread and the shares cost to learn. A biased estimate, drawn towards likely
means, may fall below it if there is almost no information.
"""

from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

_THRESHOLDS = np.concatenate([np.linspace(-1.0, 6.0, 281), [inf]])  # standard deviations
_REFINEMENTS = 3  # searches between the neighbours of the best threshold


def least_rmse(n: int, d: int, clusters: int, spread: float, epsilon: float) -> float:
    """Return the lower bound on the root mean squared error of a coordinate of an unbiased estimate.

    Parameters
    ----------
    n : int
        Reports, one per person.
    d, clusters : int
    spread : float
        s, in the unit of the error.
    epsilon : float
        Privacy loss of a person in total; inf is no privacy, where the bound is s sqrt(C/n).
    """
    return sqrt(clusters * d / (n * report_information(d, clusters, spread, epsilon)))


def report_information(d: int, clusters: int, spread: float, epsilon: float) -> float:
    """Return an upper bound on the trace of one report's Fisher information on all means, with equal shares."""
    without_privacy = d / spread**2
    if epsilon == inf:
        return without_privacy
    lower, upper = _THRESHOLDS, _THRESHOLDS
    for _ in range(_REFINEMENTS):
        best, first, second = max(_search(lower, upper, same, clusters, epsilon) for same in range(1, clusters + 1))
        lower, upper = _between(lower, first), _between(upper, second)
    return min(best / spread**2, without_privacy)


def _search(
    firsts: NDArray[np.float64], seconds: NDArray[np.float64], same: int, clusters: int, epsilon: float
) -> tuple[float, float, float]:
    """Return the maximum in units of 1/s^2, and where it is: `same` clusters have one threshold, the others another."""
    e = np.expm1(epsilon)
    slopes = [(np.exp(-taus * taus / 2) / sqrt(2 * np.pi) / clusters) ** 2 for taus in (firsts, seconds)]
    areas = [ndtr(-taus) / clusters for taus in (firsts, seconds)]
    signal = same * slopes[0][:, None] + (clusters - same) * slopes[1]
    probability = same * areas[0][:, None] + (clusters - same) * areas[1]
    trace = e * e * signal / (1 + e * probability) ** 2
    at = np.unravel_index(int(trace.argmax()), trace.shape)
    return float(trace[at]), float(firsts[at[0]]), float(seconds[at[1]])


def _between(taus: NDArray[np.float64], best: float) -> NDArray[np.float64]:
    """Return thresholds between the neighbours of the best one, and infinity."""
    if best == inf:
        return taus
    finite = taus[np.isfinite(taus)]
    step = float(np.diff(finite)[0]) if len(finite) > 1 else 0.0
    return np.concatenate([best + step * np.linspace(-1, 1, 41), [inf]])
