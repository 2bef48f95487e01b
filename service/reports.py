"""Reports as they travel, checked against their round and packed as they are stored.

Three forms: JSON (one report, or columns), packed octets, an Arrow stream. All or nothing:
the first bad report refuses the request. A packed report is report_id (16 bytes), slot
(4 bytes, little-endian), value (the mechanism's fixed width).
"""

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from models.report import HEADER_BYTES, ID_BYTES, SLOT_BYTES, Octets
from models.round import Round
from service.problems import BadRequest, PayloadTooLarge, ReportMalformed, ValidationFailed
from sfumato import mechanisms
from sfumato.specs import Mechanism

_HEX = re.compile("(?:[0-9a-f]{32})*")
_ID_CHARACTERS = 2 * ID_BYTES
_SLOT_SPAN = 1 << 8 * SLOT_BYTES
_CHUNK_BYTES = 4 << 20  # checked at once: bounds memory

BAD_ID = "report_id is 32 lower-case hexadecimal digits"
BAD_SLOT = "the slot is out of range"
BAD_VALUE = "the value is none this round's mechanism sends"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a report of one round must look like; never changes."""

    round_id: str
    dataset_id: str
    tenant_id: str
    mechanism: Mechanism
    n_slots: int
    value_bytes: int

    @classmethod
    def of(cls, found: Round, tenant_id: str) -> "Shape":
        """Of a round."""
        spec = found.spec
        width = mechanisms.value_bytes(spec.mechanism)
        return cls(found.id, found.dataset_id, tenant_id, spec.mechanism, spec.encoding.n_slots, width)

    @property
    def record_bytes(self) -> int:
        return HEADER_BYTES + self.value_bytes

    def receipt(self, n_reports: int) -> bytes:
        """What whoever sent that many is answered."""
        return b'{"round_id":"%s","accepted":%d}' % (self.round_id.encode(), n_reports)


class Packed(NamedTuple):
    """Reports that are sound, as they are stored."""

    n_reports: int
    data: Octets


Slot = Annotated[int, msgspec.Meta(ge=0, lt=_SLOT_SPAN)]


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    """One report, or columns of many; bytes are base64."""

    report_id: str | UnsetType = UNSET
    slot: Slot | UnsetType = UNSET
    value: bytes | UnsetType = UNSET
    report_ids: list[str] | UnsetType = UNSET
    slots: list[Slot] | UnsetType = UNSET
    values: list[bytes] | UnsetType = UNSET


_read_json = msgspec.json.Decoder(_Json).decode
_AT = re.compile(r"`\$\.(report_id|slot|value)(?:s\[(\d+)\])?`$")


def from_json(shape: Shape, body: bytes, max_reports: int) -> Packed:
    """Read one report or columns. Raises BadRequest, ValidationFailed or ReportMalformed."""
    try:
        read = _read_json(body)
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    single = (read.report_id, read.slot, read.value)
    columns = (read.report_ids, read.slots, read.values)
    if UNSET not in single and columns == (UNSET,) * 3:
        return _single(shape, read)
    if UNSET not in columns and single == (UNSET,) * 3:
        return _columns(shape, read, max_reports)
    raise ValidationFailed("report_id, slot and value are needed, or report_ids, slots and values")


def _misfit(message: str) -> Exception:
    """msgspec says where; what it says otherwise may hold names that were sent."""
    at = _AT.search(message)
    if at is None:
        return ValidationFailed("an object of report_id, slot and value is needed, or of report_ids, slots and values")
    name, index = at.groups()
    if index is None and "array" in message:
        return ValidationFailed(errors=[{"pointer": f"/{name}s", "message": "a list is needed"}])
    reasons = {"report_id": BAD_ID, "slot": BAD_SLOT, "value": "the value is base64"}
    return ReportMalformed(reasons[name], index=int(index or 0))


def _single(shape: Shape, read: _Json) -> Packed:
    report_id, slot, value = cast(str, read.report_id), cast(int, read.slot), cast(bytes, read.value)
    if len(report_id) != _ID_CHARACTERS or not _HEX.fullmatch(report_id):
        raise ReportMalformed(BAD_ID, index=0)
    if slot >= shape.n_slots:
        raise ReportMalformed(BAD_SLOT, index=0)
    if not mechanisms.is_value(shape.mechanism, value):
        raise ReportMalformed(BAD_VALUE, index=0)
    return Packed(1, bytes.fromhex(report_id) + struct.pack("<I", slot) + value)


def _columns(shape: Shape, read: _Json, max_reports: int) -> Packed:
    ids, slots = cast("list[str]", read.report_ids), cast("list[int]", read.slots)
    values = cast("list[bytes]", read.values)
    if not len(ids) == len(slots) == len(values):
        raise ValidationFailed("report_ids, slots and values differ in length")
    _check_number(len(ids), max_reports)
    joined = "".join(ids)
    if not _HEX.fullmatch(joined) or set(map(len, ids)) != {_ID_CHARACTERS}:
        _refuse_first(ids, lambda one: len(one) == _ID_CHARACTERS and bool(_HEX.fullmatch(one)), BAD_ID)
    if set(map(len, values)) != {shape.value_bytes}:
        _refuse_first(values, lambda one: len(one) == shape.value_bytes, BAD_VALUE)
    records = np.empty((len(ids), shape.record_bytes), dtype=np.uint8)
    records[:, :ID_BYTES] = _bytes_of(bytes.fromhex(joined), ID_BYTES)
    records[:, ID_BYTES:HEADER_BYTES] = np.array(slots, dtype="<u4").view(np.uint8).reshape(-1, SLOT_BYTES)
    records[:, HEADER_BYTES:] = _bytes_of(b"".join(values), shape.value_bytes)
    return _checked(shape, records, None)


def _refuse_first(column: Sequence[Any], is_sound: Callable[[Any], bool], reason: str) -> None:
    raise ReportMalformed(reason, index=next(index for index, one in enumerate(column) if not is_sound(one)))


def from_octets(shape: Shape, body: bytes, max_reports: int) -> Packed:
    """Read packed reports, one after the other. Raises ValidationFailed or ReportMalformed."""
    n_whole, rest = divmod(len(body), shape.record_bytes)
    _check_number(n_whole + bool(rest), max_reports)
    if rest:
        raise ReportMalformed(f"a report of this round takes {shape.record_bytes} bytes", index=n_whole)
    return _checked(shape, _bytes_of(body, shape.record_bytes), body)


def from_arrow(shape: Shape, body: bytes, max_reports: int) -> Packed:
    """Read an Arrow IPC stream. Raises BadRequest, ValidationFailed or ReportMalformed."""
    from service import arrow  # loads pyarrow, which few gateways ever need

    parts = []
    n_reports = 0
    for columns in arrow.batches(body, shape.value_bytes):
        parts.append(columns)
        n_reports += len(columns[0])
        _check_number(n_reports, max_reports)
    _check_number(n_reports, max_reports)
    # whole fields are copied, not bytes: five times as fast
    fields = [("report_id", f"V{ID_BYTES}"), ("slot", "<u4"), ("value", f"V{shape.value_bytes}")]
    records = np.empty(n_reports, dtype=fields)
    start = 0
    for ids, slots, values in parts:
        numbers = slots.view("<u4")[:, 0]
        _check_columns(shape, numbers, values, first=start)
        part = records[start : start + len(ids)]
        for name, column in (("report_id", ids), ("slot", slots), ("value", values)):
            part[name] = column.view(records.dtype[name])[:, 0]
        start += len(ids)
    return Packed(n_reports, records.view(np.uint8).data)


def _check_number(n_reports: int, max_reports: int) -> None:
    if n_reports == 0:
        raise ValidationFailed("no reports were sent")
    if n_reports > max_reports:
        raise PayloadTooLarge(f"a request takes {max_reports} reports")


def _bytes_of(data: bytes, width: int) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, width)


def _checked(shape: Shape, records: NDArray[np.uint8], packed: bytes | None) -> Packed:
    """Check slots and values of packed records, uint8 of shape (n, record_bytes)."""
    step = max(1, _CHUNK_BYTES // shape.record_bytes)
    for start in range(0, len(records), step):
        chunk = records[start : start + step]
        slots = np.ascontiguousarray(chunk[:, ID_BYTES:HEADER_BYTES]).view("<u4")[:, 0]
        _check_columns(shape, slots, np.ascontiguousarray(chunk[:, HEADER_BYTES:]), first=start)
    return Packed(len(records), records.tobytes() if packed is None else packed)


def _check_columns(shape: Shape, slots: NDArray[np.uint32], values: NDArray[np.uint8], *, first: int) -> None:
    """Check slots, shape (n,), and values, shape (n, value_bytes), of reports from number `first` on."""
    step = max(1, _CHUNK_BYTES // shape.record_bytes)
    for start in range(0, len(slots), step):
        slot_ok = slots[start : start + step] < shape.n_slots
        ok = slot_ok & mechanisms.are_values(shape.mechanism, values[start : start + step])
        if not ok.all():
            wrong = int(ok.argmin())
            raise ReportMalformed(BAD_VALUE if slot_ok[wrong] else BAD_SLOT, index=first + start + wrong)
