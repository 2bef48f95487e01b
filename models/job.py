"""Jobs: what an analyst asked to be computed, who works on it, how it ended.

    queued ──claim──► running ──(a round opens)──► collecting ──(round closed; claim)──► running
       │                 │  ▲                          │
       │                 │  └──(lease lapsed; claim)───┘
       └─────────────────┴──► succeeded | failed | canceled | expired

A worker holds a running job by a lease and a fence: whoever claims next raises the fence,
and every write of a worker names the fence it holds, so a stale one writes nothing. A
result, the ledger's release and the job's state are one transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Mapped, Session, aliased, mapped_column

from models import answer, audit, ledger, quota, result, tenant
from models import dataset as datasets
from models import delivery as deliveries
from models import round as rounds
from models.audit import Act
from models.dataset import Dataset
from models.db import SECOND, Base, CanonicalJson, Id, new_id
from models.errors import Conflict, LimitExceeded, NotFound, StaleFence
from models.round import Collect, Round, RoundState
from models.tenant import Caller
from models.webhook import EventType
from sfumato.accounting import cost

WORKER_LOST = "worker_lost"
COARSE = 60 * SECOND  # what a job over records tells of its times


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # a worker holds it
    COLLECTING = "collecting"  # waits for devices
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"  # a round's time ran out with too few reports


FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})
UNFINISHED = sorted(set(JobState) - FINAL)


class Job(Base):
    """One request for clusters."""

    __tablename__ = "jobs"
    __table_args__ = (  # a page is read where it begins
        Index("ix_jobs_of_tenant", "tenant_id", "id"),
        Index("ix_jobs_of_tenant_and_dataset", "tenant_id", "dataset_id", "id"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    algorithm: Mapped[dict[str, Any]] = mapped_column(CanonicalJson, comment="type and parameters")
    round_ids: Mapped[list[str]] = mapped_column(CanonicalJson, comment="earlier collections it works on; may be none")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="reserved at submission")
    target_reports: Mapped[int] = mapped_column(BigInteger, comment="devices expected to take part in the collection")
    min_reports: Mapped[int] = mapped_column(BigInteger, comment="devices the collection needs")
    collect_seconds: Mapped[int] = mapped_column(BigInteger, comment="how long each round stays open")
    state: Mapped[str] = mapped_column(String(10), index=True)
    attempts: Mapped[int] = mapped_column(Integer, comment="claims since it last got on")
    fence: Mapped[int] = mapped_column(BigInteger, comment="raised by every claim")
    lease_until: Mapped[int | None] = mapped_column(BigInteger, comment="the claim lapses then")
    cancel_requested: Mapped[bool] = mapped_column(Boolean, comment="its worker is to let go")
    created_by: Mapped[str] = mapped_column(Id, comment="key that submitted it; the ledger's actor")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    started_at: Mapped[int | None] = mapped_column(BigInteger, comment="first claim")
    finished_at: Mapped[int | None] = mapped_column(BigInteger)
    error_code: Mapped[str | None] = mapped_column(String(40))
    error_detail: Mapped[str | None] = mapped_column(String(500), comment="for people; nothing private")
    delta_atto: Mapped[int] = mapped_column(BigInteger, server_default="0", comment="reserved at submission")

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    def told(self, now: int) -> int:
        """The time to write down for `now`.

        How long a job over records takes tells how many there are, so its times are told as
        minutes after its submission, a power of two of them, rounded down: 0, 1, 2, 4, 8, ...
        """
        if self.round_ids or self.target_reports:
            return now
        minutes = max(0, now - self.created_at) // COARSE
        return self.created_at + (1 << minutes.bit_length() >> 1) * COARSE

    @property
    def collect(self) -> Collect:
        """What its collection waits for; each round for its share."""
        return Collect(self.target_reports, self.min_reports, self.collect_seconds)


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's hold on a job; void once the job's fence is higher."""

    job_id: str
    fence: int


