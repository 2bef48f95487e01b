"""Check of a record before a device reports it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.mechanisms.inputs import Records
from sfumato.mechanisms.outside import outside_features
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
