"""What a device does, step by step: the same bytes again, draws before all else, and never over the user's cap.

Every claim is replayed over many seeds, in a service that loses answers and declares costs that are
not true. It sees a second perturbation, a device that looks at the record before it knows whether it
is asked, a draw interval that is ignored, spending that is forgotten. It does not see a store that
loses what it was given: that a change is on the disk before anything is sent, tests/sfumato shows.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.check import Check, Finding, Setting
from audit.device_service import Service, asked_round, report_to, round_of
from audit.exact_exponential import exp_bounds
from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, NANO
from sfumato.device import Device
from sfumato.entropy import Entropy, below, word
from sfumato.specs import Draw, RoundSpec
from sfumato.store import MemoryStore

_SEEDS = 40
_CAP = 2.0


class _Watched:
    """Entropy that says when it was asked, and may be given its first word."""

    def __init__(self, entropy: Entropy, events: list[str], *first: int) -> None:
        self._entropy = entropy
        self._events = events
        self._first = list(first)

    def words(self, n: int) -> NDArray[np.uint64]:
        self._events.append("word")
        drawn = self._entropy.words(n).copy()
        if self._first:
            drawn[0] = np.uint64(self._first.pop(0))
        return drawn


class _Record(Sequence[float]):
    """A record that says when it was looked at."""

    def __init__(self, values: Sequence[float], events: list[str]) -> None:
        self._values = values
        self._events = events

    def __getitem__(self, place: Any) -> Any:
        self._events.append("record")
        return self._values[place]

    def __len__(self) -> int:
        self._events.append("record")
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        self._events.append("record")
        return iter(self._values)


def answers_once(kind: type[Device], setting: Setting) -> list[Finding]:
    """However often it is asked, by whichever record, a round gets the same bytes."""
    entropy, why = setting.entropy("answers once"), ""
    n_runs = setting.effort.trials(_SEEDS)
    for _ in range(n_runs):
        service, store = Service(), MemoryStore()
        service.n_lost = below(entropy, 4)
        asked = [asked_round(number, round_of(0.5)) for number in range(2)]
        for record in ((0.1,), (0.9,), (0.1,)):
            device = service.device(kind, entropy, store)
            report_to(service, device, record, [asked, asked])
        bodies = defaultdict(set)
        for round_id, body in service.sent:
            bodies[round_id].add(body)
        if len(bodies) != 2 or any(len(told) != 1 for told in bodies.values()):
            why = why or "a round got two different reports, or none"
    claim = "a round gets the same bytes, however often it is asked"
    return [Finding("device: answers once", claim, "replay", n_runs, holds=not why, why=why)]


def draws_first(kind: type[Device], setting: Setting) -> list[Finding]:
    """Its draw is a whole word, made before the record is looked at; outside of the interval it says nothing."""
    why, n_runs = "", 0
    lo, hi = 1 << 62, 3 << 62
    entropy = setting.entropy("draws first")
    borders = (0, lo - 1, lo, hi - 1, hi, DRAW_SPAN - 1)
    for first in (*borders, *(word(entropy) for _ in range(setting.effort.trials(_SEEDS)))):
        events: list[str] = []
        service, store = Service(), MemoryStore()
        watched = _Watched(entropy, events, first)
        steps = [[asked_round(0, round_of(1.0, Draw(lo, hi)))]] * 3
        report_to(service, service.device(kind, watched, store), _Record((0.3,), events), steps)
        n_runs += 1
        is_asked, memory = lo <= first < hi, store.read("ds")
        if events[:1] != ["word"]:
            why = why or "the record was looked at before the draw was made"
        elif memory.draws != {"col": first}:
            why = why or "the draw is not the word that was drawn for it"
        elif bool(service.sent) != is_asked:
            why = why or (
                "a round was not answered that asked" if is_asked else "a round was answered that did not ask"
            )
        elif not is_asked and (events != ["word"] or memory.spent_nano):
            why = why or "a device that was not asked looked at its record, drew coins, or was charged"
    claim = "one draw, before all else; it answers inside of the interval alone"
    return [Finding("device: draws", claim, "replay", n_runs, holds=not why, why=why)]


def keeps_the_cap(kind: type[Device], setting: Setting) -> list[Finding]:
    """What was sent costs at most the cap, by the thresholds; a cost that is declared too low is not answered."""
    entropy, why, most = setting.entropy("cap"), "", 0.0
    n_runs = setting.effort.trials(_SEEDS)
    for _ in range(n_runs):
        service, specs, lies = Service(), list[RoundSpec](), set()
        asked = []
        for number in range(8):
            epsilon = (1 + below(entropy, 12)) / 10
            specs.append(round_of(epsilon))
            is_lie = below(entropy, 4) == 0
            lies |= {f"rnd_{number}"} if is_lie else set()
            asked.append(asked_round(number, specs[-1], f"col_{number}", epsilon * 0.99 if is_lie else None))
        device = service.device(kind, entropy, cap=_CAP)
        report_to(service, device, (0.2,), [asked[:3], asked[2:6], asked])
        answered = {round_id for round_id, _ in service.sent}
        ratio = Fraction(1)
        for number, spec in enumerate(specs):
            if f"rnd_{number}" in answered:
                ratio *= mechanisms.ratio(spec.mechanism)
        spent = sum(mechanisms.epsilon_nano(specs[int(name[4:])].mechanism) for name in answered) / NANO
        most = max(most, spent)
        if ratio > exp_bounds(Fraction(_CAP))[0]:
            why = why or "more was sent than the user's cap allows"
        if answered & lies:
            why = why or "a round was answered that costs more than it declares"
        if round(device.spent * NANO) != round(spent * NANO):
            why = why or "it remembers another cost than it spent"
    claim = "spends at most the user's cap, whatever is declared"
    return [Finding("device: cap", claim, "replay", n_runs, _CAP, most, not why, why)]


CHECKS: tuple[Check, ...] = (
    Check("device: answers once", partial(answers_once, Device)),
    Check("device: draws", partial(draws_first, Device)),
    Check("device: cap", partial(keeps_the_cap, Device)),
)
