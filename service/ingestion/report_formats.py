"""Formats of submitted reports: validation against their round, and packing for storage.

There are three formats: JSON (one report, or columns), packed octets, and an Arrow stream. The first invalid report
rejects the whole request. A packed report is report_id (16 bytes), slot (4 bytes, little-endian) and value
(the mechanism's fixed width).
"""

import re
import struct
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from models.collection.report_log import HEADER_BYTES, ID_BYTES, SLOT_BYTES
from models.tables.rounds import Octets, Round
from service.http.problems import PayloadTooLarge, ReportMalformed, ValidationFailed
from service.ingestion.json_pieces import NOT_JSON, JsonPieces
from sfumato.specs import Mechanism

_ID_CHARACTERS = 2 * ID_BYTES
_pack_slot = struct.Struct("<I").pack
_SLOT_SPAN = 1 << 8 * SLOT_BYTES
_CHUNK_BYTES = 4 << 20  # bytes validated at once, to bound memory

_ARROW_HEAD_BYTES = 64 << 10  # schema, with the metadata that libraries add
_ARROW_BATCH_BYTES, _ARROW_BATCHES = 1 << 10, 1 << 12  # metadata and padding of a batch; most batches with one report

BAD_ID = "report_id must be 32 lower-case hexadecimal digits"
BAD_SLOT = "the slot is out of range: send a slot less than the number of slots of the round's encoding"
BAD_VALUE = "the mechanism of the round cannot send this value: compare it with the spec of the round"


@dataclass(frozen=True, slots=True)
class ReportFormat:
    """The format of the reports of one round. It never changes."""

    round_id: str
    dataset_id: str
    tenant_id: str
    mechanism: Mechanism
    n_slots: int
    value_bytes: int

    @classmethod
    def from_round(cls, row: Round, tenant_id: str) -> "ReportFormat":
        """Return the format of a round's reports."""
        spec = row.spec
        width = spec.mechanism.value_bytes
        return cls(row.id, row.dataset_id, tenant_id, spec.mechanism, spec.encoding.n_slots, width)

    @property
    def report_bytes(self) -> int:
        """Return the length of a packed report."""
        return HEADER_BYTES + self.value_bytes

    def receipt(self, n_reports: int) -> bytes:
        """Return the response body for accepted reports."""
        return b'{"round_id":"%s","accepted":%d}' % (self.round_id.encode(), n_reports)


class PackedReports(NamedTuple):
    """Valid reports in the storage format."""

    n_reports: int
    data: Octets


Reserve = Callable[[int], None]


def do_nothing(_n_bytes: int) -> None:
    """Reserve no memory: a small body takes less than the stated memory of a request."""


Slot = Annotated[int, msgspec.Meta(ge=0, lt=_SLOT_SPAN)]


class _Report(msgspec.Struct, forbid_unknown_fields=True):
    """One report; bytes are base64."""

    report_id: str
    slot: Slot
    value: bytes


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    """One report, or columns of several; bytes are base64."""

    report_id: str | UnsetType = UNSET
    slot: Slot | UnsetType = UNSET
    value: bytes | UnsetType = UNSET
    report_ids: list[str] | UnsetType = UNSET
    slots: list[Slot] | UnsetType = UNSET
    values: list[bytes] | UnsetType = UNSET


_read_report = msgspec.json.Decoder(_Report).decode
_QUOTES_OF_ONE = 10  # quotation marks of three names and two texts, which have no quotation marks
_AT = re.compile(r"`\$\.(report_id|slot|value)(?:s\[(\d+)\])?`$")


def parse_json(
    report_format: ReportFormat, body: bytes, max_reports: int, reserve: Reserve = do_nothing
) -> PackedReports:
    """Parse one report or columns. Raise BadRequest, ValidationFailed or ReportMalformed."""
    if body.count(b'"') == _QUOTES_OF_ONE:  # otherwise a member occurs twice, or it is no report
        try:
            return _pack_one(report_format, _read_report(body.removeprefix(BOM_UTF8)))
        except NOT_JSON:
            pass  # columns, or an error that the other type describes
    reader = ColumnsReader(report_format, max_reports, reserve)
    reader.feed(body)
    return reader.finish_reports()


def _read_hex(text: str) -> bytes | None:
    """Return the octets of lower-case hexadecimal digits, or None."""
    try:
        octets = bytes.fromhex(text)
    except ValueError:
        return None
    return octets if octets.hex() == text else None  # fromhex() accepts capitals and spaces


