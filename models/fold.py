"""Folds that no job does: who holds one, how often it was tried, and when it is given up.

A closed round of its own, or one that a job left when it ended, is folded by whichever
worker claims it. Like a job it is given up when too many workers were lost on it, so that
no round keeps killing them: it is `failed` then, and keeps its reports.
"""

from sqlalchemy import ColumnElement, and_, exists, or_, select, update
from sqlalchemy.orm import Session

from models.dataset import Dataset
from models.round import Round, RoundState


def claim_fold(session: Session, *, now: int, lease_microseconds: int, max_attempts: int) -> str | None:
    """Take a closed round that no job will fold; None where there is none.

    A lapsed claim may be taken again, up to `max_attempts` in all: folding twice stores one
    tally.
    """
    row = _oldest(session, _is_due(now), Round.fold_attempts < max_attempts)
    if row is None:
        return None
    row.fold_lease_until = now + lease_microseconds
    row.fold_attempts += 1
    return row.id


def give_up_fold(session: Session, *, now: int, max_attempts: int) -> str | None:
    """End a round that lost `max_attempts` folds; None where there is none.

    It is `failed`, without a tally. Its reports stay, for nobody has counted them: a job that
    names the round folds it once more, within the attempts of that job.
    """
    row = _oldest(session, _is_due(now), Round.fold_attempts >= max_attempts)
    if row is None:
        return None
    row.state, row.fold_lease_until = RoundState.FAILED.value, None
    return row.id


def _is_due(now: int) -> ColumnElement[bool]:
    is_deleted = exists().where(Dataset.id == Round.dataset_id, Dataset.deleted_at.is_not(None))
    return and_(
        Round.state == RoundState.CLOSED,
        or_(and_(Round.job_id.is_(None), Round.fold_lease_until.is_(None)), Round.fold_lease_until <= now),
        ~is_deleted,
    )


def _oldest(session: Session, *conditions: ColumnElement[bool]) -> Round | None:
    """The oldest such round that nobody else holds this moment, under its row lock."""
    query = select(Round).where(*conditions).order_by(Round.id).limit(1)
    return session.scalars(query.with_for_update(skip_locked=True).execution_options(populate_existing=True)).first()


def keep_fold(session: Session, round_id: str, *, until: int) -> None:
    """Lengthen the claim on a fold."""
    _change(session, round_id, fold_lease_until=until)


def let_go_fold(session: Session, round_id: str, *, now: int) -> None:
    """End the claim of a worker that was told to stop: another may fold at once, and this was no attempt."""
    _change(session, round_id, fold_lease_until=now, fold_attempts=Round.fold_attempts - 1)


def _change(session: Session, round_id: str, **values: object) -> None:
    session.execute(
        update(Round)
        .where(Round.id == round_id, Round.state == RoundState.CLOSED)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
