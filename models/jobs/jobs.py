"""Read jobs and results, store a result, and name its clusters."""

import zlib
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from models.database.types import SECOND, canonical_json, first_id, select_page
from models.errors import JobNotFinished, NotFound
from models.identity import audit_trail
from models.identity.caller import Caller
from models.tables.identity import Act
from models.tables.jobs import Job, Result, is_unfinished
from models.tables.series import Window
from sfumato.model.cluster_names import check_names
from sfumato.specs import Profile

_ID_SLACK = 600 * SECOND  # largest difference between the time in an id and the time of the submission


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


def page(
    session: Session,
    caller: Caller,
    *,
    dataset_id: str | None,
    after: str,
    limit: int,
    state: str | None = None,
    algorithm: str | None = None,
    created_after: int | None = None,
    created_before: int | None = None,
    newest_first: bool = False,
) -> list[Job]:
    """Return the jobs that the caller may access, after id `after`, in order.

    Filter by dataset, state, type of the algorithm, and time of the submission (microseconds since the epoch,
    exclusive).
    """
    query = select(Job).where(Job.tenant_id == caller.tenant_id)
    filters = (
        (Job.dataset_id, dataset_id),
        (Job.dataset_id, caller.dataset_id),
        (Job.state, state),
        (Job.algorithm_type, algorithm),
    )
    for column, value in filters:
        if value is not None:
            query = query.where(column == value)
    # An id contains the time of its job, so the index on ids limits the rows that are read.
    if created_after is not None:
        query = query.where(Job.created_at > created_after, Job.id > first_id("job", created_after - _ID_SLACK))
    if created_before is not None:
        query = query.where(Job.created_at < created_before, Job.id < first_id("job", created_before + _ID_SLACK))
    return list(session.scalars(select_page(query, Job.id, after=after, limit=limit, newest_first=newest_first)))


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


def get_result(session: Session, job_id: str, *, lock: bool = False) -> Result:
    """Return the result of a job. Raise JobNotFinished if it has none. The caller checks access to the job."""
    result = session.get(Result, job_id, options=[undefer(Result.packed)], with_for_update=lock or None)
    if result is None:
        raise JobNotFinished("this job has no result yet: wait until it succeeds")
    return result


def get_released(session: Session, job: Job) -> tuple[Result, dict[str, Any]]:
    """Return the result of a job, and its document with the names of its clusters. Raise JobNotFinished if it has none.

    The clusters of a profile are those of the job that it describes, so that they have the same names. Clusters of a
    window have their ids in the series.
    """
    result, of = get_result(session, job.id), _clusters_of(job)
    document, names = result.document, result.cluster_names
    if of != job.id:
        names = session.scalar(select(Result.cluster_names).where(Result.job_id == of))
    for part in ("model", "profile"):
        if document.get(part) is not None:
            document[part]["names"] = names or []
    if document.get("model") is not None:
        document["model"]["ids"] = session.scalar(select(Window.own_ids).where(Window.job_id == of)) or []
    return result, document


def name_clusters(session: Session, caller: Caller, job: Job, names: list[str], *, now: int) -> None:
    """Set the names of the clusters of a job, or of the job that a profile describes. An empty list removes them.

    Names cost nothing and change nothing that was released.

    Raises
    ------
    JobNotFinished
        The job has no result.
    InvalidSpec
        There is not one name per cluster, or a name is invalid or occurs twice.
    """
    result = get_result(session, _clusters_of(job), lock=True)
    checked = list(check_names(names, result.document["model"]["n_clusters"]))
    if checked != (result.cluster_names or []):
        result.cluster_names = checked or None
        session.flush()
        audit_trail.record(session, caller, Act.CLUSTERS_NAMED, job.id, dataset_id=job.dataset_id, now=now)


def _clusters_of(job: Job) -> str:
    """Return the id of the job that released the clusters."""
    return str(job.algorithm["of"]) if job.algorithm_type == Profile.type else job.id
