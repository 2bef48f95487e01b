"""Kernels as they were before they were made faster: what a row of before and after is held to, and nothing else."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
