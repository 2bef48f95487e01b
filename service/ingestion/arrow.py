"""Reports and records in an Arrow IPC stream or file. Only this module loads pyarrow.

Accepted are uncompressed batches with the documented columns and types. Compressed batches are rejected before
decompression, because a small body may expand to more memory than the machine has. An acknowledgement must cover all
that was sent. So the end of the stream must be the end of the body, and a file's footer must list all of its messages.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
from numpy.typing import NDArray

from models.collection.report_log import ID_BYTES, SLOT_BYTES
from service.http.problems import BadRequest, ValidationFailed
from service.ingestion.record_validation import MISSING_USER, USER_TOO_LONG, bad_record, check_columns
from sfumato.records.attribute_codes import Cells, DistinctCells
from sfumato.specs.attributes import Attribute, Categorical

Bytes = NDArray[np.uint8]

_MESSAGE_START = b"\xff\xff\xff\xff"
_END_OF_STREAM = _MESSAGE_START + bytes(4)
_FILE_START, _FILE_END = b"ARROW1\0\0", b"ARROW1"
_BLOCK_BYTES = 24  # size of a footer's entry for a message
_NUMBERS_AT_ONCE = 1 << 18  # numbers converted at once, to bound memory
_MAX_TEXT_BYTES = 1 << 10  # limit before the validation of a user id; many entries may name one long text
_ARROW_ERRORS = (pa.ArrowException, OSError, EOFError, StopIteration, struct.error, UnicodeDecodeError)
_NOT_ARROW = "the body is not a valid Arrow IPC stream or file"


class RecordGroup(NamedTuple):
    """Records that follow each other."""

    values: NDArray[np.float64]  # shape (n, n_features)
    users: list[str] | None
    widths: list[type[np.floating]]  # floating-point type of each feature as it came
    cells: list[Cells]  # n values of each attribute


def parse_reports(body: bytes, value_bytes: int) -> Iterator[tuple[Bytes, Bytes, Bytes]]:
    """Yield (report ids, slots, values) of each record batch as uint8 arrays with one row per report.

    Raises
    ------
    BadRequest
        The body is not a valid Arrow stream or file, or it has more after its end.
    ValidationFailed
        It has other columns, nulls or compression.
    """
    expected = {"report_id": pa.binary(ID_BYTES), "slot": pa.uint32(), "value": pa.binary(value_bytes)}
    try:
        schema, batches = _open(body)
        check_columns(list(expected), schema.names)
        wrong = [
            f"column {name} has the type {schema.field(name).type}: it must have the type {kind}"
            for name, kind in expected.items()
            if schema.field(name).type != kind
        ]
        if wrong:
            raise ValidationFailed(errors=[{"pointer": "", "message": message} for message in wrong])
        for batch in batches:
            batch.validate(full=True)
            if any(column.null_count for column in batch.columns):
                raise ValidationFailed("columns must not contain nulls")
            yield (
                _rows(batch.column("report_id"), ID_BYTES),
                _rows(batch.column("slot"), SLOT_BYTES),
                _rows(batch.column("value"), value_bytes),
            )
    except _ARROW_ERRORS:
        raise BadRequest(_NOT_ARROW) from None


def column_names(body: bytes) -> list[str]:
    """Return the names of the columns. Raise BadRequest if the body is not a valid Arrow stream or file."""
    try:
        return list(_open(body)[0].names)
    except _ARROW_ERRORS:
        raise BadRequest(_NOT_ARROW) from None


def parse_records(
    body: bytes,
    find_positions: Callable[[Sequence[str]], list[int]],
    n_features: int,
    coordinates: Sequence[str] = (),
    attributes: Sequence[Attribute] = (),
) -> Iterator[RecordGroup]:
    """Yield successive groups of records.

    Parameters
    ----------
    body : bytes
    find_positions : callable
        Returns the position of each declared column in the given names: the features, then the attributes, then the
        user column if any.
    n_features : int
    coordinates : sequence of str, optional
        Names of the features of an embedding. One column of lists may have all of them, under any name.
    attributes : sequence of Attribute, optional

    Raises
    ------
    BadRequest
        The body is not a valid Arrow stream or file, or it has more after its end.
    ValidationFailed
        It has columns of other types, nulls or compression, or lists of another length.
    """
    if not body.endswith((_END_OF_STREAM, _FILE_END)):
        raise BadRequest("the Arrow IPC stream is incomplete: its end-of-stream marker is missing")
    try:
        schema, batches = _open(body)
        lists = [at for at, kind in enumerate(schema.types) if coordinates and _is_list(kind)][:1]
        others = [at for at in range(len(schema.names)) if at not in lists]
        names = [*(coordinates if lists else ()), *(schema.field(at).name for at in others)]
        positions = [*(lists * len(coordinates)), *others]
        chosen = [positions[at] for at in find_positions(names)]
        places, others = lists or chosen[:n_features], chosen[n_features:]
        described, users = others[: len(attributes)], others[len(attributes) :]
        features = [schema.field(at) for at in places]
        kinds = [field.type.value_type if lists else _value_type(field.type) for field in features]
        _check_types(features, kinds, [schema.field(at) for at in users])
        for attribute, at in zip(attributes, described, strict=True):
            _check_attribute(attribute, schema.field(at))
        widths = [_width(kind) for kind in kinds] * (n_features if lists else 1)
        step = max(1, _NUMBERS_AT_ONCE // n_features)
        n_before = 0
        for batch in batches:
            _validate(batch, n_before)
            for start in range(0, len(batch), step):
                part = batch.slice(start, step)
                values = [
                    _numbers(part.column(at), field.name, n_before, n_features)
                    for at, field in zip(places, features, strict=True)
                ]
                ids = _texts(part.column(users[0]), schema.field(users[0]).name, n_before) if users else None
                cells = [
                    _cells(attribute, part.column(at)) for attribute, at in zip(attributes, described, strict=True)
                ]
                yield RecordGroup(np.concatenate(values, axis=1), ids, widths, cells)
                n_before += len(part)
    except _ARROW_ERRORS:
        raise BadRequest(_NOT_ARROW) from None


def _open(body: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of a body that has one complete stream or file and nothing after it.

    Raises
    ------
    BadRequest
        The body has more after the end of the stream, or a message of another kind.
    ValidationFailed
        A batch is compressed.
    """
    source = pa.BufferReader(body)
    if body.startswith(_FILE_START):
        _check_file(body)
        reader = pa.ipc.open_file(source)
        return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
    _message_ends(body, has_schema=True)
    stream = pa.ipc.open_stream(source)
    return stream.schema, iter(stream)


