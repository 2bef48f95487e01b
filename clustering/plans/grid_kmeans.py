"""`grid_kmeans`: a frequency oracle over one plain grid, then weighted k-means on its noisy cells, for few features.

One round at the full epsilon; everything after it is post-processing. It is the plain
yardstick for centroids in up to four features, and the better choice where clusters are
tight, many and unequal; a grid's noise grows with its cells, so that more features than
four are out of its reach.
"""

from math import ceil, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.decoders import Decoder, decoder
from clustering.errors import TooFewReports, UnfitRound
from clustering.label_regions import PRIVACY, project_to_shares
from clustering.phase_search import PublicWords
from clustering.plan import Collected, Plan
from clustering.weighted_kmeans import WeightedFit, weighted_kmeans
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import unscale_many
from sfumato.sizing import MAX_JSON_INT, planned_rounds, steady_reports
from sfumato.sizing import MAX_KMEANS_CELLS as MAX_CELLS
from sfumato.sizing import MAX_KMEANS_FEATURES as MAX_FEATURES
from sfumato.specs import Feature, GridEncoding, GridKmeans

STANDS_OUT = (3.0, 2.0)  # standard errors above zero; the second where the first leaves too little
STANDING_SHARE = 0.7  # of all people, that the kept cells must hold


def grid_kmeans(params: GridKmeans, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: one round at the full epsilon, for every draw, then `fit`.

    Parameters
    ----------
    params : GridKmeans
    features : tuple of Feature
        One to four.
    expected_reports : int
        Sizes the grid where `params.cells` does not.

    Raises
    ------
    InvalidSpec
        Another number of features, or too many cells.
    TooFewReports, UnfitRound
        From `fit`.
    """
    (only,) = planned_rounds(params, len(features), expected_reports)
    return fit(params, (yield only.spec(features)))


class Cells(NamedTuple):
    """The noisy cells that k-means is run over."""

    places: NDArray[np.int64]  # (n,), of the cells that are kept
    points: NDArray[np.float64]  # (n, d), their middles in [0, 1]^d
    estimates: NDArray[np.float64]  # (n,), positive; not made to sum to one
    threshold: float  # standard errors above zero that a kept cell stands; 0 where all were projected
    n_standing: int  # cells that stand out by three
    n_tied: int  # cells over which an estimate's noise is spread out by making the sum one


def fit(params: GridKmeans, collected: Collected) -> ClusterModel:
    """The model of a collected round, whose grid and mechanism are taken as published.

    Kept are the cells that stand three standard errors above zero, or two, where those hold
    .7 of all people and are two for each cluster at least; else all, projected onto the
    shares. On nine sets at epsilon .25 to 4 that came within a hundredth or two of the best
    of the three nearly everywhere; any one of them alone loses much somewhere.

    Returns
    -------
    ClusterModel
        Centroids, by descending size. Sizes count all cells, kept or not, by their nearest
        centroid. Errors hold the cells of a cluster fixed: `size_errors` by the decoder,
        `centroid_errors` by the delta method over the noise of the kept cells and by the cells'
        width. Which cells are kept or change sides varies too, so where clusters touch or
        stand out barely the real errors are larger. Diagnostics: n_reports;
        n_eff (null where nothing was perturbed); reports_needed (N = 10 v k K over k cells:
        there a centroid's noise is a third of its cluster's width); insufficient_reports (there are
        fewer); low_confidence (so, or fewer cells that stand out than clusters); cells per feature;
        standing_cells, kept_cells and threshold; inertia (mean squared distance from the nearest centroid in scaled
        units, of the kept noisy cells: an estimate of the NICV); restarts.

    Raises
    ------
    TooFewReports
        The round brought nothing.
    UnfitRound
        The round is not a plain grid over one to four features, or tells nothing.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, GridEncoding) or encoding.n_features > MAX_FEATURES:
        raise UnfitRound(f"grid_kmeans goes on from a plain grid over 1 to {MAX_FEATURES} features")
    if encoding.n_symbols > MAX_CELLS:
        raise UnfitRound(f"a round of more than {MAX_CELLS} cells cannot be fitted")
    if tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    reading = decoder(collected.spec.mechanism)
    estimates = reading.frequencies(tally)[0]
    kept = keep(encoding, estimates, sqrt(reading.variance(0.0, tally.n_reports)), params.clusters)
    found = weighted_kmeans(kept.points, kept.estimates, params.clusters, PublicWords(params.seed))
    sizes, size_errors = _sizes(encoding, reading, estimates, found.centres, tally.n_reports)
    errors = np.hypot(noise_errors(kept, found, reading, tally.n_reports), width_errors(encoding, kept, found))
    order = np.argsort(-sizes, kind="stable")
    features = collected.spec.features
    ranges = np.array([feature.upper - feature.lower for feature in features])
    diagnostics = _diagnostics(params.clusters, encoding, reading, kept, found, tally.n_reports)
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=sizes[order],
        size_errors=size_errors[order],
        centroids=unscale_many(features, found.centres[order]),
        centroid_errors=errors[order] * ranges,
        diagnostics=diagnostics,
        warnings=_warnings(params.clusters, len(sizes), diagnostics),
        privacy=PRIVACY,
    )


