"""Routes of the budget and the ledger."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import datasets
from models.identity.caller import Caller
from models.ledger import ledger
from models.tables.identity import Scope
from models.tables.ledger import Kind
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    NOT_FOUND,
    POST_BODY,
    Created,
    DatasetIdInPath,
    IdempotentRequest,
    NumberedPage,
    Services,
    idempotent_post,
    rejections,
    respond,
)
from service.http import problems
from service.http.auth import require
from service.schemas import serializers
from service.schemas.ledger import Budget, EntryKind, LedgerEntry, LedgerPage, NewGrant, shuffled_grant
from sfumato.privacy.accounting import parse_delta, parse_epsilon

router = APIRouter(prefix="/v1/datasets/{dataset_id}", tags=["ledger"], route_class=DocumentRoute)

AuditorCaller = Annotated[Caller, Depends(require(Scope.LEDGER))]
BudgetCaller = Annotated[Caller, Depends(require(Scope.LEDGER, Scope.GRANTS))]
IdempotentPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.GRANTS))]


@router.get("/budget", summary="Get a dataset's budget", response_model=Budget, responses=NOT_FOUND)
def get_budget(dataset_id: DatasetIdInPath, caller: BudgetCaller, services: Services) -> Response:
    """Return the granted, reserved, charged and remaining budget after the last ledger entry.

    The ledger of a deleted dataset stays readable.

    Needs one of the scopes `ledger`, `grants`.
    """
    with services.database.reading() as session:
        datasets.get(session, caller, dataset_id, deleted=True)
        last_seq = ledger.head(session, dataset_id).seq  # at least 1, because a dataset starts with a grant
        (last,) = ledger.page(session, dataset_id, after_seq=last_seq - 1, limit=1)
        reserved = ledger.last_reservation(session, dataset_id)
        releases = None if reserved is None else ledger.release_cost_of(session, dataset_id, reserved.reference)
        return respond(serializers.budget(last, reserved, releases))


@router.get("/ledger", summary="List a dataset's ledger", response_model=LedgerPage, responses=NOT_FOUND)
def list_ledger_entries(
    dataset_id: DatasetIdInPath,
    caller: AuditorCaller,
    page: NumberedPage,
    services: Services,
    kind: Annotated[EntryKind | SkipJsonSchema[None], Query(description="Only entries of this kind.")] = None,
) -> Response:
    """List the entries, newest first, each with the hash of the previous one; also of a deleted dataset.

    Needs the scope `ledger`.
    """
    with services.database.reading() as session:
        datasets.get(session, caller, dataset_id, deleted=True)
        rows = ledger.page(
            session,
            dataset_id,
            kind=None if kind is None else Kind(kind),
            **page.numbered_bounds,
        )
        return page.respond(rows, serializers.ledger_entry, lambda row: str(row.seq))


@router.post(
    "/grants",
    summary="Grant a dataset more budget",
    status_code=201,
    response_model=LedgerEntry,
    responses=rejections(problems.NotFound, problems.BudgetExhausted, *POST_BODY),
)
def create_grant(dataset_id: DatasetIdInPath, body: NewGrant, request: IdempotentPost) -> Response:
    """Add to the budget of a dataset. The operator may limit the sum of its grants.

    Only a central dataset can have a `delta`, and only a shuffled one a `shuffled` grant. Send an `Idempotency-Key`:
    without one, a retry grants twice.

    Needs the scope `grants`.
    """

    def grant(session: Session, now: int) -> Created:
        entry = datasets.grant(
            session,
            request.caller,
            dataset_id,
            epsilon_nano=parse_epsilon(body.epsilon) if body.epsilon else 0,
            delta_atto=parse_delta(body.delta),
            shuffled=shuffled_grant(body.shuffled),
            ceiling=request.limits(session).dataset_ceiling,
            now=now,
        )
        return Created(serializers.ledger_entry(entry))

    return request.respond(201, grant)
