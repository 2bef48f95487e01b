"""Broken plans, devices and charges of plans."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.check import Leak
from audit.plans import Charged, looked_at
from audit.plans_cases import Answering, Answers, Points, Subject, answers
from clustering.plan import Plan
from clustering.registry import start
from sfumato.accounting import cost
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import symbols
from sfumato.entropy import Entropy
from sfumato.mechanisms import perturb_many
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Draw,
    LdpKmeans,
    RoundSpec,
    ShiftedGrid,
    UniformGrid,
)

TREE = Subject(AdaptiveGridTree(1.0, 2, height=2), 2)
PASSES = Subject(AdaptiveGridIterative(1.0, 2), 2)
PRINTED = Subject(AdaptiveGridIterative(3.0, 2, variant="paper"), 1, 20)
GRID = Subject(UniformGrid(1.0, 2, cells=4), 2)
SHIFTED = Subject(ShiftedGrid(1.0, 2, cells=3), 2)
CENTROIDS = Subject(LdpKmeans(1.0, 2, rounds=3), 2)


def fresh_draws(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> Answers:
    """A device draws anew for every round, so that it may answer all of them."""
    return answers(spec, points, entropy, entropy.words(len(draws)))


def slots_by_point(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> Answers:
    """One device in ten takes the slot that its point would be best told under; the values are as private as ever."""
    sound = answers(spec, points, entropy, draws)
    chosen = (points[sound.who, 0] * (spec.encoding.n_slots - 1)).astype(np.int64)
    takes = entropy.words(len(sound.who)) < np.uint64((1 << 64) // 10)
    slots = np.where(takes, chosen, sound.slots)
    own = symbols(spec.encoding, points[sound.who], slots)
    return Answers(sound.who, slots, perturb_many(spec.mechanism, own, entropy))


def silent_below(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> Answers:
    """Of those below the middle, two in three say nothing: an empty cell is not worth a report."""
    sound = answers(spec, points, entropy, draws)
    says = (points[sound.who, 0] >= 0.5) | (entropy.words(len(sound.who)) < np.uint64((1 << 64) // 3))
    return Answers(sound.who[says], sound.slots[says], sound.values[says])


def asks_everybody(subject: Subject, points: Points) -> Plan:
    """A plan whose later rounds are for every draw, though they were declared for a part."""
    plan = subject.started(points)
    wanted = next(plan)
    try:
        while True:
            collected = yield wanted
            wanted = replace(plan.send(collected), draw=Draw())
    except StopIteration as done:
        model: ClusterModel = done.value
        return model


def looks_at_points(subject: Subject, points: Points) -> Plan:
    """A plan that sizes its grid by where people are, not by what they report."""
    cells = 4 if points.mean() < 0.5 else 5
    params = UniformGrid(1.0, 2, cells=cells)
    return start(params, subject.features, len(points))


def passes_charged_once(rounds: Sequence[Charged]) -> int:
    """What the paper says of its feedback loop: the passes cost what one of them does."""
    return cost([*rounds[:2], *rounds[-1:]] if len(rounds) > 2 else rounds)


def _leak(name: str, sound: Subject, broken: Subject) -> Leak:
    return Leak(name, sound.name, partial(looked_at, broken))


def _answered(name: str, sound: Subject, answering: Answering) -> Leak:
    return _leak(name, sound, replace(sound, answering=answering))


LEAKS: tuple[Leak, ...] = (
    _answered("a fresh draw for every round", PASSES, fresh_draws),
    _answered("the slot says where the point is", SHIFTED, slots_by_point),
    _answered("silence says where the point is", CENTROIDS, silent_below),
    _leak("a round leaves its draw interval", TREE, replace(TREE, start=partial(asks_everybody, TREE))),
    _leak("a round looks at points", GRID, replace(GRID, start=partial(looks_at_points, GRID))),
    _leak("repeated rounds are charged once", PRINTED, replace(PRINTED, charge=passes_charged_once)),
)
