"""Records in a grid whose cells have grids of their own."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def two_level_cells(
    points: NDArray[np.int32],  # IN (n, d), places on a lattice
    lattice: int,  # IN, places of a feature
    n_coarse: int,  # IN, coarse cells of a feature
    splits: NDArray[np.int64],  # IN (n_coarse^d,), parts of a feature within each coarse cell, row-major
    starts: NDArray[np.int64],  # IN (n_coarse^d,), number of each coarse cell's first part
    labels: NDArray[np.int64],  # OUT (n,), number of the part each record is in
) -> None:
    """Borders at multiples of 1/n_coarse and 1/(n_coarse split) of the range, in whole numbers: floors nest."""
    for i in range(points.shape[0]):
        coarse = np.int64(0)
        for j in range(points.shape[1]):
            coarse = coarse * n_coarse + np.int64(points[i, j]) * n_coarse // lattice
        m = splits[coarse]
        part = np.int64(0)
        for j in range(points.shape[1]):
            scaled = np.int64(points[i, j]) * n_coarse
            part = part * m + scaled * m // lattice - scaled // lattice * m
        labels[i] = starts[coarse] + part
