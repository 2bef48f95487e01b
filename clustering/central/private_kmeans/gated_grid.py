"""The grid of `private_kmeans` for up to four features: noisy counts at two levels, then k-means on the cells.

It also estimates the size, width and centre error of clusters of noisy cells.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import GridCells
from clustering.central.curator import Curator
from clustering.central.noise import laplace_variance
from clustering.central.private_kmeans.cell_weights import HARD_FROM, weigh_cells
from clustering.central.private_kmeans.cluster_count import ClusterCount, NoisyClusters
from clustering.central.private_kmeans.two_level_grid import GridCounts, TwoLevelGrid, make_consistent
from clustering.central.queries import split
from clustering.centroids.partition_agreement import PartitionAgreement
from clustering.centroids.weighted_kmeans import SWAPS, weighted_kmeans
from clustering.random import PublicWords
from sfumato.privacy.accounting import NANO

LEVELS = (1, 4)  # weights of epsilon for coarse and fine counts

COARSE_RECORDS = 10.0  # (N epsilon / this)^(2/(2 + d)) is the reference number of coarse cells per feature
COARSE_SHARE = {1: 0.35, 2: 0.35, 3: 0.5, 4: 0.7}  # share of that number, by the number of features
MAX_COARSE = 50_000
FINE_RECORDS = 4.0  # (N epsilon / this)^(2/(2 + d)) is the number of divisions per feature of a coarse cell
FINE_RECORDS_SMOOTHED = 2.0  # replaces FINE_RECORDS below q = HARD_FROM, where posterior means smooth the counts
CLEAR = 500.0  # q from which, in one or two features, a cell's noise matters more than its width
FINE_RECORDS_CLEAR = {1: 10.0, 2: 10.0, 3: 4.0, 4: 4.0}  # replaces FINE_RECORDS from q = CLEAR
MAX_SPLITS = {1: 32, 2: 32, 3: 4, 4: 4}
LEAST_CELLS = 8  # minimum cells per cluster below q = FAINT; at higher q, cells with few records stay whole
FAINT = 30.0
MAX_CELLS = 1 << 17  # maximum in total; the records per cell are doubled until it suffices

NEGLIGIBLE = 1e-3  # weights below this share of the mean are left out of k-means

POOLED = 0.5  # weight of the common variance in each cluster's variance, in mean clusters


class WeighedCells(NamedTuple):
    """Cells with noisy weights."""

    middles: NDArray[np.float64]  # (n, d), in [0, 1]
    variances: NDArray[np.float64]  # (n,), variance of records within a cell, summed over features
    weights: NDArray[np.float64]  # (n,), non-negative, at least one positive
    noise: NDArray[np.float64]  # (n,), variance of each weight


class CellClusters(NamedTuple):
    """Estimates about clusters of weighed cells."""

    masses: NDArray[np.float64]  # (k,)
    mass_variances: NDArray[np.float64]  # (k,)
    spreads: NDArray[np.float64]  # (k,), root mean square distance of records from the centre
    centre_variances: NDArray[np.float64]  # (k,), variance per coordinate from the weights' noise


def summarise_clusters(cells: WeighedCells, centres: NDArray[np.float64]) -> CellClusters:
    """Assign each cell to its nearest centre and estimate the clusters.

    Parameters
    ----------
    cells : WeighedCells
    centres : ndarray of shape (k, d)

    Returns
    -------
    CellClusters
        Cells without weight add no noise, because the gate dropped them.
    """
    k, d = centres.shape
    labels, nearest = find_nearest(cells.middles, centres)
    masses: NDArray[np.float64] = np.bincount(labels, cells.weights, k).astype(np.float64)
    inertia = np.bincount(labels, cells.weights * (nearest + cells.variances), k)
    total = masses.sum()
    pooled = POOLED * total / k
    spreads = np.sqrt((inertia + pooled * inertia.sum() / total) / (masses + pooled))
    noise = np.where(cells.weights > 0, cells.noise, 0.0)
    moved = np.bincount(labels, noise * nearest, k) / d
    mass_variances = np.bincount(labels, noise, k).astype(np.float64)
    return CellClusters(masses, mass_variances, spreads, moved / np.maximum(masses, 1.0) ** 2)


def find_nearest(
    points: NDArray[np.float64], centres: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the nearest centre of each point, and its squared distance."""
    squares = np.empty((len(points), len(centres)))
    for j, centre in enumerate(centres):
        squares[:, j] = ((points - centre) ** 2).sum(axis=1)
    return squares.argmin(axis=1), squares.min(axis=1)


def describe_pieces(cells: WeighedCells, centres: NDArray[np.float64]) -> NoisyClusters:
    """Return the clusters of weighed cells with their covariances. Each cell belongs to its nearest centre."""
    k, d = centres.shape
    found = summarise_clusters(cells, centres)
    labels, _ = find_nearest(cells.middles, centres)
    away = cells.middles - centres[labels]
    covariances = np.zeros((k, d, d))
    for i, j in np.ndindex(d, d):
        covariances[:, i, j] = np.bincount(labels, cells.weights * away[:, i] * away[:, j], k)
    covariances[:, range(d), range(d)] += np.bincount(labels, cells.weights * cells.variances / d, k)[:, None]
    covariances /= np.maximum(found.masses, NEGLIGIBLE)[:, None, None]
    return NoisyClusters(centres, d * found.centre_variances, found.masses, found.mass_variances, covariances)


class CellErrors(NamedTuple):
    """Errors of centres that the cells of a grid cause, beside the noise (`cell_errors`)."""

    variances: NDArray[np.float64]  # (k, d)
    narrow: NDArray[np.bool_]  # (k, features), along which features a cluster is narrower than a cell


