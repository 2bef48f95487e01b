"""Check of a record before a device reports it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.records.inputs import Records
from sfumato.records.outside import outside_features
from sfumato.specs import Feature


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
