"""Read-only queries of the console: newest jobs and rounds, and samples of a ledger.

The queries return only what the caller may see, like `models.jobs.jobs` and `models.collection.rounds`.
"""

from collections.abc import Collection

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from models import datasets
from models.collection import rounds
from models.identity.caller import Caller
from models.ledger.amounts import Amounts
from models.ledger.ledger import head, reserved_for
from models.tables.datasets import Dataset
from models.tables.identity import AuditHead, Key
from models.tables.jobs import Job
from models.tables.ledger import Kind, LedgerEntry
from models.tables.rounds import Round
from service.console.forms import Json
from service.schemas import serializers


def newest_jobs(
    session: Session,
    caller: Caller,
    *,
    limit: int,
    dataset_ids: Collection[str] = (),
    states: Collection[str] = (),
) -> list[Job]:
    """Return the jobs of the caller, newest first. Filter by datasets and by states."""
    query = select(Job).where(Job.tenant_id == caller.tenant_id)
    for only in (dataset_ids, [caller.dataset_id] if caller.dataset_id is not None else []):
        if only:
            query = query.where(Job.dataset_id.in_(only))
    if states:
        query = query.where(Job.state.in_(states))
    return list(session.scalars(query.order_by(Job.id.desc()).limit(limit)))


def describe_jobs(session: Session, rows: list[Job]) -> Json:
    """Return jobs as in the API, and the names of their datasets by id. Deleted datasets have no name."""
    own = rounds.list_used(session, rows)
    names = dataset_names(session, {row.dataset_id for row in rows})
    return {"jobs": [serializers.job(row, own[row.id]) for row in rows], "names": names}


def dataset_names(session: Session, ids: Collection[str]) -> dict[str, str]:
    """Return the names of datasets by id. Deleted datasets have no name."""
    query = select(Dataset.id, Dataset.name).where(Dataset.id.in_(ids), Dataset.deleted_at.is_(None))
    return {row.id: row.name for row in session.execute(query)}


def find_names(session: Session, caller: Caller, ids: Collection[str]) -> dict[str, str]:
    """Return the names of datasets, keys and jobs by id, of those in `ids` that the tenant has.

    The name of a job is that of its algorithm. Only keys with `admin` may see all of them.
    """
    found: dict[str, str] = {}
    for table, name in ((Dataset, Dataset.name), (Key, Key.name), (Job, Job.algorithm_type)):
        rows = session.execute(select(table.id, name).where(table.tenant_id == caller.tenant_id, table.id.in_(ids)))
        found |= {row[0]: str(row[1]) for row in rows}
    return found


def find_causes(session: Session, caller: Caller, entries: Collection[Json], *, with_keys: bool) -> Json:
    """Return what ledger entries of the API refer to: jobs as in the API by id, and names of keys by id.

    Only `with_keys` returns names of keys.
    """
    job_ids = {entry["reservation"] for entry in entries} - {None}
    rows = session.scalars(select(Job).where(Job.tenant_id == caller.tenant_id, Job.id.in_(job_ids)))
    keys = select(Key.id, Key.name).where(Key.tenant_id == caller.tenant_id)
    keys = keys.where(Key.id.in_({entry["actor"] for entry in entries} if with_keys else []))
    return {
        "jobs": {job["id"]: job for job in describe_jobs(session, list(rows))["jobs"]},
        "keys": {row.id: row.name for row in session.execute(keys)},
    }


def keys_of(session: Session, caller: Caller, dataset_id: str, *, limit: int) -> list[Key]:
    """Return the keys that are limited to a dataset, oldest first."""
    query = select(Key).where(Key.tenant_id == caller.tenant_id, Key.dataset_id == dataset_id)
    return list(session.scalars(query.order_by(Key.id).limit(limit)))


def find_datasets(session: Session, caller: Caller, text: str, *, limit: int) -> list[Dataset]:
    """Return the datasets of the caller with a text in their names, newest first."""
    query = select(Dataset).where(Dataset.tenant_id == caller.tenant_id, Dataset.deleted_at.is_(None))
    query = query.where(Dataset.name.icontains(text, autoescape=True))
    if caller.dataset_id is not None:
        query = query.where(Dataset.id == caller.dataset_id)
    return list(session.scalars(query.order_by(Dataset.id.desc()).limit(limit)))


def newest_rounds(
    session: Session,
    caller: Caller,
    dataset_id: str,
    *,
    limit: int,
    state: str | None = None,
    before: str | None = None,
) -> list[Round]:
    """Return the rounds of a dataset, newest first, or those in one state. Raise NotFound."""
    datasets.get(session, caller, dataset_id)
    query = select(Round).where(Round.dataset_id == dataset_id)
    if state is not None:
        query = query.where(Round.state == state)
    if before is not None:
        query = query.where(Round.id < before)
    return list(session.scalars(query.order_by(Round.id.desc()).limit(limit)))


def newest_entries(
    session: Session, caller: Caller, dataset_id: str, *, kind: Kind, limit: int, before: int | None = None
) -> list[LedgerEntry]:
    """Return ledger entries of one kind, newest first.

    The ledger of a deleted dataset remains readable. Raise NotFound.
    """
    datasets.get(session, caller, dataset_id, deleted=True)
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == kind)
    if before is not None:
        query = query.where(LedgerEntry.seq < before)
    return list(session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(limit)))


def ledger_course(session: Session, caller: Caller, dataset_id: str, *, limit: int) -> list[LedgerEntry]:
    """Return about `limit` evenly spaced entries of a ledger, including the first and the last.

    The ledger of a deleted dataset remains readable. Raise NotFound.
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
    """Return the newest ledger entries of a job, newest first, and the rest of its reservation after them.

    The entries of a deleted dataset remain readable. Raise NotFound.
    """
    datasets.get(session, caller, dataset_id, deleted=True)
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.reservation == job_id)
    entries = session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(limit))
    return list(entries), reserved_for(session, dataset_id, job_id)


def audit_end(session: Session, tenant_id: str) -> int:
    """Return the number of the last event in the audit trail of a tenant, or 0."""
    end = session.get(AuditHead, tenant_id)
    return 0 if end is None else end.seq
