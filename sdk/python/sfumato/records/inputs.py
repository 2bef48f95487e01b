"""Records that callers pass, as arrays. No other module reads a caller's frame, table, mapping, array or list.

Names must be those of the features, in any order; values are matched by name. Values without names are assumed to have
the features' order. Numbers are integers and floats of any width, decimals and fractions, also as scalars of numpy,
pandas and pyarrow. Each arrives as the nearest double, as in the service. Other input is rejected: text, dates,
booleans, complex numbers, masked and missing values, sets. Frames and tables are recognised by their methods, so that
neither pandas nor polars nor pyarrow is imported. Messages name the record and the feature, count from 1, and contain
no value.
"""

import math
from collections.abc import Mapping, Sequence, Set
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import MAX_NAMED, InvalidPoint
from sfumato.records.places import to_place, to_places
from sfumato.specs import Feature

Records = ArrayLike | Mapping[str, Any]
Numbers = NDArray[np.float64] | NDArray[np.float32]

_MISSING = frozenset({"NAType", "NaTType", "NoneType"})  # pandas.NA, pandas.NaT and None
_MASKED = "masked values"
_KINDS = {"b": "booleans", "c": "complex numbers", "M": "dates", "m": "time spans", "U": "text", "T": "text"}
_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "booleans"),
    (str, "text"),
    ((complex, np.complexfloating), "complex numbers"),
    ((date, time, np.datetime64), "dates"),
    ((timedelta, np.timedelta64), "time spans"),
)


class _Unfit(Exception):
    """A value that is not taken: what it is, and the record that has it, counted from 1, if it is known."""

    def __init__(self, what: str, record: int = 0) -> None:
        super().__init__(what)
        self.what, self.record = what, record

    def place(self) -> str:
        """Return the start of a message."""
        return f"record {self.record} (counted from 1): " if self.record else ""


def to_values(features: Sequence[Feature], records: Records) -> NDArray[np.float64]:
    """Return records as an array of shape (n, d), columns in the order of the features.

    Parameters
    ----------
    features : sequence of Feature
    records : array-like
        A data frame, a table, a mapping of columns, a structured array, an array of shape (n, d), or a list of rows.
        A row may be a mapping, a named tuple or a list.

    Raises
    ------
    InvalidPoint
        A name is missing, repeated or not a feature, the shape differs, a value is not a finite number, or degrees of a
        place are beyond their limits.
    """
    names = [feature.name for feature in features]
    columns = named_columns(records)
    if columns is None:
        values = to_numbers(records, names)
        return to_places(features, values.astype(np.float64, copy=False))
    check_names(names, list(columns))
    arrays = [_column(columns[name], name) for name in names]
    if len({len(each) for each in arrays}) > 1:
        raise InvalidPoint(f"the columns {list_names(names)} have different lengths")
    values = np.stack(arrays, axis=1) if arrays else np.empty((0, 0))
    _check_finite(values, names)
    return to_places(features, values)


def to_record(features: Sequence[Feature], record: Records) -> list[float]:
    """Return one record as numbers in the order of the features.

    Parameters
    ----------
    features : sequence of Feature
    record : mapping, named tuple, labelled series, sequence or array
        A frame or table with one row is a record, too.

    Raises
    ------
    InvalidPoint
        As `to_values`.
    """
    names = [feature.name for feature in features]
    if not isinstance(record, Mapping) and not _is_row(record) and (columns := named_columns(record)) is not None:
        values = to_values(features, columns)
        if len(values) != 1:
            raise InvalidPoint(f"a record must be one row; the {type(record).__name__} has {len(values)}")
        return [float(each) for each in values[0]]
    named = named_row(record)
    if named is not None:
        check_names(names, list(named), "values")
        given: Sequence[object] = [named[name] for name in names]
    else:
        given = _plain_row(record)
        if len(given) != len(names):
            raise InvalidPoint(
                f"a record must have the values {list_names(names)} in this order; got {len(given)} values"
            )
    return to_place(features, [to_number(value, name) for name, value in zip(names, given, strict=True)])


