"""Storage of the reports that open rounds receive."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

from sqlalchemy import Connection, Table, bindparam, update
from sqlalchemy.orm import Session

from models.collection import report_log
from models.collection.rounds import close_matching
from models.database.driver_statement import DriverStatement
from models.errors import Conflict, RoundClosed
from models.tables.rounds import Octets, Round, RoundState


@dataclass(frozen=True, slots=True)
class Received:
    """Outcome of a group commit for a round."""

    is_full: bool
    job_id: str | None
    dataset_id: str


_rounds = cast(Table, Round.__table__)
_RECEIVE = DriverStatement(
    update(_rounds)
    .where(
        _rounds.c.id == bindparam("only"),
        _rounds.c.state == RoundState.OPEN.value,
        _rounds.c.closes_at > bindparam("now"),
        _rounds.c.min_batch.is_(None),  # a shuffled round accepts one batch only
    )
    .values(n_received=_rounds.c.n_received + bindparam("more"))
    .returning(_rounds.c.n_received, _rounds.c.target_reports, _rounds.c.job_id, _rounds.c.dataset_id)
)


def receive(
    session: Session | Connection,
    round_id: str,
    n_reports: int,
    packed: Octets,
    *,
    apart: Sequence[tuple[int, Octets]] = (),
    now: int,
) -> Received:
    """Store reports of an open round, and close the round if it is full.

    One statement checks that the round is open, counts the reports, and locks the row until the commit. No report is
    therefore stored after the close. Raise RoundClosed.

    Parameters
    ----------
    session : Session or Connection
    round_id : str
    n_reports : int
    packed : bytes or memoryview
        Reports to store in one row of the log.
    apart : sequence of (n_reports, packed)
        Further reports, each in a separate row. Joining large batches costs more than a row.
    now : int
    """
    log_rows = [each for each in ((n_reports, packed), *apart) if each[0]]
    more = sum(n for n, _ in log_rows)
    connection = session.connection() if isinstance(session, Session) else session
    row = _RECEIVE.execute(connection, {"only": round_id, "more": more, "now": now})
    if row is None:
        raise RoundClosed("this round accepts no more reports: fetch the open rounds again")
    for n, octets in log_rows:
        report_log.append(connection, round_id, n, octets)
    n_received, target_reports, job_id, dataset_id = row
    is_full = n_received >= target_reports
    if is_full:
        with nullcontext(session) if isinstance(session, Session) else Session(session) as within:
            close_matching(within, Round.id == round_id, now)
            within.flush()
    return Received(is_full, job_id, dataset_id)


def receive_batch(
    session: Session, round_id: str, n_reports: int, digest: bytes, rows: Iterable[tuple[int, Octets]], *, now: int
) -> Round:
    """Store the batch that a shuffler releases, and close its round. The same batch again changes nothing.

    The caller has verified the signature. Raise Conflict if the round has another batch, or RoundClosed.

    Parameters
    ----------
    session : Session
    round_id : str
    n_reports : int
        Number of sealed reports in the batch.
    digest : bytes
        SHA-256 of the batch.
    rows : iterable of (n_reports, octets)
        The sealed reports in parts; read only if the batch is new.
    now : int
    """
    found = session.get_one(Round, round_id, with_for_update=True, populate_existing=True)
    if found.release_digest == digest:
        return found
    if found.release_digest is not None:
        raise Conflict("this round has another batch already: a shuffler releases a round once")
    if found.state != RoundState.OPEN:
        raise RoundClosed("this round is closed and accepts no batch: delete its sealed reports")
    for n, octets in rows:
        report_log.append(session.connection(), round_id, n, octets)
    found.n_received, found.release_digest = n_reports, digest
    session.flush()
    close_matching(session, Round.id == round_id, now)
    session.refresh(found)
    return found
