"""Sizes of the rounds of plans, from public facts: grids, trees, shares of the draws, parts of epsilon.

Parameters, the number of features and the expected reports enter; a `PlannedRound` for each round leaves.
Plans and forecasts both use `planned_rounds`, so a forecast shows the rounds that a plan opens.
"""

from sfumato.errors import InvalidSpec
from sfumato.sizing.centroids import grid_kmeans_rounds, ldp_kmeans_rounds, noisy_fcm_rounds, phase_sketch_rounds
from sfumato.sizing.grids import grid_rounds, shifted_grid_rounds
from sfumato.sizing.rounds import PlannedRound
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    Auto,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
)


def planned_rounds(params: Algorithm, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return the rounds of a plan in order, before the first report.

    Parameters
    ----------
    params : Algorithm
        Any algorithm except `Auto`; see `sfumato.forecast.choose`.
    n_features : int
    expected_reports : int
        At least 1.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the features or cells, or epsilon is too small to be divided.
    """
    if isinstance(params, ShiftedGrid):
        return shifted_grid_rounds(params, n_features, expected_reports)
    if isinstance(params, UniformGrid | AdaptiveGridIterative | AdaptiveGridTree):
        return grid_rounds(params, n_features, expected_reports)
    if isinstance(params, PhaseSketch):
        return phase_sketch_rounds(params, n_features, expected_reports)
    if isinstance(params, NoisyFcm):
        return noisy_fcm_rounds(params, n_features, expected_reports)
    if isinstance(params, GridKmeans):
        return grid_kmeans_rounds(params, n_features, expected_reports)
    if isinstance(params, LdpKmeans):
        return ldp_kmeans_rounds(params, n_features, expected_reports)
    assert isinstance(params, Auto)  # noqa: S101 - for the type checker: there is no other
    raise InvalidSpec("auto stands for another algorithm: choose it first")
