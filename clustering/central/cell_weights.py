"""How much each noisy cell weighs in k-means: what stands out of noise, or some of that and some of what is likely."""

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.central.empirical_bayes import posterior
from clustering.central.two_level_grid import CellCounts

# q is N epsilon / k, records of a cluster in units of the noise
HARD_FROM = 100.0  # q from which what stands out is taken as it is
LIKELY_SHARE = 0.6  # of likely weights, below

ALONE = 5.0  # scales of noise more that a coarse cell must stand out by, where no neighbour does
STANDS_OUT = 1.5  # a cell counts above so many standard deviations of its noise
LEAST_CELLS = 2  # for each cluster: with fewer the gate is lifted
NOTHING = 1e-290  # a sum that underflowed: to divide by it gives no number


def weights_of(cells: CellCounts, n_records: float, n_clusters: int, q: float) -> NDArray[np.float64]:
    """Weights of cells by how much noise there is.

    Parameters
    ----------
    cells : CellCounts
    n_records : float
        Noisy, at least 1.
    n_clusters : int
    q : float

    Returns
    -------
    ndarray of shape (n,), float64
        None negative, of sum n_records where any is positive.
    """
    hard = _scaled(hard_weights(cells, n_clusters), n_records)
    if q >= HARD_FROM:
        return hard
    likely = _scaled(likely_weights(cells, n_records), n_records)
    return (1 - LIKELY_SHARE) * hard + LIKELY_SHARE * likely if hard.any() else likely


def hard_weights(cells: CellCounts, n_clusters: int) -> NDArray[np.float64]:
    """Counts of cells that stand out, in coarse cells that stand out; ungated where those are too few."""
    weights = _kept(cells, _stand_out(cells))
    if (weights > 0).sum() < LEAST_CELLS * n_clusters:
        weights = _kept(cells, np.ones(len(cells.totals), dtype=np.bool_))
    if (weights > 0).sum() < LEAST_CELLS * n_clusters:
        weights = np.maximum(cells.counts, 0)
    return weights


def _stand_out(cells: CellCounts) -> NDArray[np.bool_]:
    """Coarse cells above ln K scales of their noise, K coarse cells; a cell none of whose neighbours is, by more.

    Noise lifts about one empty cell in two grids above ln K. Next to others it does little harm; alone, in a
    box much wider than the data, it draws a centre to itself.
    """
    least = log(len(cells.totals))
    sizes = cells.totals / cells.total_scales
    is_above = sizes > least
    return is_above & (_has_neighbour(is_above, cells.coarse_shape) | (sizes > least + ALONE))


def _has_neighbour(marked: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Whether another marked cell touches each, by a side or a corner."""
    near = marked.reshape(shape).astype(np.int64)
    for axis in range(len(shape)):
        wide = np.pad(near, [(1, 1) if j == axis else (0, 0) for j in range(len(shape))])
        windows = [np.take(wide, np.arange(shape[axis]) + step, axis=axis) for step in range(3)]
        near = windows[0] + windows[1] + windows[2]
    return np.asarray(near.ravel() > marked, dtype=np.bool_)


def _kept(cells: CellCounts, stands_out: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Counts of the cells that stand out, scaled to their coarse cells' totals; zero elsewhere."""
    is_alone = cells.n_parts[cells.parents] == 1
    least = np.where(is_alone, 0, STANDS_OUT * sqrt(2) * cells.scales)
    weights = np.where(stands_out[cells.parents] & (cells.counts > least), cells.counts, 0)
    return _fitted(weights, np.maximum(cells.totals, 0), cells.parents)


def likely_weights(cells: CellCounts, n_records: float) -> NDArray[np.float64]:
    """Posterior means of the cells' counts, expected even within each coarse cell, scaled to its posterior mean."""
    totals, expected = expected_counts(cells, n_records)
    return _fitted(posterior(cells.counts, cells.scales, expected), totals, cells.parents)


def expected_counts(cells: CellCounts, n_records: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Posterior means of the coarse cells' counts, of sum n_records, and each cell's even part of its own."""
    n_coarse = len(cells.totals)
    totals = posterior(cells.totals, cells.total_scales, np.full(n_coarse, n_records / n_coarse))
    totals = _scaled(totals, n_records)
    return totals, (totals / cells.n_parts)[cells.parents]


def _fitted(
    weights: NDArray[np.float64], totals: NDArray[np.float64], parents: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Weights scaled so that those of a coarse cell add up to its total."""
    sums = np.bincount(parents, weights, len(totals))
    return weights * np.divide(totals, sums, out=np.zeros_like(sums), where=sums > NOTHING)[parents]


def _scaled(weights: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    summed = float(weights.sum())
    return weights * (total / summed) if summed > NOTHING else np.zeros_like(weights)
