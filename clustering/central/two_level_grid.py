"""A grid that is finer where there is more: coarse noisy counts say how each coarse cell is divided."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.two_level_grid import two_level_cells
from sfumato.specs import LATTICE


@dataclass(frozen=True, eq=False)
class TwoLevelGrid:
    """A grid with `n_coarse` cells a feature, each of which is a grid with `splits` cells a feature (`Cells`).

    Parameters
    ----------
    n_features : int
    n_coarse : int
    splits : ndarray of shape (n_coarse**n_features,), int64
        At least 1 each, coarse cells row-major.
    """

    n_features: int
    n_coarse: int
    splits: NDArray[np.int64]

    @cached_property
    def n_parts(self) -> NDArray[np.int64]:
        """Cells in each coarse cell."""
        return np.asarray(self.splits**self.n_features, dtype=np.int64)

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        """The coarse cell each cell is in."""
        return np.repeat(np.arange(len(self.splits)), self.n_parts)

    @property
    def n_cells(self) -> int:
        return int(self.n_parts.sum())

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        labels = np.empty(len(points), dtype=np.int64)
        starts = np.cumsum(self.n_parts) - self.n_parts
        two_level_cells(points, LATTICE, self.n_coarse, self.splits, starts, labels)
        return labels

    def cells(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Middle and side of each cell in [0, 1]^d: ndarrays of shape (n_cells, d) and (n_cells,)."""
        splits = self.splits[self.parents]
        coarse = np.stack(np.unravel_index(self.parents, (self.n_coarse,) * self.n_features), axis=1)
        part = np.arange(self.n_cells) - np.repeat(np.cumsum(self.n_parts) - self.n_parts, self.n_parts)
        middles = np.empty((self.n_cells, self.n_features))
        for j in reversed(range(self.n_features)):
            part, place = np.divmod(part, splits)
            middles[:, j] = (coarse[:, j] + (place + 0.5) / splits) / self.n_coarse
        return middles, 1.0 / (self.n_coarse * splits)


class CellCounts(NamedTuple):
    """Noisy counts of both levels, made consistent: a coarse cell's parts add up to its total."""

    middles: NDArray[np.float64]  # (n, d), in [0, 1]
    sides: NDArray[np.float64]  # (n,)
    counts: NDArray[np.float64]  # (n,)
    scales: NDArray[np.float64]  # (n,), of Laplace noise that varies as much
    parents: NDArray[np.int64]  # (n,)
    totals: NDArray[np.float64]  # (n_coarse^d,)
    total_scales: NDArray[np.float64]  # (n_coarse^d,)
    n_parts: NDArray[np.int64]  # (n_coarse^d,)
    coarse_shape: tuple[int, ...]  # coarse cells of each feature


def consistent(
    grid: TwoLevelGrid,
    coarse: NDArray[np.int64],
    coarse_variance: float,
    fine: NDArray[np.int64],
    fine_variance: float,
) -> CellCounts:
    """Weigh both answers about each coarse cell by their variances, and give the difference to its parts evenly.

    Parameters
    ----------
    grid : TwoLevelGrid
    coarse : ndarray of shape (n_coarse**d,), int64
        Noisy counts of the coarse cells.
    coarse_variance : float
        Of each one's noise.
    fine : ndarray of shape (n_cells,), int64
        Noisy counts of the cells.
    fine_variance : float
    """
    n_parts, parents = grid.n_parts, grid.parents
    summed = np.bincount(parents, fine, len(n_parts))
    summed_variances = fine_variance * n_parts
    total_variances = 1 / (1 / coarse_variance + 1 / summed_variances)
    totals = total_variances * (coarse / coarse_variance + summed / summed_variances)
    counts = fine + ((totals - summed) / n_parts)[parents]
    variances = fine_variance * (1 - 1 / n_parts[parents]) + (total_variances / n_parts**2)[parents]
    middles, sides = grid.cells()
    scales, total_scales = np.sqrt(variances / 2), np.sqrt(total_variances / 2)
    shape = (grid.n_coarse,) * grid.n_features
    return CellCounts(middles, sides, counts, scales, parents, totals, total_scales, n_parts, shape)
