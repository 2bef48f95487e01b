"""Local plans to audit: small plans of every kind, simulated devices, and pairs of points that are hard for a plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.registry import start
from clustering.rounds.plan import Plan
from clustering.simulate import unit_features
from sfumato.device.bulk import perturb_records
from sfumato.forecast import resolve
from sfumato.privacy.accounting import cost
from sfumato.privacy.entropy import Entropy
from sfumato.records.described import Described
from sfumato.records.encodings import cells, symbols
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
    attributes_of,
)
from sfumato.specs.attributes import Categorical

_N_STEPS = 256  # steps along the diagonal in the search for a border

Interval = tuple[int, int]
Points = NDArray[np.float64]


class RoundReports(NamedTuple):
    """The result of one round: indexes of the devices that reported, and their slots and values."""

    devices: NDArray[np.int64]
    slots: NDArray[np.int64]
    values: NDArray[np.uint8]


Respond = Callable[[RoundSpec, Points, Entropy, NDArray[np.uint64]], RoundReports]


def is_inside(participation: Participation, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which draws lie in an interval. Repeats the definition, because composition depends on it."""
    return (draws >= np.uint64(participation.lo)) & (draws <= np.uint64(participation.hi - 1))


def read_points(spec: RoundSpec, points: Points) -> Described:
    """Return points of shape (n, d + m) as records: d features, and the categories of m attributes as parts of [0, 1].

    Without attributes in the round, the columns after the features have no meaning and are left out.
    """
    d, attributes = spec.encoding.n_features, attributes_of(spec.encoding)
    parts = points[:, d : d + len(attributes)]
    return Described(points[:, :d], cells(parts, [len(each.categories) for each in attributes]))


def symbols_of(spec: RoundSpec, points: Points, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the symbols of points of shape (n, d + m) under slots of shape (n,)."""
    records = read_points(spec, points)
    return symbols(spec.encoding, records.points, slots, records.codes)


def respond_as_devices(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> RoundReports:
    """Return the reports of devices with these points and draws, made by the devices' code."""
    devices = np.flatnonzero(is_inside(spec.participation, draws))
    reports = perturb_records(spec, read_points(spec, points), entropy, draws=draws)
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
        Attributes by which the plan clusters.
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
        more += [*(["a circle"] if self.circles else []), *(["categories"] if self.attributes else [])]
        return ", ".join([self.params.type, features, *more])

    @property
    def n_columns(self) -> int:
        """Return the number of columns of points: the features, then the attributes."""
        return self.n_features + len(self.attributes)

    @property
    def features(self) -> tuple[Feature, ...]:
        return unit_features(self.n_features, self.circles)

    def start_plan(self, points: Points) -> Plan:
        """Return the plan before its first round."""
        if self.start is not None:
            return self.start(points)
        return start(self.params, self.features, len(points), self.attributes)

    def declared_rounds(self, n_reports: int) -> tuple[PlannedRound, ...]:
        """Return the rounds that the plan declares before the first report."""
        chosen, _ = resolve(self.params, self.n_features, n_reports)
        return planned_rounds(chosen, self.n_features, n_reports, self.circles, self.attributes)


KIND = Categorical("kind", ("a", "b"), use="cluster")

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
    PlanCase(Auto(1.0, 2), 1),
    PlanCase(Auto(1.0, 2), 4),
    PlanCase(ShiftedGrid(1.0, 2, cells=3), 1, attributes=(KIND,)),
    PlanCase(PhaseSketch(1.0, 2, slots=64), 2, attributes=(KIND,)),
)


def make_points(population: str, n: int, n_features: int, seed: int) -> Points:
    """Return points of n persons: ndarray of shape (n, n_features)."""
    rng = np.random.default_rng([n_features, seed])
    if population == "two clusters":
        centres = np.where(rng.random(n) < 0.6, 0.25, 0.75)[:, None]
        return np.clip(rng.normal(centres, 0.07, (n, n_features)), 0, 1)
    if population == "single point":
        return np.full((n, n_features), 0.999)
    if population == "corners":
        return rng.integers(0, 2, (n, n_features)).astype(np.float64)
    return rng.random((n, n_features))


POPULATIONS = ("two clusters", "single point", "corners", "uniform")


def make_point_pairs(n_features: int) -> dict[str, tuple[Points, Points]]:
    """Return pairs of points (x, x'), each of shape (n_features,), by name.

    Opposite corners differ in every cell, side and feature. The other pair lies away from centres, in outer cells of
    alternate features.
    """
    outer = np.where(np.arange(n_features) % 2, 0.97, 0.04)
    return {
        "opposite corners": (np.zeros(n_features), np.ones(n_features)),
        "outer cells": (outer, 1 - outer),
    }


def find_border_pair(specs: Sequence[RoundSpec]) -> tuple[Points, Points]:
    """Return two close points on the diagonal of the box that most rounds and slots distinguish."""
    along = np.linspace(0, 1, _N_STEPS + 1)
    borders = np.zeros(_N_STEPS)
    n_columns = max(spec.encoding.n_features + len(attributes_of(spec.encoding)) for spec in specs)
    for spec in specs:
        for slot in range(spec.encoding.n_slots):
            points = np.repeat(along[:, None], n_columns, axis=1)
            symbols_along = symbols_of(spec, points, np.full(len(along), slot)).reshape(len(along), -1)
            borders += (symbols_along[1:] != symbols_along[:-1]).any(axis=1) / spec.encoding.n_slots
    position = int(borders.argmax())
    return np.full(n_columns, along[position]), np.full(n_columns, along[position + 1])