_EXPECTED = "expected an object with report_id, slot and value, or with the lists report_ids, slots and values"


def _pack_one(report_format: ReportFormat, read: _Report) -> PackedReports:
    report_id = _read_hex(read.report_id)
    if report_id is None or len(report_id) != ID_BYTES:
        raise ReportMalformed(BAD_ID, index=0)
    if read.slot >= report_format.n_slots:
        raise ReportMalformed(BAD_SLOT, index=0)
    if not report_format.mechanism.is_value(read.value):
        raise ReportMalformed(BAD_VALUE, index=0)
    return PackedReports(1, b"%b%b%b" % (report_id, _pack_slot(read.slot), read.value))


class ColumnsReader(JsonPieces):
    """Reader of columns of reports. It keeps the reports in their packed form.

    Parameters
    ----------
    report_format : ReportFormat
    max_reports : int
    reserve : callable
        Called with the memory that each piece takes, in bytes.
    """

    def __init__(self, report_format: ReportFormat, max_reports: int, reserve: Reserve) -> None:
        super().__init__(_Json, ColumnsReader._add, ColumnsReader._schema_error, reserve)
        self._format, self._max_reports = report_format, max_reports
        self._ids, self._values, self._slots = bytearray(), bytearray(), array("I")

    def _add(self, read: _Json) -> None:
        """Pack a piece of the columns."""
        ids, slots, values = read.report_ids or [], read.slots or [], read.values or []
        width = self._format.value_bytes
        self._check_room(len(self._ids) // ID_BYTES + len(ids), len(self._slots) + len(slots))
        self._check_room(len(self._values) // max(1, width) + len(values))
        joined = "".join(ids)
        octets = _read_hex(joined)
        if octets is None or not set(map(len, ids)) <= {_ID_CHARACTERS}:
            first = len(self._ids) // ID_BYTES
            _reject_first(ids, lambda one: len(one) == _ID_CHARACTERS and _read_hex(one) is not None, BAD_ID, first)
        if values and set(map(len, values)) != {width}:
            _reject_first(values, lambda one: len(one) == width, BAD_VALUE, len(self._values) // max(1, width))
        self._reserve(len(joined) // 2 + SLOT_BYTES * len(slots) + width * len(values))
        self._ids += octets
        self._slots.extend(slots)
        self._values += b"".join(values)

    def _check_room(self, *counts: int) -> None:
        for count in filter(None, counts):
            _check_count(count, self._max_reports)

    def finish_reports(self) -> PackedReports:
        """Return the reports. Raise BadRequest, ValidationFailed or ReportMalformed."""
        self.finish()
        if self._seen != {"report_ids", "slots", "values"}:
            raise ValidationFailed(_EXPECTED)
        n_reports, width = len(self._slots), self._format.value_bytes
        if not len(self._ids) == ID_BYTES * n_reports or len(self._values) != width * n_reports:
            raise ValidationFailed("report_ids, slots and values must have the same length")
        _check_count(n_reports, self._max_reports)
        self._reserve(2 * n_reports * self._format.report_bytes)
        records = np.empty((n_reports, self._format.report_bytes), dtype=np.uint8)
        records[:, :ID_BYTES] = _bytes_of(self._ids, ID_BYTES)
        slots = np.frombuffer(self._slots, dtype=np.uintc).astype("<u4")
        records[:, ID_BYTES:HEADER_BYTES] = slots.view(np.uint8).reshape(-1, SLOT_BYTES)
        records[:, HEADER_BYTES:] = _bytes_of(self._values, width)
        return _validate_packed(self._format, records, None)

    def _schema_error(self, message: str) -> Exception:
        """Return the problem for an error of msgspec. Use only its location; the rest may quote submitted names."""
        at = _AT.search(message)
        if at is None:
            return ValidationFailed(_EXPECTED)
        name, index = at.groups()
        if index is None and "array" in message:
            return ValidationFailed(errors=[{"pointer": f"/{name}s", "message": "expected a list"}])
        reasons = {"report_id": BAD_ID, "slot": BAD_SLOT, "value": "the value must be base64"}
        before = {"report_id": len(self._ids) // ID_BYTES, "slot": len(self._slots)}
        before["value"] = len(self._values) // max(1, self._format.value_bytes)
        return ReportMalformed(reasons[name], index=int(index) + before[name] if index else 0)


def _reject_first(column: Sequence[Any], is_valid: Callable[[Any], bool], reason: str, first: int) -> NoReturn:
    raise ReportMalformed(reason, index=first + next(index for index, one in enumerate(column) if not is_valid(one)))


def parse_octets(
    report_format: ReportFormat,
    body: bytes,
    max_reports: int,
    reserve: Reserve = do_nothing,  # noqa: ARG001 - the body is the packed form
) -> PackedReports:
    """Parse concatenated packed reports. Raise ValidationFailed or ReportMalformed."""
    n_whole, rest = divmod(len(body), report_format.report_bytes)
    _check_count(n_whole + bool(rest), max_reports)
    if rest:
        raise ReportMalformed(
            f"the last report is incomplete: a report of this round has {report_format.report_bytes} bytes",
            index=n_whole,
        )
    return _validate_packed(report_format, _bytes_of(body, report_format.report_bytes), body)


def max_bytes(report_format: ReportFormat, read: object, max_reports: int) -> int:
    """Return the longest body of a request with packed reports, or with an Arrow stream or file."""
    packed_bytes = max_reports * report_format.report_bytes
    if read is not parse_arrow:
        return packed_bytes
    return _ARROW_HEAD_BYTES + _ARROW_BATCH_BYTES * min(max_reports, _ARROW_BATCHES) + 2 * packed_bytes


def parse_arrow(
    report_format: ReportFormat, body: bytes, max_reports: int, reserve: Reserve = do_nothing
) -> PackedReports:
    """Parse an Arrow IPC stream. Raise BadRequest, ValidationFailed or ReportMalformed."""
    from service.ingestion import arrow  # loads pyarrow, which few gateways need

    parts = []
    n_reports = 0
    for columns in arrow.parse_reports(body, report_format.value_bytes):
        parts.append(columns)
        n_reports += len(columns[0])
        _check_count(n_reports, max_reports)
    _check_count(n_reports, max_reports)
    reserve(n_reports * report_format.report_bytes)
    # Copy whole fields instead of bytes, which is five times as fast.
    fields = [("report_id", f"V{ID_BYTES}"), ("slot", "<u4"), ("value", f"V{report_format.value_bytes}")]
    records = np.empty(n_reports, dtype=fields)
    start = 0
    for ids, slots, values in parts:
        numbers = slots.view("<u4")[:, 0]
        _check_columns(report_format, numbers, values, first=start)
        part = records[start : start + len(ids)]
        for name, column in (("report_id", ids), ("slot", slots), ("value", values)):
            part[name] = column.view(records.dtype[name])[:, 0]
        start += len(ids)
    return PackedReports(n_reports, records.view(np.uint8).data)


def _check_count(n_reports: int, max_reports: int) -> None:
    if n_reports == 0:
        raise ValidationFailed("the request has no reports: send at least one")
    if n_reports > max_reports:
        raise PayloadTooLarge(f"too many reports: at most {max_reports} per request; split them into several requests")


def _bytes_of(data: bytes | bytearray, width: int) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, width)


def _validate_packed(report_format: ReportFormat, records: NDArray[np.uint8], packed: bytes | None) -> PackedReports:
    """Validate slots and values of packed reports, uint8 of shape (n, report_bytes)."""
    step = max(1, _CHUNK_BYTES // report_format.report_bytes)
    for start in range(0, len(records), step):
        chunk = records[start : start + step]
        slots = np.ascontiguousarray(chunk[:, ID_BYTES:HEADER_BYTES]).view("<u4")[:, 0]
        _check_columns(report_format, slots, np.ascontiguousarray(chunk[:, HEADER_BYTES:]), first=start)
    return PackedReports(len(records), records.tobytes() if packed is None else packed)


def _check_columns(
    report_format: ReportFormat, slots: NDArray[np.uint32], values: NDArray[np.uint8], *, first: int
) -> None:
    """Validate slots, shape (n,), and values, shape (n, value_bytes); `first` is the index of the first report."""
    step = max(1, _CHUNK_BYTES // report_format.report_bytes)
    for start in range(0, len(slots), step):
        slot_ok = slots[start : start + step] < report_format.n_slots
        ok = slot_ok & report_format.mechanism.are_values(values[start : start + step])
        if not ok.all():
            bad = int(ok.argmin())
            raise ReportMalformed(BAD_VALUE if slot_ok[bad] else BAD_SLOT, index=first + start + bad)
