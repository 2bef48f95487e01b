"""Adjacency of cells of any size, and their regions by excess of mass.

Definition 9 of Zhang et al. 2023 joins two cells if their centres are less than the smaller side apart;
for the larger cell it uses the child next to the smaller cell. With correct rounding, the
distance of two touching cells *equals* the smaller side, so `<` never joins them. Here cells
are joined if they share a face, by integer arithmetic. A core grid (Definition 8) is the peak
of a region. All density thresholds θ are used at once: a region's significance is its excess
of mass, the mass to remove for it to vanish.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.cells import grow_cells


@dataclass(frozen=True)
class CellGraph:
    """Cells with their mass, and the cells that share a face with each.

    Attributes
    ----------
    mass : ndarray of shape (n_cells,), float64
        Estimates, which may be negative.
    volume : ndarray of shape (n_cells,), float64
        Above zero.
    first, neighbours : ndarray of shape (n_cells + 1,) and (2 n_pairs,), int64
        Neighbours of cell i are ``neighbours[first[i]:first[i + 1]]``.
    """

    mass: NDArray[np.float64]
    volume: NDArray[np.float64]
    first: NDArray[np.int64]
    neighbours: NDArray[np.int64]


@dataclass(frozen=True)
class CellBumps:
    """Components of the cells above a level, each where it meets a greater one.

    Attributes
    ----------
    peaks : ndarray of shape (n,), int64
        Core cell of each component. The last component is first, the others follow by
        descending excess.
    excess : ndarray of shape (n,), float64
        E = S - V * (density of the saddle); infinite for the last component.
    mass : ndarray of shape (n,), float64
        S, its mass at the saddle's level.
    """

    peaks: NDArray[np.int64]
    excess: NDArray[np.float64]
    mass: NDArray[np.float64]


def face_pairs(cell_map: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs of cells that share a face.

    Parameters
    ----------
    cell_map : ndarray of shape (boxes,) * n_features, int64
        Cell of each finest box.

    Returns
    -------
    ndarray of shape (n_pairs, 2), int64
        Each pair once, the smaller number first, ascending.
    """
    n_cells = int(cell_map.max()) + 1
    keys = [np.empty(0, dtype=np.int64)]
    for axis in range(cell_map.ndim):
        swapped = np.moveaxis(cell_map, axis, 0)
        one, other = swapped[:-1].ravel(), swapped[1:].ravel()
        low, high = np.minimum(one, other), np.maximum(one, other)
        keys.append((low * n_cells + high)[low != high])
    pairs = np.unique(np.concatenate(keys))
    return np.stack([pairs // n_cells, pairs % n_cells], axis=1)


def cell_graph(mass: NDArray[np.float64], volume: NDArray[np.float64], pairs: NDArray[np.int64]) -> CellGraph:
    """Return the graph of cells that share faces, from the result of `face_pairs`."""
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
    first = np.searchsorted(ends[:, 0], np.arange(len(mass) + 1))
    return CellGraph(mass, volume, first.astype(np.int64), np.ascontiguousarray(ends[:, 1]))


def cell_bumps(graph: CellGraph, core_density: float = 0.0) -> CellBumps:
    """Return the last component, and all bumps of positive excess with a core above a density (1 is the mean)."""
    parent, saddle, excess, total = _grow(graph, np.empty(0, dtype=np.int64))
    survivor = parent[0]  # all cells end in the last component, because a box is connected
    is_core = graph.mass > core_density * graph.volume
    (peaks,) = np.nonzero((saddle >= 0) & (excess > 0) & is_core)
    peaks = peaks[np.argsort(-excess[peaks], kind="stable")]
    return CellBumps(
        np.concatenate([[survivor], peaks]),
        np.concatenate([[np.inf], excess[peaks]]),
        np.concatenate([[total[survivor]], total[peaks]]),
    )


def cell_regions(graph: CellGraph, peaks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the region of each cell: the bump it connects to at the highest level.

    Parameters
    ----------
    graph : CellGraph
    peaks : ndarray of shape (n,), int64
        Peaks of the selected bumps, including the last component.

    Returns
    -------
    ndarray of shape (n_cells,), int64
        0 .. n-1, in the order of `peaks`; each region contains its peak.
    """
    parent, _, _, _ = _grow(graph, peaks)
    number = np.empty(len(parent), dtype=np.int64)
    number[peaks] = np.arange(len(peaks))
    return np.asarray(number[parent], dtype=np.int64)


def _grow(graph: CellGraph, peaks: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    n = len(graph.mass)
    order = np.argsort(-graph.mass / graph.volume, kind="stable")
    kept = np.zeros(n, dtype=np.bool_)
    kept[peaks] = True
    parent, saddle = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    excess, total = np.zeros(n), np.zeros(n)
    grow_cells(graph.mass, graph.volume, order, graph.first, graph.neighbours, kept, parent, saddle, excess, total)
    return parent, saddle, excess, total
