"""Models of `phase_sketch`: centroids of a fitted mixture, or of particles updated by later rounds."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.expected_ratio import expected_ratio
from clustering.centroids.partition_agreement import Population
from clustering.centroids.verdict import ALONE, BAD_LOSS, Ground, few, ground, rate
from clustering.circles import Circles
from clustering.density.label_map import PRIVACY, describe_convergence
from clustering.phases.edges import edge_share_of_phases
from clustering.phases.gaussian_components import Components, round_shape
from clustering.phases.halves import agreement_of_halves
from clustering.phases.incremental_mixture import PARTICLES
from clustering.phases.initialisation import MAX_COUNTED, CountedFit, search
from clustering.phases.mixture_fit import Fitted, Limits, Mixture, Sketch, least_share, standard_errors
from clustering.phases.particles import CentroidState, predict_cells, sample_components
from clustering.random import PublicWords
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.memberships import GaussianMixtureMemberships
from sfumato.model.outside import with_edge_share
from sfumato.model.precision import Verdict
from sfumato.records.encodings import unscale_errors, unscale_many
from sfumato.sizing.centroids import FEW_CLUSTERS, sketched_reports
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import Feature, Mechanism

CLEAR_GAIN = 3.0  # least gains of a reliable number of clusters
LITTLE_GAIN = 1.4  # mean gain below which the number is doubtful
DETECTABLE = 2.8  # least pi |c_1| sqrt(N) of a cluster that is distinguishable from noise
_FLOOR_SLACK = 1.01  # tolerance, because shares at the floor are rescaled


class PhaseData(NamedTuple):
    """The phases of a run, and what its model needs to know about them."""

    features: tuple[Feature, ...]
    sketch: Sketch
    contrast: float  # tanh(eps/2) of the published mechanism; 1 without perturbation
    limits: Limits
    n_requested: int | None  # clusters
    n_reports: int  # reports of phases
    n_all_reports: int  # reports of all rounds
    may_clip: bool  # whether values outside of the bounds were moved to them

    @property
    def circles(self) -> Circles:
        """Return the map to points on circles for periodic features."""
        return Circles(len(self.features), self.limits.circles)


def contrast_of(mechanism: Mechanism) -> float:
    """Return tanh(eps/2) of the published mechanism; 1 without perturbation."""
    try:
        odds = mechanism.ratio()
    except ZeroDivisionError:
        return 1.0
    return float(Fraction(odds - 1, odds + 1))


class ClusterCount(NamedTuple):
    """The number of clusters that was estimated, and how far the reports support it."""

    lower: int
    upper: int | None  # None if the reports do not bound it
    n_supported: int  # greatest number of clusters that the reports can count
    bic: list[float | None]  # element i is the criterion of i + 1 clusters, or None
    gains: tuple[float, float] | None = None  # log likelihood over penalty: mean after the first cluster, last cluster

    @classmethod
    def of(cls, counted: CountedFit, n_supported: int) -> "ClusterCount":
        """Return the count of a fit. One cluster, or as many as the reports support, is no upper bound."""
        found = len(counted.fitted.mixture.shares)
        is_bounded = found > 1 and counted.upper < min(n_supported, MAX_COUNTED)
        criteria = [counted.criteria.get(number) for number in range(1, max(counted.criteria) + 1)]
        return cls(counted.lower, counted.upper if is_bounded else None, n_supported, criteria, counted.gains)

    def ground(self) -> Ground:
        """Return the ground of clusters that gain little: where they are clear, each gains many times its penalty.

        Of many clusters, a coarse division gains little, both halves reproduce it, and it has the least criterion.
        """
        if self.gains is None or min(self.gains) >= CLEAR_GAIN:
            return Ground(Verdict.RELIABLE, "")
        mean, last = self.gains
        return Ground(
            Verdict.DOUBTFUL if mean < LITTLE_GAIN else Verdict.UNCERTAIN,
            f"The clusters gain {mean:.1f} times what is needed to count them, and the last one {last:.1f} times. "
            "There may be more or fewer.",
        )

    def describe(self, found: int, data: PhaseData) -> tuple[str, ...]:
        """Return a warning if there may be more clusters than were found."""
        if self.upper is not None:
            return ()
        if self.n_supported >= MAX_COUNTED and found > 1:
            return (f"Clusters are counted up to {MAX_COUNTED}. Give their number if there may be more.",)
        n_features = data.sketch.n_features
        needed = ceil(sketched_reports(n_features, 2 * max(FEW_CLUSTERS, found)) / data.contrast**2)
        limit = (
            f"these reports support a count of at most {self.n_supported}"
            if self.n_supported > 1
            else "these reports are too few to count clusters"
        )
        return (
            f"Found {found} cluster{'s' * (found > 1)}, but there may be more: in {n_features} features {limit}. "
            f"Collect about {min(needed, MAX_JSON_INT)} reports, or give the number of clusters.",
        )


def model_of_mixture(
    data: PhaseData, fitted: Fitted, count: ClusterCount | None = None, more: Mapping[str, Any] | None = None
) -> ClusterModel:
    """Return the model of a fit, clusters by descending share, with errors from the Fisher information."""
    order = np.argsort(-fitted.mixture.shares, kind="stable")
    centres, shares, widths = (part[order] for part in fitted.mixture)
    errors = standard_errors(data.sketch, fitted.mixture)
    centre_errors, share_errors, log_width_errors = (part[order] for part in errors)
    return _model(
        data,
        centres,
        centre_errors,
        shares,
        share_errors,
        {
            "widths": widths.tolist(),
            "width_errors": (widths * log_width_errors).tolist(),
            "cramer_rao_error": sqrt(float((centre_errors**2).mean())),
            "bic": None if count is None else count.bic,
            "cluster_interval": None if count is None else [count.lower, count.upper],
            "supported_clusters": None if count is None else count.n_supported,
            "cluster_gains": None if count is None or count.gains is None else list(count.gains),
            **fitted.diagnostics,
            **(more or {}),
        },
        _draw_population(fitted.mixture, data.circles),
        count,
        soft=GaussianMixtureMemberships(tuple(widths.tolist())),
        mixture=fitted.mixture,
    )


def model_of_particles(data: PhaseData, state: CentroidState, more: Mapping[str, Any]) -> ClusterModel:
    """Return the model of centroids updated by later rounds, by descending share of particles."""
    cells = predict_cells(state.cloud, state.centres)
    k = len(state.centres)
    masses = np.asarray(np.bincount(cells.labels, state.cloud.weights, minlength=k), dtype=np.float64)
    order = np.argsort(-masses, kind="stable")
    return _model(
        data,
        data.circles.along(state.centres[order]),
        state.errors[order],
        masses[order],
        state.share_errors[order],
        {"widths": np.sqrt((cells.spreads[order] ** 2).sum(axis=1) / len(data.features)).tolist(), **more},
        Population(state.cloud.points, state.cloud.weights),
    )


def _model(
    data: PhaseData,
    centres: NDArray[np.float64],
    centre_errors: NDArray[np.float64],
    shares: NDArray[np.float64],
    share_errors: NDArray[np.float64],
    more: Mapping[str, Any],
    population: Population,
    count: ClusterCount | None = None,
    soft: GaussianMixtureMemberships | None = None,
    mixture: Mixture | None = None,
) -> ClusterModel:
    n_eff = data.n_all_reports * data.contrast**2
    effective_needed = sketched_reports(data.sketch.n_features, len(shares))
    needed = min(ceil(effective_needed / data.contrast**2), MAX_JSON_INT)
    low_confidence = n_eff < effective_needed
    detectable = _detectable(shares, data)
    counted = () if count is None else (ground(Verdict.DOUBTFUL, ALONE, applies=len(shares) == 1), count.ground())
    within = data.sketch.n_features * float(shares @ np.square(more["widths"]))
    agreement = agreement_of_halves(data.sketch, population, data.circles.to_points(centres), data.limits)
    estimate = expected_ratio("phase_sketch", shares, centre_errors, within, effective_needed / n_eff)
    centroids = unscale_many(data.features, np.clip(centres, 0.0, 1.0))
    edges = None
    if data.may_clip and not data.limits.circles:  # clipped values of the plain features lie all along a circle
        fitted = mixture or search(data.sketch, len(shares), data.limits, PublicWords(0)).mixture
        edges = edge_share_of_phases(data.sketch, fitted, data.limits)
    model = ClusterModel(
        type="centroids",
        features=data.features,
        sizes=shares / shares.sum(),
        size_errors=share_errors,
        centroids=centroids,
        centroid_errors=unscale_errors(data.features, centroids, centre_errors),
        soft=soft,
        diagnostics={
            "n_reports": data.n_all_reports,
            "n_eff": n_eff,
            "reports_needed": needed,
            "insufficient_reports": low_confidence,
            "low_confidence": low_confidence,
            "expected_ratio": estimate.to_wire(),
            "refits": agreement.to_wire(),
            "detectable": detectable,
            "waves_answered": len(data.sketch.omegas),
            **more,
        },
        warnings=(
            *_warnings(data.n_requested, detectable, data.n_all_reports, needed, low_confidence),
            *(() if count is None else count.describe(len(shares), data)),
            *describe_convergence(more),
        ),
        privacy=PRIVACY,
        **rate(estimate.loss, agreement, few(is_low=low_confidence), *counted, bad_from=BAD_LOSS),
    )
    return with_edge_share(model, edges)


def _draw_population(mixture: Mixture, circles: Circles) -> Population:
    components = Components(mixture.centres, mixture.shares, mixture.widths[:, None])
    points = sample_components(round_shape(mixture.centres.shape[1]), components, PARTICLES, PublicWords(0))
    return Population(np.clip(circles.to_points(points), 0.0, 1.0), np.full(PARTICLES, 1 / PARTICLES))


def _detectable(shares: NDArray[np.float64], data: PhaseData) -> list[bool]:
    """Return whether each cluster exceeds the noise, and the least share of the fit."""
    least = DETECTABLE / (abs(data.sketch.harmonics[0]) * sqrt(data.n_reports))
    floor = least_share(len(shares), data.limits) * _FLOOR_SLACK if len(shares) > 1 else 0.0
    return [bool(share >= least and share > floor) for share in shares]


def _warnings(
    clusters: int | None, detectable: Sequence[bool], n_reports: int, needed: int, low_confidence: bool
) -> tuple[str, ...]:
    """Return the limitations of the model as sentences."""
    messages = []
    if low_confidence:
        messages.append(
            f"{n_reports} reports at this epsilon are too few to place centroids. "
            f"Collect about {needed} reports for this number of clusters."
        )
    if not all(detectable):
        doubtful = ", ".join(str(cluster) for cluster, is_clear in enumerate(detectable) if not is_clear)
        note = "" if clusters is None else f" Of {clusters} requested clusters, {sum(detectable)} are detectable."
        messages.append(f"Clusters that may be noise, by their share: {doubtful}.{note}")
    return tuple(messages)
