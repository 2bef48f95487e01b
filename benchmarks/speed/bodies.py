"""Bodies of many reports in the three forms they travel in, and the least that can be done with them.

The least is to decode the bytes with the same libraries, check nothing, and have the same bytes on disk: a file that is
written and flushed, or one row by COPY that is committed.
"""

import base64
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pyarrow as pa

from models.report import ID_BYTES, SLOT_BYTES

FORMS = {
    "JSON columns": "application/json",
    "Arrow IPC": "application/vnd.apache.arrow.stream",
    "packed octets": "application/octet-stream",
}


@dataclass(frozen=True)
class Reports:
    """Columns of reports that suit a round.

    Attributes
    ----------
    ids : ndarray of uint8, shape (n, 16)
    slots : ndarray of uint32, shape (n,)
    values : ndarray of uint8, shape (n, value_bytes)
    """

    ids: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]"
    slots: "np.ndarray[tuple[int], np.dtype[np.uint32]]"
    values: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]"

    def __len__(self) -> int:
        return len(self.ids)


def reports(n: int, n_slots: int, n_symbols: int) -> Reports:
    """So many, their values one byte each."""
    rng = np.random.default_rng(0)
    ids = np.frombuffer(secrets.token_bytes(n * ID_BYTES), dtype=np.uint8).reshape(n, ID_BYTES)
    values = rng.integers(0, n_symbols, size=(n, 1), dtype=np.uint8)
    return Reports(ids, rng.integers(0, n_slots, size=n, dtype=np.uint32), values)


def body(form: str, these: Reports) -> bytes:
    """As they travel."""
    if form == "packed octets":
        slots = these.slots.astype("<u4").view(np.uint8).reshape(-1, SLOT_BYTES)
        return np.concatenate([these.ids, slots, these.values], axis=1).tobytes()
    if form == "Arrow IPC":
        columns = {
            "report_id": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(ID_BYTES), len(these), [None, pa.py_buffer(these.ids.tobytes())]
            ),
            "slot": pa.array(these.slots, pa.uint32()),
            "value": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(these.values.shape[1]), len(these), [None, pa.py_buffer(these.values.tobytes())]
            ),
        }
        batch = pa.record_batch(columns)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(stream.getvalue().to_pybytes())
    told = {
        "report_ids": [row.tobytes().hex() for row in these.ids],
        "slots": these.slots.tolist(),
        "values": [base64.b64encode(row.tobytes()).decode() for row in these.values],
    }
    return msgspec.json.encode(told)


class _Columns(msgspec.Struct):
    report_ids: list[str]
    slots: list[int]
    values: list[bytes]


def decode(form: str, sent: bytes) -> object:
    """The columns, by the library alone."""
    if form == "packed octets":
        return np.frombuffer(sent, dtype=np.uint8)
    if form == "Arrow IPC":
        return pa.ipc.open_stream(sent).read_all()
    return msgspec.json.decode(sent, type=_Columns)


@contextmanager
def file_writer() -> Iterator[Callable[[bytes], None]]:
    """Appends to a file of its own, and flushes it each time."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        file = os.open(Path(folder) / "reports", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def write(data: bytes) -> None:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            os.fdatasync(file)

        try:
            yield write
        finally:
            os.close(file)


@contextmanager
def copy_writer(database_url: str) -> Iterator[Callable[[bytes], None]]:
    """Sends one row by COPY, and commits, each time."""
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS copied (packed bytea)")
        connection.commit()

        def write(data: bytes) -> None:
            with connection.cursor() as cursor, cursor.copy("COPY copied (packed) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["bytea"])
                copy.write_row([data])
            connection.commit()

        try:
            yield write
        finally:
            connection.execute("DROP TABLE copied")


def per_second(form: str, sent: bytes, n_reports: int, write: Callable[[bytes], None], seconds: float) -> float:
    """Reports a second, decoded and written for so long."""
    n, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds or n == 0:
        decode(form, sent)
        write(sent)
        n += 1
    return n * n_reports / took if n else 0.0


def columns_of(spec: dict[str, Any]) -> tuple[int, int]:
    """(slots, symbols) of a round's spec, as `reports` wants them."""
    from sfumato.specs import round_spec_from_wire

    encoding = round_spec_from_wire(spec).encoding
    return encoding.n_slots, encoding.n_symbols
