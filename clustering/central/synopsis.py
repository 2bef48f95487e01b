"""Noisy counts of disjoint cells, and k-means on the middles of the cells.

A synopsis is a query answer, so all functions here are post-processing without privacy cost.
"""

from collections.abc import Mapping
from math import floor, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import GridCells, from_places
from clustering.central.model import NoisyCount, build_centroid_model, build_warnings, is_clear
from clustering.central.posterior_counts import estimate_counts
from clustering.centroids.centroid_statistics import spread_places
from clustering.centroids.partition_agreement import (
    NOISE,
    REFITS,
    PartitionAgreement,
    Population,
    compare_partitions,
    draw_laplace,
    draw_normal,
    refit,
)
from clustering.centroids.weighted_kmeans import SWAPS, weighted_kmeans
from clustering.kernels.kmeans import weighted_lloyd_step
from clustering.random import PublicWords
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import Feature

MAX_VALUES = 1 << 19  # cells times features; k-means takes about a second
THETA = 10.0  # constant of Su et al. 2016 that balances a cell's width against its noise


class Synopsis(NamedTuple):
    """Disjoint cells with noisy counts."""

    middles: NDArray[np.float64]  # (n, d), in [0, 1]
    sides: NDArray[np.float64]  # (n, d), as shares of each feature's range
    counts: NDArray[np.float64]  # (n,), possibly negative
    variances: NDArray[np.float64]  # (n,), noise variances of the counts

    def positive_cells(self) -> "Synopsis":
        """Return the cells with positive counts, which k-means uses."""
        return Synopsis(*(part[self.counts > 0] for part in self))


