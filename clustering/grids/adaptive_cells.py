"""Partitions of the box into dyadic cells, and the estimates of all rounds for them.

A cell is identified by its level and its place on the Z-order curve (`TreeGridEncoding`).
The children of place p are the places p * 2**d .. p * 2**d + 2**d - 1 of the next level.
Siblings are therefore adjacent, and only the cell map needs geometry.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.rounds.decoders import Decoder
from clustering.rounds.plan import Collected
from sfumato.records.encodings import tree_starts, z_places
from sfumato.sizing.grids import MAX_DEPTH_BITS, MAX_GRID_FEATURES, deepest
from sfumato.specs import Encoding, GridEncoding, TreeGridEncoding


@dataclass(frozen=True)
class Partition:
    """Dyadic cells that tile the box, in Z-order.

    Attributes
    ----------
    n_features : int
    levels, places : ndarray of shape (n_cells,), int64
        Level of each cell, and its place among the cells of this level.
    """

    n_features: int
    levels: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def depth(self) -> int:
        """Return the finest level."""
        return int(self.levels.max())

    @property
    def volumes(self) -> NDArray[np.float64]:
        """Return the share of the box in each cell."""
        return np.asarray(0.5 ** (self.n_features * self.levels), dtype=np.float64)

    def encoding(self) -> GridEncoding | TreeGridEncoding:
        """Return the encoding of the cells, a plain grid if all cells have one level."""
        if (self.levels == self.depth).all():
            return GridEncoding((1 << self.depth,) * self.n_features)
        return TreeGridEncoding(self.n_features, tuple(self.levels.tolist()))

    def cell_map(self) -> NDArray[np.int64]:
        """Return the cell of each finest box: int64 of shape (2**depth,) * n_features, row-major."""
        starts = self.places << (self.depth - self.levels) * self.n_features
        return np.asarray(np.searchsorted(starts, _walk(self.n_features, self.depth), side="right") - 1)


def _walk(n_features: int, depth: int) -> NDArray[np.int64]:
    """Return the place in Z-order of each box of a level, laid out row-major."""
    shape = (1 << depth,) * n_features
    return z_places(np.indices(shape).reshape(n_features, -1).T, depth).reshape(shape)


def uniform(n_features: int, level: int) -> Partition:
    """Return the partition into all cells of one level."""
    places = np.arange(1 << level * n_features, dtype=np.int64)
    return Partition(n_features, np.full(len(places), level, dtype=np.int64), places)


def partition_of(encoding: Encoding) -> tuple[Partition, NDArray[np.int64]]:
    """Return the cells of a published round, and the symbol of each cell.

    Raises
    ------
    UnfitRound
        The round does not have dyadic cells over one to eight features, or has too many.
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
    raise UnfitRound(f"this plan needs a round of dyadic cells over 1 to {MAX_GRID_FEATURES} features")


