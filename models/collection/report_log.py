"""Append to, read and delete the report log. `models.tables.rounds` describes its rows."""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple, cast

from sqlalchemy import ColumnElement, Connection, Integer, Select, Table, bindparam, case, delete, func, insert, select
from sqlalchemy.orm import Session

from models.database.driver_statement import DriverStatement
from models.database.types import SCRUBBED
from models.tables.rounds import Octets, ReportBatch

ID_BYTES = 16
SLOT_BYTES = 4
HEADER_BYTES = ID_BYTES + SLOT_BYTES

_PAGE_BYTES = 4 << 20  # bytes of the log that one statement reads from PostgreSQL, which returns them at once
_STREAM_BYTES = 16 << 20  # bytes of the log that one statement finds in SQLite, row by row
_BLOB_BYTES = 64 << 10  # longer rows of SQLite are read as blobs

_TABLE = cast(Table, ReportBatch.__table__)


def _select_page(packed: ColumnElement[bytes]) -> Select[int, int, bytes]:
    """Return the statement for a page of a log. It is built once, which takes as long as reading half a megabyte.

    It has columns of the table instead of attributes, because a result of attributes reads all rows at once.
    """
    return (
        select(_TABLE.c.id, _TABLE.c.n_reports, packed)
        .where(_TABLE.c.round_id == bindparam("round_id"), _TABLE.c.id > bindparam("after"))
        .order_by(_TABLE.c.id)
        .limit(bindparam("n_rows"))
    )


_PAGE = _select_page(_TABLE.c.packed)
_PAGE_WITHOUT_BLOBS = _select_page(case((func.length(_TABLE.c.packed) <= _BLOB_BYTES, _TABLE.c.packed)))

_APPEND = DriverStatement(
    insert(_TABLE).inline(),  # without RETURNING
    "round_id",
    "n_reports",
    "packed",
)


def append(connection: Connection, round_id: str, n_reports: int, packed: Octets) -> None:
    """Append one row. The caller has validated `packed` against the round's mechanism."""
    _APPEND.execute(connection, {"round_id": round_id, "n_reports": n_reports, "packed": packed})


def batches(session: Session, round_id: str, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield pairs of row number and packed reports, in order of arrival."""
    for number, _, packed in counted_batches(session, round_id, after=after):
        yield number, packed


def counted_batches(session: Session, round_id: str, *, after: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Yield row number, number of reports and packed reports, in order of arrival.

    A statement reads about `_PAGE_BYTES` or `_STREAM_BYTES`; a larger row is read alone. A long value of a result of
    SQLite is copied twice, once under the interpreter's lock. A blob is copied once and without the lock, so another
    thread can count.
    """
    connection = session.connection()
    is_sqlite = connection.dialect.name == "sqlite"
    statement, most = (_PAGE_WITHOUT_BLOBS, _STREAM_BYTES) if is_sqlite else (_PAGE, _PAGE_BYTES)
    n_rows = 1
    while True:
        n_read = n_bytes = 0
        page = connection.execute(statement, {"round_id": round_id, "after": after, "n_rows": n_rows})
        for number, n_reports, found in page:
            packed = _read_blob(connection, number) if found is None else found
            n_read, n_bytes, after = n_read + 1, n_bytes + len(packed), number
            yield number, n_reports, packed
        if n_read == 0:
            return
        n_rows = max(1, min(4 * n_rows, most * n_read // max(1, n_bytes)))


def _read_blob(connection: Connection, number: int) -> bytes:
    """Return the packed reports of a row of SQLite."""
    driver = cast(sqlite3.Connection, connection.connection.driver_connection)
    with driver.blobopen(_TABLE.name, _TABLE.c.packed.name, number, readonly=True) as blob:
        return blob.read()


class Mark(NamedTuple):
    """A position between two rows of a round's log."""

    row: int  # number of the row before the position
    n_before: int  # reports of the round before the position


START = Mark(0, 0)


def marks(session: Session, round_id: str, width: int, *, every: int) -> list[Mark]:
    """Return ascending positions in a round's log: one after each row that reaches a multiple of `every` reports.

    The number of reports in a row follows from its length and `width`, in bytes. A row with another length counts as
    empty. The query reads lengths only.
    """
    n_bytes = func.length(ReportBatch.packed, type_=Integer)
    n_in_row = case((n_bytes % width == 0, n_bytes // width), else_=0)
    rows = (
        select(ReportBatch.id, n_in_row.label("n_in_row"), func.sum(n_in_row).over(order_by=ReportBatch.id).label("n"))
        .where(ReportBatch.round_id == round_id)
        .subquery()
    )
    reached = rows.c.n // every > (rows.c.n - rows.c.n_in_row) // every
    return [Mark(row, n) for row, n in session.execute(select(rows.c.id, rows.c.n).where(reached).order_by(rows.c.id))]


def count(session: Session, round_id: str) -> int:
    """Return the number of stored reports of a round, including duplicates."""
    return session.scalar(select(func.sum(ReportBatch.n_reports)).where(ReportBatch.round_id == round_id)) or 0


def is_any(session: Session, round_id: str) -> bool:
    """Return whether any report of a round is stored."""
    return session.scalars(select(ReportBatch.id).where(ReportBatch.round_id == round_id).limit(1)).first() is not None


def scrub(session: Session, round_id: str) -> None:
    """Delete a round's reports irrecoverably. The caller has locked the round's row."""
    session.execute(delete(ReportBatch).where(ReportBatch.round_id == round_id))
    session.info[SCRUBBED] = True


def scrub_all(session: Session, round_ids: Select[str]) -> None:
    """Delete several rounds' reports irrecoverably. The caller has locked the rounds' rows."""
    session.execute(
        delete(ReportBatch).where(ReportBatch.round_id.in_(round_ids)).execution_options(synchronize_session=False)
    )
    session.info[SCRUBBED] = True
