"""Deleting a dataset: all that is under way ends, its reports go, its ledger and results stay."""

from sqlalchemy.orm import Session

from models import dataset as datasets
from models import job as jobs
from models import round as rounds
from models.tenant import Caller


def remove(session: Session, caller: Caller, dataset_id: str, *, now: int) -> None:
    """Cancel its jobs, close its rounds, scrub its reports, hide it: one transaction. Raises NotFound.

    A job that a worker holds ends as soon as the worker lets go; it opens no round before that.
    """
    found = datasets.get(session, caller, dataset_id, lock=True)
    jobs.cancel_all(session, dataset_id, now=now)
    rounds.scrub_all(session, dataset_id)
    found.deleted_at = now
