"""Nearest centres of points, by a loop over the features or by matrix products in single precision.

The loop defines the labels: it sums the squares in double precision and in the order of the features. Products only
exclude centres. An excluded centre is farther than another one by more than all rounding errors, so the loop cannot
select it. The loop compares the remaining centres, of which most points have one. Labels are therefore the same on
every machine and with every library of linear algebra. Decision record 0072 has the proof of the bound.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 64  # points per block of the loop; 64 features of them fit into the first-level cache
LITTLE = 128  # features times centres up to which the loop is faster
MANY = 1 << 20  # features from which the bound does not apply
PRODUCT = 500_000  # multiplications of a block; OpenBLAS computes smaller products in one thread, some without packing
ROWS = 256  # points per block at most, or if features times centres leave fewer than 16
MAX_REACH = 2.0**62  # bound of distances from the middle; products of smaller ones do not overflow
MIN_LENGTH = 2.0**-40  # added to distances from the middle, so that the bound exceeds the errors of underflows
UNIT = 2.0**-22  # four times the unit roundoff of single precision
FINE_UNIT = 2.0**-52  # twice that of double precision
_SIGN, _MAGNITUDE = np.int32(31), np.int32(0x7FFFFFFF)


class Search(NamedTuple):
    """Scratch for blocks of points. Arrays for the unused way have no entries."""

    size: int  # points per block
    columns: NDArray[np.float64]  # (d, BLOCK), of the loop, like the next three
    distances: NDArray[np.float64]  # (BLOCK,)
    nearest: NDArray[np.float64]  # (BLOCK,)
    least: NDArray[np.float64]  # (BLOCK,)
    middle: NDArray[np.float64]  # (d,), mean of the centres; of products, like all below
    radius: float  # largest distance of a centre from the middle
    rounded: NDArray[np.float32]  # (d + 1, k), centres minus the middle; the last row is minus half of their squares
    rows: NDArray[np.float32]  # (size, d + 1), points minus the middle, then 1
    scores: NDArray[np.float32]  # (size, k), product of both; larger for nearer centres
    best: NDArray[np.int32]  # (size,), bits of the largest score of each point
    limits: NDArray[np.float32]  # (size,), squared distances from the middle, then the least score of near centres


@njit(cache=True, nogil=True)
def prepare_search(
    n_points: int,
    centres: NDArray[np.float64],  # IN (k, d)
) -> Search:
    """Return scratch for `label_block`."""
    k, d = centres.shape
    is_product = d * k > LITTLE and d < MANY
    n_columns, n_features = (0, d) if is_product else (d, 0)
    size = PRODUCT // ((d + 1) * k)
    size = max(1, min(size if size >= 16 else ROWS, ROWS, n_points))
    middle, rounded = np.zeros(n_features), np.empty((n_features + 1, k), np.float32)
    radius = 0.0
    for j in range(n_features):
        for c in range(k):
            middle[j] += centres[c, j]
        middle[j] /= k
    for c in range(k):
        square = 0.0
        for j in range(n_features):
            step = centres[c, j] - middle[j]
            rounded[j, c] = np.float32(step)
            square += step * step
        rounded[n_features, c] = np.float32(-square / 2)
        radius = max(radius, np.sqrt(square))
    n_rows = size if is_product else 0
    return Search(
        size,
        np.zeros((n_columns, BLOCK)),
        np.empty(BLOCK),
        np.empty(BLOCK),
        np.empty(BLOCK),
        middle,
        radius,
        rounded,
        np.ones((n_rows, n_features + 1), np.float32),
        np.empty((n_rows, k), np.float32),
        np.empty(n_rows, np.int32),
        np.empty(n_rows, np.float32),
    )


@njit(cache=True, nogil=True)
def label_block(
    points: NDArray[np.float64] | NDArray[np.int32],  # IN (n, d)
    begin: int,  # first point of the block
    size: int,  # number of points of the block
    centres: NDArray[np.float64],  # IN (k, d)
    search: Search,  # scratch from `prepare_search`
    labels: NDArray[np.int64],  # OUT (n,), nearest centre; the first at equal distances
) -> None:
    """Find the nearest centres of the points of a block."""
    if search.rows.size > 0:
        _label_by_product(points, begin, size, centres, search, labels)
    else:
        _label_by_loop(points, begin, size, centres, search, labels)


@njit(cache=True, nogil=True)
def _label_by_loop(
    points: NDArray[np.float64] | NDArray[np.int32],
    begin: int,
    size: int,
    centres: NDArray[np.float64],
    search: Search,
    labels: NDArray[np.int64],
) -> None:
    columns, nearest = search.columns, search.nearest
    for first in range(begin, begin + size, BLOCK):
        n_left = min(BLOCK, begin + size - first)
        for i in range(n_left):
            for j in range(points.shape[1]):
                columns[j, i] = points[first + i, j]
        find_nearest(columns, centres, search.distances, nearest, search.least)
        for i in range(n_left):
            labels[first + i] = np.int64(nearest[i])


@njit(cache=True, nogil=True)
def _label_by_product(
    points: NDArray[np.float64] | NDArray[np.int32],
    begin: int,
    size: int,
    centres: NDArray[np.float64],
    search: Search,
    labels: NDArray[np.int64],
) -> None:
    """Exclude centres by their scores, and compare the other ones if more than one is left."""
    rows, scores, limits = search.rows[:size], search.scores[:size], search.limits
    _round_points(points, begin, search.middle, rows, limits)
    np.dot(rows, search.rounded, scores)
    _find_best(scores.view(np.int32), search.best)
    _set_limits(search.best.view(np.float32), points.shape[1], search.radius, limits)
    for i in range(size):
        n_near, near = np.int32(0), np.int32(0)
        for c in range(np.int32(centres.shape[0])):
            is_near = np.int32(not scores[i, c] < limits[i])
            n_near = np.int32(n_near + is_near)
            near = np.int32(near + np.int32(c) * is_near)  # vectorises, unlike a branch
        labels[begin + i] = near
        if n_near != 1:
            labels[begin + i] = _compare(points, begin + i, centres, scores, i, limits[i])


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _round_points(
    points: NDArray[np.float64] | NDArray[np.int32],  # IN (n, d)
    begin: int,
    middle: NDArray[np.float64],  # IN (d,)
    rows: NDArray[np.float32],  # OUT (size, d + 1), differences from the middle; the last column is unchanged
    squares: NDArray[np.float32],  # OUT (size,), squared distances from the middle
) -> None:
    """Round points to single precision."""
    for i in range(rows.shape[0]):
        square = np.float32(0.0)
        for j in range(middle.size):
            step = np.float32(points[begin + i, j] - middle[j])
            rows[i, j] = step
            square += step * step
        squares[i] = square


@njit(cache=True, nogil=True)
def _find_best(
    scores: NDArray[np.int32],  # IN (size, k), bits of the scores
    best: NDArray[np.int32],  # OUT (size,), bits of the largest score
) -> None:
    """Find the largest score of each point. Maxima of integers vectorise, those of floats do not."""
    for i in range(scores.shape[0]):
        largest = ~_MAGNITUDE
        for c in range(scores.shape[1]):
            bits = scores[i, c]
            largest = max(largest, np.int32(bits ^ ((bits >> _SIGN) & _MAGNITUDE)))  # ascends with the score
        best[i] = np.int32(largest ^ ((largest >> _SIGN) & _MAGNITUDE))


@njit(cache=True, nogil=True)
def _set_limits(
    best: NDArray[np.float32],  # IN (size,), largest scores
    n_features: int,
    radius: float,  # largest distance of a centre from the middle
    limits: NDArray[np.float32],  # IN OUT (size,), squared distances from the middle, then limits of scores
) -> None:
    """Set the limits below which a score excludes a centre. Without a bound nothing is below."""
    radius += MIN_LENGTH
    for i in range(limits.size):
        reach = np.sqrt(np.float64(limits[i])) + MIN_LENGTH + radius
        error = (n_features + 16) * reach * (UNIT * radius + FINE_UNIT * reach)
        limits[i] = np.float32(np.float64(best[i]) - error) if reach < MAX_REACH else np.float32(-np.inf)


@njit(cache=True, nogil=True)
def _compare(
    points: NDArray[np.float64] | NDArray[np.int32],  # IN (n, d)
    point: int,
    centres: NDArray[np.float64],  # IN (k, d)
    scores: NDArray[np.float32],  # IN (size, k)
    row: int,
    limit: np.float32,
) -> int:
    """Return the nearest of the centres that are not excluded; the first at equal distances."""
    nearest, least = 0, np.inf
    for c in range(centres.shape[0]):
        if not scores[row, c] < limit:
            distance = measure_square(points, point, centres, c)
            if distance < least:
                nearest, least = c, distance
    return nearest


@njit(cache=True, nogil=True)
def measure_square(
    points: NDArray[np.float64] | NDArray[np.int32],  # IN (n, d)
    point: int,
    centres: NDArray[np.float64],  # IN (k, d)
    centre: int,
) -> float:
    """Return the squared distance of a point from a centre, summed in the order of the features."""
    square = 0.0
    for j in range(points.shape[1]):
        step = points[point, j] - centres[centre, j]
        square += step * step
    return square


@njit(cache=True, nogil=True)
def find_nearest(
    columns: NDArray[np.float64],  # IN (d, BLOCK)
    centres: NDArray[np.float64],  # IN (k, d)
    distances: NDArray[np.float64],  # OUT (BLOCK,), scratch
    nearest: NDArray[
        np.float64
    ],  # OUT (BLOCK,), index of the centre; a double, so that it vectorises with the distances
    least: NDArray[np.float64],  # OUT (BLOCK,), squared distance to that centre
) -> None:
    """Find the nearest centre of each point.

    Each pass adds the squares of two or four features. The last pass also compares.
    """
    n_features = columns.shape[0]
    n_before = (n_features - 1) // 2 * 2  # features before the last two, or the last one
    n_fours = n_before // 4 * 4
    distances[:] = 0.0
    nearest[:] = 0.0
    least[:] = np.inf
    for c in range(centres.shape[0]):
        for j in range(0, n_fours, 4):
            at, at_next, then, then_next = centres[c, j], centres[c, j + 1], centres[c, j + 2], centres[c, j + 3]
            for i in range(BLOCK):
                step, step_next = columns[j, i] - at, columns[j + 1, i] - at_next
                further, further_next = columns[j + 2, i] - then, columns[j + 3, i] - then_next
                before = distances[i] if j > 0 else 0.0
                distances[i] = (((before + step * step) + step_next * step_next) + further * further) + (
                    further_next * further_next
                )
        for j in range(n_fours, n_before, 2):
            at, at_next = centres[c, j], centres[c, j + 1]
            for i in range(BLOCK):
                step, step_next = columns[j, i] - at, columns[j + 1, i] - at_next
                before = distances[i] if j > 0 else 0.0
                distances[i] = (before + step * step) + step_next * step_next
        at, number = centres[c, n_before], float(c)
        if n_before + 1 < n_features:
            at_next = centres[c, n_before + 1]
            for i in range(BLOCK):
                step, step_next = columns[n_before, i] - at, columns[n_before + 1, i] - at_next
                distance = (distances[i] + step * step) + step_next * step_next
                is_nearer = distance < least[i]
                nearest[i] = number if is_nearer else nearest[i]
                least[i] = distance if is_nearer else least[i]
        else:
            for i in range(BLOCK):
                step = columns[n_before, i] - at
                distance = distances[i] + step * step
                is_nearer = distance < least[i]
                nearest[i] = number if is_nearer else nearest[i]
                least[i] = distance if is_nearer else least[i]