def _check_file(body: bytes) -> None:
    """Raise BadRequest unless a file is a schema and then the messages that its footer lists, without a gap."""
    tail = len(_FILE_END) + 4  # the footer is followed by its length and the magic
    footer_bytes = int.from_bytes(body[-tail : -len(_FILE_END)], "little")
    end = len(body) - tail - footer_bytes
    if not body.endswith(_FILE_END) or end < len(_FILE_START):
        raise BadRequest("the Arrow IPC file has more after its end, or its footer is damaged")
    blocks = _blocks(body[end:-tail])
    first = blocks[0][0] if blocks else end - len(_END_OF_STREAM)
    schema = body[len(_FILE_START) : first]
    if not schema.startswith(_MESSAGE_START):  # polars writes the schema without its length
        schema = _MESSAGE_START + struct.pack("<i", len(schema)) + schema
    ends = [first + end for end in _message_ends(memoryview(body)[first:end], has_schema=False)]
    if len(_message_ends(schema, has_schema=True)) > 1 or blocks != list(zip([first, *ends], ends, strict=False)):
        raise BadRequest("the footer of the Arrow IPC file does not list the batches that the file has")


def _message_ends(data: bytes | memoryview, *, has_schema: bool) -> list[int]:
    """Check the messages of a stream, with its schema or without. Return the position after each of them."""
    source = pa.BufferReader(data)
    ends: list[int] = []
    for message in pa.ipc.MessageReader.open_stream(source):
        if (message.type == "schema") != (has_schema and not ends):
            raise BadRequest(_NOT_ARROW)  # pyarrow would read invalid memory of a first message of another kind
        if message.type not in ("schema", "record batch", "dictionary"):
            raise BadRequest(_NOT_ARROW)
        if message.type != "schema" and _is_compressed(message):
            raise ValidationFailed("the Arrow batches are compressed: write them without compression")
        ends.append(source.tell())
    if has_schema and not ends:
        raise BadRequest(_NOT_ARROW)
    if source.tell() != len(data):
        raise BadRequest("the body has more after the end of the Arrow IPC stream: send one stream per request")
    return ends


