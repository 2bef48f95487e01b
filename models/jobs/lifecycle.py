"""Submit, suspend, finish and cancel jobs. `models.tables.jobs` shows the states."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import datasets
from models.collection import rounds
from models.database.types import new_id
from models.errors import Conflict, LimitExceeded
from models.identity import audit_trail, tenants
from models.identity.caller import Caller
from models.jobs.claims import Claim, announce_state, end_job, load_claimed
from models.jobs.jobs import add_result, count_active, get
from models.ledger import ledger, sources
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset
from models.tables.identity import Act
from models.tables.jobs import FINAL, Job, JobState
from models.tables.ledger import Ceiling
from models.tables.rounds import CollectionTarget, RoundState
from sfumato.privacy.accounting import format_epsilon
from sfumato.specs import local_algorithm_from_wire


@dataclass(frozen=True, slots=True)
class NewJob:
    """Declaration of a job: what it computes, from what, and the most that it may cost.

    Attributes
    ----------
    algorithm : dict
        Wire form of the algorithm.
    cost : Amounts
        Declared epsilon and delta. `mu2_pico` is what the job counts under Gaussian accounting; with 0, the most that
        its epsilon and delta can.
    collect : CollectionTarget
        Reports to collect; zeros for a job over records.
    round_ids : sequence of str
        Earlier rounds that the job uses, instead of a collection.
    features : sequence of str, optional
        Names of the features that the job uses. By default, it uses all.
    cycle_id : str, optional
        Cycle of a series. The job shares its reservation.
    opens_cycle : bool
        Whether the job makes the reservation of its cycle.
    """

    algorithm: dict[str, Any]
    cost: Amounts
    collect: CollectionTarget
    round_ids: Sequence[str] = ()
    features: Sequence[str] | None = None
    cycle_id: str | None = None
    opens_cycle: bool = False


def submit(
    session: Session,
    caller: Caller,
    dataset: Dataset,
    new: NewJob,
    *,
    max_active_jobs: int,
    now: int,
    ceiling: Ceiling = sources.UNLIMITED,
) -> Job:
    """Queue a job and reserve its declared cost. A job over earlier rounds reserves nothing.

    `ceiling` limits the cost of the dataset's source.

    Raise BudgetExhausted, CeilingExceeded, LimitExceeded, NotFound, or Conflict (if a round is open or repeated, or if
    the rounds cost more than the declared epsilon).
    """
    datasets.lock_live(session, dataset.id)
    tenants.lock(session, caller.tenant_id)
    if count_active(session, caller.tenant_id) >= max_active_jobs:
        raise LimitExceeded(
            f"this tenant may have {max_active_jobs} unfinished jobs (max_active_jobs): wait until one ends, "
            "cancel one, or request a higher quota from the operator"
        )
    job = _queued(caller, dataset, new, now)
    if new.round_ids:
        _check_rounds(session, dataset.id, new)
    elif new.cycle_id is None:
        ledger.reserve(session, dataset.id, new.cost, job_id=job.id, actor=caller.key_id, now=now, ceiling=ceiling)
    elif new.opens_cycle:
        ledger.open_cycle(session, dataset.id, new.cost, cycle_id=new.cycle_id, actor=caller.key_id, now=now)
    session.add(job)
    session.flush()
    tenants.ensure_quotas(session, caller.tenant_id)
    audit_trail.record(session, caller, Act.JOB_SUBMITTED, job.id, dataset_id=dataset.id, now=now)
    return job


def _queued(caller: Caller, dataset: Dataset, new: NewJob, now: int) -> Job:
    """Return the row of a new job."""
    reserved = Amounts() if new.round_ids else new.cost
    job = Job(
        id=new_id("job"),
        tenant_id=caller.tenant_id,
        dataset_id=dataset.id,
        algorithm=new.algorithm,
        round_ids=list(new.round_ids),
        epsilon_nano=reserved.epsilon_nano,
        target_reports=new.collect.target_reports,
        min_reports=new.collect.min_reports,
        collect_seconds=new.collect.seconds,
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
        delta_atto=reserved.delta_atto,
        verdict=None,
        algorithm_type=new.algorithm["type"],
        features=None if new.features is None else list(new.features),
        collection_id=new.cycle_id,
    )
    if new.collect.release is not None:
        terms = new.collect.release
        job.min_batch, job.honest_share_nano = terms.min_batch, terms.honest_share_nano
        job.shuffled_delta_atto = terms.delta_atto
    return job


def _check_rounds(session: Session, dataset_id: str, new: NewJob) -> None:
    """Raise Conflict unless closed rounds cost at most the declared epsilon.

    They do so together, or each alone if their tallies are pooled.
    """
    earlier = rounds.list_by_ids(session, dataset_id, new.round_ids)
    if repeated := [id for id, times in Counter(new.round_ids).items() if times > 1]:
        raise Conflict(f"round_ids must be unique: {repeated[0]} occurs more than once, so name it once")
    open_rounds = [r.id for r in earlier if r.state == RoundState.OPEN]
    if open_rounds:
        raise Conflict(f"round {open_rounds[0]} is still open: close it, or wait until it is full")
    pools = local_algorithm_from_wire(new.algorithm).definition.pools
    spent = max(rounds.cost_nano([each]) for each in earlier) if pools else rounds.cost_nano(earlier)
    declared = new.cost.epsilon_nano
    if spent > declared:
        raise Conflict(
            f"these rounds cost epsilon {format_epsilon(spent)}, more than the {format_epsilon(declared)} of the "
            "algorithm: set its epsilon to their cost, or name fewer rounds"
        )


def wait_for_reports(session: Session, claim: Claim, *, now: int) -> None:
    """Move a claimed job to COLLECTING and reset its attempts, because it made progress. Raise StaleFence."""
    job = load_claimed(session, claim)
    job.state, job.lease_until, job.attempts = JobState.COLLECTING.value, None, 0
    announce_state(session, job, now)


def succeed(session: Session, claim: Claim, document: dict[str, Any], *, software_version: str, now: int) -> None:
    """Store the result, release the unspent reservation and end the job. Raise StaleFence."""
    job = load_claimed(session, claim)
    add_result(session, job.id, document, software_version=software_version, now=job.public_time(now))
    job.verdict = document.get("model", {}).get("verdict")  # written with the state, by one statement
    end_job(session, job, JobState.SUCCEEDED, now=now)


def fail(session: Session, claim: Claim, state: JobState, *, code: str, detail: str, now: int) -> None:
    """End a claimed job as failed or expired. Its charges remain. Raise StaleFence."""
    end_job(session, load_claimed(session, claim), state, now=now, code=code, detail=detail[:500])


def requeue(session: Session, claim: Claim, *, is_attempt: bool, now: int) -> None:
    """Invalidate a claim, so that the next worker may claim the job at once. Raise StaleFence.

    A lost worker counts as an attempt. A worker that stopped on request does not (`is_attempt` is false).
    """
    job = load_claimed(session, claim)
    job.fence += 1
    job.lease_until = now
    if not is_attempt:
        job.attempts -= 1
    session.flush()


def cancel_claimed(session: Session, claim: Claim, *, now: int) -> None:
    """Cancel a claimed job after a cancellation was requested. Raise StaleFence."""
    end_job(session, load_claimed(session, claim), JobState.CANCELED, now=now)


def cancel(session: Session, caller: Caller, job_id: str, *, now: int) -> Job:
    """Cancel a job at once, or if a worker has claimed it, when the worker next checks.

    Charges remain, and the rest of the reservation is released. A job that has ended does not change. Raise NotFound.
    """
    get(session, caller, job_id)
    job = session.get_one(Job, job_id, with_for_update=True, populate_existing=True)
    if job.is_final:
        return job
    is_first, job.cancel_requested = not job.cancel_requested, True
    if job.state != JobState.RUNNING:
        end_job(session, job, JobState.CANCELED, now=now)
    if is_first:
        audit_trail.record(session, caller, Act.JOB_CANCELED, job_id, dataset_id=job.dataset_id, now=now)
    return job


def cancel_all(session: Session, dataset_id: str, *, now: int) -> list[str]:
    """Cancel all unfinished jobs of a dataset and close its rounds. Return the ids of these jobs."""
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
            end_job(session, job, JobState.CANCELED, now=now)
    return [job.id for job in unfinished]
