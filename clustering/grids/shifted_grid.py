"""`shifted_grid`: one round through shifted coarse grids, with deconvolution and excess of mass."""

from math import prod

import numpy as np
from numpy.typing import NDArray

from clustering.density.confidence import Confidence, confidence, describe_bumps
from clustering.density.label_map import label_map_model
from clustering.density.map_division import divide
from clustering.density.shifted_field import centre_errors, size_errors
from clustering.errors import TooFewReports, UnfitRound
from clustering.grids.category_map import CategoryDivision, divide_categories
from clustering.grids.density_fit import fit_density
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected, Plan
from sfumato.model.cluster_model import ClusterModel
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import MAX_FINE_CELLS
from sfumato.sizing.grids import MAX_SHIFTED_FEATURES as MAX_FEATURES
from sfumato.specs import Feature, ShiftedGrid, ShiftedGridEncoding, circles_of
from sfumato.specs.attributes import Categorical


def shifted_grid(
    params: ShiftedGrid,
    features: tuple[Feature, ...],
    expected_reports: int,
    attributes: tuple[Categorical, ...] = (),
) -> Plan:
    """Return the plan: one round of all devices at the full epsilon, then `fit`.

    With an attribute, the clusters are those of the people of each of its categories.

    Parameters
    ----------
    params : ShiftedGrid
    features : tuple of Feature
        One to three.
    expected_reports : int
        Determines s unless `params.cells` is given.
    attributes : tuple of Categorical
        At most one.

    Raises
    ------
    InvalidSpec
        The number of features or attributes is not supported, or the grid is too large to fit.
    TooFewReports, UnfitRound
        From `fit`.
    """
    (only,) = planned_rounds(params, len(features), expected_reports, circles_of(features), attributes)
    return fit(params, (yield only.spec(features)))


def fit(params: ShiftedGrid, collected: Collected) -> ClusterModel:
    """Return the model of a collected round, with encoding and mechanism as published.

    `params` gives the number of clusters and the prior. v comes from the published mechanism and
    N from the tally.

    Returns
    -------
    ClusterModel
        A label map over the fine grid, clusters by descending size. Diagnostics:

        - n_reports; n_eff: null without perturbation.
        - reports_needed: for n_eff = 1e4; low_confidence: whether n_eff is less.
        - delta: mass that noise can fake.
        - detectable: per cluster, whether E >= 8 delta and twice its standard error. With an attribute, its size must
          also be at least twice its error.
        - coarse_cells, fine_cells: per feature.
        - stability and others: see `clustering.density.map_division.MapDivision.diagnostics`.

    Raises
    ------
    TooFewReports
        The round has no reports.
    UnfitRound
        The round is not a shifted grid over one to three features, or carries no information.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, ShiftedGridEncoding) or encoding.n_features > MAX_FEATURES:
        raise UnfitRound(f"shifted_grid needs a round of a shifted grid over 1 to {MAX_FEATURES} features")
    if prod(encoding.fine_shape) > MAX_FINE_CELLS:
        raise UnfitRound(f"a shifted grid may have at most {MAX_FINE_CELLS} fine cells")
    if tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    trust = confidence(tally.n_reports, decoder(collected.spec.mechanism))
    fitted = fit_density(params, encoding, collected)
    if encoding.attributes:
        return _model_of_categories(params, encoding, collected, divide_categories(fitted), trust)
    division = divide(fitted)
    cut, density = division.cut, division.fit.density
    detectable = [
        bump.saddle is None or trust.is_detectable(bump.excess, error)
        for bump, error in zip(cut.bumps, division.excess_errors(), strict=True)
    ]
    return label_map_model(
        collected.spec.features,
        cut.labels,
        density,
        *_errors(encoding, collected, cut.labels, density),
        {
            **trust.diagnostics(),
            **division.diagnostics(),
            "detectable": detectable,
            "coarse_cells": encoding.cells,
            "fine_cells": encoding.fine_cells,
        },
        (*trust.warnings(params.clusters, detectable), *division.warnings()),
        division.verdict(low_confidence=trust.low_confidence),
        division.expected_agreement(),
        division.reason(),
    )


def _model_of_categories(
    params: ShiftedGrid,
    encoding: ShiftedGridEncoding,
    collected: Collected,
    division: CategoryDivision,
    trust: Confidence,
) -> ClusterModel:
    """Return the model with the categories along the last axis of its map. Diagnostics add `categories`."""
    of_sizes, of_centres = _errors(encoding, collected, division.labels, division.density)
    detectable = division.detectable(trust, of_sizes)
    return label_map_model(
        collected.spec.features,
        division.labels,
        division.density,
        of_sizes,
        of_centres,
        {
            **division.diagnostics(trust),
            "detectable": detectable,
            "coarse_cells": encoding.cells,
            "fine_cells": encoding.fine_cells,
        },
        (*describe_bumps(params.clusters, detectable), *division.warnings(trust)),
        division.verdict(trust),
        division.expected_agreement(),
        division.reason(),
        encoding.attributes,
    )


def _errors(
    encoding: ShiftedGridEncoding, collected: Collected, labels: NDArray[np.int64], density: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the errors of the sizes and of the centres."""
    reading = decoder(collected.spec.mechanism)
    return (
        size_errors(encoding, reading, collected.tally, labels, density),
        centre_errors(encoding, reading, collected.tally, labels, density),
    )
