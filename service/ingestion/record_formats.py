"""Formats of uploaded records, parsed piece by piece as the body arrives.

CSV and NPY are streamed and need the memory of one piece. Arrow is parsed as a whole, and JSON may have its rows before
its columns, so the limits of their bodies are lower. Call `feed` for each piece and `finish` once. Problems never quote
submitted data.
"""

import ast
import csv
import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from service.http.problems import BadRequest, PayloadTooLarge, Problem, UnsupportedMediaType, ValidationFailed
from service.ingestion.json_pieces import NOT_JSON, JsonPieces
from service.ingestion.record_validation import (
    KeepingSink,
    RecordSink,
    RecordValidator,
    bad_record,
    column_positions,
)
from sfumato.records.inputs import list_names

MAX_JSON_BYTES = 16 << 20
JSON_WEIGHT = 20  # memory of parsed JSON as a multiple of its text, because each number is a Python object
MAX_ARROW_BYTES = 128 << 20
MAX_LINE_BYTES = 128 << 10
_MAX_NPY_HEAD_BYTES = 10_000
_NPY_MAGIC = b"\x93NUMPY"
_NPY_START = {1: 10, 2: 12}  # offset of the header literal, by major version of the format


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_NOT_NPY = "the body is not an NPY file of version 1 or 2"


class RecordReader(Protocol):
    """Parser of one format."""

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body."""

    def finish(self) -> None:
        """Parse the rest after the last piece."""


class CsvReader:
    """Reader of UTF-8 text with a header row and one record per line."""

    def __init__(self, validator: RecordSink) -> None:
        self._validator = validator
        self._decode = getincrementaldecoder("utf-8-sig")(errors="strict").decode
        self._rest = ""
        self._positions: list[int] | None = None
        self._width = 0

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body."""
        self._parse(piece, is_last=False)

    def finish(self) -> None:
        """Parse the rest after the last piece."""
        self._parse(b"", is_last=True)
        if self._positions is None:
            raise ValidationFailed("the header row is missing: send the column names in the first line")

    def _parse(self, piece: bytes, *, is_last: bool) -> None:
        try:
            text = self._rest + self._decode(piece, is_last)
        except UnicodeDecodeError:
            raise BadRequest("the body is not valid UTF-8: save the file with the encoding UTF-8") from None
        end = len(text) if is_last else text.rfind("\n") + 1
        lines, self._rest = text[:end].removesuffix("\n").split("\n") if end else [], text[end:]
        if len(self._rest) > MAX_LINE_BYTES:
            raise BadRequest(f"a line is too long: at most {MAX_LINE_BYTES} bytes")
        self._add_lines(lines)

    def _add_lines(self, lines: list[str]) -> None:
        try:
            rows = list(csv.reader(lines, strict=True))
        except csv.Error:
            rows = []
        if len(rows) != len(lines):  # a quoted cell spans several lines, or a quote is misplaced
            raise BadRequest("the body is not CSV with one record per line")
        rows = [row for row in rows if row]
        if self._positions is None and rows:
            declared = self._validator.columns
            header = [name if name in declared else name.strip() for name in rows.pop(0)]
            _check_separator(header, declared)
            self._positions, self._width = column_positions(declared, header, may_be_values=True), len(header)
        if self._positions is None or not rows:
            return
        first = self._validator.n_records
        if set(map(len, rows)) != {self._width}:
            index = next(index for index, row in enumerate(rows) if len(row) != self._width)
            raise bad_record(first + index, f"the line must have {self._width} cells, like the header")
        values, users, cells = _split_columns(self._validator, rows, self._positions, is_text=True)
        self._validator.add(values, users, None, cells)


def _check_separator(header: Sequence[str], declared: Sequence[str]) -> None:
    """Raise ValidationFailed if a header without declared names has some when it is split at another separator."""
    if set(header) & set(declared):
        return
    for separator, name in _SEPARATORS.items():
        cells = {cell.strip(' "') for cell in ",".join(header).split(separator)}
        if len(cells) > 1 and cells & set(declared):
            raise ValidationFailed(
                f"the columns are separated by {name}: separate them by commas, and write numbers with a decimal point"
            )


def _split_columns(
    validator: RecordSink, rows: Sequence[Sequence[Any]], positions: Sequence[int], *, is_text: bool
) -> tuple[NDArray[np.float64], list[Any] | None, list[list[Any]]]:
    """Return (feature values, users, attributes) of rows of cells, with NaN for cells that are not numbers."""
    n_features = len(validator.features)
    others = [[row[at] for row in rows] for at in positions[n_features:]]
    users = None if validator.user_feature is None else others.pop()
    selected = positions[:n_features]
    cells = rows if list(selected) == list(range(len(rows[0]))) else [[row[at] for at in selected] for row in rows]
    parse = _parse_number if is_text and not _is_plain("".join(chain.from_iterable(cells))) else float
    try:
        flat = np.fromiter(map(parse, chain.from_iterable(cells)), dtype=np.float64, count=len(rows) * n_features)
    except (ValueError, OverflowError):
        numbers = map(_parse_number, chain.from_iterable(cells))
        flat = np.fromiter(numbers, dtype=np.float64, count=len(rows) * n_features)
    return flat.reshape(len(rows), n_features), users, others


