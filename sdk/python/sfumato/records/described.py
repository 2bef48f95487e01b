"""Records of rounds with attributes on a device: the values of the features, and the category of each attribute.

A text is compared by its code points, because Unicode's normal forms differ between versions and languages. A message
names the attribute and never the value. All attributes are read before the slot is drawn, so that a refusal does not
depend on the slot.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidPoint
from sfumato.records.encodings import scale, symbol
from sfumato.records.inputs import (
    Records,
    check_names,
    is_missing,
    named_columns,
    named_row,
    to_number,
    to_record,
    to_values,
)
from sfumato.specs import Feature, RoundSpec, Symbol, attributes_of
from sfumato.specs.attributes import Attribute, Categorical, Numeric

_UNNAMED = "a record with attributes must have names: pass a mapping of names to values"


class Described(NamedTuple):
    """Records that were read for a round.

    Attributes
    ----------
    points : ndarray of shape (n, d), float64
        Values of the features, in their units.
    codes : ndarray of shape (n, m), int64
        Category of each attribute of the round; m is 0 without attributes.
    """

    points: NDArray[np.float64]
    codes: NDArray[np.int64]

    def select(self, chosen: NDArray[np.bool_]) -> "Described":
        """Return the records that a mask chooses."""
        return Described(self.points[chosen], self.codes[chosen])


def category(attribute: Attribute, value: object) -> int:
    """Return the place of a value among the categories of its attribute. Raise InvalidPoint if it is refused."""
    if is_missing(value):
        if attribute.missing != "category":
            raise InvalidPoint(f"{attribute.name} is missing: give a value")
        return len(attribute.categories) - 1
    if isinstance(attribute, Numeric):
        return bisect_right(attribute.bins[1:-1], to_number(value, attribute.name))
    if not isinstance(value, str):
        raise InvalidPoint(f"{attribute.name} must be text, or missing; got a value of type {type(value).__name__}")
    if value in attribute.values:
        return attribute.values.index(value)
    if attribute.unknown != "other":
        raise InvalidPoint(f"{attribute.name} must be one of its declared values")
    return len(attribute.values)


def categories(attribute: Attribute, cells: Any) -> NDArray[np.int64]:
    """Return the category of each value: shape (n,). Raise InvalidPoint with the number of the record."""
    known = {value: place for place, value in enumerate(attribute.values)} if isinstance(attribute, Categorical) else {}
    array = np.asarray(cells)
    if isinstance(attribute, Numeric) and array.dtype.kind == "f" and np.isfinite(array).all():
        edges = np.array(attribute.bins[1:-1])
        return np.asarray(np.searchsorted(edges, array, side="right"), dtype=np.int64)
    codes = np.empty(len(cells), dtype=np.int64)
    for place, cell in enumerate(cells):
        try:
            codes[place] = known[cell] if isinstance(cell, str) and cell in known else category(attribute, cell)
        except InvalidPoint as error:
            raise InvalidPoint(f"record {place + 1} (counted from 1): {error}") from None
    return codes


def split_record(
    features: Sequence[Feature], attributes: Sequence[Attribute], record: Records
) -> tuple[Records, dict[str, object]]:
    """Return the part of a record that has the features, and the values of the attributes by name.

    Raises
    ------
    InvalidPoint
        There are attributes, and a name is missing, repeated or unknown.
    """
    if not attributes:
        return record, {}
    named = named_row(record)
    if named is None:
        raise InvalidPoint(_UNNAMED)
    names, own = [each.name for each in features], [each.name for each in attributes]
    check_names([*names, *own], list(named), "values")
    return {name: named[name] for name in names}, {name: named[name] for name in own}


def read_record(spec: RoundSpec, record: Records) -> tuple[Records, list[int]]:
    """Return the values of the features of a record, and the category of each attribute of the round.

    Raises
    ------
    InvalidPoint
        A name is missing, repeated or unknown, or a value is refused.
    """
    attributes = attributes_of(spec.encoding)
    if not attributes:
        return record, []
    point, values = split_record(spec.features, spec.attributes, record)
    numbers = to_record(spec.features, point)
    values |= zip((each.name for each in spec.features), numbers, strict=True)
    return numbers, [category(each, values[each.name]) for each in attributes]


def read_records(spec: RoundSpec, records: "Records | Described") -> Described:
    """Return records as `read_record` does, of shape (n, d). Raise InvalidPoint."""
    if isinstance(records, Described):
        return records
    columns: dict[str, Any] = {}
    if own := [each.name for each in spec.attributes]:
        names = [feature.name for feature in spec.features]
        named = named_columns(records)
        if named is None:
            raise InvalidPoint(_UNNAMED)
        check_names([*names, *own], list(named))
        columns, records = {name: named[name] for name in own}, {name: named[name] for name in names}
    points = to_values(spec.features, records)
    if any(len(column) != len(points) for column in columns.values()):
        raise InvalidPoint("the columns of the features and the attributes must have equal lengths")
    return describe(spec, points, {each.name: categories(each, columns[each.name]) for each in spec.attributes})


def describe(spec: RoundSpec, points: NDArray[np.float64], codes: Mapping[str, NDArray[np.integer[Any]]]) -> Described:
    """Return records with the category of each attribute of the round, from the codes of those that are no feature.

    Parameters
    ----------
    spec : RoundSpec
    points : ndarray of shape (n, d), float64
        Values of the features, in their units.
    codes : mapping of str to ndarray of shape (n,), int
        Category of each of `spec.attributes`, by name.
    """
    columns = {feature.name: points[:, place] for place, feature in enumerate(spec.features)}
    found = np.empty((len(points), len(attributes_of(spec.encoding))), dtype=np.int64)
    for place, each in enumerate(attributes_of(spec.encoding)):
        found[:, place] = codes[each.name] if each.name in codes else categories(each, columns[each.name])
    return Described(points, found)


def own_symbol(spec: RoundSpec, record: Records, slot: int) -> Symbol:
    """Return the symbol of a record under a slot, or its vector, without regard to the bounds. Raise InvalidPoint."""
    features, codes = read_record(spec, record)
    return symbol(spec.encoding, scale(spec.features, features), slot, codes)
