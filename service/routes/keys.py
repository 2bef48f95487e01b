"""Keys: made, replaced, listed, revoked."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from models import dataset as datasets
from models import tenant
from models.db import SECOND
from models.tenant import Caller, Scope
from service import problems, views
from service.auth import require
from service.clock import from_timestamp
from service.dependencies import KeyIdInPath, Made, PageHere, Posting, ServicesHere, once, respond
from service.key_resources import KeyPage, KeyRotation, NewKey, NewKeySecret
from service.problems import ValidationFailed, documented

router = APIRouter(prefix="/v1/keys", tags=["keys"])

MAX_LIFE_MICROSECONDS = 100 * 366 * 86_400 * 1_000_000

AdminHere = Annotated[Caller, Depends(require(Scope.ADMIN, whole_tenant=True))]
PostingHere = Annotated[Posting, Depends(once(Scope.ADMIN, whole_tenant=True))]

_DENIED = (problems.Unauthenticated, problems.Forbidden)


@router.post(
    "",
    operation_id="createKey",
    summary="Create a key",
    status_code=201,
    response_model=NewKeySecret,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.NotFound, problems.ValidationFailed, problems.IdempotencyKeyReused,
        problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def create_key(body: NewKey, posting: PostingHere) -> Response:
    """Makes a key of 256 random bits. Its secret is in this answer and nowhere else: it is not kept.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    expires_at = None if body.expires_at is None else from_timestamp(body.expires_at)

    def create(session: Session, now: int) -> Made:
        _check_end(expires_at, now)
        if body.dataset_id is not None:
            datasets.get(session, posting.caller, body.dataset_id)
        made, secret = tenant.create_key(
            session,
            posting.caller.tenant_id,
            name=body.name,
            scopes=[Scope(scope) for scope in body.scopes],
            dataset_id=body.dataset_id,
            expires_at=expires_at,
            by=posting.caller,
            now=now,
        )
        return _made(made, secret)

    return posting.answer(201, create)


def _check_end(expires_at: int | None, now: int) -> None:
    if expires_at is not None and not now < expires_at < now + MAX_LIFE_MICROSECONDS:
        message = "a time to come is needed, at most a hundred years from now"
        raise ValidationFailed(errors=[{"pointer": "/expires_at", "message": message}])


def _made(key: tenant.Key, secret: str) -> Made:
    """The answer; what is kept of it for a repeated request is without the secret, which is nowhere in the database."""
    return Made(views.new_key(key, secret), location=f"/v1/keys/{key.id}", kept=views.new_key(key, None))


@router.post(
    "/{key_id}/rotate",
    operation_id="rotateKey",
    summary="Replace a key",
    status_code=201,
    response_model=NewKeySecret,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.NotFound, problems.Conflict, problems.ValidationFailed,
        problems.IdempotencyKeyReused, problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def rotate_key(key_id: KeyIdInPath, body: KeyRotation, posting: PostingHere) -> Response:
    """Makes a key of the same name, scopes and dataset, with a secret of its own. The old one works beside it for
    `overlap_seconds`, or until it would have expired anyway, so that whoever uses it can change over meanwhile; with 0
    it ends as a revoked one does.

    A key is replaced once, and one that is revoked or has expired not at all: `conflict`. A key may replace itself.
    Needs the scope `admin` and a key that is not bound to one dataset: a key of less that could replace itself would
    let whoever finds it lock out whoever lost it.
    """
    expires_at = None if body.expires_at is None else from_timestamp(body.expires_at)

    def rotate(session: Session, now: int) -> Made:
        _check_end(expires_at, now)
        made, secret = tenant.rotate_key(
            session,
            posting.caller,
            key_id,
            overlap_microseconds=body.overlap_seconds * SECOND,
            expires_at=expires_at,
            now=now,
        )
        return _made(made, secret)

    response = posting.answer(201, rotate)
    posting.services.keys.forget()
    return response


@router.get(
    "",
    operation_id="listKeys",
    summary="List keys",
    response_model=KeyPage,
    responses=documented(*_DENIED, problems.ValidationFailed),
)
def list_keys(caller: AdminHere, page: PageHere, services: ServicesHere) -> Response:
    """Every key of the tenant without its secret, oldest first.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        rows = tenant.list_keys(session, caller.tenant_id, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.id)
        return respond(KeyPage(items=[views.key(row) for row in rows], next_cursor=next_cursor))


@router.delete(
    "/{key_id}",
    operation_id="revokeKey",
    summary="Revoke a key",
    status_code=204,
    responses=documented(*_DENIED, problems.NotFound),
)
def revoke_key(key_id: KeyIdInPath, caller: AdminHere, services: ServicesHere) -> Response:
    """Ends a key: at once here, within a second at every other gateway. Revoking again changes nothing.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    now = services.database.clock()
    services.database.run(
        "revoke_key", lambda session: tenant.revoke_key(session, caller.tenant_id, key_id, by=caller, now=now)
    )
    services.keys.forget()
    return Response(status_code=204)