def _is_plain(text: str) -> bool:
    """Return False for number formats that only Python accepts, such as 1_000 or digits of other scripts."""
    return text.isascii() and "_" not in text


def _parse_number(cell: Any) -> float:
    if isinstance(cell, str) and not _is_plain(cell):
        return float("nan")
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return float("nan")


class NpyReader:
    """Reader of a two-dimensional array of doubles or floats in row order; its columns are the features in order."""

    def __init__(self, validator: RecordValidator) -> None:
        if validator.user_feature is not None:
            raise UnsupportedMediaType(
                "NPY has no column for users, which this dataset requires: send CSV, JSON or Arrow"
            )
        if validator.attributes:
            raise UnsupportedMediaType(
                "NPY has no columns for attributes, which this dataset requires: send CSV, JSON or Arrow"
            )
        self._validator = validator
        self._rest = bytearray()
        self._dtype: np.dtype[Any] | None = None
        self._n_missing = 0  # rows

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body."""
        self._rest += piece
        dtype = self._dtype if self._dtype is not None else self._read_head()
        if dtype is None:
            return
        width = dtype.itemsize * len(self._validator.features)
        n_rows = min(len(self._rest) // width, self._n_missing)
        if n_rows:
            values = np.frombuffer(bytes(self._rest[: n_rows * width]), dtype=dtype).reshape(n_rows, -1)
            del self._rest[: n_rows * width]
            self._n_missing -= n_rows
            self._validator.add(values.astype(np.float64), None, [dtype.type] * len(self._validator.features))
        if self._rest and not self._n_missing:
            raise BadRequest("the array is longer than its header declares")

    def finish(self) -> None:
        """Check that the array is complete."""
        if self._dtype is None:
            what = f"{_NOT_NPY}, or it is incomplete" if self._rest else f"the body is empty: {_NOT_NPY}"
            raise BadRequest(what)
        if self._n_missing:
            raise BadRequest("the array is shorter than its header declares")

    def _read_head(self) -> "np.dtype[Any] | None":
        """Return the type of the elements once the head has arrived: magic, version, length and a Python literal."""
        if len(self._rest) < _NPY_START[2]:
            return None
        major = self._rest[len(_NPY_MAGIC)]
        if not self._rest.startswith(_NPY_MAGIC) or major not in _NPY_START:
            raise BadRequest(_NOT_NPY)
        start = _NPY_START[major]
        end = start + int.from_bytes(self._rest[8:start], "little")
        if end > _MAX_NPY_HEAD_BYTES:
            raise BadRequest(_NOT_NPY)
        if len(self._rest) < end:
            return None
        try:
            head = ast.literal_eval(self._rest[start:end].decode("latin-1").strip())
            descr, is_fortran, shape = head["descr"], head["fortran_order"], head["shape"]
        except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError):
            raise BadRequest(_NOT_NPY) from None
        n_features = len(self._validator.features)
        if descr not in ("<f8", "<f4"):
            raise ValidationFailed("the array must have dtype float64 or float32, little-endian")
        if is_fortran or not _is_shape(shape) or shape[1] != n_features:
            raise ValidationFailed(
                f"the array must have shape (n, {n_features}) in C order (row by row), with the columns "
                f"{list_names([each.name for each in self._validator.features])} in this order"
            )
        self._dtype, self._n_missing = np.dtype(descr), shape[0]
        del self._rest[:end]
        return self._dtype


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and len(shape) == 2 and all(type(size) is int and size >= 0 for size in shape)


def _check_length(n_bytes: int, max_bytes: int) -> None:
    if n_bytes > max_bytes:
        raise PayloadTooLarge(
            f"the body is too large for this format: at most {max_bytes} bytes; use CSV or NPY for larger uploads"
        )


class _Columns(msgspec.Struct, forbid_unknown_fields=True):
    columns: list[str] | UnsetType = UNSET
    rows: list[list[float]] | UnsetType = UNSET


class AnyColumns(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of records as rows of any values."""

    columns: list[str] | UnsetType = UNSET
    rows: list[list[float | int | str | None]] | UnsetType = UNSET


class _Names(msgspec.Struct):
    columns: list[str] | UnsetType = UNSET


NO_USER = "must be text or a whole number"
_AT = re.compile(r"`\$\.rows\[(\d+)\](?:\[(\d+)\])?`$")
_EXPECTED = "expected an object with `columns` (names) and `rows` (one list of values per record)"


