"""The excess-of-mass tree: one pass over a grid's cells from the densest down.

Grids come flat and padded by a border of one cell, so that a neighbour is an offset and
no cell needs to know where it lies. The border is never in `order`.
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
def grow_components(
    density: NDArray[np.float64],  # IN (n_padded,)
    order: NDArray[np.int64],  # IN (n,), cells in descending density
    offsets: NDArray[np.int64],  # IN (3**d - 1,), from a cell to its neighbours
    kept: NDArray[np.bool_],  # IN (n_padded,), peaks whose components never merge with one another
    parent: NDArray[np.int64],  # OUT (n_padded,), -1 before; then each cell's component, by its peak
    saddle: NDArray[np.int64],  # OUT (n_padded,), -1 before; by peak: the cell at which its component ended
    excess: NDArray[np.float64],  # OUT (n_padded,), by peak: E = S - C * level when its component ended
    mass: NDArray[np.float64],  # OUT (n_padded,), by peak: S, sum of density, at that moment
) -> None:
    """Add cells in descending density; where components meet, the one with less excess mass ends.

    A component is known by its peak. Two components with `kept` peaks stay apart; what they
    record is their first contact. A kept one never ends in one that is not kept. A peak
    that never met another keeps saddle = -1.
    """
    total = np.zeros(density.size)  # S of each component so far, at its peak
    size = np.zeros(density.size, dtype=np.int64)  # C
    for t in range(order.size):
        cell = order[t]
        level = density[cell]
        parent[cell] = cell
        steepest = -1
        for offset in offsets:
            other = cell + offset
            if parent[other] >= 0 and (steepest < 0 or density[other] > density[steepest]):
                steepest = other
        home = cell
        if steepest >= 0:
            home = _root(parent, steepest)
            parent[cell] = home
        total[home] += level
        size[home] += 1
        for offset in offsets:
            if parent[cell + offset] < 0:
                continue
            a, b = _root(parent, cell), _root(parent, cell + offset)
            if a == b:
                continue
            excess_a = total[a] - size[a] * level
            excess_b = total[b] - size[b] * level
            if kept[a] and kept[b]:
                for peak, e in ((a, excess_a), (b, excess_b)):
                    if saddle[peak] < 0:
                        saddle[peak], excess[peak], mass[peak] = cell, e, total[peak]
                continue
            # b ends: it is not kept, or (where neither is) has less excess; on a tie, a is the steeper side
            if kept[b] or (not kept[a] and excess_b > excess_a):
                a, b = b, a
                excess_b = excess_a
            saddle[b], excess[b], mass[b] = cell, excess_b, total[b]
            parent[b] = a
            total[a] += total[b]
            size[a] += size[b]
    for cell in order:
        parent[cell] = _root(parent, cell)
