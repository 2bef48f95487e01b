"""k-means over weighted points: one step of Lloyd's, and how near each point comes to seeds that are tried.

Both work on blocks of points whose columns lie side by side, so that one instruction takes
several points. Each point's own sums are taken in the order that a loop over it alone would
take, so that blocks change no bit of them.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_BLOCK = 128  # points whose columns fit a core's first cache
_PARTS = 8  # that numpy sums a long row in


@njit(cache=True, nogil=True)
def _find_nearest(
    columns: NDArray[np.float64],  # IN (d, _BLOCK)
    centres: NDArray[np.float64],  # IN (k, d)
    distances: NDArray[np.float64],  # OUT (_BLOCK,), of use to nobody else
    nearest: NDArray[np.float64],  # OUT (_BLOCK,), a centre's number; a double, as wide as what is compared
    least: NDArray[np.float64],  # OUT (_BLOCK,), squared distance from it
) -> None:
    """Squares are added feature by feature, two of them a pass; the last pass compares too."""
    n_features = columns.shape[0]
    n_before = (n_features - 1) // 2 * 2  # features before the last two, or the last one
    distances[:] = 0.0
    nearest[:] = 0.0
    least[:] = np.inf
    for c in range(centres.shape[0]):
        for j in range(0, n_before, 2):
            at, at_next = centres[c, j], centres[c, j + 1]
            for i in range(_BLOCK):
                step, step_next = columns[j, i] - at, columns[j + 1, i] - at_next
                before = distances[i] if j > 0 else 0.0
                distances[i] = (before + step * step) + step_next * step_next
        at, number = centres[c, n_before], float(c)
        if n_before + 1 < n_features:
            at_next = centres[c, n_before + 1]
            for i in range(_BLOCK):
                step, step_next = columns[n_before, i] - at, columns[n_before + 1, i] - at_next
                distance = (distances[i] + step * step) + step_next * step_next
                is_nearer = distance < least[i]
                nearest[i] = number if is_nearer else nearest[i]
                least[i] = distance if is_nearer else least[i]
        else:
            for i in range(_BLOCK):
                step = columns[n_before, i] - at
                distance = distances[i] + step * step
                is_nearer = distance < least[i]
                nearest[i] = number if is_nearer else nearest[i]
                least[i] = distance if is_nearer else least[i]


@njit(cache=True, nogil=True)
def weighted_lloyd_step(
    points: NDArray[np.float64],  # IN (n, d)
    weights: NDArray[np.float64],  # IN (n,), none negative
    centres: NDArray[np.float64],  # IN (k, d)
    labels: NDArray[np.int64],  # OUT (n,), the nearest centre, of equally near ones the first
    sums: NDArray[np.float64],  # OUT (k, d), weighted sum of each centre's points
    masses: NDArray[np.float64],  # OUT (k,), their weight
) -> float:
    """Give every point to its nearest centre; returns the weighted sum of squared distances."""
    n, n_features = points.shape
    columns = np.zeros((n_features, _BLOCK))
    distances, nearest, least = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    sums[:] = 0.0
    masses[:] = 0.0
    inertia = 0.0
    for begin in range(0, n, _BLOCK):
        size = min(_BLOCK, n - begin)
        for i in range(size):
            for j in range(n_features):
                columns[j, i] = points[begin + i, j]
        _find_nearest(columns, centres, distances, nearest, least)
        for i in range(size):
            own, weight = int(nearest[i]), weights[begin + i]
            labels[begin + i] = own
            masses[own] += weight
            for j in range(n_features):
                sums[own, j] += weight * points[begin + i, j]
            inertia += weight * least[i]
    return inertia


@njit(cache=True, nogil=True)
def _add_squares(
    columns: NDArray[np.float64],  # IN (d, _BLOCK)
    place: NDArray[np.float64],  # IN (d,)
    even: NDArray[np.float64],  # OUT (_BLOCK,), of use to nobody else, as `odd` and `pairs`
    odd: NDArray[np.float64],  # OUT (_BLOCK,)
    pairs: NDArray[np.float64],  # OUT (4, _BLOCK)
    totals: NDArray[np.float64],  # OUT (_BLOCK,), squared distances
) -> None:
    """A square is summed as numpy sums a row: of eight features and more in eight parts, added by twos.

    Part r takes features r, r + 8, ...; what is beyond a multiple of eight comes last, one by one.
    """
    n_features = columns.shape[0]
    n_whole = n_features // _PARTS * _PARTS
    totals[:] = 0.0
    if n_whole > 0:
        for pair in range(4):
            for j in range(2 * pair, n_whole, _PARTS):
                at, at_next = place[j], place[j + 1]
                for i in range(_BLOCK):
                    step, step_next = columns[j, i] - at, columns[j + 1, i] - at_next
                    even[i] = (even[i] if j >= _PARTS else 0.0) + step * step
                    odd[i] = (odd[i] if j >= _PARTS else 0.0) + step_next * step_next
            for i in range(_BLOCK):
                pairs[pair, i] = even[i] + odd[i]
        for i in range(_BLOCK):
            totals[i] = (pairs[0, i] + pairs[1, i]) + (pairs[2, i] + pairs[3, i])
    for j in range(n_whole, n_features):
        at = place[j]
        for i in range(_BLOCK):
            step = columns[j, i] - at
            totals[i] += step * step


@njit(cache=True, nogil=True)
def nearer_of(
    columns: NDArray[np.float64],  # IN (d, n), the points' features
    places: NDArray[np.int64],  # IN (t,), points that are tried
    before: NDArray[np.float64],  # IN (n,), squared distances from the seeds so far
    after: NDArray[np.float64],  # OUT (t, n), the lesser of those and the ones from each point that is tried
) -> None:
    """How near all points are to the seeds with each of those tried."""
    n_features, n = columns.shape
    block, pairs = np.zeros((n_features, _BLOCK)), np.zeros((4, _BLOCK))
    even, odd, totals, place = np.zeros(_BLOCK), np.zeros(_BLOCK), np.zeros(_BLOCK), np.empty(n_features)
    for begin in range(0, n, _BLOCK):
        size = min(_BLOCK, n - begin)
        for j in range(n_features):
            column, own = columns[j, begin : begin + size], block[j]
            for i in range(size):
                own[i] = column[i]
        for t in range(places.size):
            for j in range(n_features):
                place[j] = columns[j, places[t]]
            _add_squares(block, place, even, odd, pairs, totals)
            far, nearer = before[begin : begin + size], after[t, begin : begin + size]
            for i in range(size):
                nearer[i] = min(far[i], totals[i])


@njit(cache=True, nogil=True)
def add_up(
    weights: NDArray[np.float64],  # IN (n,), none negative
    distances: NDArray[np.float64],  # IN (n,), none negative
    ends: NDArray[np.float64],  # OUT (n,), running sums of their products
) -> int:
    """The last place where the sum grows by anything but zero; -1 where there is none."""
    total, last = 0.0, -1
    for i in range(weights.size):
        chance = weights[i] * distances[i]
        total += chance
        ends[i] = total
        last = i if chance > 0.0 else last
    return last