def submit(
    session: Session,
    caller: Caller,
    dataset: Dataset,
    *,
    algorithm: dict[str, Any],
    epsilon_nano: int,
    collect: Collect,
    round_ids: Sequence[str] = (),
    max_active_jobs: int,
    now: int,
    delta_atto: int = 0,
) -> Job:
    """Queue a job. Reserves its declared epsilon and delta; a job over earlier rounds reserves nothing.

    Raises BudgetExhausted, LimitExceeded, NotFound or Conflict (a round that is still
    open or named twice, or rounds that cost more than the declared epsilon).
    """
    datasets.lock_live(session, dataset.id)
    tenant.lock(session, caller.tenant_id)
    if n_active(session, caller.tenant_id) >= max_active_jobs:
        raise LimitExceeded(
            f"this tenant may have {max_active_jobs} unfinished jobs (max_active_jobs): wait for one to end, "
            "cancel one, or ask the operator for more"
        )
    job = Job(
        id=new_id("job"),
        tenant_id=caller.tenant_id,
        dataset_id=dataset.id,
        algorithm=algorithm,
        round_ids=list(round_ids),
        epsilon_nano=0 if round_ids else epsilon_nano,
        target_reports=collect.target_reports,
        min_reports=collect.min_reports,
        collect_seconds=collect.seconds,
        state=JobState.QUEUED.value,
        attempts=0,
        fence=0,
        lease_until=None,
        cancel_requested=False,
        created_by=caller.key_id,
        created_at=now,
        started_at=None,
        finished_at=None,
        error_code=None,
        error_detail=None,
        delta_atto=0 if round_ids else delta_atto,
    )
    if round_ids:
        _check_rounds(session, dataset.id, round_ids, epsilon_nano)
    else:
        ledger.reserve(
            session, dataset.id, epsilon_nano, delta_atto=delta_atto, job_id=job.id, actor=caller.key_id, now=now
        )
    session.add(job)
    session.flush()
    quota.ensure(session, caller.tenant_id)
    audit.record(session, caller, Act.JOB_SUBMITTED, job.id, dataset_id=dataset.id, now=now)
    return job


def _check_rounds(session: Session, dataset_id: str, round_ids: Sequence[str], epsilon_nano: int) -> None:
    earlier = rounds.by_ids(session, dataset_id, round_ids)
    if len(set(round_ids)) < len(round_ids):
        raise Conflict("a round is named twice")
    if any(r.state == RoundState.OPEN for r in earlier):
        raise Conflict("a round is still open: close it first, or wait until it is full")
    costs: dict[str, list[tuple[tuple[int, int], int]]] = {}
    for each in earlier:
        draw = each.spec.draw
        costs.setdefault(each.collection_id, []).append(((draw.lo, draw.hi), each.epsilon_nano))
    spent = sum(map(cost, costs.values()))
    if spent > epsilon_nano:
        raise Conflict("these rounds cost more than the algorithm's epsilon declares")


def get(session: Session, caller: Caller, job_id: str) -> Job:
    """A job the caller may see; raises NotFound for every other. Results outlive their dataset."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound("job")
    check_seen(job, caller)
    return job


def check_seen(job: Job, caller: Caller) -> None:
    """Raise NotFound unless the caller may see the job."""
    if job.tenant_id != caller.tenant_id or not caller.sees(job.dataset_id):
        raise NotFound("job")


def page(session: Session, caller: Caller, *, dataset_id: str | None, after: str, limit: int) -> list[Job]:
    """The caller's jobs, oldest first, from after an id."""
    query = select(Job).where(Job.tenant_id == caller.tenant_id, Job.id > after)
    for only in (dataset_id, caller.dataset_id):
        if only is not None:
            query = query.where(Job.dataset_id == only)
    return list(session.scalars(query.order_by(Job.id).limit(limit)))


def _is_unfinished(job: type[Job] = Job) -> ColumnElement[bool]:
    """As the index of unfinished jobs has it: a database takes that only where it reads the states themselves."""
    return job.state.in_(bindparam("unfinished", UNFINISHED, expanding=True, literal_execute=True, unique=True))


# Claims look at unfinished jobs alone, however many there were.
Index("ix_jobs_unfinished", Job.tenant_id, Job.id, postgresql_where=_is_unfinished(), sqlite_where=_is_unfinished())


def n_active(session: Session, tenant_id: str) -> int:
    """How many unfinished jobs a tenant has."""
    return session.scalar(select(func.count()).where(Job.tenant_id == tenant_id, _is_unfinished())) or 0


def claim(session: Session, *, now: int, lease_microseconds: int, max_attempts: int) -> Claim | None:
    """`claim_job`, of which only the hold is wanted."""
    job = claim_job(session, now=now, lease_microseconds=lease_microseconds, max_attempts=max_attempts)
    return None if job is None else Claim(job.id, job.fence)


