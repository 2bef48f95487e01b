"""Every mechanism over every encoding: the law of a whole report, exactly, against what is published and charged.

The code that makes reports runs over words nobody knows (`audit.exact_words`), on a device of its
own and in an array of them. It sees: thresholds that realise more than is charged, a threshold
compared wrongly by a single word, a choice that is not uniform, a slot or a seed that depends on
the point, a charge that rounds the wrong way, an array that follows another law than a device.

It does not see domains other than its examples (the code has no branch on their size but those
between one byte and two), nor seeds of local hashing beside 8 of 2^93, nor coins of exp(-a/b),
whose place coins of a fraction's powers take here: `audit.sampler_laws` looks at those.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil, log
from typing import Any, cast
from unittest.mock import patch

import httpx
import numpy as np

from audit.check import Check, Effort, Finding, Setting
from audit.exact_exponential import exp_bounds
from audit.exact_words import NotEnumerable, Way, exact_law
from sfumato import channels, mechanisms
from sfumato.accounting import NANO
from sfumato.bulk import perturb_records
from sfumato.device import Device, _OpenRound
from sfumato.encodings import scale, symbol
from sfumato.entropy import Entropy
from sfumato.mechanisms import discrete_laplace, grr, olh
from sfumato.specs import (
    ENCODINGS,
    LATTICE,
    MECHANISMS,
    CentroidSignEncoding,
    DiscreteLaplaceMechanism,
    Encoding,
    Feature,
    GridEncoding,
    GrrMechanism,
    HalfspaceCodeEncoding,
    LatticeEncoding,
    Mechanism,
    NearestCentroidEncoding,
    OlhMechanism,
    PhaseEncoding,
    ProjectedGridEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    Symbol,
    TreeGridEncoding,
)
from sfumato.store import MemoryStore

Report = tuple[int, bytes]  # slot, value
Maker = Callable[[RoundSpec, Sequence[float], Entropy], Report]
Charge = Callable[[Mechanism], int]

EPSILONS = {
    Effort.QUICK: (0.25, 1.0, 4.0),
    Effort.FULL: (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0),
    Effort.NIGHTLY: (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0),
}
_OF_LATTICE = (1.0, 4.0)  # scales of 4 units and of 1: of others, two features have too many ways to follow

_CENTROIDS = ((LATTICE // 4, LATTICE // 4), (3 * LATTICE // 4, LATTICE // 2))
EXAMPLES: dict[str, Encoding] = {
    encoding.type: encoding
    for encoding in (
        GridEncoding((2, 2)),
        ShiftedGridEncoding(n_features=1, cells=2, shifts=2),
        TreeGridEncoding(1, (1, 2, 2)),
        ProjectedGridEncoding(((2, 1), (3, -1)), (0, -LATTICE), (3 * LATTICE, 4 * LATTICE), cells=2, shifts=2),
        HalfspaceCodeEncoding(((2, 1), (1, -1)), (LATTICE, 0)),
        PhaseEncoding(((512,), (700,)), phases=4),
        LatticeEncoding(2, 2),
        NearestCentroidEncoding(_CENTROIDS),
        CentroidSignEncoding(((LATTICE // 4,), (3 * LATTICE // 4,))),
    )
}
_POINTS: dict[int, tuple[tuple[float, ...], ...]] = {
    1: ((0.0,), (0.3,), (0.6,), (1.0,)),
    2: ((0.0, 0.0), (0.1, 0.9), (0.55, 0.4), (0.9, 0.2), (1.0, 1.0)),
}


def specs(encoding: Encoding, kind: str, epsilon: float) -> RoundSpec:
    """The round of an example."""
    features = tuple(Feature(f"x{place}", 0, 1) for place in range(encoding.n_features))
    mechanism = mechanisms.design_for(encoding, kind, round(epsilon * NANO))
    if isinstance(mechanism, DiscreteLaplaceMechanism):  # a margin that is reached, in a tree of few ways
        parts = (mechanism.scale_numerator, mechanism.scale_denominator)
        mechanism = DiscreteLaplaceMechanism(mechanism.n_features, mechanism.steps, *parts, margin=2)
    return RoundSpec(features, encoding, mechanism)


# ---- who makes reports ----


def by_device(kind: type[Device] = Device) -> Maker:
    """The report of a device of this class, without what lies around it: `audit.device_exact` has that."""
    refusing = httpx.MockTransport(lambda _: httpx.Response(500))
    device = kind("http://service.example", "key", "ds", cap=32, store=MemoryStore(), transport=refusing)

    def make(spec: RoundSpec, record: Sequence[float], entropy: Entropy) -> Report:
        device._entropy = entropy
        memo = device._perturbed(_OpenRound("rnd", "rnd", None, None), spec, 0, record)
        return int(memo.slot or 0), bytes.fromhex(memo.value or "")

    return make


def in_bulk(spec: RoundSpec, record: Sequence[float], entropy: Entropy) -> Report:
    """The report of an array of one device."""
    reports = perturb_records(spec, [record], entropy, draws=np.zeros(1, dtype=np.uint64))
    return int(reports.slots[0]), reports.values[0].tobytes()


# ---- what they should be ----


def _lattice_base(mechanism: DiscreteLaplaceMechanism) -> Fraction:
    """A fraction in place of exp(-1/t): the law is an identity in it."""
    return Fraction(round(np.exp(-1 / mechanism.scale_numerator) * 64), 64)


@contextmanager
def lattice_coins(mechanism: Mechanism) -> Iterator[None]:
    """For so long, coins of exp(-a/b) are coins of the power a t/b of a fraction; loops are counted."""
    if not isinstance(mechanism, DiscreteLaplaceMechanism):
        yield
        return
    t, base = mechanism.scale_numerator, _lattice_base(mechanism)
    names = ("noise", "_noise_many", "pick", "pick_many")
    real: dict[str, Any] = {name: getattr(discrete_laplace, name) for name in names}

    def begins(name: str, place: int) -> Callable[..., Any]:
        def draw(*arguments: Any) -> Any:
            arguments[place].begin()
            return real[name](*arguments)

        return draw

    def pick(way: Way, bound: int, *n: int) -> Any:
        if bound == t:
            way.loop()
        return real["pick_many" if n else "pick"](way, bound, *n)

    def coin(a: int, b: int, way: Way) -> bool:
        power = Fraction(a * t, b)
        if power.denominator != 1:
            raise NotEnumerable(f"a coin of exp(-{a}/{b}), where the scale is {t} units")
        return way.coin(base**power.numerator)

    def coins(parts: Any, b: int, way: Way) -> Any:
        return np.array([coin(a, b, way) for a in parts.tolist()], dtype=np.bool_)

    begun: dict[str, Any] = {
        "noise": begins("noise", 1),
        "_noise_many": begins("_noise_many", 2),
        "pick": pick,
        "pick_many": pick,
    }
    with patch.multiple(discrete_laplace, bernoulli_exp=coin, bernoulli_exp_many=coins, **begun):
        yield


def _published(mechanism: Mechanism, held: Symbol, seen: Sequence[bytes]) -> dict[bytes, Fraction]:
    """The law of values for a symbol; of local hashing, over the seeds that were seen."""
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        return _published_vectors(mechanism, cast(tuple[int, ...], held))
    held = cast(int, held)
    if not isinstance(mechanism, OlhMechanism):
        return {value: row[held] for value, row in mechanisms.channel(mechanism).items()}
    response = GrrMechanism(mechanism.hash_range, mechanism.keep_threshold)
    keep, other = grr.support(response)
    heads = {value[: olh.SEED_BYTES] for value in seen}
    law = {}
    for head, sent in product(heads, range(mechanism.hash_range)):
        a, b, c = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4, 8))
        hashed = (a * held**2 + b * held + c) % (2**31 - 1) * mechanism.hash_range >> 31
        value = head + sent.to_bytes(grr.value_bytes(response), "little")
        law[value] = (keep if hashed == sent else other) / len(heads)
    return law


def _published_vectors(mechanism: DiscreteLaplaceMechanism, held: tuple[int, ...]) -> dict[bytes, Fraction]:
    r = _lattice_base(mechanism) ** mechanism.scale_denominator
    low, high = -mechanism.margin, mechanism.steps + mechanism.margin
    law = {b"": Fraction(1)}
    for own in held:
        part = {sent: (1 - r) / (1 + r) * r ** abs(sent - own) for sent in range(low + 1, high)}
        part |= {low: r ** (own - low) / (1 + r), high: r ** (high - own) / (1 + r)}
        law = {
            value + (sent - low).to_bytes(discrete_laplace.width(mechanism), "little"): chance * more
            for (value, chance), (sent, more) in product(law.items(), part.items())
        }
    return law


@dataclass(slots=True)
class Channel:
    """The law of reports for every point of an example.

    Attributes
    ----------
    laws : list of dict
        For each point.
    n_ways : int
    """

    laws: list[dict[Report, Fraction]] = field(default_factory=list)
    n_ways: int = 0

    def largest_ratio(self) -> Fraction | None:
        """Of any report under two points; None where a report is impossible under one of them."""
        reports = set().union(*self.laws)
        if not all(law.get(report) for law in self.laws for report in reports):
            return None
        return max(max(law[report] for law in self.laws) / min(law[report] for law in self.laws) for report in reports)


def channel_of(maker: Maker, spec: RoundSpec, points: Sequence[Sequence[float]]) -> Channel:
    """The law of what a maker sends, for each point."""
    channel = Channel()
    with lattice_coins(spec.mechanism):
        for point in points:
            law = exact_law(partial(maker, spec, point))
            total = sum(law.chances.values(), Fraction(0))  # 1, but for loops that began anew
            channel.laws.append({report: chance / total for report, chance in law.chances.items()})
            channel.n_ways += law.n_ways
    return channel


def _spent(mechanism: Mechanism, ratio: Fraction) -> float:
    """Epsilon of a ratio: its logarithm, of a lattice's in units of the fraction that stands for exp(-1/t)."""
    in_units = log(ratio.numerator) - log(ratio.denominator)
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        return in_units / -log(_lattice_base(mechanism)) / mechanism.scale_numerator
    return in_units


