"""Devices that leak, each by one habit, put to the checks of the sound one."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.check import Leak
from audit.device_bulk import answers, with_shared_draws
from audit.device_bulk import look as look_at_arrays
from audit.device_exact import SCENES
from audit.device_exact import look as look_at_scene
from audit.device_replay import answers_once, draws_first, keeps_the_cap
from sfumato import mechanisms
from sfumato.device import Answered, Device, Record, _OpenRound
from sfumato.encodings import scale, symbol
from sfumato.entropy import Entropy, word
from sfumato.errors import SfumatoError
from sfumato.specs import Draw, RoundSpec, round_spec_from_wire, to_wire
from sfumato.store import Memo, Memory

_SCENES = {scene.name: scene for scene in SCENES}


class PerturbsAgain(Device):
    """A report that was not acknowledged is made anew, with fresh noise."""

    def _decide(self, memory: Memory, asked: _OpenRound, record: Record) -> Answered:
        memo = memory.memos.get(asked.round_id)
        if memo is not None and memo.state == "pending":
            del memory.memos[asked.round_id]
        return super()._decide(memory, asked, record)


class IgnoresTheDraw(Device):
    """Every round is answered, whichever draws it asks."""

    def _decide(self, memory: Memory, asked: _OpenRound, record: Record) -> Answered:
        spec = replace(round_spec_from_wire(asked.spec_wire), draw=Draw())
        return super()._decide(memory, replace(asked, spec_wire=to_wire(spec)), record)


class DrawsForEveryRound(Device):
    """A draw for each round, where a collection has one."""

    def _decide(self, memory: Memory, asked: _OpenRound, record: Record) -> Answered:
        return super()._decide(memory, replace(asked, collection_id=f"{asked.collection_id}_{asked.round_id}"), record)


class LooksFirst(Device):
    """The record is read before the device knows whether it is asked."""

    def _decide(self, memory: Memory, asked: _OpenRound, record: Record) -> Answered:
        return super()._decide(memory, asked, np.asarray(record).tolist())


class AnswersByItsRecord(Device):
    """Who lies above the middle draws again where the round does not ask: answering tells the record."""

    def _decide(self, memory: Memory, asked: _OpenRound, record: Record) -> Answered:
        spec = round_spec_from_wire(asked.spec_wire)
        if asked.collection_id not in memory.draws:
            memory.draws[asked.collection_id] = word(self._entropy)
        if np.asarray(record)[0] > 0.5 and not spec.draw.holds(memory.draws[asked.collection_id]):
            memory.draws[asked.collection_id] = word(self._entropy)
        return super()._decide(memory, asked, record)


class ForgetsItsSpending(Device):
    """Each round is held against the whole cap."""

    def _decide(self, memory: Memory, asked: _OpenRound, record: Record) -> Answered:
        fresh = Memory(memory.draws, {name: memo for name, memo in memory.memos.items() if name == asked.round_id})
        answered = super()._decide(fresh, asked, record)
        memory.memos |= fresh.memos
        return answered


class BelievesWhatIsDeclared(Device):
    """A round costs what it says."""

    def _cost(self, asked: _OpenRound, spec: RoundSpec) -> int:
        try:
            return super()._cost(asked, spec)
        except SfumatoError:
            return mechanisms.epsilon_nano(spec.mechanism)


class NamesTheRecord(Device):
    """The report's id begins with the symbol."""

    def _perturbed(self, asked: _OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        memo = super()._perturbed(asked, spec, epsilon_nano, record)
        point = scale(spec.features, np.asarray(record).tolist())
        return replace(memo, report_id=f"{symbol(spec.encoding, point, 0):02x}{memo.report_id[2:]}")


class SlotOfTheRecord(Device):
    """The slot is where the record lies."""

    def _perturbed(self, asked: _OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        memo = super()._perturbed(asked, spec, epsilon_nano, record)
        place = scale(spec.features, np.asarray(record).tolist())[0]
        return replace(memo, slot=int(place * spec.encoding.n_slots))


def with_fresh_draws(
    spec: RoundSpec, records: NDArray[np.float64], _draws: NDArray[np.uint64], entropy: Entropy
) -> NDArray[np.int64]:
    """Arrays of devices that draw for every round anew."""
    return with_shared_draws(spec, records, entropy.words(len(records)), entropy)


def twice(
    spec: RoundSpec, records: NDArray[np.float64], draws: NDArray[np.uint64], entropy: Entropy
) -> NDArray[np.int64]:
    """The second report of devices whose first one was lost, and seen: values of both, as one digit."""
    first, second = (with_shared_draws(spec, records, draws, entropy) for _ in range(2))
    told: NDArray[np.int64] = np.where(answers(spec, draws), 3 * first + second, 0)
    return told


def _scene(name: str, kind: type[Device], scene: str) -> Leak:
    return Leak(name, f"device: {scene}", partial(look_at_scene, kind, _SCENES[scene]))


LEAKS: tuple[Leak, ...] = (
    _scene("a second report re-perturbed on retry", PerturbsAgain, "one round, two answers lost"),
    Leak("re-perturbed, by its bytes", "device: answers once", partial(answers_once, PerturbsAgain)),
    _scene("a draw interval ignored", IgnoresTheDraw, "disjoint rounds"),
    Leak("a draw interval ignored, by its words", "device: draws", partial(draws_first, IgnoresTheDraw)),
    _scene("a draw for every round", DrawsForEveryRound, "disjoint rounds"),
    Leak("record looked at before the draw", "device: draws", partial(draws_first, LooksFirst)),
    _scene("a draw that depends on the record", AnswersByItsRecord, "a round with slots"),
    Leak("spending forgotten", "device: cap", partial(keeps_the_cap, ForgetsItsSpending)),
    Leak("declared cost believed", "device: cap", partial(keeps_the_cap, BelievesWhatIsDeclared)),
    _scene("record in the report id", NamesTheRecord, "one round"),
    _scene("slot derived from data, on a device", SlotOfTheRecord, "a round with slots"),
    Leak("fresh draws in arrays", "devices in arrays", partial(look_at_arrays, with_fresh_draws)),
    Leak("two reports in arrays", "devices in arrays", partial(look_at_arrays, twice)),
)
