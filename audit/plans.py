"""Local plans: what a device's transcript over all rounds tells, and what the rounds ask for.

A job's rounds are charged by `sfumato.accounting.cost`. Three ways to be wrong are looked for:
a transcript that tells more than that (black box), rounds that leave what the plan declared
before anybody was asked (exact), and rounds that owe something to anything but tallies (replay).
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from audit.bounds import distinguish
from audit.check import Check, Finding, Setting
from audit.plans_cases import CROWDS, SUBJECTS, Points, Subject, across_a_border, crowd, point_pairs
from audit.plans_transcripts import drawn, scores
from clustering.errors import TooFewReports
from clustering.plan import Collected, drive, read_answers
from clustering.seeded_entropy import SeededEntropy
from clustering.simulate import collect
from sfumato import mechanisms
from sfumato.accounting import NANO, parse_epsilon
from sfumato.specs import RoundSpec, round_spec_from_wire, to_wire

TRANSCRIPTS = 1_000_000  # of each point of a pair, where effort is quick
MOST_TRANSCRIPTS = 10_000_000  # whatever the effort: they are held at once
SEEDS = 2  # of crowds and their coins
MOST = 2000  # people in a crowd
FEW = (1, 3, 30)  # people in the smallest crowds, whose rounds may bring nothing

Charged = tuple[tuple[int, int], int]  # the draws that answer a round, and what an answer costs


class _Stopped(Exception):
    """The stored answers end here."""


def run(subject: Subject, points: Points, entropy: SeededEntropy) -> list[Collected]:
    """Every round of a plan over these people, with what came of it; a plan that gives up ends there."""
    draws, seen = entropy.words(len(points)), []

    def answer(spec: RoundSpec) -> Collected:
        seen.append(collect(spec, points, entropy, draws))
        return seen[-1]

    with suppress(TooFewReports):  # what was asked until then was asked, and is charged
        drive(subject.started(points), answer)
    return seen


def charged(specs: Sequence[RoundSpec]) -> list[Charged]:
    """What `sfumato.accounting.cost` is given of rounds."""
    return [((spec.draw.lo, spec.draw.hi), mechanisms.epsilon_nano(spec.mechanism)) for spec in specs]


# ---- black box ----


def transcripts(subject: Subject, setting: Setting) -> list[Finding]:
    """What transcripts of two points are seen to tell apart, against what the job posts for them."""
    points = crowd("two clusters", subject.n_others, subject.n_features, setting.seed)
    specs = [each.spec for each in run(subject, points, setting.entropy(f"{subject.name}/run"))]
    posted = subject.charge(charged(specs)) / NANO
    n_rounds = "1 round" if len(specs) == 1 else f"{len(specs)} rounds"
    pairs = point_pairs(subject.n_features) | {"across a border": across_a_border(specs)}
    found = []
    for place, (name, pair) in enumerate(pairs.items()):
        most = min(setting.effort.trials(TRANSCRIPTS), MOST_TRANSCRIPTS)
        n = most // 10 if place else most  # the first pair tells the most
        entropy = setting.entropy(f"{subject.name}/{name}")
        sides = [drawn(specs, pair, which, n, entropy, subject.answering) for which in (0, 1)]
        bound = distinguish(*scores(*sides))
        found.append(
            Finding(
                subject=subject.name,
                claim=f"a transcript over {n_rounds} tells two points apart by at most what was posted ({name})",
                method="black box",
                trials=bound.trials,
                charged=posted,
                measured=bound.epsilon,
                holds=bound.epsilon <= posted,
                why="" if bound.epsilon <= posted else "transcripts tell more than was posted for them",
            )
        )
    return found


# ---- exact ----


class Ran(NamedTuple):
    """A plan that ran, and over whom."""

    points: Points
    seen: list[Collected]


def sweep(subject: Subject, setting: Setting) -> list[Ran]:
    """A plan over crowds of every shape and size, from one person on."""
    n = min(subject.n_others, MOST)
    sizes = [(kind, n) for kind in CROWDS] + [("spread out", few) for few in FEW]
    ran = []
    for seed in range(setting.effort.trials(SEEDS)):
        for kind, size in sizes:
            points = crowd(kind, size, subject.n_features, setting.seed + seed)
            entropy = setting.entropy(f"{subject.name}/{kind}/{size}/{seed}")
            ran.append(Ran(points, run(subject, points, entropy)))
    return ran


def declared(subject: Subject, ran: Sequence[Ran]) -> Finding:
    """Whatever the answers: no draw is asked for more than was declared, and the whole costs at most epsilon."""
    limit = parse_epsilon(subject.params.epsilon)
    dearest, why = 0, ""
    for place, (points, seen) in enumerate(ran):
        asked = charged([each.spec for each in seen])
        planned = [((p.draw.lo, p.draw.hi), p.epsilon_nano) for p in subject.planned(len(points))]
        posted = subject.charge(asked)
        dearest = max(dearest, posted)
        if why:
            continue
        if any(spent(asked, draw) > spent(planned, draw) for (draw, _), _ in (*asked, *planned)):
            why = f"its rounds ask a draw for more than was declared (run {place})"
        elif posted > limit:
            why = f"its rounds cost more than the job reserved (run {place})"
        elif posted < max((spent(asked, draw) for (draw, _), _ in asked), default=0):
            why = f"some draw pays more than was posted (run {place})"
    claim = "whatever comes of its rounds, no draw pays more than was declared, nor more than was posted"
    return Finding(subject.name, claim, "exact", len(ran), limit / NANO, dearest / NANO, not why, why)


def spent(rounds: Sequence[Charged], draw: int) -> int:
    """What a device with this draw pays for rounds."""
    return sum(epsilon_nano for (lo, hi), epsilon_nano in rounds if lo <= draw < hi)


# ---- replay ----


def replayed(subject: Subject, ran: Sequence[Ran]) -> Finding:
    """Given the stored answers of one crowd, a plan among other people asks for the same rounds."""
    why = ""
    for place, (points, seen) in enumerate(ran):
        again = _asked_again(subject, seen, elsewhere=1 - points[::-1])
        if again != [to_wire(each.spec) for each in seen] and not why:
            why = f"a round changes with the points, though the tallies are the same (run {place})"
    claim = "a round owes nothing to points but through tallies: replayed among others, it is the same"
    return Finding(subject.name, claim, "replay", len(ran), holds=not why, why=why)


def _asked_again(subject: Subject, seen: Sequence[Collected], elsewhere: Points) -> list[dict[str, Any]]:
    """The rounds a plan asks for when it is sent what was stored, as the service stores it: as bytes."""
    asked: list[dict[str, Any]] = []

    def answer(spec: RoundSpec) -> Collected:
        asked.append(to_wire(spec))
        if len(asked) > len(seen):
            raise _Stopped
        stored = seen[len(asked) - 1]
        published = round_spec_from_wire(to_wire(stored.spec))
        return Collected(published, read_answers(published, stored.answers.to_bytes()))

    with suppress(TooFewReports, _Stopped):
        drive(subject.started(elsewhere), answer)
    return asked


def looked_at(subject: Subject, setting: Setting) -> list[Finding]:
    """All that is looked at of one plan."""
    ran = sweep(subject, setting)
    return [*transcripts(subject, setting), declared(subject, ran), replayed(subject, ran)]


CHECKS: tuple[Check, ...] = tuple(Check(subject.name, partial(looked_at, subject)) for subject in SUBJECTS)
