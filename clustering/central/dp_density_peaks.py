"""`dp_density_peaks`: density peaks of noisy cells: DP-DPCL, a comparator of paper 004, made sound."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import spread_out
from clustering.central.cells import from_places
from clustering.central.counted_grid import counted_grid
from clustering.central.synopsis import Synopsis, synopsis_model
from clustering.curator import Curator
from sfumato.accounting import parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Feature
from sfumato.specs.central import DpDensityPeaks

MAX_CELLS = 1 << 12  # every pair of them is looked at
REACH = 1.5  # d_c, the distance over which density is felt, in diagonals of a cell
BLOCK = 256  # rows of the matrix of distances at a time, for memory


def dp_density_peaks(params: DpDensityPeaks, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Count records in a plain grid, once, and find the density peaks of its cells of positive count.

    Rodriguez and Laio 2014, "Clustering by fast search and find of density peaks", over cells: rho
    is the noisy count felt through a Gaussian of width d_c, delta the distance to the nearest cell
    of higher rho; the k cells of largest rho * delta are peaks, and each other cell goes with its
    nearest cell of higher rho. Centres are the clusters' means. (The published DP variants add
    noise to rho and delta of each record, which then has to be paid for record by record.)

    Privacy: all of epsilon goes to `counted_grid`; the rest is post-processing.

    Raises
    ------
    InvalidSpec
        More than 4,096 cells.
    """
    epsilon_nano = parse_epsilon(params.epsilon)
    grid = counted_grid(curator, len(features), epsilon_nano, params.cells, MAX_CELLS)
    return synopsis_model(
        features,
        grid.synopsis,
        peak_centres(grid.synopsis, params.clusters),
        params.clusters,
        epsilon_nano // curator.max_per_user,
        grid.records,
        {"grid_shape": list(grid.shape)},
    )


def peak_centres(synopsis: Synopsis, clusters: int) -> NDArray[np.float64]:
    """The means of the clusters around the k density peaks; (k, d) in [0, 1].

    Fewer where fewer cells are left; public, spread-out places where none is.
    """
    kept = synopsis.kept()
    if len(kept.counts) == 0:
        return from_places(spread_out(clusters, synopsis.middles.shape[1], 0))
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
    delta[order[0]] = np.sqrt(synopsis.middles.shape[1])  # of the highest: across the box
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
    """Squared distances of all pairs, a block of rows at a time."""
    norms = (points**2).sum(axis=1)
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        yield np.maximum((block**2).sum(axis=1)[:, None] - 2 * block @ points.T + norms, 0.0)
