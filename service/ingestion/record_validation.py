"""Validation of uploaded records: find their columns, check their values against the declared bounds, and scale them.

An error names the number of the record, from 1, and the columns concerned. It never contains a value. The first line of
a CSV file without a header contains values, so an undeclared name is shown only if the line has a declared name.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from models.records.records import Upload
from models.tables.datasets import Dataset, OutOfBounds
from service.http.problems import PayloadTooLarge, ValidationFailed
from sfumato.records.attribute_codes import AttributeCounts, AttributeEncoder, Cells, InvalidCell
from sfumato.records.encodings import cells as cells_of
from sfumato.records.encodings import clip_norms, scale_many
from sfumato.records.places import are_beyond, describe_limits, turn_longitudes
from sfumato.specs import LATTICE, Feature
from sfumato.specs.attributes import Attribute
from sfumato.specs.missing import MISSING_INTEGERS, is_missing_text

MAX_USER_BYTES = 64
_MAX_USER_CHARACTERS = 256  # before normalisation, to bound its work
# Characters without a glyph that `str.isprintable` accepts (Default_Ignorable_Code_Point), and the blank of Braille.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_CHUNK_NUMBERS = 1 << 18  # numbers validated and scaled at once, to bound memory
_MAX_LISTED = 5
_MAX_NAME = 64  # characters
_NUMBER = re.compile(r"[-+]?[\d.,_]+([eE][-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
_WHOLE = re.compile(r"-?[0-9]+")
# The exponent of a double has at most three digits. More digits are an id, such as eight hexadecimal digits.
_DECIMAL = re.compile(r"[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)(e[-+]?[0-9]{1,3})?|[-+]?inf(inity)?", re.IGNORECASE)
NOTHING_STORED = "; nothing of this request was stored"
MISSING_USER = "is missing: send the user of every record"
USER_TOO_LONG = f"must have 1 to {MAX_USER_BYTES} bytes"
NOT_WHOLE = "is written as a decimal number: send text or a whole number, such as 7 in place of 7.0 or 7e0"


class RecordSink(Protocol):
    """Receiver of the records of a file."""

    @property
    def features(self) -> Sequence[Feature]:
        """Return the features of the dataset."""

    @property
    def attributes(self) -> Sequence[Attribute]:
        """Return the attributes of the dataset."""

    @property
    def user_feature(self) -> str | None:
        """Return the name of the user column."""

    @property
    def columns(self) -> list[str]:
        """Return the declared columns."""

    @property
    def n_records(self) -> int:
        """Return the number of records so far."""

    def add(
        self,
        values: NDArray[np.float64],
        users: Sequence[str | int] | None,
        widths: None = None,
        cells: Sequence[Cells] = (),
        /,
    ) -> None:
        """Add records, with NaN for cells that are not numbers."""


class KeepingSink(RecordSink, Protocol):
    """Receiver of the records of a file that is kept in memory."""

    @property
    def reserve_memory(self) -> Callable[[int], None]:
        """Return the function that reserves memory, in bytes."""


class RecordValidator:
    """Validates the records of one upload and adds them to it.

    Parameters
    ----------
    dataset : Dataset
    upload : Upload
        Receives the scaled records.
    max_records : int
        Largest number of records of an upload.
    reserve_memory : callable
        Called with the bytes of encrypted records and of buffered bodies. Raises if all uploads together exceed
        the memory limit.
    """

    def __init__(
        self, dataset: Dataset, upload: Upload, max_records: int, reserve_memory: Callable[[int], None]
    ) -> None:
        self.features = dataset.features
        self.user_feature = dataset.user_feature
        self.upload = upload
        self._folds_case = dataset.fold_user_case
        self._rejects_outside = dataset.out_of_bounds == OutOfBounds.REFUSE
        self._max_records = max_records
        self.reserve_memory = reserve_memory
        self._norm = dataset.norm
        self.n_zeros = 0  # zero vectors of an embedding
        self._first: NDArray[np.int64] | None = None
        self._is_constant = np.ones(len(self.features), dtype=np.bool_)
        self._widths: Sequence[type[np.floating]] | None = None
        self._least, self._most = rounded_bounds(self.features)
        self._is_clipped = np.array([not each.periodic for each in self.features])  # others are moved by whole periods
        self.attributes = dataset.attributes
        self._encoders = [AttributeEncoder(each, rejects_outside=self._rejects_outside) for each in dataset.attributes]

    @property
    def attribute_counts(self) -> list[AttributeCounts]:
        """Return the values that are not declared, for each attribute. Private."""
        return [each.counts for each in self._encoders]

    @property
    def n_records(self) -> int:
        """Return the number of records so far."""
        return self.upload.n_records

    @property
    def columns(self) -> list[str]:
        """Return the declared columns: the features in order, then the attributes, then the user column."""
        names = [each.name for each in (*self.features, *self.attributes)]
        return names if self.user_feature is None else [*names, self.user_feature]

    @property
    def coordinates(self) -> list[str]:
        """Return the features of an embedding, and nothing for features with bounds of their own."""
        return [] if self._norm is None else [feature.name for feature in self.features]

    def column_positions(self, names: Sequence[str], *, may_be_values: bool = False) -> list[int]:
        """Return the position of each declared column in the uploaded columns, see `column_positions`."""
        return column_positions(self.columns, names, may_be_values=may_be_values)

    def add(
        self,
        values: NDArray[np.float64],
        users: Sequence[str | int] | None,
        widths: Sequence[type[np.floating]] | None = None,
        cells: Sequence[Cells] = (),
    ) -> None:
        """Validate records and add them to the upload.

        Parameters
        ----------
        values : ndarray of shape (n, n_features)
            Values in the units of the features, NaN for cells that are not numbers.
        users : sequence of n str or int
            User of each record; None if the dataset has no user column.
        widths : sequence of n_features floating-point types, optional
            Types in which the values came, doubles by default. A value beyond a bound by at most one unit in the last
            place of its type is the bound.
        cells : sequence of n values for each attribute
            See `AttributeEncoder`.

        Raises
        ------
        ValidationFailed
            Names the number of the first invalid record and the reason.
        PayloadTooLarge
            The upload has too many records.
        """
        if self.upload.n_records + len(values) > self._max_records:
            raise PayloadTooLarge(f"too many records: at most {self._max_records} per upload; split them")
        if self._norm is None and widths != self._widths:
            self._widths = widths
            self._least, self._most = rounded_bounds(self.features, widths)
        step = max(1, _CHUNK_NUMBERS // len(self.features))
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            self._add(values[part], None if users is None else users[part], [each[part] for each in cells])

    def finish(self) -> Upload:
        """Encrypt the remaining records and return the upload. Raise ValidationFailed if it is empty."""
        if self.upload.n_records == 0:
            raise ValidationFailed("the upload has no records: send at least one")
        n_bytes = self.upload.n_bytes
        self.upload.close()
        self.reserve_memory(self.upload.n_bytes - n_bytes)
        return self.upload

    def _add(self, values: NDArray[np.float64], users: Sequence[str | int] | None, cells: Sequence[Cells]) -> None:
        beyond = None if self._norm is not None else are_beyond(self.features, values)
        if self._norm is None:
            values = turn_longitudes(self.features, values)
            outside = (values < self._least) | (values > self._most)
        else:
            values, is_outside = clip_norms(values, self._norm)
            outside = is_outside[:, None]
        bad = ~np.isfinite(values) if beyond is None else ~np.isfinite(values) | beyond
        if self._rejects_outside:
            bad = bad | outside
        elif self._norm is None and outside.any():
            bad = bad | (outside & np.isin(values, MISSING_INTEGERS))
        n_valid = int(bad.any(axis=1).argmax()) if bad.any() else len(values)
        codes = encode_cells(self._encoders, cells, self.upload.n_records, n_valid)
        if bad.any():
            row = int(bad.any(axis=1).argmax())
            column = int(bad[row].argmax())
            feature = self.features[column]
            if not np.isfinite(values[row, column]) or values[row, column] in MISSING_INTEGERS:
                reason = f"{feature.name} must be a finite number"
            elif beyond is not None and beyond[row, column]:
                reason = describe_limits(feature)
            elif self._norm is None:
                reason = f"{feature.name} must lie in its bounds [{feature.lower:g}, {feature.upper:g}]"
            else:
                reason = f"the norm of the vector must be at most {self._norm:g}"
            raise bad_record(self.upload.n_records + row, reason)
        ids = None if users is None else self._user_ids(users)
        points = cells_of(scale_many(self.features, values), [LATTICE] * len(self.features))
        self._inspect(values, points)
        n_bytes = self.upload.n_bytes
        stored = np.column_stack([points.astype(np.int32), *codes])
        self.upload.add(stored, ids, int((outside & self._is_clipped).any(axis=1).sum()))
        self.reserve_memory(self.upload.n_bytes - n_bytes)

    def _inspect(self, values: NDArray[np.float64], points: NDArray[np.int64]) -> None:
        """Count zero vectors, and find the features that stay constant."""
        if self._norm is not None:
            self.n_zeros += int((~values.any(axis=1)).sum())
        self._first = points[0] if self._first is None else self._first
        self._is_constant &= (points == self._first).all(axis=0)

    @property
    def n_constant(self) -> int:
        """Return the number of features with one value in all records of the upload; 0 for a single record."""
        return int(self._is_constant.sum()) if self.upload.n_records > 1 else 0

    def _user_ids(self, users: Sequence[str | int]) -> list[bytes]:
        ids: list[bytes] = []
        for user in users:
            try:
                ids.append(normalise_user_id(user, fold_case=self._folds_case))
            except InvalidUserId as error:
                raise bad_record(self.upload.n_records + len(ids), f"{self.user_feature} {error}") from None
        return ids


def rounded_bounds(
    features: Sequence[Feature], widths: Sequence[type[np.floating]] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the greatest value of each feature that its floating-point type may make of its bounds."""
    least, most = [], []
    with np.errstate(over="ignore"):  # a bound beyond the range of the type is infinite, and no value is outside of it
        for feature, width in zip(features, widths or [np.float64] * len(features), strict=True):
            least.append(np.nextafter(width(feature.lower), width(-np.inf)))
            most.append(np.nextafter(width(feature.upper), width(np.inf)))
    return np.array(least, dtype=np.float64), np.array(most, dtype=np.float64)