def _blocks(footer: bytes) -> list[tuple[int, int]]:
    """Return the start and the end of each message in the order of the file (Arrow's File.fbs, flatbuffers)."""
    (root,) = struct.unpack_from("<I", footer)
    blocks = []
    for index in (2, 3):  # Footer.dictionaries, Footer.recordBatches
        at = _table(footer, root, index)
        if at is None:
            continue
        for i in range(struct.unpack_from("<I", footer, at)[0]):
            start, metadata_bytes, body_bytes = struct.unpack_from("<qi4xq", footer, at + 4 + _BLOCK_BYTES * i)
            blocks.append((start, start + metadata_bytes + body_bytes))
    return sorted(blocks)


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary, and any other type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _check_types(features: Sequence[pa.Field], kinds: Sequence[pa.DataType], users: Sequence[pa.Field]) -> None:
    """Raise ValidationFailed if a column has a type that does not convert exactly. `kinds` are those of the values."""
    for field, kind in zip(features, kinds, strict=True):
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise ValidationFailed(
                f"column {field.name} has the type {_show(field.type)}: send floats, integers or decimals"
            )
    for field in users:
        kind = _value_type(field.type)
        is_whole = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
        if not (is_whole or _is_text(kind)):
            raise ValidationFailed(
                f"column {field.name} has the type {_show(field.type)}: send the users as text or whole numbers"
            )


def _check_attribute(attribute: Attribute, field: pa.Field) -> None:
    """Raise ValidationFailed if a column has a type that the attribute does not take."""
    kind = _value_type(field.type)
    is_fit, wanted = pa.types.is_integer(kind) or pa.types.is_null(kind), "floats, integers or decimals"
    if isinstance(attribute, Categorical):
        is_fit, wanted = is_fit or _is_text(kind), "text, also in a dictionary, or whole numbers"
    else:
        is_fit = is_fit or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not is_fit:
        raise ValidationFailed(f"column {field.name} has the type {_show(field.type)}: send {wanted}")


