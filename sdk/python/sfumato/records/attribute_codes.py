"""Codes of the attributes of records: the place of each value among the categories of its attribute.

A message names the attribute and never the value. Numbers of unknown and missing values are private: only the uploader
learns them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from math import isfinite, isnan, nan
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from sfumato.specs.attributes import Attribute, Categorical, Numeric
from sfumato.specs.missing import MISSING_INTEGERS, is_missing_text


@dataclass(frozen=True, slots=True)
class DistinctCells:
    """Values of a categorical attribute, each stored once. Values without a record have no effect."""

    values: Sequence[Any]  # text, numbers or None
    places: NDArray[np.int64]  # shape (n,): place of each record's value

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, records: slice) -> "DistinctCells":
        return DistinctCells(self.values, self.places[records])


# text, numbers or None, or floats with NaN for missing values
Cells = Sequence[Any] | NDArray[Any] | DistinctCells

_MAX_CHARACTERS = 256  # largest length of a value before its normalisation
_UNREADABLE = float("inf")  # stands for a cell that is no number
_UNKNOWN = -1  # stands for the code of a value that is not written as in the vocabulary


class InvalidCell(Exception):
    """A value that is not accepted. `row` counts from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass
class AttributeCounts:
    """Values of an upload that are not among the declared ones. Private.

    Attributes
    ----------
    name : str
    n_other : int
        Values outside the vocabulary, which became the category `other`.
    n_missing : int
        Missing values, which became the category `missing`.
    n_outside : int
        Numbers beyond the edges of the bins, which were moved to the nearest bin.
    """

    name: str
    n_other: int = 0
    n_missing: int = 0
    n_outside: int = 0


class AttributeEncoder:
    """Turns the values of one attribute into codes and counts those that are not declared.

    Parameters
    ----------
    attribute : Attribute
    rejects_outside : bool
        Whether a number beyond the edges of the bins is refused.
    """

    def __init__(self, attribute: Attribute, *, rejects_outside: bool) -> None:
        self._attribute = attribute
        self._rejects_outside = rejects_outside
        self.counts = AttributeCounts(attribute.name)
        categories = attribute.categories
        self._missing = len(categories) - 1 if attribute.missing == "category" else None
        if isinstance(attribute, Categorical):
            self._places = {value: place for place, value in enumerate(attribute.values)}
            self._other = len(attribute.values) if attribute.unknown == "other" else None

    def encode(self, cells: Cells) -> NDArray[np.int32]:
        """Return the code of each value: shape (n,), int32. Raise InvalidCell for the first one that is refused."""
        if isinstance(cells, DistinctCells):
            codes = self._look_up_distinct(cells)
        elif isinstance(self._attribute, Numeric):
            return self._bin(self._attribute, cells)
        else:
            codes = self._look_up(cells)
            for row in np.flatnonzero(codes == _UNKNOWN).tolist():
                codes[row] = self._find(cells[row], row)
        self.counts.n_other += 0 if self._other is None else int((codes == self._other).sum())
        self.counts.n_missing += 0 if self._missing is None else int((codes == self._missing).sum())
        return codes

    def _look_up(self, cells: Sequence[Any] | NDArray[Any]) -> NDArray[np.int32]:
        return np.fromiter(map(self._places.get, cells, repeat(_UNKNOWN)), dtype=np.int32, count=len(cells))

    def _look_up_distinct(self, cells: DistinctCells) -> NDArray[np.int32]:
        codes, refused = self._look_up(cells.values), dict[int, InvalidCell]()
        for place in np.flatnonzero(codes == _UNKNOWN).tolist():
            try:
                codes[place] = self._find(cells.values[place], place)
            except InvalidCell as invalid:
                refused[place] = invalid
        codes = codes[cells.places]
        if refused and (is_refused := codes == _UNKNOWN).any():
            row = int(is_refused.argmax())
            raise InvalidCell(row, str(refused[int(cells.places[row])]))
        return codes

    def _find(self, cell: Any, row: int) -> int:
        """Return the code of a value that is not written as in the vocabulary."""
        if cell is None or (isinstance(cell, float) and isnan(cell)):
            return self._miss(row)
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise InvalidCell(row, f"{self._attribute.name} must be text or a whole number")
        text = str(cell) if isinstance(cell, str) or abs(cell) < 1 << 64 else ""
        if len(text) <= _MAX_CHARACTERS:
            text = normalize("NFC", text).strip()
            if text in self._places:
                return self._places[text]
            if is_missing_text(text):
                return self._miss(row)
        if self._other is None:
            raise InvalidCell(row, f"{self._attribute.name} must be one of its declared values")
        return self._other

    def _miss(self, row: int) -> int:
        if self._missing is None:
            raise InvalidCell(row, f"{self._attribute.name} is missing")
        return self._missing

    def _bin(self, attribute: Numeric, cells: Sequence[Any] | NDArray[Any]) -> NDArray[np.int32]:
        if isinstance(cells, np.ndarray):
            numbers = cells.astype(np.float64)
        else:
            numbers = np.fromiter(map(_to_number, cells), dtype=np.float64, count=len(cells))
        is_missing = np.isnan(numbers)
        is_outside = (numbers < attribute.bins[0]) | (numbers > attribute.bins[-1])
        refused = np.isinf(numbers) | (is_outside if self._rejects_outside else False)
        refused = refused | (is_missing if self._missing is None else False) | np.isin(numbers, MISSING_INTEGERS)
        if refused.any():
            row = int(refused.argmax())
            edges = f"[{attribute.bins[0]:g}, {attribute.bins[-1]:g}]"
            what = "is missing" if is_missing[row] else "must be a finite number"
            is_finite = isfinite(numbers[row]) and numbers[row] not in MISSING_INTEGERS
            raise InvalidCell(row, f"{attribute.name} {f'must lie in its bins {edges}' if is_finite else what}")
        self.counts.n_missing += int(is_missing.sum())
        self.counts.n_outside += int(is_outside.sum())
        codes = np.searchsorted(np.array(attribute.bins[1:-1]), np.where(is_missing, 0.0, numbers), side="right")
        if self._missing is not None:
            codes[is_missing] = self._missing
        return codes.astype(np.int32)


def _to_number(cell: Any) -> float:
    """Return a number, NaN for a missing value, and infinity for another value."""
    if cell is None:
        return nan
    if isinstance(cell, str):
        if is_missing_text(cell):
            return nan
        if not cell.isascii() or "_" in cell:
            return _UNREADABLE
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return _UNREADABLE
