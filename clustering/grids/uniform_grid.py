"""`uniform_grid`: one plain grid with joined dense cells; method UGC of Zhang et al. 2023, corrected.

Differences from the paper: one round at the full epsilon replaces two at half. The grid is as
fine as dense cells are distinguishable from noise, instead of Theorem 1. Integer face adjacency
replaces Definition 9. Unlabelled cells join the nearest cluster, so each place has a label.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.density.cell_centres import cell_centre_errors, cell_size_errors
from clustering.density.confidence import finite
from clustering.density.expected_error import CollectRound, expected_error
from clustering.density.label_map import (
    dense_components,
    fill_nearest,
    keep_largest,
    label_map_model,
    project_to_shares,
    rank_by_mass,
)
from clustering.errors import TooFewReports, UnfitRound
from clustering.grids.cell_regions import cell_bumps, cell_graph, cell_regions, face_pairs
from clustering.grids.uniform_grid_paper import paper_grid_rounds, run_paper_plan
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected, Plan
from sfumato.model.cluster_model import ClusterModel
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import MAX_GRID_FEATURES
from sfumato.sizing.rounds import Z, reports_to_tell
from sfumato.specs import MAX_CLUSTERS, Feature, GridEncoding, UniformGrid


def uniform_grid(params: UniformGrid, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """Return the plan: one round of all devices at the full epsilon, then `fit`.

    Parameters
    ----------
    params : UniformGrid
    features : tuple of Feature
        One to eight.
    expected_reports : int
        Determines the size of the grid unless `params.cells` is given.

    Raises
    ------
    InvalidSpec
        The number of features or cells is not supported.
    TooFewReports, UnfitRound
        From `fit`.
    """
    first, *_ = planned_rounds(params, len(features), expected_reports)
    if params.variant == "paper":
        return (yield from run_paper_plan(params.clusters, lambda: paper_grid_rounds(params, features)))
    return fit(params, (yield first.spec(features)))


def fit(params: UniformGrid, collected: Collected) -> ClusterModel:
    """Return the model of a collected round, with grid and mechanism as published.

    A cell is dense if its estimate exceeds the mean density and z standard errors. Connected dense
    cells form a cluster. For given K, clusters are the K bumps of greatest excess of mass.
    Sizes are sums of the estimates projected to shares (non-negative, sum one). Their errors are
    those of the unprojected sums, which are larger.

    Returns
    -------
    ClusterModel
        A label map over the grid, clusters by descending size. Diagnostics:

        - n_reports; n_eff: null without perturbation.
        - expected_error: see `clustering.density.expected_error.expected_error`.
        - cells: per feature.
        - dense_cells; dense_regions: before the limit on clusters; threshold.
        - reports_needed: for a grid this fine.
        - low_confidence: whether there are fewer reports, or no dense cell.

    Raises
    ------
    TooFewReports
        The round has no reports.
    UnfitRound
        The round is not a plain grid over one to eight features, or carries no information.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, GridEncoding) or encoding.n_features > MAX_GRID_FEATURES:
        raise UnfitRound(f"uniform_grid needs a round of a plain grid over 1 to {MAX_GRID_FEATURES} features")
    n_reports = tally.n_reports
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    reading = decoder(collected.spec.mechanism)
    estimates = reading.frequencies(tally)[0]
    needed = reports_to_tell(encoding.n_symbols, reading.zero_variance)
    cut = _cut(params.clusters, encoding, collected)
    shares = project_to_shares(estimates)
    density = shares.reshape(encoding.cells)
    labels, cell_map = cut.labels.ravel(), np.arange(density.size).reshape(density.shape)

    def relabel(collect: CollectRound) -> NDArray[np.int64]:
        return _cut(params.clusters, encoding, collect(collected.spec, 0)).labels

    return label_map_model(
        collected.spec.features,
        cut.labels,
        density,
        cell_size_errors(labels, shares, reading, n_reports),
        cell_centre_errors(labels, cell_map, estimates, shares, reading, n_reports),
        {
            "n_reports": n_reports,
            "n_eff": finite(n_reports * reading.signal),
            "expected_error": expected_error(relabel, density, (n_reports,)),
            "cells": list(encoding.cells),
            "dense_cells": cut.n_dense_cells,
            "dense_regions": cut.n_dense,
            "threshold": cut.threshold,
            "reports_needed": needed,
            "low_confidence": cut.n_dense == 0 or n_reports < needed,
        },
        _warnings(params.clusters, cut.n_dense, cut.n_found, n_reports, needed),
    )


@dataclass(frozen=True)
class UniformClusters:
    """A grid divided into clusters, with labels by descending size."""

    labels: NDArray[np.int64]
    threshold: float
    n_dense_cells: int
    n_dense: int
    n_found: int


def _cut(clusters: int | None, encoding: GridEncoding, collected: Collected) -> UniformClusters:
    reading, tally = decoder(collected.spec.mechanism), collected.tally
    estimates = reading.frequencies(tally).reshape(encoding.cells)
    threshold = max(1 / encoding.n_symbols, Z * sqrt(reading.variance(0.0, tally.n_reports)))
    dense = estimates > threshold
    components = dense_components(dense)
    n_dense = n_found = int(components.max(initial=-1)) + 1
    if clusters is None:
        labels = fill_nearest(keep_largest(components, estimates, MAX_CLUSTERS))
    else:
        labels, n_found = _greatest(estimates, clusters)
    labels, _ = rank_by_mass(labels, project_to_shares(estimates))
    return UniformClusters(labels, threshold, int(dense.sum()), n_dense, n_found)


def _greatest(estimates: NDArray[np.float64], clusters: int) -> tuple[NDArray[np.int64], int]:
    """Return the regions of the K bumps of greatest excess of mass, and the number of bumps.

    One density threshold does not suit all clusters. Above the noise, it breaks thin clusters
    and misses faint ones; below, it joins clusters. On moons, circles and aniso (150,000 points,
    epsilon .5/1/2), dense regions of one threshold had a mean ARI of .30/.39/.41, these
    regions .42/.55/.91.
    """
    cells = np.arange(estimates.size, dtype=np.int64).reshape(estimates.shape)
    volumes = np.full(estimates.size, 1 / estimates.size)
    graph = cell_graph(estimates.ravel().clip(0), volumes, face_pairs(cells))
    found = cell_bumps(graph, core_density=1.0)
    return cell_regions(graph, found.peaks[:clusters])[cells], len(found.peaks)


def _warnings(clusters: int | None, n_dense: int, n_found: int, n_reports: int, needed: int) -> tuple[str, ...]:
    """Return the limitations of the model as sentences."""
    messages = []
    if n_reports < needed:
        messages.append(
            f"{n_reports} reports are few for a grid this fine at this epsilon. Collect about {needed} reports."
        )
    if n_dense == 0 and clusters is None:
        messages.append("No cell is distinguishable from noise, so there is one cluster.")
    elif n_dense == 0:
        messages.append("No cell is distinguishable from noise, so the clusters may be noise.")
    if clusters is None and n_found > MAX_CLUSTERS:
        messages.append(f"{n_found} dense regions were found; the {MAX_CLUSTERS} of most mass were kept.")
    elif clusters is not None and n_found < clusters:
        messages.append(f"{clusters} clusters were requested, but the grid has only {n_found} bumps.")
    return tuple(messages)