def _faults(
    spec: RoundSpec, points: Sequence[Sequence[float]], device: Channel, bulk: Channel, charged: int, asked: int
) -> Iterator[str]:
    mechanism, n_slots = spec.mechanism, spec.encoding.n_slots
    ratio = device.largest_ratio()
    claimed = _claimed_ratio(mechanism)
    if ratio is None:
        yield "a report is possible under one point and not under another"
    elif ratio != claimed:
        side = "above" if ratio > claimed else "below"
        yield f"the largest ratio lies {side} the one published: epsilon {_spent(mechanism, ratio):.9g}"
    if not _covers(mechanism, charged, claimed if ratio is None else ratio):
        yield f"{charged} nano-epsilon do not cover it"
    for point, law in zip(points, device.laws, strict=True):
        slots = [sum((c for (slot, _), c in law.items() if slot == at), Fraction(0)) for at in range(n_slots)]
        if set(slots) != {Fraction(1, n_slots)}:
            yield f"slots are not uniform at {point}"
    if device.laws != bulk.laws:
        yield "an array of devices follows another law than one device"
    if charged > asked:
        yield f"{charged} nano-epsilon are charged where {asked} were asked for"
    for point, law in zip(points, device.laws, strict=True):
        for slot in range(n_slots):
            held = symbol(spec.encoding, scale(spec.features, point), slot)
            seen = {value: chance * n_slots for (at, value), chance in law.items() if at == slot}
            if seen != _published(mechanism, held, list(seen)):
                yield f"the law of slot {slot} at {point} is not the published channel"
            if not all(mechanisms.is_value(mechanism, value) for value in seen):
                yield "a value is sent that the service refuses"
    if not isinstance(mechanism, DiscreteLaplaceMechanism) and not _is_evidence(spec, points, device):
        yield "`sfumato.channels` says another likelihood"