def claim_job(session: Session, *, now: int, lease_microseconds: int, max_attempts: int) -> Job | None:
    """Take the oldest job of the tenant whose turn it is; None where nobody needs a worker.

    It is the turn of the tenant with the fewest running jobs and room for one more; of
    several, of the one that was served longest ago. Needs a worker: a queued job, one whose
    rounds are all closed, one whose worker let its lease lapse. Before it takes one, it ends
    one that lost `max_attempts` workers or whose cancelling nobody carried out; one only,
    since ending waits for other rows.
    """
    asked, values = _claiming(), {"now": now, "max_attempts": max_attempts}
    lost = _oldest(session, asked.lost, values)
    if lost is not None and lost.cancel_requested:
        _end(session, lost, JobState.CANCELED, now=now)
    elif lost is not None:
        detail = f"{max_attempts} workers died on this job"
        _end(session, lost, JobState.FAILED, now=now, code=WORKER_LOST, detail=detail)
    passed = list[str]()
    while (own := quota.next_tenant(session, asked.turns, values | {"passed": passed})) is not None:
        has_room = quota.has_room(session, own, _has_worker(now))
        job = _oldest(session, asked.takes, values | {"tenant_id": own.tenant_id}) if has_room else None
        # The look at its rounds may be older than the lock on the job: its lapsed holder may have opened one more.
        if job is not None and not (job.state == JobState.COLLECTING and rounds.is_any_open(session, job.id)):
            quota.serve(own)
            return _take(session, job, now=now, lease_microseconds=lease_microseconds)
        passed.append(own.tenant_id)  # another claim came first
    quota.ensure_all(session, _needs_worker(now))
    return None


class _Claiming(NamedTuple):
    """What a claim asks."""

    lost: Select[Job]  # that is to be ended
    turns: quota.Turns
    takes: Select[Job]  # of the tenant whose turn it is


@cache
def _claiming() -> _Claiming:
    """Made once, as `_waiting`."""
    now, max_attempts = bindparam("now", type_=BigInteger), bindparam("max_attempts", type_=Integer)
    needs_worker, is_over = _needs_worker(now), or_(Job.cancel_requested, Job.attempts >= max_attempts)
    takes = and_(needs_worker, ~is_over)
    had_worker = Job.state.in_((JobState.COLLECTING, JobState.RUNNING))  # of many jobs most are queued: an index tells
    return _Claiming(
        lost=_first_free(had_worker, needs_worker, is_over),
        turns=quota.turns(takes, _has_worker(now)),
        takes=_first_free(takes, Job.tenant_id == bindparam("tenant_id")),
    )


def _take(session: Session, job: Job, *, now: int, lease_microseconds: int) -> Job:
    job.state = JobState.RUNNING.value
    job.fence += 1
    job.attempts += 1
    job.lease_until = now + lease_microseconds
    job.started_at = job.started_at or job.told(now)
    session.flush()
    return job


def is_any_waiting(session: Session, *, now: int) -> bool:
    """Whether `claim` would find something to do: a look that locks nothing, for idle workers."""
    return session.scalars(_waiting(), {"now": now}).first() is not None


@cache
def _waiting() -> Select[str]:
    """A job that waits at `now`. Made once: to put it together takes longer than to ask."""
    now = bindparam("now", type_=BigInteger)
    own, other = quota.TenantQuota, aliased(Job)
    n_running = select(func.count()).where(other.tenant_id == Job.tenant_id, _has_worker(now, other)).scalar_subquery()
    return (
        select(Job.id)
        .outerjoin(own, own.tenant_id == Job.tenant_id)
        .where(
            _needs_worker(now),
            or_(own.max_running_jobs.is_(None), n_running < own.max_running_jobs, Job.cancel_requested),
        )
        .limit(1)
    )


def queue_depth(session: Session, *, now: int) -> tuple[int, int]:
    """How many jobs need a worker, and how many have one, over all tenants."""
    counts = [
        session.scalar(select(func.count()).select_from(Job).where(which))
        for which in (_needs_worker(now), _has_worker(now))
    ]
    return counts[0] or 0, counts[1] or 0


def _has_worker(now: int | BindParameter[int], job: type[Job] = Job) -> ColumnElement[bool]:
    return and_(_is_unfinished(job), job.state == JobState.RUNNING, job.lease_until > now)


def _needs_worker(now: int | BindParameter[int]) -> ColumnElement[bool]:
    waiting = exists().where(Round.job_id == Job.id, Round.state == RoundState.OPEN)
    return and_(
        _is_unfinished(),
        or_(
            Job.state == JobState.QUEUED,
            and_(Job.state == JobState.COLLECTING, or_(Job.cancel_requested, ~waiting)),
            and_(Job.state == JobState.RUNNING, Job.lease_until <= now),
        ),
    )


def _first_free(*conditions: ColumnElement[bool]) -> Select[Job]:
    """The oldest such job that nobody else holds this moment, under its row lock."""
    query = select(Job).where(*conditions).order_by(Job.id).limit(1)
    return query.with_for_update(skip_locked=True).execution_options(populate_existing=True)


