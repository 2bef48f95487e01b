"""Errors of centres that the cells of a noisy grid cause. They depend on query answers only, so they cost nothing.

A centre is a mean of the middles of cells. It is off for two reasons beside the noise of the counts:

- The place of records within their cell is unknown. It matters for a cluster in few cells, and for cells that are
  larger than the others of the cluster. Between equal cells of a wide cluster these errors cancel out.
- Noise lifts some empty cells above the gate. Together they pull a centre towards the middle of its coarse cell.
"""

from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.central.private_kmeans.cell_weights import HARD_FROM, POSTERIOR_SHARE, STANDS_OUT
from clustering.central.private_kmeans.gated_grid import CellErrors, FoundClusters, WeighedCells, find_nearest
from clustering.central.private_kmeans.two_level_grid import GridCounts
from clustering.centroids.verdict import GOOD_LOSS, Ground, ground
from clustering.circles import Circles
from sfumato.model.precision import Verdict

NARROW = 0.97  # share of two slabs, of them and their neighbours, from which a cluster is narrower than a cell
LARGER = 1.2  # typical sides from which the places within a cell do not cancel out
UNCLEAR = 6.0  # noise scales below which a cell may be empty

UNKNOWN_WIDTH = "The clusters are narrower than a cell of the noisy grid, so the loss of these centroids is unknown."

# mean of Laplace noise of scale 1 where it exceeds the gate, and 0 elsewhere
_GATE = STANDS_OUT * sqrt(2)
KEPT_NOISE = (_GATE + 1) * exp(-_GATE) / 2


def find_cell_errors(
    counts: GridCounts, cells: WeighedCells, centres: NDArray[np.float64], noise: NDArray[np.float64], q: float
) -> CellErrors:
    """Return the squared errors of centres from the width of cells and from the empty cells with a weight.

    Along each feature, cells with one place form a slab. With the shares p of its slabs and their sides h, a cluster
    has the variance sum (p h)^2 / 12 if the places within slabs are uniform and independent. That is true for a
    cluster in one slab. Between equal slabs of a wide cluster they are dependent, and their errors cancel out. So equal
    slabs count by (sum p^2)^2, which is 1 for one slab, and .08 for a normal cluster with a deviation of one side.

    Parameters
    ----------
    counts : GridCounts
    cells : WeighedCells
        The cells of the counts with their weights.
    centres : ndarray of shape (k, n_features)
        Each cell belongs to its nearest centre.
    noise : ndarray of shape (k,)
        Variance of each coordinate of a centre from the noise of the weights. A cluster is narrower than a cell only
        if the width of the cell matters more.
    q : float
        N epsilon / k.

    Returns
    -------
    CellErrors
        The variances are those of points on circles for periodic features.
    """
    circles = Circles(len(counts.coarse_shape), counts.circles)
    labels, _ = find_nearest(cells.middles, centres)
    along = circles.along(cells.middles)
    kept = _kept_noise(counts, cells.weights, q)
    variances = np.zeros(centres.shape)
    narrow = np.zeros((len(centres), circles.n_along), dtype=np.bool_)
    for j, centre in enumerate(centres):
        own = np.flatnonzero(labels == j)
        mass = float(cells.weights[own].sum())
        if mass <= 0:
            continue
        pulls = kept[own] @ (cells.middles[own] - centre) / mass
        weighed = own[cells.weights[own] > 0]
        widths, narrow[j] = _slab_variances(
            along[weighed], cells.weights[weighed] / mass, counts.sides[weighed], circles
        )
        narrow[j] &= widths > noise[j]
        variances[j] = widths[circles.sources] + pulls**2
    return CellErrors(variances, narrow)


def describe_narrow(narrow: NDArray[np.bool_]) -> list[str]:
    """Return the warning about clusters that are narrower than a cell, if there are any: `CellErrors.narrow`."""
    n_narrow, k = int(narrow.any(axis=1).sum()), len(narrow)
    if n_narrow == 0:
        return []
    part = "The cluster is" if k == 1 else f"{n_narrow} of {k} clusters {'is' if n_narrow == 1 else 'are'}"
    return [
        f"{part} narrower than a cell of the noisy grid. A centre can be anywhere in its cell, and the stated errors "
        "contain this. Narrower bounds, more records or a larger epsilon make the cells smaller."
    ]


def judge_width(found: FoundClusters, errors: CellErrors) -> Ground:
    """Return the ground of clusters that are each in one cell, so that their width is unknown.

    The loss relative to the best centroids is unknown with it, unless wider clusters have most of the loss.
    """
    unknown = errors.narrow.all(axis=1)
    masses = np.maximum(found.counts, 0.0)
    lost = float(masses[unknown] @ errors.variances[unknown].sum(axis=1))
    within = float(masses[~unknown] @ found.spreads[~unknown] ** 2)
    return ground(Verdict.UNCERTAIN, UNKNOWN_WIDTH, applies=lost > (GOOD_LOSS - 1) * within)


def _kept_noise(counts: GridCounts, weights: NDArray[np.float64], q: float) -> NDArray[np.float64]:
    """Return the mean weight that noise gives to each cell which may be empty."""
    has_weight = np.bincount(counts.parents, weights, len(counts.totals)) > 0
    is_gated = has_weight[counts.parents] & (counts.n_parts[counts.parents] > 1)
    hard = 1.0 if q >= HARD_FROM else 1 - POSTERIOR_SHARE
    return np.where(is_gated & (weights < UNCLEAR * counts.scales), hard * KEPT_NOISE * counts.scales, 0.0)


def _slab_variances(
    along: NDArray[np.float64], shares: NDArray[np.float64], sides: NDArray[np.float64], circles: Circles
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the variance of a centre from the places within slabs along each feature, and where two slabs decide."""
    order = np.argsort(sides, kind="stable")
    summed = np.cumsum(shares[order])
    side = float(sides[order[np.searchsorted(summed, summed[-1] / 2)]])  # half of the records are in smaller cells
    away = along - along[int(np.where(sides == side, shares, 0.0).argmax())]
    on_circle = list(circles.places)
    away[:, on_circle] -= np.rint(away[:, on_circle])
    variances, narrow = np.empty(circles.n_along), np.empty(circles.n_along, dtype=np.bool_)
    for feature in range(circles.n_along):
        slabs = np.floor(away[:, feature] / side + 0.5).astype(np.int64)
        slabs -= slabs.min()
        p = np.bincount(slabs, shares).astype(np.float64)
        of_sides = np.bincount(slabs, shares * sides)  # p times the mean side
        concentration = float((p**2).sum())
        unresolved = np.where(of_sides > LARGER * side * p, 1.0, concentration**2)
        variances[feature] = float(unresolved @ of_sides**2) / 12
        narrow[feature] = _is_in_two_slabs(p)
    return variances, narrow


def _is_in_two_slabs(p: NDArray[np.float64]) -> bool:
    """Return whether two neighbouring slabs have the records of a cluster. Noise in slabs farther away is left out.

    A normal cluster is in two slabs if its deviation is at most a quarter of their side, and sometimes up to .45.
    """
    pairs = np.convolve(p, [1, 1])
    first = int(pairs.argmax())
    near = np.pad(p, 2)[first : first + 4].sum()
    return bool(pairs[first] > NARROW * near)