def _claimed_ratio(mechanism: Mechanism) -> Fraction:
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        units = mechanism.n_features * mechanism.steps * mechanism.scale_denominator
        return _lattice_base(mechanism) ** -units
    return mechanisms.ratio(mechanism)


def _covers(mechanism: Mechanism, charged: int, ratio: Fraction) -> bool:
    """Whether e^charged is at least the ratio, and a nano less is not; of a lattice, where logarithms are fractions."""
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        units = log(ratio) / -log(_lattice_base(mechanism))
        return charged == ceil(Fraction(round(units), mechanism.scale_numerator) * NANO)
    least, before = exp_bounds(Fraction(charged, NANO))[0], exp_bounds(Fraction(max(charged - 1, 0), NANO))[1]
    return before < ratio <= least


def _is_evidence(spec: RoundSpec, points: Sequence[Sequence[float]], device: Channel) -> bool:
    """Whether likelihoods are in proportion to the laws, over the points, within 1e-9."""
    mechanism = spec.mechanism
    for slot in range(spec.encoding.n_slots):
        values = sorted({value for law in device.laws for at, value in law if at == slot})
        held = [symbol(spec.encoding, scale(spec.features, point), slot) for point in points]
        shares = np.eye(mechanism.n_symbols)[held]
        array = np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), -1)
        told = channels.likelihood(mechanism, array, shares)
        exact = np.array([[float(law.get((slot, value), 0)) for law in device.laws] for value in values])
        if not np.allclose(told / told.sum(axis=1, keepdims=True), exact / exact.sum(axis=1, keepdims=True), rtol=1e-9):
            return False
    return True


