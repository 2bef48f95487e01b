"""Dyadic cells of different levels: what rounds told of each, put together, and the cells split and merged.

Cells are known by their level and their place along the tree's walk (`TreeGridEncoding`):
the halves of place p are the places p * 2**d .. p * 2**d + 2**d - 1 of the next level, so
that a family of siblings is a row and no geometry is needed until the map is drawn.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.decoders import Decoder
from clustering.errors import UnfitRound
from clustering.plan import Collected
from sfumato.encodings import tree_starts, z_places
from sfumato.sizing import MAX_DEPTH_BITS, MAX_GRID_FEATURES, deepest
from sfumato.specs import Encoding, GridEncoding, TreeGridEncoding


@dataclass(frozen=True)
class Partition:
    """Dyadic cells that tile the box, along the walk.

    Attributes
    ----------
    n_features : int
    levels, places : ndarray of shape (n_cells,), int64
        A cell's level and its place among the cells of that level.
    """

    n_features: int
    levels: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def depth(self) -> int:
        return int(self.levels.max())

    @property
    def volumes(self) -> NDArray[np.float64]:
        """Shares of the box."""
        return np.asarray(0.5 ** (self.n_features * self.levels), dtype=np.float64)

    def encoding(self) -> GridEncoding | TreeGridEncoding:
        """How devices find their cell: a plain grid where all cells are of one level."""
        if (self.levels == self.depth).all():
            return GridEncoding((1 << self.depth,) * self.n_features)
        return TreeGridEncoding(self.n_features, tuple(self.levels.tolist()))

    def cell_map(self) -> NDArray[np.int64]:
        """The cell of each finest box: int64 of shape (2**depth,) * n_features, row-major."""
        starts = self.places << (self.depth - self.levels) * self.n_features
        return np.asarray(np.searchsorted(starts, _walk(self.n_features, self.depth), side="right") - 1)


def _walk(n_features: int, depth: int) -> NDArray[np.int64]:
    """The place along the walk of each box of a level, laid out row-major."""
    shape = (1 << depth,) * n_features
    return z_places(np.indices(shape).reshape(n_features, -1).T, depth).reshape(shape)


def uniform(n_features: int, level: int) -> Partition:
    """All cells of one level."""
    places = np.arange(1 << level * n_features, dtype=np.int64)
    return Partition(n_features, np.full(len(places), level, dtype=np.int64), places)


def partition_of(encoding: Encoding) -> tuple[Partition, NDArray[np.int64]]:
    """The cells of a published round, and which symbol each of them is.

    Raises
    ------
    UnfitRound
        Not dyadic cells over one to eight features, or too many.
    """
    if isinstance(encoding, TreeGridEncoding) and encoding.depth <= deepest(encoding.n_features):
        levels = np.array(encoding.levels, dtype=np.int64)
        starts = np.array(tree_starts(encoding), dtype=np.int64)
        places = starts >> (encoding.depth - levels) * encoding.n_features
        return Partition(encoding.n_features, levels, places), np.arange(len(levels), dtype=np.int64)
    if isinstance(encoding, GridEncoding) and encoding.n_features <= MAX_GRID_FEATURES:
        d, level = encoding.n_features, encoding.cells[0].bit_length() - 1
        if encoding.cells == (1 << level,) * d and level <= deepest(d):
            return uniform(d, level), np.argsort(_walk(d, level), axis=None)
    raise UnfitRound("this plan goes on from dyadic cells over 1 to 8 features")


def split(partition: Partition, chosen: NDArray[np.bool_]) -> Partition:
    """Put the halves of the chosen cells in their places."""
    n_halves = 1 << partition.n_features
    repeats = np.where(chosen, n_halves, 1)
    levels = np.repeat(partition.levels + chosen, repeats)
    within = np.arange(len(levels)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    places = np.repeat(np.where(chosen, partition.places << partition.n_features, partition.places), repeats)
    return Partition(partition.n_features, levels, places + within)


def merge(partition: Partition, chosen: NDArray[np.bool_]) -> Partition:
    """Put the parent in the place of every family of which all cells are there and chosen."""
    family = families(partition)
    size = np.bincount(family)
    n_chosen = np.bincount(family, weights=chosen)
    merged = (n_chosen == 1 << partition.n_features)[family] & (size == 1 << partition.n_features)[family]
    first = np.ones(len(family), dtype=np.bool_)
    first[1:] = family[1:] != family[:-1]
    stays = ~merged | first
    return Partition(
        partition.n_features,
        np.where(merged, partition.levels - 1, partition.levels)[stays],
        np.where(merged, partition.places >> partition.n_features, partition.places)[stays],
    )


def families(partition: Partition) -> NDArray[np.int64]:
    """A number for each cell that it shares with its siblings alone; siblings are of one level."""
    keys = (partition.levels << MAX_DEPTH_BITS + 1) + (partition.places >> partition.n_features)
    _, numbers = np.unique(keys, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def beside(partition: Partition, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which cells have a marked sibling."""
    family = families(partition)
    n_marked = np.bincount(family, weights=marked)[family]
    return np.asarray(n_marked - marked > 0, dtype=np.bool_)


