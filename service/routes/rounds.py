"""Rounds: opened, seen by devices, closed. Reports come in through `service.ingest`."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import dataset as datasets
from models import quota
from models import round as rounds
from models.dataset import Trust
from models.round import Collect
from models.tenant import Caller, Scope
from service import problems, views
from service.auth import require
from service.dependencies import (
    DatasetIdInPath,
    Made,
    PageHere,
    Posting,
    RoundIdInPath,
    ServicesHere,
    once,
    respond,
)
from service.device_rounds import SCOPES
from service.problems import ValidationFailed, documented
from service.resources import DeviceRounds, NewRound, Round, RoundPage
from service.spec_schemas import encoding_to_domain
from sfumato import mechanisms
from sfumato.accounting import parse_epsilon
from sfumato.specs import MAX_SAMPLE_VALUES, Draw, Feature, LatticeEncoding, RoundSpec

router = APIRouter(prefix="/v1", tags=["rounds"])

MAX_COUNTERS = 1 << 24  # slots times symbols: what a tally can count

DeviceHere = Annotated[Caller, Depends(require(*SCOPES))]
AnalystHere = Annotated[Caller, Depends(require(Scope.DATASETS, Scope.JOBS))]
KeeperPosting = Annotated[Posting, Depends(once(Scope.DATASETS))]
AnalystPosting = Annotated[Posting, Depends(once(Scope.DATASETS, Scope.JOBS))]

_DENIED = (problems.Unauthenticated, problems.Forbidden, problems.NotFound)


@router.post(
    "/datasets/{dataset_id}/rounds",
    operation_id="createRound",
    summary="Open a round of its own",
    status_code=201,
    response_model=Round,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.BudgetExhausted, problems.Conflict, problems.ValidationFailed,
        problems.IdempotencyKeyReused, problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def create_round(dataset_id: DatasetIdInPath, body: NewRound, posting: KeeperPosting) -> Response:
    """Puts one spec to the devices, for later jobs to work on. Its cost is posted before anyone is asked.

    Needs the scope `datasets`.
    """

    def open_round(session: Session, now: int) -> Made:
        dataset = datasets.get(session, posting.caller, dataset_id)
        datasets.require_trust(dataset, Trust.LOCAL)
        opened = rounds.open_standalone(
            session,
            posting.caller,
            dataset,
            _spec(dataset.features, body),
            Collect(body.target_reports, body.min_reports, body.collect_seconds),
            max_open_rounds=quota.limits(session, posting.caller.tenant_id, posting.services.settings).max_open_rounds,
            now=now,
        )
        return Made(views.round_(opened), location=f"/v1/rounds/{opened.id}", tell=[dataset_id])

    return posting.answer(201, open_round)


def _spec(features: tuple[Feature, ...], body: NewRound) -> RoundSpec:
    """The spec as asked for, with thresholds; raises ValidationFailed or InvalidSpec."""
    encoding = encoding_to_domain(body.encoding)
    if encoding.n_features != len(features):
        message = f"this dataset has {len(features)} features, the encoding is for another number"
        raise ValidationFailed(errors=[{"pointer": "/encoding", "message": message}])
    mechanism = mechanisms.design_for(encoding, body.mechanism, parse_epsilon(body.epsilon))
    if isinstance(encoding, LatticeEncoding):
        if body.target_reports * encoding.n_features > MAX_SAMPLE_VALUES:
            message = f"a lattice's reports are kept: target_reports times features may be at most {MAX_SAMPLE_VALUES}"
            raise ValidationFailed(errors=[{"pointer": "/target_reports", "message": message}])
    elif encoding.n_slots * mechanisms.tally_width(mechanism) > MAX_COUNTERS:
        message = f"slots times symbols may be at most {MAX_COUNTERS}; under hr a symbol counts up to four times"
        raise ValidationFailed(errors=[{"pointer": "/encoding", "message": message}])
    draw = Draw() if body.draw is None else Draw(int(body.draw.lo), int(body.draw.hi))
    return RoundSpec(features, encoding, mechanism, draw)


@router.get(
    "/datasets/{dataset_id}/rounds",
    operation_id="listRounds",
    summary="List a dataset's rounds",
    response_model=RoundPage,
    responses=documented(*_DENIED, problems.ValidationFailed),
)
def list_rounds(dataset_id: DatasetIdInPath, caller: AnalystHere, page: PageHere, services: ServicesHere) -> Response:
    """Every round, oldest first. Needs one of the scopes `datasets`, `jobs`."""
    with services.database.reading() as session:
        datasets.get(session, caller, dataset_id)
        rows = rounds.page(session, dataset_id, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.id)
        return respond({"items": [views.round_(row) for row in rows], "next_cursor": next_cursor})


@router.get(
    "/datasets/{dataset_id}/round",
    operation_id="getDeviceRounds",
    summary="What a device may answer now",
    response_model=DeviceRounds,
    responses=documented(*_DENIED)
    | {304: {"description": "Still the same."}}
    | {
        200: {
            "headers": {
                "ETag": {"description": "For `If-None-Match`.", "schema": {"type": "string"}},
                "Retry-After": {
                    "description": "When no round is open: when to ask again, in seconds.",
                    "schema": {"type": "integer"},
                },
            }
        }
    },
)
async def get_device_rounds(
    dataset_id: DatasetIdInPath,
    caller: DeviceHere,
    services: ServicesHere,
    if_none_match: Annotated[
        str | SkipJsonSchema[None], Header(alias="If-None-Match", description="`ETag` of what the device holds.")
    ] = None,
) -> Response:
    """The open rounds, oldest first: the same bytes for every device, fit for a cache in between.

    Needs one of the scopes `device`, `datasets`, `jobs`.
    """
    answer = await services.device_rounds.answer(caller, dataset_id)
    return answer.response(if_none_match)


@router.get(
    "/rounds/{round_id}",
    operation_id="getRound",
    summary="Get a round",
    response_model=Round,
    responses=documented(*_DENIED),
)
def get_round(round_id: RoundIdInPath, caller: DeviceHere, services: ServicesHere) -> Response:
    """One round with its fill level. Needs one of the scopes `device`, `datasets`, `jobs`."""
    with services.database.reading() as session:
        return respond(views.round_(rounds.get(session, caller, round_id)))


@router.post(
    "/rounds/{round_id}/close",
    operation_id="closeRound",
    summary="Close a round",
    response_model=Round,
    responses=documented(*_DENIED, problems.ValidationFailed, problems.IdempotencyKeyReused),
)
def close_round(round_id: RoundIdInPath, posting: AnalystPosting) -> Response:
    """Takes no more reports; the tally follows. Closing again changes nothing.

    Needs one of the scopes `datasets`, `jobs`.
    """

    def close(session: Session, now: int) -> Made:
        closed = rounds.close(session, posting.caller, round_id, now=now)
        told = [closed.dataset_id, *([closed.job_id] if closed.job_id is not None else [])]
        return Made(views.round_(closed), ring=closed.job_id or closed.id, tell=told)

    return posting.answer(200, close)
