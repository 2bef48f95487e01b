"""Budgets and the ledger: what was granted, what is held, what is spent."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from models import dataset as datasets
from models import ledger
from models.tenant import Caller, Scope
from service import problems, views
from service.auth import require
from service.dependencies import DatasetIdInPath, Made, PageHere, Posting, ServicesHere, once, respond
from service.problems import documented
from service.resources import Budget, LedgerEntry, LedgerPage, NewGrant
from sfumato.accounting import parse_delta, parse_epsilon

router = APIRouter(prefix="/v1/datasets/{dataset_id}", tags=["ledger"])

AuditorHere = Annotated[Caller, Depends(require(Scope.LEDGER))]
PostingHere = Annotated[Posting, Depends(once(Scope.DATASETS))]

_DENIED = (problems.Unauthenticated, problems.Forbidden, problems.NotFound)


@router.get(
    "/budget",
    operation_id="getBudget",
    summary="Get a dataset's budget",
    response_model=Budget,
    responses=documented(*_DENIED),
)
def get_budget(dataset_id: DatasetIdInPath, caller: AuditorHere, services: ServicesHere) -> Response:
    """Granted, reserved, posted and remaining, of epsilon and of delta, by the ledger's last entry; of a deleted
    dataset too.

    Needs the scope `ledger`.
    """
    with services.database.reading() as session:
        datasets.get(session, caller, dataset_id, deleted=True)
        last_seq = ledger.head(session, dataset_id).seq  # at least 1: a dataset begins with a grant
        (last,) = ledger.page(session, dataset_id, after_seq=last_seq - 1, limit=1)
        return respond(views.budget(last))


@router.get(
    "/ledger",
    operation_id="listLedgerEntries",
    summary="List a dataset's ledger",
    response_model=LedgerPage,
    responses=documented(*_DENIED, problems.ValidationFailed),
)
def list_ledger_entries(
    dataset_id: DatasetIdInPath, caller: AuditorHere, page: PageHere, services: ServicesHere
) -> Response:
    """Every entry in order, each with the hash of the one before; of a deleted dataset too.

    Needs the scope `ledger`.
    """
    with services.database.reading() as session:
        datasets.get(session, caller, dataset_id, deleted=True)
        rows = ledger.page(session, dataset_id, after_seq=page.after_seq, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: str(row.seq))
        return respond(LedgerPage(items=[views.ledger_entry(row) for row in rows], next_cursor=next_cursor))


@router.post(
    "/grants",
    operation_id="createGrant",
    summary="Grant a dataset more budget",
    status_code=201,
    response_model=LedgerEntry,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.ValidationFailed, problems.IdempotencyKeyReused,
        problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def create_grant(dataset_id: DatasetIdInPath, body: NewGrant, posting: PostingHere) -> Response:
    """Adds to what the dataset may spend; a `delta` is for central datasets alone. Send an `Idempotency-Key`: without
    one a retry grants twice.

    Needs the scope `datasets`.
    """

    def grant(session: Session, now: int) -> Made:
        entry = datasets.grant(
            session,
            posting.caller,
            dataset_id,
            epsilon_nano=parse_epsilon(body.epsilon) if body.epsilon else 0,
            delta_atto=parse_delta(body.delta),
            now=now,
        )
        return Made(views.ledger_entry(entry))

    return posting.answer(201, grant)
