"""Check a device step by step: equal bytes on repetition, the participation draw first, and the user's cap.

Each check runs over many seeds with a service that loses responses and declares wrong costs. It detects a second
perturbation, a device that reads the record before it knows whether it participates, an ignored interval, and a cost
that the device forgets. It does not cover a store that loses data; tests/sfumato checks that changes are on the
disk before the device sends.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.checks.bounds import bound_exp
from audit.checks.check import Check, Finding, Setting
from audit.devices.simulated_service import SimulatedService, make_round, open_round, run_device
from sfumato.device.device import Device
from sfumato.device.store import MemoryStore
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.privacy.entropy import Entropy, below, word
from sfumato.specs import Participation, RoundSpec

_N_SEEDS = 40
_CAP = 2.0


class _RecordingEntropy:
    """Entropy that records each use. Its first word may be given."""

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


class _RecordingRecord(Sequence[float]):
    """A record that records each access."""

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


def check_repetition(kind: type[Device], setting: Setting) -> list[Finding]:
    """Check that repeated requests for a round return identical bytes for every record."""
    entropy, why = setting.entropy("answers once"), ""
    n_runs = setting.effort.trials(_N_SEEDS)
    for _ in range(n_runs):
        service, store = SimulatedService(), MemoryStore()
        service.n_lost = below(entropy, 4)
        listed = [open_round(number, make_round(0.5)) for number in range(2)]
        for record in ((0.1,), (0.9,), (0.1,)):
            device = service.make_device(kind, entropy, store)
            run_device(service, device, record, [listed, listed])
        bodies = defaultdict(set)
        for round_id, body in service.sent:
            bodies[round_id].add(body)
        if len(bodies) != 2 or any(len(bytes_sent) != 1 for bytes_sent in bodies.values()):
            why = why or "a round received two different reports, or none"
    claim = "each report to a round has the same bytes"
    return [Finding("device: repeated reports", claim, "replay", n_runs, holds=not why, why=why)]


def check_participation(kind: type[Device], setting: Setting) -> list[Finding]:
    """Check that the draw is a whole word, made before the device reads the record, and decides the participation."""
    why, n_runs = "", 0
    lo, hi = 1 << 62, 3 << 62
    entropy = setting.entropy("draws first")
    borders = (0, lo - 1, lo, hi - 1, hi, DRAW_SPAN - 1)
    for first in (*borders, *(word(entropy) for _ in range(setting.effort.trials(_N_SEEDS)))):
        events: list[str] = []
        service, store = SimulatedService(), MemoryStore()
        recording = _RecordingEntropy(entropy, events, first)
        polls = [[open_round(0, make_round(1.0, Participation(lo, hi)))]] * 3
        run_device(service, service.make_device(kind, recording, store), _RecordingRecord((0.3,), events), polls)
        n_runs += 1
        participates, memory = lo <= first < hi, store.read("ds")
        if events[:1] != ["word"]:
            why = why or "the device read the record before the participation draw"
        elif memory.draws != {"col": first}:
            why = why or "the stored draw is not the first word"
        elif bool(service.sent) != participates:
            why = why or (
                "the device did not report in its interval"
                if participates
                else "the device reported outside its interval"
            )
        elif not participates and (events != ["word"] or memory.spent_nano):
            why = why or "a device outside the interval read its record, drew coins or recorded a cost"
    claim = "one draw before any other step; reports only inside the interval"
    return [Finding("device: participation", claim, "replay", n_runs, holds=not why, why=why)]


def check_cap(kind: type[Device], setting: Setting) -> list[Finding]:
    """Check that the reports cost at most the cap, and that the device skips a round that declares too low a cost."""
    entropy, why, largest = setting.entropy("cap"), "", 0.0
    n_runs = setting.effort.trials(_N_SEEDS)
    for _ in range(n_runs):
        service, specs, understated = SimulatedService(), list[RoundSpec](), set()
        listed = []
        for number in range(8):
            epsilon = (1 + below(entropy, 12)) / 10
            specs.append(make_round(epsilon))
            is_understated = below(entropy, 4) == 0
            understated |= {f"rnd_{number}"} if is_understated else set()
            listed.append(open_round(number, specs[-1], f"col_{number}", epsilon * 0.99 if is_understated else None))
        device = service.make_device(kind, entropy, cap=_CAP)
        run_device(service, device, (0.2,), [listed[:3], listed[2:6], listed])
        reported = {round_id for round_id, _ in service.sent}
        ratio = Fraction(1)
        for number, spec in enumerate(specs):
            if f"rnd_{number}" in reported:
                ratio *= spec.mechanism.ratio()
        spent = sum(specs[int(name[4:])].mechanism.epsilon_nano() for name in reported) / NANO
        largest = max(largest, spent)
        if ratio > bound_exp(Fraction(_CAP))[0]:
            why = why or "the reports cost more than the user's cap"
        if reported & understated:
            why = why or "the device reported to a round that costs more than it declares"
        if round(device.spent * NANO) != round(spent * NANO):
            why = why or "the stored cost differs from the cost of the reports"
    claim = "spends at most the user's cap, even if rounds declare wrong costs"
    return [Finding("device: spending cap", claim, "replay", n_runs, _CAP, largest, not why, why)]


CHECKS: tuple[Check, ...] = (
    Check("device: repeated reports", partial(check_repetition, Device)),
    Check("device: participation", partial(check_participation, Device)),
    Check("device: spending cap", partial(check_cap, Device)),
)