def named_columns(records: object) -> dict[Any, Any] | None:
    """Return the columns of records by name, or None if they have no names. Raise InvalidPoint for a repeated name."""
    if hasattr(type(records), "column_names"):  # a table of pyarrow
        names, columns = list(records.column_names), list(records.columns)  # type: ignore[attr-defined]
    elif hasattr(type(records), "iloc") and hasattr(type(records), "columns"):  # a frame of pandas
        names = list(records.columns)  # type: ignore[attr-defined]
        columns = [records.iloc[:, place] for place in range(len(names))]  # type: ignore[attr-defined]
    elif hasattr(type(records), "get_columns"):  # a frame of polars
        names, columns = list(records.columns), records.get_columns()  # type: ignore[attr-defined]
    elif isinstance(records, Mapping):
        names, columns = list(records), list(records.values())
    elif (fields := getattr(getattr(records, "dtype", None), "names", None)) is not None:  # a structured array
        names, columns = list(fields), [records[name] for name in fields]  # type: ignore[index]
    elif isinstance(records, Sequence) and not isinstance(records, str | bytes) and records and _is_named(records[0]):
        return _columns_of_rows(records)
    else:
        return None
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise InvalidPoint(f"columns must be unique: several are named {_shown(repeated, names)}")
    return dict(zip(names, columns, strict=True))


def list_values(column: Any) -> Any:
    """Return the values of a column of pyarrow, pandas, polars or numpy as a list, and any other column itself."""
    if hasattr(getattr(column, "type", None), "index_type"):  # pyarrow takes microseconds for a value of a dictionary
        values = list[object]()
        for chunk in getattr(column, "chunks", [column]):
            entries = chunk.dictionary.to_pylist()
            values += [None if place is None else entries[place] for place in chunk.indices.to_pylist()]
        return values
    for method in ("to_pylist", "to_list", "tolist"):  # pyarrow; pandas and polars; numpy
        if hasattr(column, method):
            return getattr(column, method)()
    return column


def check_names(expected: Sequence[str], names: Sequence[object], what: str = "columns") -> None:
    """Raise InvalidPoint unless the names are the expected ones, in any order."""
    missing = [name for name in expected if name not in set(names)]
    extra = [name for name in names if name not in set(expected)]
    wrong = [f"{what} {list_names(missing)} are missing"] if missing else []
    if extra:
        wrong.append(f"{what} {_shown(extra, names)} are not features")
    if wrong:
        raise InvalidPoint(f"{'; '.join(wrong)}. Select the {what} {list_names(expected)}.")


def list_names(names: Sequence[str]) -> str:
    """Return the first names as text, and the number of names if there are more."""
    return ", ".join(names[:MAX_NAMED]) + (f", … ({len(names)})" if len(names) > MAX_NAMED else "")


def to_numbers(records: Records, names: Sequence[str] = ()) -> Numbers:
    """Return records without names as an array of shape (n, d). An array of float32 keeps its type.

    Raises
    ------
    InvalidPoint
        As `to_values`. Without `names` any number of columns is taken.
    """
    width = len(names) or "n_features"
    shape = f"shape (n, {width})" + (f" with the columns {list_names(names)} in this order" if names else "")
    try:
        values = _rows(records) if _is_plain_sequence(records) else _floats(records)
    except _Unfit as unfit:
        raise InvalidPoint(f"{unfit.place()}records must be finite numbers in {shape}; got {unfit.what}") from None
    if values.ndim != 2 or (names and values.shape[1] != len(names)):
        raise InvalidPoint(f"records must have {shape}; got shape {values.shape}")
    _check_finite(values, names)
    return values


# ---- rows ----