class History:
    """What rounds told of cells, whatever the cells of each round.

    An estimate counts by its inverse variance; a cell that was asked about in several rounds
    has their weighted mean.
    """

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.n_reports = 0
        self._levels: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def add(self, partition: Partition, estimates: NDArray[np.float64], reading: Decoder, n_reports: int) -> None:
        """Add a round: estimates of shape (n_cells,) from n_reports, none of which is no news."""
        self.n_reports += n_reports
        if n_reports == 0:
            return
        share = 1 / len(estimates)  # of an average cell: by the estimates, low ones would count for more
        information = n_reports / (reading.zero_variance + share * (reading.slope_variance + 1 - share))
        for level in np.unique(partition.levels).tolist():
            blank = np.zeros(1 << level * self.n_features)
            weighted, weights = self._levels.setdefault(level, (blank, blank.copy()))
            (here,) = np.nonzero(partition.levels == level)
            weighted[partition.places[here]] += information * estimates[here]
            weights[partition.places[here]] += information

    def reconcile(self, depth: int) -> "Reconciled":
        """The estimates of all cells down to a level that fit one another and add up to one.

        Least squares in two passes, as if the noise of cells were independent (Hay et al. 2010,
        "Boosting the accuracy of differentially private histograms through consistency", with
        a variance for each cell). What was asked about below a cell counts for it, and it for
        what lies below.
        """
        n_halves = 1 << self.n_features
        values: list[NDArray[np.float64]] = []
        spread: list[NDArray[np.float64]] = []  # variance by what is known of the cell and below
        for level in range(depth, -1, -1):
            size = 1 << level * self.n_features
            weighted, weights = (a.copy() for a in self._levels.get(level, (np.zeros(size), np.zeros(size))))
            if spread:
                below = spread[-1].reshape(-1, n_halves).sum(axis=1)
                known = np.isfinite(below)
                weighted[known] += values[-1].reshape(-1, n_halves).sum(axis=1)[known] / below[known]
                weights[known] += 1 / below[known]
            asked = weights > 0
            values.append(np.divide(weighted, weights, out=np.zeros(size), where=asked))
            spread.append(np.divide(1, weights, out=np.full(size, np.inf), where=asked))
        return _hand_down(self.n_features, values[::-1], spread[::-1])


