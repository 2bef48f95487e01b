"""Records about centres, in whole lattice units: who is nearest, and what clipped residuals add up to."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def nearest_centres(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    labels: NDArray[np.int64],  # OUT (n,), the nearest centre, of equally near ones the first
) -> None:
    """Nearest centre of every record by squared distance, which 2^40 d holds."""
    for i in range(points.shape[0]):
        nearest, least = 0, np.int64(-1)
        for c in range(centres.shape[0]):
            distance = np.int64(0)
            for j in range(points.shape[1]):
                step = np.int64(points[i, j]) - centres[c, j]
                distance += step * step
            if least < 0 or distance < least:
                nearest, least = c, distance
        labels[i] = nearest


@njit(cache=True, nogil=True)
def add_residuals(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), a cell's number, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    radii: NDArray[np.int64],  # IN (k,), at least 1
    sums: NDArray[np.int64],  # IN OUT (k, d), of residuals clipped to their cell's radius in L1
    sizes: NDArray[np.int64],  # IN OUT (k,), of the L1 norms of those
) -> None:
    """Add every record's residual from its cell's centre, shrunk towards it where it is longer than the radius.

    A coordinate r becomes sign(r) floor(|r| R / |r|_1): whole numbers whose sum is at most R, so
    that one record moves a cell's sum by at most R in L1, and its size by at most R.
    """
    for i in range(points.shape[0]):
        c = labels[i]
        if c < 0:
            continue
        norm = np.int64(0)
        for j in range(points.shape[1]):
            norm += abs(np.int64(points[i, j]) - centres[c, j])
        radius = radii[c]
        if norm <= radius:
            for j in range(points.shape[1]):
                sums[c, j] += np.int64(points[i, j]) - centres[c, j]
            sizes[c] += norm
            continue
        for j in range(points.shape[1]):
            residual = np.int64(points[i, j]) - centres[c, j]
            part = abs(residual) * radius // norm
            sums[c, j] += part if residual >= 0 else -part
        sizes[c] += radius


@njit(cache=True, nogil=True)
def add_round_residuals(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), a cell's number, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    radii: NDArray[np.int64],  # IN (k,), at least 1
    sums: NDArray[np.int64],  # IN OUT (k, d), of residuals clipped to their cell's radius in L2
    sizes: NDArray[np.int64],  # IN OUT (k,), of the L2 norms of those, rounded up
) -> None:
    """Add every record's residual from its cell's centre, shrunk towards it where it is longer than the radius.

    With m the least whole number not below |r|_2, a coordinate r becomes sign(r) floor(|r| R / m):
    squares of sum at most R^2 |r|_2^2 / m^2 <= R^2, so that one record moves a cell's sum by at
    most R in L2. Its size is the lesser of m and R.
    """
    for i in range(points.shape[0]):
        c = labels[i]
        if c < 0:
            continue
        square = np.int64(0)
        for j in range(points.shape[1]):
            step = np.int64(points[i, j]) - centres[c, j]
            square += step * step
        norm = np.int64(np.sqrt(np.float64(square)))  # a guess, which whole numbers put right
        while norm * norm < square:
            norm += 1
        while norm > 0 and (norm - 1) * (norm - 1) >= square:
            norm -= 1
        radius = radii[c]
        if norm <= radius:
            for j in range(points.shape[1]):
                sums[c, j] += np.int64(points[i, j]) - centres[c, j]
            sizes[c] += norm
            continue
        for j in range(points.shape[1]):
            residual = np.int64(points[i, j]) - centres[c, j]
            part = abs(residual) * radius // norm
            sums[c, j] += part if residual >= 0 else -part
        sizes[c] += radius


@njit(cache=True, nogil=True)
def add_squares(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), a cell's number, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    shift: int,  # IN, bits dropped of each square
    squares: NDArray[np.int64],  # IN OUT (k,)
) -> None:
    """Add every record's squared distance from its cell's centre, rounded down to multiples of 2^shift."""
    for i in range(points.shape[0]):
        c = labels[i]
        if c < 0:
            continue
        distance = np.int64(0)
        for j in range(points.shape[1]):
            step = np.int64(points[i, j]) - centres[c, j]
            distance += step * step
        squares[c] += distance >> shift
