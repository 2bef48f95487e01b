"""Broken plans, broken devices and broken charges of plans."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.checks.check import Leak
from audit.ledger.accounting import ChargedRound
from audit.plans.cases import PlanCase, Points, Respond, RoundReports, respond_as_devices
from audit.plans.plan_checks import check_plan
from clustering.registry import start
from clustering.rounds.plan import Plan
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import cost
from sfumato.privacy.entropy import Entropy
from sfumato.records.encodings import symbols
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    LdpKmeans,
    Participation,
    RoundSpec,
    ShiftedGrid,
    UniformGrid,
)

TREE = PlanCase(AdaptiveGridTree(1.0, 2, height=2), 2)
REPEATED = PlanCase(AdaptiveGridIterative(1.0, 2), 2)
AS_PUBLISHED = PlanCase(AdaptiveGridIterative(3.0, 2, variant="paper"), 1, 20)
GRID = PlanCase(UniformGrid(1.0, 2, cells=4), 2)
SHIFTED = PlanCase(ShiftedGrid(1.0, 2, cells=3), 2)
CENTROIDS = PlanCase(LdpKmeans(1.0, 2, rounds=3), 2)


def draw_per_round(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> RoundReports:
    """Draw a participation draw per round, so that a device may report to all rounds."""
    return respond_as_devices(spec, points, entropy, entropy.words(len(draws)))


def choose_slot_by_point(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> RoundReports:
    """Let one device in ten choose the slot that best separates its point. The values stay private."""
    reports = respond_as_devices(spec, points, entropy, draws)
    chosen = (points[reports.devices, 0] * (spec.encoding.n_slots - 1)).astype(np.int64)
    takes = entropy.words(len(reports.devices)) < np.uint64((1 << 64) // 10)
    slots = np.where(takes, chosen, reports.slots)
    own = symbols(spec.encoding, points[reports.devices], slots)
    return RoundReports(reports.devices, slots, spec.mechanism.perturb_many(own, entropy))


def omit_reports_below(spec: RoundSpec, points: Points, entropy: Entropy, draws: NDArray[np.uint64]) -> RoundReports:
    """Omit two of three reports of devices below the middle."""
    reports = respond_as_devices(spec, points, entropy, draws)
    kept = (points[reports.devices, 0] >= 0.5) | (entropy.words(len(reports.devices)) < np.uint64((1 << 64) // 3))
    return RoundReports(reports.devices[kept], reports.slots[kept], reports.values[kept])


def ignore_participation(case: PlanCase, points: Points) -> Plan:
    """Run a plan with later rounds for every draw, although it declared a part of the draws."""
    plan = case.start_plan(points)
    spec = next(plan)
    try:
        while True:
            collected = yield spec
            spec = replace(plan.send(collected), participation=Participation())
    except StopIteration as done:
        model: ClusterModel = done.value
        return model


def size_by_points(case: PlanCase, points: Points) -> Plan:
    """Run a plan that sizes its grid by the points instead of the reports."""
    cells = 4 if points.mean() < 0.5 else 5
    params = UniformGrid(1.0, 2, cells=cells)
    return start(params, case.features, len(points))


def charge_one_pass(rounds: Sequence[ChargedRound]) -> int:
    """Charge all passes as one, as the paper does for its feedback loop."""
    return cost([*rounds[:2], *rounds[-1:]] if len(rounds) > 2 else rounds)


def _plan_leak(name: str, reports: PlanCase, planted: PlanCase) -> Leak:
    return Leak(name, reports.name, partial(check_plan, planted))


def _respond_leak(name: str, reports: PlanCase, respond: Respond) -> Leak:
    return _plan_leak(name, reports, replace(reports, respond=respond))


LEAKS: tuple[Leak, ...] = (
    _respond_leak("participation draw per round", REPEATED, draw_per_round),
    _respond_leak("slot that depends on the point", SHIFTED, choose_slot_by_point),
    _respond_leak("missing reports that depend on the point", CENTROIDS, omit_reports_below),
    _plan_leak("round outside its declared interval", TREE, replace(TREE, start=partial(ignore_participation, TREE))),
    _plan_leak("round that depends on points", GRID, replace(GRID, start=partial(size_by_points, GRID))),
    _plan_leak("repeated rounds charged once", AS_PUBLISHED, replace(AS_PUBLISHED, charge=charge_one_pass)),
)
