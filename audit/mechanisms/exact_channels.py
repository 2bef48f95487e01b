"""Compare the exact distribution of reports with the published channel and the charge, for all mechanisms.

The code that makes reports runs on symbolic words (`audit.mechanisms.symbolic_random`), on one device and in arrays of
devices. The check detects thresholds that spend more than the charge, a threshold comparison that is wrong for one
word, a choice that is not uniform, a slot or seed that depends on the point, a charge that is rounded down, and an
array with a distribution that differs from that of a device. For two devices in an array, it detects a shared coin.

The check does not cover domains larger than its examples; the code's only branch on the size is that between one byte
and two. It covers 8 of 2^93 seeds of local hashing. It replaces coins of exp(-a/b) by coins of a power of a fraction;
`audit.mechanisms.sampler_distributions` checks the former. It does not check the independence of lattice noise in
arrays, where two devices end their loops at different times; tests/statistics has a chi-square test.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, cast

import httpx
import numpy as np
from numpy.typing import NDArray

from audit.checks.check import Check, Effort, Finding, Setting
from audit.mechanisms.published_channels import (
    claimed_ratio,
    epsilon_of_ratio,
    equally_likely_symbols,
    is_least_charge,
    lattice_coins,
    published_mixture,
)
from audit.mechanisms.symbolic_random import ExecutionPath, NotEnumerable, exact_distribution
from sfumato.device.bulk import perturb_records
from sfumato.device.checks import Record
from sfumato.device.device import Device
from sfumato.device.open_rounds import OpenRound
from sfumato.device.store import MemoryStore
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy
from sfumato.records.outside import count_outside
from sfumato.specs import (
    ENCODINGS,
    LATTICE,
    MECHANISMS,
    CentroidSignEncoding,
    DiscreteLaplaceMechanism,
    Encoding,
    Feature,
    GridEncoding,
    LatticeEncoding,
    Mechanism,
    NearestCentroidEncoding,
    PhaseEncoding,
    ProfileEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    TreeGridEncoding,
    design_for,
    vector_noise,
)
from sfumato.specs.attributes import Categorical, Numeric

Report = tuple[int, bytes]  # slot, value
MakeReport = Callable[[RoundSpec, Record, Entropy], Report]
ChargeOf = Callable[[Mechanism], int]
PerturbMany = Callable[[Mechanism, NDArray[np.int64], Entropy], NDArray[np.uint8]]

EPSILONS = {
    Effort.QUICK: (0.25, 1.0, 4.0),
    Effort.FULL: (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0),
    Effort.NIGHTLY: (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0),
}
_LATTICE_SCALES = 4, 1  # lattice units; with other scales, two numbers have too many paths

_CENTROIDS = ((LATTICE // 4, LATTICE // 4), (3 * LATTICE // 4, LATTICE // 2))
EXAMPLES: dict[str, Encoding] = {
    encoding.type: encoding
    for encoding in (
        GridEncoding((2, 2)),
        ShiftedGridEncoding(n_features=1, cells=2, shifts=2),
        TreeGridEncoding(1, (1, 2, 2)),
        PhaseEncoding(((512,), (700,)), phases=4),
        LatticeEncoding(2, 2),
        NearestCentroidEncoding(_CENTROIDS),
        CentroidSignEncoding(((LATTICE // 4,), (3 * LATTICE // 4,))),
        ProfileEncoding(
            (Numeric("x0", (0, 0.5, 1)), Numeric("x1", (0, 0.3, 1))), cells=(2, 1), starts=(0, 1), labels=(0, 1)
        ),
    )
}
OUTSIDE = ", records outside counted"
COUNTING_EXAMPLES: dict[str, Encoding] = {LatticeEncoding.type: LatticeEncoding(1, 2)}  # with the mark, two numbers
CATEGORIES = "shifted_grid with categories"
CATEGORY_EXAMPLE = ShiftedGridEncoding(1, 2, 2, attributes=(Categorical("kind", ("a", "b"), use="cluster"),))
PHASE_CATEGORIES = "phase with categories"
PHASE_CATEGORY_EXAMPLE = PhaseEncoding(
    ((512,), (700,)), 4, (Categorical("kind", ("a", "b", "c"), use="cluster"),), ((0,), (2,))
)
_WITH_CATEGORIES: dict[Encoding, str] = {CATEGORY_EXAMPLE: CATEGORIES, PHASE_CATEGORY_EXAMPLE: PHASE_CATEGORIES}
_CATEGORY_RECORDS: tuple[Record, ...] = tuple(
    {"x0": place, "kind": kind} for place, kind in ((0.0, "a"), (0.0, "b"), (0.6, "b"), (1.0, "a"))
)
_POINTS: dict[int, tuple[tuple[float, ...], ...]] = {
    1: ((0.0,), (0.3,), (0.6,), (1.0,)),
    2: ((0.0, 0.0), (0.1, 0.9), (0.55, 0.4), (0.9, 0.2), (1.0, 1.0)),
}


def example_round(encoding: Encoding, kind: str, epsilon: float, *, counts_outside: bool = False) -> RoundSpec:
    """Return the round of an example."""
    features = tuple(Feature(f"x{place}", 0, 1) for place in range(encoding.n_features))
    mechanism = design_for(encoding, kind, round(epsilon * NANO))
    if (noise := vector_noise(mechanism)) is not None:  # a small margin is reached and keeps the tree small
        mechanism = replace(noise, margin=2)
    spec = RoundSpec(features, encoding, mechanism)
    return count_outside(spec) if counts_outside else spec


# ---- reports ----


def device_reports(kind: type[Device] = Device) -> MakeReport:
    """Return a function that makes the report of a device of this class, without the surrounding protocol."""
    refusing = httpx.MockTransport(lambda _: httpx.Response(500))
    device = kind("http://service.example", "key", "ds", cap=32, store=MemoryStore(), transport=refusing)

    def make_report(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
        device._entropy = entropy
        memo = device._perturb(OpenRound("rnd", "rnd", None, None, keep_reports=False), spec, 0, record)
        return int(memo.slot or 0), bytes.fromhex(memo.value or "")

    return make_report


def bulk_report(spec: RoundSpec, record: Record, entropy: Entropy) -> Report:
    """Return the report of an array of one device."""
    one: Any = {name: [value] for name, value in record.items()} if isinstance(record, Mapping) else [record]
    reports = perturb_records(spec, one, entropy, draws=np.zeros(1, dtype=np.uint64))
    return int(reports.slots[0]), reports.values[0].tobytes()


@dataclass(slots=True)
class Channel:
    """The distribution of reports for every point of an example.

    Attributes
    ----------
    distributions : list of dict
        One per point.
    n_paths : int
    """

    distributions: list[dict[Report, Fraction]] = field(default_factory=list)
    n_paths: int = 0

    def largest_ratio(self) -> Fraction | None:
        """Return the largest ratio of a report's probabilities, or None if a report is impossible for a point."""
        reports = set().union(*self.distributions)
        if not all(distribution.get(report) for distribution in self.distributions for report in reports):
            return None
        return max(
            max(distribution[report] for distribution in self.distributions)
            / min(distribution[report] for distribution in self.distributions)
            for report in reports
        )


