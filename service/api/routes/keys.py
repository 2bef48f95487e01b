"""Routes of keys."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from models import datasets
from models.database.types import SECOND
from models.identity import keys
from models.identity.caller import Caller
from models.tables.identity import Key, Scope
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    NOT_FOUND,
    POST_BODY,
    Created,
    IdempotentRequest,
    KeyIdInPath,
    RequestedPage,
    Services,
    idempotent_post,
    rejections,
)
from service.http import problems
from service.http.auth import require
from service.http.problems import ValidationFailed
from service.schemas import serializers
from service.schemas.base import from_timestamp
from service.schemas.keys import KeyPage, KeyRotation, NewKey, NewKeySecret

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=DocumentRoute)

DEFAULT_ROTATION = KeyRotation()
MAX_LIFE_MICROSECONDS = 100 * 366 * 86_400 * 1_000_000

AdminCaller = Annotated[Caller, Depends(require(Scope.ADMIN, whole_tenant=True))]
IdempotentPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.ADMIN, whole_tenant=True))]


@router.post(
    "",
    summary="Create a key",
    status_code=201,
    response_model=NewKeySecret,
    responses=rejections(problems.NotFound, *POST_BODY),
)
def create_key(body: NewKey, request: IdempotentPost) -> Response:
    """Create a key of 256 random bits. The response contains its secret, which is not stored and not shown again.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    expires_at = None if body.expires_at is None else from_timestamp(body.expires_at)

    def create(session: Session, now: int) -> Created:
        _check_end(expires_at, now)
        if body.dataset_id is not None:
            datasets.get(session, request.caller, body.dataset_id)
        made, secret = keys.create_key(
            session,
            request.caller.tenant_id,
            name=body.name,
            scopes=[Scope(scope) for scope in body.scopes],
            dataset_id=body.dataset_id,
            expires_at=expires_at,
            by=request.caller,
            now=now,
        )
        return _made(made, secret)

    return request.respond(201, create)


def _check_end(expires_at: int | None, now: int) -> None:
    if expires_at is not None and not now < expires_at < now + MAX_LIFE_MICROSECONDS:
        message = "the time must lie in the future, at most 100 years from now"
        raise ValidationFailed(errors=[{"pointer": "/expires_at", "message": message}])


def _made(key: Key, secret: str) -> Created:
    """Build the response. The copy stored for idempotent replay omits the secret."""
    body = serializers.key(key)
    return Created(body | {"secret": secret}, location=f"/v1/keys/{key.id}", kept=body | {"secret": None})


@router.post(
    "/{key_id}/rotate",
    summary="Rotate a key",
    status_code=201,
    response_model=NewKeySecret,
    responses=rejections(problems.NotFound, problems.Conflict, *POST_BODY),
)
def rotate_key(key_id: KeyIdInPath, request: IdempotentPost, body: KeyRotation = DEFAULT_ROTATION) -> Response:
    """Create a key with the same name, scopes and dataset and a new secret.

    A request without a body uses the defaults.

    The old key stays valid for `overlap_seconds`, or until its expiry if that is earlier. With 0 it is revoked
    immediately.

    A key can be rotated once. A revoked or expired key cannot be rotated: `conflict`. A key may rotate itself. Needs
    the scope `admin` and a key that is not bound to one dataset: a key with fewer rights could otherwise be used to
    lock out its owner.
    """
    expires_at = None if body.expires_at is None else from_timestamp(body.expires_at)

    def rotate(session: Session, now: int) -> Created:
        _check_end(expires_at, now)
        made, secret = keys.rotate_key(
            session,
            request.caller,
            key_id,
            overlap_microseconds=body.overlap_seconds * SECOND,
            expires_at=expires_at,
            now=now,
        )
        return _made(made, secret)

    response = request.respond(201, rotate)
    request.services.keys.invalidate()
    return response


@router.get("", summary="List keys", response_model=KeyPage, responses=rejections())
def list_keys(caller: AdminCaller, page: RequestedPage, services: Services) -> Response:
    """List the keys of the tenant without their secrets, newest first.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        rows = keys.list_keys(session, caller.tenant_id, **page.bounds)
        return page.respond(rows, serializers.key)


@router.delete("/{key_id}", summary="Revoke a key", status_code=204, responses=NOT_FOUND)
def revoke_key(key_id: KeyIdInPath, caller: AdminCaller, services: Services) -> Response:
    """Revoke a key: immediately at this gateway, and within a second at every other gateway.

    Revoking again changes nothing.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    now = services.database.clock()
    services.database.run(
        "revoke_key", lambda session: keys.revoke_key(session, caller.tenant_id, key_id, by=caller, now=now)
    )
    services.keys.invalidate()
    return Response(status_code=204)
