"""Mechanisms that leak, each by one line, put to the exact check of the sound ones."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import cast

import numpy as np
from numpy.typing import NDArray

from audit.check import Finding, Leak, Setting
from audit.exact_arrays import look as look_at_arrays
from audit.exact_mechanisms import EXAMPLES, Maker, Report, by_device, in_bulk, look
from sfumato import mechanisms
from sfumato.accounting import NANO
from sfumato.device import Device, Record, _OpenRound
from sfumato.encodings import scale, symbol
from sfumato.entropy import Entropy, below, below_many, word
from sfumato.mechanisms import discrete_laplace, olh
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    GrrMechanism,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    RoundSpec,
    Symbol,
)
from sfumato.store import Memo

Perturb = Callable[[Mechanism, Symbol, Entropy], bytes]


def by_perturb(perturb: Perturb) -> Maker:
    """Reports made as a device makes them, but for how the symbol is perturbed."""

    def make(spec: RoundSpec, record: Sequence[float], entropy: Entropy) -> Report:
        slot = int(below(entropy, spec.encoding.n_slots))
        held = symbol(spec.encoding, scale(spec.features, record), slot)
        return slot, perturb(spec.mechanism, held, entropy)

    return make


def keeps_too_often(mechanism: Mechanism, held: Symbol, entropy: Entropy) -> bytes:
    """The threshold of 1.3 times the epsilon that is published."""
    epsilon_nano = mechanisms.epsilon_nano(mechanism)
    return mechanisms.perturb(mechanisms.design("grr", mechanism.n_symbols, epsilon_nano * 13 // 10), held, entropy)


def at_most_the_threshold(mechanism: Mechanism, held: Symbol, entropy: Entropy) -> bytes:
    """`<=` for `<`: one word of 2^64 keeps the symbol that should not."""
    mechanism, held = cast(GrrMechanism, mechanism), cast(int, held)
    if not word(entropy) <= mechanism.keep_threshold:
        other = below(entropy, mechanism.n_symbols - 1)
        held = int(other + (other >= held))
    return held.to_bytes(1, "little")


def other_by_remainder(mechanism: Mechanism, held: Symbol, entropy: Entropy) -> bytes:
    """The other symbol is a word's remainder: small ones are likelier by 2^-64."""
    mechanism, held = cast(GrrMechanism, mechanism), cast(int, held)
    if word(entropy) >= mechanism.keep_threshold:
        other = word(entropy) % (mechanism.n_symbols - 1)
        held = other + (other >= held)
    return held.to_bytes(1, "little")


def favourable_seed(mechanism: Mechanism, held: Symbol, entropy: Entropy) -> bytes:
    """A seed that hashes the own symbol to 0 is drawn anew: the public part tells of the private one."""
    mechanism, held = cast(OlhMechanism, mechanism), cast(int, held)
    value = mechanisms.perturb(mechanism, held, entropy)
    a, b, c = (int.from_bytes(value[at : at + 4], "little") for at in (0, 4, 8))
    if olh.hashed(mechanism, (a, b, c), held) != 0:
        return value
    return mechanisms.perturb(mechanism, held, entropy)


def own_bit_is_certain(mechanism: Mechanism, held: Symbol, entropy: Entropy) -> bytes:
    """The own symbol's bit is always set."""
    mechanism, held = cast(OueMechanism, mechanism), cast(int, held)
    value = int.from_bytes(mechanisms.perturb(mechanism, held, entropy), "little")
    return (value | 1 << held).to_bytes(mechanisms.value_bytes(mechanism), "little")


def one_noise_for_all_features(mechanism: Mechanism, held: Symbol, entropy: Entropy) -> bytes:
    """The first feature's noise is everybody's: differences of features come out as they are."""
    mechanism, held = cast(DiscreteLaplaceMechanism, mechanism), cast(tuple[int, ...], held)
    added = discrete_laplace.noise(mechanism, entropy)
    largest = mechanism.steps + 2 * mechanism.margin
    sums = [min(max(place + added + mechanism.margin, 0), largest) for place in held]
    return b"".join(reached.to_bytes(discrete_laplace.width(mechanism), "little") for reached in sums)


def bulk_keeps_too_often(spec: RoundSpec, record: Sequence[float], entropy: Entropy) -> Report:
    """Arrays of devices perturb with another threshold than a device."""
    epsilon_nano = mechanisms.epsilon_nano(spec.mechanism)
    other = mechanisms.design("grr", spec.mechanism.n_symbols, epsilon_nano * 13 // 10)
    return in_bulk(replace(spec, mechanism=other), record, entropy)


def one_coin_for_all(mechanism: Mechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """An array of devices that all keep their symbols, or all lie."""
    mechanism = cast(GrrMechanism, mechanism)
    if word(entropy) < mechanism.keep_threshold:
        return symbols.astype(np.uint8)[:, None]
    others = below_many(entropy, mechanism.n_symbols - 1, len(symbols))
    return (others + (others >= symbols)).astype(np.uint8)[:, None]


class SlotOfTheRecord(Device):
    """Its slot is where its record lies."""

    def _perturbed(self, asked: _OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        memo = super()._perturbed(asked, spec, epsilon_nano, record)
        place = scale(spec.features, np.asarray(record).tolist())[0]
        return replace(memo, slot=min(int(place * spec.encoding.n_slots), spec.encoding.n_slots - 1))


def rounded_down(mechanism: Mechanism) -> int:
    """A charge of whole nano-epsilon that never exceeds what is spent."""
    ratio = mechanisms.ratio(mechanism)
    return int(log(ratio) * NANO)


def _planted(
    kind: str,
    encoding: str,
    setting: Setting,
    maker: Maker | None = None,
    bulk: Maker = in_bulk,
    charge: Callable[[Mechanism], int] = mechanisms.epsilon_nano,
) -> list[Finding]:
    return look(kind, EXAMPLES[encoding], setting, maker, bulk, charge)


def _leak(name: str, kind: str, encoding: str, perturb: Perturb) -> Leak:
    return Leak(name, f"{kind} x {encoding}", partial(_planted, kind, encoding, maker=by_perturb(perturb)))


def _slot_of_the_record(setting: Setting) -> list[Finding]:
    return _planted("grr", "shifted_grid", setting, maker=by_device(SlotOfTheRecord))


LEAKS: tuple[Leak, ...] = (
    _leak("keep probability too high", "grr", "grid", keeps_too_often),
    _leak("threshold off by one word", "grr", "grid", at_most_the_threshold),
    _leak("modulo bias in a mechanism", "grr", "grid", other_by_remainder),
    _leak("seed chosen by the symbol", "olh", "tree_grid", favourable_seed),
    _leak("own bit certain", "oue", "grid", own_bit_is_certain),
    _leak("one noise for all features", "discrete_laplace", "lattice", one_noise_for_all_features),
    Leak("slot derived from data", "grr x shifted_grid", _slot_of_the_record),
    Leak("bulk keeps too often", "grr x grid", partial(_planted, "grr", "grid", bulk=bulk_keeps_too_often)),
    Leak("one coin for all devices", "grr in arrays", partial(look_at_arrays, "grr", one_coin_for_all)),
    Leak("charge rounded down", "ss x grid", partial(_planted, "ss", "grid", charge=rounded_down)),
)
