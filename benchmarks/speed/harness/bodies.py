"""Request bodies of many reports in three forms, and the minimal work that stores them.

The minimal work decodes the bytes with the same libraries, without checks, and stores the same bytes: in a file that is
flushed, or in one committed row sent by COPY.
"""

import base64
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pyarrow as pa

from sfumato.device.bulk import Reports, pack, perturb_records
from sfumato.specs import round_spec_from_wire

FORMS = {
    "JSON columns": "application/json",
    "Arrow IPC": "application/vnd.apache.arrow.stream",
    "packed octets": "application/octet-stream",
}


def make_reports(spec: dict[str, Any], n: int) -> Reports:
    """Return the reports of devices with random records for a round with features in [0, 1]."""
    round_spec = round_spec_from_wire(spec)
    return perturb_records(round_spec, np.random.default_rng(0).random((n, len(round_spec.features))))


def body(form: str, batch: Reports) -> bytes:
    """Return the request body in a form."""
    if form == "packed octets":
        return pack(batch).tobytes()
    if form == "Arrow IPC":
        ids, values = (
            pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(column.shape[1]), len(column), [None, pa.py_buffer(column.tobytes())]
            )
            for column in (batch.report_ids, batch.values)
        )
        columns = {"report_id": ids, "slot": pa.array(batch.slots, pa.uint32()), "value": values}
        records = pa.record_batch(columns)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, records.schema) as writer:
            writer.write_batch(records)
        return bytes(stream.getvalue().to_pybytes())
    texts = {
        "report_ids": [row.tobytes().hex() for row in batch.report_ids],
        "slots": batch.slots.tolist(),
        "values": [base64.b64encode(row.tobytes()).decode() for row in batch.values],
    }
    return msgspec.json.encode(texts)


class _Columns(msgspec.Struct):
    report_ids: list[str]
    slots: list[int]
    values: list[bytes]


def decode(form: str, sent: bytes) -> object:
    """Decode the columns with the library only."""
    if form == "packed octets":
        return np.frombuffer(sent, dtype=np.uint8)
    if form == "Arrow IPC":
        return pa.ipc.open_stream(sent).read_all()
    return msgspec.json.decode(sent, type=_Columns)


@contextmanager
def file_writer() -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends to a file and flushes it."""
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
    """Yield a function that sends one row by COPY and commits it."""
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS copied (packed bytea)")
        connection.execute("ALTER TABLE copied ALTER COLUMN packed SET STORAGE EXTERNAL")  # The report log is the same.
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
    """Return the number of reports decoded and written per second."""
    n, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds or n == 0:
        decode(form, sent)
        write(sent)
        n += 1
    return n * n_reports / took if n else 0.0
