"""The aggregation step over cells of any sizes: which cells touch, and the regions they make.

Definition 9 of paper 000 joins two cells whose centres, the larger cell's taken at its
child next to the smaller, are less than the smaller side apart. Rounded as it should be,
that distance of two cells that touch *is* the smaller side, so `<` never joins them; here
cells are joined where they share a face, by integers. A core grid (Definition 8) is the
peak of a region, and the threshold θ on the density is not one number but all: a region
counts by its excess of mass, the mass that would have to go for it to vanish.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.cell_tree import grow_cells


@dataclass(frozen=True)
class CellGraph:
    """Cells with what they hold, and for each the cells that share a face with it.

    Attributes
    ----------
    mass : ndarray of shape (n_cells,), float64
        Estimates; negative ones are noise and are taken as they are.
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
    """Components of the cells above some level, each where it met a greater one.

    Attributes
    ----------
    peaks : ndarray of shape (n,), int64
        The cell each grew from, its core; by descending excess after the first, which met
        no other.
    excess : ndarray of shape (n,), float64
        E = S - V * (density where it ended); of the first, infinite.
    mass : ndarray of shape (n,), float64
        S, its mass at that moment.
    """

    peaks: NDArray[np.int64]
    excess: NDArray[np.float64]
    mass: NDArray[np.float64]


def face_pairs(cell_map: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which cells share a face.

    Parameters
    ----------
    cell_map : ndarray of shape (boxes,) * n_features, int64
        The cell of each finest box.

    Returns
    -------
    ndarray of shape (n_pairs, 2), int64
        Each pair once, the smaller number first, ascending.
    """
    n_cells = int(cell_map.max()) + 1
    keys = [np.empty(0, dtype=np.int64)]
    for axis in range(cell_map.ndim):
        moved = np.moveaxis(cell_map, axis, 0)
        one, other = moved[:-1].ravel(), moved[1:].ravel()
        low, high = np.minimum(one, other), np.maximum(one, other)
        keys.append((low * n_cells + high)[low != high])
    pairs = np.unique(np.concatenate(keys))
    return np.stack([pairs // n_cells, pairs % n_cells], axis=1)


def cell_graph(mass: NDArray[np.float64], volume: NDArray[np.float64], pairs: NDArray[np.int64]) -> CellGraph:
    """The graph of cells that share faces; `pairs` as `face_pairs` gives them."""
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
    first = np.searchsorted(ends[:, 0], np.arange(len(mass) + 1))
    return CellGraph(mass, volume, first.astype(np.int64), np.ascontiguousarray(ends[:, 1]))


def cell_bumps(graph: CellGraph, core_density: float = 0.0) -> CellBumps:
    """All bumps of positive excess whose core is denser than this (1 is the mean), and the one that met no other."""
    parent, saddle, excess, total = _grow(graph, np.empty(0, dtype=np.int64))
    survivor = parent[0]  # every cell ended in it: a box is in one piece
    is_core = graph.mass > core_density * graph.volume
    (peaks,) = np.nonzero((saddle >= 0) & (excess > 0) & is_core)
    peaks = peaks[np.argsort(-excess[peaks], kind="stable")]
    return CellBumps(
        np.concatenate([[survivor], peaks]),
        np.concatenate([[np.inf], excess[peaks]]),
        np.concatenate([[total[survivor]], total[peaks]]),
    )


def cell_regions(graph: CellGraph, peaks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The region of each cell: up to the bump it is joined to at the highest level.

    Parameters
    ----------
    graph : CellGraph
    peaks : ndarray of shape (n,), int64
        Of the bumps that are kept, with the one that met no other.

    Returns
    -------
    ndarray of shape (n_cells,), int64
        0 .. n-1, in the order of `peaks`; each has at least its peak.
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
