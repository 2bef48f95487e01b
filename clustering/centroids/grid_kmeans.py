"""`grid_kmeans`: a frequency oracle over one regular grid, then weighted k-means on its noisy cells.

One round at the full epsilon; the rest is post-processing. It is the baseline for centroids in up to four
features, and the better choice for many tight, unequal clusters. The noise of a grid grows with its
number of cells, so it does not support more than four features.
"""

from math import ceil, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.expected_ratio import expected_ratio
from clustering.centroids.partition_agreement import (
    NOISE,
    REFITS,
    PartitionAgreement,
    Population,
    compare_partitions,
    draw_normal,
)
from clustering.centroids.verdict import BAD_LOSS, few, rate
from clustering.centroids.weighted_kmeans import WeightedFit, weighted_kmeans
from clustering.circles import Circles
from clustering.density.label_map import PRIVACY, project_to_shares
from clustering.errors import TooFewReports, UnfitRound
from clustering.random import PublicWords
from clustering.rounds.decoders import Decoder, decoder
from clustering.rounds.plan import Collected, Plan
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import unscale_errors, unscale_many
from sfumato.sizing import planned_rounds
from sfumato.sizing.centroids import MAX_KMEANS_CELLS as MAX_CELLS
from sfumato.sizing.centroids import MAX_KMEANS_FEATURES as MAX_FEATURES
from sfumato.sizing.required_reports import grid_kmeans_reports
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import Feature, GridEncoding, GridKmeans, circles_of

STARTS = 4  # starts of a refit
STANDS_OUT = (3.0, 2.0)  # thresholds in standard errors; the second applies if the first leaves too little
STANDING_SHARE = 0.7  # minimum share of people in the selected cells


