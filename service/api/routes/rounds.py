"""Routes of rounds. `service.ingestion.report_endpoint` receives reports."""

from contextlib import closing
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from models import datasets
from models.collection import report_intake, rounds
from models.encryption import load_keyring
from models.identity.caller import Caller
from models.tables.datasets import Dataset, OutOfBounds, Trust
from models.tables.identity import Scope
from models.tables.rounds import CollectionTarget
from models.tables.rounds import Round as RoundRow
from service.api import job_submission
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    NOT_FOUND,
    POST_BODY,
    Created,
    DatasetIdInPath,
    IdempotentRequest,
    RequestedPage,
    RoundIdInPath,
    Services,
    idempotent_post,
    rejections,
    respond,
)
from service.context import GatewayContext
from service.http import problems
from service.http.auth import require
from service.http.headers import media_type
from service.http.problems import UnsupportedMediaType, ValidationFailed, pointing_at
from service.ingestion.batch_reader import BatchReader
from service.ingestion.open_rounds import SCOPES
from service.ingestion.upload_memory import read_upload
from service.schemas import serializers
from service.schemas.rounds import DeviceRounds, NewRound, Receipt, Round, RoundPage, RoundState
from service.schemas.specs import encoding_to_domain
from sfumato.privacy.accounting import parse_epsilon
from sfumato.records.outside import count_outside
from sfumato.specs import (
    LatticeEncoding,
    Participation,
    ProfileEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    attributes_of,
    circles_of,
    design_for,
    most_vectors,
)
from sfumato.specs.attributes import clustering_attributes
from sfumato.transport.batches import MEDIA_TYPE

router = APIRouter(prefix="/v1", tags=["rounds"], route_class=DocumentRoute)

MAX_COUNTERS = 1 << 24  # maximal number of slots times symbols in a tally

DeviceCaller = Annotated[Caller, Depends(require(*SCOPES))]
SenderCaller = Annotated[Caller, Depends(require(Scope.DEVICE, Scope.DATASETS))]
AnalystCaller = Annotated[Caller, Depends(require(Scope.DATASETS, Scope.JOBS))]
KeeperPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.DATASETS))]
AnalystPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.DATASETS, Scope.JOBS))]


@router.post(
    "/datasets/{dataset_id}/rounds",
    summary="Open a standalone round",
    status_code=201,
    response_model=Round,
    responses=rejections(problems.NotFound, problems.BudgetExhausted, problems.Conflict, *POST_BODY),
)
def create_round(dataset_id: DatasetIdInPath, body: NewRound, request: KeeperPost) -> Response:
    """Open a standalone round for later jobs. Its cost is charged before the round opens.

    A round of a shuffled dataset needs `min_batch` and `honest_share`. It also charges the cost of its release towards
    the service, which follows from both and from the mechanism. Noisy vectors have no such cost and are rejected.

    Needs the scope `datasets`.
    """

    def open_round(session: Session, now: int) -> Created:
        dataset = datasets.get(session, request.caller, dataset_id)
        datasets.require_trust(dataset, Trust.LOCAL, Trust.SHUFFLED)
        limits = request.limits(session)
        release = job_submission.release_terms(dataset, body)
        opened = rounds.open_standalone(
            session,
            request.caller,
            dataset,
            _spec(dataset, body),
            CollectionTarget(body.target_reports, body.min_reports, body.collect_seconds, release),
            max_open_rounds=limits.max_open_rounds,
            keyring=lambda: load_keyring(request.services.settings),
            ceiling=limits.source_ceiling,
            now=now,
        )
        return Created(serializers.round_(opened), location=f"/v1/rounds/{opened.id}", changed=[dataset_id])

    return request.respond(201, open_round)


