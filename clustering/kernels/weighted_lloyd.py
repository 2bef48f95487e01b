"""One step of k-means over weighted points."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


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
