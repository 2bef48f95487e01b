"""k-means on weighted points: one Lloyd step, and distances of points to candidate seeds.

Both work on blocks of points, which stay in the cache. The sums of each point have the order of a loop over that point
alone, so the blocks do not change any bit.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clustering.kernels.nearest import BLOCK, label_block, measure_square, prepare_search

_PARTS = 8  # number of partial sums that numpy uses for a long row


@njit(cache=True, nogil=True)
def weighted_lloyd_step(
    points: NDArray[np.float64],  # IN (n, d)
    weights: NDArray[np.float64],  # IN (n,), non-negative
    centres: NDArray[np.float64],  # IN (k, d)
    labels: NDArray[np.int64],  # OUT (n,), nearest centre; the first at equal distances
    sums: NDArray[np.float64],  # OUT (k, d), weighted sum of each centre's points
    masses: NDArray[np.float64],  # OUT (k,), weight of each centre's points
) -> None:
    """Assign each point to its nearest centre."""
    n, n_features = points.shape
    search = prepare_search(n, centres)
    sums[:] = 0.0
    masses[:] = 0.0
    for begin in range(0, n, search.size):
        size = min(search.size, n - begin)
        label_block(points, begin, size, centres, search, labels)
        for i in range(begin, begin + size):
            own, weight = labels[i], weights[i]
            masses[own] += weight
            for j in range(n_features):
                sums[own, j] += weight * points[i, j]


@njit(cache=True, nogil=True)
def measure_inertia(
    points: NDArray[np.float64],  # IN (n, d)
    weights: NDArray[np.float64],  # IN (n,), non-negative
    centres: NDArray[np.float64],  # IN (k, d)
    labels: NDArray[np.int64],  # IN (n,)
) -> float:
    """Return the weighted sum of squared distances of points from their centres. One that is no number is infinite."""
    inertia = 0.0
    for i in range(points.shape[0]):
        square = measure_square(points, i, centres, labels[i])
        inertia += weights[i] * (square if square < np.inf else np.inf)
    return inertia


@njit(cache=True, nogil=True)
def fill_blocks(
    points: NDArray[np.float64],  # IN (n, d)
    blocks: NDArray[np.float64],  # OUT (n_blocks, d, BLOCK); entries after the last point are unchanged
) -> None:
    """Copy points into blocks in column order."""
    n, n_features = points.shape
    for i in range(n):
        for j in range(n_features):
            blocks[i // BLOCK, j, i % BLOCK] = points[i, j]


@njit(cache=True, nogil=True)
def _add_eight(
    blocks: NDArray[np.float64],  # IN (n_blocks, d, BLOCK)
    b: int,
    tried: NDArray[np.float64],  # IN (t, d)
    t: int,
    totals: NDArray[np.float64],  # OUT (BLOCK,), sums of squares of the first eight features
) -> None:
    """Sum the squares of eight features in the order of numpy's pairwise summation."""
    a0, a1, a2, a3 = tried[t, 0], tried[t, 1], tried[t, 2], tried[t, 3]
    a4, a5, a6, a7 = tried[t, 4], tried[t, 5], tried[t, 6], tried[t, 7]
    for i in range(BLOCK):
        s0, s1, s2, s3 = blocks[b, 0, i] - a0, blocks[b, 1, i] - a1, blocks[b, 2, i] - a2, blocks[b, 3, i] - a3
        s4, s5, s6, s7 = blocks[b, 4, i] - a4, blocks[b, 5, i] - a5, blocks[b, 6, i] - a6, blocks[b, 7, i] - a7
        totals[i] = ((s0 * s0 + s1 * s1) + (s2 * s2 + s3 * s3)) + ((s4 * s4 + s5 * s5) + (s6 * s6 + s7 * s7))


