"""Jobs: submitted, watched, cancelled."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import dataset as datasets
from models import job as jobs
from models import quota
from models import round as rounds
from models.tenant import Caller, Scope
from service import events, problems, submission, views
from service.algorithm_schemas import algorithm_to_domain
from service.auth import require
from service.dependencies import (
    DatasetIdInQuery,
    JobIdInPath,
    Made,
    PageHere,
    Posting,
    ServicesHere,
    once,
    respond,
)
from service.job_resources import Job, JobPage, NewJob
from service.problems import documented
from sfumato.accounting import parse_epsilon
from sfumato.specs import to_wire

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MAX_WAIT_SECONDS = 300
POLL_AFTER_SECONDS = 1

AnalystHere = Annotated[Caller, Depends(require(Scope.JOBS))]
PostingHere = Annotated[Posting, Depends(once(Scope.JOBS))]

_DENIED = (problems.Unauthenticated, problems.Forbidden)


@router.post(
    "",
    operation_id="createJob",
    summary="Submit a job",
    status_code=202,
    response_model=Job,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.NotFound, problems.BudgetExhausted, problems.Conflict,
        problems.ValidationFailed, problems.InsufficientReports, problems.IdempotencyKeyReused,
        problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def create_job(body: NewJob, posting: PostingHere) -> Response:
    """Asks for clusters. Without `round_ids` the algorithm's epsilon is reserved now and its rounds open as its
    plan wants them; with `round_ids` it works on earlier rounds and costs nothing more. On a central dataset it
    works on the records; its delta, where it has one, is reserved as well. Each of its questions is posted before its
    noise is drawn, and what it did not ask is released at its end. A dataset without records is taken like any other,
    since their number is private.

    Nothing is reserved where `target_reports` is so few that no result could mean anything, less than a tenth of what
    the forecast says it needs: `insufficient_reports`, unless `allow_insufficient` is set.

    Send an `Idempotency-Key`, so that a retry does not make a second job. Needs the scope `jobs`.
    """
    algorithm = algorithm_to_domain(body.algorithm)

    def submit(session: Session, now: int) -> Made:
        dataset = datasets.get(session, posting.caller, body.dataset_id)
        collect = submission.fitting(dataset, algorithm, body)
        submitted = jobs.submit(
            session,
            posting.caller,
            dataset,
            algorithm=to_wire(algorithm),
            epsilon_nano=parse_epsilon(algorithm.epsilon),
            delta_atto=submission.delta_atto(algorithm),
            collect=collect,
            round_ids=body.round_ids,
            max_active_jobs=quota.limits(session, posting.caller.tenant_id, posting.services.settings).max_active_jobs,
            now=now,
        )
        return Made(views.job(submitted, []), location=f"/v1/jobs/{submitted.id}", ring=submitted.id)

    response = posting.answer(202, submit)
    response.headers["retry-after"] = str(POLL_AFTER_SECONDS)
    return response


@router.get(
    "",
    operation_id="listJobs",
    summary="List jobs",
    response_model=JobPage,
    responses=documented(*_DENIED, problems.NotFound, problems.ValidationFailed),
)
def list_jobs(
    caller: AnalystHere, page: PageHere, services: ServicesHere, dataset_id: DatasetIdInQuery = None
) -> Response:
    """Every job the key sees, oldest first. Needs the scope `jobs`."""
    with services.database.reading() as session:
        if dataset_id is not None:
            datasets.get(session, caller, dataset_id, deleted=True)
        rows = jobs.page(session, caller, dataset_id=dataset_id, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.id)
        own_rounds = rounds.of_jobs(session, [row.id for row in rows])
        items = [views.job(row, own_rounds[row.id]) for row in rows]
        return respond({"items": items, "next_cursor": next_cursor})


@router.get(
    "/{job_id}",
    operation_id="getJob",
    summary="Get a job",
    response_model=Job,
    responses=documented(*_DENIED, problems.NotFound, problems.ValidationFailed, problems.RateLimited),
)
async def get_job(
    job_id: JobIdInPath,
    caller: AnalystHere,
    services: ServicesHere,
    request: Request,
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=MAX_WAIT_SECONDS,
            allow_inf_nan=False,
            json_schema_extra={"format": "double"},
            description="Answer when the job is over, or after so many seconds; the operator may allow fewer.",
        ),
    ] = 0,
) -> Response:
    """One job, at once or when it is over. Needs the scope `jobs`."""
    seconds = min(wait, services.settings.max_wait_seconds)
    seen = await events.wait(services, caller, job_id, seconds, request.is_disconnected)
    return Response(seen.document, media_type="application/json")


@router.post(
    "/{job_id}/cancel",
    operation_id="cancelJob",
    summary="Cancel a job",
    response_model=Job,
    responses=documented(*_DENIED, problems.NotFound, problems.ValidationFailed, problems.IdempotencyKeyReused),
)
def cancel_job(job_id: JobIdInPath, posting: PostingHere) -> Response:
    """Cancels it, at once or as soon as its worker lets go. What was posted stays posted, the rest of the
    reservation is released. A job that is over stays as it ended.

    Needs the scope `jobs`.
    """

    def cancel(session: Session, now: int) -> Made:
        canceled = jobs.cancel(session, posting.caller, job_id, now=now)
        return Made(views.job(canceled, rounds.of_job(session, job_id)), tell=[job_id, canceled.dataset_id])

    return posting.answer(200, cancel)


@router.get(
    "/{job_id}/events",
    operation_id="streamJobEvents",
    summary="Watch a job",
    response_class=StreamingResponse,
    responses=documented(*_DENIED, problems.NotFound, problems.RateLimited)
    | {
        200: {
            "description": "Server-sent events: `event: job`, `data:` a Job, at every change until it is over.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The job is over, and the client has seen its end: it is not to ask again."},
    },
)
async def stream_job_events(
    job_id: JobIdInPath,
    caller: AnalystHere,
    services: ServicesHere,
    last_event_id: Annotated[
        str | SkipJsonSchema[None], Header(alias="Last-Event-ID", description="The `id` of the event seen last.")
    ] = None,
) -> Response:
    """The job now and at every change, as server-sent events; ends when the job is over, or with the key. A line that
    begins with a colon only keeps the connection open. Each event tells the whole job, so a client that comes back
    with `Last-Event-ID` has missed nothing but states in between; what it saw last is not sent again.

    Needs the scope `jobs`.
    """
    services.watchers.check()
    # a problem, where there is one, comes before the stream
    first = await services.watches.look(caller, job_id)
    if events.is_over_for(first, last_event_id):
        return Response(status_code=204)
    return StreamingResponse(
        events.stream(services, caller, job_id, first, last_event_id),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )
