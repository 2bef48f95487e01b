"""Routes of jobs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import datasets
from models.collection import rounds
from models.identity.caller import Caller
from models.jobs import jobs, lifecycle
from models.ledger.amounts import Amounts
from models.tables.identity import Scope
from models.tables.rounds import Round
from service.api import job_submission
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    NOT_FOUND,
    POST_BODY,
    Created,
    DatasetIdInQuery,
    IdempotentRequest,
    JobIdInPath,
    RequestedPage,
    Services,
    TimeInQuery,
    idempotent_post,
    rejections,
)
from service.api.earlier_rounds import check_earlier_rounds
from service.http import problems
from service.http.auth import require
from service.live import event_stream
from service.schemas import serializers
from service.schemas.algorithms import AlgorithmType, algorithm_to_domain
from service.schemas.base import from_timestamp
from service.schemas.jobs import Job, JobPage, JobState, NewJob
from sfumato.specs import Profile, to_wire

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=DocumentRoute)

MAX_WAIT_SECONDS = 300
POLL_AFTER_SECONDS = 1

AnalystCaller = Annotated[Caller, Depends(require(Scope.JOBS))]
IdempotentPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.JOBS))]


@router.post(
    "",
    summary="Submit a job",
    status_code=202,
    response_model=Job,
    responses=rejections(
        problems.NotFound,
        problems.NoRecords,
        problems.BudgetExhausted,
        problems.Conflict,
        problems.InsufficientReports,
        *POST_BODY,
    ),
)
def create_job(body: NewJob, request: IdempotentPost) -> Response:
    """Submit a job.

    Without `round_ids`, the epsilon of the algorithm is reserved now, and the plan of the algorithm opens the rounds.
    With `round_ids`, the job uses earlier rounds and costs nothing more. On a central dataset, the job uses the
    records, and its delta is reserved as well. Each query is charged before its noise is drawn, and the unused part of
    the reservation is released at the end. If the dataset has no records, a key that may upload records gets
    `no_records`, and nothing is reserved. The number of records is private, so the job of another key is accepted.
    Below `least_records` of the forecast, its result is noise.

    Over records, `features` names the features and clustering attributes that decide; the order does not matter. The
    others are not read. Jobs over different features add up in the budget. Over reports, a job names all features, and
    those clustering attributes that it uses.

    A job of the type `profile` describes the clusters of a job that has succeeded, by the attributes of the dataset. It
    costs a budget of its own, and its result has the clusters and their `profile`.

    The job is rejected with `insufficient_reports` if `target_reports`, or the number of reports in `round_ids`, is
    less than a tenth of the number that the forecast requires, unless `allow_insufficient` is set. It is rejected with
    `validation_failed` if a round of `round_ids` has no reports or an encoding that the algorithm does not read.

    Send an `Idempotency-Key`, so that a retry does not create a second job. Needs the scope `jobs`.
    """
    algorithm = algorithm_to_domain(body.algorithm)

    def submit(session: Session, now: int) -> Created:
        dataset = datasets.get(session, request.caller, body.dataset_id)
        earlier = list[Round]()
        if isinstance(algorithm, Profile):
            features, n_features = None, len(algorithm.attributes)
            collect = job_submission.profiled(session, request.caller, dataset, algorithm, body)
        else:
            columns = job_submission.chosen_columns(dataset, body.features)
            features, n_features = columns.names, columns.n_planned
            with problems.pointing_at("/algorithm"):
                collect = job_submission.fitting(dataset, algorithm, body, columns)
                if body.round_ids:
                    earlier = rounds.list_by_ids(session, dataset.id, body.round_ids)
                    check_earlier_rounds(
                        dataset, algorithm, earlier, columns.attributes, allow_insufficient=body.allow_insufficient
                    )
        with problems.pointing_at("/algorithm"):
            job_submission.require_records(session, request.caller, dataset, algorithm)
        limits = request.limits(session)
        mu2_pico = job_submission.mu2_pico(dataset, algorithm, n_features)
        cost = Amounts(algorithm.epsilon_nano, algorithm.delta_atto, mu2_pico=mu2_pico)
        submitted = lifecycle.submit(
            session,
            request.caller,
            dataset,
            lifecycle.NewJob(to_wire(algorithm), cost, collect, round_ids=body.round_ids, features=features),
            max_active_jobs=limits.max_active_jobs,
            ceiling=limits.source_ceiling,
            now=now,
        )
        return Created(serializers.job(submitted, earlier), location=f"/v1/jobs/{submitted.id}", wake=submitted.id)

    response = request.respond(202, submit)
    response.headers["retry-after"] = str(POLL_AFTER_SECONDS)
    return response


@router.get("", summary="List jobs", response_model=JobPage, responses=NOT_FOUND)
def list_jobs(
    caller: AnalystCaller,
    page: RequestedPage,
    services: Services,
    dataset_id: DatasetIdInQuery = None,
    state: Annotated[JobState | SkipJsonSchema[None], Query(description="Only jobs in this state.")] = None,
    algorithm: Annotated[
        AlgorithmType | SkipJsonSchema[None], Query(description="Only jobs with this type of algorithm.")
    ] = None,
    created_after: Annotated[
        TimeInQuery | SkipJsonSchema[None], Query(description="Only jobs that were submitted after this time.")
    ] = None,
    created_before: Annotated[
        TimeInQuery | SkipJsonSchema[None], Query(description="Only jobs that were submitted before this time.")
    ] = None,
) -> Response:
    """List the jobs that the key can access, newest first. Needs the scope `jobs`."""
    with services.database.reading() as session:
        if dataset_id is not None:
            datasets.get(session, caller, dataset_id, deleted=True)
        rows = jobs.page(
            session,
            caller,
            dataset_id=dataset_id,
            state=state,
            algorithm=algorithm,
            created_after=None if created_after is None else from_timestamp(created_after),
            created_before=None if created_before is None else from_timestamp(created_before),
            **page.bounds,
        )
        used = rounds.list_used(session, rows)
        return page.respond(rows, lambda row: serializers.job(row, used[row.id]))


@router.get(
    "/{job_id}",
    summary="Get a job",
    response_model=Job,
    responses=rejections(problems.NotFound, problems.RateLimited),
)
async def get_job(
    job_id: JobIdInPath,
    caller: AnalystCaller,
    services: Services,
    request: Request,
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=MAX_WAIT_SECONDS,
            allow_inf_nan=False,
            json_schema_extra={"format": "double"},
            description="Wait up to this number of seconds for the end of the job. The operator may set a lower limit.",
        ),
    ] = 0,
) -> Response:
    """Return one job, immediately or after its end. Needs the scope `jobs`."""
    seconds = min(wait, services.settings.max_wait_seconds)
    snapshot = await event_stream.wait(services.job_watchers, caller, job_id, seconds, request.is_disconnected)
    return Response(snapshot.document, media_type="application/json")


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    response_model=Job,
    responses=rejections(problems.NotFound, problems.IdempotencyKeyReused),
)
def cancel_job(job_id: JobIdInPath, request: IdempotentPost) -> Response:
    """Cancel a job, immediately or as soon as its worker stops.

    Charges stay in the ledger, and the rest of the reservation is released. A finished job stays unchanged.

    Needs the scope `jobs`.
    """

    def cancel(session: Session, now: int) -> Created:
        canceled = lifecycle.cancel(session, request.caller, job_id, now=now)
        used = rounds.list_used(session, [canceled])[job_id]
        return Created(serializers.job(canceled, used), changed=[job_id, canceled.dataset_id])

    return request.respond(200, cancel)


@router.get(
    "/{job_id}/events",
    summary="Watch a job",
    response_class=StreamingResponse,
    responses=rejections(problems.NotFound, problems.RateLimited)
    | {
        200: {
            "description": "Server-sent events: `event: job`, `data:` a Job, after every change until the job ends.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The job has ended, and the client has received its last event. Do not reconnect."},
    },
)
async def stream_job_events(
    request: Request,
    job_id: JobIdInPath,
    caller: AnalystCaller,
    services: Services,
    last_event_id: Annotated[
        str | SkipJsonSchema[None],
        Header(alias="Last-Event-ID", description="The `id` of the last event that the client received."),
    ] = None,
) -> Response:
    """Stream the job now and after every change, as server-sent events.

    The stream ends with the job or with the key. A line that starts with a colon keeps the connection open. Each event
    contains the whole job, so a client that reconnects with `Last-Event-ID` misses intermediate states only. The event
    with that id is not sent again. A client of HTTP/1.0 gets one event and reconnects.

    Needs the scope `jobs`.
    """
    watchers = services.job_watchers
    watchers.limit.check()
    first = await watchers.fetch(caller, job_id)  # raises problems before the stream starts
    if event_stream.has_seen_end(first, last_event_id):
        return Response(status_code=204)
    if request.scope["http_version"] == "1.0":  # it has no chunks, in which a stream would be sent
        return Response(event_stream.one_event(first, last_event_id), media_type="text/event-stream")
    return StreamingResponse(
        event_stream.stream(watchers, caller, job_id, first, last_event_id),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )
