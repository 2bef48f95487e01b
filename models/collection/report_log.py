"""Append to, read and delete the report log. `models.tables.rounds` describes its rows."""

from collections.abc import Iterator
from typing import NamedTuple, cast

from sqlalchemy import Connection, Integer, Select, Table, case, delete, func, insert, select
from sqlalchemy.orm import Session

from models.database.driver_statement import DriverStatement
from models.database.types import SCRUBBED
from models.tables.rounds import Octets, ReportBatch

ID_BYTES = 16
SLOT_BYTES = 4
HEADER_BYTES = ID_BYTES + SLOT_BYTES

_PAGE_BYTES = 4 << 20  # bytes of the log in memory at once

_APPEND = DriverStatement(
    insert(cast(Table, ReportBatch.__table__)).inline(),  # without RETURNING
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

    Pages have about `_PAGE_BYTES`; a larger row is a page of its own.
    """
    n_rows = 1
    while True:
        page = session.execute(
            select(ReportBatch.id, ReportBatch.n_reports, ReportBatch.packed)
            .where(ReportBatch.round_id == round_id, ReportBatch.id > after)
            .order_by(ReportBatch.id)
            .limit(n_rows)
        ).all()
        if not page:
            return
        n_bytes = 0
        for number, n_reports, packed in page:
            n_bytes += len(packed)
            yield number, n_reports, packed
        after = number
        mean_bytes = n_bytes / len(page)
        n_rows = max(1, min(4 * n_rows, int(_PAGE_BYTES / max(1.0, mean_bytes))))


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