@njit(cache=True, nogil=True)
def _add_eights(
    blocks: NDArray[np.float64],  # IN (n_blocks, d, BLOCK)
    b: int,
    tried: NDArray[np.float64],  # IN (t, d)
    t: int,
    n_whole: int,  # number of features, 16 or more, a multiple of 8
    even: NDArray[np.float64],  # OUT (BLOCK,), scratch, like `odd` and `pairs`
    odd: NDArray[np.float64],  # OUT (BLOCK,)
    pairs: NDArray[np.float64],  # OUT (4, BLOCK)
    totals: NDArray[np.float64],  # OUT (BLOCK,), sums of squares of those features
) -> None:
    """Sum squares in eight parts: part r adds features r, r + 8, ... in order.

    A pass handles two parts and two features of each.
    """
    for pair in range(4):
        first = 2 * pair
        at, at_next, more, more_next = tried[t, first], tried[t, first + 1], tried[t, first + 8], tried[t, first + 9]
        for i in range(BLOCK):
            step, step_next = blocks[b, first, i] - at, blocks[b, first + 1, i] - at_next
            further, further_next = blocks[b, first + 8, i] - more, blocks[b, first + 9, i] - more_next
            even[i] = step * step + further * further
            odd[i] = step_next * step_next + further_next * further_next
        for j in range(first + 16, n_whole - 8, 16):
            at, at_next, more, more_next = tried[t, j], tried[t, j + 1], tried[t, j + 8], tried[t, j + 9]
            for i in range(BLOCK):
                step, step_next = blocks[b, j, i] - at, blocks[b, j + 1, i] - at_next
                further, further_next = blocks[b, j + 8, i] - more, blocks[b, j + 9, i] - more_next
                even[i] = (even[i] + step * step) + further * further
                odd[i] = (odd[i] + step_next * step_next) + further_next * further_next
        if n_whole % 16 > 0:
            j = n_whole - 8 + first
            at, at_next = tried[t, j], tried[t, j + 1]
            for i in range(BLOCK):
                step, step_next = blocks[b, j, i] - at, blocks[b, j + 1, i] - at_next
                even[i] += step * step
                odd[i] += step_next * step_next
        for i in range(BLOCK):
            pairs[pair, i] = even[i] + odd[i]
    for i in range(BLOCK):
        totals[i] = (pairs[0, i] + pairs[1, i]) + (pairs[2, i] + pairs[3, i])


@njit(cache=True, nogil=True)
def find_nearer(
    blocks: NDArray[np.float64],  # IN (n_blocks, d, BLOCK), from `fill_blocks`
    tried: NDArray[np.float64],  # IN (t, d), candidate seeds
    before: NDArray[np.float64],  # IN (n,), squared distances from the seeds so far
    after: NDArray[np.float64],  # OUT (t, n), minimum of `before` and the squared distances from each candidate
) -> None:
    """Compute the squared distances of all points to the nearest seed, for each additional candidate.

    The order of summation is numpy's for a row: eight partial sums added in pairs from eight features on, then
    the remaining features one by one. Rows have no names of their own, because each array view costs reference
    counting that takes as long as a row of two features.
    """
    n, n_features = before.size, blocks.shape[1]
    n_whole = n_features // _PARTS * _PARTS
    n_twos = n_features - (n_features - n_whole) % 2
    even, odd, pairs, totals = np.empty(BLOCK), np.empty(BLOCK), np.empty((4, BLOCK)), np.empty(BLOCK)
    for b in range(blocks.shape[0]):
        begin = b * BLOCK
        size = min(BLOCK, n - begin)
        for t in range(tried.shape[0]):
            if n_whole == 0:
                for i in range(BLOCK):
                    totals[i] = 0.0
            elif n_whole == _PARTS:
                _add_eight(blocks, b, tried, t, totals)
            else:
                _add_eights(blocks, b, tried, t, n_whole, even, odd, pairs, totals)
            for j in range(n_whole, n_twos, 2):
                at, at_next = tried[t, j], tried[t, j + 1]
                for i in range(BLOCK):
                    step, step_next = blocks[b, j, i] - at, blocks[b, j + 1, i] - at_next
                    totals[i] = (totals[i] + step * step) + step_next * step_next
            if n_twos < n_features:
                at = tried[t, n_twos]
                for i in range(BLOCK):
                    step = blocks[b, n_twos, i] - at
                    totals[i] += step * step
            for i in range(size):
                after[t, begin + i] = min(before[begin + i], totals[i])


@njit(cache=True, nogil=True)
def sum_weighted(
    weights: NDArray[np.float64],  # IN (n,)
    distances: NDArray[np.float64],  # IN (t, n)
    sums: NDArray[np.float64],  # OUT (t,), sums of weights times distances
) -> None:
    """Compute weighted sums of distances, each in four partial sums.

    A BLAS product could wait for a thread without a free core.
    """
    n = weights.size
    n_fours = n // 4 * 4
    for t in range(distances.shape[0]):
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for i in range(0, n_fours, 4):
            first += weights[i] * distances[t, i]
            second += weights[i + 1] * distances[t, i + 1]
            third += weights[i + 2] * distances[t, i + 2]
            fourth += weights[i + 3] * distances[t, i + 3]
        for i in range(n_fours, n):
            first += weights[i] * distances[t, i]
        sums[t] = (first + second) + (third + fourth)


@njit(cache=True, nogil=True)
def accumulate(
    weights: NDArray[np.float64],  # IN (n,), non-negative
    distances: NDArray[np.float64],  # IN (n,), non-negative
    ends: NDArray[np.float64],  # OUT (n,), cumulative sums of the products
) -> int:
    """Compute cumulative sums and return the index of the last positive product, or -1."""
    total, last = 0.0, -1
    for i in range(weights.size):
        chance = weights[i] * distances[i]
        total += chance
        ends[i] = total
        last = i if chance > 0.0 else last
    return last
