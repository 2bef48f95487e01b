"""Local plans to audit: small plans of every kind, simulated devices, and pairs of points that are hard for a plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.random import SeededEntropy
from clustering.registry import start
from clustering.rounds.plan import Plan
from clustering.simulate import unit_features
from sfumato.device.bulk import perturb_records
from sfumato.forecast import resolve
from sfumato.privacy.accounting import cost
from sfumato.privacy.entropy import Entropy
from sfumato.records.described import Described, describe
from sfumato.records.outside import encode_many
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import PlannedRound
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    Auto,
    Feature,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    Participation,
    PhaseSketch,
    RoundSpec,
    ShiftedGrid,
    UniformGrid,
)
from sfumato.specs.attributes import Categorical

_N_STEPS = 256  # steps along the diagonal in the search for a border

_NO_COINS = SeededEntropy(0)  # points inside of the bounds take no coins

Interval = tuple[int, int]
Points = NDArray[np.float64]


class RoundReports(NamedTuple):
    """The result of one round: indexes of the devices that reported, and their slots and values."""

    devices: NDArray[np.int64]
    slots: NDArray[np.int64]
    values: NDArray[np.uint8]


Respond = Callable[[RoundSpec, Points, Entropy, NDArray[np.uint64]], RoundReports]


def to_records(spec: RoundSpec, points: Points) -> Points | Described:
    """Return points as records of a round. A column after the features is the place of a category, in [0, 1]."""
    n_features = len(spec.features)
    if not spec.attributes:
        return points
    codes = {}
    for column, attribute in zip(points.T[n_features:], spec.attributes, strict=True):
        n = len(attribute.categories)
        codes[attribute.name] = np.minimum((column * n).astype(np.int64), n - 1)
    return describe(spec, points[:, :n_features], codes)


def own_symbols(spec: RoundSpec, points: Points, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the symbols of points inside of the bounds under slots, or their vectors."""
    return encode_many(spec, to_records(spec, points), slots, _NO_COINS)


