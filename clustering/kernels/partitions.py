"""Which cell of a partition a record lies in: by halved boxes, by pairs of centres, by a hash."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def descend_boxes(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    features: NDArray[np.int64],  # IN (m,), the feature a box is halved along; -1 for a leaf
    middles: NDArray[np.int64],  # IN (m,), the first lattice place of its upper half
    first: NDArray[np.int64],  # IN (m,), its lower half, which the upper half follows; -1 for a leaf
    numbers: NDArray[np.int64],  # IN (m,), of a leaf: its cell, or -1 for none
    cells: NDArray[np.int64],  # OUT (n,)
) -> None:
    """Go down from the whole box, node 0, to the leaf that holds each record."""
    for i in range(points.shape[0]):
        node = 0
        while first[node] >= 0:
            node = first[node] + (1 if points[i, features[node]] >= middles[node] else 0)
        cells[i] = numbers[node]


@njit(cache=True, nogil=True)
def descend_pairs(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    centres: NDArray[np.int64],  # IN (m, d), lattice places; node 0 is everybody
    first: NDArray[np.int64],  # IN (m,), the first of a node's pair, which the second follows; -1 for a leaf
    numbers: NDArray[np.int64],  # IN (m,), of a leaf: its cell, or -1 for none
    cells: NDArray[np.int64],  # OUT (n,)
) -> None:
    """Go down from everybody to the nearer of each pair of centres, the first where both are as near."""
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
    """A cell for every place of the lattice, as if drawn at random: SplitMix64's finaliser over its coordinates."""
    for i in range(points.shape[0]):
        mixed = seed
        for j in range(points.shape[1]):
            mixed = (mixed ^ np.uint64(points[i, j])) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
        cells[i] = np.int64(((mixed >> np.uint64(32)) * np.uint64(n_cells)) >> np.uint64(32))
