"""Weights of noisy cells in k-means. They depend on query answers only, so they cost nothing.

Hard weights are the counts that stand out from noise. Posterior weights are posterior means of the
counts (`posterior_counts`).
"""

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.central.posterior_counts import estimate_counts
from clustering.central.private_kmeans.two_level_grid import GridCounts

# q = N epsilon / k, the records of a cluster in units of the noise
HARD_FROM = 100.0  # q from which hard weights are used alone
POSTERIOR_SHARE = 0.6  # share of posterior weights at lower q

ALONE = 5.0  # additional noise scales by which a coarse cell without significant neighbour must stand out
STANDS_OUT = 1.5  # standard deviations of its noise by which a cell must stand out
LEAST_CELLS = 2  # per cluster; with fewer cells the gate is lifted
NOTHING = 1e-290  # smaller sums have underflowed and cannot be divisors


def weigh_cells(cells: GridCounts, n_records: float, n_clusters: int, q: float) -> NDArray[np.float64]:
    """Return the weights of the cells, depending on the amount of noise. They are equal if no count is positive.

    Parameters
    ----------
    cells : GridCounts
    n_records : float
        Noisy number of records, at least 1.
    n_clusters : int
    q : float
        N epsilon / k.

    Returns
    -------
    ndarray of shape (n,), float64
        Non-negative; their sum is n_records.
    """
    weights = _scale_to_sum(hard_weights(cells, n_clusters), n_records)
    if q < HARD_FROM:
        soft = _scale_to_sum(posterior_weights(cells, n_records), n_records)
        weights = (1 - POSTERIOR_SHARE) * weights + POSTERIOR_SHARE * soft if weights.any() else soft
    return weights if weights.any() else np.full(len(weights), n_records / len(weights))


def hard_weights(cells: GridCounts, n_clusters: int) -> NDArray[np.float64]:
    """Return the counts of significant cells in significant coarse cells, without the gate if those are too few."""
    weights = _gate(cells, _find_significant(cells))
    if (weights > 0).sum() < LEAST_CELLS * n_clusters:
        weights = _gate(cells, np.ones(len(cells.totals), dtype=np.bool_))
    if (weights > 0).sum() < LEAST_CELLS * n_clusters:
        weights = np.maximum(cells.counts, 0)
    return weights


def _find_significant(cells: GridCounts) -> NDArray[np.bool_]:
    """Return which of K coarse cells exceed ln K noise scales, or more if no neighbour does.

    In every second grid, noise lifts about one empty cell above ln K scales. Next to other cells it
    does little harm. Alone, in a box much wider than the data, it would attract a centre.
    """
    least = log(len(cells.totals))
    sizes = cells.totals / cells.total_scales
    is_above = sizes > least
    return is_above & (_has_neighbour(is_above, cells.coarse_shape, cells.circles) | (sizes > least + ALONE))


def _has_neighbour(marked: NDArray[np.bool_], shape: tuple[int, ...], circles: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return whether a marked cell touches each cell at a side or corner. On a circle, the ends touch."""
    near = marked.reshape(shape).astype(np.int64)
    for axis in range(len(shape)):
        margins = [(1, 1) if j == axis else (0, 0) for j in range(len(shape))]
        wide = np.pad(near, margins, mode="wrap" if axis in circles else "constant")
        windows = [np.take(wide, np.arange(shape[axis]) + step, axis=axis) for step in range(3)]
        near = windows[0] + windows[1] + windows[2]
    return np.asarray(near.ravel() > marked, dtype=np.bool_)


def _gate(cells: GridCounts, stands_out: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the counts of significant cells, scaled to their coarse cells' totals; 0 elsewhere."""
    is_alone = cells.n_parts[cells.parents] == 1
    least = np.where(is_alone, 0, STANDS_OUT * sqrt(2) * cells.scales)
    weights = np.where(stands_out[cells.parents] & (cells.counts > least), cells.counts, 0)
    return _scale_to_totals(weights, np.maximum(cells.totals, 0), cells.parents)


def posterior_weights(cells: GridCounts, n_records: float) -> NDArray[np.float64]:
    """Return posterior means of the counts, scaled to the posterior means of the coarse cells."""
    totals, expected = expected_counts(cells, n_records)
    return _scale_to_totals(estimate_counts(cells.counts, cells.scales, expected), totals, cells.parents)


def expected_counts(cells: GridCounts, n_records: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return posterior means of the coarse counts, with sum n_records, and each cell's even share of them."""
    n_coarse = len(cells.totals)
    totals = estimate_counts(cells.totals, cells.total_scales, np.full(n_coarse, n_records / n_coarse))
    totals = _scale_to_sum(totals, n_records)
    return totals, (totals / cells.n_parts)[cells.parents]


def _scale_to_totals(
    weights: NDArray[np.float64], totals: NDArray[np.float64], parents: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Scale weights so that those of each coarse cell add up to its total."""
    sums = np.bincount(parents, weights, len(totals))
    return weights * np.divide(totals, sums, out=np.zeros_like(sums), where=sums > NOTHING)[parents]


def _scale_to_sum(weights: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    summed = float(weights.sum())
    return weights * (total / summed) if summed > NOTHING else np.zeros_like(weights)
