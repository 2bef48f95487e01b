"""Read jobs and results, and store a result."""

import zlib
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from models.database.types import canonical_json
from models.errors import JobNotFinished, NotFound
from models.identity.caller import Caller
from models.tables.jobs import Job, Result, is_unfinished


def get(session: Session, caller: Caller, job_id: str) -> Job:
    """Return a job that the caller may access, even after its dataset was deleted. Raise NotFound."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound("job")
    check_access(job, caller)
    return job


def check_access(job: Job, caller: Caller) -> None:
    """Raise NotFound unless the caller may access the job."""
    if job.tenant_id != caller.tenant_id or not caller.sees(job.dataset_id):
        raise NotFound("job")


def page(session: Session, caller: Caller, *, dataset_id: str | None, after: str, limit: int) -> list[Job]:
    """Return the jobs that the caller may access, after id `after`, oldest first."""
    query = select(Job).where(Job.tenant_id == caller.tenant_id, Job.id > after)
    for only in (dataset_id, caller.dataset_id):
        if only is not None:
            query = query.where(Job.dataset_id == only)
    return list(session.scalars(query.order_by(Job.id).limit(limit)))


def count_active(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's unfinished jobs."""
    return session.scalar(select(func.count()).where(Job.tenant_id == tenant_id, is_unfinished())) or 0


def add_result(session: Session, job_id: str, document: dict[str, Any], *, software_version: str, now: int) -> Result:
    """Store the result of a job. The primary key rejects a second result."""
    result = Result(
        job_id=job_id,
        created_at=now,
        software_version=software_version,
        packed=zlib.compress(canonical_json(document).encode()),
    )
    session.add(result)
    session.flush()
    return result


def get_result(session: Session, job_id: str) -> Result:
    """Return the result of a job. Raise JobNotFinished if it has none. The caller checks access to the job."""
    result = session.get(Result, job_id, options=[undefer(Result.packed)])
    if result is None:
        raise JobNotFinished("this job has no result yet: wait until it succeeds")
    return result
