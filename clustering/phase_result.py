"""What a run of `phase_sketch` publishes: centroids of a fitted mixture, or of the particles its later rounds moved."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.label_regions import PRIVACY
from clustering.particle_rounds import Standing, cells_of
from clustering.phase_model import Fitted, Limits, Sketch, least_share, standard_errors
from clustering.phase_search import MAX_COUNTED
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import unscale_many
from sfumato.mechanisms import ratio
from sfumato.memberships import GaussianMixtureMemberships
from sfumato.sizing import MAX_JSON_INT, sketched_reports
from sfumato.specs import Feature, Mechanism

DETECTABLE = 2.8  # pi |c_1| sqrt(N) of a cluster that noise does not make
_FLOOR_SLACK = 1.01  # a share at the floor is renormalised after


class Told(NamedTuple):
    """What phases a result goes by."""

    features: tuple[Feature, ...]
    sketch: Sketch
    contrast: float  # tanh(eps/2) of the published mechanism; 1 where nothing is perturbed
    limits: Limits
    asked_for: int | None  # clusters
    n_reports: int  # of phases
    n_all_reports: int  # of all rounds


def contrast_of(mechanism: Mechanism) -> float:
    """tanh(eps/2) of the published mechanism; 1 where nothing is perturbed."""
    try:
        odds = ratio(mechanism)
    except ZeroDivisionError:
        return 1.0
    return float(Fraction(odds - 1, odds + 1))


def of_mixture(
    told: Told, fitted: Fitted, criteria: tuple[float, ...] | None = None, more: Mapping[str, Any] | None = None
) -> ClusterModel:
    """The model of a fit, clusters by descending share, errors from the Fisher information."""
    order = np.argsort(-fitted.mixture.shares, kind="stable")
    centres, shares, widths = (part[order] for part in fitted.mixture)
    errors = standard_errors(told.sketch, fitted.mixture)
    centre_errors, share_errors, log_width_errors = (part[order] for part in errors)
    return _model(
        told,
        centres,
        centre_errors,
        shares,
        share_errors,
        {
            "widths": widths.tolist(),
            "width_errors": (widths * log_width_errors).tolist(),
            "cramer_rao_error": sqrt(float((centre_errors**2).mean())),
            "negative_log_likelihood": fitted.nll,
            "bic": None if criteria is None else list(criteria),
            "converged": fitted.converged,
            **(more or {}),
        },
        soft=GaussianMixtureMemberships(tuple(widths.tolist())),
    )


def of_particles(told: Told, standing: Standing, more: Mapping[str, Any]) -> ClusterModel:
    """The model of centroids that later rounds moved, by descending share of particles."""
    cells = cells_of(standing.cloud, standing.centres)
    k = len(standing.centres)
    masses = np.asarray(np.bincount(cells.labels, standing.cloud.weights, minlength=k), dtype=np.float64)
    order = np.argsort(-masses, kind="stable")
    return _model(
        told,
        standing.centres[order],
        standing.errors[order],
        masses[order],
        standing.share_errors[order],
        {"widths": np.sqrt((cells.spreads[order] ** 2).mean(axis=1)).tolist(), **more},
    )


def _model(
    told: Told,
    centres: NDArray[np.float64],
    centre_errors: NDArray[np.float64],
    shares: NDArray[np.float64],
    share_errors: NDArray[np.float64],
    more: Mapping[str, Any],
    soft: GaussianMixtureMemberships | None = None,
) -> ClusterModel:
    n_eff = told.n_all_reports * told.contrast**2
    effective_needed = sketched_reports(told.sketch.n_features, len(shares))
    needed = min(ceil(effective_needed / told.contrast**2), MAX_JSON_INT)
    low_confidence = n_eff < effective_needed
    detectable = _detectable(shares, told)
    ranges = np.array([feature.upper - feature.lower for feature in told.features])
    return ClusterModel(
        type="centroids",
        features=told.features,
        sizes=shares / shares.sum(),
        size_errors=share_errors,
        centroids=unscale_many(told.features, np.clip(centres, 0.0, 1.0)),
        centroid_errors=centre_errors * ranges,
        soft=soft,
        diagnostics={
            "n_reports": told.n_all_reports,
            "n_eff": n_eff,
            "reports_needed": needed,
            "insufficient_reports": low_confidence,
            "low_confidence": low_confidence,
            "detectable": detectable,
            "waves_answered": len(told.sketch.omegas),
            **more,
        },
        warnings=_warnings(told.asked_for, detectable, told.n_all_reports, needed, low_confidence),
        privacy=PRIVACY,
    )


def _detectable(shares: NDArray[np.float64], told: Told) -> list[bool]:
    """Whether a cluster is more than noise makes, and more than the floor the fit gives it."""
    least = DETECTABLE / (abs(told.sketch.harmonics[0]) * sqrt(told.n_reports))
    floor = least_share(len(shares), told.limits) * _FLOOR_SLACK if len(shares) > 1 else 0.0
    return [bool(share >= least and share > floor) for share in shares]


def _warnings(
    clusters: int | None, detectable: Sequence[bool], n_reports: int, needed: int, low_confidence: bool
) -> tuple[str, ...]:
    """What a reader must know before they believe the model, in sentences."""
    said = []
    if low_confidence:
        said.append(
            f"{n_reports} reports at this epsilon are too few to place centroids; about {needed} would do for as many."
        )
    if not all(detectable):
        doubtful = ", ".join(str(cluster) for cluster, is_clear in enumerate(detectable) if not is_clear)
        asked = "" if clusters is None else f" {clusters} were asked for, {sum(detectable)} stand out."
        said.append(f"Clusters that noise could have made, by their share of people: {doubtful}.{asked}")
    if clusters is None and len(detectable) == MAX_COUNTED:
        said.append(f"Clusters are counted up to {MAX_COUNTED}: name their number if there may be more.")
    return tuple(said)
