"""Storage of the reports that open rounds receive, and the end of a round that is full."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

from sqlalchemy import Connection, Table, bindparam, func, update
from sqlalchemy.orm import Session

from models.collection import report_log
from models.collection.distinct_reports import DistinctReports
from models.collection.rounds import close_matching
from models.database.driver_statement import DriverStatement
from models.database.engine import Database
from models.errors import Conflict, RoundClosed
from models.tables.rounds import Octets, Round, RoundState


@dataclass(frozen=True, slots=True)
class Received:
    """Outcome of a group commit for a round."""

    is_full: bool
    job_id: str | None
    dataset_id: str
    distinct: DistinctReports | None = field(default=None, compare=False)  # the last count, for the next one
    must_count: bool = False  # whether `close_if_full` must count a large log


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
    .returning(
        _rounds.c.n_received,
        func.coalesce(_rounds.c.count_at, _rounds.c.target_reports).label("count_at"),
        _rounds.c.job_id,
        _rounds.c.dataset_id,
    )
)
INLINE_REPORTS = 50_000  # maximum number of reports that are read in the transaction that stores the last of them


def receive(
    session: Session | Connection,
    round_id: str,
    n_reports: int,
    packed: Octets,
    *,
    apart: Sequence[tuple[int, Octets]] = (),
    distinct: DistinctReports | None = None,
    now: int,
) -> Received:
    """Store reports of an open round, and close the round if it has enough distinct reports.

    If many ids must be read for that, `must_count` is set, and the caller calls `close_if_full`.

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
    distinct : DistinctReports, optional
        The earlier outcome for this round, which saves reading the log again.
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
    n_received, count_at, job_id, dataset_id = row
    if n_received < count_at:
        return Received(False, job_id, dataset_id, distinct)
    if n_received - (0 if distinct is None else distinct.n_read) > INLINE_REPORTS:
        return Received(False, job_id, dataset_id, distinct, must_count=True)
    with nullcontext(session) if isinstance(session, Session) else Session(session) as within:
        return _close_if_full(within, within.get_one(Round, round_id, populate_existing=True), distinct, now)


def close_if_full(database: Database, round_id: str, distinct: DistinctReports | None = None) -> Received | None:
    """Count the distinct reports of an open round with a large log, and close the round if it has enough.

    Most of the log is read before the transaction that locks the round. Return None if the round is not open.
    """
    with database.reading() as session:
        counted = (distinct or DistinctReports()).advance(session, round_id, _width(session.get_one(Round, round_id)))

    def close(session: Session) -> Received | None:
        found = session.get_one(Round, round_id, with_for_update=True, populate_existing=True)
        is_open = found.state == RoundState.OPEN
        return _close_if_full(session, found, counted, database.clock()) if is_open else None

    return database.run("close_full_round", close)


def _close_if_full(session: Session, found: Round, earlier: DistinctReports | None, now: int) -> Received:
    """Close a locked round with enough distinct reports, or set the number of received reports at the next count."""
    distinct = (earlier or DistinctReports()).advance(session, found.id, _width(found))
    n_missing = found.target_reports - distinct.count
    if n_missing > 0:
        found.count_at = found.n_received + n_missing
    else:
        close_matching(session, Round.id == found.id, now)
    session.flush()
    return Received(n_missing <= 0, found.job_id, found.dataset_id, distinct)


def _width(found: Round) -> int:
    return report_log.HEADER_BYTES + found.spec.mechanism.value_bytes


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