def _is_plain_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _is_row(value: object) -> bool:
    """Return whether a value is a labelled series of pandas, or one element of a structured array."""
    return (hasattr(type(value), "iloc") and not hasattr(type(value), "columns")) or isinstance(value, np.void)


def _is_named(row: object) -> bool:
    return isinstance(row, Mapping) or _is_row(row) or hasattr(row, "_fields") or hasattr(type(row), "keys")


def named_row(row: Any) -> Mapping[Any, object] | None:
    """Return the values of a row by name, or None if it has no names. Raise InvalidPoint if a name is repeated."""
    if isinstance(row, Mapping):
        return row
    names: Sequence[object]
    values: Sequence[object]
    if isinstance(row, np.void):
        if row.dtype.names is None:
            return None
        names, values = row.dtype.names, row.item()
    elif _is_row(row):  # a series of pandas; without an index of its own, it has the numbers from 0
        names, values = row.index.tolist(), row.tolist()
        if names == list(range(len(names))):
            return None
    elif hasattr(row, "_fields"):  # a named tuple
        names, values = row._fields, tuple(row)
    elif hasattr(type(row), "keys"):  # a row of a database
        names = list(row.keys())
        values = [row[name] for name in names]
    else:
        return None
    if len(set(names)) < len(names):
        raise InvalidPoint("the names of a record must be unique: one occurs more than once")
    return dict(zip(names, values, strict=True))


def _columns_of_rows(rows: Sequence[Any]) -> dict[Any, Any]:
    """Return the columns of rows with names. Raise InvalidPoint if a row has other names than the first."""
    first = list(named_row(rows[0]) or {})
    columns: dict[Any, list[object]] = {name: [] for name in first}
    for place, row in enumerate(rows, 1):
        named = named_row(row)
        if named is None or named.keys() != columns.keys():
            raise InvalidPoint(f"record {place} (counted from 1) has other names than record 1")
        for name, values in columns.items():
            values.append(named[name])
    return columns


def _plain_row(record: Any) -> Sequence[object]:
    """Return the values of a record without names. Raise InvalidPoint if it is not a sequence or array of one axis."""
    if _is_plain_sequence(record):
        return list(record)
    array = _array(record)
    if array is None or array.ndim != 1:
        shape = "" if array is None or array.ndim == 0 else f" of shape {array.shape}"
        kind = type(record).__name__ + shape
        raise InvalidPoint(f"a record must be a mapping of names to numbers, or a list or array of numbers; got {kind}")
    return list(array)


def _rows(records: Any) -> NDArray[np.float64]:
    """Return rows without names as an array of two axes. Raise _Unfit or InvalidPoint."""
    rows = list(records)
    if not rows or isinstance(rows[0], Real | Decimal):
        raise _Unfit(f"a list of {len(rows)} numbers" if rows else "an empty list")
    cells = [_cells(row, place) for place, row in enumerate(rows, 1)]
    if len({len(each) for each in cells}) > 1:
        short = next(place for place, each in enumerate(cells, 1) if len(each) != len(cells[0]))
        raise _Unfit(f"{len(cells[short - 1])} values, and {len(cells[0])} in record 1", short)
    if all(set(map(type, each)) <= {float} for each in cells):
        return np.array(cells, dtype=np.float64)
    values = np.empty((len(cells), len(cells[0])), dtype=np.float64)
    for place, each in enumerate(cells):
        try:
            values[place] = [_float(value) for value in each]
        except _Unfit as unfit:
            raise _Unfit(unfit.what, place + 1) from None
    return values


def _cells(row: Any, place: int) -> Sequence[object]:
    if _is_named(row):
        raise InvalidPoint(f"record {place} (counted from 1) has names, and record 1 has none")
    try:
        return _plain_row(row)
    except InvalidPoint:
        raise _Unfit(f"a value of type {type(row).__name__}", place) from None


# ---- numbers ----


