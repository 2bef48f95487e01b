"""Nearest centres and sums of clipped residuals, in integer lattice units."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clustering.kernels.nearest import label_block, prepare_search

SLACK = 1 - 2.0**-30  # keeps a clipped residual below its radius in spite of rounding


@njit(cache=True, nogil=True)
def nearest_centres(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    centres: NDArray[np.float64],  # IN (k, d), lattice places
    labels: NDArray[np.int64],  # OUT (n,), nearest centre; the first at equal distances
) -> None:
    """Find the nearest centre of each record. Squared distances are exact below 2^53, as all are in the box."""
    n = points.shape[0]
    search = prepare_search(n, centres)
    for begin in range(0, n, search.size):
        label_block(points, begin, min(search.size, n - begin), centres, search, labels)


@njit(cache=True, nogil=True)
def add_counts(
    labels: NDArray[np.int64],  # IN (n,), cell index, or -1 for none
    counts: NDArray[np.int64],  # IN OUT (k,)
) -> None:
    """Count the records of each cell."""
    for i in range(labels.size):
        if labels[i] >= 0:
            counts[labels[i]] += 1


@njit(cache=True, nogil=True)
def add_l1_residuals(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), cell index, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    radii: NDArray[np.int64],  # IN (k,), at least 1
    sums: NDArray[np.int64],  # IN OUT (k, d), sums of residuals, each clipped to its cell's radius in L1
    sizes: NDArray[np.int64],  # IN OUT (k,), sums of the L1 norms of clipped residuals
) -> None:
    """Add the residual of each record from its cell's centre, scaled down if it is longer than the radius R.

    A coordinate r of a long residual becomes sign(r) floor(|r| R / |r|_1). The absolute values add up to
    at most R, so one record changes a cell's sum by at most R in L1, and its size by at most R.
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
def measure_residual(
    points: NDArray[np.int32],  # IN (n, d)
    i: int,  # IN, record
    centres: NDArray[np.int64],  # IN (k, d)
    c: int,  # IN, cell
) -> float:
    """Return the L2 norm of a residual. The square is an exact integer, at most 2^60."""
    square = np.int64(0)
    for j in range(points.shape[1]):
        step = np.int64(points[i, j]) - centres[c, j]
        square += step * step
    return float(np.sqrt(np.float64(square)))


@njit(cache=True, nogil=True)
def add_residuals(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), cell index, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    radii: NDArray[np.int64],  # IN (k,), at least 1
    unit: float,  # IN, parts of a radius
    sums: NDArray[np.int64],  # IN OUT (k, d), sums of clipped residuals, in parts of the cell's radius
) -> None:
    """Add the residual of each record from its cell's centre, clipped in L2 to the radius R.

    A coordinate r becomes trunc(r u / max(|r|_2, R)), with u = unit (1 - 2^-30). Rounding errors of doubles are far
    below 2^-30, so one record changes a cell's sum by at most `unit` in L2.
    """
    for i in range(points.shape[0]):
        c = labels[i]
        if c < 0:
            continue
        scale = unit * SLACK / max(measure_residual(points, i, centres, c), np.float64(radii[c]))
        for j in range(points.shape[1]):
            sums[c, j] += np.int64(np.float64(np.int64(points[i, j]) - centres[c, j]) * scale)


@njit(cache=True, nogil=True)
def sort_residuals(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), cell index, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    radii: NDArray[np.int64],  # IN (k,), at least 1
    unit: float,  # IN, parts of a radius
    ends: NDArray[np.int64],  # IN OUT (k,), first row of each cell; then the row after its last one
    rows: NDArray[np.float64],  # OUT (m, d), clipped residuals, integers in parts of the cell's radius
) -> None:
    """Write the clipped residuals that `add_residuals` adds, sorted by cell, as doubles for matrix products."""
    for i in range(points.shape[0]):
        c = labels[i]
        if c < 0:
            continue
        scale = unit * SLACK / max(measure_residual(points, i, centres, c), np.float64(radii[c]))
        row = ends[c]
        ends[c] = row + 1
        for j in range(points.shape[1]):
            rows[row, j] = np.trunc(np.float64(np.int64(points[i, j]) - centres[c, j]) * scale)


@njit(cache=True, nogil=True)
def add_clipped_squares(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), cell index, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    radii: NDArray[np.int64],  # IN (k,), at least 1
    unit: float,  # IN, parts of a squared radius
    squares: NDArray[np.int64],  # IN OUT (k,), sums of squared norms of clipped residuals, in these parts
) -> None:
    """Add min(|r|_2, R)^2 of each record. One record changes a cell's sum by at most `unit`."""
    for i in range(points.shape[0]):
        c = labels[i]
        if c >= 0:
            share = min(measure_residual(points, i, centres, c) / np.float64(radii[c]), 1.0)
            squares[c] += np.int64(unit * SLACK * share * share)


@njit(cache=True, nogil=True)
def find_shells(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    centre: NDArray[np.int64],  # IN (d,), lattice place
    squares: NDArray[np.int64],  # IN (m,), ascending squared radii
    shells: NDArray[np.int64],  # OUT (n,), number of radii that are less than each record's distance
) -> None:
    """Find the spherical shell around a centre that contains each record."""
    for i in range(points.shape[0]):
        square = np.int64(0)
        for j in range(points.shape[1]):
            step = np.int64(points[i, j]) - centre[j]
            square += step * step
        shells[i] = np.searchsorted(squares, square)


@njit(cache=True, nogil=True)
def add_squares(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    labels: NDArray[np.int64],  # IN (n,), cell index, or -1 for none
    centres: NDArray[np.int64],  # IN (k, d), lattice places
    shift: int,  # IN, low bits dropped from each square
    squares: NDArray[np.int64],  # IN OUT (k,)
) -> None:
    """Add the squared distance of each record from its cell's centre, in units of 2^shift, rounded down."""
    for i in range(points.shape[0]):
        c = labels[i]
        if c < 0:
            continue
        distance = np.int64(0)
        for j in range(points.shape[1]):
            step = np.int64(points[i, j]) - centres[c, j]
            distance += step * step
        squares[c] += distance >> shift
