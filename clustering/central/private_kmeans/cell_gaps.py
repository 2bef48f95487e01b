"""Clusters of noisy cells without a gap between them, which are one cluster. It depends on query answers only.

A cluster with a long tail is divided by k-means into a core and parts of its tail. The records' density along the line
between their centres then falls from the core to the end of the tail. Between two clusters it has a minimum.
"""

import numpy as np
from numpy.typing import NDArray

from clustering.central.private_kmeans.cluster_count import ClusterCount, count_clusters, merge_pieces
from clustering.central.private_kmeans.gated_grid import WeighedCells, describe_pieces
from clustering.centroids.weighted_kmeans import lloyd

BINS = 12  # along the line between two centres, from FIRST to LAST
FIRST, LAST = -0.3, 1.3
GAP = 0.75  # largest density in a gap, as a share of the lower one of its two sides
NOISE = 1.0  # standard deviations by which the noise may explain a gap
NEIGHBOURS = 4  # nearest clusters with which each one is compared


def count_in_cells(cells: WeighedCells, pieces: NDArray[np.float64]) -> tuple[ClusterCount, NDArray[np.float64]]:
    """Merge pieces that touch, then clusters without a gap. Return the count and the centres of the clusters.

    Parameters
    ----------
    cells : WeighedCells
    pieces : ndarray of shape (k, d)
        Centres of more clusters than there are.
    """
    described = describe_pieces(cells, pieces)
    count, masses = count_clusters(described), np.maximum(described.counts, 1.0)
    while True:
        merged = merge_pieces(count, pieces, masses, np.zeros(len(pieces)))
        pair = _find_gapless(cells, merged.centres)
        if pair is None:
            return count, lloyd(cells.middles, cells.weights, merged.centres).centres
        groups = np.where(count.groups == pair[1], pair[0], count.groups)
        groups = np.where(groups > pair[1], groups - 1, groups)
        count = count._replace(groups=groups, lower=min(count.lower, int(groups.max()) + 1))


def _find_gapless(cells: WeighedCells, centres: NDArray[np.float64]) -> tuple[int, int] | None:
    """Return the two neighbours with the least gap, the smaller number first, or None if all have gaps."""
    k = len(centres)
    if k < 2:
        return None
    distances = ((cells.middles[:, None] - centres) ** 2).sum(axis=2)
    labels = distances.argmin(axis=1)
    apart = ((centres[:, None] - centres) ** 2).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    near = np.argsort(apart, axis=1, kind="stable")[:, : min(NEIGHBOURS, k - 1)]
    pairs = sorted({(min(i, j), max(i, j)) for i in range(k) for j in near[i].tolist()})
    depths = [_depth(cells, labels, centres, *pair) for pair in pairs]
    best = int(np.argmax(depths))
    return pairs[best] if depths[best] > GAP else None


def _depth(cells: WeighedCells, labels: NDArray[np.int64], centres: NDArray[np.float64], one: int, other: int) -> float:
    """Return the least density between two clusters, as a share of the lower one of its two sides.

    It is 1 or more without a gap, and cautious by the noise.
    """
    own = (labels == one) | (labels == other)
    line = centres[other] - centres[one]
    places = (cells.middles[own] - centres[one]) @ line / max(float(line @ line), 1e-15)
    bins = np.floor((places - FIRST) / (LAST - FIRST) * BINS).astype(np.int64)
    inside = (bins >= 0) & (bins < BINS)
    density = np.bincount(bins[inside], cells.weights[own][inside], BINS)
    noise = np.sqrt(np.bincount(bins[inside], np.where(cells.weights > 0, cells.noise, 0.0)[own][inside], BINS))
    left = np.maximum.accumulate(density)[:-2]
    right = np.maximum.accumulate(density[::-1])[::-1][2:]
    sides = np.minimum(left, right)
    return float(((density[1:-1] - NOISE * noise[1:-1]) / np.maximum(sides, 1e-9)).min())