def is_inside(participation: Participation, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which draws lie in an interval. Repeats the definition, because composition depends on it."""
    return (draws >= np.uint64(participation.lo)) & (draws <= np.uint64(participation.hi - 1))


def respond_as_devices(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> RoundReports:
    """Return the reports of devices with these points and draws, made by the devices' code."""
    devices = np.flatnonzero(is_inside(spec.participation, draws))
    reports = perturb_records(spec, to_records(spec, points), entropy, draws=draws)
    if len(reports.slots) != len(devices):
        raise AssertionError("devices report to a round outside their interval, or skip one inside")
    return RoundReports(devices, reports.slots.astype(np.int64), reports.values)


@dataclass(frozen=True)
class PlanCase:
    """A plan with its devices. Defaults are those of the service.

    Attributes
    ----------
    params : Algorithm
    n_features : int
    n_devices : int
        Number of devices besides the observed one.
    start : callable, optional
        Makes the plan from the points of all devices; only broken plans have it.
    respond : callable
        Makes the reports of a round.
    charge : callable
        Returns the cost of rounds in nano-epsilon.
    circles : tuple of int
        Indices of the periodic features.
    attributes : tuple of Categorical
        Attributes by which the job clusters. Points have one more column for each; see `to_records`.
    """

    params: Algorithm
    n_features: int
    n_devices: int = 2000
    start: Callable[[Points], Plan] | None = None
    respond: Respond = respond_as_devices
    charge: Callable[[Sequence[tuple[Interval, int]]], int] = field(default=cost)
    circles: tuple[int, ...] = ()
    attributes: tuple[Categorical, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the case, such as "phase_sketch, 4 features, lloyd"."""
        more = [str(getattr(self.params, name)) for name in ("variant", "refine") if hasattr(self.params, name)]
        features = "1 feature" if self.n_features == 1 else f"{self.n_features} features"
        more += ["a circle"] * bool(self.circles) + ["categories"] * bool(self.attributes)
        return ", ".join([self.params.type, features, *more])

    @property
    def features(self) -> tuple[Feature, ...]:
        return unit_features(self.n_features, self.circles)

    @property
    def n_columns(self) -> int:
        """Return the number of columns of the points."""
        return self.n_features + len(self.attributes)

    def start_plan(self, points: Points) -> Plan:
        """Return the plan before its first round."""
        if self.start is not None:
            return self.start(points)
        return start(self.params, self.features, len(points), self.attributes)

    def declared_rounds(self, n_reports: int) -> tuple[PlannedRound, ...]:
        """Return the rounds that the plan declares before the first report."""
        chosen, _ = resolve(self.params, self.n_features, n_reports, self.attributes)
        return planned_rounds(chosen, self.n_features, n_reports, self.circles, self.attributes)


PLAN = Categorical("plan", ("free", "pro"), use="cluster")

# Few symbols and slots, so that probable transcripts occur often enough to be counted. If costs add up over rounds,
# epsilon is large enough that each part has a measurable effect.
CASES: tuple[PlanCase, ...] = (
    PlanCase(ShiftedGrid(1.0, 2, cells=3), 2),
    PlanCase(UniformGrid(1.0, 2, cells=4), 2),
    PlanCase(UniformGrid(4.0, 2, cells=4, variant="paper"), 1),
    PlanCase(AdaptiveGridIterative(1.0, 2), 2),
    PlanCase(AdaptiveGridIterative(3.0, 2, variant="paper"), 1, 20),
    PlanCase(AdaptiveGridTree(1.0, 2, height=2), 2),
    PlanCase(AdaptiveGridTree(4.0, 2, height=2, variant="paper"), 1),
    PlanCase(PhaseSketch(1.0, 2, slots=32, refine="none"), 4),
    PlanCase(PhaseSketch(2.0, 2, slots=32, refine="sign"), 4, 20_000),
    PlanCase(PhaseSketch(1.0, 2, slots=32, refine="lloyd"), 4),
    PlanCase(PhaseSketch(2.0, 2, slots=32, refine="auto"), 4, 20_000),
    PlanCase(NoisyFcm(2.0, 2, max_iterations=20), 2),
    PlanCase(GridKmeans(1.0, 2, cells=4), 2),
    PlanCase(LdpKmeans(1.0, 2, rounds=3), 2),
    PlanCase(ShiftedGrid(1.0, 2, cells=3), 2, circles=(0,)),
    PlanCase(PhaseSketch(1.0, 2, slots=32), 4, circles=(0,)),
    PlanCase(GridKmeans(1.0, 2, cells=4), 2, circles=(0,)),
    PlanCase(ShiftedGrid(1.0, 2, cells=3), 1, attributes=(PLAN,)),
    PlanCase(PhaseSketch(1.0, 2, slots=64), 2, attributes=(PLAN,)),
    PlanCase(Auto(1.0, 2), 1),
    PlanCase(Auto(1.0, 2), 4),
)


def make_points(population: str, n: int, n_columns: int, seed: int) -> Points:
    """Return points of n persons: ndarray of shape (n, n_columns)."""
    rng = np.random.default_rng([n_columns, seed])
    if population == "two clusters":
        centres = np.where(rng.random(n) < 0.6, 0.25, 0.75)[:, None]
        return np.clip(rng.normal(centres, 0.07, (n, n_columns)), 0, 1)
    if population == "single point":
        return np.full((n, n_columns), 0.999)
    if population == "corners":
        return rng.integers(0, 2, (n, n_columns)).astype(np.float64)
    return rng.random((n, n_columns))


POPULATIONS = ("two clusters", "single point", "corners", "uniform")


def make_point_pairs(n_columns: int) -> dict[str, tuple[Points, Points]]:
    """Return pairs of points (x, x'), each of shape (n_columns,), by name.

    Opposite corners differ in every cell, side and feature. The other pair lies away from centres, in outer cells of
    alternate features.
    """
    outer = np.where(np.arange(n_columns) % 2, 0.97, 0.04)
    return {
        "opposite corners": (np.zeros(n_columns), np.ones(n_columns)),
        "outer cells": (outer, 1 - outer),
    }


def find_border_pair(specs: Sequence[RoundSpec]) -> tuple[Points, Points]:
    """Return two close points on the diagonal of the box that most rounds and slots distinguish."""
    along = np.linspace(0, 1, _N_STEPS + 1)
    borders = np.zeros(_N_STEPS)
    n_columns = len(specs[0].features) + len(specs[0].attributes)
    points = np.repeat(along[:, None], n_columns, axis=1)
    for spec in specs:
        for slot in range(spec.encoding.n_slots):
            symbols_along = own_symbols(spec, points, np.full(len(along), slot)).reshape(len(along), -1)
            borders += (symbols_along[1:] != symbols_along[:-1]).any(axis=1) / spec.encoding.n_slots
    position = int(borders.argmax())
    return points[position], points[position + 1]
