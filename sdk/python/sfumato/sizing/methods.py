"""The sizing of each local algorithm, registered by its type."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sfumato.errors import InvalidSpec
from sfumato.sizing import required_reports as required
from sfumato.sizing.centroids import grid_kmeans_rounds, ldp_kmeans_rounds, noisy_fcm_rounds, phase_sketch_rounds
from sfumato.sizing.grids import grid_rounds, pass_rounds, shifted_grid_rounds, tree_rounds
from sfumato.sizing.rounds import PlannedRound
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
)

Rounds = Callable[[Any, int, int], tuple[PlannedRound, ...]]
Required = Callable[[Any, int, int], float]


@dataclass(frozen=True, slots=True)
class Method:
    """The sizing of an algorithm.

    Attributes
    ----------
    rounds : callable
        (params, n_features, expected_reports) -> the rounds of the plan, in order.
    required : callable or None
        (params, n_features, expected_reports) -> the number of reports from which a result is not flagged
        `insufficient_reports`. None if the number follows from the detectable mass.
    """

    rounds: Rounds
    required: Required | None = None


METHODS: dict[type[Algorithm], Method] = {
    ShiftedGrid: Method(shifted_grid_rounds),
    UniformGrid: Method(grid_rounds),
    AdaptiveGridIterative: Method(pass_rounds),
    AdaptiveGridTree: Method(tree_rounds),
    NoisyFcm: Method(noisy_fcm_rounds, required.for_noisy_fcm),
    GridKmeans: Method(grid_kmeans_rounds, required.for_grid_kmeans),
    LdpKmeans: Method(ldp_kmeans_rounds, required.for_ldp_kmeans),
    PhaseSketch: Method(phase_sketch_rounds, required.for_phase_sketch),
}


def planned_rounds(
    params: Algorithm, n_features: int, expected_reports: int, circles: tuple[int, ...] = ()
) -> tuple[PlannedRound, ...]:
    """Return the rounds of a plan in order, before the first report.

    Parameters
    ----------
    params : Algorithm
        Any algorithm except `Auto`; see `sfumato.forecast.choose`.
    n_features : int
    expected_reports : int
        At least 1.
    circles : tuple of int
        Indices of the periodic features.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the features, their circles or the cells, or epsilon is too small to be divided.
    """
    if type(params) not in METHODS:
        raise InvalidSpec("auto stands for another algorithm: choose it first")
    params.require_features(n_features)
    if circles and not params.definition.periodic:
        raise InvalidSpec(f"{params.type} does not take periodic features")
    rounds = METHODS[type(params)].rounds(params, n_features, expected_reports)
    return tuple(each.on_circles(circles) for each in rounds) if circles else rounds


def required_reports(params: Algorithm, n_features: int, expected_reports: int) -> float | None:
    """Return the number of reports from which a result of centroids is not flagged, or None for other results.

    With more expected reports, `grid_kmeans` uses more cells and needs more reports. The number is that of the grid for
    `expected_reports`.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the arguments.
    """
    rule = METHODS[type(params)].required
    if rule is None:
        return None
    params.require_features(n_features)
    return rule(params, n_features, expected_reports)