def look(
    kind: str,
    encoding: Encoding,
    setting: Setting,
    maker: Maker | None = None,
    bulk: Maker = in_bulk,
    charge: Charge = mechanisms.epsilon_nano,
) -> list[Finding]:
    """One row: a mechanism over an encoding, at several epsilons."""
    maker = maker or by_device()
    claim = "spends what is charged, to the nano; slots say nothing; an array follows the same law"
    n_ways, most, most_charged, why = 0, 0.0, 0.0, ""
    for epsilon in _OF_LATTICE if isinstance(encoding, LatticeEncoding) else EPSILONS[setting.effort]:
        spec = specs(encoding, kind, epsilon)
        points = _points(spec)
        charged = charge(spec.mechanism)
        try:
            found = channel_of(maker, spec, points)
            faults = list(_faults(spec, points, found, channel_of(bulk, spec, points), charged, round(epsilon * NANO)))
        except NotEnumerable as error:
            found, faults = Channel(), [str(error)]
        n_ways += found.n_ways
        ratio = found.largest_ratio() if found.laws else None
        spent = float("inf") if ratio is None else _spent(spec.mechanism, ratio)
        if spent - charged / NANO >= most - most_charged or faults:
            most, most_charged = spent, charged / NANO
        if faults:
            why = f"at epsilon {epsilon}: {faults[0]}"
            break
    return [Finding(f"{kind} x {encoding.type}", claim, "exact", n_ways, most_charged, most, not why, why)]


def rows() -> list[tuple[str, str]]:
    """Every mechanism with every encoding it may perturb, of those that have an example."""
    of_lattice = DiscreteLaplaceMechanism.type
    return [
        (kind, encoding)
        for kind, encoding in product(MECHANISMS, EXAMPLES)
        if (kind == of_lattice) == (encoding == LatticeEncoding.type)
    ]


def _points(spec: RoundSpec) -> tuple[tuple[float, ...], ...]:
    """Where there are many ways (of local hashing, a law for each seed; of a lattice, sums), fewer."""
    points = _POINTS[spec.encoding.n_features]
    if isinstance(spec.mechanism, OlhMechanism):
        return points[:3]
    return (*points[:2], points[-1]) if isinstance(spec.mechanism, DiscreteLaplaceMechanism) else points


def _look_at(row: tuple[str, str], setting: Setting) -> list[Finding]:
    return look(row[0], EXAMPLES[row[1]], setting)


def completeness(_setting: Setting) -> list[Finding]:
    """Whether every mechanism and every encoding there is stands in a row."""
    told = {name for row in rows() for name in row}
    missing = sorted({*MECHANISMS, *ENCODINGS} - told)
    claim = f"all {len(MECHANISMS)} mechanisms and {len(ENCODINGS)} encodings are looked at"
    why = f"{', '.join(missing)}: no row" if missing else ""
    return [Finding("mechanisms x encodings", claim, "exact", len(rows()), holds=not missing, why=why)]


CHECKS: tuple[Check, ...] = (
    Check("mechanisms x encodings", completeness),
    *(Check(" x ".join(row), partial(_look_at, row)) for row in rows()),
)