class FoundClusters(NamedTuple):
    """The clusters of a route with their noise, before they become a model."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]
    centre_variances: NDArray[np.float64]  # (k,), noise variance per coordinate
    counts: NDArray[np.float64]  # (k,)
    count_variances: NDArray[np.float64]  # (k,)
    spreads: NDArray[np.float64]  # (k,)
    route: str
    agreement: PartitionAgreement
    counted: ClusterCount | None = None  # if their number was not given
    cells: CellErrors | None = None  # if the centres are means of cells


class ProblemSize(NamedTuple):
    """The public numbers and the noisy count that size a fit."""

    n_records: float  # noisy number of records, at least 1
    n_clusters: int
    epsilon: float  # total epsilon divided by the maximum number of records per user

    @property
    def q(self) -> float:
        """Return N epsilon / k, the records of a cluster in units of the noise."""
        return self.n_records * self.epsilon / self.n_clusters


class GridFit(NamedTuple):
    """The result of k-means on the cells of a grid."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]; fewer than k where fewer cells have weight
    cells: WeighedCells


class CoarseCounts(NamedTuple):
    """Noisy counts of the coarse cells."""

    n_coarse: int  # cells per feature
    counts: NDArray[np.int64]  # (n_coarse**d,)
    variance: float  # noise variance of each count


def count_grid(curator: Curator, size: ProblemSize, epsilon_nano: int) -> GridCounts:
    """Count records in a coarse grid, then in a finer one.

    Parameters
    ----------
    curator : Curator
        Its records have one to four features. The cells divide periodic features along their circle.
    size : ProblemSize
    epsilon_nano : int
        Total cost, all of it for the two counts. Cells of a grid are disjoint, so each grid costs as
        much as one count.
    """
    to_coarse, to_fine = split(epsilon_nano, *LEVELS)
    return count_fine(curator, size, count_coarse(curator, size, to_coarse), to_fine)


def count_coarse(curator: Curator, size: ProblemSize, epsilon_nano: int) -> CoarseCounts:
    """Count records in the coarse grid. It costs `epsilon_nano`, because its cells are disjoint."""
    d = curator.circles.n_along
    n_coarse = choose_n_coarse(size, d)
    counts = curator.counts(curator.circles.cells(GridCells((n_coarse,) * d)), epsilon_nano)
    return CoarseCounts(n_coarse, counts, _variance(curator, epsilon_nano))


def count_fine(curator: Curator, size: ProblemSize, coarse: CoarseCounts, epsilon_nano: int) -> GridCounts:
    """Divide the coarse cells by their noisy counts, and count the parts. It costs `epsilon_nano` more."""
    circles, n_coarse = curator.circles, coarse.n_coarse
    d = circles.n_along
    grid = TwoLevelGrid(
        d, n_coarse, choose_splits(coarse.counts, epsilon_nano / NANO / curator.max_per_user, size, d, n_coarse)
    )
    fine = curator.counts(circles.cells(grid), epsilon_nano)
    counts = make_consistent(grid, coarse.counts, coarse.variance, fine, _variance(curator, epsilon_nano))
    return counts._replace(middles=circles.to_points(counts.middles), circles=circles.places)


def fit_grid(cells: GridCounts, size: ProblemSize, words: PublicWords) -> GridFit:
    """Weigh the cells of a grid and run k-means on them. `words` is the source of its starts."""
    d = len(cells.coarse_shape)
    weights = weigh_cells(cells, size.n_records, size.n_clusters, size.q)
    heavy = keep_heavy(weights)
    fit = weighted_kmeans(cells.middles[heavy], weights[heavy], size.n_clusters, words, swaps=SWAPS)
    return GridFit(fit.centres, WeighedCells(cells.middles, cells.sides**2 * (d / 12), weights, 2 * cells.scales**2))


def keep_heavy(weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which weights are not negligible."""
    return np.asarray(weights > NEGLIGIBLE * weights.mean(), dtype=np.bool_)


def choose_n_coarse(size: ProblemSize, n_features: int) -> int:
    """Return the number of coarse cells per feature."""
    might = max(4.0, size.n_records * size.epsilon / COARSE_RECORDS) ** (2 / (2 + n_features))
    least = float(size.n_clusters) ** (1 / n_features)
    n_coarse: int = max(2, round(max(COARSE_SHARE[n_features] * might, least)))
    while n_coarse**n_features > MAX_COARSE:
        n_coarse -= 1
    return n_coarse


def choose_splits(
    coarse: NDArray[np.int64], epsilon: float, size: ProblemSize, n_features: int, n_coarse: int
) -> NDArray[np.int64]:
    """Return the divisions per feature of each coarse cell, from its noisy count.

    Parameters
    ----------
    coarse : ndarray of shape (n_coarse**n_features,), int64
        Noisy counts.
    epsilon : float
        Epsilon of the fine counts, divided by the maximum number of records per user.
    size : ProblemSize
    n_features : int
    n_coarse : int
    """
    d = n_features
    least = max(1, round((LEAST_CELLS * size.n_clusters) ** (1 / d) / n_coarse)) if size.q < FAINT else 1
    records = FINE_RECORDS_SMOOTHED if size.q < HARD_FROM else FINE_RECORDS
    if size.q >= CLEAR:
        records = FINE_RECORDS_CLEAR[d]
    while True:
        divisions = np.rint((np.maximum(coarse, 0) * epsilon / records) ** (2 / (2 + d)))
        splits: NDArray[np.int64] = np.minimum(np.maximum(divisions, least), MAX_SPLITS[d]).astype(np.int64)
        if int((splits**d).sum()) <= MAX_CELLS or int(splits.max()) <= least:
            return splits
        records *= 2


def _variance(curator: Curator, epsilon_nano: int) -> float:
    return laplace_variance(Fraction(curator.max_per_user * NANO, epsilon_nano))