def column_positions(declared: Sequence[str], names: Sequence[str], *, may_be_values: bool = False) -> list[int]:
    """Return the position of each declared column in the columns of a file.

    Parameters
    ----------
    declared, names : sequence of str
    may_be_values : bool
        Whether the names may be the values of a record, if none of them is declared.

    Raises
    ------
    ValidationFailed
        A column is missing, repeated or not declared.
    """
    check_columns(declared, names, may_be_values=may_be_values and not set(names) & set(declared))
    positions = {name: position for position, name in enumerate(names)}
    return [positions[name] for name in declared]


def check_columns(declared: Sequence[str], names: Sequence[str], *, may_be_values: bool = False) -> None:
    """Raise ValidationFailed if a declared column is missing or repeated, or if a column is not declared.

    The error lists at most five columns of each kind and the remedy, with at most 64 characters of a name. It shows the
    position of a column in place of its name if the names may be values, or if the name is a number or not printable.
    """

    def label(position: int, name: str) -> str:
        if may_be_values or not name.isprintable() or not name.strip() or _NUMBER.fullmatch(name.strip()):
            return f"{position + 1} (counted from 1)"
        return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"

    present, known = Counter(names), set(declared)
    kinds = {
        "is missing: add it": [name for name in declared if name not in present],
        "occurs more than once: keep one": [name for name in declared if present[name] > 1],
        "is not declared: remove it": [
            label(position, name) for position, name in enumerate(names) if name not in known
        ],
    }
    messages = []
    for problem, columns in kinds.items():
        messages += [f"column {name} {problem}" for name in columns[:_MAX_LISTED]]
        if len(columns) > _MAX_LISTED:
            messages.append(f"each of {len(columns) - _MAX_LISTED} more columns {problem}")
    if messages:
        raise ValidationFailed(errors=[{"pointer": "", "message": message} for message in messages])


