"""Local plans as they are audited: small ones of every kind, who answers them, and pairs of points chosen to hurt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.plan import Plan
from clustering.registry import start
from sfumato.accounting import cost
from sfumato.bulk import perturb_records
from sfumato.encodings import symbols
from sfumato.entropy import Entropy
from sfumato.forecast import choose
from sfumato.sizing import PlannedRound, planned_rounds
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    Auto,
    Draw,
    Feature,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    RoundSpec,
    ShiftedGrid,
    UniformGrid,
    ValleyHashing,
)

_STEPS = 256  # of the diagonal on which borders are looked for

Interval = tuple[int, int]
Points = NDArray[np.float64]


class Answers(NamedTuple):
    """What came of one round: who answered, and their slots and values."""

    who: NDArray[np.int64]
    slots: NDArray[np.int64]
    values: NDArray[np.uint8]


Answering = Callable[[RoundSpec, Points, Entropy, NDArray[np.uint64]], Answers]


def holds(draw: Draw, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which draws an interval holds; written anew here, for it is what the composition rests on."""
    return (draws >= np.uint64(draw.lo)) & (draws <= np.uint64(draw.hi - 1))


def answers(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> Answers:
    """What devices with these points and draws report, by the code that devices run."""
    who = np.flatnonzero(holds(spec.draw, draws))
    reports = perturb_records(spec, points, entropy, draws=draws)
    if len(reports.slots) != len(who):
        raise AssertionError("devices answer a round that is not for their draw, or leave one out that is")
    return Answers(who, reports.slots.astype(np.int64), reports.values)


@dataclass(frozen=True)
class Subject:
    """A plan, and who runs it; what is not given is the service's own.

    Attributes
    ----------
    params : Algorithm
    n_features : int
    n_others : int
        Devices beside the one that is looked at.
    start : callable, optional
        The plan, given the points of everybody: which no plan is, but a broken one.
    answering : callable
        How devices answer.
    charge : callable
        What rounds cost a device, in nano-epsilon.
    """

    params: Algorithm
    n_features: int
    n_others: int = 2000
    start: Callable[[Points], Plan] | None = None
    answering: Answering = answers
    charge: Callable[[Sequence[tuple[Interval, int]]], int] = field(default=cost)

    @property
    def name(self) -> str:
        """ "phase_sketch, 4 features, lloyd"."""
        more = [str(getattr(self.params, name)) for name in ("variant", "refine") if hasattr(self.params, name)]
        features = "1 feature" if self.n_features == 1 else f"{self.n_features} features"
        return ", ".join([self.params.type, features, *more])

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(self.n_features))

    def started(self, points: Points) -> Plan:
        """The plan, before its first round."""
        if self.start is not None:
            return self.start(points)
        return start(self.params, self.features, len(points))

    def planned(self, n_reports: int) -> tuple[PlannedRound, ...]:
        """What it declares before anybody was asked."""
        chosen = self.params
        if isinstance(chosen, Auto):
            chosen = choose(chosen, self.n_features, n_reports).algorithm
        return planned_rounds(chosen, self.n_features, n_reports)


# Few symbols and slots, so that the likeliest transcripts are seen often enough to count them; where costs
# add up over rounds, an epsilon of which each part still tells something.
SUBJECTS: tuple[Subject, ...] = (
    Subject(ShiftedGrid(1.0, 2, cells=3), 2),
    Subject(UniformGrid(1.0, 2, cells=4), 2),
    Subject(UniformGrid(4.0, 2, cells=4, variant="paper"), 1),
    Subject(AdaptiveGridIterative(1.0, 2), 2),
    Subject(AdaptiveGridIterative(3.0, 2, variant="paper"), 1, 20),
    Subject(AdaptiveGridTree(1.0, 2, height=2), 2),
    Subject(AdaptiveGridTree(4.0, 2, height=2, variant="paper"), 1),
    Subject(ValleyHashing(2.0, 2, cuts=3, projections=4), 2, 20_000),
    Subject(PhaseSketch(1.0, 2, slots=32, refine="none"), 4),
    Subject(PhaseSketch(2.0, 2, slots=32, refine="sign"), 4, 20_000),
    Subject(PhaseSketch(1.0, 2, slots=32, refine="lloyd"), 4),
    Subject(PhaseSketch(2.0, 2, slots=32, refine="auto"), 4, 20_000),
    Subject(NoisyFcm(2.0, 2, max_iterations=20), 2),
    Subject(GridKmeans(1.0, 2, cells=4), 2),
    Subject(LdpKmeans(1.0, 2, rounds=3), 2),
    Subject(Auto(1.0, 2), 1),
    Subject(Auto(1.0, 2), 4),
)


def crowd(kind: str, n: int, n_features: int, seed: int) -> Points:
    """Points of n people: ndarray of shape (n, n_features)."""
    chance = np.random.default_rng([n_features, seed])
    if kind == "two clusters":
        centres = np.where(chance.random(n) < 0.6, 0.25, 0.75)[:, None]
        return np.clip(chance.normal(centres, 0.07, (n, n_features)), 0, 1)
    if kind == "one place":
        return np.full((n, n_features), 0.999)
    if kind == "corners":
        return chance.integers(0, 2, (n, n_features)).astype(np.float64)
    return chance.random((n, n_features))


CROWDS = ("two clusters", "one place", "corners", "spread out")


def point_pairs(n_features: int) -> dict[str, tuple[Points, Points]]:
    """Pairs of points (x, x'), each of shape (n_features,), by what of them hurts.

    Opposite corners differ in every cell, side and feature; the others are off every centre, in
    outer cells of alternate features.
    """
    aside = np.where(np.arange(n_features) % 2, 0.97, 0.04)
    return {
        "opposite corners": (np.zeros(n_features), np.ones(n_features)),
        "off the centre": (aside, 1 - aside),
    }


def across_a_border(specs: Sequence[RoundSpec]) -> tuple[Points, Points]:
    """Two points near one another, on the box's diagonal, that most rounds and slots tell apart."""
    along = np.linspace(0, 1, _STEPS + 1)
    borders = np.zeros(_STEPS)
    for spec in specs:
        for slot in range(spec.encoding.n_slots):
            points = np.repeat(along[:, None], spec.encoding.n_features, axis=1)
            held = symbols(spec.encoding, points, np.full(len(along), slot)).reshape(len(along), -1)
            borders += (held[1:] != held[:-1]).any(axis=1) / spec.encoding.n_slots
    place = int(borders.argmax())
    d = specs[0].encoding.n_features
    return np.full(d, along[place]), np.full(d, along[place + 1])
