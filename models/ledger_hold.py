"""What reservations still hold, one row each, so that a charge need not add up all charges before it.

Made of the ledger's entries and never the only place that says it: `seq` tells how far it has counted,
and whatever a process of before this table wrote behind that is added by whoever reads it.
"""

from typing import NamedTuple

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import Base, Id


class LedgerHold(Base):
    """What is left of one job's reservation; there while anything is."""

    __tablename__ = "ledger_holds"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("ledger_heads.dataset_id"), primary_key=True)
    reservation: Mapped[str] = mapped_column(Id, primary_key=True, comment="the job that holds it")
    seq: Mapped[int] = mapped_column(BigInteger, comment="of the last ledger entry that is counted in")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="left of the reservation")
    delta_atto: Mapped[int] = mapped_column(BigInteger, comment="left of its delta")


class Held(NamedTuple):
    """What was left after an entry."""

    seq: int = 0
    epsilon_nano: int = 0
    delta_atto: int = 0


def find(session: Session, dataset_id: str, reservation: str) -> Held:
    """What was counted last; nothing, after no entry, where none was."""
    row = session.get(LedgerHold, (dataset_id, reservation), populate_existing=True)
    return Held() if row is None else Held(row.seq, row.epsilon_nano, row.delta_atto)


def keep(session: Session, dataset_id: str, reservation: str, held: Held) -> None:
    """Write down what is left; where nothing is, the row goes. The caller holds the ledger's head."""
    row = session.get(LedgerHold, (dataset_id, reservation))
    is_left = held.epsilon_nano > 0 or held.delta_atto > 0
    if row is None:
        if is_left:
            session.add(LedgerHold(dataset_id=dataset_id, reservation=reservation, **held._asdict()))
    elif is_left:
        row.seq, row.epsilon_nano, row.delta_atto = held
    else:
        session.delete(row)
