"""Checks of a device before it reports: of the record, and of the round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from numpy.typing import ArrayLike

from sfumato.device.open_rounds import OpenRound
from sfumato.errors import InvalidSpec, RoundRefused
from sfumato.privacy.accounting import format_epsilon, parse_epsilon
from sfumato.records.described import category, split_record
from sfumato.records.inputs import named_row
from sfumato.records.outside import outside_features
from sfumato.specs import Feature, RoundSpec
from sfumato.specs.attributes import Attribute, Categorical, check_attributes
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
        Features of its records; None supports all that are no place.
    attributes : tuple of Attribute
        Attributes that it reports, with their values or bins.
    keeps_reports : bool
        Whether the user accepts that the service keeps reports after their tally.
    """

    features: tuple[Feature, ...] | None
    attributes: tuple[Attribute, ...]
    keeps_reports: bool

    @classmethod
    def of(
        cls, features: Sequence[Feature] | None, attributes: Sequence[Attribute], *, keeps_reports: bool
    ) -> "Supported":
        """Return what an app supports. Raise InvalidSpec if an attribute is not declared, or a name is repeated."""
        require(
            all(isinstance(each, Attribute) for each in attributes),
            "attributes must be declared, not named: pass each as Categorical or Numeric, as the dataset declares it",
        )
        check_attributes(tuple(attributes), ())
        return cls(None if features is None else tuple(features), tuple(attributes), keeps_reports)

    def cost_nano(self, open_round: OpenRound, spec: RoundSpec) -> int:
        """Return the cost of a round from its published thresholds. Raise RoundRefused if it must not be answered."""
        if difference := _describe_difference(self.features, spec.features):
            raise RoundRefused(f"{open_round.round_id} has features that this app does not support: {difference}")
        if other := _find_undeclared(spec, self.attributes):
            raise RoundRefused(
                f"{open_round.round_id} has attributes that this app does not declare, or declares otherwise: {other}. "
                "Pass the attributes of the dataset to the device"
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


def check_record(features: Sequence[Feature], record: Record, attributes: Sequence[Attribute]) -> RecordCheck:
    """Return the check of a record with the values of all attributes that an app declares. Raise InvalidPoint."""
    point, values = split_record(features, attributes, record)
    for each in attributes:
        category(each, values[each.name])
    return RecordCheck(outside_features(features, point))


def part_for(spec: RoundSpec, record: Record, attributes: Sequence[Attribute]) -> Record:
    """Return a record without those of the app's attributes that a round does not need."""
    named: Mapping[Any, Any] | None = named_row(record) if attributes else None
    if named is None:
        return record
    left_out = {each.name for each in attributes} - {each.name for each in spec.attributes}
    return {name: value for name, value in named.items() if name not in left_out}


def _find_undeclared(spec: RoundSpec, attributes: Sequence[Attribute]) -> str:
    """Return the names of the attributes of a round that an app does not declare in the same way; empty if none."""
    own = {each.name: _read_by_device(each) for each in attributes}
    return ", ".join(each.name for each in spec.attributes if own.get(each.name) != _read_by_device(each))


def _read_by_device(attribute: Attribute) -> Attribute:
    """Return an attribute without the members that do not change the category of a value."""
    if isinstance(attribute, Categorical):
        return replace(attribute, use="describe", weight=1.0)
    return replace(attribute, unit="")


def _describe_difference(expected: tuple[Feature, ...] | None, actual: tuple[Feature, ...]) -> str:
    """Return how the features of a round differ from the expected ones; empty if they do not.

    An app that expects no features takes all but a place: each finite number is then a valid value.
    """
    if expected is None:
        is_place = any(each.coordinate for each in actual)
        return "it has a place. Declare the features of the app: pass those of the dataset" if is_place else ""
    if expected == actual:
        return ""
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
