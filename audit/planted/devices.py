"""Broken devices, each with one fault."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.checks.check import Leak
from audit.devices.bulk import check_transcripts, participates, report_with_shared_draws
from audit.devices.exact import CASES, check_case
from audit.devices.replay import check_cap, check_participation, check_repetition
from sfumato.device.checks import Record
from sfumato.device.device import Device
from sfumato.device.open_rounds import OpenRound
from sfumato.device.outcomes import RoundOutcome
from sfumato.device.store import Memo, Memory
from sfumato.errors import SfumatoError
from sfumato.privacy.entropy import Entropy, word
from sfumato.records.encodings import scale, symbol
from sfumato.specs import Participation, RoundSpec, round_spec_from_wire, to_wire

_CASES = {case.name: case for case in CASES}


class PerturbingAgain(Device):
    """A device that perturbs a report again if it is not acknowledged."""

    def _decide(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundOutcome:
        memo = memory.memos.get(open_round.round_id)
        if memo is not None and memo.state == "pending":
            del memory.memos[open_round.round_id]
        return super()._decide(memory, open_round, record)


class IgnoringInterval(Device):
    """A device that reports to every round and ignores the participation interval."""

    def _decide(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundOutcome:
        spec = replace(round_spec_from_wire(open_round.spec_wire), participation=Participation())
        return super()._decide(memory, replace(open_round, spec_wire=to_wire(spec)), record)


class DrawingPerRound(Device):
    """A device with one participation draw per round instead of one per collection."""

    def _decide(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundOutcome:
        return super()._decide(
            memory, replace(open_round, collection_id=f"{open_round.collection_id}_{open_round.round_id}"), record
        )


class ReadingRecordFirst(Device):
    """A device that reads the record before it knows whether it participates."""

    def _decide(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundOutcome:
        return super()._decide(memory, open_round, np.asarray(record).tolist())


class DrawingByRecord(Device):
    """A device that draws again outside the interval if its record is above the middle."""

    def _decide(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundOutcome:
        spec = round_spec_from_wire(open_round.spec_wire)
        if open_round.collection_id not in memory.draws:
            memory.draws[open_round.collection_id] = word(self._entropy)
        if np.asarray(record)[0] > 0.5 and not spec.participation.holds(memory.draws[open_round.collection_id]):
            memory.draws[open_round.collection_id] = word(self._entropy)
        return super()._decide(memory, open_round, record)


class ForgettingCost(Device):
    """A device that compares each round alone with the cap."""

    def _decide(self, memory: Memory, open_round: OpenRound, record: Record) -> RoundOutcome:
        empty = Memory(memory.draws, {name: memo for name, memo in memory.memos.items() if name == open_round.round_id})
        outcome = super()._decide(empty, open_round, record)
        memory.memos |= empty.memos
        return outcome


class TrustingDeclaredCost(Device):
    """A device that trusts the declared cost of a round."""

    def _cost(self, open_round: OpenRound, spec: RoundSpec) -> int:
        try:
            return super()._cost(open_round, spec)
        except SfumatoError:
            return spec.mechanism.epsilon_nano()


class RecordInReportId(Device):
    """A device that starts its report id with the symbol."""

    def _perturb(self, open_round: OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        memo = super()._perturb(open_round, spec, epsilon_nano, record)
        point = scale(spec.features, np.asarray(record).tolist())
        return replace(memo, report_id=f"{symbol(spec.encoding, point, 0):02x}{memo.report_id[2:]}")


class SlotByRecord(Device):
    """A device that uses the position of the record as slot."""

    def _perturb(self, open_round: OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        memo = super()._perturb(open_round, spec, epsilon_nano, record)
        position = scale(spec.features, np.asarray(record).tolist())[0]
        return replace(memo, slot=int(position * spec.encoding.n_slots))


def report_with_fresh_draws(
    spec: RoundSpec, records: NDArray[np.float64], _draws: NDArray[np.uint64], entropy: Entropy
) -> NDArray[np.int64]:
    """Report with a new participation draw per round."""
    return report_with_shared_draws(spec, records, entropy.words(len(records)), entropy)


def report_twice(
    spec: RoundSpec, records: NDArray[np.float64], draws: NDArray[np.uint64], entropy: Entropy
) -> NDArray[np.int64]:
    """Return both values of devices that report twice with new noise, as one digit."""
    first, second = (report_with_shared_draws(spec, records, draws, entropy) for _ in range(2))
    codes: NDArray[np.int64] = np.where(participates(spec, draws), 3 * first + second, 0)
    return codes


def _case_leak(name: str, kind: type[Device], case: str) -> Leak:
    return Leak(name, f"device: {case}", partial(check_case, kind, _CASES[case]))


LEAKS: tuple[Leak, ...] = (
    _case_leak("report perturbed again on retry", PerturbingAgain, "one round, two responses lost"),
    Leak(
        "report perturbed again, by its bytes", "device: repeated reports", partial(check_repetition, PerturbingAgain)
    ),
    _case_leak("participation interval ignored", IgnoringInterval, "disjoint rounds"),
    Leak(
        "participation interval ignored, by its words",
        "device: participation",
        partial(check_participation, IgnoringInterval),
    ),
    _case_leak("participation draw per round", DrawingPerRound, "disjoint rounds"),
    Leak("record read before the draw", "device: participation", partial(check_participation, ReadingRecordFirst)),
    _case_leak("draw that depends on the record", DrawingByRecord, "round with slots"),
    Leak("cost forgotten", "device: spending cap", partial(check_cap, ForgettingCost)),
    Leak("declared cost trusted", "device: spending cap", partial(check_cap, TrustingDeclaredCost)),
    _case_leak("record in the report id", RecordInReportId, "one round"),
    _case_leak("slot derived from data, on a device", SlotByRecord, "round with slots"),
    Leak("fresh draws in arrays", "devices in arrays", partial(check_transcripts, report_with_fresh_draws)),
    Leak("two reports in arrays", "devices in arrays", partial(check_transcripts, report_twice)),
)
