"""Claim jobs for workers, renew leases, and end jobs.

A claim is a lease and a fence, see `models.tables.jobs`. Functions with a `claim` parameter raise StaleFence if another
worker has claimed the job since.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Session, aliased

from models.collection import rounds
from models.errors import StaleFence
from models.identity import tenants
from models.ledger import ledger
from models.tables.identity import TenantQuota
from models.tables.jobs import Job, JobState, QueryAnswer, is_unfinished
from models.tables.rounds import Round, RoundState
from models.tables.webhooks import EventType
from models.webhooks import deliveries

WORKER_LOST = "worker_lost"


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's claim on a job. It is stale once the job has a higher fence."""

    job_id: str
    fence: int


def claim(session: Session, *, now: int, lease_microseconds: int, max_attempts: int) -> Claim | None:
    """Claim the next job like `claim_job`, and return the claim without the job."""
    job = claim_job(session, now=now, lease_microseconds=lease_microseconds, max_attempts=max_attempts)
    return None if job is None else Claim(job.id, job.fence)


def claim_job(session: Session, *, now: int, lease_microseconds: int, max_attempts: int) -> Job | None:
    """Claim the oldest job of the next tenant. Return None if no job needs a worker.

    The next tenant is the one with the fewest running jobs below its quota; among equals, the one with the oldest turn.
    A job needs a worker if it is queued, if all its rounds are closed, or if its worker's lease has expired.

    Before the claim, end one job that lost `max_attempts` workers, or that a lost worker should have canceled. End at
    most one, because ending a job waits for locks of other rows.
    """
    queries, values = _build_queries(), {"now": now, "max_attempts": max_attempts}
    lost = _first(session, queries.lost, values)
    if lost is not None and lost.cancel_requested:
        end_job(session, lost, JobState.CANCELED, now=now)
    elif lost is not None:
        detail = (
            f"{max_attempts} workers died while they ran this job, perhaps for lack of memory: submit it with fewer "
            "features or clusters, or give the workers more memory"
        )
        end_job(session, lost, JobState.FAILED, now=now, code=WORKER_LOST, detail=detail)
    passed = list[str]()
    while (quota := tenants.next_tenant(session, queries.turns, values | {"passed": passed})) is not None:
        has_room = tenants.has_room(session, quota, _has_worker(now))
        job = _first(session, queries.claimable, values | {"tenant_id": quota.tenant_id}) if has_room else None
        # The query may have read the rounds before the job was locked, and its last worker may have opened one since.
        if job is not None and not (job.state == JobState.COLLECTING and rounds.is_any_open(session, job.id)):
            tenants.take_turn(quota)
            return _take(session, job, now=now, lease_microseconds=lease_microseconds)
        passed.append(quota.tenant_id)  # another claim took the job
    return None


class _ClaimQueries(NamedTuple):
    """The queries of a claim."""

    lost: Select[Job]  # the next job to end
    turns: tenants.Turns
    claimable: Select[Job]  # the next job of one tenant


@cache
def _build_queries() -> _ClaimQueries:
    """Return the queries, built once: building them takes longer than running them."""
    now, max_attempts = bindparam("now", type_=BigInteger), bindparam("max_attempts", type_=Integer)
    needs_worker, is_over = _needs_worker(now), or_(Job.cancel_requested, Job.attempts >= max_attempts)
    claimable = and_(needs_worker, ~is_over)
    # Most unfinished jobs are queued, so this condition is selective in the index.
    had_worker = Job.state.in_((JobState.COLLECTING, JobState.RUNNING))
    return _ClaimQueries(
        lost=_first_unlocked(had_worker, needs_worker, is_over),
        turns=tenants.build_turns(claimable, _has_worker(now)),
        claimable=_first_unlocked(claimable, Job.tenant_id == bindparam("tenant_id")),
    )


def _take(session: Session, job: Job, *, now: int, lease_microseconds: int) -> Job:
    job.state = JobState.RUNNING.value
    job.fence += 1
    job.attempts += 1
    job.lease_until = now + lease_microseconds
    job.started_at = job.started_at or job.public_time(now)
    session.flush()
    return job


