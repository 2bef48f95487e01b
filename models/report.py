"""The report log: append-only rows of packed reports, one row a group and round.

A packed report is report_id (16 bytes), slot (4 bytes, little-endian), value (the
mechanism's fixed width). No time and no device: a row's number tells the order of groups
and nothing else. Rows are never changed; the retention rule removes a tallied round's.
"""

from collections.abc import Iterator

from sqlalchemy import BigInteger, ForeignKey, Integer, LargeBinary, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import Base

ID_BYTES = 16
SLOT_BYTES = 4
HEADER_BYTES = ID_BYTES + SLOT_BYTES


class ReportBatch(Base):
    """The reports of one round that one group commit stored."""

    __tablename__ = "report_batches"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True, comment="order of arrival"
    )
    round_id: Mapped[str] = mapped_column(ForeignKey("rounds.id"), index=True)
    n_reports: Mapped[int] = mapped_column(Integer)
    packed: Mapped[bytes] = mapped_column(LargeBinary, comment="n_reports records of equal width")


def append(session: Session, round_id: str, n_reports: int, packed: bytes) -> None:
    """Add one row; `packed` was checked against the round's mechanism already."""
    session.add(ReportBatch(round_id=round_id, n_reports=n_reports, packed=packed))


def batches(session: Session, round_id: str, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """(row number, packed reports) in order of arrival, one row in memory at a time."""
    query = (
        select(ReportBatch.id, ReportBatch.packed)
        .where(ReportBatch.round_id == round_id, ReportBatch.id > after)
        .order_by(ReportBatch.id)
        .execution_options(yield_per=16, stream_results=True)
    )
    for row in session.execute(query):
        yield row.id, row.packed


def scrub(session: Session, round_id: str) -> None:
    """Remove a round's reports for good."""
    session.execute(delete(ReportBatch).where(ReportBatch.round_id == round_id))
