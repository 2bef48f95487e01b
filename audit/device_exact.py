"""All that one device ever tells over a collection, exactly: every way its coins can fall, against the posted cost.

The real `sfumato.device.Device` runs over words nobody knows (`audit.exact_words`) and talks to a
service in memory. What it sends, in order, is its transcript: which rounds it answered, each
report's id, slot and value, and every repetition. The largest ratio of a transcript's chances
under two records is compared with what the collection posts. It sees a draw that is ignored or
made anew, a report perturbed twice, an id or a slot that depends on the record. It does not see
time, nor what other devices do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import log
from typing import Any

from audit.check import Check, Finding, Setting
from audit.device_service import Service, asked_round, report_to, round_of
from audit.exact_exponential import exp_bounds
from audit.exact_mechanisms import EXAMPLES
from audit.exact_words import NotEnumerable, Way, exact_law
from sfumato import mechanisms
from sfumato.accounting import NANO, cost
from sfumato.device import Device
from sfumato.specs import Draw, RoundSpec

Transcript = tuple[tuple[str, str, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A collection of rounds that open one after the other.

    Attributes
    ----------
    name : str
    specs : tuple of RoundSpec
    n_lost : int
        Answers of the service to the first reports that are lost.
    together : bool
        All rounds are open at once.
    """

    name: str
    specs: tuple[RoundSpec, ...]
    n_lost: int = 0
    together: bool = False

    @property
    def posted(self) -> int:
        """What the service posts for it, in nano-epsilon."""
        return cost(((spec.draw.lo, spec.draw.hi), mechanisms.epsilon_nano(spec.mechanism)) for spec in self.specs)

    def steps(self) -> list[list[dict[str, Any]]]:
        """The open rounds of every look, and one look more."""
        asked = [asked_round(number, spec) for number, spec in enumerate(self.specs)]
        return [asked, asked] if self.together else [*([one] for one in asked), asked]


_HALVES = (Draw.between(0, 0.5), Draw.between(0.5, 1))
SCENES: tuple[Scene, ...] = (
    Scene("one round", (round_of(1.0),)),
    Scene("one round, two answers lost", (round_of(1.0),), n_lost=2),
    Scene("overlapping rounds", (round_of(0.5), round_of(0.75, Draw.between(0, 0.25)))),
    Scene("disjoint rounds", tuple(round_of(1.0, draw) for draw in _HALVES)),
    Scene("disjoint rounds, all open", tuple(round_of(1.0, draw) for draw in _HALVES), together=True),
    Scene(
        "three rounds, partly overlapping",
        (round_of(0.5, Draw.between(0, 0.6)), round_of(1.0, Draw.between(0.4, 1)), round_of(0.25, Draw(3, 1 << 63))),
        n_lost=1,
    ),
    Scene("a round with slots", (round_of(1.0, Draw.between(0.25, 0.5), EXAMPLES["shifted_grid"]),)),
)
RECORDS: tuple[tuple[float, ...], ...] = ((0.1,), (0.9,))


def _transcript(kind: type[Device], scene: Scene, record: Sequence[float], way: Way) -> Transcript:
    service = Service()
    service.n_lost = scene.n_lost
    report_to(service, service.device(kind, way), record, scene.steps())
    return service.told()


def look(kind: type[Device], scene: Scene, _setting: Setting) -> list[Finding]:
    """One scene: the largest ratio of transcripts against what the collection posts."""
    claim, charged = "its whole transcript spends at most what is posted", scene.posted
    subject = f"device: {scene.name}"
    try:
        laws = [exact_law(partial(_transcript, kind, scene, record)) for record in RECORDS]
    except NotEnumerable as error:
        return [Finding(subject, claim, "exact", 0, charged / NANO, holds=False, why=str(error))]
    n_ways = sum(law.n_ways for law in laws)
    transcripts = set().union(*(law.chances for law in laws))
    pairs = [[law.chances.get(transcript, Fraction(0)) for law in laws] for transcript in transcripts]
    if any(0 in pair for pair in pairs):
        why = "a transcript is possible under one record and not under the other"
        return [Finding(subject, claim, "exact", n_ways, charged / NANO, float("inf"), False, why)]
    ratio = max(max(pair) / min(pair) for pair in pairs)
    spent = log(ratio.numerator) - log(ratio.denominator)
    holds = ratio <= exp_bounds(Fraction(charged, NANO))[0]
    why = "" if holds else "transcripts tell records apart better than is posted"
    return [Finding(subject, claim, "exact", n_ways, charged / NANO, spent, holds, why)]


CHECKS: tuple[Check, ...] = tuple(Check(f"device: {scene.name}", partial(look, Device, scene)) for scene in SCENES)
