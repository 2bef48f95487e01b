"""Leases that end later than any that somebody holds: what a clock that was set back since has left.

A worker that lives lengthens its lease every quarter of it, and so writes a better one. Where it has
died nobody does, and what it held would wait for as long as the clock went back.
"""

from sqlalchemy import update
from sqlalchemy.orm import Session

from models.job import Job, JobState
from models.round import Round, RoundState

MOST_LEASES = 2  # from now, that a lease may have left; workers' own may differ a little


def shorten(session: Session, *, now: int, lease_microseconds: int) -> None:
    """Have no job and no fold be held for longer than two leases from now."""
    latest = now + MOST_LEASES * lease_microseconds
    for statement in (
        update(Job).where(Job.state == JobState.RUNNING, Job.lease_until > latest).values(lease_until=latest),
        update(Round)
        .where(Round.state == RoundState.CLOSED, Round.fold_lease_until > latest)
        .values(fold_lease_until=latest),
    ):
        session.execute(statement.execution_options(synchronize_session=False))
