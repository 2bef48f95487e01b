"""Reports and records in an Arrow IPC stream: the one file that loads pyarrow.

Only what the contract names is read: columns of the types it says, no nulls, uncompressed.
Compressed bodies are refused before they are unpacked, since a small one may unpack to more
than the machine has.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from models.report import ID_BYTES, SLOT_BYTES
from service.problems import BadRequest, ValidationFailed

Bytes = NDArray[np.uint8]

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_RECORDS_AT_ONCE = 1 << 17
_BROKEN = (pa.ArrowException, OSError, EOFError, StopIteration, struct.error, UnicodeDecodeError)  # names not in UTF-8


def batches(body: bytes, value_bytes: int) -> Iterator[tuple[Bytes, Bytes, Bytes]]:
    """(report ids, slots, values) of each record batch: uint8, one row a report.

    Raises
    ------
    BadRequest
        Not an Arrow stream, or a broken one.
    ValidationFailed
        Other columns, nulls or compression.
    """
    wanted = {"report_id": pa.binary(ID_BYTES), "slot": pa.uint32(), "value": pa.binary(value_bytes)}
    try:
        messages, schema = _opened(body)
        if {field.name: field.type for field in schema} != wanted or len(schema) != len(wanted):
            raise ValidationFailed("columns are " + ", ".join(f"{name} {kind}" for name, kind in wanted.items()))
        for message in messages:
            if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
                raise ValidationFailed("record batches are neither compressed nor dictionary-encoded")
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            if any(column.null_count for column in batch.columns):
                raise ValidationFailed("a column holds nulls")
            yield (
                _rows(batch.column("report_id"), ID_BYTES),
                _rows(batch.column("slot"), SLOT_BYTES),
                _rows(batch.column("value"), value_bytes),
            )
    except _BROKEN:
        raise BadRequest("the body is not an Arrow IPC stream") from None


def records(
    body: bytes, places: Callable[[Sequence[str]], list[int]], n_features: int
) -> Iterator[tuple[NDArray[np.float64], list[Any] | None]]:
    """(features' values of shape (n, n_features), users) of some records after the other.

    Parameters
    ----------
    places : callable
        Where each declared column is among the given names: the features, then the users' if there is one.

    Raises
    ------
    BadRequest
        Not an Arrow stream, or a broken one.
    ValidationFailed
        Columns of other types, nulls or compression.
    """
    if not body.endswith(_END_OF_STREAM):
        raise BadRequest("the body is not a whole Arrow IPC stream")
    try:
        messages, schema = _opened(body)
        wanted = places(schema.names)
        features, user = wanted[:n_features], wanted[n_features] if len(wanted) > n_features else None
        _check_types(schema, features, user)
        for message in messages:
            if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
                raise ValidationFailed("record batches are neither compressed nor dictionary-encoded")
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            if any(column.null_count for column in batch.columns):
                raise ValidationFailed("a column holds nulls")
            for start in range(0, len(batch), _RECORDS_AT_ONCE):
                part = batch.slice(start, _RECORDS_AT_ONCE)
                values = [part.column(place).to_numpy(zero_copy_only=False).astype(np.float64) for place in features]
                yield np.stack(values, axis=1), None if user is None else part.column(user).to_pylist()
    except _BROKEN:
        raise BadRequest("the body is not an Arrow IPC stream") from None


def _opened(body: bytes) -> tuple[pa.ipc.MessageReader, pa.Schema]:
    """What comes after the schema, and the schema. Raises BadRequest, and what `_BROKEN` names."""
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
    first = messages.read_next_message()
    if first.type != "schema":  # of which `read_schema` reads wherever it points: the process may end
        raise BadRequest("the body is not an Arrow IPC stream")
    return messages, pa.ipc.read_schema(first)


def _check_types(schema: pa.Schema, features: Sequence[int], user: int | None) -> None:
    for place in features:
        kind = schema.field(place).type
        if not (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
            raise ValidationFailed(f"column {schema.field(place).name} is of floats, doubles or whole numbers")
    if user is None:
        return
    kind = schema.field(user).type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValidationFailed(f"column {schema.field(user).name} is of text or whole numbers")


def _rows(column: pa.Array, width: int) -> Bytes:
    data = column.buffers()[1]
    rows = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return rows[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def _is_compressed(message: bytes) -> bool:
    """Whether a message's record batch has the field `compression` (Arrow's Message.fbs; flatbuffers).

    A flatbuffer's table begins with the distance back to its vtable, which holds, from its
    third 16-bit word on, each field's offset in the table; zero, or past the vtable's end,
    says that a field is not there.
    """
    (root,) = struct.unpack_from("<I", message)
    header = _field(message, root, 2)  # Message.header, a RecordBatch
    if header is None:
        return True  # nothing to be read in it
    (distance,) = struct.unpack_from("<I", message, header)
    return _field(message, header + distance, 3) is not None  # RecordBatch.compression


def _field(message: bytes, table: int, index: int) -> int | None:
    (back,) = struct.unpack_from("<i", message, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", message, vtable)
    if 4 + 2 * index >= size:
        return None
    (offset,) = struct.unpack_from("<H", message, vtable + 4 + 2 * index)
    return table + offset if offset else None
