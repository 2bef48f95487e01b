"""Reports in an Arrow IPC stream: the one file that loads pyarrow.

Only what the contract names is read: three columns of fixed width, no nulls, uncompressed.
Compressed bodies are refused before they are unpacked, since a small one may unpack to more
than the machine has.
"""

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from models.report import ID_BYTES, SLOT_BYTES
from service.problems import BadRequest, ValidationFailed

Bytes = NDArray[np.uint8]


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
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
        schema = pa.ipc.read_schema(messages.read_next_message())
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
    except (pa.ArrowException, OSError, EOFError, StopIteration, struct.error):
        raise BadRequest("the body is not an Arrow IPC stream") from None


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
