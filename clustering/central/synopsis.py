"""Noisy counts of disjoint cells, and k-means over their middles: all of it post-processing, which costs nothing."""

from collections.abc import Mapping
from math import floor, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import spread_out
from clustering.central.cells import GridCells, from_places
from clustering.central.model import NoisyCount, cautions, centroid_model, is_clear
from clustering.kernels.weighted_lloyd import weighted_lloyd_step
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Feature

MAX_VALUES = 1 << 19  # cells times features: a second of k-means
THETA = 10.0  # of Su et al. 2016: what weighs a cell's width against its noise


class Synopsis(NamedTuple):
    """Cells and their noisy counts."""

    middles: NDArray[np.float64]  # (n, d), in [0, 1]
    sides: NDArray[np.float64]  # (n, d), as shares of each feature's range
    counts: NDArray[np.float64]  # (n,), some may be negative
    variances: NDArray[np.float64]  # (n,), of the counts' noise

    def kept(self) -> "Synopsis":
        """The cells of positive count: what k-means is run over."""
        return Synopsis(*(part[self.counts > 0] for part in self))


def grid_shape(n_features: int, cells: int, most: int) -> tuple[int, ...]:
    """So many cells for each feature, or as many as keep all within `most`; where that is not two, one for the last."""
    most = min(most, MAX_VALUES // n_features)
    while cells > 2 and cells**n_features > most:
        cells -= 1
    n_split = min(n_features, floor(log2(most)))
    return (cells,) * n_split + (1,) * (n_features - n_split)


def grid_synopsis(cells: GridCells, counts: NDArray[np.int64], variance: float) -> Synopsis:
    """A plain grid's cells, each counted with noise of this variance."""
    shape = np.array(cells.shape)
    left = np.arange(cells.n_cells)
    places = np.empty((cells.n_cells, len(shape)), dtype=np.int64)
    for j in reversed(range(len(shape))):  # not by np.indices, which ends at 63 features
        left, places[:, j] = np.divmod(left, shape[j])
    return Synopsis(
        middles=(places + 0.5) / shape,
        sides=np.broadcast_to(1 / shape, places.shape),
        counts=counts.astype(np.float64),
        variances=np.full(len(counts), variance),
    )


def kmeans_centres(synopsis: Synopsis, clusters: int, seed: int) -> NDArray[np.float64]:
    """Centres by weighted k-means over the cells of positive count; (k, d) in [0, 1].

    Fewer than asked for where fewer cells are left; public, spread-out places where none is.
    """
    kept = synopsis.kept()
    if len(kept.counts) == 0:
        return from_places(spread_out(clusters, synopsis.middles.shape[1], seed))
    return weighted_kmeans(kept.middles, kept.counts, clusters, PublicWords(seed)).centres


class Clusters(NamedTuple):
    """What the cells say of centres."""

    counts: NDArray[np.float64]  # (k,), of all cells nearest to each; unbiased, so that some may be negative
    count_variances: NDArray[np.float64]  # (k,)
    centre_errors: NDArray[np.float64]  # (k, d)
    spreads: NDArray[np.float64]  # (k,), root mean square distance; not a number where no cell is


def read_clusters(synopsis: Synopsis, centres: NDArray[np.float64]) -> Clusters:
    """Counts, errors and spreads of clusters, each cell going to its nearest centre.

    A centre is sum g x / sum g over its cells of positive count g: by their noise it has the
    variance sum Var(g) (x - c)^2 / (sum g)^2; by where in a cell its records lie, taken to be
    anywhere, sum g^2 h^2 / 12 / (sum g)^2. Which cells are kept or change sides is held fixed.
    """
    k = len(centres)
    all_labels, labels = _nearest(synopsis, centres), _nearest(kept := synopsis.kept(), centres)
    masses = np.bincount(labels, weights=kept.counts, minlength=k)
    with np.errstate(divide="ignore", invalid="ignore"):
        pulls = (kept.middles - centres[labels]) / masses[labels][:, None]
        shares = kept.counts / masses[labels]
        noise = kept.variances[:, None] * pulls**2 + (shares[:, None] * kept.sides) ** 2 / 12
        squares = ((kept.middles - centres[labels]) ** 2 + kept.sides**2 / 12).sum(axis=1)
        spreads = np.sqrt(np.bincount(labels, weights=kept.counts * squares, minlength=k) / masses)
    errors = np.array([np.bincount(labels, weights=column, minlength=k) for column in noise.T]).T
    errors[masses == 0] = 1.0  # nothing is known of a place where nobody stands out
    return Clusters(
        counts=np.bincount(all_labels, weights=synopsis.counts, minlength=k).astype(np.float64),
        count_variances=np.bincount(all_labels, weights=synopsis.variances, minlength=k).astype(np.float64),
        centre_errors=np.sqrt(errors),
        spreads=np.asarray(spreads, dtype=np.float64),
    )


def synopsis_model(
    features: tuple[Feature, ...],
    synopsis: Synopsis,
    centres: NDArray[np.float64],
    clusters: int,
    epsilon_nano: int,
    noisy_count: NoisyCount,
    diagnostics: Mapping[str, Any],
) -> ClusterModel:
    """The model of centres that were found in a synopsis.

    Parameters
    ----------
    features : tuple of Feature
    synopsis : Synopsis
    centres : ndarray of shape (k, d)
        In [0, 1]^d.
    clusters : int
        As asked for.
    epsilon_nano : int
        Of one record, see `is_clear`.
    noisy_count : NoisyCount
        Of all records.
    diagnostics : mapping
        Added to: noisy_count, low_confidence, cells, kept_cells.
    """
    read = read_clusters(synopsis, centres)
    n_kept = int((synopsis.counts > 0).sum())
    return centroid_model(
        features,
        centres,
        read.counts,
        read.count_variances,
        centre_errors=read.centre_errors,
        spreads=read.spreads,
        diagnostics={
            "noisy_count": noisy_count.value,
            "low_confidence": n_kept < clusters or not is_clear(noisy_count, epsilon_nano, clusters),
            "cells": len(synopsis.counts),
            "kept_cells": n_kept,
            **diagnostics,
        },
        warnings=cautions(noisy_count, epsilon_nano, clusters, len(centres)),
    )


def _nearest(synopsis: Synopsis, centres: NDArray[np.float64]) -> NDArray[np.int64]:
    labels = np.empty(len(synopsis.counts), dtype=np.int64)
    sums, masses = np.empty_like(centres), np.empty(len(centres))
    points = np.ascontiguousarray(synopsis.middles)
    weighted_lloyd_step(points, synopsis.counts, np.ascontiguousarray(centres), labels, sums, masses)
    return labels
