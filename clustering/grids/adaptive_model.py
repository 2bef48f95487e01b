"""Estimates and final model of the adaptive grids."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.density.cell_centres import RegionGeometry
from clustering.density.confidence import NOISE_FACTOR, confidence, finite
from clustering.density.expected_error import CollectRound, expected_error, rerun
from clustering.density.label_map import label_map_model, project_to_shares, rank_by_mass
from clustering.errors import TooFewReports
from clustering.grids.adaptive_cells import CellEstimates, ConsistentEstimates, Partition, estimates_of
from clustering.grids.cell_regions import CellBumps, CellGraph, cell_bumps, cell_graph, cell_regions, face_pairs
from clustering.rounds.decoders import Decoder, decoder
from clustering.rounds.plan import Collected
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import MAX_CLUSTERS, Feature, RoundSpec

# Requirements for a bump to count as a cluster if the number of clusters is not given.
MIN_EXCESS = 0.01  # least E, as a share of the population
MIN_CONTRAST = 0.35  # least E/S, the share of the bump's mass above its saddle
COUNTED_ERRORS = 3.0  # least E in standard errors of its region


@dataclass
class RoundEstimates:
    """Estimates from the rounds of one collection so far."""

    history: CellEstimates
    readings: list[Decoder] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)

    def add(self, collected: Collected) -> Partition:
        """Add a round, with cells and mechanism as published. Return its cells."""
        reading = decoder(collected.spec.mechanism)
        partition, estimates = estimates_of(collected, reading)
        self.history.add(partition, estimates, reading, collected.tally.n_reports)
        self.readings.append(reading)
        self.reports.append(collected.tally.n_reports)
        return partition


Rounds = Generator[RoundSpec, Collected, tuple[RoundEstimates, Partition]]


def adaptive_model(
    clusters: int | None,
    features: tuple[Feature, ...],
    progress: RoundEstimates,
    partition: Partition,
    again: Callable[[], Rounds],
) -> ClusterModel:
    """Return the model of the final cells from the estimates of all rounds.

    For given K, clusters are the K bumps of greatest excess of mass. Otherwise they are bumps
    with E >= max(.01, 8 δ), E/S >= .35 and E of at least three standard
    errors of their region. Below N_eff = 1e4 there is one cluster.

    Parameters
    ----------
    clusters : int, optional
    features : tuple of Feature
    progress : RoundEstimates
    partition : Partition
        Final cells.
    again : callable
        Start the rounds from the beginning, for synthetic rounds.

    Returns
    -------
    ClusterModel
        A label map over the finest grid, clusters by descending size. Diagnostics:

        - n_reports: in total; reports_by_round: by round.
        - n_eff: null without perturbation.
        - reports_needed: for n_eff = 1e4; low_confidence: whether n_eff is less.
        - delta: mass that noise can fake.
        - expected_error: see `clustering.density.expected_error.expected_error`.
        - n_cells; levels: number of cells of each level, from 0.
        - excess_mass: per cluster, null for the last component.
        - detectable: per cluster, whether E >= 8 delta and two standard errors of its region.

    Raises
    ------
    TooFewReports
        No round has reports.
    """
    n_reports = progress.history.n_reports
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    trust = confidence(n_reports, progress.readings[-1])
    cut = _cut(clusters, progress, partition)
    excess = [finite(float(e)) for e in cut.excess]
    noise = cut.reconciled.sum_variances(partition, cut.labels)
    detectable = [
        e is None or trust.is_detectable(e, sqrt(error)) for e, error in zip(excess, noise.tolist(), strict=True)
    ]
    sizes = np.bincount(cut.labels, weights=cut.shares)
    misfit = sizes - np.bincount(cut.labels, weights=cut.estimates)
    density = (cut.shares / np.bincount(cut.cells.ravel()))[cut.cells]

    def relabel(collect: CollectRound) -> NDArray[np.int64]:
        other = _cut(clusters, *rerun(again(), collect))
        return other.labels[other.cells]

    return label_map_model(
        features,
        cut.labels[cut.cells],
        density,
        np.sqrt(noise + misfit**2 + (sizes * (1 - sizes)).clip(0) / n_reports),
        _centre_errors(cut, partition, n_reports),
        {
            **trust.diagnostics(),
            "reports_by_round": progress.reports,
            "expected_error": expected_error(relabel, density, tuple(progress.reports)),
            "n_cells": len(cut.labels),
            "levels": np.bincount(partition.levels).tolist(),
            "excess_mass": excess,
            "detectable": detectable,
        },
        trust.warnings(clusters, detectable, refused=trust.low_confidence),
    )


@dataclass(frozen=True)
class AdaptiveClusters:
    """Cells divided into clusters.

    Attributes
    ----------
    reconciled : ConsistentEstimates
    cells : ndarray of shape (boxes,) * n_features, int64
        Cell of each finest box.
    estimates, shares : ndarray of shape (n_cells,), float64
        Unbiased estimates, and published shares (non-negative, sum one).
    labels : ndarray of shape (n_cells,), int64
        0 .. n-1 by descending size.
    excess : ndarray of shape (n,), float64
    """

    reconciled: ConsistentEstimates
    cells: NDArray[np.int64]
    estimates: NDArray[np.float64]
    shares: NDArray[np.float64]
    labels: NDArray[np.int64]
    excess: NDArray[np.float64]


def _cut(clusters: int | None, progress: RoundEstimates, partition: Partition) -> AdaptiveClusters:
    trust = confidence(progress.history.n_reports, progress.readings[-1])
    reconciled = progress.history.reconcile(partition.depth)
    estimates, _ = reconciled.of(partition)
    cells = partition.cell_map()
    # Clip negative estimates: they are noise, and would add to the excess of an empty region.
    graph = cell_graph(estimates.clip(0), partition.volumes, face_pairs(cells))
    found = cell_bumps(graph, core_density=1.0)
    if clusters is None and not trust.low_confidence:
        kept = _count(graph, found, reconciled, partition, trust.delta)
    else:
        kept = np.arange(min(clusters or 1, len(found.peaks)))
    shares = project_to_shares(estimates)
    labels, order = rank_by_mass(cell_regions(graph, found.peaks[kept]), shares)
    return AdaptiveClusters(reconciled, cells, estimates, shares, labels, found.excess[kept][order])


def _centre_errors(cut: AdaptiveClusters, partition: Partition, n_reports: int) -> NDArray[np.float64]:
    """Return standard errors of the centres in [0, 1], from noise and the misfit of shares and estimates."""
    boxes = np.bincount(cut.cells.ravel())
    density = (cut.shares / boxes)[cut.cells]
    places = RegionGeometry.of(cut.labels[cut.cells], density)
    variances = np.empty(places.centres.shape)
    for axis in range(places.centres.shape[1]):
        weights = np.bincount(cut.cells.ravel(), weights=places.weights[:, axis]) / boxes
        misfit = np.bincount(cut.labels, weights=weights * (cut.estimates - cut.shares))
        variances[:, axis] = cut.reconciled.sum_variances(partition, cut.labels, weights) + misfit**2
    return places.errors(variances, n_reports, boxes[cut.cells.ravel()])


def _count(
    graph: CellGraph, found: CellBumps, reconciled: ConsistentEstimates, partition: Partition, delta: float
) -> NDArray[np.int64]:
    """Return the indices of the bumps that count as clusters.

    In addition to the rule for a smooth density, E is compared with the noise of
    its region's cells. For unsmoothed cells this noise is the greater of the two.
    """
    least = np.maximum(max(MIN_EXCESS, NOISE_FACTOR * delta), MIN_CONTRAST * found.mass)
    kept = np.flatnonzero(found.excess >= least)[:MAX_CLUSTERS]
    while True:  # terminates: each pass removes bumps, and the last component stays
        variances = reconciled.sum_variances(partition, cell_regions(graph, found.peaks[kept]))
        is_clear = found.excess[kept] >= COUNTED_ERRORS * np.sqrt(variances)
        if is_clear.all():
            return kept
        kept = kept[is_clear]
