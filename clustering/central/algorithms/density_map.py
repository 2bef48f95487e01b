"""`density_map`: a label map from the noisy counts of one grid over records."""

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import GridCells
from clustering.central.curator import Curator
from clustering.central.model import PRIVACY, NoisyCount
from clustering.central.queries import split
from clustering.density.confidence import DETECTABLE_ERRORS, describe_bumps
from clustering.density.count_fit import CountFit, fit_counts
from clustering.density.label_map import label_map_model
from clustering.density.map_division import divide
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import NANO
from sfumato.sizing.grids import MAP_INFORMATION, choose_map_grid
from sfumato.specs import DensityMap, Feature, circles_of

COUNTING = 2  # percent of epsilon for the count that determines the grid


def density_map(params: DensityMap, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Count records in a regular grid, fit a smooth density to the counts, and cut it into its bumps.

    The fit, the tree of the bumps, the counting rule and the expected agreement are those of `shifted_grid`.
    The counts are not deconvolved, because records lie in one grid without shifts.

    Privacy: epsilon in total, pure. A record lies in one cell, so all cells together cost as much as
    one. The rest is post-processing. One histogram needs no Gaussian noise: its L1 and L2 sensitivities
    are equal, so Laplace noise is smaller at each delta of the service.

    Parameters
    ----------
    params : DensityMap
    features : tuple of Feature
        One to three.
    curator : Curator

    Returns
    -------
    ClusterModel
        A label map over the grid, clusters by descending size. Diagnostics:

        - noisy_count: of all records.
        - grid_shape: cells per feature.
        - stability and others: see `clustering.density.map_division.MapDivision.diagnostics`.
        - detectable: per cluster, whether E is at least twice its standard error.
        - records_needed: with fewer, low_confidence is set.

    Raises
    ------
    InvalidSpec
        The number of features is not supported, the grid has too many cells, or epsilon is too small to
        be divided. Nothing was charged.
    """
    params.require_features(len(features))
    counted = count_map(params, len(features), curator)
    fit = fit_counts(
        counted.counts,
        counted.scale,
        max(counted.records.value, 1.0),
        length_scale=counted.length_scale,
        amplitude=params.amplitude,
        clusters=params.clusters,
        circles=circles_of(features),
    )
    return _build_model(features, fit, counted.records, params.epsilon_nano // curator.max_per_user)


class MapCounts(NamedTuple):
    """The noisy counts of a label map's cells."""

    counts: NDArray[np.int64]  # (cells,) * n_features
    scale: float  # scale of the Laplace noise
    records: NoisyCount
    length_scale: float


def count_map(params: DensityMap, n_features: int, curator: Curator) -> MapCounts:
    """Count all records, choose the grid by `choose_map_grid`, and count the records in each cell.

    The number of records combines both answers by their variances.

    Privacy: epsilon in total, of which the first count costs a fiftieth.
    """
    for_count, for_cells = split(params.epsilon_nano, COUNTING, 100 - COUNTING)
    first, first_variance = curator.count(for_count), curator.variance(1, for_count)
    scale = count_scale(params.epsilon_nano, curator.max_per_user)
    cells, length_scale = choose_map_grid(n_features, first / scale)
    grid = GridCells((params.cells or cells,) * n_features)
    counts = curator.counts(grid, for_cells)
    variance = grid.n_cells * curator.variance(1, for_cells)
    share = first_variance / max(first_variance + variance, 1e-9)  # both are zero at the largest epsilon
    records = NoisyCount(first + share * (int(counts.sum()) - first), share * variance)
    return MapCounts(counts.reshape(grid.shape), scale, records, params.length_scale or length_scale)


def count_scale(epsilon_nano: int, max_per_user: int) -> float:
    """Return the scale of the Laplace noise of the counts of cells, for at most so many records per user."""
    _, for_cells = split(epsilon_nano, COUNTING, 100 - COUNTING)
    return NANO * max_per_user / for_cells


def _build_model(features: tuple[Feature, ...], fit: CountFit, records: NoisyCount, epsilon_nano: int) -> ClusterModel:
    """Build the label map of a fit. `epsilon_nano` is the cost per record."""
    division = divide(fit)
    cut = division.cut
    detectable = [
        bump.saddle is None or bump.excess >= DETECTABLE_ERRORS * error
        for bump, error in zip(cut.bumps, division.excess_errors(), strict=True)
    ]
    needed = ceil(MAP_INFORMATION * NANO / max(epsilon_nano, 1))
    low_confidence = records.lower_bound < needed
    warnings = (*describe_bumps(fit.clusters, detectable), *division.warnings())
    if low_confidence:
        warnings = (
            f"About {max(0, round(records.value))} records are few for a label map at this epsilon: clusters may be "
            f"missing or noise. About {needed} would make them clear.",
            *warnings,
        )
    model = label_map_model(
        features,
        cut.labels,
        fit.density,
        fit.size_errors(cut.labels),
        fit.centre_errors(cut.labels),
        {
            "noisy_count": records.value,
            "records_needed": needed,
            "low_confidence": low_confidence,
            **division.diagnostics(),
            "detectable": detectable,
            "grid_shape": list(fit.density.shape),
        },
        warnings,
        division.verdict(low_confidence=low_confidence),
        division.expected_agreement(),
        division.reason(),
    )
    return replace(model, privacy=PRIVACY)