@dataclass(frozen=True)
class Reconciled:
    """Estimates that fit one another, for every level along its walk.

    Attributes
    ----------
    n_features : int
    values, variances : list of ndarray of shape (2**(level * n_features),), float64
        The values of a level add up to one, those of siblings to their parent's.
    parts : list of ndarray
        r: of what is added to a parent, the part that each sibling gets; a level's first is level 1.
    own : list of ndarray
        The variance each cell would have had without its parent; zero where nobody was asked.
    """

    n_features: int
    values: list[NDArray[np.float64]]
    variances: list[NDArray[np.float64]]
    parts: list[NDArray[np.float64]]
    own: list[NDArray[np.float64]]

    def of(self, partition: Partition) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimates and variances of cells: two arrays of shape (n_cells,)."""
        estimates, variances = np.empty(len(partition.levels)), np.empty(len(partition.levels))
        for level in np.unique(partition.levels).tolist():
            (here,) = np.nonzero(partition.levels == level)
            estimates[here] = self.values[level][partition.places[here]]
            variances[here] = self.variances[level][partition.places[here]]
        return estimates, variances

    def sum_variances(
        self, partition: Partition, labels: NDArray[np.int64], of_cells: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Variance of the sum of estimates over each region 0 .. n-1 of cells, or of a weighted sum.

        A family's estimates are what it was found to be, plus each sibling's part of what the
        parent was corrected by; the two are independent. So from the leaves up, a family with
        weights w adds sum w² own - (sum w own)² / sum own, and hands sum w r to its parent.
        """
        n_regions, n_halves = int(labels.max()) + 1, 1 << self.n_features
        variances = np.zeros(n_regions)
        for region in range(n_regions):
            carried = np.zeros(1)
            for level in range(partition.depth, 0, -1):
                weights = np.zeros(1 << level * self.n_features)
                if level < partition.depth:
                    weights += carried
                here = (partition.levels == level) & (labels == region)
                weights[partition.places[here]] += 1 if of_cells is None else of_cells[here]
                family, own = weights.reshape(-1, n_halves), self.own[level].reshape(-1, n_halves)
                whole = own.sum(axis=1)
                common = np.divide((family * own).sum(axis=1) ** 2, whole, out=np.zeros_like(whole), where=whole > 0)
                variances[region] += max(0.0, float((family**2 * own).sum() - common.sum()))
                carried = np.asarray((family * self.parts[level].reshape(-1, n_halves)).sum(axis=1))
        return variances


def _hand_down(n_features: int, values: list[NDArray[np.float64]], spread: list[NDArray[np.float64]]) -> Reconciled:
    """From the whole, which is one for certain, to its parts."""
    n_halves = 1 << n_features
    final, variances = [np.ones(1)], [np.zeros(1)]
    parts, own = [np.ones(1)], [np.zeros(1)]
    for level in range(1, len(values)):
        family = spread[level].reshape(-1, n_halves)
        # nobody is asked about a cell and not about its siblings
        known = np.isfinite(family.sum(axis=1, keepdims=True))
        alone = np.where(known, family, 0.0)
        whole = np.where(known, alone.sum(axis=1, keepdims=True), 1.0)
        part = np.where(known, alone / whole, 1 / n_halves)
        found = np.where(known, values[level].reshape(-1, n_halves), 0.0)
        correction = final[-1][:, None] - found.sum(axis=1, keepdims=True)
        final.append((found + part * correction).ravel())
        variances.append((alone - alone**2 / whole + part**2 * variances[-1][:, None]).ravel())
        parts.append(part.ravel())
        own.append(alone.ravel())
    return Reconciled(n_features, final, variances, parts, own)


def uneven(family_values: NDArray[np.float64], family_variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """How unequal the cells of a family (a row) are: chi² of equality in standard deviations above its mean.

    Zero variance on equal values is equal; on unequal values, infinitely unequal.
    """
    misfit = (family_values - family_values.mean(axis=1, keepdims=True)) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        chi = np.where(misfit > 0, misfit / family_variances, 0.0).sum(axis=1)
    freedom = family_values.shape[1] - 1
    return np.asarray((chi - freedom) / np.sqrt(2 * freedom), dtype=np.float64)


def estimates_of(collected: Collected, reading: Decoder) -> tuple[Partition, NDArray[np.float64]]:
    """The cells of a published round, and the estimate of each, along the walk."""
    partition, symbols = partition_of(collected.spec.encoding)
    return partition, reading.frequencies(collected.tally)[0][symbols]
