"""Cells of partitions: excess-of-mass trees over cells, and the cell of each record in grids and trees."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def _root(parent: NDArray[np.int64], cell: int) -> int:
    """Return the peak of a cell's component and halve the path to it (union-find)."""
    while parent[cell] != cell:
        parent[cell] = parent[parent[cell]]
        cell = parent[cell]
    return cell


@njit(cache=True, nogil=True)
def grow_components(
    density: NDArray[np.float64],  # IN (n_padded,)
    order: NDArray[np.int64],  # IN (n,), cells in descending density
    offsets: NDArray[np.int64],  # IN (3**d - 1,), from a cell to its neighbours
    same: NDArray[np.int64],  # IN (n_padded,), cell that each index stands for: itself, or one at the end of a circle
    kept: NDArray[np.bool_],  # IN (n_padded,), peaks with components that never merge with each other
    parent: NDArray[np.int64],  # OUT (n_padded,), initially -1; then the peak of each cell's component
    saddle: NDArray[np.int64],  # OUT (n_padded,), initially -1; by peak: the cell at which its component ended
    excess: NDArray[np.float64],  # OUT (n_padded,), by peak: E = S - C * level when its component ended
    mass: NDArray[np.float64],  # OUT (n_padded,), by peak: S, the sum of density, when its component ended
) -> None:
    """Build the excess-of-mass tree of a regular grid.

    Cells are added in descending density. When two components meet, the one with less excess mass ends.
    A component is identified by its peak. Two components with `kept` peaks do not merge; their first
    contact is recorded. A kept component never ends in one that is not kept. A peak that meets no other
    component keeps saddle = -1.

    The grid is flat and padded by a border of one cell, so that a neighbour is an index offset. `order`
    never contains border cells. On a circle, a border cell stands for the cell at the other end.
    """
    total = np.zeros(density.size)  # S of each current component, at its peak
    size = np.zeros(density.size, dtype=np.int64)  # C
    for t in range(order.size):
        cell = order[t]
        level = density[cell]
        parent[cell] = cell
        steepest = -1
        for offset in offsets:
            other = same[cell + offset]
            if parent[other] >= 0 and (steepest < 0 or density[other] > density[steepest]):
                steepest = other
        home = cell
        if steepest >= 0:
            home = _root(parent, steepest)
            parent[cell] = home
        total[home] += level
        size[home] += 1
        for offset in offsets:
            other = same[cell + offset]
            if parent[other] < 0:
                continue
            a, b = _root(parent, cell), _root(parent, other)
            if a == b:
                continue
            excess_a = total[a] - size[a] * level
            excess_b = total[b] - size[b] * level
            if kept[a] and kept[b]:
                for peak, e in ((a, excess_a), (b, excess_b)):
                    if saddle[peak] < 0:
                        saddle[peak], excess[peak], mass[peak] = cell, e, total[peak]
                continue
            # b ends: it is not kept, or neither is and b has less excess mass. On a tie, a is the steeper side.
            if kept[b] or (not kept[a] and excess_b > excess_a):
                a, b = b, a
                excess_b = excess_a
            saddle[b], excess[b], mass[b] = cell, excess_b, total[b]
            parent[b] = a
            total[a] += total[b]
            size[a] += size[b]
    for cell in order:
        parent[cell] = _root(parent, cell)


@njit(cache=True, nogil=True)
def lower_to_peak(
    density: NDArray[np.float64],  # IN (n_padded,)
    inside: NDArray[np.int64],  # IN (n,), cells in ascending order
    offsets: NDArray[np.int64],  # IN (3**d - 1,), from a cell to its neighbours
    same: NDArray[np.int64],  # IN (n_padded,), as in `grow_components`
    level: NDArray[np.float64],  # IN OUT (n_padded,), initially the density of the peak there, and 0 elsewhere
) -> None:
    """Lower each cell to the highest level at which it connects to the peak: the maximum over paths of their minimum.

    Passes through the grid forwards and backwards, until one changes nothing (Vincent 1993, "Morphological Grayscale
    Reconstruction in Image Analysis", section 4.2).
    """
    n, is_changed, is_forward = inside.size, True, True
    while is_changed:
        is_changed = False
        for _ in range(2):
            for t in range(n):
                cell = inside[t] if is_forward else inside[n - 1 - t]
                best = level[cell]
                for offset in offsets:
                    best = max(best, level[same[cell + offset]])
                best = min(best, density[cell])
                if best > level[cell]:
                    level[cell] = best
                    is_changed = True
            is_forward = not is_forward