def enumerate_channel(make_report: MakeReport, spec: RoundSpec, points: Sequence[Record]) -> Channel:
    """Return the distribution of the reports for each point."""
    channel = Channel()
    with lattice_coins(spec.mechanism):
        for point in points:
            distribution = exact_distribution(partial(make_report, spec, point))
            total = sum(distribution.probabilities.values(), Fraction(0))  # below 1 if loops started again
            channel.distributions.append(
                {report: probability / total for report, probability in distribution.probabilities.items()}
            )
            channel.n_paths += distribution.n_paths
    return channel


def _find_faults(
    spec: RoundSpec, points: Sequence[Record], device: Channel, bulk: Channel, charged: int, requested: int
) -> Iterator[str]:
    mechanism, n_slots = spec.mechanism, spec.encoding.n_slots
    ratio = device.largest_ratio()
    claimed = claimed_ratio(mechanism)
    if ratio is None:
        yield "a report is possible for one point and impossible for another"
    elif ratio != claimed:
        side = "above" if ratio > claimed else "below"
        yield f"the largest ratio is {side} the published one: epsilon {epsilon_of_ratio(mechanism, ratio):.9g}"
    if not is_least_charge(mechanism, charged, claimed if ratio is None else ratio):
        yield f"a charge of {charged} nano-epsilon is not the least that covers the ratio"
    for point, distribution in zip(points, device.distributions, strict=True):
        slots = [sum((c for (slot, _), c in distribution.items() if slot == at), Fraction(0)) for at in range(n_slots)]
        if set(slots) != {Fraction(1, n_slots)}:
            yield f"slots are not uniform at {point}"
    if device.distributions != bulk.distributions:
        yield "an array of devices has another distribution than one device"
    if charged > requested:
        yield f"{charged} nano-epsilon are charged, but only {requested} were requested"
    for point, distribution in zip(points, device.distributions, strict=True):
        for slot in range(n_slots):
            in_slot = {value: probability * n_slots for (at, value), probability in distribution.items() if at == slot}
            if in_slot != published_mixture(mechanism, equally_likely_symbols(spec, point, slot), list(in_slot)):
                yield f"the distribution in slot {slot} at {point} is not the published channel"
            if not all(mechanism.is_value(value) for value in in_slot):
                yield "the service rejects a value"
    if mechanism.form != "vector" and not _matches_likelihood(spec, points, device):
        yield "`Mechanism.likelihood` computes another likelihood"