def is_any_waiting(session: Session, *, now: int) -> bool:
    """Return whether a claim would find a job. This check for idle workers locks no row."""
    return session.scalars(_waiting(), {"now": now}).first() is not None


@cache
def _waiting() -> Select[str]:
    """Return the query for one job that needs a worker, built once."""
    now = bindparam("now", type_=BigInteger)
    quota, other = TenantQuota, aliased(Job)
    n_running = select(func.count()).where(other.tenant_id == Job.tenant_id, _has_worker(now, other)).scalar_subquery()
    return (
        select(Job.id)
        .outerjoin(quota, quota.tenant_id == Job.tenant_id)
        .where(
            _needs_worker(now),
            or_(quota.max_running_jobs.is_(None), n_running < quota.max_running_jobs, Job.cancel_requested),
        )
        .limit(1)
    )


def queue_depth(session: Session, *, now: int) -> tuple[int, int]:
    """Return how many jobs of all tenants need a worker, and how many have one."""
    counts = [
        session.scalar(select(func.count()).select_from(Job).where(which))
        for which in (_needs_worker(now), _has_worker(now))
    ]
    return counts[0] or 0, counts[1] or 0


def _has_worker(now: int | BindParameter[int], job: type[Job] = Job) -> ColumnElement[bool]:
    return and_(is_unfinished(job), job.state == JobState.RUNNING, job.lease_until > now)


def _needs_worker(now: int | BindParameter[int]) -> ColumnElement[bool]:
    waiting = exists().where(Round.job_id == Job.id, Round.state == RoundState.OPEN)
    return and_(
        is_unfinished(),
        or_(
            Job.state == JobState.QUEUED,
            and_(Job.state == JobState.COLLECTING, or_(Job.cancel_requested, ~waiting)),
            and_(Job.state == JobState.RUNNING, Job.lease_until <= now),
        ),
    )


def _first_unlocked(*conditions: ColumnElement[bool]) -> Select[Job]:
    """Return the query for the oldest unlocked job with these conditions. It locks the row."""
    query = select(Job).where(*conditions).order_by(Job.id).limit(1)
    return query.with_for_update(skip_locked=True).execution_options(populate_existing=True)


def _first(session: Session, query: Select[Job], values: dict[str, Any]) -> Job | None:
    return session.scalars(query, values).first()


def renew(session: Session, claim: Claim, *, now: int, lease_microseconds: int) -> Job:
    """Renew a lease. Return the job, which may have a requested cancellation. Raise StaleFence."""
    job = load_claimed(session, claim)
    job.lease_until = now + lease_microseconds
    return job


def load_claimed(session: Session, claim: Claim) -> Job:
    """Lock and return a claimed job. Raise StaleFence if the claim is stale."""
    job = session.get(Job, claim.job_id, with_for_update=True, populate_existing=True)
    if job is None or job.fence != claim.fence or job.state != JobState.RUNNING:
        raise StaleFence("another worker has claimed this job")
    return job


def end_job(
    session: Session, job: Job, state: JobState, *, now: int, code: str | None = None, detail: str = ""
) -> None:
    """Move a locked job to a final state: close its rounds, release its reservation, delete its query answers."""
    if not job.round_ids:  # a job over earlier rounds has no rounds, reservation or queries of its own
        rounds.close_all(session, now=now, job_id=job.id)
        if job.collection_id is None:  # the end of a cycle releases its reservation
            ledger.release(session, job.dataset_id, job_id=job.id, actor=job.created_by, now=job.public_time(now))
        session.execute(delete(QueryAnswer).where(QueryAnswer.job_id == job.id))
    job.state, job.finished_at, job.lease_until = state.value, job.public_time(now), None
    job.error_code, job.error_detail = code, detail or None
    announce_state(session, job, now)


def announce_state(session: Session, job: Job, now: int) -> None:
    """Enqueue webhook deliveries of the job's state."""
    data = {"id": job.id, "state": job.state, "error_code": job.error_code}
    deliveries.enqueue(
        session, job.dataset_id, EventType(f"job.{job.state}"), data, public_time=job.public_time(now), now=now
    )