def keep(encoding: GridEncoding, estimates: NDArray[np.float64], deviation: float, clusters: int) -> Cells:
    """The cells that k-means is run over, see `fit`."""
    standing = [np.flatnonzero(estimates > z * deviation) for z in STANDS_OUT]
    for z, places in zip(STANDS_OUT, standing, strict=True):
        if len(places) >= 2 * clusters and estimates[places].sum() >= STANDING_SHARE:
            points = _middles(encoding)[places]
            return Cells(places, points, estimates[places], z, len(standing[0]), encoding.n_symbols)
    shares = project_to_shares(estimates)
    places = np.flatnonzero(shares > 0)
    return Cells(places, _middles(encoding)[places], shares[places], 0.0, len(standing[0]), len(places))


def noise_errors(kept: Cells, found: WeightedFit, reading: Decoder, n_reports: int) -> NDArray[np.float64]:
    """Standard errors of centroids over the cells' noise and the devices being a sample: (n_clusters, d).

    A centroid is sum f x / sum f over its kept cells, so f counts by w = (x - centroid) / sum f;
    making estimates sum to one takes the mean of w off over the n cells that share in it:
    N Var = v' (sum w^2 - (sum w)^2 / n) + (u + 1) sum f w^2.
    """
    d = kept.points.shape[1]
    pulls = (kept.points - found.centres[found.labels]) / found.masses[found.labels][:, None]
    n_clusters = len(found.centres)
    errors = np.empty((n_clusters, d))
    for j in range(d):
        total, square, weighted = (
            np.bincount(found.labels, weights=values, minlength=n_clusters)
            for values in (pulls[:, j], pulls[:, j] ** 2, kept.estimates * pulls[:, j] ** 2)
        )
        spread = np.maximum(square - total**2 / kept.n_tied, 0.0)
        coins = reading.spread_variance * spread + max(reading.slope_variance + 1, 0.0) * weighted
        errors[:, j] = np.sqrt(coins / n_reports)
    return errors


def width_errors(encoding: GridEncoding, kept: Cells, found: WeightedFit) -> NDArray[np.float64]:
    """Standard errors of centroids by the cells' width: (n_clusters, d).

    Where in a cell its people's mean lies is not known; taken to be uniform over the cell and
    independent of the other cells', it adds h^2/12 times the sum of squares of the cells' shares.
    """
    squares = np.bincount(found.labels, weights=kept.estimates**2, minlength=len(found.centres)) / found.masses**2
    return np.asarray(np.sqrt(squares[:, None] / 12) / np.array(encoding.cells), dtype=np.float64)


def _sizes(
    encoding: GridEncoding,
    reading: Decoder,
    estimates: NDArray[np.float64],
    centres: NDArray[np.float64],
    n_reports: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unbiased sums over all cells nearest to a centre, projected onto the shares; and the sums' errors."""
    middles = _middles(encoding)
    nearest = ((centres**2).sum(axis=1) - 2 * middles @ centres.T).argmin(axis=1)
    n_cells = np.bincount(nearest, minlength=len(centres))
    sums = np.bincount(nearest, weights=estimates, minlength=len(centres)).astype(np.float64)
    spreads = np.asarray(n_cells * (1 - n_cells / encoding.n_symbols), dtype=np.float64)
    errors = reading.standard_errors(spreads, sums, n_reports)
    return project_to_shares(sums), errors


def _middles(encoding: GridEncoding) -> NDArray[np.float64]:
    """Middles of all cells, row-major: (k, d)."""
    places = np.indices(encoding.cells).reshape(encoding.n_features, -1).T
    return np.asarray((places + 0.5) / np.array(encoding.cells), dtype=np.float64)


def _diagnostics(
    clusters: int, encoding: GridEncoding, reading: Decoder, kept: Cells, found: WeightedFit, n_reports: int
) -> dict[str, Any]:
    n_eff = n_reports * reading.signal
    least = steady_reports(reading.zero_variance, encoding.n_symbols, clusters)
    needed = int(min(max(1, ceil(least)), MAX_JSON_INT))
    within = sum(1 / cells**2 for cells in encoding.cells) / 12  # of people spread evenly over a cell
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
    """What a reader must know before they believe the model, in sentences."""
    said = []
    n_reports, needed, n_standing = (diagnostics[name] for name in ("n_reports", "reports_needed", "standing_cells"))
    if n_reports < needed:
        said.append(f"{n_reports} reports are few for this grid and epsilon; about {needed} would make them steady.")
    if n_standing < clusters:
        said.append(
            f"{clusters} clusters were asked for, but only {n_standing} cells stand out from noise: "
            "some centroids may be noise alone."
        )
    if n_found < clusters:
        said.append(f"Only {n_found} cells hold anybody, so there are {n_found} clusters.")
    return tuple(said)
