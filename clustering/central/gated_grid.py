"""Up to four features: a two-level grid sized by a noisy count, weighed by what stands out, and k-means on it."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.budget import split
from clustering.central.cell_clusters import WeighedCells
from clustering.central.cell_weights import weights_of
from clustering.central.cells import GridCells
from clustering.central.two_level_grid import TwoLevelGrid, consistent
from clustering.curator import Curator
from clustering.noise import laplace_variance
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.accounting import NANO

LEVELS = (1, 4)  # how epsilon is divided between coarse and fine cells

COARSE_RECORDS = 10.0  # N epsilon over this, to the power of 2/(2 + d), is how many coarse cells a feature might have
COARSE_SHARE = {1: 0.35, 2: 0.35, 3: 0.5, 4: 0.7}  # of those, by the number of features
MAX_COARSE = 50_000
FINE_RECORDS = 4.0  # N epsilon over this, to the same power, is how many parts of a feature a coarse cell has
CLEAR = 500.0  # q from which a cell's width matters less than its noise, in up to two features
FINE_RECORDS_CLEAR = {1: 10.0, 2: 10.0, 3: 4.0, 4: 4.0}  # there
MAX_SPLITS = {1: 32, 2: 32, 3: 4, 4: 4}
LEAST_CELLS = 8  # for each cluster where q is below FAINT; above, cells that hold little are better left whole
FAINT = 30.0
MAX_CELLS = 1 << 17  # in all: more records are expected of each until so many do

RESTARTS = 20
NEGLIGIBLE = 1e-3  # of the mean weight: cells below are left out of k-means


class Task(NamedTuple):
    """What a fit is sized by: public numbers and a noisy count."""

    n_records: float  # noisy, at least 1
    n_clusters: int
    epsilon: float  # in all, over the records a user may have

    @property
    def q(self) -> float:
        """Records of a cluster in units of the noise: what everything is governed by."""
        return self.n_records * self.epsilon / self.n_clusters


class GridFit(NamedTuple):
    """k-means on the cells of a grid."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]; fewer than k where fewer cells have weight
    cells: WeighedCells


def fit_grid(curator: Curator, task: Task, epsilon_nano: int, words: PublicWords) -> GridFit:
    """Count records in a grid, then in a finer one, and cluster the cells. Costs `epsilon_nano`, all of it for counts.

    Parameters
    ----------
    curator : Curator
        Of one to four features.
    task : Task
    epsilon_nano : int
    words : PublicWords
        Where k-means starts.
    """
    d = curator.n_features
    to_coarse, to_fine = split(epsilon_nano, *LEVELS)
    n_coarse = n_coarse_of(task, d)
    coarse = curator.counts(GridCells((n_coarse,) * d), to_coarse)
    grid = TwoLevelGrid(d, n_coarse, splits_of(coarse, to_fine / NANO / curator.max_per_user, task, d, n_coarse))
    fine = curator.counts(grid, to_fine)
    cells = consistent(grid, coarse, _variance(curator, to_coarse), fine, _variance(curator, to_fine))
    weights = weights_of(cells, task.n_records, task.n_clusters, task.q)
    if not weights.any():  # nothing counted above zero: the box itself
        weights = np.full(len(weights), task.n_records / len(weights))
    heavy = weights > NEGLIGIBLE * weights.mean()
    fit = weighted_kmeans(cells.middles[heavy], weights[heavy], task.n_clusters, words, RESTARTS)
    return GridFit(fit.centres, WeighedCells(cells.middles, cells.sides**2 * (d / 12), weights, 2 * cells.scales**2))


def n_coarse_of(task: Task, n_features: int) -> int:
    """Coarse cells of a feature."""
    might = max(4.0, task.n_records * task.epsilon / COARSE_RECORDS) ** (2 / (2 + n_features))
    least = float(task.n_clusters) ** (1 / n_features)
    n_coarse: int = max(2, round(max(COARSE_SHARE[n_features] * might, least)))
    while n_coarse**n_features > MAX_COARSE:
        n_coarse -= 1
    return n_coarse


def splits_of(
    coarse: NDArray[np.int64], epsilon: float, task: Task, n_features: int, n_coarse: int
) -> NDArray[np.int64]:
    """Parts of a feature within each coarse cell, by how many records it seems to hold.

    Parameters
    ----------
    coarse : ndarray of shape (n_coarse**n_features,), int64
        Noisy counts.
    epsilon : float
        That its parts will be counted at.
    task : Task
    n_features : int
    n_coarse : int
    """
    d = n_features
    least = max(1, round((LEAST_CELLS * task.n_clusters) ** (1 / d) / n_coarse)) if task.q < FAINT else 1
    records = FINE_RECORDS_CLEAR[d] if task.q >= CLEAR else FINE_RECORDS
    while True:
        wanted = np.rint((np.maximum(coarse, 0) * epsilon / records) ** (2 / (2 + d)))
        splits: NDArray[np.int64] = np.minimum(np.maximum(wanted, least), MAX_SPLITS[d]).astype(np.int64)
        if int((splits**d).sum()) <= MAX_CELLS or int(splits.max()) <= least:
            return splits
        records *= 2


def _variance(curator: Curator, epsilon_nano: int) -> float:
    return laplace_variance(Fraction(curator.max_per_user * NANO, epsilon_nano))
