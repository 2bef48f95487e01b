"""`shifted_grid`: one round through shifted coarse grids, deconvolved, cut by excess of mass (STATISTICS 3.2)."""

import numpy as np
from numpy.typing import NDArray

from clustering.bump_count import Bar
from clustering.confidence import confidence
from clustering.decoders import decoder
from clustering.errors import TooFewReports, UnfitRound
from clustering.excess_mass import regions
from clustering.expected_error import Answer, expected_error
from clustering.label_regions import label_map_model
from clustering.plan import Collected, Plan
from clustering.shifted_field import centre_errors, size_errors
from clustering.shifted_fit import Landscape, landscape
from sfumato.cluster_model import ClusterModel
from sfumato.sizing import MAX_FINE_CELLS, planned_rounds
from sfumato.sizing import MAX_SHIFTED_FEATURES as MAX_FEATURES
from sfumato.specs import Feature, ShiftedGrid, ShiftedGridEncoding


def shifted_grid(params: ShiftedGrid, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: one round at the full epsilon, for every draw, then `fit`.

    Parameters
    ----------
    params : ShiftedGrid
    features : tuple of Feature
        One to three.
    expected_reports : int
        Chooses s where `params.cells` does not.

    Raises
    ------
    InvalidSpec
        Another number of features, or a grid too large to fit.
    TooFewReports, UnfitRound
        From `fit`.
    """
    (only,) = planned_rounds(params, len(features), expected_reports)
    return fit(params, (yield only.spec(features)))


def fit(params: ShiftedGrid, collected: Collected) -> ClusterModel:
    """The model of a collected round, whose encoding and mechanism are taken as published.

    `params` gives the number of clusters and the prior; v comes from the published
    mechanism and N from the tally, whatever the plan asked for.

    Returns
    -------
    ClusterModel
        A label map over the fine grid, clusters by descending size. Diagnostics: n_reports;
        n_eff (null where nothing was perturbed); reports_needed (for n_eff = 1e4);
        low_confidence (n_eff is less); delta (the mass noise can fake); expected_error (share of
        people whose label noise is expected to have changed, see
        `clustering.expected_error.expected_error`); excess_mass (E, at a cluster's first
        contact with another), its standard error and detectable (E >= 8 delta and twice that
        error) per cluster; coarse_cells and fine_cells per feature; length_scale (of the prior
        that was taken); iterations and converged of the fit.

    Raises
    ------
    TooFewReports
        The round brought nothing.
    UnfitRound
        The round is not a shifted grid over one to three features, or tells nothing.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, ShiftedGridEncoding) or encoding.n_features > MAX_FEATURES:
        raise UnfitRound(f"shifted_grid goes on from a shifted grid over 1 to {MAX_FEATURES} features")
    if encoding.fine_cells**encoding.n_features > MAX_FINE_CELLS:
        raise UnfitRound(f"a round of more than {MAX_FINE_CELLS} fine cells cannot be fitted")
    if tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    reading = decoder(collected.spec.mechanism)
    trust = confidence(tally.n_reports, reading)
    seen = landscape(params, encoding, collected)
    cut = regions(seen.density, seen.kept())
    errors = [seen.excess_error(bump) for bump in cut.bumps]
    detectable = [
        bump.saddle is None or trust.is_detectable(bump.excess, error)
        for bump, error in zip(cut.bumps, errors, strict=True)
    ]
    return label_map_model(
        collected.spec.features,
        cut.labels,
        seen.density,
        size_errors(encoding, reading, tally, cut.labels, seen.density),
        centre_errors(encoding, reading, tally, cut.labels, seen.density),
        {
            **trust.diagnostics(),
            "expected_error": _expected_error(seen),
            "excess_mass": [bump.excess for bump in cut.bumps],
            "excess_mass_errors": errors,
            "detectable": detectable,
            "coarse_cells": encoding.cells,
            "fine_cells": encoding.fine_cells,
            "length_scale": seen.length_scale,
            "iterations": seen.fitted.steps,
            "converged": seen.fitted.converged,
        },
        trust.warnings(params.clusters, detectable),
    )


def _expected_error(seen: Landscape) -> float:
    """By the fit and the count as they were done: throws are counted by the bar of the released density.

    Reports that nothing perturbs need none.
    """

    def relabel(answer: Answer) -> NDArray[np.int64]:
        again = seen.again(answer(seen.collected.spec, 0))
        is_perturbed = again.collected.spec.mechanism == seen.collected.spec.mechanism
        counted = seen.params.clusters is None and is_perturbed
        return again.labels(seen.bar if counted else Bar(height=0.0, error=0.0))

    return expected_error(relabel, seen.density, (seen.collected.tally.n_reports,))
