"""A two-level grid: coarse noisy counts decide how finely each coarse cell is divided."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.cells import two_level_cells
from sfumato.specs import LATTICE


@dataclass(frozen=True, eq=False)
class TwoLevelGrid:
    """A grid of `n_coarse` cells per feature, each of them a grid of `splits` cells per feature (`Cells`).

    Parameters
    ----------
    n_features : int
    n_coarse : int
    splits : ndarray of shape (n_coarse**n_features,), int64
        Divisions per feature of each coarse cell, at least 1, in row-major order.
    """

    n_features: int
    n_coarse: int
    splits: NDArray[np.int64]

    @cached_property
    def n_parts(self) -> NDArray[np.int64]:
        """Return the number of cells in each coarse cell."""
        return np.asarray(self.splits**self.n_features, dtype=np.int64)

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        """Return the coarse cell of each cell."""
        return np.repeat(np.arange(len(self.splits)), self.n_parts)

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return int(self.n_parts.sum())

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        labels = np.empty(len(points), dtype=np.int64)
        starts = np.cumsum(self.n_parts) - self.n_parts
        two_level_cells(points, LATTICE, self.n_coarse, self.splits, starts, labels)
        return labels

    def cells(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the middle and the side of each cell in [0, 1]^d: shapes (n_cells, d) and (n_cells,)."""
        splits = self.splits[self.parents]
        coarse = np.stack(np.unravel_index(self.parents, (self.n_coarse,) * self.n_features), axis=1)
        part = np.arange(self.n_cells) - np.repeat(np.cumsum(self.n_parts) - self.n_parts, self.n_parts)
        middles = np.empty((self.n_cells, self.n_features))
        for j in reversed(range(self.n_features)):
            part, place = np.divmod(part, splits)
            middles[:, j] = (coarse[:, j] + (place + 0.5) / splits) / self.n_coarse
        return middles, 1.0 / (self.n_coarse * splits)


class GridCounts(NamedTuple):
    """Consistent noisy counts of both levels: the cells of a coarse cell add up to its total."""

    middles: NDArray[np.float64]  # (n, d), in [0, 1]; points on circles for periodic features
    sides: NDArray[np.float64]  # (n,)
    counts: NDArray[np.float64]  # (n,)
    scales: NDArray[np.float64]  # (n,), scale of Laplace noise with the same variance
    parents: NDArray[np.int64]  # (n,)
    totals: NDArray[np.float64]  # (n_coarse^d,)
    total_scales: NDArray[np.float64]  # (n_coarse^d,)
    n_parts: NDArray[np.int64]  # (n_coarse^d,)
    coarse_shape: tuple[int, ...]  # coarse cells per feature
    circles: tuple[int, ...] = ()  # indices of the periodic features


def make_consistent(
    grid: TwoLevelGrid,
    coarse: NDArray[np.int64],
    coarse_variance: float,
    fine: NDArray[np.int64],
    fine_variance: float,
) -> GridCounts:
    """Combine the two counts of each coarse cell by inverse variance and spread the difference over its cells.

    Parameters
    ----------
    grid : TwoLevelGrid
    coarse : ndarray of shape (n_coarse**d,), int64
        Noisy counts of the coarse cells.
    coarse_variance : float
        Noise variance of each coarse count.
    fine : ndarray of shape (n_cells,), int64
        Noisy counts of the cells.
    fine_variance : float
        Noise variance of each fine count.
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
    return GridCounts(middles, sides, counts, scales, parents, totals, total_scales, n_parts, shape)
