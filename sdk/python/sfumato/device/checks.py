"""Checks of a device before it reports: of the record, and of the round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from numpy.typing import ArrayLike

from sfumato.device.open_rounds import OpenRound
from sfumato.errors import InvalidSpec, RoundRefused
from sfumato.privacy.accounting import format_epsilon, parse_epsilon
from sfumato.records.inputs import Records
from sfumato.records.outside import check_outside, outside_features
from sfumato.specs import Feature, RoundSpec
from sfumato.specs.attributes import Attribute, Categorical
from sfumato.validation import require

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


@dataclass(frozen=True, slots=True)
class Supported:
    """Features and attributes that an app supports, and the consent of its user.

    Attributes
    ----------
    features : tuple of Feature or None
        Features of its records; None supports all.
    attributes : frozenset of str
        Names of the attributes that it reports.
    keeps_reports : bool
        Whether the user accepts that the service keeps reports after their tally.
    declared : tuple of Attribute
        Those of its attributes of which it knows the values or bins.
    """

    features: tuple[Feature, ...] | None
    attributes: frozenset[str]
    keeps_reports: bool
    declared: tuple[Attribute, ...] = ()

    @classmethod
    def of(
        cls, features: Sequence[Feature] | None, attributes: Sequence[str | Attribute], *, keeps_reports: bool
    ) -> "Supported":
        """Return what an app supports, from names and declarations of attributes. Raise InvalidSpec."""
        require(
            not isinstance(attributes, str) and all(isinstance(each, str | Attribute) for each in attributes),
            "attributes must be a list of names and attributes",
        )
        declared = tuple(each for each in attributes if isinstance(each, Attribute))
        names = frozenset(each if isinstance(each, str) else each.name for each in attributes)
        return cls(None if features is None else tuple(features), names, keeps_reports, declared)

    def cost_nano(self, open_round: OpenRound, spec: RoundSpec) -> int:
        """Return the cost of a round from its published thresholds. Raise RoundRefused if it must not be answered."""
        if self.features is not None and spec.features != self.features:
            difference = _describe_difference(self.features, spec.features)
            raise RoundRefused(f"{open_round.round_id} has features that this app does not support: {difference}")
        if lacking := _lacking_attributes(spec, self.attributes):
            raise RoundRefused(f"{open_round.round_id} {lacking}")
        if other := _find_other(spec, self.declared):
            raise RoundRefused(
                f"{open_round.round_id} declares {other} with other values, bins or treatments of values than this "
                "app. Pass the attributes of the dataset to the device"
            )
        if open_round.keep_reports and not self.keeps_reports:
            raise RoundRefused(
                f"{open_round.round_id} keeps reports after their tally: "
                "ask the user, then pass accept_kept_reports=True to the device"
            )
        if isinstance(open_round.epsilon, str):
            raise InvalidSpec("a round's epsilon must be a number")
        declared_nano = parse_epsilon(cast(float, open_round.epsilon))
        epsilon_nano = spec.mechanism.epsilon_nano()
        if declared_nano < epsilon_nano:
            declared, real = format_epsilon(declared_nano), format_epsilon(epsilon_nano)
            raise RoundRefused(f"{open_round.round_id} declares epsilon {declared} but costs {real}")
        return epsilon_nano


def check_record(features: Sequence[Feature], record: Records) -> RecordCheck:
    """Return the check of a record. Raise InvalidPoint as `to_record`."""
    return RecordCheck(outside_features(features, record))


def check_for(spec: RoundSpec, record: Record, attributes: frozenset[str]) -> RecordCheck:
    """Return the check of a record for a round, with the categories of its attributes. Raise InvalidPoint.

    A device refuses a round with attributes that the app does not report. Then the features alone are checked.
    """
    if _lacking_attributes(spec, attributes):
        return check_record(spec.features, leave_out(record, attributes))
    return RecordCheck(check_outside(spec, part_for(spec, record, attributes)))


def leave_out(record: Record, names: frozenset[str]) -> Record:
    """Return a record without the values of some names. A record without names is returned as it is."""
    if not names or not isinstance(record, Mapping):
        return record
    return {name: value for name, value in record.items() if name not in names}


def part_for(spec: RoundSpec, record: Record, attributes: frozenset[str]) -> Record:
    """Return a record without those of the app's attributes that a round does not need."""
    return leave_out(record, attributes - {each.name for each in spec.attributes})


def _lacking_attributes(spec: RoundSpec, attributes: frozenset[str]) -> str:
    """Return a phrase that names the attributes of a round that an app does not report; empty if there are none."""
    lacking = ", ".join(each.name for each in spec.attributes if each.name not in attributes)
    if not lacking:
        return ""
    remedy = "Update the app, or pass their names as `attributes` to the device"
    return f"needs attributes that this app does not report: {lacking}. {remedy}"


def _find_other(spec: RoundSpec, declared: Sequence[Attribute]) -> str:
    """Return the names of the attributes of a round that an app declares otherwise; empty if there are none."""
    own = {each.name: _read_by_device(each) for each in declared}
    return ", ".join(
        each.name for each in spec.attributes if each.name in own and own[each.name] != _read_by_device(each)
    )


def _read_by_device(attribute: Attribute) -> Attribute:
    """Return an attribute without the members that do not change the category of a value."""
    if isinstance(attribute, Categorical):
        return replace(attribute, use="describe", weight=1.0)
    return replace(attribute, unit="")


def _describe_difference(expected: Sequence[Feature], actual: Sequence[Feature]) -> str:
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
