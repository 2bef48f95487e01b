"""What the adaptive grids share: how fine to begin, how rounds are read, and the model at the end."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.adaptive_cells import (
    History,
    Partition,
    Reconciled,
    estimates_of,
)
from clustering.cell_places import CellPlaces
from clustering.cell_regions import CellBumps, CellGraph, cell_bumps, cell_graph, cell_regions, face_pairs
from clustering.confidence import NOISE_FACTOR, confidence, finite
from clustering.decoders import Decoder, decoder
from clustering.errors import TooFewReports
from clustering.expected_error import Answer, expected_error, rerun
from clustering.label_regions import by_mass, label_map_model, project_to_shares
from clustering.plan import Collected
from sfumato.cluster_model import ClusterModel
from sfumato.specs import MAX_CLUSTERS, Feature, RoundSpec

# What counts as a cluster when their number is left open.
MIN_EXCESS = 0.01  # E, share of all people
MIN_CONTRAST = 0.35  # E/S, share of the cluster above the cell where it meets its neighbour
COUNTED_ERRORS = 3.0  # E in standard errors of its region


@dataclass
class Progress:
    """What the rounds of one collection told so far."""

    history: History
    readings: list[Decoder] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)

    def add(self, collected: Collected) -> Partition:
        """Take a round in, its cells and mechanism as published; returns its cells."""
        reading = decoder(collected.spec.mechanism)
        partition, estimates = estimates_of(collected, reading)
        self.history.add(partition, estimates, reading, collected.tally.n_reports)
        self.readings.append(reading)
        self.reports.append(collected.tally.n_reports)
        return partition


Rounds = Generator[RoundSpec, Collected, tuple[Progress, Partition]]


def adaptive_model(
    clusters: int | None,
    features: tuple[Feature, ...],
    progress: Progress,
    partition: Partition,
    again: Callable[[], Rounds],
) -> ClusterModel:
    """The model of cells, by all that the rounds told of them.

    K given: the K bumps of most excess mass. Else those with E >= max(.01, 8 δ),
    E/S >= .35 (STATISTICS 3.2) and three standard errors of their region; one cluster below
    N_eff = 1e4.

    Parameters
    ----------
    clusters : int, optional
    features : tuple of Feature
    progress : Progress
    partition : Partition
        As adapted by the end.
    again : callable
        The rounds from their beginning, for synthetic people.

    Returns
    -------
    ClusterModel
        A label map over the finest grid, clusters by descending size. Diagnostics: n_reports,
        in all and by round; n_eff (null where nothing was perturbed); reports_needed (for
        n_eff = 1e4); low_confidence; delta; expected_error (share of people whose label noise is
        expected to have changed, see `clustering.expected_error.expected_error`); n_cells and
        levels (how many cells of each, from 0); excess_mass (null for the one that met no
        other) and detectable (E >= 8 delta and two standard errors of its region) per cluster.

    Raises
    ------
    TooFewReports
        No round brought any.
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

    def relabel(answer: Answer) -> NDArray[np.int64]:
        other = _cut(clusters, *rerun(again(), answer))
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
class _Cut:
    """Cells cut into clusters.

    Attributes
    ----------
    reconciled : Reconciled
    cells : ndarray of shape (boxes,) * n_features, int64
        The cell of each finest box.
    estimates, shares : ndarray of shape (n_cells,), float64
        As they are, and as published: non-negative, of sum one.
    labels : ndarray of shape (n_cells,), int64
        0 .. n-1 by descending size.
    excess : ndarray of shape (n,), float64
    """

    reconciled: Reconciled
    cells: NDArray[np.int64]
    estimates: NDArray[np.float64]
    shares: NDArray[np.float64]
    labels: NDArray[np.int64]
    excess: NDArray[np.float64]


def _cut(clusters: int | None, progress: Progress, partition: Partition) -> _Cut:
    trust = confidence(progress.history.n_reports, progress.readings[-1])
    reconciled = progress.history.reconcile(partition.depth)
    estimates, _ = reconciled.of(partition)
    cells = partition.cell_map()
    # below zero is noise, and an empty region would count its depth as excess
    graph = cell_graph(estimates.clip(0), partition.volumes, face_pairs(cells))
    found = cell_bumps(graph, core_density=1.0)
    if clusters is None and not trust.low_confidence:
        kept = _count(graph, found, reconciled, partition, trust.delta)
    else:
        kept = np.arange(min(clusters or 1, len(found.peaks)))
    shares = project_to_shares(estimates)
    labels, order = by_mass(cell_regions(graph, found.peaks[kept]), shares)
    return _Cut(reconciled, cells, estimates, shares, labels, found.excess[kept][order])


def _centre_errors(cut: _Cut, partition: Partition, n_reports: int) -> NDArray[np.float64]:
    """Standard errors of the centres, in [0, 1]: noise, and the misfit of shares and estimates."""
    boxes = np.bincount(cut.cells.ravel())
    density = (cut.shares / boxes)[cut.cells]
    places = CellPlaces.of(cut.labels[cut.cells], density)
    variances = np.empty(places.centres.shape)
    for axis in range(places.centres.shape[1]):
        weights = np.bincount(cut.cells.ravel(), weights=places.weights[:, axis]) / boxes
        misfit = np.bincount(cut.labels, weights=weights * (cut.estimates - cut.shares))
        variances[:, axis] = cut.reconciled.sum_variances(partition, cut.labels, weights) + misfit**2
    return places.errors(variances, n_reports, boxes[cut.cells.ravel()])


def _count(
    graph: CellGraph, found: CellBumps, reconciled: Reconciled, partition: Partition, delta: float
) -> NDArray[np.int64]:
    """The bumps that are clusters when nobody said how many there are, by their place.

    Beside the rule for a smooth density (STATISTICS 3.2), E is told from the noise of its own
    region's cells, which for cells as they are is the greater of the two.
    """
    least = np.maximum(max(MIN_EXCESS, NOISE_FACTOR * delta), MIN_CONTRAST * found.mass)
    kept = np.flatnonzero(found.excess >= least)[:MAX_CLUSTERS]
    while True:  # ends: the one that met no other stays, and each turn has fewer
        variances = reconciled.sum_variances(partition, cell_regions(graph, found.peaks[kept]))
        is_clear = found.excess[kept] >= COUNTED_ERRORS * np.sqrt(variances)
        if is_clear.all():
            return kept
        kept = kept[is_clear]
