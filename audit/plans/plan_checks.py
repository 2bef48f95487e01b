"""Checks of local plans: the transcript of a device over all rounds, and the rounds of the plan.

`sfumato.privacy.accounting.cost` charges a job's rounds. The checks cover three faults: a transcript that reveals more
than the charge (black box), rounds that exceed what the plan declared before the first report (exact), and rounds that
depend on more than tallies (replay).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from audit.checks.bounds import distinguish
from audit.checks.check import Check, Finding, Setting
from audit.ledger.accounting import ChargedRound, cost_of_draw
from audit.plans.cases import (
    CASES,
    POPULATIONS,
    PlanCase,
    Points,
    find_border_pair,
    make_point_pairs,
    make_points,
    to_records,
)
from audit.plans.transcripts import sample_transcripts, score_transcripts
from clustering.errors import TooFewReports
from clustering.random import SeededEntropy
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import read_aggregate
from clustering.simulate import collect
from sfumato.privacy.accounting import NANO
from sfumato.specs import RoundSpec, round_spec_from_wire, to_wire

TRANSCRIPTS = 1_000_000  # per point of a pair, in a quick audit
MAX_TRANSCRIPTS = 10_000_000  # bounds memory
N_SEEDS = 2  # seeds of points and coins
MAX_DEVICES = 2000  # devices per population
SMALL_SIZES = (1, 3, 30)  # sizes of small populations; their rounds may receive no report


class _EndOfReports(Exception):
    """Raised at the end of the stored reports."""


def run_plan(case: PlanCase, points: Points, entropy: SeededEntropy) -> list[Collected]:
    """Run a plan on these points and return every round with its reports. It ends if the plan has too few reports."""
    draws, collected = entropy.words(len(points)), []

    def collect_round(spec: RoundSpec) -> Collected:
        collected.append(collect(spec, to_records(spec, points), entropy, draws))
        return collected[-1]

    with suppress(TooFewReports):  # the rounds until then are charged
        drive(case.start_plan(points), collect_round)
    return collected


def interval_costs(specs: Sequence[RoundSpec]) -> list[ChargedRound]:
    """Return the arguments of `sfumato.privacy.accounting.cost` for rounds."""
    return [((spec.participation.lo, spec.participation.hi), spec.mechanism.epsilon_nano()) for spec in specs]


# ---- black box ----


def check_transcripts(case: PlanCase, setting: Setting) -> Iterator[Finding]:
    """Compare a lower bound on the privacy loss of transcripts of two points with the charge of the job.

    Yield one finding for each pair of points.
    """
    points = make_points("two clusters", case.n_devices, case.n_columns, setting.seed)
    specs = [each.spec for each in run_plan(case, points, setting.entropy(f"{case.name}/run"))]
    charge = case.charge(interval_costs(specs)) / NANO
    n_rounds = "1 round" if len(specs) == 1 else f"{len(specs)} rounds"
    pairs = make_point_pairs(case.n_columns) | {"across a border": find_border_pair(specs)}
    for index, (name, pair) in enumerate(pairs.items()):
        n_first = min(setting.effort.trials(TRANSCRIPTS), MAX_TRANSCRIPTS)
        n = n_first // 10 if index else n_first  # the first pair differs most
        entropy = setting.entropy(f"{case.name}/{name}")
        sides = [sample_transcripts(specs, pair, side, n, entropy, case.respond) for side in (0, 1)]
        bound = distinguish(*score_transcripts(*sides))
        is_over = bound.epsilon > charge
        yield Finding(
            subject=case.name,
            claim=f"a transcript over {n_rounds} distinguishes two points by at most the charge ({name})",
            method="black box",
            trials=bound.trials,
            charged=charge,
            measured=bound.epsilon,
            holds=not is_over,
            why="transcripts distinguish the points better than the charge allows" if is_over else "",
        )


# ---- exact ----


class PlanRun(NamedTuple):
    """The points and the rounds of one run of a plan."""

    points: Points
    collected: list[Collected]


def run_populations(case: PlanCase, setting: Setting) -> list[PlanRun]:
    """Run a plan on populations of every shape and size, from one device on."""
    n = min(case.n_devices, MAX_DEVICES)
    sizes = [(population, n) for population in POPULATIONS] + [("uniform", size) for size in SMALL_SIZES]
    runs = []
    for seed in range(setting.effort.trials(N_SEEDS)):
        for population, size in sizes:
            points = make_points(population, size, case.n_columns, setting.seed + seed)
            entropy = setting.entropy(f"{case.name}/{population}/{size}/{seed}")
            runs.append(PlanRun(points, run_plan(case, points, entropy)))
    return runs


def check_declared_cost(case: PlanCase, runs: Sequence[PlanRun]) -> Finding:
    """Check that the rounds cost no draw more than declared, and that all rounds cost at most epsilon."""
    limit = case.params.epsilon_nano
    largest, why = 0, ""
    for index, (points, collected) in enumerate(runs):
        rounds = interval_costs([each.spec for each in collected])
        declared = [
            ((p.participation.lo, p.participation.hi), p.epsilon_nano) for p in case.declared_rounds(len(points))
        ]
        charge = case.charge(rounds)
        largest = max(largest, charge)
        if why:
            continue
        if any(cost_of_draw(rounds, draw) > cost_of_draw(declared, draw) for (draw, _), _ in (*rounds, *declared)):
            why = f"the rounds cost a draw more than declared (run {index})"
        elif charge > limit:
            why = f"the rounds cost more than the job reserved (run {index})"
        elif charge < max((cost_of_draw(rounds, draw) for (draw, _), _ in rounds), default=0):
            why = f"a draw costs more than the charge (run {index})"
    claim = "no draw costs more than declared, nor more than the charge, for any reports"
    return Finding(case.name, claim, "exact", len(runs), limit / NANO, largest / NANO, not why, why)


# ---- replay ----


def check_rounds(case: PlanCase, runs: Sequence[PlanRun]) -> Finding:
    """Check that the stored reports give the same rounds when the plan starts with other points."""
    why = ""
    for index, (points, collected) in enumerate(runs):
        replayed = _replay_rounds(case, collected, other_points=1 - points[::-1])
        if replayed != [to_wire(each.spec) for each in collected] and not why:
            why = f"a round depends on the points, although the tallies are equal (run {index})"
    claim = "rounds depend on points only through tallies: a replay with other points gives equal rounds"
    return Finding(case.name, claim, "replay", len(runs), holds=not why, why=why)


def _replay_rounds(case: PlanCase, collected: Sequence[Collected], other_points: Points) -> list[dict[str, Any]]:
    """Return the rounds of a plan that receives the stored reports, serialised as the service stores them."""
    rounds: list[dict[str, Any]] = []

    def collect_round(spec: RoundSpec) -> Collected:
        rounds.append(to_wire(spec))
        if len(rounds) > len(collected):
            raise _EndOfReports
        stored = collected[len(rounds) - 1]
        published = round_spec_from_wire(to_wire(stored.spec))
        return Collected(published, read_aggregate(published, stored.aggregate.to_bytes()))

    with suppress(TooFewReports, _EndOfReports):
        drive(case.start_plan(other_points), collect_round)
    return rounds


def check_plan(case: PlanCase, setting: Setting) -> Iterator[Finding]:
    """Run all checks of one plan. Yield the findings of those that take the least time first."""
    runs = run_populations(case, setting)
    yield check_declared_cost(case, runs)
    yield check_rounds(case, runs)
    yield from check_transcripts(case, setting)


CHECKS: tuple[Check, ...] = tuple(Check(case.name, partial(check_plan, case)) for case in CASES)
