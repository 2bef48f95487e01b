"""Which plan runs which algorithm."""

from collections.abc import Callable
from typing import Any

from clustering.plan import Plan
from clustering.plans.adaptive_grid_iterative import adaptive_grid_iterative
from clustering.plans.adaptive_grid_tree import adaptive_grid_tree
from clustering.plans.shifted_grid import shifted_grid
from clustering.plans.uniform_grid import uniform_grid
from sfumato.errors import InvalidSpec
from sfumato.specs import AdaptiveGridIterative, AdaptiveGridTree, Algorithm, Feature, ShiftedGrid, UniformGrid

_PLANS: dict[type[Algorithm], Callable[[Any, tuple[Feature, ...], int], Plan]] = {
    ShiftedGrid: shifted_grid,
    UniformGrid: uniform_grid,
    AdaptiveGridIterative: adaptive_grid_iterative,
    AdaptiveGridTree: adaptive_grid_tree,
}


def start(params: Algorithm, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan of an algorithm, before its first round.

    Parameters
    ----------
    params : Algorithm
        The algorithm's dataclass; its type chooses the plan.
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
    if type(params) not in _PLANS:
        raise InvalidSpec("unknown algorithm")
    if expected_reports < 1:
        raise InvalidSpec("expected_reports is at least 1")
    return _PLANS[type(params)](params, features, expected_reports)