def _matches_likelihood(spec: RoundSpec, points: Sequence[Record], device: Channel) -> bool:
    """Return whether likelihoods are proportional to the distributions over the points, within 1e-9."""
    mechanism = spec.mechanism
    for slot in range(spec.encoding.n_slots):
        values = sorted({value for distribution in device.distributions for at, value in distribution if at == slot})
        own = [cast(list[int], equally_likely_symbols(spec, point, slot)) for point in points]
        shares = np.array([np.eye(mechanism.n_symbols)[each].mean(axis=0) for each in own])
        array = np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), -1)
        likelihoods = mechanism.likelihood(array, shares)
        exact = np.array(
            [[float(distribution.get((slot, value), 0)) for distribution in device.distributions] for value in values]
        )
        if not np.allclose(
            likelihoods / likelihoods.sum(axis=1, keepdims=True), exact / exact.sum(axis=1, keepdims=True), rtol=1e-9
        ):
            return False
    return True


def check_channel(
    kind: str,
    encoding: Encoding,
    setting: Setting,
    make_report: MakeReport | None = None,
    bulk: MakeReport = bulk_report,
    charge: ChargeOf = Mechanism.epsilon_nano,
    *,
    counts_outside: bool = False,
) -> list[Finding]:
    """Check a mechanism over an encoding at several epsilons, also for a record outside if the round counts it."""
    make_report = make_report or device_reports()
    claim = "spends exactly the charged epsilon; slots are independent of data; arrays have the same distribution"
    n_paths, largest_spent, charge_of_largest, why = 0, 0.0, 0.0, ""
    epsilons: tuple[float, ...] = EPSILONS[setting.effort]
    if isinstance(encoding, LatticeEncoding):
        epsilons = tuple(encoding.n_features * encoding.steps / scale for scale in _LATTICE_SCALES)
    for epsilon in epsilons:
        spec = example_round(encoding, kind, epsilon, counts_outside=counts_outside)
        points = select_points(spec)
        charged = charge(spec.mechanism)
        try:
            channel = enumerate_channel(make_report, spec, points)
            faults = list(
                _find_faults(
                    spec, points, channel, enumerate_channel(bulk, spec, points), charged, round(epsilon * NANO)
                )
            )
        except NotEnumerable as error:
            channel, faults = Channel(), [str(error)]
        n_paths += channel.n_paths
        ratio = channel.largest_ratio() if channel.distributions else None
        spent = float("inf") if ratio is None else epsilon_of_ratio(spec.mechanism, ratio)
        if spent - charged / NANO >= largest_spent - charge_of_largest or faults:
            largest_spent, charge_of_largest = spent, charged / NANO
        if faults:
            why = f"at epsilon {epsilon}: {faults[0]}"
            break
    encoded = _WITH_CATEGORIES.get(encoding, encoding.type)
    name = f"{kind} x {encoded}" + (OUTSIDE if counts_outside else "")
    return [Finding(name, claim, "exact", n_paths, charge_of_largest, largest_spent, not why, why)]


def check_independence(kind: str, perturb_many: PerturbMany, _setting: Setting) -> list[Finding]:
    """Check that two devices in an array have independent coins, for one mechanism over three symbols at epsilon 1."""
    mechanism = example_round(EXAMPLES["tree_grid"], kind, 1.0).mechanism
    n_paths, why = 0, ""
    try:
        single = {own: exact_distribution(partial(_array_values, perturb_many, mechanism, (own,))) for own in (0, 2)}
        for first, second in ((0, 0), (0, 2)):
            both = exact_distribution(partial(_array_values, perturb_many, mechanism, (first, second)))
            n_paths += both.n_paths
            independent = {
                one + other: probability * more
                for one, probability in single[first].probabilities.items()
                for other, more in single[second].probabilities.items()
            }
            if both.probabilities != independent:
                why = why or f"two devices with symbols {first} and {second} are not independent"
    except NotEnumerable as error:
        why = str(error)
    claim = "two devices in an array have independent coins"
    return [Finding(f"{kind} in arrays", claim, "exact", n_paths, holds=not why, why=why)]