def encode_cells(
    encoders: Sequence[AttributeEncoder], cells: Sequence[Cells], n_before: int, n_valid: int
) -> list[NDArray[np.int32]]:
    """Return the codes of each attribute, for records after the first `n_before` of a file.

    Raises
    ------
    ValidationFailed
        A value of one of the first `n_valid` records is refused. The message names the first such record.
    """
    codes, refused = [], list[InvalidCell]()
    for encoder, values in zip(encoders, cells, strict=True):
        try:
            codes.append(encoder.encode(values))
        except InvalidCell as invalid:
            refused.append(invalid)
    if refused and (first := min(refused, key=lambda each: each.row)).row < n_valid:
        raise bad_record(n_before + first.row, str(first)) from None
    return codes


class InvalidUserId(Exception):
    """An id that is not accepted. The message contains no part of it."""


def normalise_user_id(user: str | int, *, fold_case: bool = False) -> bytes:
    """Return the stored form of a user id, equal for variants that look the same, so that a user is one person.

    Variants are Unicode forms (NFKC), surrounding white space, whole numbers and their text with or without leading
    zeros, and with `fold_case` upper and lower case. Other spellings of numbers are rejected, because a program may
    have made `7.0` of 7. Texts for a missing value, such as `nan`, are no user. Characters without a glyph are
    rejected. So are unassigned ones, because a later version of Unicode may give them another form.

    Parameters
    ----------
    user : str or int
    fold_case : bool
        Whether ids that differ only in case are one user.

    Returns
    -------
    bytes
        UTF-8, 1 to 64 bytes.

    Raises
    ------
    InvalidUserId
        If the id is missing, too long or a decimal number, or if it has invisible or control characters.
    """
    if isinstance(user, int) and abs(user) >= 10**MAX_USER_BYTES:
        raise InvalidUserId(USER_TOO_LONG)
    text = str(user)
    if len(text) > _MAX_USER_CHARACTERS:
        raise InvalidUserId(USER_TOO_LONG)
    text = text.strip()
    if not text.isascii():
        text = normalize("NFKC", text)
        if fold_case:
            text = normalize("NFKC", normalize("NFKC", text.casefold()).casefold())
        text = text.strip()
    elif fold_case:
        text = text.lower()
    if not text.isprintable() or _INVISIBLE.search(text):
        raise InvalidUserId("must not contain control, zero-width or unassigned characters")
    if is_missing_text(text):
        raise InvalidUserId(MISSING_USER)
    if _WHOLE.fullmatch(text):
        text = str(int(text))
    elif _DECIMAL.fullmatch(text):
        raise InvalidUserId(NOT_WHOLE)
    encoded = text.encode()
    if len(encoded) > MAX_USER_BYTES:
        raise InvalidUserId(USER_TOO_LONG)
    return encoded


def bad_record(index: int, reason: str) -> ValidationFailed:
    """Return the problem for an invalid record, which rejects the whole upload. `index` counts from 0."""
    return ValidationFailed(f"record {index + 1}: {reason} (records are counted from 1){NOTHING_STORED}")
