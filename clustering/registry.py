"""The plan of each local algorithm."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clustering.centroids.grid_kmeans import grid_kmeans
from clustering.centroids.ldp_kmeans import ldp_kmeans
from clustering.centroids.noisy_fcm import noisy_fcm
from clustering.grids.adaptive_grid_iterative import adaptive_grid_iterative
from clustering.grids.adaptive_grid_tree import adaptive_grid_tree
from clustering.grids.shifted_grid import shifted_grid
from clustering.grids.uniform_grid import uniform_grid
from clustering.phases.phase_sketch import phase_sketch
from clustering.poles import warn_of_poles
from clustering.rounds.plan import Plan
from sfumato.errors import InvalidSpec
from sfumato.forecast import resolve
from sfumato.model.geography import place_of
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    Feature,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
    check_periodic,
    to_wire,
)
from sfumato.specs.attributes import Categorical
from sfumato.validation import require_at_least

PLANS: dict[type[Algorithm], Callable[[Any, tuple[Feature, ...], int], Plan]] = {
    ShiftedGrid: shifted_grid,
    UniformGrid: uniform_grid,
    AdaptiveGridIterative: adaptive_grid_iterative,
    AdaptiveGridTree: adaptive_grid_tree,
    NoisyFcm: noisy_fcm,
    GridKmeans: grid_kmeans,
    LdpKmeans: ldp_kmeans,
    PhaseSketch: phase_sketch,
}

# Those that cluster by attributes, too.
CATEGORY_PLANS: dict[type[Algorithm], Callable[[Any, tuple[Feature, ...], int, tuple[Categorical, ...]], Plan]] = {
    ShiftedGrid: shifted_grid,
    PhaseSketch: phase_sketch,
}


def start(
    params: Algorithm,
    features: tuple[Feature, ...],
    expected_reports: int,
    attributes: tuple[Categorical, ...] = (),
) -> Plan:
    """Start the plan of an algorithm.

    Parameters
    ----------
    params : Algorithm
        The algorithm's parameters; their type selects the plan. `Auto` runs the choice of
        `sfumato.forecast.choose`; the model's diagnostics name the choice and its reason.
    features : tuple of Feature
        Features with the public bounds that scale records.
    expected_reports : int
        Expected number of reporting devices, at least 1. It sizes grids only.
    attributes : tuple of Categorical
        Attributes by which the job clusters.

    Returns
    -------
    Plan
        A generator of rounds. It has not yielded a round yet.

    Raises
    ------
    InvalidSpec
        The algorithm is unknown or takes no periodic features or attributes, or `expected_reports` is below 1. Limits
        of an algorithm, such as its number of features, raise when the plan yields its first round.
    """
    require_at_least(expected_reports, 1, "expected_reports")
    algorithm, reason = resolve(params, len(features), expected_reports, attributes)
    if type(algorithm) not in PLANS:
        raise InvalidSpec("unknown algorithm")
    check_periodic(algorithm, features)
    algorithm.require_attributes(attributes)
    plan = (
        CATEGORY_PLANS[type(algorithm)](algorithm, features, expected_reports, attributes)
        if attributes
        else PLANS[type(algorithm)](algorithm, features, expected_reports)
    )
    plan = plan if place_of(features) is None else _with_warning(plan)
    return plan if reason is None else _with_choice(plan, algorithm, reason)


def _with_warning(plan: Plan) -> Plan:
    """Run the plan over places and add a warning about clusters near a pole."""
    return warn_of_poles((yield from plan))


def _with_choice(plan: Plan, algorithm: Algorithm, reason: str) -> Plan:
    """Run the plan of the chosen algorithm and add the choice to the model's diagnostics."""
    model = yield from plan
    chosen = {name: value for name, value in to_wire(algorithm).items() if value is not None}
    return replace(model, diagnostics={**model.diagnostics, "chosen": {"algorithm": chosen, "reason": reason}})