class JsonReader(JsonPieces):
    """Reader of `{"columns": [...], "rows": [[...], ...]}`.

    Rows that arrive before the columns are kept until the end of the body.
    """

    max_bytes = MAX_JSON_BYTES

    def __init__(self, validator: KeepingSink, kind: type[msgspec.Struct] | None = None) -> None:
        self._has_any = kind is not None or validator.user_feature is not None or bool(validator.attributes)
        kind = kind or (AnyColumns if self._has_any else _Columns)
        super().__init__(kind, type(self)._keep, type(self)._schema_error, validator.reserve_memory)
        self._validator = validator
        self._n_bytes = self._n_rows = 0
        self._columns: list[str] = []
        self._kept: list[Sequence[Any]] = []

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body."""
        self._n_bytes += len(piece)
        _check_length(self._n_bytes, self.max_bytes)
        super().feed(piece)

    def finish(self) -> None:
        """Parse the rest after the last piece."""
        super().finish()
        if self._seen != {"columns", "rows"}:
            raise ValidationFailed(_EXPECTED)
        self._add_kept()

    def _keep(self, read: _Columns | AnyColumns) -> None:
        """Keep the rows of a piece, and add them if the columns have arrived before."""
        if read.columns is not UNSET:
            self._columns += read.columns
        if read.rows is UNSET:
            return
        self._kept += read.rows
        if read.columns is UNSET and "columns" in self._seen:
            self._add_kept()
        else:
            self._validator.reserve_memory(JSON_WEIGHT * len(self._decoded))

    def _add_kept(self) -> None:
        """Validate the kept rows and add them to the upload."""
        validator = self._validator
        positions, width = column_positions(validator.columns, self._columns), len(self._columns)
        rows, self._kept, first = self._kept, [], self._n_rows
        self._n_rows += len(rows)
        if set(map(len, rows)) - {width}:
            index = next(index for index, row in enumerate(rows) if len(row) != width)
            raise bad_record(first + index, f"expected {width} values, one for each of `columns`")
        if self._has_any:
            self._check_types(rows, positions, first)
        if rows:
            values, users, cells = _split_columns(validator, rows, positions, is_text=False)
            validator.add(values, users, None, cells)

    def _check_types(self, rows: Sequence[Sequence[Any]], positions: Sequence[int], first: int) -> None:
        features = positions[: len(self._validator.features)]
        user = None if self._validator.user_feature is None else positions[-1]
        for index, row in enumerate(rows, start=first):
            if user is not None and (row[user] is None or isinstance(row[user], float)):
                raise bad_record(index, f"{self._validator.user_feature} {NO_USER}")
            for position in features:
                if row[position] is None or isinstance(row[position], str):
                    name = self._validator.features[features.index(position)].name
                    raise bad_record(index, f"{name} must be a number")

    def _schema_error(self, message: str) -> Problem:
        """Return the problem for an error of msgspec. Use only its location; the rest may quote submitted names."""
        at = _AT.search(message)
        if at is None:
            return ValidationFailed(_EXPECTED)
        index, position = int(at[1]) + self._n_rows + len(self._kept), at[2]
        if position is None:
            return bad_record(index, "expected a list of values")
        try:  # msgspec stops at the first error, so the rest of the piece may be anything
            read = msgspec.json.decode(self._decoded, type=_Names).columns
        except msgspec.ValidationError:
            return ValidationFailed(_EXPECTED)
        except NOT_JSON:
            return BadRequest("the body is not valid JSON")
        names = self._columns + ([] if read is UNSET else read)
        if not names:
            return ValidationFailed(_EXPECTED)
        name = names[int(position)] if int(position) < len(names) else ""
        if name not in self._validator.columns:
            return bad_record(index, "a value has the wrong type")
        if name == self._validator.user_feature:
            return bad_record(index, f"{name} {NO_USER}")
        is_attribute = name in {each.name for each in self._validator.attributes}
        return bad_record(index, f"{name} must be {'text, a number or null' if is_attribute else 'a finite number'}")


class ArrowReader:
    """Reader of an Arrow IPC stream or file with numeric columns, attributes, and a user column.

    An embedding may also be one column of lists.
    """

    max_bytes = MAX_ARROW_BYTES

    def __init__(self, validator: RecordValidator) -> None:
        self._validator = validator
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        """Keep the next piece of the body."""
        self._body += piece
        _check_length(len(self._body), self.max_bytes)
        self._validator.reserve_memory(len(piece))

    def finish(self) -> None:
        """Parse the body."""
        from service.ingestion import arrow  # loads pyarrow, which few gateways need

        validator = self._validator
        body, self._body = bytes(self._body), bytearray()
        find_positions, n_features = validator.column_positions, len(validator.features)
        for group in arrow.parse_records(body, find_positions, n_features, validator.coordinates, validator.attributes):
            validator.add(*group)


READERS: dict[bytes, type[CsvReader | NpyReader | JsonReader | ArrowReader]] = {
    b"application/json": JsonReader,
    b"text/csv": CsvReader,
    b"application/x-npy": NpyReader,
    b"application/vnd.apache.arrow.stream": ArrowReader,
    b"application/vnd.apache.arrow.file": ArrowReader,
}
