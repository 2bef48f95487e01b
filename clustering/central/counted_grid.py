"""A plain grid, counted once: its cells given, or sized by a noisy count of the records."""

from typing import NamedTuple

from clustering.central.budget import split
from clustering.central.cells import GridCells
from clustering.central.model import NoisyCount
from clustering.central.synopsis import THETA, Synopsis, grid_shape, grid_synopsis
from clustering.curator import Curator
from sfumato.accounting import NANO
from sfumato.errors import InvalidSpec

COUNTING = 2  # parts in a hundred of epsilon for the count that sizes the grid


class CountedGrid(NamedTuple):
    """What was counted."""

    synopsis: Synopsis
    records: NoisyCount
    shape: tuple[int, ...]


def counted_grid(
    curator: Curator, n_features: int, epsilon_nano: int, cells: int | None, most_cells: int
) -> CountedGrid:
    """Count the records in each cell of a grid, for the whole of epsilon.

    M = (N epsilon / 10)^(2d/(2+d)) cells where none are given (Su, Cao, Li, Bertino and Jin 2016,
    "Differentially private k-means clustering", equation 8), N being a noisy count that costs a
    fiftieth of epsilon. Where even two cells per feature are too many, the last features are not
    parted.

    Privacy: records are in one cell each, so all cells together cost what one does.

    Raises
    ------
    InvalidSpec
        More cells are given than `most_cells`, in all; nothing was drawn.
    """
    if cells is not None:
        if cells**n_features > most_cells:
            raise InvalidSpec(f"so many cells per feature make more than {most_cells} in all")
        grid = GridCells((cells,) * n_features)
        counts, variance = curator.counts(grid, epsilon_nano), curator.variance(1, epsilon_nano)
        records = NoisyCount(float(counts.sum()), grid.n_cells * variance)
        return CountedGrid(grid_synopsis(grid, counts, variance), records, grid.shape)
    for_count, for_cells = split(epsilon_nano, COUNTING, 100 - COUNTING)
    records = NoisyCount(float(curator.count(for_count)), curator.variance(1, for_count))
    wanted = cells_per_feature(records.value * for_cells / (NANO * curator.max_per_user), n_features)
    grid = GridCells(grid_shape(n_features, wanted, most_cells))
    synopsis = grid_synopsis(grid, curator.counts(grid, for_cells), curator.variance(1, for_cells))
    return CountedGrid(synopsis, records, grid.shape)


def cells_per_feature(records_epsilon: float, n_features: int) -> int:
    """m of M = (N epsilon / 10)^(2d/(2+d)) = m^d cells; 2 at least."""
    return max(2, round(float(max(records_epsilon / THETA, 0.0) ** (2 / (2 + n_features)))))
