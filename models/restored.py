"""Budgets closed after an older backup was restored: what may have been spent since cannot be spent again.

A ledger of before forgets what was posted after it. So each budget is closed: jobs end, and
whatever is not posted is. Granting anew what is known not to have been spent is a decision
of the privacy officer, and an entry of its own.

    python -m models.restored ds_...        # or --all; before any gateway or worker begins
"""

import argparse
import sys
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import (
    answer,  # noqa: F401 - jobs drop their answers as they end
    audit,
    ledger,
    tenant,
)
from models import job as jobs
from models.audit import OPERATOR, Act
from models.dataset import Dataset
from models.db import Database, is_migrated, new_id
from models.errors import NotFound
from models.job import Job, JobState
from models.ledger import Amounts
from models.settings import Settings
from sfumato.accounting import format_delta, format_epsilon


def close_budget(session: Session, dataset_id: str, *, now: int) -> Amounts:
    """Cancel a dataset's jobs, close its rounds, and post all that is not posted; once more, it posts nothing.

    A job that a worker held when the backup was made ends as soon as a worker has it; what it
    had reserved is posted here, so it asks nothing and opens no round. Tallies, results and
    records stay.

    Returns
    -------
    Amounts
        What was posted.

    Raises
    ------
    NotFound
        No such ledger.
    """
    ledger.head(session, dataset_id)
    dataset = session.get(Dataset, dataset_id, with_for_update=True)
    jobs.cancel_all(session, dataset_id, now=now)
    posted = []
    held = session.scalars(select(Job.id).where(Job.dataset_id == dataset_id, Job.state == JobState.RUNNING.value))
    for job_id in sorted(held):
        amounts = ledger.reserved_for(session, dataset_id, job_id)
        posted.append(_post(session, dataset_id, amounts, f"{job_id}#restored", reservation=job_id, now=now))
    left = ledger.balance(session, dataset_id)
    amounts = Amounts(left.free_nano, left.free_delta_atto)
    posted.append(_post(session, dataset_id, amounts, new_id("restore", at=now), reservation=None, now=now))
    total = Amounts(*map(sum, zip(*posted, strict=True)))
    if any(total) and dataset is not None:
        operator = tenant.operator(dataset.tenant_id)
        audit.record(session, operator, Act.BUDGET_CLOSED, dataset_id, dataset_id=dataset_id, now=now)
    return total


def _post(
    session: Session, dataset_id: str, amounts: Amounts, reference: str, *, reservation: str | None, now: int
) -> Amounts:
    if any(amounts):
        ledger.post(
            session,
            dataset_id,
            amounts.epsilon_nano,
            delta_atto=amounts.delta_atto,
            reference=reference,
            reservation=reservation,
            actor=OPERATOR,
            now=now,
        )
    return amounts


def main(arguments: Sequence[str] | None = None) -> None:
    """What `python -m models.restored` does: each dataset in one transaction, and a line about it."""
    parser = argparse.ArgumentParser(prog="python -m models.restored", description="Close budgets after a restore.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("dataset_ids", nargs="*", default=[], metavar="ds_...", help="whose budget to close")
    which.add_argument("--all", action="store_true", help="every dataset that has a ledger")
    given = parser.parse_args(arguments)
    database = Database(Settings().resolved_database_url, pool_size=2)
    try:
        if not is_migrated(database):
            sys.exit("the database has another schema; run `sfumato migrate`")
        with database.reading() as session:
            ids = ledger.dataset_ids(session) if given.all else given.dataset_ids
        for each in ids:
            with database.transaction() as session:
                epsilon_nano, delta_atto = close_budget(session, each, now=database.clock())
            amounts = f"epsilon {format_epsilon(epsilon_nano)}, delta {format_delta(delta_atto)}"
            sys.stdout.write(f"{each}: posted {amounts}\n")
    except NotFound as error:
        sys.exit(f"{each}: {error}")
    finally:
        database.close()


if __name__ == "__main__":
    main()
