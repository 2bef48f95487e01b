"""`dp_uniform_grid_kmeans`: k-means on the cells of one noisy regular grid.

This is EUGkM, the baseline of Zhang and Cheng 2021, with public bounds and corrected privacy accounting.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import GridCells
from clustering.central.curator import Curator
from clustering.central.model import NoisyCount
from clustering.central.queries import split
from clustering.central.synopsis import (
    THETA,
    Synopsis,
    build_grid_synopsis,
    build_synopsis_model,
    choose_grid_shape,
    fit_centres,
    shrink_counts,
)
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature
from sfumato.specs.central import DpDensityPeaks, DpUniformGridKmeans

MAX_CELLS = 1 << 17


def dp_uniform_grid_kmeans(
    params: DpUniformGridKmeans, features: tuple[Feature, ...], curator: Curator
) -> ClusterModel:
    """Count records in a regular grid, once, and run weighted k-means on its cells with positive counts.

    The bounds are public. The weights are posterior means of the counts. Centres start from greedy
    k-means++ on them. The paper leaves both open.

    Privacy: epsilon in total, pure, all of it for `count_grid`; the rest is post-processing.

    Parameters
    ----------
    params : DpUniformGridKmeans
    features : tuple of Feature
    curator : Curator

    Returns
    -------
    ClusterModel

    Raises
    ------
    InvalidSpec
        The grid would have more than 131,072 cells, or epsilon is too small to be divided.
    """

    def find(cells: Synopsis) -> NDArray[np.float64]:
        return fit_centres(cells, params.clusters, params.seed, shrink_counts(cells))

    return fit_grid(params, features, curator, MAX_CELLS, find)


def fit_grid(
    params: DpUniformGridKmeans | DpDensityPeaks,
    features: tuple[Feature, ...],
    curator: Curator,
    max_cells: int,
    find: Callable[[Synopsis], NDArray[np.float64]],
) -> ClusterModel:
    """Count a grid for the whole epsilon, find centres in its synopsis, and build their model."""
    epsilon_nano = params.epsilon_nano
    synopsis, records, shape = count_grid(curator, len(features), epsilon_nano, params.cells, max_cells)
    per_record, diagnostics = epsilon_nano // curator.max_per_user, {"grid_shape": list(shape)}
    return build_synopsis_model(features, synopsis, find(synopsis), params.clusters, per_record, records, diagnostics)


COUNTING = 2  # percent of epsilon for the count that sizes the grid


class CountedGrid(NamedTuple):
    """The noisy counts of a regular grid."""

    synopsis: Synopsis
    records: NoisyCount
    shape: tuple[int, ...]


def count_grid(curator: Curator, n_features: int, epsilon_nano: int, cells: int | None, max_cells: int) -> CountedGrid:
    """Count the records in each cell of a regular grid.

    If `cells` is not given, the grid has M = (N epsilon / 10)^(2d/(2+d)) cells (Su, Cao, Li, Bertino and
    Jin 2016, "Differentially private k-means clustering", equation 8). N is a noisy count that costs a
    fiftieth of epsilon. If even two cells per feature are too many, the last features are not split.

    Privacy: epsilon in total. A record lies in one cell, so all cells together cost as much as one.

    Parameters
    ----------
    curator : Curator
    n_features : int
    epsilon_nano : int
        Total cost.
    cells : int or None
        Cells per feature.
    max_cells : int
        Maximum number of cells in total.

    Returns
    -------
    CountedGrid

    Raises
    ------
    InvalidSpec
        `cells` gives more than `max_cells`, or epsilon is too small to be divided. No noise was drawn.
    """
    if cells is not None:
        if cells**n_features > max_cells:
            raise InvalidSpec(f"the grid may have at most {max_cells} cells in total: reduce cells per feature")
        grid = GridCells((cells,) * n_features)
        counts, variance = curator.counts(grid, epsilon_nano), curator.variance(1, epsilon_nano)
        records = NoisyCount(float(counts.sum()), grid.n_cells * variance)
        return CountedGrid(build_grid_synopsis(grid, counts, variance), records, grid.shape)
    for_count, for_cells = split(epsilon_nano, COUNTING, 100 - COUNTING)
    records = NoisyCount(float(curator.count(for_count)), curator.variance(1, for_count))
    per_feature = compute_cells_per_feature(records.value * for_cells / (NANO * curator.max_per_user), n_features)
    grid = GridCells(choose_grid_shape(n_features, per_feature, max_cells))
    synopsis = build_grid_synopsis(grid, curator.counts(grid, for_cells), curator.variance(1, for_cells))
    return CountedGrid(synopsis, records, grid.shape)


def compute_cells_per_feature(records_epsilon: float, n_features: int) -> int:
    """Return m for M = (N epsilon / 10)^(2d/(2+d)) = m^d cells, at least 2."""
    return max(2, round(float(max(records_epsilon / THETA, 0.0) ** (2 / (2 + n_features)))))