def _array_values(
    perturb_many: PerturbMany, mechanism: Mechanism, symbols: tuple[int, ...], path: ExecutionPath
) -> tuple[bytes, ...]:
    values = perturb_many(mechanism, np.array(symbols, dtype=np.int64), path)
    return tuple(value.tobytes() for value in values)


def list_rows() -> list[tuple[str, str]]:
    """Return every pair of a mechanism and an encoding of `EXAMPLES` that it may perturb."""
    of_lattice = DiscreteLaplaceMechanism.type
    return [
        (kind, encoding)
        for kind, encoding in product(MECHANISMS, EXAMPLES)
        if (kind == of_lattice) == (encoding == LatticeEncoding.type)
    ]


def select_points(spec: RoundSpec) -> tuple[Record, ...]:
    """Return the points of an example; fewer for local hashing and lattices, which have more paths."""
    if spec.attributes:
        beyond: Record = {"x0": 1.5, "kind": "b"}
        return (*_CATEGORY_RECORDS, beyond) if spec.counts_outside else _CATEGORY_RECORDS
    points = _POINTS[spec.encoding.n_features]
    if spec.mechanism.form == "hash":
        points = points[:3]
    elif spec.mechanism.form == "vector":
        points = (*points[:2], points[-1])
    outside = (*(0.5,) * (spec.encoding.n_features - 1), 1.5)  # in one feature of several
    return (*points, outside) if spec.counts_outside else points


def list_category_rows() -> list[tuple[str, Encoding, bool]]:
    """Return mechanisms with an encoding that has categories, and whether records outside are counted."""
    grids = [("grr", False), ("grr", True), ("ss", False), ("oue", False), ("hr", False)]
    waves = [("window", False), ("window", True), ("grr", False)]
    return [
        *((kind, CATEGORY_EXAMPLE, counts) for kind, counts in grids),
        *((kind, PHASE_CATEGORY_EXAMPLE, counts) for kind, counts in waves),
    ]


def _check_category_row(row: tuple[str, Encoding, bool], setting: Setting) -> list[Finding]:
    return check_channel(row[0], row[1], setting, counts_outside=row[2])


def _check_row(row: tuple[str, str], setting: Setting) -> list[Finding]:
    return check_channel(row[0], EXAMPLES[row[1]], setting)


def _check_counting_row(row: tuple[str, str], setting: Setting) -> list[Finding]:
    return check_channel(row[0], COUNTING_EXAMPLES.get(row[1], EXAMPLES[row[1]]), setting, counts_outside=True)


def list_counting_rows() -> list[tuple[str, str]]:
    """Return the pairs that are checked with records outside: every encoding, and the mechanisms over a grid.

    Local hashing is left out, because it takes half a minute and perturbs a symbol like any other.
    """
    rows = [("grr", each) for each in EXAMPLES if each not in (LatticeEncoding.type, PhaseEncoding.type)]
    rows += [(kind, "grid") for kind in MECHANISMS if kind in ("ss", "oue", "hr")]
    rows += [(kind, PhaseEncoding.type) for kind in ("grr", "window")]
    return [*rows, (DiscreteLaplaceMechanism.type, LatticeEncoding.type)]


def check_completeness(_setting: Setting) -> list[Finding]:
    """Check that every mechanism and every encoding is in a row."""
    checked = {name for row in list_rows() for name in row}
    missing = sorted({*MECHANISMS, *ENCODINGS} - checked)
    claim = f"all {len(MECHANISMS)} mechanisms and {len(ENCODINGS)} encodings are checked"
    why = f"{', '.join(missing)}: no check" if missing else ""
    return [Finding("mechanisms x encodings", claim, "exact", len(list_rows()), holds=not missing, why=why)]


CHECKS: tuple[Check, ...] = (
    Check("mechanisms x encodings", check_completeness),
    *(Check(" x ".join(row), partial(_check_row, row)) for row in list_rows()),
    *(Check(" x ".join(row) + OUTSIDE, partial(_check_counting_row, row)) for row in list_counting_rows()),
    *(
        Check(
            f"{kind} x {_WITH_CATEGORIES[encoding]}{OUTSIDE if counts else ''}",
            partial(_check_category_row, (kind, encoding, counts)),
        )
        for kind, encoding, counts in list_category_rows()
    ),
    *(
        Check(f"{kind} in arrays", partial(check_independence, kind, Mechanism.perturb_many))
        for kind in MECHANISMS
        if kind != DiscreteLaplaceMechanism.type
    ),
)
