"""Broken mechanisms, each with a fault in one line."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import log
from typing import cast

import numpy as np
from numpy.typing import NDArray

from audit.checks.check import Finding, Leak, Setting
from audit.mechanisms.exact_channels import (
    CATEGORIES,
    CATEGORY_EXAMPLE,
    COUNTING_EXAMPLES,
    EXAMPLES,
    OUTSIDE,
    PHASE_CATEGORIES,
    PHASE_CATEGORY_EXAMPLE,
    MakeReport,
    Report,
    bulk_report,
    check_channel,
    check_independence,
    device_reports,
)
from sfumato import mechanisms
from sfumato.device.checks import Record
from sfumato.device.device import Device
from sfumato.device.open_rounds import OpenRound
from sfumato.device.store import Memo
from sfumato.mechanisms import discrete_laplace
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy, below, below_many, word
from sfumato.records.described import read_record
from sfumato.records.encodings import scale, symbol
from sfumato.records.outside import encode, outside_features
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    GrrMechanism,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    ProfileEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    Symbol,
)

Perturb = Callable[[Mechanism, Symbol, Entropy], bytes]


def perturbed_reports(perturb: Perturb) -> MakeReport:
    """Return a function that makes reports like a device, with this perturbation of the symbol."""

    def make_report(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
        slot = int(below(entropy, spec.encoding.n_slots))
        own = symbol(spec.encoding, scale(spec.features, record), slot)
        return slot, perturb(spec.mechanism, own, entropy)

    return make_report


def keep_too_often(mechanism: Mechanism, own: Symbol, entropy: Entropy) -> bytes:
    """Use the threshold for 1.3 times the published epsilon."""
    epsilon_nano = mechanism.epsilon_nano()
    return mechanisms.design("grr", mechanism.n_symbols, epsilon_nano * 13 // 10).perturb(own, entropy)


def compare_at_most(mechanism: Mechanism, own: Symbol, entropy: Entropy) -> bytes:
    """Use `<=` instead of `<`: one word of 2^64 keeps the symbol by mistake."""
    mechanism, own = cast(GrrMechanism, mechanism), cast(int, own)
    if not word(entropy) <= mechanism.keep_threshold:
        other = below(entropy, mechanism.n_symbols - 1)
        own = int(other + (other >= own))
    return own.to_bytes(1, "little")


def choose_by_remainder(mechanism: Mechanism, own: Symbol, entropy: Entropy) -> bytes:
    """Choose the other symbol by the remainder of a word: small symbols are more probable by 2^-64."""
    mechanism, own = cast(GrrMechanism, mechanism), cast(int, own)
    if word(entropy) >= mechanism.keep_threshold:
        other = word(entropy) % (mechanism.n_symbols - 1)
        own = other + (other >= own)
    return own.to_bytes(1, "little")


def prefer_seed(mechanism: Mechanism, own: Symbol, entropy: Entropy) -> bytes:
    """Draw again if the seed hashes the own symbol to 0, so that the public part depends on the private one."""
    mechanism, own = cast(OlhMechanism, mechanism), cast(int, own)
    value = mechanism.perturb(own, entropy)
    a, b, c = (int.from_bytes(value[at : at + 4], "little") for at in (0, 4, 8))
    if mechanism.hashed((a, b, c), own) != 0:
        return value
    return mechanism.perturb(own, entropy)


def set_own_bit(mechanism: Mechanism, own: Symbol, entropy: Entropy) -> bytes:
    """Set the bit of the own symbol always."""
    mechanism, own = cast(OueMechanism, mechanism), cast(int, own)
    value = int.from_bytes(mechanism.perturb(own, entropy), "little")
    return (value | 1 << own).to_bytes(mechanism.value_bytes, "little")


def share_noise(mechanism: Mechanism, own: Symbol, entropy: Entropy) -> bytes:
    """Add the same noise to all features, so that their differences are exact."""
    mechanism, own = cast(DiscreteLaplaceMechanism, mechanism), cast(tuple[int, ...], own)
    added = discrete_laplace.noise(mechanism, entropy)
    largest = mechanism.steps + 2 * mechanism.margin
    sums = [min(max(position + added + mechanism.margin, 0), largest) for position in own]
    return b"".join(reached.to_bytes(mechanism.width, "little") for reached in sums)


def keep_too_often_in_bulk(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Perturb arrays of devices with another threshold than a device."""
    epsilon_nano = spec.mechanism.epsilon_nano()
    other = mechanisms.design("grr", spec.mechanism.n_symbols, epsilon_nano * 13 // 10)
    return bulk_report(replace(spec, mechanism=other), record, entropy)


def share_coin(mechanism: Mechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Use one coin for all devices of an array."""
    mechanism = cast(GrrMechanism, mechanism)
    if word(entropy) < mechanism.keep_threshold:
        return symbols.astype(np.uint8)[:, None]
    others = below_many(entropy, mechanism.n_symbols - 1, len(symbols))
    return (others + (others >= symbols)).astype(np.uint8)[:, None]


class ClampedSlotByRecord(Device):
    """A device that uses the position of its record as slot, within the range of slots."""

    def _perturb(self, open_round: OpenRound, spec: RoundSpec, epsilon_nano: int, record: Record) -> Memo:
        memo = super()._perturb(open_round, spec, epsilon_nano, record)
        position = scale(spec.features, np.asarray(record).tolist())[0]
        return replace(memo, slot=min(int(position * spec.encoding.n_slots), spec.encoding.n_slots - 1))


def send_outside_unperturbed(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Send the symbol of a record outside of the bounds without noise."""
    slot = int(below(entropy, spec.encoding.n_slots))
    own = encode(spec, record, slot, entropy)
    if outside_features(spec.features, record):
        return slot, cast(int, own).to_bytes(1, "little")
    return slot, spec.mechanism.perturb(own, entropy)


def halve_phase(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Choose the phase of a record outside from half of the turn only, so that it is not uniform."""
    slot = int(below(entropy, spec.encoding.n_slots))
    own = encode(spec, record, slot, entropy)
    if outside_features(spec.features, record):
        own = cast(int, own) // 2
    return slot, spec.mechanism.perturb(own, entropy)


def mark_beyond_features(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Mark the vector of a record outside without moving its features to the middle, so that it costs more."""
    own = cast(tuple[int, ...], encode(spec, record, 0, entropy))
    if outside_features(spec.features, record):
        own = (*[cast(DiscreteLaplaceMechanism, spec.mechanism).steps] * (len(own) - 1), own[-1])
    below(entropy, 1)
    return 0, spec.mechanism.perturb(own, entropy)


def choose_attribute(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Report the first attribute of a profile if its category is the first one, otherwise a uniform attribute."""
    slot = int(below(entropy, spec.encoding.n_slots))
    if read_record(spec, record)[1][0] == 0:
        slot = 0
    return slot, spec.mechanism.perturb(encode(spec, record, slot, entropy), entropy)


def keep_cluster(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Perturb the category of a profile and send the cluster without noise."""
    slot, n_values = int(below(entropy, spec.encoding.n_slots)), cast(ProfileEncoding, spec.encoding).n_values
    own = cast(int, encode(spec, record, slot, entropy))
    sent = int.from_bytes(spec.mechanism.perturb(own, entropy), "little")
    return slot, (own // n_values * n_values + sent % n_values).to_bytes(1, "little")


def keep_category(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Perturb the cell of a shifted grid and send the category without noise."""
    slot, (n_values,) = int(below(entropy, spec.encoding.n_slots)), cast(ShiftedGridEncoding, spec.encoding).categories
    own = cast(int, encode(spec, record, slot, entropy))
    sent = int.from_bytes(spec.mechanism.perturb(own, entropy), "little")
    return slot, (sent // n_values * n_values + own % n_values).to_bytes(1, "little")


def choose_wave(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Report the last wave if the category is not the first one, otherwise a uniform wave."""
    slot = int(below(entropy, spec.encoding.n_slots))
    if read_record(spec, record)[1][0] > 0:
        slot = spec.encoding.n_slots - 1
    return slot, spec.mechanism.perturb(encode(spec, record, slot, entropy), entropy)


def round_down(mechanism: Mechanism) -> int:
    """Round the charge down to nano-epsilon."""
    ratio = mechanism.ratio()
    return int(log(ratio) * NANO)


def _check(
    kind: str,
    encoding: str,
    setting: Setting,
    make_report: MakeReport | None = None,
    bulk: MakeReport = bulk_report,
    charge: Callable[[Mechanism], int] = Mechanism.epsilon_nano,
) -> list[Finding]:
    return check_channel(kind, EXAMPLES[encoding], setting, make_report, bulk, charge)


def _leak(name: str, kind: str, encoding: str, perturb: Perturb) -> Leak:
    return Leak(name, f"{kind} x {encoding}", partial(_check, kind, encoding, make_report=perturbed_reports(perturb)))


def _check_slot_by_record(setting: Setting) -> list[Finding]:
    return _check("grr", "shifted_grid", setting, make_report=device_reports(ClampedSlotByRecord))


def _check_outside(kind: str, encoding: str, make_report: MakeReport, setting: Setting) -> list[Finding]:
    example = COUNTING_EXAMPLES.get(encoding, EXAMPLES[encoding])
    return check_channel(kind, example, setting, make_report, counts_outside=True)


def _outside_leak(name: str, kind: str, encoding: str, make_report: MakeReport) -> Leak:
    return Leak(name, f"{kind} x {encoding}{OUTSIDE}", partial(_check_outside, kind, encoding, make_report))


LEAKS: tuple[Leak, ...] = (
    _outside_leak("outside unperturbed", "grr", "grid", send_outside_unperturbed),
    _outside_leak("phase outside not uniform", "window", "phase", halve_phase),
    _outside_leak("mark at the end of the range", "discrete_laplace", "lattice", mark_beyond_features),
    _leak("keep probability too high", "grr", "grid", keep_too_often),
    _leak("threshold wrong by one word", "grr", "grid", compare_at_most),
    _leak("modulo bias in a mechanism", "grr", "grid", choose_by_remainder),
    _leak("seed chosen by the symbol", "olh", "tree_grid", prefer_seed),
    _leak("own bit always set", "oue", "grid", set_own_bit),
    _leak("one noise for all features", "discrete_laplace", "lattice", share_noise),
    Leak("slot derived from data", "grr x shifted_grid", _check_slot_by_record),
    Leak(
        "attribute chosen by its value", "ss x profile", partial(_check, "ss", "profile", make_report=choose_attribute)
    ),
    Leak(
        "category without noise",
        f"grr x {CATEGORIES}",
        lambda setting: check_channel("grr", CATEGORY_EXAMPLE, setting, keep_category),
    ),
    Leak(
        "wave chosen by category",
        f"window x {PHASE_CATEGORIES}",
        lambda setting: check_channel("window", PHASE_CATEGORY_EXAMPLE, setting, choose_wave),
    ),
    Leak("cluster without noise", "grr x profile", partial(_check, "grr", "profile", make_report=keep_cluster)),
    Leak(
        "keep probability too high in arrays", "grr x grid", partial(_check, "grr", "grid", bulk=keep_too_often_in_bulk)
    ),
    Leak("one coin for all devices", "grr in arrays", partial(check_independence, "grr", share_coin)),
    Leak("charge rounded down", "ss x grid", partial(_check, "ss", "grid", charge=round_down)),
)
