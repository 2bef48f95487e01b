"""One pass of fuzzy c-means over points: distances, memberships and the sums that give the next centres.

Points are processed in blocks in column order, so that one instruction processes several points. Memberships are
not stored beyond their block. Sums over points use a fixed number of lanes that are added at the end. The code
fixes the order of summation, so results are the same doubles on every processor.
"""

from math import log, sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

EUCLIDEAN, ABSOLUTE, LAPLACE, GAUSSIAN, MIXED = range(5)

LEAST = 1e-30  # minimum distance; a point at a centre then belongs to it without a division by zero

_BLOCK = 128  # points per block; their columns fit into the first-level cache
_LANES = 16  # partial sums over points; `_add` adds eight points of a block to each


@njit(cache=True, nogil=True)
def _shape(kind: int, d: int, sigma: float) -> tuple[float, float, float, float]:
    """Return bowl, cone, squared edge and f(edge) of a distance.

    f = bowl l^2 + cone l up to the edge, and a logarithm beyond it.

    The three distances with a noise model use the optimal spread sigma_i = max(sigma, κ l), so their edge
    is sigma/κ. Both parts have the same tangent there.
    """
    if kind == GAUSSIAN:
        return 0.5 / (sigma * sigma), 0.0, d * sigma * sigma, 0.5 * d
    if kind == LAPLACE:
        return 0.0, 1 / sigma, (d * sigma) ** 2, float(d)
    if kind == MIXED:
        kappa = (1 + sqrt(1.0 + 4.0 * d)) / (2 * d)
        return 0.5 / (sigma * sigma), 1 / sigma, (sigma / kappa) ** 2, 0.5 / (kappa * kappa) + 1 / kappa
    return 1.0, 0.0, np.inf, np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def _find_squares(
    columns: NDArray[np.float64],  # IN (d + 1, _BLOCK)
    centres: NDArray[np.float64],  # IN (c, d)
    squares: NDArray[np.float64],  # OUT (c, _BLOCK), l^2
) -> None:
    """Compute squared distances; each pass adds two features."""
    n_centres, d = centres.shape
    for c in range(n_centres):
        own, at = squares[c], centres[c, 0]
        for i in range(_BLOCK):
            gap = columns[0, i] - at
            own[i] = gap * gap
        for j in range(1, d - 1, 2):
            at, at_next = centres[c, j], centres[c, j + 1]
            for i in range(_BLOCK):
                gap, gap_next = columns[j, i] - at, columns[j + 1, i] - at_next
                own[i] = (own[i] + gap * gap) + gap_next * gap_next
        if d % 2 == 0:
            at = centres[c, d - 1]
            for i in range(_BLOCK):
                gap = columns[d - 1, i] - at
                own[i] += gap * gap


@njit(cache=True, nogil=True, error_model="numpy")
def _find_absolutes(
    columns: NDArray[np.float64],  # IN (d + 1, _BLOCK)
    centres: NDArray[np.float64],  # IN (c, d)
    rounding: float,
    distances: NDArray[np.float64],  # OUT (c, _BLOCK)
) -> None:
    """Compute sums of |x - p|, smoothed to a parabola below `rounding` (Huber), so that weights are finite."""
    n_centres, d = centres.shape
    for c in range(n_centres):
        own = distances[c]
        own[:] = 0.0
        for j in range(d):
            at = centres[c, j]
            for i in range(_BLOCK):
                gap = abs(columns[j, i] - at)
                own[i] += gap - rounding / 2 if gap >= rounding else gap * gap / (2 * rounding)


