"""Leases for the aggregation of rounds that no job aggregates, and the clamping of leases after a clock change.

A worker claims a closed standalone round, or one of an ended job, and aggregates it. After too many lost workers, the
round becomes `failed` and keeps its reports, so that it cannot stop all workers.
"""

from sqlalchemy import ColumnElement, and_, exists, or_, select, update
from sqlalchemy.orm import Session

from models.tables.datasets import Dataset
from models.tables.jobs import Job, JobState
from models.tables.rounds import Round, RoundState

MAX_LEASES = 2  # longest remaining lease, in leases; workers' settings may differ a little


def claim_aggregation(session: Session, *, now: int, lease_microseconds: int, max_attempts: int) -> str | None:
    """Claim a closed round that no job aggregates, and return its id. Return None if there is none.

    A round with an expired lease can be claimed again, up to `max_attempts` times in total. Aggregating a round twice
    stores one tally.
    """
    row = _oldest(session, _is_due(now), Round.aggregation_attempts < max_attempts)
    if row is None:
        return None
    row.aggregation_lease_until = now + lease_microseconds
    row.aggregation_attempts += 1
    return row.id


def fail_aggregation(session: Session, *, now: int, max_attempts: int) -> str | None:
    """Fail a round if its aggregation lost `max_attempts` workers, and return its id. Return None if there is none.

    The round has no tally and keeps its reports. A job that names the round aggregates it again, within the job's own
    attempts.
    """
    row = _oldest(session, _is_due(now), Round.aggregation_attempts >= max_attempts)
    if row is None:
        return None
    row.state, row.aggregation_lease_until = RoundState.FAILED.value, None
    return row.id


def _is_due(now: int) -> ColumnElement[bool]:
    is_deleted = exists().where(Dataset.id == Round.dataset_id, Dataset.deleted_at.is_not(None))
    lease = Round.aggregation_lease_until
    return and_(
        Round.state == RoundState.CLOSED,
        or_(and_(Round.job_id.is_(None), lease.is_(None)), lease <= now),
        ~is_deleted,
    )


def _oldest(session: Session, *conditions: ColumnElement[bool]) -> Round | None:
    """Return the oldest unlocked round with these conditions, and lock it."""
    query = select(Round).where(*conditions).order_by(Round.id).limit(1)
    return session.scalars(query.with_for_update(skip_locked=True).execution_options(populate_existing=True)).first()


def renew_aggregation_lease(session: Session, round_id: str, *, until: int) -> None:
    """Extend the lease of a worker that aggregates a round."""
    _change(session, round_id, aggregation_lease_until=until)


def release_aggregation(session: Session, round_id: str, *, now: int) -> None:
    """End the lease of a worker that stops on request. This is no attempt, and another worker may claim at once."""
    attempts = Round.aggregation_attempts - 1
    _change(session, round_id, aggregation_lease_until=now, aggregation_attempts=attempts)


def _change(session: Session, round_id: str, **values: object) -> None:
    session.execute(
        update(Round)
        .where(Round.id == round_id, Round.state == RoundState.CLOSED)
        .values(**values)
        .execution_options(synchronize_session=False)
    )


def clamp_leases(session: Session, *, now: int, lease_microseconds: int) -> None:
    """Clamp leases of jobs and rounds to `MAX_LEASES` from now, after the clock was set back.

    Live workers renew their leases anyway. Without the clamp, a lost worker's lease would last as long as the clock was
    set back.
    """
    latest = now + MAX_LEASES * lease_microseconds
    for statement in (
        update(Job).where(Job.state == JobState.RUNNING, Job.lease_until > latest).values(lease_until=latest),
        update(Round)
        .where(Round.state == RoundState.CLOSED, Round.aggregation_lease_until > latest)
        .values(aggregation_lease_until=latest),
    ):
        session.execute(statement.execution_options(synchronize_session=False))