def choose_grid_shape(n_features: int, cells: int, max_cells: int) -> tuple[int, ...]:
    """Return the cells per feature: `cells`, or fewer so that the grid has at most `max_cells`.

    If even two cells per feature are too many, the last features are not split.
    """
    max_cells = min(max_cells, MAX_VALUES // n_features)
    while cells > 2 and cells**n_features > max_cells:
        cells -= 1
    n_split = min(n_features, floor(log2(max_cells)))
    return (cells,) * n_split + (1,) * (n_features - n_split)


def build_grid_synopsis(cells: GridCells, counts: NDArray[np.int64], variance: float) -> Synopsis:
    """Build the synopsis of a regular grid with this noise variance of its counts."""
    shape = np.array(cells.shape)
    left = np.arange(cells.n_cells)
    places = np.empty((cells.n_cells, len(shape)), dtype=np.int64)
    for j in reversed(range(len(shape))):  # np.indices supports fewer than 64 features
        left, places[:, j] = np.divmod(left, shape[j])
    return Synopsis(
        middles=(places + 0.5) / shape,
        sides=np.broadcast_to(1 / shape, places.shape),
        counts=counts.astype(np.float64),
        variances=np.full(len(counts), variance),
    )


def fit_centres(
    synopsis: Synopsis, clusters: int, seed: int, weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Run weighted k-means on the cells with positive counts and return the centres, (k, d) in [0, 1].

    There are fewer centres than `clusters` if there are fewer such cells. If there is none, the
    centres are public, spread-out places. `weights` of all cells replace their counts.
    """
    kept = synopsis.counts > 0
    if not kept.any():
        return from_places(spread_places(clusters, synopsis.middles.shape[1], seed))
    weights = synopsis.counts if weights is None else weights
    return weighted_kmeans(synopsis.middles[kept], weights[kept], clusters, PublicWords(seed), swaps=SWAPS).centres


def shrink_counts(synopsis: Synopsis) -> NDArray[np.float64]:
    """Return posterior means of the counts. A cell expects its share of the box's volume of all records.

    Many empty cells of a grid have positive counts. Together they outweigh small clusters and attract centres.
    """
    volumes = synopsis.sides.prod(axis=1)
    expected = max(float(synopsis.counts.sum()), 1.0) * volumes / volumes.sum()
    return estimate_counts(synopsis.counts, np.sqrt(synopsis.variances / 2), expected)


class ClusterEstimates(NamedTuple):
    """Estimates about the clusters of given centres."""

    counts: NDArray[np.float64]  # (k,), sum over all cells nearest to each centre; unbiased, possibly negative
    count_variances: NDArray[np.float64]  # (k,)
    centre_errors: NDArray[np.float64]  # (k, d)
    spreads: NDArray[np.float64]  # (k,), root mean square distance; NaN for a centre without cells


def estimate_clusters(synopsis: Synopsis, centres: NDArray[np.float64]) -> ClusterEstimates:
    """Estimate counts, errors and spreads of clusters. Each cell belongs to its nearest centre.

    A centre is c = sum g x / sum g over its cells with positive count g and middle x. The noise of the
    counts gives it the variance sum Var(g) (x - c)^2 / (sum g)^2. The unknown positions of records
    within cells of side h, taken as uniform, add sum g^2 h^2 / 12 / (sum g)^2. Both are conditional on
    the assignment of cells to centres.
    """
    k = len(centres)
    all_labels, labels = _nearest(synopsis, centres), _nearest(kept := synopsis.positive_cells(), centres)
    masses = np.bincount(labels, weights=kept.counts, minlength=k)
    with np.errstate(divide="ignore", invalid="ignore"):
        pulls = (kept.middles - centres[labels]) / masses[labels][:, None]
        shares = kept.counts / masses[labels]
        noise = kept.variances[:, None] * pulls**2 + (shares[:, None] * kept.sides) ** 2 / 12
        squares = ((kept.middles - centres[labels]) ** 2 + kept.sides**2 / 12).sum(axis=1)
        spreads = np.sqrt(np.bincount(labels, weights=kept.counts * squares, minlength=k) / masses)
    errors = np.array([np.bincount(labels, weights=column, minlength=k) for column in noise.T]).T
    errors[masses == 0] = 1.0  # a centre without cells is unknown
    return ClusterEstimates(
        counts=np.bincount(all_labels, weights=synopsis.counts, minlength=k).astype(np.float64),
        count_variances=np.bincount(all_labels, weights=synopsis.variances, minlength=k).astype(np.float64),
        centre_errors=np.sqrt(errors),
        spreads=np.asarray(spreads, dtype=np.float64),
    )


def build_synopsis_model(
    features: tuple[Feature, ...],
    synopsis: Synopsis,
    centres: NDArray[np.float64],
    clusters: int,
    epsilon_nano: int,
    noisy_count: NoisyCount,
    diagnostics: Mapping[str, Any],
) -> ClusterModel:
    """Build the model of centres that were computed from a synopsis.

    Parameters
    ----------
    features : tuple of Feature
    synopsis : Synopsis
    centres : ndarray of shape (k, d)
        In [0, 1]^d.
    clusters : int
        Requested number of clusters.
    epsilon_nano : int
        Cost per record; see `is_clear`.
    noisy_count : NoisyCount
        Number of all records.
    diagnostics : mapping
        Further entries besides noisy_count, low_confidence, cells and kept_cells.
    """
    found = estimate_clusters(synopsis, centres)
    n_kept = int((synopsis.counts > 0).sum())
    return build_centroid_model(
        features,
        centres,
        found.counts,
        found.count_variances,
        centre_errors=found.centre_errors,
        spreads=found.spreads,
        agreement=_compare_refits(synopsis, centres),
        diagnostics={
            "noisy_count": noisy_count.value,
            "low_confidence": n_kept < clusters or not is_clear(noisy_count, epsilon_nano, clusters),
            "cells": len(synopsis.counts),
            "kept_cells": n_kept,
            **diagnostics,
        },
        warnings=build_warnings(noisy_count, epsilon_nano, clusters, len(centres)),
    )


def _compare_refits(synopsis: Synopsis, centres: NDArray[np.float64]) -> PartitionAgreement:
    """Return the agreement of refits of k-means to counts with new noise and sampling of records."""
    words = PublicWords(0)
    weights = np.maximum(shrink_counts(synopsis), 0.0)
    population = Population(synopsis.middles, weights) if weights.any() else Population(centres, np.ones(len(centres)))
    refits = []
    for _ in range(REFITS):
        noise = NOISE * np.sqrt(synopsis.variances / 2) * draw_laplace(words, len(weights))
        sampled = weights + np.sqrt(weights) * draw_normal(words, len(weights))
        drawn = synopsis._replace(counts=sampled + noise)
        kept = drawn.positive_cells()
        has_cells = len(kept.counts) > 0
        refits.append(refit(Population(kept.middles, kept.counts), centres, words) if has_cells else centres)
    return compare_partitions("synopsis", population, centres, refits)


def _nearest(synopsis: Synopsis, centres: NDArray[np.float64]) -> NDArray[np.int64]:
    labels = np.empty(len(synopsis.counts), dtype=np.int64)
    sums, masses = np.empty_like(centres), np.empty(len(centres))
    points = np.ascontiguousarray(synopsis.middles)
    weighted_lloyd_step(points, synopsis.counts, np.ascontiguousarray(centres), labels, sums, masses)
    return labels
