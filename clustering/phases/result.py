"""Models of `phase_sketch`: centroids of a fitted mixture, or of particles updated by later rounds."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, sqrt
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.expected_ratio import expected_ratio
from clustering.centroids.partition_agreement import PartitionAgreement, Population
from clustering.centroids.verdict import ALONE, BAD_LOSS, Ground, few, ground, rate
from clustering.circles import Circles
from clustering.density.label_map import PRIVACY, describe_convergence
from clustering.phases.cluster_search import MAX_COUNTED, CountedFit
from clustering.phases.edges import MAX_FEATURES, edge_share_of_phases
from clustering.phases.gaussian_components import Components, round_shape
from clustering.phases.halves import agreement_of_halves
from clustering.phases.incremental_mixture import PARTICLES
from clustering.phases.initialisation import search
from clustering.phases.mixture_fit import Fitted, Limits, Mixture, Sketch, least_share, standard_errors
from clustering.phases.particles import CentroidState, predict_cells, sample_components
from clustering.random import PublicWords
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.memberships import GaussianMixtureMemberships
from sfumato.model.outside import EdgeShare, with_edge_share
from sfumato.model.precision import ExpectedLoss, Verdict
from sfumato.records.encodings import unscale_errors, unscale_many
from sfumato.records.mixed import expand_features
from sfumato.sizing.centroids import FEW_CLUSTERS, category_price, sketched_reports
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import Feature, Mechanism, endless_of
from sfumato.specs.attributes import Categorical

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
    attributes: tuple[Categorical, ...] = ()  # attributes that form the clusters
    characters: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)  # (m, J), characters of the sketch's waves

    @property
    def n_effective(self) -> float:
        """Return N tanh^2(eps/2) of the phases."""
        return self.n_reports * self.contrast**2

    def effective_needed(self, n_clusters: int) -> float:
        """Return the N tanh^2(eps/2) that this number of clusters needs."""
        return sketched_reports(len(self.features), n_clusters, len(self.attributes))

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
    def of(cls, counted: CountedFit[Any], n_supported: int) -> "ClusterCount":
        """Return the count of a fit. One cluster, or as many as the reports support, is no upper bound."""
        found = counted.fitted.n_clusters
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
        needed = ceil(data.effective_needed(2 * max(FEW_CLUSTERS, found)) / data.contrast**2)
        limit = (
            f"these reports support a count of at most {self.n_supported}"
            if self.n_supported > 1
            else "these reports are too few to count clusters"
        )
        return (
            f"Found {found} cluster{'s' * (found > 1)}, but there may be more: in {n_features} features {limit}. "
            f"Collect about {min(needed, MAX_JSON_INT)} reports, or give the number of clusters.",
        )


class Found(NamedTuple):
    """The clusters of a model, by descending share."""

    centres: NDArray[np.float64]  # (K, d), as parts of the features' ranges
    centre_errors: NDArray[np.float64]  # (K, d)
    shares: NDArray[np.float64]  # (K,)
    share_errors: NDArray[np.float64]  # (K,)
    widths: NDArray[np.float64]  # (K,), standard deviation in every direction
    categories: tuple[NDArray[np.float64], ...] = ()  # (K, m) for each attribute, shares of its categories
    category_errors: tuple[NDArray[np.float64], ...] = ()


def model_of_mixture(
    data: PhaseData, fitted: Fitted, count: ClusterCount | None = None, more: Mapping[str, Any] | None = None
) -> ClusterModel:
    """Return the model of a fit, clusters by descending share, with errors from the Fisher information."""
    order = np.argsort(-fitted.mixture.shares, kind="stable")
    centres, shares, widths = (part[order] for part in fitted.mixture)
    errors = standard_errors(data.sketch, fitted.mixture)
    centre_errors, share_errors, log_width_errors = (part[order] for part in errors)
    found = Found(centres, centre_errors, shares, share_errors, widths)
    population = _draw_population(fitted.mixture, data.circles)
    return build_model(
        data,
        found,
        agreement_of_halves(data.sketch, population, data.circles.to_points(centres), data.limits),
        {**describe_fit(found, log_width_errors, count), **fitted.diagnostics, **(more or {})},
        count,
        soft=GaussianMixtureMemberships(tuple(widths.tolist())),
        edges=edges_of(data, data.sketch, fitted.mixture),
    )


def describe_fit(found: Found, log_width_errors: NDArray[np.float64], count: ClusterCount | None) -> dict[str, Any]:
    """Return the diagnostics of a fitted mixture."""
    return {
        "widths": found.widths.tolist(),
        "width_errors": (found.widths * log_width_errors).tolist(),
        "cramer_rao_error": sqrt(float((found.centre_errors**2).mean())),
        "bic": None if count is None else count.bic,
        "cluster_interval": None if count is None else [count.lower, count.upper],
        "supported_clusters": None if count is None else count.n_supported,
        "cluster_gains": None if count is None or count.gains is None else list(count.gains),
    }


def model_of_particles(data: PhaseData, state: CentroidState, more: Mapping[str, Any]) -> ClusterModel:
    """Return the model of centroids updated by later rounds, by descending share of particles."""
    cells = predict_cells(state.cloud, state.centres)
    k = len(state.centres)
    masses = np.asarray(np.bincount(cells.labels, state.cloud.weights, minlength=k), dtype=np.float64)
    order = np.argsort(-masses, kind="stable")
    centres = data.circles.along(state.centres[order])
    widths = np.sqrt((cells.spreads[order] ** 2).sum(axis=1) / len(data.features))
    population = Population(state.cloud.points, state.cloud.weights)
    return build_model(
        data,
        Found(centres, state.errors[order], masses[order], state.share_errors[order], widths),
        agreement_of_halves(data.sketch, population, data.circles.to_points(centres), data.limits),
        {"widths": widths.tolist(), **more},
        edges=edges_of(data, data.sketch, None),
    )


def edges_of(data: PhaseData, sketch: Sketch, mixture: Mixture | None) -> EdgeShare | None:
    """Return the share of the people at a corner, from a sketch without categories.

    Without a mixture, that of the requested number of clusters is fitted.
    """
    if not data.may_clip or data.limits.circles:
        return None
    fitted = mixture or search(sketch, data.n_requested or 1, data.limits, PublicWords(0)).mixture
    return edge_share_of_phases(sketch, fitted, data.limits)


def _searches_edges(data: PhaseData) -> bool:
    """Return whether `edges_of` examines the corners to which devices can move values, if there are such.

    Beside a circle, moved values of the plain features lie all along the circle.
    """
    if not data.may_clip or len(endless_of(data.features)) == len(data.features):
        return True
    return not data.limits.circles and len(data.features) <= MAX_FEATURES


def build_model(
    data: PhaseData,
    found: Found,
    agreement: PartitionAgreement,
    more: Mapping[str, Any],
    count: ClusterCount | None = None,
    soft: GaussianMixtureMemberships | None = None,
    edges: EdgeShare | None = None,
) -> ClusterModel:
    """Return the model of clusters, with its verdict, diagnostics and warnings."""
    shares = found.shares
    n_eff = data.n_all_reports * data.contrast**2
    effective_needed = data.effective_needed(len(shares))
    needed = min(ceil(effective_needed / data.contrast**2), MAX_JSON_INT)
    low_confidence = n_eff < effective_needed
    detectable = _detectable(shares, data)
    counted = () if count is None else (ground(Verdict.DOUBTFUL, ALONE, applies=len(shares) == 1), count.ground())
    loss, predictors = _expected_loss(data, found, effective_needed / n_eff)
    model = ClusterModel(
        type="centroids",
        features=expand_features(data.features, data.attributes),
        sizes=shares / shares.sum(),
        size_errors=found.share_errors,
        **_centroids(data, found),
        soft=soft,
        attributes=data.attributes,
        diagnostics={
            "n_reports": data.n_all_reports,
            "n_eff": n_eff,
            "reports_needed": needed,
            "insufficient_reports": low_confidence,
            "low_confidence": low_confidence,
            "expected_ratio": predictors,
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
        **rate(loss, agreement, few(is_low=low_confidence), *counted, bad_from=BAD_LOSS),
    )
    return with_edge_share(model, edges, is_searched=_searches_edges(data))


def _expected_loss(data: PhaseData, found: Found, lack: float) -> tuple[ExpectedLoss | None, dict[str, Any] | None]:
    """Return the expected loss and its diagnostics. It was not measured with categories."""
    if data.attributes:
        return None, None
    within = data.sketch.n_features * float(found.shares @ np.square(found.widths))
    estimate = expected_ratio("phase_sketch", found.shares, found.centre_errors, within, lack)
    return estimate.loss, estimate.to_wire()


class _Centroids(TypedDict):
    """The centroids of a model and their errors."""

    centroids: NDArray[np.float64]
    centroid_errors: NDArray[np.float64]


def _centroids(data: PhaseData, found: Found) -> _Centroids:
    """Return the centroids in the units of the features, then the shares of categories."""
    numeric = unscale_many(data.features, np.clip(found.centres, 0.0, 1.0))
    errors = unscale_errors(data.features, numeric, found.centre_errors)
    return _Centroids(
        centroids=np.hstack([numeric, *found.categories]),
        centroid_errors=np.hstack([errors, *found.category_errors]),
    )


def _draw_population(mixture: Mixture, circles: Circles) -> Population:
    components = Components(mixture.centres, mixture.shares, mixture.widths[:, None])
    points = sample_components(round_shape(mixture.centres.shape[1]), components, PARTICLES, PublicWords(0))
    return Population(np.clip(circles.to_points(points), 0.0, 1.0), np.full(PARTICLES, 1 / PARTICLES))


def _detectable(shares: NDArray[np.float64], data: PhaseData) -> list[bool]:
    """Return whether each cluster exceeds the noise, and the least share of the fit."""
    price = category_price(len(data.attributes))
    least = DETECTABLE * sqrt(price) / (abs(data.sketch.harmonics[0]) * sqrt(data.n_reports))
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
