"""Deleting a dataset: all that is under way ends, its reports and records go, its ledger and results stay."""

from sqlalchemy.orm import Session

from models import audit
from models import dataset as datasets
from models import delivery as deliveries
from models import job as jobs
from models import record as records
from models import round as rounds
from models.audit import Act
from models.dataset import Trust
from models.tenant import Caller


def remove(session: Session, caller: Caller, dataset_id: str, *, now: int) -> list[str]:
    """Cancel its jobs, close its rounds, scrub its reports and records, hide it: one transaction. Raises NotFound.

    A job that a worker holds ends as soon as the worker lets go; it opens no round before that. Returns the ids of
    all jobs that this ended, or will.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    canceled = jobs.cancel_all(session, dataset_id, now=now)
    rounds.scrub_all(session, dataset_id)
    records.remove_all(session, dataset_id)
    deliveries.forget_rounds(session, dataset_id)
    found.deleted_at = now
    audit.record(session, caller, Act.DATASET_DELETED, dataset_id, dataset_id=dataset_id, now=now)
    return canceled


def remove_records(session: Session, caller: Caller, dataset_id: str, *, now: int) -> None:
    """Drop a central dataset's records and the key that opens them; dataset, ledger and results stay.

    A job that has read them already goes on with what it read. The audit trail has it, whether there were any or
    not: that is private. Raises NotFound, Conflict.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    datasets.require_trust(found, Trust.CENTRAL)
    records.remove_all(session, dataset_id)
    audit.record(session, caller, Act.RECORDS_DELETED, dataset_id, dataset_id=dataset_id, now=now)
