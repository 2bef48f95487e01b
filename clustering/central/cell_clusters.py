"""What noisy cells say of clusters: how many records, how wide, and how far noise may have moved the centre."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

POOLED = 0.5  # mean clusters' worth of the common variance, in each cluster's


class WeighedCells(NamedTuple):
    """Cells with noisy weights."""

    middles: NDArray[np.float64]  # (n, d), in [0, 1]
    variances: NDArray[np.float64]  # (n,), of records within a cell, summed over features
    weights: NDArray[np.float64]  # (n,), none negative, some positive
    noise: NDArray[np.float64]  # (n,), variance of each weight


class CellClusters(NamedTuple):
    """Clusters of weighed cells."""

    masses: NDArray[np.float64]  # (k,)
    mass_variances: NDArray[np.float64]  # (k,)
    spreads: NDArray[np.float64]  # (k,), root mean square distance of records from the centre
    centre_variances: NDArray[np.float64]  # (k,), of a coordinate, by the weights' noise


def cell_clusters(cells: WeighedCells, centres: NDArray[np.float64]) -> CellClusters:
    """Give each cell to its nearest centre, and add up.

    Parameters
    ----------
    cells : WeighedCells
    centres : ndarray of shape (k, d)

    Returns
    -------
    CellClusters
        Noise counts where a cell has weight: where it has none it was found to be noise alone.
    """
    k, d = centres.shape
    squares = np.empty((len(cells.middles), k))
    for j, centre in enumerate(centres):
        squares[:, j] = ((cells.middles - centre) ** 2).sum(axis=1)
    labels, nearest = squares.argmin(axis=1), squares.min(axis=1)
    masses: NDArray[np.float64] = np.bincount(labels, cells.weights, k).astype(np.float64)
    inertia = np.bincount(labels, cells.weights * (nearest + cells.variances), k)
    total = masses.sum()
    pooled = POOLED * total / k
    spreads = np.sqrt((inertia + pooled * inertia.sum() / total) / (masses + pooled))
    noise = np.where(cells.weights > 0, cells.noise, 0.0)
    moved = np.bincount(labels, noise * nearest, k) / d
    mass_variances = np.bincount(labels, noise, k).astype(np.float64)
    return CellClusters(masses, mass_variances, spreads, moved / np.maximum(masses, 1.0) ** 2)
