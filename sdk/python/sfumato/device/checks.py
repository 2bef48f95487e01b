"""Check of a record before a device reports it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from sfumato.records.inputs import Records
from sfumato.records.outside import outside_features
from sfumato.specs import Feature, RoundSpec

Record = ArrayLike | Mapping[str, float | str | None]


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """The result of `Device.check` for a valid record.

    Attributes
    ----------
    outside : tuple of str
        Features with a value outside their bounds.
    """

    outside: tuple[str, ...]


def check_record(features: Sequence[Feature], record: Records) -> RecordCheck:
    """Return the check of a record. Raise InvalidPoint as `to_record`."""
    return RecordCheck(outside_features(features, record))


def leave_out(record: Record, names: frozenset[str]) -> Record:
    """Return a record without the values of some names. A record without names is returned as it is."""
    if not names or not isinstance(record, Mapping):
        return record
    return {name: value for name, value in record.items() if name not in names}


def part_for(spec: RoundSpec, record: Record, attributes: frozenset[str]) -> Record:
    """Return a record without those of the app's attributes that a round does not need."""
    return leave_out(record, attributes - {each.name for each in spec.attributes})


def lacking_attributes(spec: RoundSpec, attributes: frozenset[str]) -> str:
    """Return a phrase that names the attributes of a round that an app does not report; empty if there are none."""
    lacking = ", ".join(each.name for each in spec.attributes if each.name not in attributes)
    if not lacking:
        return ""
    remedy = "Update the app, or pass their names as `attributes` to the device"
    return f"needs attributes that this app does not report: {lacking}. {remedy}"


def describe_difference(expected: Sequence[Feature], actual: Sequence[Feature]) -> str:
    """Return how the features of a round differ from the expected ones, which they do."""
    wanted, found = [each.name for each in expected], [each.name for each in actual]
    missing = ", ".join(name for name in wanted if name not in found)
    added = ", ".join(name for name in found if name not in wanted)
    if missing or added:
        parts = (f"it lacks {missing}" if missing else "", f"it also has {added}" if added else "")
        return " and ".join(part for part in parts if part)
    if wanted != found:
        return f"its order is {', '.join(found)}, not {', '.join(wanted)}"
    changed = [mine.name for mine, other in zip(expected, actual, strict=True) if mine != other]
    return f"the bounds, the unit or the shape of {', '.join(changed)} differ"
