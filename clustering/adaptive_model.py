"""What the adaptive grids share: how fine to begin, how rounds are read, and the model at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.adaptive_cells import (
    MAX_CELLS,
    MAX_FEATURES,
    History,
    Partition,
    Reconciled,
    deepest,
    estimates_of,
)
from clustering.cell_regions import CellBumps, CellGraph, cell_bumps, cell_graph, cell_regions, face_pairs
from clustering.decoders import Decoder, decoder, mass_noise
from clustering.errors import TooFewReports
from clustering.label_regions import by_mass, label_map_model, project_to_shares
from clustering.plan import Collected
from clustering.plans.shifted_grid import (
    MAX_JSON_INT,
    MIN_CONTRAST,
    MIN_EFFECTIVE_REPORTS,
    MIN_EXCESS,
    NOISE_FACTOR,
)
from clustering.plans.uniform_grid import reports_needed
from sfumato.cluster_model import ClusterModel
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import MAX_CLUSTERS, Draw, Feature

# r of the detectability rule k <= sqrt(N/v) / (z r), see `start_level`
DENSE_SHARE = 0.25

COUNTED_ERRORS = 3.0  # standard errors of its region that E must have, to be counted as a cluster
DETECTABLE_ERRORS = 2.0  # to be called detectable


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


def check_features(plan: str, features: Sequence[Feature]) -> None:
    """Raise InvalidSpec for a number of features that dyadic cells cannot serve."""
    if not 1 <= len(features) <= MAX_FEATURES:
        raise InvalidSpec(f"{plan} takes 1 to {MAX_FEATURES} features")


def start_level(n_features: int, n_reports: int, epsilon_nano: int) -> int:
    """The finest level whose dense cells can be told from noise, at least 1.

    k <= sqrt(N/v) / (z r), as `uniform_grid` sizes its grid, with r = 1/4: levels come in
    steps of 2**d cells, and cells that cannot be told from noise one by one still add up
    along a cluster.
    """
    level = 1
    while level < deepest(n_features) and 1 << (level + 1) * n_features <= MAX_CELLS:
        k = 1 << (level + 1) * n_features
        if reports_needed(k, decoder(design("auto", k, epsilon_nano)), DENSE_SHARE) > n_reports:
            break
        level += 1
    return level


def draws(shares: Sequence[int]) -> list[Draw]:
    """Intervals of the draw in proportion to whole numbers; they meet and leave no draw out."""
    ends = np.cumsum([0, *shares]).tolist()
    return [Draw.between(lo / ends[-1], hi / ends[-1]) for lo, hi in pairwise(ends)]


def adaptive_model(
    clusters: int | None, features: tuple[Feature, ...], progress: Progress, partition: Partition
) -> ClusterModel:
    """The model of cells, by all that the rounds told of them.

    K given: the K bumps of most excess mass. Else those with E >= max(.01, 8 δ),
    E/S >= .35 (STATISTICS 3.2) and three standard errors of their region; one cluster below
    N_eff = 1e4.

    Returns
    -------
    ClusterModel
        A label map over the finest grid, clusters by descending size. Diagnostics: n_reports,
        in all and by round; n_eff (null where nothing was perturbed); reports_needed (for
        n_eff = 1e4); low_confidence; delta; n_cells and levels (how many cells of each, from 0);
        excess_mass (null for the one that met no other) and detectable (E >= 8 delta
        and two standard errors of its region) per cluster.

    Raises
    ------
    TooFewReports
        No round brought any.
    """
    n_reports = progress.history.n_reports
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    reading = progress.readings[-1]
    n_eff = n_reports * reading.signal
    needed = min(max(1, ceil(MIN_EFFECTIVE_REPORTS / reading.signal)), MAX_JSON_INT)
    low_confidence = n_eff < MIN_EFFECTIVE_REPORTS
    delta = mass_noise(n_reports, reading.contrast)

    reconciled = progress.history.reconcile(partition.depth)
    estimates, _ = reconciled.of(partition)
    cells = partition.cell_map()
    # below zero is noise, and an empty region would count its depth as excess
    graph = cell_graph(estimates.clip(0), partition.volumes, face_pairs(cells))
    found = cell_bumps(graph, core_density=1.0)
    if clusters is None and not low_confidence:
        kept = _count(graph, found, reconciled, partition, delta)
    else:
        kept = np.arange(min(clusters or 1, len(found.peaks)))
    shares = project_to_shares(estimates)
    labels, order = by_mass(cell_regions(graph, found.peaks[kept]), shares)
    excess = [float(e) if isfinite(e) else None for e in found.excess[kept][order]]
    sizes = np.bincount(labels, weights=shares)
    noise = reconciled.sum_variances(partition, labels)
    errors = np.sqrt(noise + (sizes * (1 - sizes)).clip(0) / n_reports)
    detectable = [
        e is None or e >= max(NOISE_FACTOR * delta, DETECTABLE_ERRORS * sqrt(error))
        for e, error in zip(excess, noise.tolist(), strict=True)
    ]
    boxes = np.bincount(cells.ravel())
    return label_map_model(
        features,
        labels[cells],
        (shares / boxes)[cells],
        errors,
        {
            "n_reports": n_reports,
            "reports_by_round": progress.reports,
            "n_eff": n_eff if isfinite(n_eff) else None,
            "reports_needed": needed,
            "low_confidence": low_confidence,
            "delta": delta,
            "n_cells": len(labels),
            "levels": np.bincount(partition.levels).tolist(),
            "excess_mass": excess,
            "detectable": detectable,
        },
        _warnings(clusters, detectable, n_reports, needed, low_confidence),
    )


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


def _warnings(
    clusters: int | None, detectable: Sequence[bool], n_reports: int, needed: int, low_confidence: bool
) -> tuple[str, ...]:
    """What a reader must know before they believe the model, in sentences."""
    said = []
    if low_confidence and clusters is None:
        said.append(
            f"{n_reports} reports at this epsilon are too few to count clusters, so everybody is put in one; "
            f"about {needed} would do, or name the number of clusters."
        )
    elif low_confidence:
        said.append(f"{n_reports} reports are few at this epsilon; about {needed} would make for a steady result.")
    if clusters is not None and len(detectable) < clusters:
        said.append(f"{clusters} clusters were asked for, but the cells have only {len(detectable)} bumps.")
    if not all(detectable):
        doubtful = ", ".join(str(cluster) for cluster, is_clear in enumerate(detectable) if not is_clear)
        said.append(f"Clusters that noise could have made, by their excess mass: {doubtful}.")
    return tuple(said)