@njit(cache=True, nogil=True)
def grow_cells(
    mass: NDArray[np.float64],  # IN (n,)
    volume: NDArray[np.float64],  # IN (n,), positive
    order: NDArray[np.int64],  # IN (n,), cells in descending density
    first: NDArray[np.int64],  # IN (n + 1,), start of each cell's neighbours
    neighbours: NDArray[np.int64],  # IN (2 n_pairs,)
    kept: NDArray[np.bool_],  # IN (n,), peaks with components that never merge with each other
    parent: NDArray[np.int64],  # OUT (n,), initially -1; then the peak of each cell's component
    saddle: NDArray[np.int64],  # OUT (n,), initially -1; by peak: the cell at which its component ended
    excess: NDArray[np.float64],  # OUT (n,), by peak: E = S - V * level when its component ended
    total: NDArray[np.float64],  # OUT (n,), initially 0; by peak: S, the mass when its component ended
) -> None:
    """Build the excess-of-mass tree of a graph of cells of any sizes.

    Like `grow_components`, except that the first contact of two kept components is not recorded.
    """
    size = np.zeros(mass.size)  # V of each current component, at its peak
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
            # b ends: it is not kept, or neither is and b has less excess mass. On a tie, a is the steeper side.
            if kept[b] or (not kept[a] and excess_b > excess_a):
                a, b = b, a
                excess_b = excess_a
            saddle[b], excess[b] = cell, excess_b
            parent[b] = a
            total[a] += total[b]
            size[a] += size[b]
    for cell in order:
        parent[cell] = _root(parent, cell)


@njit(cache=True, nogil=True)
def descend_boxes(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    features: NDArray[np.int64],  # IN (m,), feature along which a box is halved; -1 for a leaf
    middles: NDArray[np.int64],  # IN (m,), first lattice place of the upper half
    first: NDArray[np.int64],  # IN (m,), index of the lower half; the upper half follows; -1 for a leaf
    numbers: NDArray[np.int64],  # IN (m,), cell of each leaf, or -1 for none
    cells: NDArray[np.int64],  # OUT (n,)
) -> None:
    """Find the cell of each record by descending from the whole box, node 0, to a leaf."""
    for i in range(points.shape[0]):
        node = 0
        while first[node] >= 0:
            node = first[node] + (1 if points[i, features[node]] >= middles[node] else 0)
        cells[i] = numbers[node]


@njit(cache=True, nogil=True)
def descend_pairs(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    centres: NDArray[np.int64],  # IN (m, d), lattice places; node 0 contains all records
    first: NDArray[np.int64],  # IN (m,), index of the first child; the second follows; -1 for a leaf
    numbers: NDArray[np.int64],  # IN (m,), cell of each leaf, or -1 for none
    cells: NDArray[np.int64],  # OUT (n,)
) -> None:
    """Find the cell of each record by descending to the nearer child centre; the first at equal distances."""
    for i in range(points.shape[0]):
        node = 0
        while first[node] >= 0:
            nearer, least = first[node], np.int64(-1)
            for c in range(first[node], first[node] + 2):
                distance = np.int64(0)
                for j in range(points.shape[1]):
                    step = np.int64(points[i, j]) - centres[c, j]
                    distance += step * step
                if least < 0 or distance < least:
                    nearer, least = c, distance
            node = nearer
        cells[i] = numbers[node]


@njit(cache=True, nogil=True)
def hash_places(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    seed: np.uint64,  # IN, public
    n_cells: int,  # IN, below 2^32
    cells: NDArray[np.int64],  # OUT (n,), 0 .. n_cells-1
) -> None:
    """Hash each lattice place to a pseudo-random cell with the finaliser of SplitMix64 over its coordinates."""
    for i in range(points.shape[0]):
        mixed = seed
        for j in range(points.shape[1]):
            mixed = (mixed ^ np.uint64(points[i, j])) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
        cells[i] = np.int64(((mixed >> np.uint64(32)) * np.uint64(n_cells)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def two_level_cells(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    lattice: int,  # IN, number of places per feature
    n_coarse: int,  # IN, coarse cells per feature
    splits: NDArray[np.int64],  # IN (n_coarse^d,), divisions per feature of each coarse cell, row-major
    starts: NDArray[np.int64],  # IN (n_coarse^d,), index of each coarse cell's first part
    labels: NDArray[np.int64],  # OUT (n,), part that contains each record
) -> None:
    """Find the cell of each record in a two-level grid.

    Borders lie at multiples of 1/n_coarse and 1/(n_coarse split) of the range. Integer arithmetic makes the
    levels nest exactly.
    """
    for i in range(points.shape[0]):
        coarse = np.int64(0)
        for j in range(points.shape[1]):
            coarse = coarse * n_coarse + np.int64(points[i, j]) * n_coarse // lattice
        m = splits[coarse]
        part = np.int64(0)
        for j in range(points.shape[1]):
            scaled = np.int64(points[i, j]) * n_coarse
            part = part * m + scaled * m // lattice - scaled // lattice * m
        labels[i] = starts[coarse] + part


@njit(cache=True, nogil=True)
def descend(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    nodes: NDArray[np.int32],  # IN OUT (n,), node that contains each record
    first_child: NDArray[np.int64],  # IN (n_nodes,), index of a node's lower half; the upper half follows; -1 for none
    feature: int,  # IN, feature that is halved
    bit: int,  # IN, bit of the lattice place that separates the halves
    counts: NDArray[np.int64],  # IN OUT, number of records of each node, added to
) -> None:
    """Move each record of a node with children to one of them, and count it there."""
    for i in range(points.shape[0]):
        child = first_child[nodes[i]]
        if child >= 0:
            child += (points[i, feature] >> bit) & 1
            nodes[i] = child
            counts[child] += 1
