"""`dp_density_peaks`: density peaks of noisy cells.

This is a corrected form of DP-DPCL, which Zhang et al. 2025 compares with.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clustering.central.algorithms.dp_uniform_grid_kmeans import fit_grid
from clustering.central.cells import from_places
from clustering.central.curator import Curator
from clustering.central.synopsis import Synopsis
from clustering.centroids.centroid_statistics import spread_places
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import Feature
from sfumato.specs.central import DpDensityPeaks

MAX_CELLS = 1 << 12  # the algorithm compares all pairs of cells
REACH = 1.5  # d_c, the kernel width of the density, in diagonals of a cell
BLOCK = 256  # rows of the distance matrix computed at once, to bound memory


def dp_density_peaks(params: DpDensityPeaks, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Count records in a regular grid, once, and find the density peaks of its cells with positive counts.

    Rodriguez and Laio 2014, "Clustering by fast search and find of density peaks", applied to cells.
    rho is the noisy count smoothed by a Gaussian of width d_c. delta is the distance to the nearest
    cell of higher rho. The k cells with the largest rho * delta are peaks. Every other cell joins its
    nearest cell of higher rho. Centres are the means of the clusters. Published private variants add
    noise to rho and delta of each record, which costs epsilon for every record.

    Privacy: epsilon in total, pure, all of it for `count_grid`; the rest is post-processing.

    Parameters
    ----------
    params : DpDensityPeaks
    features : tuple of Feature
    curator : Curator

    Returns
    -------
    ClusterModel

    Raises
    ------
    InvalidSpec
        The grid would have more than 4,096 cells, or epsilon is too small to be divided.
    """
    return fit_grid(params, features, curator, MAX_CELLS, lambda cells: find_peaks(cells, params.clusters))


def find_peaks(synopsis: Synopsis, clusters: int) -> NDArray[np.float64]:
    """Return the means of the clusters around the k density peaks, (k, d) in [0, 1].

    There are fewer if fewer cells have positive counts. If there is none, the means are public,
    spread-out places.
    """
    kept = synopsis.positive_cells()
    if len(kept.counts) == 0:
        return from_places(spread_places(clusters, synopsis.middles.shape[1], 0))
    width = REACH * float(np.sqrt((kept.sides[0] ** 2).sum()))
    rho = np.concatenate([np.exp(-block / width**2) @ kept.counts for block in _squares(kept.middles)])
    order = np.argsort(-rho, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    above, delta = np.empty(len(rho), dtype=np.int64), np.empty(len(rho))
    start = 0
    for block in _squares(kept.middles):
        rows = np.arange(start, start + len(block))
        higher = np.where(rank[None, :] < rank[rows, None], block, np.inf)
        above[rows] = higher.argmin(axis=1)
        delta[rows] = np.sqrt(higher.min(axis=1))
        start += len(block)
    delta[order[0]] = np.sqrt(synopsis.middles.shape[1])  # the densest cell has no denser one: the box's diagonal
    peaks = np.argsort(-rho * delta, kind="stable")[:clusters]
    labels = np.full(len(rho), -1, dtype=np.int64)
    labels[peaks] = np.arange(len(peaks))
    for cell in order:
        if labels[cell] < 0:
            labels[cell] = labels[above[cell]]
    masses = np.bincount(labels, weights=kept.counts, minlength=len(peaks))
    sums = [np.bincount(labels, weights=kept.counts * column, minlength=len(peaks)) for column in kept.middles.T]
    return np.asarray((np.array(sums) / masses).T, dtype=np.float64)


def _squares(points: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yield the squared distances of all pairs, a block of rows at a time."""
    norms = (points**2).sum(axis=1)
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        yield np.maximum((block**2).sum(axis=1)[:, None] - 2 * block @ points.T + norms, 0.0)
