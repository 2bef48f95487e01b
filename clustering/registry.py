"""Which plan runs which algorithm."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clustering.plan import Plan
from clustering.plans.adaptive_grid_iterative import adaptive_grid_iterative
from clustering.plans.adaptive_grid_tree import adaptive_grid_tree
from clustering.plans.grid_kmeans import grid_kmeans
from clustering.plans.ldp_kmeans import ldp_kmeans
from clustering.plans.noisy_fcm import noisy_fcm
from clustering.plans.phase_sketch import phase_sketch
from clustering.plans.shifted_grid import shifted_grid
from clustering.plans.uniform_grid import uniform_grid
from clustering.plans.valley_hashing import valley_hashing
from sfumato.errors import InvalidSpec
from sfumato.forecast import Choice, choose
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    Auto,
    Feature,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
    ValleyHashing,
    to_wire,
)

_PLANS: dict[type[Algorithm], Callable[[Any, tuple[Feature, ...], int], Plan]] = {
    ShiftedGrid: shifted_grid,
    UniformGrid: uniform_grid,
    AdaptiveGridIterative: adaptive_grid_iterative,
    AdaptiveGridTree: adaptive_grid_tree,
    ValleyHashing: valley_hashing,
    NoisyFcm: noisy_fcm,
    GridKmeans: grid_kmeans,
    LdpKmeans: ldp_kmeans,
    PhaseSketch: phase_sketch,
}


def start(params: Algorithm, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan of an algorithm, before its first round.

    Parameters
    ----------
    params : Algorithm
        The algorithm's dataclass; its type chooses the plan. `Auto` runs what
        `sfumato.forecast.choose` chooses, and the model's diagnostics say what and why.
    features : tuple of Feature
        The public bounds records are scaled by.
    expected_reports : int
        How many devices are expected to answer, at least 1; sizes grids, nothing else.

    Raises
    ------
    InvalidSpec
        Not an algorithm this version knows. What the algorithm cannot take, such as too many
        features, is raised when the plan is asked for its first round.
    """
    if isinstance(params, Auto) and expected_reports >= 1:
        return _chosen(choose(params, len(features), expected_reports), features, expected_reports)
    if type(params) not in _PLANS:
        raise InvalidSpec("unknown algorithm")
    if expected_reports < 1:
        raise InvalidSpec("expected_reports is at least 1")
    return _PLANS[type(params)](params, features, expected_reports)


def _chosen(choice: Choice, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The chosen algorithm's plan; its model says what was chosen, and why."""
    model = yield from start(choice.algorithm, features, expected_reports)
    chosen = {name: value for name, value in to_wire(choice.algorithm).items() if value is not None}
    diagnostics = {**model.diagnostics, "chosen": {"algorithm": chosen, "reason": choice.reason}}
    return replace(model, diagnostics=diagnostics)
