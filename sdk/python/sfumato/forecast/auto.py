"""Selection of an algorithm by `auto`, from public facts."""

from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.errors import InvalidSpec
from sfumato.forecast.noise import contrast, to_report_count
from sfumato.forecast.warnings import insufficient_of, limitations_of
from sfumato.sizing.centroids import MAX_KMEANS_FEATURES
from sfumato.sizing.grids import MAX_MAP_FEATURES, MAX_SHIFTED_FEATURES
from sfumato.sizing.required_reports import GRID_FEATURES, MU_NEEDS_FEATURES
from sfumato.sizing.rounds import MAX_JSON_INT, MIN_EFFECTIVE_REPORTS, effective_reports
from sfumato.specs import (
    MAX_FEATURES,
    MAX_SKETCHED_CLUSTERS,
    Algorithm,
    Auto,
    CentralAlgorithm,
    DensityMap,
    GridKmeans,
    PhaseSketch,
    PrivateKmeans,
    ShiftedGrid,
)
from sfumato.specs.attributes import Categorical
from sfumato.validation import require_at_least

# N tanh^2(eps/2) below which a grid's centroids are better than a sketch's, with four features and any K. See
# docs/benchmarks/auto.md.
GRID_REPORTS = 1000.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm that `auto` selects.

    Attributes
    ----------
    algorithm : Algorithm
        Any algorithm except `Auto`.
    reason : str
        Reason and limitations as sentences.
    """

    algorithm: Algorithm
    reason: str


def choose(params: Auto, n_features: int, expected_reports: int, attributes: Sequence[Categorical] = ()) -> Choice:
    """Return the algorithm that `auto` runs. It depends on public facts alone, so every replay selects the same.

    Parameters
    ----------
    params : Auto
    n_features : int
        1..64.
    expected_reports : int
        Number of devices expected to participate, at least 1.
    attributes : sequence of Categorical
        Attributes by which the job clusters.

    Raises
    ------
    InvalidSpec
        The number of features or reports is invalid, or no algorithm supports so many clusters.
    """
    if not 1 <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"auto takes 1 to {MAX_FEATURES} features, not {n_features}")
    require_at_least(expected_reports, 1, "expected_reports")
    if params.mu is not None:
        raise InvalidSpec("mu must be absent over reports, which have a pure guarantee: give epsilon")
    if params.delta:
        raise InvalidSpec(
            "delta must be absent over reports, which have a pure guarantee: auto takes one only over records"
        )
    if params.bounds != "declared":
        raise InvalidSpec("private bounds are only for a dataset of records: use the declared bounds")
    algorithm: Algorithm
    if attributes and not _suits_map(params, n_features, expected_reports, attributes):
        algorithm = PhaseSketch(params.epsilon, params.clusters)
        why = "phase_sketch finds centroids with the shares of categories."
    elif n_features <= MAX_SHIFTED_FEATURES and params.shape == "round":
        clusters = params.clusters
        algorithm = PhaseSketch(params.epsilon) if clusters is None else GridKmeans(params.epsilon, clusters)
        why = f"{algorithm.type} finds centroids of round clusters."
    elif n_features <= MAX_SHIFTED_FEATURES:
        algorithm = ShiftedGrid(params.epsilon, params.clusters)
        why = f"shifted_grid finds clusters of any shape in up to {MAX_SHIFTED_FEATURES} features."
    elif n_features <= MAX_KMEANS_FEATURES and params.clusters is not None and expected_reports < sketched_from(params):
        algorithm = GridKmeans(params.epsilon, params.clusters)
        many = params.clusters > MAX_SKETCHED_CLUSTERS
        why = (
            f"grid_kmeans finds centroids of more than {MAX_SKETCHED_CLUSTERS} clusters, which phase_sketch does not."
            if many
            else f"grid_kmeans finds centroids; below {sketched_from(params)} reports at this epsilon it does "
            "better than phase_sketch."
        )
    elif params.clusters is not None and params.clusters > MAX_SKETCHED_CLUSTERS:
        raise InvalidSpec(f"above {MAX_KMEANS_FEATURES} features auto finds at most {MAX_SKETCHED_CLUSTERS} clusters")
    else:
        algorithm = PhaseSketch(params.epsilon, params.clusters)
        why = f"phase_sketch finds centroids. Label maps need too many cells above {MAX_SHIFTED_FEATURES} features."
    features = "1 feature" if n_features == 1 else f"{n_features} features"
    insufficient = insufficient_of(algorithm, n_features, expected_reports, attributes)
    limits = limitations_of(algorithm, expected_reports) if insufficient is None else [insufficient.reason]
    return Choice(algorithm, " ".join([f"{features}: {why}", *limits]))


def _suits_map(params: Auto, n_features: int, expected_reports: int, attributes: Sequence[Categorical]) -> bool:
    """Return whether `shifted_grid` finds the clusters of each category of one attribute, at least one in each."""
    if n_features > MAX_SHIFTED_FEATURES or params.shape == "round" or len(attributes) > 1:
        return False
    n_categories = len(attributes[0].categories)
    if params.clusters is not None and params.clusters < n_categories:
        return False
    needed = MIN_EFFECTIVE_REPORTS * n_categories**2
    return effective_reports(expected_reports, params.epsilon_nano) >= needed


def resolve(
    params: Algorithm, n_features: int, expected_reports: int, attributes: Sequence[Categorical] = ()
) -> tuple[Algorithm, str | None]:
    """Return the algorithm that runs over reports, and the reason if `auto` selected it.

    Raises
    ------
    InvalidSpec
        See `choose`.
    """
    if not isinstance(params, Auto):
        return params, None
    choice = choose(params, n_features, expected_reports, attributes)
    return choice.algorithm, choice.reason


def sketched_from(params: Auto) -> int:
    """Return the reports from which `auto` selects phase_sketch in four features, or 2**53 if it never does."""
    if params.clusters is not None and params.clusters > MAX_SKETCHED_CLUSTERS:
        return MAX_JSON_INT + 1
    least = to_report_count(GRID_REPORTS / contrast(params.epsilon_nano) ** 2)
    return MAX_JSON_INT + 1 if least is None else least


@dataclass(frozen=True, slots=True)
class CentralChoice:
    """The algorithm that `auto` selects over records.

    Attributes
    ----------
    algorithm : CentralAlgorithm
        Any algorithm except `Auto`.
    reason : str
        Reason as a sentence.
    """

    algorithm: CentralAlgorithm
    reason: str


def choose_central(params: Auto, n_features: int) -> CentralChoice:
    """Return the algorithm that `auto` runs over records, without their number, which is private.

    Parameters
    ----------
    params : Auto
    n_features : int
        1..1536.

    Raises
    ------
    InvalidSpec
        The parameters state a `mu`, and the features are too few for it.
    """
    features = "1 feature" if n_features == 1 else f"{n_features} features"
    if params.mu is not None and n_features <= GRID_FEATURES:
        raise InvalidSpec(MU_NEEDS_FEATURES)
    if params.shape == "any" and n_features <= MAX_MAP_FEATURES:
        reason = f"{features}: density_map finds clusters of any shape in up to {MAX_MAP_FEATURES} features."
        return CentralChoice(DensityMap(params.epsilon, params.clusters, bounds=params.bounds), reason)
    reason = f"{features}: private_kmeans came closest to k-means without noise of all methods over records."
    if params.shape == "any":
        reason += f" Label maps need too many cells above {MAX_MAP_FEATURES} features."
    return CentralChoice(
        PrivateKmeans(params.epsilon, params.clusters, delta=params.delta, bounds=params.bounds, mu=params.mu), reason
    )


def resolve_central(params: CentralAlgorithm | Auto, n_features: int) -> tuple[CentralAlgorithm, str | None]:
    """Return the algorithm that runs over records, and the reason if `auto` selected it.

    Raises
    ------
    InvalidSpec
        See `choose_central`.
    """
    if not isinstance(params, Auto):
        return params, None
    choice = choose_central(params, n_features)
    return choice.algorithm, choice.reason
