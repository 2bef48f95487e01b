"""Kernels as they were before they were made faster: what a row of before and after is held to, and nothing else."""

from math import log, sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clustering.kernels.fuzzy import ABSOLUTE, GAUSSIAN, LAPLACE, LEAST, MIXED
from clustering.phase_search import PublicWords


@njit(cache=True, nogil=True)
def weighted_lloyd_step(
    points: NDArray[np.float64],  # IN (n, d)
    weights: NDArray[np.float64],  # IN (n,)
    centres: NDArray[np.float64],  # IN (k, d)
    labels: NDArray[np.int64],  # OUT (n,)
    sums: NDArray[np.float64],  # OUT (k, d)
    masses: NDArray[np.float64],  # OUT (k,)
) -> float:
    """Point by point, and of each point centre by centre."""
    sums[:] = 0.0
    masses[:] = 0.0
    inertia = 0.0
    for i in range(points.shape[0]):
        nearest, least = 0, np.inf
        for c in range(centres.shape[0]):
            distance = 0.0
            for j in range(points.shape[1]):
                step = points[i, j] - centres[c, j]
                distance += step * step
            if distance < least:
                nearest, least = c, distance
        labels[i] = nearest
        masses[nearest] += weights[i]
        for j in range(points.shape[1]):
            sums[nearest, j] += weights[i] * points[i, j]
        inertia += weights[i] * least
    return inertia


def seeds(
    points: NDArray[np.float64], weights: NDArray[np.float64], n_clusters: int, words: PublicWords, n_trials: int
) -> NDArray[np.float64]:
    """Greedy k-means++ by whole arrays: each trial makes four of them."""
    chosen = [_drawn(weights, words.uniform(1))[0]]
    distances = _squares(points, chosen[0])
    while len(chosen) < n_clusters:
        chances = weights * distances
        if not chances.sum() > 0:
            break
        tried = [
            (place, np.minimum(distances, _squares(points, place)))
            for place in _drawn(chances, words.uniform(n_trials))
        ]
        place, distances = min(tried, key=lambda trial: float(weights @ trial[1]))
        chosen.append(place)
    return points[chosen]


def _drawn(chances: NDArray[np.float64], uniform: NDArray[np.float64]) -> list[int]:
    ends = np.cumsum(chances)
    places = np.searchsorted(ends, uniform * ends[-1], side="right")
    return [int(place) for place in np.minimum(places, np.flatnonzero(chances)[-1])]


def _squares(points: NDArray[np.float64], place: int) -> NDArray[np.float64]:
    return np.asarray(((points - points[place]) ** 2).sum(axis=1), dtype=np.float64)


@njit(cache=True, nogil=True)
def _absolute(
    point: NDArray[np.float64],  # IN (d,)
    centre: NDArray[np.float64],  # IN (d,)
    rounding: float,
) -> float:
    """Sum of |x - p|."""
    total = 0.0
    for j in range(len(point)):
        gap = abs(point[j] - centre[j])
        total += gap - rounding / 2 if gap >= rounding else gap * gap / (2 * rounding)
    return total


@njit(cache=True, nogil=True)
def _shape(kind: int, d: int, sigma: float) -> tuple[float, float, float, float]:
    """Bowl, cone, squared edge and what f is at the edge."""
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
    rounding: float,
    sums: NDArray[np.float64],  # OUT (c, d)
    masses: NDArray[np.float64],  # OUT (c, d)
    shares: NDArray[np.float64],  # OUT (c,)
) -> float:
    """Point by point, and of each point centre by centre."""
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
