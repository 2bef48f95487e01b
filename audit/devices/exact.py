"""Enumerate the complete transcript of one device over a collection, and compare it with the charge.

The shipped `sfumato.device.device.Device` runs on symbolic words (`audit.mechanisms.symbolic_random`) with a service in
memory. Its transcript is the list of reports it sends: round, report id, slot and value, including repetitions. The
largest ratio of a transcript's probabilities for two records is compared with the charge of the collection. The check
detects an ignored or repeated participation draw, a report that is perturbed twice, and an id or slot that depends on
the record. It does not cover time, nor other devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import log
from typing import Any

from audit.checks.bounds import bound_exp
from audit.checks.check import Check, Finding, Setting
from audit.devices.simulated_service import SimulatedService, make_round, open_round, run_device
from audit.mechanisms.exact_channels import EXAMPLES
from audit.mechanisms.symbolic_random import ExecutionPath, NotEnumerable, exact_distribution
from sfumato.device.device import Device
from sfumato.privacy.accounting import NANO, cost
from sfumato.specs import Participation, RoundSpec

Transcript = tuple[tuple[str, str, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class CollectionCase:
    """A collection with rounds that open one after the other.

    Attributes
    ----------
    name : str
    specs : tuple of RoundSpec
    n_lost : int
        Number of the service's first responses that are lost.
    together : bool
        Whether all rounds are open at once.
    """

    name: str
    specs: tuple[RoundSpec, ...]
    n_lost: int = 0
    together: bool = False

    @property
    def charged(self) -> int:
        """Return the charge of the collection in nano-epsilon."""
        return cost(
            ((spec.participation.lo, spec.participation.hi), spec.mechanism.epsilon_nano()) for spec in self.specs
        )

    def polls(self) -> list[list[dict[str, Any]]]:
        """Return the open rounds at each poll; the last poll repeats all of them."""
        listed = [open_round(number, spec) for number, spec in enumerate(self.specs)]
        return [listed, listed] if self.together else [*([one] for one in listed), listed]


_HALVES = (Participation.between(0, 0.5), Participation.between(0.5, 1))
CASES: tuple[CollectionCase, ...] = (
    CollectionCase("one round", (make_round(1.0),)),
    CollectionCase("one round, two responses lost", (make_round(1.0),), n_lost=2),
    CollectionCase("overlapping rounds", (make_round(0.5), make_round(0.75, Participation.between(0, 0.25)))),
    CollectionCase("disjoint rounds", tuple(make_round(1.0, draw) for draw in _HALVES)),
    CollectionCase("disjoint rounds, open together", tuple(make_round(1.0, draw) for draw in _HALVES), together=True),
    CollectionCase(
        "three rounds, partly overlapping",
        (
            make_round(0.5, Participation.between(0, 0.6)),
            make_round(1.0, Participation.between(0.4, 1)),
            make_round(0.25, Participation(3, 1 << 63)),
        ),
        n_lost=1,
    ),
    CollectionCase("round with slots", (make_round(1.0, Participation.between(0.25, 0.5), EXAMPLES["shifted_grid"]),)),
)
RECORDS: tuple[tuple[float, ...], ...] = ((0.1,), (0.9,))


def _transcript(kind: type[Device], case: CollectionCase, record: Sequence[float], path: ExecutionPath) -> Transcript:
    service = SimulatedService()
    service.n_lost = case.n_lost
    run_device(service, service.make_device(kind, path), record, case.polls())
    return service.received_reports()


def check_case(kind: type[Device], case: CollectionCase, _setting: Setting) -> list[Finding]:
    """Compare the largest ratio of a transcript's probabilities with the charge of the collection."""
    claim, charged_nano = "the complete transcript spends at most the charge", case.charged
    subject = f"device: {case.name}"
    try:
        distributions = [exact_distribution(partial(_transcript, kind, case, record)) for record in RECORDS]
    except NotEnumerable as error:
        return [Finding(subject, claim, "exact", 0, charged_nano / NANO, holds=False, why=str(error))]
    n_paths = sum(distribution.n_paths for distribution in distributions)
    transcripts = set().union(*(distribution.probabilities for distribution in distributions))
    pairs = [
        [distribution.probabilities.get(transcript, Fraction(0)) for distribution in distributions]
        for transcript in transcripts
    ]
    if any(0 in pair for pair in pairs):
        why = "a transcript is possible for one record and impossible for the other"
        return [Finding(subject, claim, "exact", n_paths, charged_nano / NANO, float("inf"), False, why)]
    ratio = max(max(pair) / min(pair) for pair in pairs)
    spent = log(ratio.numerator) - log(ratio.denominator)
    holds = ratio <= bound_exp(Fraction(charged_nano, NANO))[0]
    why = "" if holds else "transcripts distinguish records better than the charge allows"
    return [Finding(subject, claim, "exact", n_paths, charged_nano / NANO, spent, holds, why)]


CHECKS: tuple[Check, ...] = tuple(Check(f"device: {case.name}", partial(check_case, Device, case)) for case in CASES)
