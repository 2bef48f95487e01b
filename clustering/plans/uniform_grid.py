"""`uniform_grid`: one plain grid, dense cells joined; method UGC of paper 000, made sound (STATISTICS 3.1).

Against the paper: one round at the full epsilon instead of two at half; a grid as fine as
dense cells can be told from noise, instead of Theorem 1; integer face adjacency instead of
Definition 9; unlabelled cells go to the nearest cluster, so that everybody has a label.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.cell_places import cell_centre_errors
from clustering.cell_regions import cell_bumps, cell_graph, cell_regions, face_pairs
from clustering.confidence import finite
from clustering.decoders import decoder
from clustering.errors import TooFewReports, UnfitRound
from clustering.expected_error import Answer, expected_error
from clustering.label_regions import (
    by_mass,
    dense_components,
    fill_nearest,
    keep_largest,
    label_map_model,
    project_to_shares,
    region_totals,
)
from clustering.plan import Collected, Plan
from clustering.plans.uniform_grid_paper import grid_as_printed, printed_plan
from sfumato.cluster_model import ClusterModel
from sfumato.sizing import MAX_GRID_FEATURES, Z, planned_rounds, reports_to_tell
from sfumato.specs import MAX_CLUSTERS, Feature, GridEncoding, UniformGrid


def uniform_grid(params: UniformGrid, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: one round at the full epsilon, for every draw, then `fit`.

    Parameters
    ----------
    params : UniformGrid
    features : tuple of Feature
        One to eight.
    expected_reports : int
        Sizes the grid where `params.cells` does not.

    Raises
    ------
    InvalidSpec
        Another number of features, or too many cells.
    TooFewReports, UnfitRound
        From `fit`.
    """
    first, *_ = planned_rounds(params, len(features), expected_reports)
    if params.variant == "paper":
        return (yield from printed_plan(params.clusters, lambda: grid_as_printed(params, features)))
    return fit(params, (yield first.spec(features)))


def fit(params: UniformGrid, collected: Collected) -> ClusterModel:
    """The model of a collected round, whose grid and mechanism are taken as published.

    Dense cells are those whose estimate exceeds the mean density and z standard errors; those
    that touch are a cluster. Where K is given, the clusters are the K bumps of most excess mass.
    Sizes are sums of the estimates projected to shares (non-negative, of sum one), and
    their errors those of the plain sums, which are larger.

    Returns
    -------
    ClusterModel
        A label map over the grid, clusters by descending size. Diagnostics: n_reports; n_eff
        (null where nothing was perturbed); expected_error (share of people whose label noise is
        expected to have changed, see `clustering.expected_error.expected_error`); cells per
        feature; dense_cells; dense_regions (however many are kept); threshold;
        reports_needed (for a grid this fine); low_confidence (fewer came, or no cell was dense
        and everybody is in one cluster).

    Raises
    ------
    TooFewReports
        The round brought nothing.
    UnfitRound
        The round is not a plain grid over one to eight features, or tells nothing.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, GridEncoding) or encoding.n_features > MAX_GRID_FEATURES:
        raise UnfitRound(f"uniform_grid goes on from a plain grid over 1 to {MAX_GRID_FEATURES} features")
    n_reports = tally.n_reports
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    reading = decoder(collected.spec.mechanism)
    estimates = reading.frequencies(tally)[0]
    needed = reports_to_tell(encoding.n_symbols, reading.zero_variance)
    cut = _cut(params.clusters, encoding, collected)
    shares = project_to_shares(estimates)
    density = shares.reshape(encoding.cells)
    n_cells = np.bincount(cut.labels.ravel())

    def relabel(answer: Answer) -> NDArray[np.int64]:
        return _cut(params.clusters, encoding, answer(collected.spec, 0)).labels

    return label_map_model(
        collected.spec.features,
        cut.labels,
        density,
        reading.standard_errors(n_cells * (1 - n_cells / density.size), region_totals(cut.labels, density), n_reports),
        cell_centre_errors(
            cut.labels.ravel(), np.arange(density.size).reshape(density.shape), estimates, shares, reading, n_reports
        ),
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
class _Cut:
    """A grid cut into clusters: labels by descending size, and what was found."""

    labels: NDArray[np.int64]
    threshold: float
    n_dense_cells: int
    n_dense: int
    n_found: int


def _cut(clusters: int | None, encoding: GridEncoding, collected: Collected) -> _Cut:
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
    labels, _ = by_mass(labels, project_to_shares(estimates))
    return _Cut(labels, threshold, int(dense.sum()), n_dense, n_found)


def _greatest(estimates: NDArray[np.float64], clusters: int) -> tuple[NDArray[np.int64], int]:
    """The regions of the K bumps of most excess mass, over all cells; and how many bumps there are.

    One density threshold cannot serve all clusters: where it lies above noise, thin ones break
    and faint ones go under; where it lies below, they join. On moons, circles and aniso
    (150,000 points, epsilon .5/1/2) dense regions of one threshold had a mean ARI of
    .30/.39/.41, these .42/.55/.91.
    """
    cells = np.arange(estimates.size, dtype=np.int64).reshape(estimates.shape)
    volumes = np.full(estimates.size, 1 / estimates.size)
    graph = cell_graph(estimates.ravel().clip(0), volumes, face_pairs(cells))
    found = cell_bumps(graph, core_density=1.0)
    return cell_regions(graph, found.peaks[:clusters])[cells], len(found.peaks)


def _warnings(clusters: int | None, n_dense: int, n_found: int, n_reports: int, needed: int) -> tuple[str, ...]:
    """What a reader must know before they believe the model, in sentences."""
    said = []
    if n_reports < needed:
        said.append(f"{n_reports} reports are few for a grid this fine at this epsilon; about {needed} would do.")
    if n_dense == 0 and clusters is None:
        said.append("No cell stands out from noise, so everybody is in one cluster.")
    elif n_dense == 0:
        said.append("No cell stands out from noise, so the clusters may be noise alone.")
    if clusters is None and n_found > MAX_CLUSTERS:
        said.append(f"{n_found} dense regions stand out; the {MAX_CLUSTERS} of most mass were kept.")
    elif clusters is not None and n_found < clusters:
        said.append(f"{clusters} clusters were asked for, but the grid has only {n_found} bumps.")
    return tuple(said)
