"""Vectors of reports: what a device sends, for a spec, a record and the words it draws."""

import math
from typing import Any

from sfumato.privacy.accounting import DRAW_SPAN, parse_epsilon
from sfumato.privacy.entropy import below
from sfumato.records.outside import encode
from sfumato.records.places import LIMITS
from sfumato.specs import Feature, RoundSpec, to_wire
from tests.vectors.specs import round_specs
from tests.vectors.words import PlannedEntropy

LAST_WORD = DRAW_SPAN - 1


def report_vectors() -> list[dict[str, Any]]:
    """Return the cost and some reports of each spec."""
    return [
        {
            "name": name,
            "epsilon_nano": str(spec.mechanism.epsilon_nano()),
            "value_bytes": spec.mechanism.value_bytes,
            "spec": to_wire(spec),
            "reports": [_report(name, spec, *plan) for plan in _plans(name, spec)],
        }
        for name, spec in round_specs()
    ]


def _report(name: str, spec: RoundSpec, number: int, values: list[float], first: tuple[int, ...]) -> dict[str, Any]:
    record = _described(spec, number, values) if spec.attributes else values
    entropy = PlannedEntropy(f"sfumato {name} {number}", first)
    slot = below(entropy, spec.encoding.n_slots)
    own = encode(spec, record, slot, entropy)
    value = spec.mechanism.perturb(own, entropy)
    return {
        "record": record,
        "entropy": entropy.hex,
        "slot": slot,
        "symbol": list(own) if isinstance(own, tuple) else own,
        "value": value.hex(),
    }


# Values of attributes by turn: known, missing, unknown, at an edge, beyond the edges
_VALUES: dict[str, tuple[str | float | None, ...]] = {
    "plan": ("free", None, "e\u0301te\u0301", "\u00e9t\u00e9", "pro ", "pro", "Free"),
    "device": ("new", "new", "old", "new", "old", "new", "old"),
    "region": ("r13", None, "r1", "nowhere", "r7", "r0", "r12"),
    "income": (0.1, 0.30000000000000004, 0.3, None, -5, 1e9, 0.09999999999999999),
}


def _described(spec: RoundSpec, number: int, values: list[float]) -> dict[str, str | float | None]:
    """Return a record by name with the values of its attributes."""
    record: dict[str, str | float | None] = {
        feature.name: value for feature, value in zip(spec.features, values, strict=True)
    }
    return record | {each.name: _VALUES[each.name][number] for each in spec.attributes}


def _plans(name: str, spec: RoundSpec) -> list[tuple[int, list[float], tuple[int, ...]]]:
    """Records at borders and inside, and words at thresholds, below them, and such as are drawn again."""
    lower = [feature.lower for feature in spec.features]
    upper = [feature.upper for feature in spec.features]
    records = [
        [_between(feature, 0.37 + 0.11 * place) for place, feature in enumerate(spec.features)],
        lower,
        upper,
        [_between(feature, 0.5) for feature in spec.features],
        [_far_below(feature) for feature in spec.features],
        [_between(feature, 0.2 * (place + 1)) for place, feature in enumerate(spec.features)],
    ]
    if spec.counts_outside:  # one value outside is enough, however near to its bound
        records[0][-1] = _just_above(spec.features[-1])
        records += [[_between(feature, 0.6) for feature in spec.features]]
    elif any(feature.periodic for feature in spec.features):
        records += [[1e300 if feature.coordinate is None else -45.0 for feature in spec.features]]
    threshold = next(
        (value for key, value in to_wire(spec.mechanism).items() if key.endswith("threshold")), str(DRAW_SPAN // 2)
    )
    near = min(int(threshold), LAST_WORD)
    firsts: list[tuple[int, ...]] = [(), (0, near), (0, near - 1), (LAST_WORD, 0), (LAST_WORD,) * 3, (0,), ()]
    few = 2 if " cells" in name and "two" not in name else len(records)  # wide ones take many words
    return [(number, records[number], firsts[number]) for number in range(few)]


def _far_below(feature: Feature) -> float:
    """Return a value far below the lower bound; the least degrees of a place."""
    return feature.lower - 1e9 if feature.coordinate is None else -float(LIMITS[feature.coordinate])


def _just_above(feature: Feature) -> float:
    """Return the next value above the upper bound. On a whole turn of longitude, it is another name of a place."""
    return math.nextafter(feature.upper, math.inf)


def _between(feature: Feature, share: float) -> float:
    return feature.lower + share * (feature.upper - feature.lower)


def cap_vectors() -> list[dict[str, str]]:
    """Epsilons as people and JSON write them, and the integers they are."""
    given = ["1", "0.1", "0.000001", "32", "2.718281828", "1e-6", "1E0", "00.5", "1.500000000", "31.999999999"]
    return [{"epsilon": text, "epsilon_nano": str(parse_epsilon(text))} for text in given]
