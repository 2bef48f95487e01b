"""What somebody who looks wants to see first: the newest jobs and rounds, and the course of a ledger. Reads only.

What a caller may not see is left out here as it is in `models.job` and `models.round`.
"""

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from models import dataset as datasets
from models.audit import AuditHead
from models.job import UNFINISHED, Job
from models.ledger import Amounts, LedgerEntry, head, reserved_for
from models.round import Round
from models.tenant import Caller


def newest_jobs(
    session: Session,
    caller: Caller,
    *,
    limit: int,
    dataset_id: str | None = None,
    before: str | None = None,
    unfinished: bool = False,
) -> list[Job]:
    """The caller's jobs, newest first; those before an id, of a dataset, or not over yet, where that is asked for."""
    query = select(Job).where(Job.tenant_id == caller.tenant_id)
    for only in (dataset_id, caller.dataset_id):
        if only is not None:
            query = query.where(Job.dataset_id == only)
    if before is not None:
        query = query.where(Job.id < before)
    if unfinished:
        query = query.where(Job.state.in_(UNFINISHED))
    return list(session.scalars(query.order_by(Job.id.desc()).limit(limit)))


def newest_rounds(
    session: Session, caller: Caller, dataset_id: str, *, limit: int, before: str | None = None
) -> list[Round]:
    """A dataset's rounds, newest first; raises NotFound."""
    datasets.get(session, caller, dataset_id)
    query = select(Round).where(Round.dataset_id == dataset_id)
    if before is not None:
        query = query.where(Round.id < before)
    return list(session.scalars(query.order_by(Round.id.desc()).limit(limit)))


def ledger_course(session: Session, caller: Caller, dataset_id: str, *, limit: int) -> list[LedgerEntry]:
    """At most about `limit` entries of a ledger, evenly spread over it, the first and the last among them.

    Raises NotFound. A deleted dataset's ledger can still be read.
    """
    datasets.get(session, caller, dataset_id, deleted=True)
    last_seq = head(session, dataset_id).seq
    step = max(1, -(-last_seq // limit))
    picked = or_(LedgerEntry.seq % step == 0, LedgerEntry.seq.in_((1, last_seq)))
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id, picked)
    return list(session.scalars(query.order_by(LedgerEntry.seq)))


def newest_charges(
    session: Session, caller: Caller, dataset_id: str, job_id: str, *, limit: int
) -> tuple[list[LedgerEntry], Amounts]:
    """The newest entries under a job's reservation, newest first, and what it holds after them.

    Raises NotFound. Those of a deleted dataset can still be read.
    """
    datasets.get(session, caller, dataset_id, deleted=True)
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.reservation == job_id)
    entries = session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(limit))
    return list(entries), reserved_for(session, dataset_id, job_id)


def audit_end(session: Session, tenant_id: str) -> int:
    """Number of the last event of a tenant's audit trail; 0 for none."""
    end = session.get(AuditHead, tenant_id)
    return 0 if end is None else end.seq
