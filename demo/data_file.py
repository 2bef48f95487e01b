"""Records from a file: CSV with a header, or NPZ with `X` and optionally `y`."""

import csv
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from demo.scenario import DemoError
from sfumato.errors import InvalidSpec
from sfumato.specs import Feature

MAX_FEATURES = 3  # limit of shifted_grid
_LABEL_COLUMNS = ("label", "labels", "y", "cluster")
_OTHER_COLUMNS = ("uid", "user", "user_id", "id")


class DataError(DemoError):
    """The file cannot be read as records. The message names a row and a column, never a value."""


@dataclass(frozen=True, eq=False)
class Records:
    """The records of a file, one for each device.

    Attributes
    ----------
    names : tuple of str
        Names of the features.
    values : ndarray of shape (n, n_features), float64
        Finite values in the units of the features.
    labels : ndarray of shape (n,), int64, or None
        Cluster labels of the file; negative for a record without one.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    labels: NDArray[np.int64] | None


def read(path: Path, names: Sequence[str] | None) -> Records:
    """Read a file.

    Parameters
    ----------
    path : Path
        Path that ends in .csv or .npz.
    names : sequence of str, optional
        For a CSV file: columns to read; by default all except labels and identifiers.
        For an NPZ file: names of the columns of `X`; by default x1, x2, ...

    Raises
    ------
    DataError
        The file is unreadable or empty, has not 1 to 3 features, or contains a value that is not a finite number.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix.lower() == ".csv":
        records = _read_csv(path, names)
    elif path.suffix.lower() == ".npz":
        records = _read_npz(path, names)
    else:
        raise DataError(f"{path.name} must end in .csv or .npz")
    if len(records.values) == 0:
        raise DataError(f"{path.name} contains no record")
    (bad,) = np.nonzero(~np.isfinite(records.values).all(axis=1))
    if bad.size:
        raise DataError(f"{path.name}: record {bad[0] + 1} has a value that is not a finite number")
    return records


def _read_csv(path: Path, names: Sequence[str] | None) -> Records:
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.reader(lines)
            header = [column.strip() for column in next(rows, [])]
            chosen = _columns(path, header, names)
            places = [header.index(name) for name in chosen]
            label_place = next((header.index(c) for c in _LABEL_COLUMNS if c in header and c not in chosen), None)
            values, labels = [], []
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(f"{path.name}, line {rows.line_num}: the header has {len(header)} columns")
                values.append([_number(row[p], path, rows.line_num, header[p]) for p in places])
                labels.append("" if label_place is None else row[label_place].strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name} is not a CSV file in UTF-8") from error
    array = np.array(values, dtype=np.float64).reshape(-1, len(chosen))
    return Records(chosen, array, None if label_place is None else _codes(labels))


def _columns(path: Path, header: Sequence[str], names: Sequence[str] | None) -> tuple[str, ...]:
    if not any(header):
        raise DataError(f"{path.name} has no header")
    chosen = tuple(names) if names else tuple(c for c in header if c.lower() not in (*_LABEL_COLUMNS, *_OTHER_COLUMNS))
    missing = [name for name in chosen if name not in header]
    if missing:
        raise DataError(f"{path.name} has no column {', '.join(missing)}; it has {', '.join(header)}")
    if not 1 <= len(chosen) <= MAX_FEATURES:
        raise DataError(f"{path.name} has columns {', '.join(header)}: choose 1 to {MAX_FEATURES} with --features")
    return chosen


def _number(text: str, path: Path, line: int, column: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{path.name}, line {line}: {column} is not a number") from None


def _codes(labels: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each distinct label; -1 for an empty one."""
    numbers = {label: number for number, label in enumerate(sorted(set(labels) - {""}))}
    return np.array([numbers.get(label, -1) for label in labels], dtype=np.int64)


def _read_npz(path: Path, names: Sequence[str] | None) -> Records:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "X" not in arrays:
                raise DataError(f"{path.name} contains no array X")
            values = np.asarray(arrays["X"], dtype=np.float64)
            labels = np.asarray(arrays["y"]) if "y" in arrays else None
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path.name} is not an NPZ file of numbers") from error
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or not 1 <= values.shape[1] <= MAX_FEATURES:
        raise DataError(f"{path.name}: X has shape {values.shape}; (n, 1) to (n, {MAX_FEATURES}) is required")
    if names is not None and len(names) != values.shape[1]:
        raise DataError(f"{path.name}: X has {values.shape[1]} columns, --features names {len(names)}")
    if labels is not None and labels.shape != (len(values),):
        raise DataError(f"{path.name}: y has shape {labels.shape}, X {values.shape}")
    chosen = tuple(names) if names else tuple(f"x{place + 1}" for place in range(values.shape[1]))
    return Records(chosen, values, None if labels is None else _label_numbers(labels))


def _label_numbers(labels: NDArray[np.generic]) -> NDArray[np.int64] | None:
    """Return the labels as integers, or None if no record has one."""
    if labels.dtype.kind in "iub":
        numbers = labels.astype(np.int64)
    else:
        numbers = np.unique(labels.astype(str), return_inverse=True)[1].astype(np.int64)
    return numbers if (numbers >= 0).any() else None


def make_features(names: Sequence[str], bounds: Sequence[tuple[float, float]]) -> tuple[Feature, ...]:
    """Return the features with their public bounds. Raise DataError if the bounds are invalid."""
    if len(bounds) != len(names):
        raise DataError(f"--bounds has {len(bounds)} pairs for {len(names)} features")
    try:
        return tuple(Feature(name, lower, upper) for name, (lower, upper) in zip(names, bounds, strict=True))
    except InvalidSpec as error:
        raise DataError(f"--bounds: {error}") from error


def parse_bounds(text: str) -> list[tuple[float, float]]:
    """Parse 'lo:hi,lo:hi'. Raise DataError if the text has another form."""
    try:
        pairs = [tuple(float(end) for end in pair.split(":")) for pair in text.split(",")]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise DataError("--bounds must have the form lo:hi,lo:hi, with one pair per feature")
    return [(pair[0], pair[1]) for pair in pairs]


def find_ranges(values: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return the range of each feature in the data, widened if it is a single value.

    Use this for trials only, never in production, because a range reveals the values of two people.
    """
    lowest, highest = values.min(axis=0), values.max(axis=0)
    return [
        (low, high if high > low else math.nextafter(low, math.inf) + abs(low) + 1.0)
        for low, high in zip(lowest.tolist(), highest.tolist(), strict=True)
    ]