def split(partition: Partition, chosen: NDArray[np.bool_]) -> Partition:
    """Return the partition with each chosen cell replaced by its children."""
    n_halves = 1 << partition.n_features
    repeats = np.where(chosen, n_halves, 1)
    levels = np.repeat(partition.levels + chosen, repeats)
    within = np.arange(len(levels)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    places = np.repeat(np.where(chosen, partition.places << partition.n_features, partition.places), repeats)
    return Partition(partition.n_features, levels, places + within)


def merge(partition: Partition, chosen: NDArray[np.bool_]) -> Partition:
    """Return the partition with a parent in place of each complete family of chosen cells."""
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
    """Return a number for each cell that it shares only with its siblings of the same level."""
    keys = (partition.levels << MAX_DEPTH_BITS + 1) + (partition.places >> partition.n_features)
    _, numbers = np.unique(keys, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def has_marked_sibling(partition: Partition, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each cell has a marked sibling."""
    family = families(partition)
    n_marked = np.bincount(family, weights=marked)[family]
    return np.asarray(n_marked - marked > 0, dtype=np.bool_)


class CellEstimates:
    """Estimates of cells from several rounds, which may have different cells.

    Estimates are weighted by inverse variance. A cell reported in several rounds gets their
    weighted mean.
    """

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.n_reports = 0
        self._levels: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def add(self, partition: Partition, estimates: NDArray[np.float64], reading: Decoder, n_reports: int) -> None:
        """Add a round's estimates of shape (n_cells,). A round without reports changes nothing."""
        self.n_reports += n_reports
        if n_reports == 0:
            return
        share = 1 / len(estimates)  # share of an average cell; weights from the estimates would favour low ones
        information = n_reports / (reading.zero_variance + share * (reading.slope_variance + 1 - share))
        for level in np.unique(partition.levels).tolist():
            blank = np.zeros(1 << level * self.n_features)
            weighted, weights = self._levels.setdefault(level, (blank, blank.copy()))
            (here,) = np.nonzero(partition.levels == level)
            weighted[partition.places[here]] += information * estimates[here]
            weights[partition.places[here]] += information

    def reconcile(self, depth: int) -> "ConsistentEstimates":
        """Return estimates of all cells down to a level that are consistent and sum to one.

        This is least squares in two passes, with independent noise in each cell (Hay et al. 2010,
        "Boosting the accuracy of differentially private histograms through consistency", with
        a variance for each cell). Estimates above and below a cell contribute to its value.
        """
        n_halves = 1 << self.n_features
        values: list[NDArray[np.float64]] = []
        spread: list[NDArray[np.float64]] = []  # variance given estimates of the cell and its descendants
        for level in range(depth, -1, -1):
            size = 1 << level * self.n_features
            weighted, weights = (a.copy() for a in self._levels.get(level, (np.zeros(size), np.zeros(size))))
            if spread:
                below = spread[-1].reshape(-1, n_halves).sum(axis=1)
                known = np.isfinite(below)
                weighted[known] += values[-1].reshape(-1, n_halves).sum(axis=1)[known] / below[known]
                weights[known] += 1 / below[known]
            reported = weights > 0
            values.append(np.divide(weighted, weights, out=np.zeros(size), where=reported))
            spread.append(np.divide(1, weights, out=np.full(size, np.inf), where=reported))
        return _distribute_corrections(self.n_features, values[::-1], spread[::-1])


@dataclass(frozen=True)
class ConsistentEstimates:
    """Consistent estimates for every level, in Z-order.

    Attributes
    ----------
    n_features : int
    values, variances : list of ndarray of shape (2**(level * n_features),), float64
        Values of a level sum to one, and those of siblings sum to their parent's.
    parts : list of ndarray
        r, the fraction of a correction of the parent that each sibling gets. Index 1 is level 1.
    own : list of ndarray
        Variance of each cell without its parent's correction; zero for cells without reports.
    """

    n_features: int
    values: list[NDArray[np.float64]]
    variances: list[NDArray[np.float64]]
    parts: list[NDArray[np.float64]]
    own: list[NDArray[np.float64]]

    def of(self, partition: Partition) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return estimates and variances of cells: two arrays of shape (n_cells,)."""
        estimates, variances = np.empty(len(partition.levels)), np.empty(len(partition.levels))
        for level in np.unique(partition.levels).tolist():
            (here,) = np.nonzero(partition.levels == level)
            estimates[here] = self.values[level][partition.places[here]]
            variances[here] = self.variances[level][partition.places[here]]
        return estimates, variances

    def sum_variances(
        self, partition: Partition, labels: NDArray[np.int64], of_cells: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the variance of the sum of estimates, or of a weighted sum, over each region 0 .. n-1.

        A family's estimates are its own values plus each sibling's fraction of the parent's
        correction. The two parts are independent. From the leaves up, a family with weights w thus
        adds sum w² own - (sum w own)² / sum own, and passes sum w r to its parent.

        Parameters
        ----------
        partition : Partition
        labels : ndarray of shape (n_cells,), int64
        of_cells : ndarray of shape (n_cells,), optional
            Weight of each cell; 1 by default.

        Returns
        -------
        ndarray of shape (n_regions,), float64
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


def _distribute_corrections(
    n_features: int, values: list[NDArray[np.float64]], spread: list[NDArray[np.float64]]
) -> ConsistentEstimates:
    """Distribute the corrections from the root, which is exactly one, to all descendants."""
    n_halves = 1 << n_features
    final, variances = [np.ones(1)], [np.zeros(1)]
    parts, own = [np.ones(1)], [np.zeros(1)]
    for level in range(1, len(values)):
        family = spread[level].reshape(-1, n_halves)
        # rounds report all siblings of a cell or none
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
    return ConsistentEstimates(n_features, final, variances, parts, own)


def unevenness(family_values: NDArray[np.float64], family_variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return chi² of equality within each family (row), in standard deviations above its mean.

    With zero variance, equal values give the chi² 0 and unequal values give infinity.
    """
    misfit = (family_values - family_values.mean(axis=1, keepdims=True)) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        chi = np.where(misfit > 0, misfit / family_variances, 0.0).sum(axis=1)
    freedom = family_values.shape[1] - 1
    return np.asarray((chi - freedom) / np.sqrt(2 * freedom), dtype=np.float64)


def estimates_of(collected: Collected, reading: Decoder) -> tuple[Partition, NDArray[np.float64]]:
    """Return the cells of a published round in Z-order, and the estimate of each."""
    partition, symbols = partition_of(collected.spec.encoding)
    return partition, reading.frequencies(collected.tally)[0][symbols]
