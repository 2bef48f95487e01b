"""Search for clusters of any kind in phases: greedy starts, exchanges, and the number of clusters by BIC."""

from collections.abc import Callable
from math import log
from typing import Generic, NamedTuple, Protocol, TypeVar

# One greedy start per width. Then a cluster is added where the residual has its peak, and the least useful one is left
# out, while that improves the fit.
START_STEPS = 10  # steps of the fit from each start
EXCHANGES = 9  # largest number of exchanged clusters
EXCHANGE_GAIN = 0.5  # least gain in negative log likelihood of another exchange; an unfinished fit can gain less
TRIAL_STEPS = 2  # steps of the fit without each of the clusters
TRIALS = 3  # clusters that seem the least useful then, which are left out in whole fits

MAX_COUNTED = 16  # most clusters if their number is not given
PATIENCE = 2  # numbers of clusters on either side of the best that must be worse
CLOSE = 0.5  # excess of the criterion up to which a number of clusters is in the interval, in costs of a cluster
FEW_PARAMETERS = 6  # largest number of parameters of a cluster with the whole cost of BIC
ADDED = 3  # clusters that are added to the best fit, before those that do not pay are left out
ROUNDS = 3  # largest number of such rounds
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

    def place(self, n_clusters: int, width: float, n_steps: int | None) -> F:
        """Return the fit from greedy starts of a width, after some or all steps."""

    def add(self, fitted: F, n_steps: int | None) -> F:
        """Return the fit from a start with one more cluster, at the peak of the residual."""

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
    """Return the best fit of a number of clusters, from greedy starts of several widths and exchanges."""
    starts = [fits.place(n_clusters, width, START_STEPS) for width in fits.start_widths]
    return exchange_clusters(fits, fits.climb(min(starts, key=_nll)))


def exchange_clusters(fits: ClusterFits[F], best: F) -> F:
    """Add a cluster at the peak of the residual, leave out the least useful one, and repeat while the fit improves."""
    for _ in range(EXCHANGES):
        tried = drop_cluster(fits, fits.add(best, START_STEPS))
        if tried.nll >= best.nll - EXCHANGE_GAIN:
            return min(tried, best, key=_nll)
        best = tried
    return best


def drop_cluster(fits: ClusterFits[F], fitted: F) -> F:
    """Return the best fit of one cluster less, from starts that leave out one cluster each."""
    starts = [fits.drop(fitted, left_out, TRIAL_STEPS) for left_out in range(fitted.n_clusters)]
    return min((fits.climb(start) for start in sorted(starts, key=_nll)[:TRIALS]), key=_nll)


def _nll(fitted: Fit) -> float:
    return fitted.nll


def count_clusters(fits: ClusterFits[F], n_reports: int, n_supported: int, largest: int = MAX_COUNTED) -> CountedFit[F]:
    """Return the number of clusters with the least 2 NLL + C p a, up to `largest`, and their fit.

    p is the number of parameters of a cluster. a is ln N as in the BIC, and at most 4.4 with more than six parameters.
    There reports have little information about each of many clusters, so a penalty that depends on their number alone
    exceeds what a clear cluster gains.

    One cluster and the supported number are compared first, because in many features each single cluster of
    many gains less than its cost. Neighbours of the better number follow, until `PATIENCE` numbers on both
    sides are worse. Each number starts from a greedy start, and from the fit of the number below plus a
    cluster. The selected number gets a full `search_clusters`, and then `refine_count`.

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

    def criterion(number: int) -> float:
        return 2 * found[number].nll + number * cost

    waiting = [1, min(n_supported, largest)]
    while waiting:
        number = waiting.pop(0)
        if number not in found:
            starts = [fits.place(number, middle, None)]
            starts += [fits.add(found[number - 1], None)] if number - 1 in found else []
            found[number] = min(starts, key=_nll)
        if not waiting:
            best = min(found, key=criterion)
            near = [best + step for distance in range(1, PATIENCE + 1) for step in (distance, -distance)]
            waiting = [number for number in near if 1 <= number <= largest and number not in found][:1]
    found[best] = min(found[best], search_clusters(fits, best), key=_nll)
    best = refine_count(fits, found, best, criterion, largest)
    criteria = {number: criterion(number) for number in sorted(found)}
    close = [number for number in criteria if criteria[number] <= criteria[best] + CLOSE * cost]
    gains = None
    if best > 1:  # the numbers beside the best one were compared
        of_bic = fits.n_parameters * log(max(n_reports, 3))
        mean, last = (((criteria[best - n] - criteria[best]) / n + cost) / of_bic for n in (best - 1, 1))
        gains = mean, last
    return CountedFit(found[best], criteria, min(close), max(close), gains)


def refine_count(
    fits: ClusterFits[F], found: dict[int, F], best: int, criterion: Callable[[int], float], largest: int
) -> int:
    """Return the number of clusters after some are added to the best fit, and those that do not pay are left out.

    A fit of too few clusters is a local optimum: a further cluster alone gains less than its cost, because another
    one covers its people. A fit can also have a cluster without people, while the widths of others are far too small.

    Parameters
    ----------
    fits : ClusterFits
    found : dict from int to fit
        The best fit of each number, which this function improves and adds to.
    best : int
        The number to start from.
    criterion : function from int to float
        The criterion of a number in `found`.
    largest : int
        Largest number of clusters.
    """
    for _ in range(ROUNDS):
        before, fitted = criterion(best), found[best]
        for _ in range(min(ADDED, largest - best)):
            fitted = fits.add(fitted, None)
            _keep(found, fitted)
        while fitted.n_clusters > 1 and fitted.n_clusters >= min(found, key=criterion):
            fitted = drop_cluster(fits, fitted)
            _keep(found, fitted)
        best = min(found, key=criterion)
        if criterion(best) > before - 2 * EXCHANGE_GAIN:
            break
    return best


def _keep(found: dict[int, F], fitted: F) -> None:
    """Store a fit if it is the best of its number."""
    number = fitted.n_clusters
    found[number] = min(found.get(number, fitted), fitted, key=_nll)


def cluster_cost(n_parameters: int, n_reports: int) -> float:
    """Return the cost of a cluster in the criterion of `count_clusters`."""
    of_parameter = log(max(n_reports, 3))
    return n_parameters * (of_parameter if n_parameters <= FEW_PARAMETERS else min(of_parameter, NOISE_COST))
