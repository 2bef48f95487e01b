"""The report log: append-only rows of packed reports, one a group and round, and one a large request.

A packed report is report_id (16 bytes), slot (4 bytes, little-endian), value (the
mechanism's fixed width). No time and no device: a row's number tells the order of groups
and nothing else. Rows are never changed; the retention rule removes a tallied round's.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

from sqlalchemy import (
    BigInteger,
    Connection,
    ForeignKey,
    Integer,
    LargeBinary,
    Select,
    Table,
    case,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import SCRUBBED, Base

ID_BYTES = 16
SLOT_BYTES = 4
HEADER_BYTES = ID_BYTES + SLOT_BYTES

_PAGE_BYTES = 4 << 20  # of the log, in memory at once

Octets = bytes | memoryview


class ReportBatch(Base):
    """The reports of one round that one group commit stored."""

    __tablename__ = "report_batches"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True, comment="order of arrival"
    )
    round_id: Mapped[str] = mapped_column(ForeignKey("rounds.id"), index=True)
    n_reports: Mapped[int] = mapped_column(Integer)
    packed: Mapped[bytes] = mapped_column(LargeBinary, comment="n_reports records of equal width")


_APPEND = insert(cast(Table, ReportBatch.__table__))  # on the table itself: every group commit runs it


def append(session: Session | Connection, round_id: str, n_reports: int, packed: Octets) -> None:
    """Add one row; `packed` was checked against the round's mechanism already."""
    session.execute(_APPEND, {"round_id": round_id, "n_reports": n_reports, "packed": packed})


def batches(session: Session, round_id: str, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """(row number, packed reports) in order of arrival.

    Rows come in pages of about `_PAGE_BYTES`, however small or large they are; one row
    that is larger comes alone.
    """
    n_rows = 1
    while True:
        page = session.execute(
            select(ReportBatch.id, ReportBatch.packed)
            .where(ReportBatch.round_id == round_id, ReportBatch.id > after)
            .order_by(ReportBatch.id)
            .limit(n_rows)
        ).all()
        if not page:
            return
        n_bytes = 0
        for number, packed in page:
            n_bytes += len(packed)
            yield number, packed
        after = number
        mean_bytes = n_bytes / len(page)
        n_rows = max(1, min(4 * n_rows, int(_PAGE_BYTES / max(1.0, mean_bytes))))


class Mark(NamedTuple):
    """A place between two rows of a round's log."""

    row: int  # number of the row before it
    n_before: int  # reports of the round up to there


START = Mark(0, 0)


def marks(session: Session, round_id: str, width: int, *, every: int) -> list[Mark]:
    """Places of a round's log, ascending: one behind each row that reaches another `every` reports.

    Reports are told by their `width` in bytes; a row of another length holds none. No row is read
    for it, its length alone.
    """
    n_bytes = func.length(ReportBatch.packed, type_=Integer)
    held = case((n_bytes % width == 0, n_bytes // width), else_=0)
    rows = (
        select(ReportBatch.id, held.label("held"), func.sum(held).over(order_by=ReportBatch.id).label("n"))
        .where(ReportBatch.round_id == round_id)
        .subquery()
    )
    reached = rows.c.n // every > (rows.c.n - rows.c.held) // every
    return [Mark(row, n) for row, n in session.execute(select(rows.c.id, rows.c.n).where(reached).order_by(rows.c.id))]


def count(session: Session, round_id: str) -> int:
    """How many reports the log holds of a round, repeats included."""
    return session.scalar(select(func.sum(ReportBatch.n_reports)).where(ReportBatch.round_id == round_id)) or 0


def is_any(session: Session, round_id: str) -> bool:
    """Whether the log holds any report of a round."""
    return session.scalars(select(ReportBatch.id).where(ReportBatch.round_id == round_id).limit(1)).first() is not None


def scrub(session: Session, round_id: str) -> None:
    """Remove a round's reports for good. The caller holds the round's row."""
    session.execute(delete(ReportBatch).where(ReportBatch.round_id == round_id))
    session.info[SCRUBBED] = True


def scrub_all(session: Session, round_ids: Select[str]) -> None:
    """Remove several rounds' reports for good. The caller holds the rounds' rows."""
    session.execute(
        delete(ReportBatch).where(ReportBatch.round_id.in_(round_ids)).execution_options(synchronize_session=False)
    )
    session.info[SCRUBBED] = True
