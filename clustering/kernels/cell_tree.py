"""The excess-of-mass tree over cells of any sizes: one pass from the densest cell down.

The pass of `clustering.kernels.excess_mass`, over a graph instead of a regular grid.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def _root(parent: NDArray[np.int64], cell: int) -> int:
    while parent[cell] != cell:
        parent[cell] = parent[parent[cell]]
        cell = parent[cell]
    return cell


@njit(cache=True, nogil=True)
def grow_cells(
    mass: NDArray[np.float64],  # IN (n,)
    volume: NDArray[np.float64],  # IN (n,), above 0
    order: NDArray[np.int64],  # IN (n,), cells in descending density
    first: NDArray[np.int64],  # IN (n + 1,), where each cell's neighbours begin
    neighbours: NDArray[np.int64],  # IN (2 n_pairs,)
    kept: NDArray[np.bool_],  # IN (n,), peaks whose components never merge with one another
    parent: NDArray[np.int64],  # OUT (n,), -1 before; then each cell's component, by its peak
    saddle: NDArray[np.int64],  # OUT (n,), -1 before; by peak: the cell at which its component ended
    excess: NDArray[np.float64],  # OUT (n,), by peak: E = S - V * level when its component ended
    total: NDArray[np.float64],  # OUT (n,), zero before; by peak: S, its mass at that moment
) -> None:
    """Add cells in descending density; where components meet, the one with less excess mass ends.

    A component is known by its peak. Two components with `kept` peaks stay apart, and a kept
    one never ends in one that is not. A peak that ended in no other keeps saddle = -1.
    """
    size = np.zeros(mass.size)  # V of each component so far, at its peak
    for t in range(order.size):
        cell = order[t]
        level = mass[cell] / volume[cell]
        parent[cell] = cell
        steepest, steepest_density = -1, 0.0
        for e in range(first[cell], first[cell + 1]):
            other = neighbours[e]
            if parent[other] >= 0:
                density = mass[other] / volume[other]
                if steepest < 0 or density > steepest_density:
                    steepest, steepest_density = other, density
        home = cell
        if steepest >= 0:
            home = _root(parent, steepest)
            parent[cell] = home
        total[home] += mass[cell]
        size[home] += volume[cell]
        for e in range(first[cell], first[cell + 1]):
            if parent[neighbours[e]] < 0:
                continue
            a, b = _root(parent, cell), _root(parent, neighbours[e])
            if a == b or (kept[a] and kept[b]):
                continue
            excess_a = total[a] - size[a] * level
            excess_b = total[b] - size[b] * level
            # b ends: it is not kept, or (where neither is) has less excess; on a tie, a is the steeper side
            if kept[b] or (not kept[a] and excess_b > excess_a):
                a, b = b, a
                excess_b = excess_a
            saddle[b], excess[b] = cell, excess_b
            parent[b] = a
            total[a] += total[b]
            size[a] += size[b]
    for cell in order:
        parent[cell] = _root(parent, cell)
