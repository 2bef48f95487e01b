"""`auto`: which algorithm public facts speak for, and why."""

from dataclasses import dataclass

from sfumato.accounting import parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.forecast.limits import at_most_countable, contrast
from sfumato.forecast.verdict import cautions_of, insufficient_of
from sfumato.sizing import MAX_JSON_INT, MAX_KMEANS_FEATURES, MAX_SHIFTED_FEATURES
from sfumato.specs import (
    MAX_FEATURES,
    MAX_SKETCHED_CLUSTERS,
    Algorithm,
    Auto,
    CentralAlgorithm,
    GatedGridKmeans,
    GridKmeans,
    PhaseSketch,
    ShiftedGrid,
)

# N tanh^2(eps/2) below which a grid's centroids are better than a sketch's, with four features, whatever K: see
# the regret in docs/benchmarks.md.
GRID_REPORTS = 1000.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What `auto` stands for.

    Attributes
    ----------
    algorithm : Algorithm
        Never `Auto`.
    reason : str
        For a person: what spoke for it, and what the facts cannot give.
    """

    algorithm: Algorithm
    reason: str


def choose(params: Auto, n_features: int, expected_reports: int) -> Choice:
    """The algorithm that `auto` runs: a pure function of public facts, so that every replay chooses alike.

    Parameters
    ----------
    params : Auto
    n_features : int
        1..64.
    expected_reports : int
        Devices expected to take part, at least 1.

    Raises
    ------
    InvalidSpec
        Another number of features, no reports, or more clusters than any algorithm finds in so
        many features.
    """
    if not 1 <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"auto takes 1 to {MAX_FEATURES} features")
    if expected_reports < 1:
        raise InvalidSpec("expected_reports is at least 1")
    algorithm: Algorithm
    if n_features <= MAX_SHIFTED_FEATURES:
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
        why = (
            f"phase_sketch finds centroids. Label maps are out of reach above {MAX_SHIFTED_FEATURES} features, "
            "and valley_hashing fails on real data, which has few valleys along a line."
        )
    features = "1 feature" if n_features == 1 else f"{n_features} features"
    insufficient = insufficient_of(algorithm, n_features, expected_reports)
    limits = cautions_of(algorithm, expected_reports) if insufficient is None else [insufficient.reason]
    return Choice(algorithm, " ".join([f"{features}: {why}", *limits]))


def sketched_from(params: Auto) -> int:
    """The reports from which on `auto` sketches phases in four features; one more than can be where it never does."""
    if params.clusters is not None and params.clusters > MAX_SKETCHED_CLUSTERS:
        return MAX_JSON_INT + 1
    least = at_most_countable(GRID_REPORTS / contrast(parse_epsilon(params.epsilon)) ** 2)
    return MAX_JSON_INT + 1 if least is None else least


@dataclass(frozen=True, slots=True)
class CentralChoice:
    """What `auto` stands for over records.

    Attributes
    ----------
    algorithm : CentralAlgorithm
        Never `Auto`.
    reason : str
        For a person.
    """

    algorithm: CentralAlgorithm
    reason: str


def choose_central(params: Auto, n_features: int) -> CentralChoice:
    """The algorithm that `auto` runs over records: a pure function of public facts, which their number is not.

    Parameters
    ----------
    params : Auto
        With the number of clusters: no method over records counts them.
    n_features : int
        1..64.

    Raises
    ------
    InvalidSpec
        Another number of features, or no number of clusters.
    """
    if not 1 <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"auto takes 1 to {MAX_FEATURES} features")
    if params.clusters is None:
        raise InvalidSpec("auto over records needs the number of clusters: no method there counts them")
    features = "1 feature" if n_features == 1 else f"{n_features} features"
    reason = f"{features}: gated_grid_kmeans came closest to k-means without noise of all methods over records."
    return CentralChoice(GatedGridKmeans(params.epsilon, params.clusters), reason)
