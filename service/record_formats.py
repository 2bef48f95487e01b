"""The forms records travel in, read piece by piece as the body arrives.

CSV and NPY are read as they come and need a piece's memory; JSON and Arrow are read whole, so
their bodies are bounded more tightly. A reader is fed pieces and finished once; it raises
problems that quote nothing of what was sent.
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
from numpy.typing import NDArray

from service.intake import Intake, bad_record
from service.problems import BadRequest, PayloadTooLarge, Problem, UnsupportedMediaType, ValidationFailed

MAX_JSON_BYTES = 16 << 20
JSON_WEIGHT = 20  # an object of Python's for each number takes so many times its text
MAX_ARROW_BYTES = 128 << 20
MAX_LINE_BYTES = 64 << 10
_MAX_NPY_HEAD_BYTES = 10_000
_NPY_MAGIC = b"\x93NUMPY"
_NPY_START = {1: 10, 2: 12}  # of the literal, by the format's major version


class RecordReader(Protocol):
    """One form."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""

    def finish(self) -> None:
        """The body is over."""


class CsvReader:
    """Text with a header row, in UTF-8, a record a line."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._decode = getincrementaldecoder("utf-8-sig")(errors="strict").decode
        self._rest = ""
        self._places: list[int] | None = None
        self._width = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._take(piece, is_last=False)

    def finish(self) -> None:
        """The body is over."""
        self._take(b"", is_last=True)
        if self._places is None:
            raise ValidationFailed("the header row is missing")

    def _take(self, piece: bytes, *, is_last: bool) -> None:
        try:
            text = self._rest + self._decode(piece, is_last)
        except UnicodeDecodeError:
            raise BadRequest("the body is not UTF-8") from None
        end = len(text) if is_last else text.rfind("\n") + 1
        lines, self._rest = text[:end].removesuffix("\n").split("\n") if end else [], text[end:]
        if len(self._rest) > MAX_LINE_BYTES:
            raise BadRequest(f"a line is over {MAX_LINE_BYTES} bytes long")
        self._rows(lines)

    def _rows(self, lines: list[str]) -> None:
        try:
            rows = list(csv.reader(lines, strict=True))
        except csv.Error:
            rows = []
        if len(rows) != len(lines):  # a quoted cell went on over a line's end, or a quote is out of place
            raise BadRequest("the body is not CSV with a record a line")
        rows = [row for row in rows if row]
        if self._places is None and rows:
            declared = self._intake.columns
            header = [name if name in declared else name.strip() for name in rows.pop(0)]
            self._places, self._width = self._intake.places(header), len(header)
        if self._places is None or not rows:
            return
        first = self._intake.upload.n_records
        if set(map(len, rows)) != {self._width}:
            index = next(index for index, row in enumerate(rows) if len(row) != self._width)
            raise bad_record(first + index, f"the line has not the {self._width} cells of the header")
        self._intake.add(*_split(self._intake, rows, self._places, is_text=True))


def _split(
    intake: Intake, rows: Sequence[Sequence[Any]], places: Sequence[int], *, is_text: bool
) -> tuple[NDArray[np.float64], list[Any] | None]:
    """(features' values, users) of rows of cells; NaN for what is no number."""
    n_features = len(intake.features)
    wanted = places[:n_features]
    picked = rows if list(wanted) == list(range(len(rows[0]))) else [[row[place] for place in wanted] for row in rows]
    number = _number if is_text and not _is_plain("".join(chain.from_iterable(picked))) else float
    try:
        flat = np.fromiter(map(number, chain.from_iterable(picked)), dtype=np.float64, count=len(rows) * n_features)
    except (ValueError, OverflowError):
        flat = np.fromiter(map(_number, chain.from_iterable(picked)), dtype=np.float64, count=len(rows) * n_features)
    users = None if intake.user_feature is None else [row[places[n_features]] for row in rows]
    return flat.reshape(len(rows), n_features), users


def _is_plain(text: str) -> bool:
    """False for what only Python takes for a number: 1_000, digits of other scripts."""
    return text.isascii() and "_" not in text


def _number(cell: Any) -> float:
    if isinstance(cell, str) and not _is_plain(cell):
        return float("nan")
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return float("nan")


class NpyReader:
    """A two-dimensional array of doubles or floats, row by row; columns are the features in order."""

    def __init__(self, intake: Intake) -> None:
        if intake.user_feature is not None:
            raise UnsupportedMediaType("an array has no column for users: send CSV, JSON or Arrow")
        self._intake = intake
        self._rest = bytearray()
        self._dtype: np.dtype[Any] | None = None
        self._n_left = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._rest += piece
        dtype = self._dtype if self._dtype is not None else self._read_head()
        if dtype is None:
            return
        width = dtype.itemsize * len(self._intake.features)
        n_rows = min(len(self._rest) // width, self._n_left)
        if n_rows:
            values = np.frombuffer(bytes(self._rest[: n_rows * width]), dtype=dtype).reshape(n_rows, -1)
            del self._rest[: n_rows * width]
            self._n_left -= n_rows
            self._intake.add(values.astype(np.float64), None)
        if self._rest and not self._n_left:
            raise BadRequest("the array is longer than its header says")

    def finish(self) -> None:
        """The body is over."""
        if self._dtype is None:
            raise BadRequest("the body is no NPY file, or a cut-off one")
        if self._n_left:
            raise BadRequest("the array is shorter than its header says")

    def _read_head(self) -> "np.dtype[Any] | None":
        """What the elements are, once the head is there: magic, version, length, a literal of Python's."""
        if len(self._rest) < _NPY_START[2]:
            return None
        major = self._rest[len(_NPY_MAGIC)]
        if not self._rest.startswith(_NPY_MAGIC) or major not in _NPY_START:
            raise BadRequest("the body is no NPY file")
        start = _NPY_START[major]
        end = start + int.from_bytes(self._rest[8:start], "little")
        if end > _MAX_NPY_HEAD_BYTES:
            raise BadRequest("the body is no NPY file")
        if len(self._rest) < end:
            return None
        try:
            head = ast.literal_eval(self._rest[start:end].decode("latin-1").strip())
            descr, is_fortran, shape = head["descr"], head["fortran_order"], head["shape"]
        except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError):
            raise BadRequest("the body is no NPY file") from None
        n_features = len(self._intake.features)
        if descr not in ("<f8", "<f4"):
            raise ValidationFailed("the array is of float64 or float32, little-endian")
        if is_fortran or not _is_shape(shape) or shape[1] != n_features:
            raise ValidationFailed(f"the array has shape (n, {n_features}), row by row (C order)")
        self._dtype, self._n_left = np.dtype(descr), shape[0]
        del self._rest[:end]
        return self._dtype


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and len(shape) == 2 and all(type(size) is int and size >= 0 for size in shape)


class _Whole:
    """A form that is read when all of it is there."""

    max_bytes: int
    weight = 1

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._body += piece
        if len(self._body) > self.max_bytes:
            raise PayloadTooLarge(f"this form takes {self.max_bytes} bytes; CSV and NPY take more")
        self._intake.hold(self.weight * len(piece))


class _Columns(msgspec.Struct, forbid_unknown_fields=True):
    columns: list[str]
    rows: list[list[float]]


class _ColumnsWithUser(msgspec.Struct, forbid_unknown_fields=True):
    columns: list[str]
    rows: list[list[float | int | str]]


class _Names(msgspec.Struct):
    columns: list[str]


NO_USER = "neither text nor a whole number"
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_AT = re.compile(r"`\$\.rows\[(\d+)\](?:\[(\d+)\])?`$")


class JsonReader(_Whole):
    """{"columns": [...], "rows": [[...], ...]}."""

    max_bytes = MAX_JSON_BYTES
    weight = JSON_WEIGHT

    def finish(self) -> None:
        """The body is over."""
        kind: type[_Columns | _ColumnsWithUser] = _ColumnsWithUser if self._intake.user_feature else _Columns
        try:
            read = msgspec.json.decode(self._body, type=kind)
        except msgspec.ValidationError as error:
            raise self._misfit(str(error)) from None
        except _NOT_JSON:
            raise BadRequest("the body is not JSON, which has no NaN and no Infinity") from None
        self._body = bytearray()
        places, width = self._intake.places(read.columns), len(read.columns)
        rows: Sequence[Sequence[Any]] = read.rows
        for index, row in enumerate(rows):
            if len(row) != width:
                raise bad_record(index, f"there are not the {width} values of `columns`")
        if self._intake.user_feature is not None:
            self._check_kinds(rows, places)
        if rows:
            self._intake.add(*_split(self._intake, rows, places, is_text=False))

    def _check_kinds(self, rows: Sequence[Sequence[Any]], places: Sequence[int]) -> None:
        *features, user = places
        for index, row in enumerate(rows):
            if isinstance(row[user], float):
                raise bad_record(index, f"{self._intake.user_feature} is {NO_USER}")
            for place in features:
                if isinstance(row[place], str):
                    raise bad_record(index, f"{self._intake.features[features.index(place)].name} is not a number")

    def _misfit(self, message: str) -> Problem:
        """msgspec says where; what it says otherwise may hold names that were sent."""
        at = _AT.search(message)
        another = ValidationFailed("an object of `columns` (names) and `rows` (a list of values a record) is needed")
        if at is None:
            return another
        index, place = at.groups()
        if place is None:
            return bad_record(int(index), "a list of values is needed")
        try:  # reading ended at the first misfit; what comes after it may be anything
            given = msgspec.json.decode(self._body, type=_Names).columns
        except msgspec.ValidationError:
            return another
        except _NOT_JSON:
            return BadRequest("the body is not JSON")
        name = given[int(place)] if int(place) < len(given) else ""
        if name not in self._intake.columns:
            return bad_record(int(index), "a value is not what it should be")
        is_user = name == self._intake.user_feature
        return bad_record(int(index), f"{name} is {NO_USER if is_user else 'not a finite number'}")


class ArrowReader(_Whole):
    """An Arrow IPC stream: columns of numbers, and the users' of text or whole numbers."""

    max_bytes = MAX_ARROW_BYTES

    def finish(self) -> None:
        """The body is over."""
        from service import arrow  # loads pyarrow, which few gateways ever need

        intake = self._intake
        body, self._body = bytes(self._body), bytearray()
        for values, users in arrow.records(body, intake.places, len(intake.features)):
            intake.add(values, users)


READERS: dict[bytes, type[CsvReader | NpyReader | JsonReader | ArrowReader]] = {
    b"application/json": JsonReader,
    b"text/csv": CsvReader,
    b"application/x-npy": NpyReader,
    b"application/vnd.apache.arrow.stream": ArrowReader,
}