def _column(column: Any, name: object) -> NDArray[np.float64]:
    """Return a column as numbers. Raise InvalidPoint if a value is not a number."""
    try:
        values = _floats(list(column) if _is_plain_sequence(column) else column)
    except _Unfit as unfit:
        raise InvalidPoint(f"{unfit.place()}{name} must be finite numbers; got {unfit.what}") from None
    if values.ndim != 1:
        raise InvalidPoint(f"{name} must be a column of numbers; got shape {values.shape}")
    return values.astype(np.float64, copy=False)


def to_number(value: object, name: str) -> float:
    """Return the value of a name as a finite number. Raise InvalidPoint."""
    try:
        return _float(value)
    except _Unfit as unfit:
        raise InvalidPoint(f"{name} must be a finite number; got {unfit.what}") from None


def _array(values: Any) -> NDArray[Any] | None:
    """Return an array, or None if the value is not one. Lists become arrays of objects, so that no value changes."""
    if isinstance(values, str | bytes | bytearray | Set | Mapping):
        return None
    try:
        if isinstance(values, list):
            array = np.empty(len(values), dtype=object)
            array[:] = values
            return array
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except Exception:  # the message may contain a value
        return None
    is_object = array.ndim == 0 and array.dtype == object  # not an array
    return None if is_object else array


def _floats(values: Any) -> Numbers:
    """Return numbers as the nearest float64; float32 stays. Raise _Unfit for other values."""
    if isinstance(values, list) and set(map(type, values)) <= {float}:
        return np.array(values, dtype=np.float64)
    array = _array(values)
    if array is None:
        raise _Unfit(_describe(values))
    if _is_masked(array):
        if np.ma.getmaskarray(array).any():
            raise _Unfit(_MASKED)
        array = np.ma.getdata(array)
    if array.dtype == object:
        return _each_float(array)
    if array.dtype.kind not in "fiu":
        raise _Unfit(_KINDS.get(array.dtype.kind, f"values of type {array.dtype}"))
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        narrow = array.dtype.itemsize == 4
        return array.astype("<f4" if narrow else "<f8", copy=False)
    return _each_float(array) if array.dtype.kind == "f" else array.astype(np.float64)


def _each_float(array: NDArray[Any]) -> NDArray[np.float64]:
    floats = np.empty(array.shape, dtype=np.float64)
    for place, value in np.ndenumerate(array):
        try:
            floats[place] = _float(value)
        except _Unfit as unfit:
            raise _Unfit(unfit.what, place[0] + 1 if place else 0) from None
    return floats


def _float(value: Any) -> float:
    """Return a number as the nearest double. Raise _Unfit for another value."""
    if type(value) is not float:
        if hasattr(value, "as_py"):  # a scalar of pyarrow
            value = value.as_py()
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool | np.timedelta64)
        if not is_number:
            raise _Unfit(_describe(value))
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _Unfit("a value that is not finite")
    return number


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or the missing value of pandas."""
    return type(value).__name__ in _MISSING or (isinstance(value, float | np.floating) and math.isnan(value))


def _is_masked(value: object) -> bool:
    return isinstance(value, np.ma.MaskedArray)  # numpy loads this module, 1.5 MB, at its first use


def _describe(value: object) -> str:
    name = type(value).__name__
    if is_missing(value):
        return "a missing value"
    if _is_masked(value):
        return _MASKED
    return next((what for kind, what in _TYPES if isinstance(value, kind)), f"a value of type {name}")


def _check_finite(values: NDArray[Any], names: Sequence[str]) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        name = names[column] if names else f"column {column + 1}"
        raise InvalidPoint(f"record {row + 1} (counted from 1): {name} must be a finite number")


def _shown(some: Sequence[object], names: Sequence[object]) -> str:
    """Return names as text. Show one that is not text, or is a number, by its place: it may be a value of a record."""
    return list_names([f"number {names.index(name) + 1}" if _may_be_value(name) else str(name) for name in some])


def _may_be_value(name: object) -> bool:
    try:
        float(name)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return not isinstance(name, str)
    return True