def grid_kmeans(params: GridKmeans, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """Plan one round for all devices at the full epsilon, then `fit`.

    Privacy: epsilon per device, for its one report.

    Parameters
    ----------
    params : GridKmeans
    features : tuple of Feature
        One to four.
    expected_reports : int
        Sizes the grid if `params.cells` is not given.

    Raises
    ------
    InvalidSpec
        The number of features is not supported, or the grid has too many cells.
    TooFewReports, UnfitRound
        See `fit`.
    """
    (only,) = planned_rounds(params, len(features), expected_reports, circles_of(features))
    return fit(params, (yield only.spec(features)))


class SelectedCells(NamedTuple):
    """The noisy cells that k-means uses."""

    places: NDArray[np.int64]  # (n,), indices in the grid
    points: NDArray[np.float64]  # (n, d), middles in [0, 1]^d; points on circles for periodic features
    estimates: NDArray[np.float64]  # (n,), positive, not normalised
    threshold: float  # in standard errors above zero; 0 if all cells were projected
    n_standing: int  # number of cells above three standard errors
    n_tied: int  # number of cells over which normalisation spreads an estimate's noise


def fit(params: GridKmeans, collected: Collected) -> ClusterModel:
    """Fit the model of a collected round with its published grid and mechanism.

    k-means uses the cells above three standard errors, or else above two, if these contain .7 of all
    people and are at least two per cluster. Otherwise it uses all cells, projected onto the simplex. On
    nine data sets at epsilon .25 to 4 this rule was within .01 to .02 of the best of the three choices
    almost everywhere; each choice alone is much worse somewhere.

    Returns
    -------
    ClusterModel
        Centroids by descending size. Sizes are sums over all cells, selected or not, by nearest
        centroid. Standard errors are conditional on the assignment of cells: `size_errors` from the
        decoder, `centroid_errors` by the delta method from the noise of the selected cells and from the
        cells' width. True errors are larger if clusters touch or barely stand out. Diagnostics:

        - n_reports.
        - n_eff: null if nothing was perturbed.
        - reports_needed: N = 10 v k K for k cells, at which the noise of a centroid is a third of its
          cluster's width.
        - insufficient_reports: n_reports is below reports_needed.
        - low_confidence: insufficient_reports, or fewer standing cells than clusters.
        - cells: cells per feature.
        - standing_cells, kept_cells, threshold.
        - inertia: mean squared distance of the selected noisy cells from their centroids in scaled
          units, an estimate of the NICV.
        - restarts.
        - expected_ratio: see `clustering.centroids.expected_ratio`.
        - refits: see `clustering.centroids.partition_agreement`.

    Raises
    ------
    TooFewReports
        The round has no reports.
    UnfitRound
        The round is not a regular grid over one to four features, or its mechanism carries no information.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, GridEncoding) or encoding.n_features > MAX_FEATURES:
        raise UnfitRound(f"grid_kmeans needs a round over a regular grid of 1 to {MAX_FEATURES} features")
    if encoding.n_symbols > MAX_CELLS:
        raise UnfitRound(f"a round of grid_kmeans may have at most {MAX_CELLS} cells")
    if tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    features = collected.spec.features
    circles = Circles(len(features), circles_of(features))
    decoding = decoder(collected.spec.mechanism)
    estimates = decoding.frequencies(tally)[0]
    middles = circles.to_points(_middles(encoding))
    kept = select_cells(middles, estimates, sqrt(decoding.variance(0.0, tally.n_reports)), params.clusters)
    found = weighted_kmeans(kept.points, kept.estimates, params.clusters, PublicWords(params.seed))
    sizes, size_errors = _sizes(middles, decoding, estimates, found.centres, tally.n_reports)
    noise = noise_errors(kept, found, decoding, tally.n_reports, circles)
    errors = circles.limit_errors(np.hypot(noise, width_errors(encoding, kept, found)))
    order = np.argsort(-sizes, kind="stable")
    centroids = unscale_many(features, circles.along(found.centres[order]))
    diagnostics = _diagnostics(params.clusters, encoding, decoding, kept, found, tally.n_reports)
    lack = diagnostics["reports_needed"] / tally.n_reports
    estimate = expected_ratio("grid_kmeans", sizes, errors, diagnostics["inertia"], lack)
    agreement = _compare_refits(params, middles, decoding, kept, found, tally.n_reports)
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=sizes[order],
        size_errors=size_errors[order],
        centroids=centroids,
        centroid_errors=unscale_errors(features, centroids, errors[order]),
        diagnostics={**diagnostics, "expected_ratio": estimate.to_wire(), "refits": agreement.to_wire()},
        warnings=_warnings(params.clusters, len(sizes), diagnostics),
        privacy=PRIVACY,
        **rate(estimate.loss, agreement, few(is_low=diagnostics["low_confidence"]), bad_from=BAD_LOSS),
    )


def _compare_refits(
    params: GridKmeans,
    middles: NDArray[np.float64],
    decoding: Decoder,
    kept: SelectedCells,
    found: WeightedFit,
    n_reports: int,
) -> PartitionAgreement:
    """Return the agreement of refits to cells around the selected ones, with new noise."""
    words = PublicWords(params.seed)
    shares = np.zeros(len(middles))
    shares[kept.places] = kept.estimates / kept.estimates.sum()
    variances = (decoding.zero_variance + shares * max(decoding.slope_variance, 0.0)) / n_reports
    refits = []
    for _ in range(REFITS):
        noise = NOISE * np.sqrt(variances) * draw_normal(words, len(middles))
        drawn = shares + noise - noise.mean()
        again = select_cells(middles, drawn, sqrt(decoding.variance(0.0, n_reports)), params.clusters)
        refits.append(weighted_kmeans(again.points, again.estimates, params.clusters, words, STARTS).centres)
    return compare_partitions("grid", Population(kept.points, kept.estimates), found.centres, refits)


def select_cells(
    middles: NDArray[np.float64], estimates: NDArray[np.float64], deviation: float, clusters: int
) -> SelectedCells:
    """Select the cells with these middles, (n, d), for k-means; see `fit`."""
    standing = [np.flatnonzero(estimates > z * deviation) for z in STANDS_OUT]
    for z, places in zip(STANDS_OUT, standing, strict=True):
        if len(places) >= 2 * clusters and estimates[places].sum() >= STANDING_SHARE:
            return SelectedCells(places, middles[places], estimates[places], z, len(standing[0]), len(middles))
    shares = project_to_shares(estimates)
    places = np.flatnonzero(shares > 0)
    return SelectedCells(places, middles[places], shares[places], 0.0, len(standing[0]), len(places))


def noise_errors(
    kept: SelectedCells, found: WeightedFit, decoding: Decoder, n_reports: int, circles: Circles
) -> NDArray[np.float64]:
    """Return standard errors of centroids from the cells' noise and the sampling of devices: (n_clusters, d).

    A centroid is sum f x / sum f over its selected cells, so f has the influence w = (x - centroid) / sum f.
    Normalisation of the estimates subtracts the mean of w over its n cells:
    N Var = v' (sum w^2 - (sum w)^2 / n) + (u + 1) sum f w^2. The influence on a circular mean follows from its
    derivatives (`Circles.slopes`).
    """
    d = circles.n_along
    pulls = (kept.points - found.centres[found.labels]) / found.masses[found.labels][:, None]
    if circles.places:
        pulls = np.einsum("nij,nj->ni", circles.slopes(found.centres)[found.labels], pulls)
    n_clusters = len(found.centres)
    errors = np.empty((n_clusters, d))
    for j in range(d):
        total, square, weighted = (
            np.bincount(found.labels, weights=values, minlength=n_clusters)
            for values in (pulls[:, j], pulls[:, j] ** 2, kept.estimates * pulls[:, j] ** 2)
        )
        spread = np.maximum(square - total**2 / kept.n_tied, 0.0)
        coins = decoding.spread_variance * spread + max(decoding.slope_variance + 1, 0.0) * weighted
        errors[:, j] = np.sqrt(coins / n_reports)
    return errors


def width_errors(encoding: GridEncoding, kept: SelectedCells, found: WeightedFit) -> NDArray[np.float64]:
    """Return standard errors of centroids from the cells' width: (n_clusters, d).

    The mean position of people within a cell is unknown. If it is uniform over the cell and independent
    between cells, it adds h^2/12 times the sum of the cells' squared shares.
    """
    squares = np.bincount(found.labels, weights=kept.estimates**2, minlength=len(found.centres)) / found.masses**2
    return np.asarray(np.sqrt(squares[:, None] / 12) / np.array(encoding.cells), dtype=np.float64)


def _sizes(
    middles: NDArray[np.float64],
    decoding: Decoder,
    estimates: NDArray[np.float64],
    centres: NDArray[np.float64],
    n_reports: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return unbiased sums over the cells nearest to each centre, projected onto the simplex, and their errors."""
    nearest = ((centres**2).sum(axis=1) - 2 * middles @ centres.T).argmin(axis=1)
    n_cells = np.bincount(nearest, minlength=len(centres))
    sums = np.bincount(nearest, weights=estimates, minlength=len(centres)).astype(np.float64)
    spreads = np.asarray(n_cells * (1 - n_cells / len(middles)), dtype=np.float64)
    errors = decoding.standard_errors(spreads, n_cells, sums, n_reports)
    return project_to_shares(sums), errors


def _middles(encoding: GridEncoding) -> NDArray[np.float64]:
    """Return the middles of all cells in row-major order: (k, d)."""
    places = np.indices(encoding.cells).reshape(encoding.n_features, -1).T
    return np.asarray((places + 0.5) / np.array(encoding.cells), dtype=np.float64)


def _diagnostics(
    clusters: int, encoding: GridEncoding, decoding: Decoder, kept: SelectedCells, found: WeightedFit, n_reports: int
) -> dict[str, Any]:
    n_eff = n_reports * decoding.signal
    least = grid_kmeans_reports(decoding.zero_variance, encoding.n_symbols, clusters)
    needed = int(min(max(1, ceil(least)), MAX_JSON_INT))
    within = sum(1 / cells**2 for cells in encoding.cells) / 12  # variance of people spread evenly over a cell
    return {
        "n_reports": n_reports,
        "n_eff": n_eff if isfinite(n_eff) else None,
        "reports_needed": needed,
        "insufficient_reports": n_reports < needed,
        "low_confidence": n_reports < needed or kept.n_standing < clusters,
        "cells": list(encoding.cells),
        "standing_cells": kept.n_standing,
        "kept_cells": len(kept.places),
        "threshold": kept.threshold,
        "inertia": found.inertia / float(kept.estimates.sum()) + within,
        "restarts": found.restarts,
    }


def _warnings(clusters: int, n_found: int, diagnostics: dict[str, Any]) -> tuple[str, ...]:
    """Return the limitations of the model, as sentences."""
    warnings = []
    n_reports, needed, n_standing = (diagnostics[name] for name in ("n_reports", "reports_needed", "standing_cells"))
    if n_reports < needed:
        warnings.append(f"{n_reports} reports are few for this grid and epsilon; about {needed} give stable centroids.")
    if n_standing < clusters:
        warnings.append(
            f"{clusters} clusters were requested, but only {n_standing} cells stand out from noise: "
            "some centroids may be noise only."
        )
    if n_found < clusters:
        warnings.append(f"Only {n_found} cells contain people, so there are {n_found} clusters.")
    return tuple(warnings)
