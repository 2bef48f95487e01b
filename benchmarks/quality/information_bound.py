"""How near to the true means any method can come under local privacy: a bound that no protocol beats.

**Setting.** n people; x ~ sum_c pi_c N(mu_c, s^2 I) in d features, the spread s and the shares
pi_c known, the C means unknown; each person answers through an epsilon-private channel Q(y|x),
that may depend on what was answered before (interactive protocols included).

**One report.** Let S(x) be the score of the C d coordinates of the means, where a person's
cluster z is told along: S_z = (x - mu_z)/s^2 and 0 elsewhere. Telling it can only inform (data
processing), so clusters that overlap obey the bound all the more. Privacy says
q(y|x) = q_y (1 + E h_y(x)) with E = e^epsilon - 1 and 0 <= h_y <= 1. As scores have mean zero,
the report's information I_Q has the trace

    sum_y |E[S q(y|x)]|^2 / m(y) = sum_y m(y) E^2 |E[S h_y]|^2 / (1 + E E[h_y])^2
                                <= max over h of E^2 |E[S h]|^2 / (1 + E E[h])^2,

where m(y) = q_y (1 + E E[h_y]) is the chance of y. |E[S h]| is the largest of E[a.S h] over unit
vectors a; for a given E[h] that is largest where h is 1 above a threshold of a.S and 0 below
(Neyman and Pearson): a half-space in each cluster, tau_c standard deviations from its mean.
With phi and Phi of the normal law the maximum is that over tau of

    E^2 sum_c (pi_c phi(tau_c)/s)^2 / (1 + E sum_c pi_c (1 - Phi(tau_c)))^2.

At it pi_c phi(tau_c) is in proportion to 1/tau_c (a.S has one threshold), so that with even
shares no more than two different tau_c occur, one of them maybe infinite: two numbers and how
many clusters have which are searched. Without any privacy the trace is d/s^2.

**n reports.** Information adds up, in interactive protocols too (chain rule), so by Cramer and
Rao and by tr I^-1 >= (C d)^2 / tr I the mean squared error of a coordinate of an unbiased
estimate is at least C d / (n tr I).

**What it is not.** It holds every direction at once although one report informs on one alone,
so that it need not be reached; what the spread and shares cost to learn is left out; and a
biased estimate, drawn to where means are likely, may come below it where there is next to no
information.
"""

from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

_THRESHOLDS = np.concatenate([np.linspace(-1.0, 6.0, 281), [inf]])  # in standard deviations
_FINER = 3  # times the search goes on between a threshold's neighbours


def least_rmse(n: int, d: int, clusters: int, spread: float, epsilon: float) -> float:
    """The root mean squared error of a coordinate that no unbiased estimate is below.

    Parameters
    ----------
    n : int
        Reports, one a person.
    d, clusters : int
    spread : float
        s, in the unit the error is told in.
    epsilon : float
        Of one person in all; inf asks without privacy, where it is s sqrt(C/n).
    """
    return sqrt(clusters * d / (n * report_information(d, clusters, spread, epsilon)))


def report_information(d: int, clusters: int, spread: float, epsilon: float) -> float:
    """An upper bound on the trace of one report's Fisher information about all means, shares even."""
    openly = d / spread**2
    if epsilon == inf:
        return openly
    lower, upper = _THRESHOLDS, _THRESHOLDS
    for _ in range(_FINER):
        best, first, second = max(_search(lower, upper, same, clusters, epsilon) for same in range(1, clusters + 1))
        lower, upper = _between(lower, first), _between(upper, second)
    return min(best / spread**2, openly)


def _search(
    firsts: NDArray[np.float64], seconds: NDArray[np.float64], same: int, clusters: int, epsilon: float
) -> tuple[float, float, float]:
    """The most, in units of 1/s^2, with `same` clusters at one threshold and the others at another; and where."""
    e = np.expm1(epsilon)
    gained = [(np.exp(-taus * taus / 2) / sqrt(2 * np.pi) / clusters) ** 2 for taus in (firsts, seconds)]
    covered = [ndtr(-taus) / clusters for taus in (firsts, seconds)]
    signal = same * gained[0][:, None] + (clusters - same) * gained[1]
    chance = same * covered[0][:, None] + (clusters - same) * covered[1]
    trace = e * e * signal / (1 + e * chance) ** 2
    at = np.unravel_index(int(trace.argmax()), trace.shape)
    return float(trace[at]), float(firsts[at[0]]), float(seconds[at[1]])


def _between(taus: NDArray[np.float64], best: float) -> NDArray[np.float64]:
    """Thresholds about the best one, as far as its neighbours; infinity stays one of them."""
    if best == inf:
        return taus
    finite = taus[np.isfinite(taus)]
    step = float(np.diff(finite)[0]) if len(finite) > 1 else 0.0
    return np.concatenate([best + step * np.linspace(-1, 1, 41), [inf]])
