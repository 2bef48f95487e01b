"""One pass of fuzzy c-means over points: distances, memberships and the next centres' sums."""

from math import log, sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

EUCLIDEAN, ABSOLUTE, LAPLACE, GAUSSIAN, MIXED = range(5)

LEAST = 1e-30  # of a distance: a point on a centre belongs to it, without dividing by zero


@njit(cache=True, nogil=True)
def _absolute(
    point: NDArray[np.float64],  # IN (d,)
    centre: NDArray[np.float64],  # IN (d,)
    rounding: float,
) -> float:
    """Sum of |x - p|, rounded below `rounding` to a parabola (Huber), so that its weights are finite."""
    total = 0.0
    for j in range(len(point)):
        gap = abs(point[j] - centre[j])
        total += gap - rounding / 2 if gap >= rounding else gap * gap / (2 * rounding)
    return total


@njit(cache=True, nogil=True)
def _shape(kind: int, d: int, sigma: float) -> tuple[float, float, float, float]:
    """Bowl, cone, squared edge and what f is at the edge: f = bowl l^2 + cone l up to it, a logarithm beyond.

    The three with a noise model take sigma_i at its best value, max(sigma, κ l), so their edge
    is sigma/κ; the two parts have one tangent there.
    """
    if kind == GAUSSIAN:
        return 0.5 / (sigma * sigma), 0.0, d * sigma * sigma, 0.5 * d
    if kind == LAPLACE:
        return 0.0, 1 / sigma, (d * sigma) ** 2, float(d)
    if kind == MIXED:
        kappa = (1 + sqrt(1.0 + 4.0 * d)) / (2 * d)
        return 0.5 / (sigma * sigma), 1 / sigma, (sigma / kappa) ** 2, 0.5 / (kappa * kappa) + 1 / kappa
    return 1.0, 0.0, np.inf, np.inf


@njit(cache=True, nogil=True)
def _distance(
    square: float, d: int, bowl: float, cone: float, edge: float, at_edge: float, rounding: float
) -> tuple[float, float]:
    """f(l) and its weight f'(l)/l, of l^2 = `square`."""
    if square >= edge:
        return 0.5 * d * log(square / edge) + at_edge - cone * rounding / 2, d / square
    if cone == 0.0:
        return bowl * square, 2 * bowl
    length = sqrt(square)
    if length >= rounding:
        return bowl * square + cone * (length - rounding / 2), 2 * bowl + cone / length
    return (bowl + cone / (2 * rounding)) * square, 2 * bowl + cone / rounding


@njit(cache=True, nogil=True)
def fuzzy_step(
    points: NDArray[np.float64],  # IN (n, d)
    centres: NDArray[np.float64],  # IN (c, d)
    kind: int,
    m: float,
    sigma: float,
    rounding: float,  # below which |.| is a parabola
    sums: NDArray[np.float64],  # OUT (c, d): of u^m w x
    masses: NDArray[np.float64],  # OUT (c, d): of u^m w
    shares: NDArray[np.float64],  # OUT (c,): of u
) -> float:
    """Memberships u ~ D^(-1/(m-1)) of every point, and the sums that make the next centres.

    Returns J = sum of u^m D, which is the sum over points of (sum over centres of
    D^(-1/(m-1)))^(-(m-1)).
    """
    n, d = points.shape
    n_centres = centres.shape[0]
    distances, weights = np.empty(n_centres), np.empty(n_centres)
    bowl, cone, edge, at_edge = _shape(kind, d, sigma)
    sums[:], masses[:], shares[:] = 0.0, 0.0, 0.0
    objective = 0.0
    for i in range(n):
        least = np.inf
        for c in range(n_centres):
            if kind == ABSOLUTE:
                distance, weight = _absolute(points[i], centres[c], rounding), 1.0
            else:
                square = 0.0
                for j in range(d):
                    gap = points[i, j] - centres[c, j]
                    square += gap * gap
                distance, weight = _distance(square, d, bowl, cone, edge, at_edge, rounding)
            distances[c], weights[c] = max(distance, LEAST), weight
            least = min(least, distances[c])
        total = 0.0
        for c in range(n_centres):
            closeness = least / distances[c]
            distances[c] = closeness if m == 2.0 else closeness ** (1 / (m - 1))
            total += distances[c]
        objective += least / total if m == 2.0 else least * total ** (1 - m)
        for c in range(n_centres):
            u = distances[c] / total
            shares[c] += u
            pull = (u * u if m == 2.0 else u**m) * weights[c]
            if kind == ABSOLUTE:
                for j in range(d):
                    here = pull / max(abs(points[i, j] - centres[c, j]), rounding)
                    sums[c, j] += here * points[i, j]
                    masses[c, j] += here
            else:
                for j in range(d):
                    sums[c, j] += pull * points[i, j]
                masses[c, 0] += pull
    if kind != ABSOLUTE:
        for c in range(n_centres):
            masses[c, 1:] = masses[c, 0]
    return objective