@njit(cache=True, nogil=True, error_model="numpy")
def _bend(
    shape: tuple[float, float, float, float],  # IN, from `_shape`
    d: int,
    rounding: float,
    distances: NDArray[np.float64],  # IN (c, _BLOCK), l^2; OUT f(l)
    weights: NDArray[np.float64],  # OUT (c, _BLOCK), f'(l)/l
) -> None:
    """Apply f: the inner formula for all points, then the logarithm for those beyond the edge."""
    bowl, cone, edge, at_edge = shape
    squares, half = np.empty(_BLOCK), rounding / 2
    for c in range(distances.shape[0]):
        own, weight = distances[c], weights[c]
        for i in range(_BLOCK):
            square = own[i]
            length = sqrt(square)
            squares[i] = square
            rounded = length - half if length >= rounding else square / (2 * rounding)
            own[i] = bowl * square + cone * rounded
            weight[i] = 2 * bowl + cone / max(length, rounding)
        for i in range(_BLOCK):
            if squares[i] >= edge:
                own[i] = 0.5 * d * log(squares[i] / edge) + at_edge - cone * half
                weight[i] = d / squares[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _find_memberships(
    m: float,
    size: int,  # number of points in the block; further entries get no membership
    memberships: NDArray[np.float64],  # IN (c, _BLOCK), D; OUT u
) -> float:
    """Compute memberships u proportional to D^(-1/(m-1)) and return the block's part of J."""
    least, total = np.full(_BLOCK, np.inf), np.zeros(_BLOCK)
    n_centres, power = memberships.shape[0], 1 / (m - 1)
    for c in range(n_centres):
        own = memberships[c]
        for i in range(_BLOCK):
            own[i] = max(own[i], LEAST)
            least[i] = min(least[i], own[i])
    for c in range(n_centres):
        own = memberships[c]
        for i in range(_BLOCK):
            own[i] = least[i] / own[i]
        if m != 2.0:
            for i in range(size):
                own[i] **= power
        for i in range(_BLOCK):
            total[i] += own[i]
    objective = 0.0
    for i in range(size):
        objective += least[i] / total[i] if m == 2.0 else least[i] * total[i] ** (1 - m)
    for i in range(_BLOCK):
        total[i] = 1 / total[i] if i < size else 0.0
    for c in range(n_centres):
        own = memberships[c]
        for i in range(_BLOCK):
            own[i] *= total[i]
    return objective


@njit(cache=True, nogil=True, error_model="numpy")
def _find_pulls(
    m: float,
    size: int,
    weights: NDArray[np.float64],  # IN (c, _BLOCK)
    pulls: NDArray[np.float64],  # IN (c, _BLOCK), u; OUT u^m w
) -> None:
    """Compute the weight of each point in the next position of each centre."""
    for c in range(pulls.shape[0]):
        own, weight = pulls[c], weights[c]
        if m == 2.0:
            for i in range(_BLOCK):
                own[i] = own[i] * own[i] * weight[i]
        else:
            for i in range(size):
                own[i] = own[i] ** m * weight[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _add(
    pulls: NDArray[np.float64],  # IN (c, _BLOCK)
    columns: NDArray[np.float64],  # IN (r, _BLOCK)
    lanes: NDArray[np.float64],  # IN OUT (c, r, _LANES), sums over points of pull times column
) -> None:
    """Add the products of pulls and columns to the lanes."""
    for c in range(pulls.shape[0]):
        u = pulls[c]
        for j in range(columns.shape[0]):
            x, lane = columns[j], lanes[c, j]
            for i in range(_LANES):
                lane[i] += ((u[i] * x[i] + u[i + 16] * x[i + 16]) + (u[i + 32] * x[i + 32] + u[i + 48] * x[i + 48])) + (
                    (u[i + 64] * x[i + 64] + u[i + 80] * x[i + 80]) + (u[i + 96] * x[i + 96] + u[i + 112] * x[i + 112])
                )


@njit(cache=True, nogil=True, error_model="numpy")
def _add_apart(
    pulls: NDArray[np.float64],  # IN (c, _BLOCK)
    columns: NDArray[np.float64],  # IN (d + 1, _BLOCK)
    centres: NDArray[np.float64],  # IN (c, d)
    rounding: float,
    lanes: NDArray[np.float64],  # IN OUT (c, 2 d, _LANES), sums of u^m w x, then of u^m w
) -> None:
    """Add the sums for absolute distances, where each coordinate has its own weight 1/|x - p|."""
    n_centres, d = centres.shape
    parts = np.empty((2 * d, _BLOCK))
    for c in range(n_centres):
        pull = pulls[c]
        for j in range(d):
            at = centres[c, j]
            for i in range(_BLOCK):
                part = pull[i] / max(abs(columns[j, i] - at), rounding)
                parts[j, i] = part * columns[j, i]
                parts[d + j, i] = part
        _add(parts, columns[d:], lanes[c].reshape(2 * d, 1, _LANES))


@njit(cache=True, nogil=True, error_model="numpy")
def fuzzy_step(
    points: NDArray[np.float64],  # IN (n, d)
    centres: NDArray[np.float64],  # IN (c, d)
    kind: int,
    m: float,
    sigma: float,
    rounding: float,  # |.| is a parabola below this
    sums: NDArray[np.float64],  # OUT (c, d), sums of u^m w x
    masses: NDArray[np.float64],  # OUT (c, d), sums of u^m w
    shares: NDArray[np.float64],  # OUT (c,), sums of u
) -> float:
    """Compute the sums that give the next centres and return the objective J = sum u^m D.

    Memberships u are proportional to D^(-1/(m-1)). J equals the sum over points of (sum over centres of
    D^(-1/(m-1)))^(-(m-1)).
    """
    n, d = points.shape
    n_centres, is_apart = centres.shape[0], kind == ABSOLUTE
    shape = _shape(kind, d, sigma)
    columns = np.zeros((d + 1, _BLOCK))
    columns[d] = 1.0  # the sums of a constant column are masses
    block, weights = np.empty((n_centres, _BLOCK)), np.full((n_centres, _BLOCK), 1.0 if is_apart else 2.0)
    lanes = np.zeros((n_centres, 2 * d if is_apart else d + 1, _LANES))
    share_lanes = np.zeros((n_centres, 1, _LANES))
    objective = 0.0
    for begin in range(0, n, _BLOCK):
        size = min(_BLOCK, n - begin)
        for i in range(size):
            for j in range(d):
                columns[j, i] = points[begin + i, j]
        if is_apart:
            _find_absolutes(columns, centres, rounding, block)
        else:
            _find_squares(columns, centres, block)
            if kind != EUCLIDEAN:
                _bend(shape, d, rounding, block, weights)
        objective += _find_memberships(m, size, block)
        _add(block, columns[d:], share_lanes)
        _find_pulls(m, size, weights, block)
        if is_apart:
            _add_apart(block, columns, centres, rounding, lanes)
        else:
            _add(block, columns, lanes)
    for c in range(n_centres):
        shares[c] = share_lanes[c].sum()
        for j in range(d):
            sums[c, j] = lanes[c, j].sum()
            masses[c, j] = lanes[c, d + j if is_apart else d].sum()
    return objective
