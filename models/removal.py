"""Deleting a dataset: all that is under way ends, its reports and records go, its ledger and results stay."""

from sqlalchemy.orm import Session

from models import dataset as datasets
from models import job as jobs
from models import record as records
from models import round as rounds
from models.dataset import Trust
from models.tenant import Caller


def remove(session: Session, caller: Caller, dataset_id: str, *, now: int) -> None:
    """Cancel its jobs, close its rounds, scrub its reports and records, hide it: one transaction. Raises NotFound.

    A job that a worker holds ends as soon as the worker lets go; it opens no round before that.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    jobs.cancel_all(session, dataset_id, now=now)
    rounds.scrub_all(session, dataset_id)
    records.remove_all(session, dataset_id)
    found.deleted_at = now


def remove_records(session: Session, caller: Caller, dataset_id: str) -> None:
    """Drop a central dataset's records and the key that opens them; dataset, ledger and results stay.

    A job that has read them already goes on with what it read. Raises NotFound, Conflict.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    datasets.require_trust(found, Trust.CENTRAL)
    records.remove_all(session, dataset_id)