def _oldest(session: Session, query: Select[Job], values: dict[str, Any]) -> Job | None:
    return session.scalars(query, values).first()


def renew(session: Session, held: Claim, *, now: int, lease_microseconds: int) -> Job:
    """Lengthen a lease; the job says whether it is to be let go. Raises StaleFence."""
    job = held_job(session, held)
    job.lease_until = now + lease_microseconds
    return job


def held_job(session: Session, held: Claim) -> Job:
    """The job under its row lock, if this claim still holds it; else raises StaleFence."""
    job = session.get(Job, held.job_id, with_for_update=True, populate_existing=True)
    if job is None or job.fence != held.fence or job.state != JobState.RUNNING:
        raise StaleFence("another worker holds this job")
    return job


def suspend(session: Session, held: Claim, *, now: int) -> None:
    """Let a held job wait for its devices; it got on, so its attempts start anew. Raises StaleFence."""
    job = held_job(session, held)
    job.state, job.lease_until, job.attempts = JobState.COLLECTING.value, None, 0
    _announce(session, job, now)


def succeed(session: Session, held: Claim, document: dict[str, Any], *, software_version: str, now: int) -> None:
    """Publish the result, give back what was not spent, end the job: one transaction. Raises StaleFence."""
    job = held_job(session, held)
    result.add(session, job.id, document, software_version=software_version, now=job.told(now))
    _end(session, job, JobState.SUCCEEDED, now=now)


def fail(session: Session, held: Claim, state: JobState, *, code: str, detail: str, now: int) -> None:
    """End a held job without a result (failed or expired); what was posted stays. Raises StaleFence."""
    _end(session, held_job(session, held), state, now=now, code=code, detail=detail[:500])


def hand_back(session: Session, held: Claim, *, is_attempt: bool, now: int) -> None:
    """Give a held job up: this claim is void, the next worker may claim at once. Raises StaleFence.

    A worker that died counts as an attempt; one that was told to stop (`is_attempt` false) does not.
    """
    job = held_job(session, held)
    job.fence += 1
    job.lease_until = now
    if not is_attempt:
        job.attempts -= 1
    session.flush()


def let_go(session: Session, held: Claim, *, now: int) -> None:
    """Cancel a held job whose cancelling was requested. Raises StaleFence."""
    _end(session, held_job(session, held), JobState.CANCELED, now=now)


def cancel(session: Session, caller: Caller, job_id: str, *, now: int) -> Job:
    """Cancel: at once where no worker holds the job, else as soon as its worker lets go.

    What was posted stays posted, the rest is released. A job that is over stays as it
    ended. Raises NotFound.
    """
    get(session, caller, job_id)
    job = session.get_one(Job, job_id, with_for_update=True, populate_existing=True)
    if job.is_final:
        return job
    is_first, job.cancel_requested = not job.cancel_requested, True
    if job.state != JobState.RUNNING:
        _end(session, job, JobState.CANCELED, now=now)
    if is_first:
        audit.record(session, caller, Act.JOB_CANCELED, job_id, dataset_id=job.dataset_id, now=now)
    return job


def cancel_all(session: Session, dataset_id: str, *, now: int) -> list[str]:
    """Cancel every unfinished job of a dataset, and close all its rounds; which jobs these were."""
    unfinished = session.scalars(
        select(Job)
        .where(Job.dataset_id == dataset_id, Job.state.not_in(sorted(FINAL)))
        .order_by(Job.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()
    rounds.close_all(session, now=now, dataset_id=dataset_id)
    for job in unfinished:
        job.cancel_requested = True
        if job.state != JobState.RUNNING:
            _end(session, job, JobState.CANCELED, now=now)
    return [job.id for job in unfinished]


def _end(session: Session, job: Job, state: JobState, *, now: int, code: str | None = None, detail: str = "") -> None:
    if not job.round_ids:  # else it opened no round, reserved nothing, and asked no curator
        rounds.close_all(session, now=now, job_id=job.id)
        ledger.release(session, job.dataset_id, job_id=job.id, actor=job.created_by, now=job.told(now))
        answer.drop(session, job.id)
    job.state, job.finished_at, job.lease_until = state.value, job.told(now), None
    job.error_code, job.error_detail = code, detail or None
    _announce(session, job, now)


def _announce(session: Session, job: Job, now: int) -> None:
    """Tell the webhooks that want to know where it stands."""
    data = {"id": job.id, "state": job.state, "error_code": job.error_code}
    deliveries.announce(session, job.dataset_id, EventType(f"job.{job.state}"), data, told=job.told(now), now=now)