def _cells(attribute: Attribute, column: pa.Array) -> Cells:
    """Return the values of an attribute: texts, integers and None, or floats with NaN for nulls."""
    if isinstance(attribute, Categorical):
        # Only the entries in use are read, because a dictionary may be longer than the batch.
        encoded = (column.indices if pa.types.is_dictionary(column.type) else column).dictionary_encode("encode")
        values = encoded.dictionary.to_pylist()
        if pa.types.is_dictionary(column.type):
            values = [None if at is None else column.dictionary[at].as_py() for at in values]
        return DistinctCells(values, encoded.indices.to_numpy())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):  # text converts to the nearest double, unlike Arrow's own cast
        column = column.cast(pa.string())
    numbers: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _show(kind: pa.DataType) -> str:
    """Return the name of a type. A type with members is shown without them, because their names may be anything."""
    value = _value_type(kind)
    if value.num_fields or isinstance(value, pa.BaseExtensionType):
        return f"{type(value).__name__.removesuffix('Type').lower()}"
    return f"dictionary of {value}" if value is not kind else str(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _width(kind: pa.DataType) -> type[np.floating]:
    if pa.types.is_float16(kind):
        return np.float16
    return np.float32 if pa.types.is_float32(kind) else np.float64


def _validate(batch: pa.RecordBatch, n_before: int) -> None:
    """Validate a batch. Check the lengths of texts first, because many entries may name one long text."""
    batch.validate()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_dictionary = pa.types.is_dictionary(column.type)
        is_long = _text_lengths(column.dictionary if is_dictionary else column) > _MAX_TEXT_BYTES
        if is_long.any() and is_dictionary:
            raise ValidationFailed(f"the dictionary of column {name} has a text of more than {_MAX_TEXT_BYTES} bytes")
        if is_long.any():
            raise bad_record(n_before + int(is_long.argmax()), f"{name} {USER_TOO_LONG}")
    batch.validate(full=True)


def _text_lengths(texts: pa.Array) -> NDArray[np.int64]:
    """Return the lengths of texts in bytes without reading the texts. Other values have none."""
    if not _is_text(texts.type) or not len(texts):
        return np.zeros(0, dtype=np.int64)
    start, end = texts.offset, texts.offset + len(texts)
    buffer = texts.buffers()[1]
    if pa.types.is_string_view(texts.type):
        return np.frombuffer(buffer, "<i4", 4 * end).reshape(-1, 4)[start:, 0].astype(np.int64)
    offsets = np.frombuffer(buffer, "<i8" if pa.types.is_large_string(texts.type) else "<i4", end + 1)
    ends = offsets[start:].astype(np.int64)
    return ends[1:] - ends[:-1]


def _numbers(column: pa.Array, name: str, n_before: int, n_features: int) -> NDArray[np.float64]:
    """Return a column as doubles of shape (n, 1), and a column of lists as (n, n_features).

    Raise ValidationFailed for a null and for a list of another length.
    """
    width = 1
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    elif _is_list(column.type):
        _check_nulls(column, name, n_before)
        is_other = pa.compute.list_value_length(column).to_numpy(zero_copy_only=False) != n_features
        if is_other.any():
            raise bad_record(n_before + int(is_other.argmax()), f"{name} must have {n_features} numbers")
        column, width = column.flatten(), n_features
    _check_nulls(column, name, n_before, width)
    if pa.types.is_decimal(column.type):  # text converts to the nearest double, unlike Arrow's own cast
        column = column.cast(pa.string()).cast(pa.float64())
    with np.errstate(invalid="ignore"):  # a signalling NaN is refused later, as any NaN
        numbers: NDArray[np.float64] = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers.reshape(-1, width)


def _check_nulls(column: pa.Array, name: str, n_before: int, n_per_record: int = 1) -> None:
    """Raise ValidationFailed if a value is missing."""
    if column.null_count:
        at = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise bad_record(n_before + at // n_per_record, f"{name} is missing (null)")


def _texts(column: pa.Array, name: str, n_before: int) -> list[str]:
    """Return a column of user ids as text. Raise ValidationFailed for a null."""
    entries: NDArray[np.int64] | None = None
    if pa.types.is_dictionary(column.type) and not column.null_count:
        used, entries = np.unique(column.indices.to_numpy(zero_copy_only=False), return_inverse=True)
        column = pa.array([column.dictionary[at] for at in used.tolist()], column.type.value_type)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        at = int((is_null if entries is None else is_null[entries]).argmax())
        raise bad_record(n_before + at, f"{name} {MISSING_USER}")
    texts: list[str] = (column if _is_text(column.type) else column.cast(pa.string())).to_pylist()
    return texts if entries is None else [texts[at] for at in entries.tolist()]


def _rows(column: pa.Array, width: int) -> Bytes:
    data = column.buffers()[1]
    rows = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return rows[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def _is_compressed(message: pa.ipc.Message) -> bool:
    """Return whether a batch has the field `compression` (Arrow's Message.fbs, flatbuffers).

    A flatbuffer table starts with the distance back to its vtable. From its third 16-bit word on, the vtable contains
    the offset of each field in the table. A field is absent if its offset is zero or lies beyond the vtable.
    """
    data = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", data)
    batch = _table(data, root, 2)  # Message.header, a RecordBatch or a DictionaryBatch
    if batch is not None and message.type == "dictionary":
        batch = _table(data, batch, 1)  # DictionaryBatch.data, a RecordBatch
    if batch is None:
        return True  # a batch without header cannot be read
    return _field(data, batch, 3) is not None  # RecordBatch.compression


def _table(message: bytes, parent: int, index: int) -> int | None:
    """Return the position of the table or vector that a field refers to."""
    at = _field(message, parent, index)
    if at is None:
        return None
    (distance,) = struct.unpack_from("<I", message, at)
    return at + int(distance)


def _field(message: bytes, table: int, index: int) -> int | None:
    (back,) = struct.unpack_from("<i", message, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", message, vtable)
    if 4 + 2 * index >= size:
        return None
    (offset,) = struct.unpack_from("<H", message, vtable + 4 + 2 * index)
    return table + offset if offset else None
