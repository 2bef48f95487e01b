"""Share of the people at the bounds: values outside of the bounds that were moved there.

A region is where some features are in the outermost cells of a grid, each at its lower or upper bound, and all others
are not. Clipped values lie exactly at a bound, so a region holds more people than the cells beside it explain. A
log-concave density declines at most geometrically: its edge cell holds at most f1^2 / f2 if the next two cells hold
f1 and f2 (Prékopa, 1973: its integrals over equal cells are log-concave). Only what exceeds this counts, so that a
tail or a wide cluster at a bound is not taken for clipped values.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.model.outside import CLEAR, EdgeShare

STEEPEST = 10.0  # largest decline from one cell to the next that is granted to a density
THINNEST = 8  # outermost cells wider than this part of a feature's range show no clipped values
MAX_REGIONS = 1 << 10
LEAST = 2.5  # standard errors above zero from which a region counts
CERTAIN = 3.5  # standard errors above zero from which a share is stated

NAMED = 0.1  # part of the share from which the bounds of a region are named

LOWER, BETWEEN, UPPER = -1, 0, 1


class EdgeGrid(NamedTuple):
    """Estimated shares of the cells of a grid. Its outermost cells can be thinner than the others.

    Attributes
    ----------
    shares : ndarray of shape (cells,) * d, float64
    weight : float
        Number of reports or records.
    spread, slope : float
        The variance of sum(w * share) is at most spread * sum(w**2) + slope * sum(w**2 * share).
    widths : sequence of two floats for each feature
        Shares of the range of the outermost cells at the lower and the upper bound.
    whole : sequence of float
        Shares of the range of the other cells of each feature.
    endless : tuple of int
        Indices of the features with no values beyond their bounds.
    """

    shares: NDArray[np.float64]
    weight: float
    spread: float
    slope: float
    widths: Sequence[tuple[float, float]]
    whole: Sequence[float]
    endless: tuple[int, ...] = ()


class _Region(NamedTuple):
    """The shares of a region and of the cells beside it in one grid."""

    weight: float
    own: float
    near: float
    expected: float  # share of the region if its density were that of the cells beside it
    far: float
    own_variance: float
    near_variance: float
    expected_variance: float
    far_variance: float


def find_edge_share(grids: Iterable[EdgeGrid]) -> EdgeShare | None:
    """Return the share of the people at the bounds, if it stands out from its neighbours, else None.

    A region counts if noise alone makes fewer than one region count. The share is stated if it is more than `CERTAIN`
    standard errors above zero.

    Parameters
    ----------
    grids : iterable of EdgeGrid
        Independent estimates for the same people.
    """
    regions: dict[tuple[int, ...], list[_Region]] = {}
    for grid in grids:
        for pattern, region in _regions(grid):
            regions.setdefault(pattern, []).append(region)
    threshold = max(sqrt(2 * log(max(len(regions), 1))), LEAST)
    found = {pattern: _excess(parts) for pattern, parts in regions.items()}
    found = {pattern: each for pattern, each in found.items() if each[0] > threshold * sqrt(each[1])}
    value, variance = (sum(column) for column in zip((0.0, 0.0), *found.values(), strict=True))
    if value <= CERTAIN * sqrt(variance):
        return None
    named = [pattern for pattern, each in found.items() if each[0] >= NAMED * value]
    sides = {(feature, side) for pattern in named for feature, side in enumerate(pattern) if side}
    return EdgeShare(min(value, 1.0), sqrt(variance), tuple(sorted(sides)))


def shows_edges(grids: Iterable[EdgeGrid]) -> bool:
    """Return whether a grid has a region with outermost cells thin enough to show people at the bounds."""
    return any(True for grid in grids for _ in _regions(grid))


def _regions(grid: EdgeGrid) -> Iterator[tuple[tuple[int, ...], _Region]]:
    """Yield each region with thin outermost cells, by the sides of its features."""
    if grid.weight <= 0 or 3**grid.shares.ndim > MAX_REGIONS:
        return
    n_cells = [n for feature, n in enumerate(grid.shares.shape) if feature not in grid.endless]
    sides = [(BETWEEN,) if place in grid.endless else (LOWER, BETWEEN, UPPER) for place in range(grid.shares.ndim)]
    for pattern in product(*sides):
        widths = [ends[side > 0] for side, ends in zip(pattern, grid.widths, strict=True) if side]
        whole = [size for side, size in zip(pattern, grid.whole, strict=True) if side]
        if not widths or max(widths) * THINNEST > 1 or min(n_cells) < 2 * 3:
            continue
        part = float(np.prod(widths) / np.prod(whole))
        own, near, far = (float(grid.shares[_cells_of(grid, pattern, step)].sum()) for step in range(3))
        size = grid.shares[_cells_of(grid, pattern, 0)].size
        noises = [grid.spread * size + grid.slope * max(share, 0.0) for share in (own, near, far)]
        yield (
            pattern,
            _Region(grid.weight, own, near, part * near, far, noises[0], noises[1], part**2 * noises[1], noises[2]),
        )


def _cells_of(grid: EdgeGrid, pattern: tuple[int, ...], step: int) -> tuple[slice, ...]:
    """Return the cells of a region, moved inwards by some cells along its features at a bound."""
    shape = grid.shares.shape
    starts = [{LOWER: step, BETWEEN: 1, UPPER: n - 1 - step}[side] for side, n in zip(pattern, shape, strict=True)]
    parts = [slice(start, start + 1 if side else n - 1) for start, side, n in zip(starts, pattern, shape, strict=True)]
    return tuple(slice(None) if feature in grid.endless else part for feature, part in enumerate(parts))


def _excess(parts: Sequence[_Region]) -> tuple[float, float]:
    """Return the people of a region beyond those that its neighbours explain, and the variance of their share."""
    weights = np.array([part.weight for part in parts], dtype=np.float64)
    weights /= weights.sum()
    table = np.array([part[1:] for part in parts])
    own, near, expected, far = weights @ table[:, :4]
    own_variance, near_variance, expected_variance, far_variance = weights**2 @ table[:, 4:]
    decline, noise = 1.0, sqrt(near_variance + far_variance)
    if abs(near - far) > CLEAR * noise:
        decline = float(np.clip(max(near, 0.0) / max(far, noise), 0.0, STEEPEST))
    return float(own - decline * expected), float(own_variance + decline**2 * expected_variance)