def _spec(dataset: Dataset, body: NewRound) -> RoundSpec:
    """Return the specification with thresholds. Raise ValidationFailed or InvalidSpec."""
    features = dataset.features
    encoding = encoding_to_domain(body.encoding)
    if isinstance(encoding, ProfileEncoding):
        message = "a round of a profile belongs to its job: submit a job of the type profile"
        raise ValidationFailed(errors=[{"pointer": "/encoding", "message": message}])
    attributes = attributes_of(encoding)
    if attributes != tuple(each for each in clustering_attributes(dataset.attributes) if each in attributes):
        message = (
            "the attributes must be among those that form clusters of the dataset, as the dataset declares them and in "
            "its order"
        )
        raise ValidationFailed(errors=[{"pointer": "/encoding/attributes", "message": message}])
    if encoding.n_features != len(features):
        message = f"the encoding must have {len(features)} features, as the dataset does"
        raise ValidationFailed(errors=[{"pointer": "/encoding", "message": message}])
    if isinstance(encoding, ShiftedGridEncoding) and not encoding.circles:
        encoding = replace(encoding, circles=circles_of(features))
    with pointing_at("/mechanism"):
        spec = RoundSpec(features, encoding, design_for(encoding, body.mechanism, parse_epsilon(body.epsilon)))
        if dataset.out_of_bounds == OutOfBounds.COUNT:
            spec = count_outside(spec)
    encoding = spec.encoding
    if isinstance(encoding, LatticeEncoding):
        most = most_vectors(encoding.n_features)
        if body.target_reports > most:
            message = f"target_reports must be at most {most} for {encoding.n_features} features of a lattice"
            raise ValidationFailed(errors=[{"pointer": "/target_reports", "message": message}])
    elif encoding.n_slots * spec.mechanism.tally_width > MAX_COUNTERS:
        message = f"slots times symbols may be at most {MAX_COUNTERS} (hr: up to a quarter); use a coarser encoding"
        raise ValidationFailed(errors=[{"pointer": "/encoding", "message": message}])
    draw = (
        Participation()
        if body.participation is None
        else Participation(int(body.participation.lo), int(body.participation.hi))
    )
    return replace(spec, participation=draw)


@router.get(
    "/datasets/{dataset_id}/rounds", summary="List a dataset's rounds", response_model=RoundPage, responses=NOT_FOUND
)
def list_rounds(
    dataset_id: DatasetIdInPath,
    caller: AnalystCaller,
    page: RequestedPage,
    services: Services,
    state: Annotated[RoundState | SkipJsonSchema[None], Query(description="Only rounds in this state.")] = None,
) -> Response:
    """List the rounds of a dataset, newest first. Needs one of the scopes `datasets`, `jobs`."""
    with services.database.reading() as session:
        datasets.get(session, caller, dataset_id)
        rows = rounds.page(
            session,
            dataset_id,
            state=state,
            **page.bounds,
        )
        return page.respond(rows, serializers.round_)


@router.get(
    "/datasets/{dataset_id}/round",
    summary="Get the open rounds for devices",
    response_model=DeviceRounds,
    responses=NOT_FOUND
    | {304: {"description": "The open rounds have not changed."}}
    | {
        200: {
            "headers": {
                "ETag": {"description": "Value for `If-None-Match`.", "schema": {"type": "string"}},
                "Retry-After": {
                    "description": "Seconds until the next poll, if no round is open.",
                    "schema": {"type": "integer"},
                },
            }
        }
    },
)
async def get_device_rounds(
    dataset_id: DatasetIdInPath,
    caller: DeviceCaller,
    services: Services,
    if_none_match: Annotated[
        str | SkipJsonSchema[None], Header(alias="If-None-Match", description="`ETag` of what the device holds.")
    ] = None,
) -> Response:
    """Return the open rounds, oldest first. The bytes are the same for every device, so that a proxy can cache them.

    Needs one of the scopes `device`, `datasets`, `jobs`.
    """
    answer = await services.open_rounds.get(caller, dataset_id)
    return answer.response(if_none_match)


@router.get("/rounds/{round_id}", summary="Get a round", response_model=Round, responses=NOT_FOUND)
def get_round(round_id: RoundIdInPath, caller: DeviceCaller, services: Services) -> Response:
    """Return one round with the number of its reports. Needs one of the scopes `device`, `datasets`, `jobs`."""
    with services.database.reading() as session:
        return respond(serializers.round_(rounds.get(session, caller, round_id)))


