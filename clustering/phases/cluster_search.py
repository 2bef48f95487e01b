"""Search for clusters of any kind in phases: greedy starts, swaps, and the number of clusters by BIC."""

from math import log
from typing import Generic, NamedTuple, Protocol, TypeVar

# One greedy start per width, then swaps while they improve the fit. (Two starts per width and at most
# two swaps take longer, and miss the optimum in ten of twelve hard cases instead of seven.)
START_STEPS = 10  # steps of the fit from each start
SWAP_PASSES = 3
SWAP_GAIN = 0.5  # least gain in negative log likelihood; an unfinished fit can gain less

MAX_COUNTED = 16  # most clusters if their number is not given
PATIENCE = 2  # numbers of clusters on either side of the best that must be worse
CLOSE = 0.5  # excess of the criterion up to which a number of clusters is in the interval, in costs of a cluster
FEW_PARAMETERS = 6  # largest number of parameters of a cluster with the whole cost of BIC
NOISE_COST = 4.4  # largest cost of a parameter with more of them; noise alone gains up to it


class Fit(Protocol):
    """A fitted mixture of clusters."""

    @property
    def nll(self) -> float:
        """Return the negative log likelihood relative to uniform phases, in nats."""

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters."""


F = TypeVar("F", bound=Fit)


class ClusterFits(Protocol[F]):
    """Fits of one kind of clusters to a round of phases."""

    @property
    def start_widths(self) -> tuple[float, ...]:
        """Return the widths of greedy starts."""

    @property
    def n_parameters(self) -> int:
        """Return the number of parameters of a cluster."""

    def place(self, n_clusters: int, width: float, below: F | None, n_steps: int | None) -> F:
        """Return the better fit of two starts: greedy ones of a width, and those of a fit `below` plus a cluster."""

    def move(self, fitted: F, left_out: int, n_steps: int) -> F:
        """Return the fit from a start with one cluster moved to the peak of the others' residual."""

    def drop(self, fitted: F, left_out: int, n_steps: int) -> F:
        """Return the fit from a start without one cluster."""

    def climb(self, fitted: F) -> F:
        """Return the fit after all steps."""


class CountedFit(NamedTuple, Generic[F]):
    """Result if the number of clusters is not given."""

    fitted: F
    criteria: dict[int, float]  # BIC by number of clusters, of the numbers that were compared; the least is selected
    lower: int  # least and greatest number with a BIC close to the least
    upper: int
    gains: tuple[float, float] | None  # log likelihood over BIC penalty: mean after the first cluster, and the last one


def search_clusters(fits: ClusterFits[F], n_clusters: int) -> F:
    """Return the best fit of a number of clusters, from greedy starts of several widths and swaps."""
    starts = [fits.place(n_clusters, width, None, START_STEPS) for width in fits.start_widths]
    best = min(starts, key=lambda fitted: fitted.nll)
    return fits.climb(swap_clusters(fits, best))


def swap_clusters(fits: ClusterFits[F], best: F) -> F:
    """Move each cluster in turn to the peak of the residual, and keep the move if the fit improves."""
    n_clusters = best.n_clusters
    n_in_vain = 0
    for attempt in range(SWAP_PASSES * n_clusters):
        tried = fits.move(best, attempt % n_clusters, START_STEPS)
        if tried.nll < best.nll - SWAP_GAIN:
            best, n_in_vain = tried, 0
        else:
            n_in_vain += 1
        if n_in_vain == n_clusters:
            break
    return best


def drop_cluster(fits: ClusterFits[F], fitted: F) -> F:
    """Return the best fit of one cluster less, from starts that leave out one cluster each."""
    starts = [fits.drop(fitted, left_out, START_STEPS) for left_out in range(fitted.n_clusters)]
    return fits.climb(min(starts, key=lambda start: start.nll))


def count_clusters(fits: ClusterFits[F], n_reports: int, n_supported: int, largest: int = MAX_COUNTED) -> CountedFit[F]:
    """Return the number of clusters with the least 2 NLL + C p a, up to `largest`, and their fit.

    p is the number of parameters of a cluster. a is ln N as in the BIC, and at most 4.4 with more than six parameters.
    There reports have little information about each of many clusters, so a penalty that depends on their number alone
    exceeds what a clear cluster gains.

    One cluster and the supported number are compared first, because in many features each single cluster of
    many gains less than its cost. Neighbours of the better number follow, until `PATIENCE` numbers on both
    sides are worse. Each number starts from a greedy start, and from the fit of the number below plus a
    cluster. The selected number gets a full `search_clusters`. Then single clusters are left out while this lowers
    the criterion: a fit can have a cluster without people, because the widths of others are far too small.

    Parameters
    ----------
    fits : ClusterFits
    n_reports : int
    n_supported : int
        Number of clusters that the reports support, at least 1.
    largest : int
        Largest number that is compared, at least 1.
    """
    cost = cluster_cost(fits.n_parameters, n_reports)
    middle = sorted(fits.start_widths)[len(fits.start_widths) // 2]
    found: dict[int, F] = {}
    criteria: dict[int, float] = {}
    waiting = [1, min(n_supported, largest)]
    while waiting:
        n_clusters = waiting.pop(0)
        if n_clusters not in found:
            found[n_clusters] = fits.place(n_clusters, middle, found.get(n_clusters - 1), None)
            criteria[n_clusters] = 2 * found[n_clusters].nll + n_clusters * cost
        if not waiting:
            best = min(criteria, key=criteria.__getitem__)
            near = [best + step for distance in range(1, PATIENCE + 1) for step in (distance, -distance)]
            waiting = [number for number in near if 1 <= number <= largest and number not in found][:1]
    full = min((found[best], search_clusters(fits, best)), key=lambda fitted: fitted.nll)
    criteria[best] = 2 * full.nll + best * cost
    while best > 1:
        known = [found[best - 1]] if best - 1 in found else []
        fewer = min([drop_cluster(fits, full), *known], key=lambda fitted: fitted.nll)
        criteria[best - 1] = 2 * fewer.nll + (best - 1) * cost
        if criteria[best - 1] >= criteria[best]:
            break
        full, best = fewer, best - 1
    close = [number for number in criteria if criteria[number] <= criteria[best] + CLOSE * cost]
    gains = None
    if best > 1:  # the numbers beside the best one were compared
        of_bic = fits.n_parameters * log(max(n_reports, 3))
        mean, last = (((criteria[best - n] - criteria[best]) / n + cost) / of_bic for n in (best - 1, 1))
        gains = mean, last
    return CountedFit(full, dict(sorted(criteria.items())), min(close), max(close), gains)


def cluster_cost(n_parameters: int, n_reports: int) -> float:
    """Return the cost of a cluster in the criterion of `count_clusters`."""
    of_parameter = log(max(n_reports, 3))
    return n_parameters * (of_parameter if n_parameters <= FEW_PARAMETERS else min(of_parameter, NOISE_COST))