@router.post(
    "/rounds/{round_id}/batches",
    summary="Release a round",
    status_code=202,
    response_model=Receipt,
    responses=rejections(
        problems.NotFound,
        problems.Conflict,
        problems.RoundClosed,
        problems.BadRequest,
        problems.BatchRefused,
        problems.UnsupportedMediaType,
    ),
    openapi_extra={
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def release_round(
    request: Request, round_id: RoundIdInPath, caller: SenderCaller, services: Services
) -> Response:
    """Store the batch of a shuffled round, which closes the round. The response follows the commit.

    The body is the signature (Ed25519, 64 bytes), the length of a sealed report (4 bytes, big-endian) and the sealed
    reports. The shuffler signs `sfumato batch 1`, the round id, the number of reports (8 bytes, big-endian) and the
    SHA-256 of the sealed reports. A batch with another signature, with fewer reports than `min_batch` or with a wrong
    length is rejected with `batch_refused`, and nothing is stored. The same batch again gets the same response; another
    batch is rejected with `conflict`. The shuffler can send a batch up to an hour after `closes_at`.

    Needs one of the scopes `device`, `datasets`.
    """
    kind = media_type(request.scope).decode("latin-1")
    with closing(await run_in_threadpool(_batch_reader, services, request, caller, round_id, kind)) as reader:
        await read_upload(request.stream(), reader, reader.body_digest)
        closed = await run_in_threadpool(_store_batch, services, reader)
    services.job_signal.notify(closed.job_id or closed.id)
    services.change_feed.publish(closed.dataset_id, *([] if closed.job_id is None else [closed.job_id]))
    response = respond({"round_id": round_id, "accepted": closed.n_received})
    response.status_code, response.headers["location"] = 202, f"/v1/rounds/{round_id}"
    return response


def _batch_reader(services: GatewayContext, request: Request, caller: Caller, round_id: str, kind: str) -> BatchReader:
    with services.database.reading() as session:
        found = rounds.get(session, caller, round_id)
        dataset = datasets.get_live(session, found.dataset_id)
    datasets.require_trust(dataset, Trust.SHUFFLED)
    if kind != MEDIA_TYPE:
        raise UnsupportedMediaType(f"the content type is not supported: send {MEDIA_TYPE}")
    declared = 0 if request.headers.get("content-encoding") else int(request.headers.get("content-length") or 0)
    return BatchReader(found, dataset, services.scratch, declared)


def _store_batch(services: GatewayContext, reader: BatchReader) -> RoundRow:
    def store(session: Session) -> RoundRow:
        datasets.lock_live(session, reader.dataset_id)
        now, digest = services.database.clock(), reader.body_digest.digest()
        return report_intake.receive_batch(session, reader.round_id, reader.count, digest, reader.rows(), now=now)

    return services.database.run("receive_batch", store)


@router.post(
    "/rounds/{round_id}/close",
    summary="Close a round",
    response_model=Round,
    responses=rejections(problems.NotFound, problems.TooFewReports, problems.IdempotencyKeyReused),
)
def close_round(
    round_id: RoundIdInPath,
    request: AnalystPost,
    allow_empty: Annotated[bool, Query(description="Close the round even if it has no reports.")] = False,
) -> Response:
    """Close a round: it accepts no more reports, and its tally follows. Closing again changes nothing.

    The cost of the round stays charged. A round without reports gives no result, so it is closed only with
    `allow_empty`; otherwise the request is rejected with `too_few_reports`.

    Needs one of the scopes `datasets`, `jobs`.
    """

    def close(session: Session, now: int) -> Created:
        closed = rounds.close(session, request.caller, round_id, allow_empty=allow_empty, now=now)
        changed = [closed.dataset_id, *([closed.job_id] if closed.job_id is not None else [])]
        return Created(serializers.round_(closed), wake=closed.job_id or closed.id, changed=changed)

    return request.respond(200, close)
