"""Webhooks: made, changed, tried, deleted; their secrets replaced, their deliveries looked at and repeated."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import delivery as deliveries
from models import sealing
from models import webhook as webhooks
from models.delivery import DeliveryState
from models.tenant import Caller, Scope
from models.webhook import EventType
from service import problems, webhook_addresses
from service import webhook_resources as wire
from service.auth import require
from service.dependencies import (
    DeliveryIdInPath,
    Made,
    PageHere,
    Posting,
    ServicesHere,
    WebhookIdInPath,
    once,
    respond,
)
from service.problems import ValidationFailed, documented
from service.services import Services
from service.webhook_addresses import BadUrl
from service.webhook_resources import (
    Delivery,
    DeliveryPage,
    NewWebhook,
    NewWebhookSecret,
    Rotation,
    State,
    Webhook,
    WebhookChange,
    WebhookPage,
)

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

AdminHere = Annotated[Caller, Depends(require(Scope.ADMIN, whole_tenant=True))]
PostingHere = Annotated[Posting, Depends(once(Scope.ADMIN, whole_tenant=True))]
StateInQuery = Annotated[State | SkipJsonSchema[None], Query(description="Only those that stand so.")]

_DENIED = (problems.Unauthenticated, problems.Forbidden)
_POSTED = (problems.BadRequest, problems.IdempotencyKeyReused, problems.ValidationFailed)
_BODY = (*_POSTED, problems.PayloadTooLarge, problems.UnsupportedMediaType)


def _check_url(services: Services, url: str | None) -> None:
    if url is None:
        return
    try:
        webhook_addresses.parse(url, services.settings.allowed_webhook_networks)
    except BadUrl as error:
        raise ValidationFailed(errors=[{"pointer": "/url", "message": str(error)}]) from None


@router.post(
    "",
    operation_id="createWebhook",
    summary="Create a webhook",
    status_code=201,
    response_model=NewWebhookSecret,
    responses=documented(*_DENIED, *_BODY, problems.NotFound),
)
def create_webhook(body: NewWebhook, posting: PostingHere) -> Response:
    """Has an address told what happens to jobs and rounds. The secret that signs it is in this answer alone.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    services = posting.services
    _check_url(services, body.url)
    keyring = sealing.keyring_of(services.settings)

    def create(session: Session, now: int) -> Made:
        made, secret = webhooks.create(
            session,
            posting.caller,
            keyring,
            url=body.url,
            event_types=[EventType(each) for each in body.event_types],
            dataset_id=body.dataset_id,
            description=body.description,
            max_webhooks=services.settings.max_webhooks,
            now=now,
        )
        return Made(wire.new_secret(made, secret), location=f"/v1/webhooks/{made.id}", kept=wire.new_secret(made, None))

    return posting.answer(201, create)


@router.get(
    "",
    operation_id="listWebhooks",
    summary="List webhooks",
    response_model=WebhookPage,
    responses=documented(*_DENIED, problems.ValidationFailed),
)
def list_webhooks(caller: AdminHere, page: PageHere, services: ServicesHere) -> Response:
    """Every webhook of the tenant without its secret, oldest first.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        rows = webhooks.page(session, caller, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.id)
        return respond(WebhookPage(items=[wire.webhook(row) for row in rows], next_cursor=next_cursor))


@router.get(
    "/{webhook_id}",
    operation_id="getWebhook",
    summary="Get a webhook",
    response_model=Webhook,
    responses=documented(*_DENIED, problems.NotFound),
)
def get_webhook(webhook_id: WebhookIdInPath, caller: AdminHere, services: ServicesHere) -> Response:
    """A webhook without its secret, and why it is disabled, where the service did that.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        return respond(wire.webhook(webhooks.get(session, caller, webhook_id)))


@router.patch(
    "/{webhook_id}",
    operation_id="updateWebhook",
    summary="Change a webhook",
    response_model=Webhook,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.NotFound, problems.ValidationFailed,
        problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def update_webhook(
    webhook_id: WebhookIdInPath, body: WebhookChange, caller: AdminHere, services: ServicesHere
) -> Response:
    """Changes the address, what it is told of, the description, or whether it is told anything; the rest stays.

    While it is disabled nothing is sent and nothing new is kept for it; what waited before goes out once
    it is enabled again. Needs the scope `admin` and a key that is not bound to one dataset.
    """
    _check_url(services, body.url)

    def change(session: Session) -> Webhook:
        changed = webhooks.change(
            session,
            caller,
            webhook_id,
            url=body.url,
            event_types=None if body.event_types is None else [EventType(each) for each in body.event_types],
            description=body.description,
            enabled=body.enabled,
            now=services.database.clock(),
        )
        return wire.webhook(changed)

    return respond(services.database.run("change_webhook", change))


@router.delete(
    "/{webhook_id}",
    operation_id="deleteWebhook",
    summary="Delete a webhook",
    status_code=204,
    responses=documented(*_DENIED, problems.NotFound),
)
def delete_webhook(webhook_id: WebhookIdInPath, caller: AdminHere, services: ServicesHere) -> Response:
    """Forgets it, its secrets and its deliveries; what is being sent this moment may still arrive.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """

    def remove(session: Session) -> None:
        webhooks.remove(session, caller, webhook_id, now=services.database.clock())

    services.database.run("delete_webhook", remove)
    return Response(status_code=204)


@router.post(
    "/{webhook_id}/rotate",
    operation_id="rotateWebhookSecret",
    summary="Replace a webhook's secret",
    response_model=NewWebhookSecret,
    responses=documented(*_DENIED, *_BODY, problems.NotFound),
)
def rotate_webhook_secret(webhook_id: WebhookIdInPath, body: Rotation, posting: PostingHere) -> Response:
    """Makes a new secret, in this answer alone. The one before signs beside it until the overlap is over.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    keyring = sealing.keyring_of(posting.services.settings)

    def rotate(session: Session, now: int) -> Made:
        found, secret = webhooks.rotate_secret(
            session, posting.caller, webhook_id, keyring, overlap_seconds=body.overlap_seconds, now=now
        )
        return Made(wire.new_secret(found, secret), kept=wire.new_secret(found, None))

    return posting.answer(200, rotate)


@router.post(
    "/{webhook_id}/test",
    operation_id="testWebhook",
    summary="Send a webhook a ping",
    status_code=202,
    response_model=Delivery,
    responses=documented(*_DENIED, *_POSTED, problems.NotFound, problems.Conflict),
)
def test_webhook(webhook_id: WebhookIdInPath, posting: PostingHere) -> Response:
    """Queues a `webhook.ping`, sent within a second or two; its delivery tells what came of it.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """

    def ping(session: Session, now: int) -> Made:
        return _queued(deliveries.ping(session, posting.caller, webhook_id, now=now))

    return posting.answer(202, ping)


def _queued(row: deliveries.Delivery) -> Made:
    return Made(wire.delivery(row), location=f"/v1/webhooks/{row.webhook_id}/deliveries/{row.id}")


@router.get(
    "/{webhook_id}/deliveries",
    operation_id="listWebhookDeliveries",
    summary="List a webhook's deliveries",
    response_model=DeliveryPage,
    responses=documented(*_DENIED, problems.NotFound, problems.ValidationFailed),
)
def list_webhook_deliveries(
    webhook_id: WebhookIdInPath, caller: AdminHere, page: PageHere, services: ServicesHere, state: StateInQuery = None
) -> Response:
    """What it was told, and is to be told, oldest first, as long as it is kept.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    only = None if state is None else DeliveryState(state)
    with services.database.reading() as session:
        rows = deliveries.page(session, caller, webhook_id, state=only, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.id)
        return respond(DeliveryPage(items=[wire.delivery(row) for row in rows], next_cursor=next_cursor))


@router.get(
    "/{webhook_id}/deliveries/{delivery_id}",
    operation_id="getWebhookDelivery",
    summary="Get a delivery",
    response_model=Delivery,
    responses=documented(*_DENIED, problems.NotFound),
)
def get_webhook_delivery(
    webhook_id: WebhookIdInPath, delivery_id: DeliveryIdInPath, caller: AdminHere, services: ServicesHere
) -> Response:
    """Where a delivery stands, and what came of its last attempt.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        return respond(wire.delivery(deliveries.get(session, caller, webhook_id, delivery_id)))


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    operation_id="redeliverWebhook",
    summary="Send a delivery once more",
    status_code=202,
    response_model=Delivery,
    responses=documented(*_DENIED, *_POSTED, problems.NotFound, problems.Conflict),
)
def redeliver_webhook(webhook_id: WebhookIdInPath, delivery_id: DeliveryIdInPath, posting: PostingHere) -> Response:
    """Queues the same bytes under the same `webhook-id`, whatever came of it before, with all its attempts anew.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """

    def again(session: Session, now: int) -> Made:
        return _queued(deliveries.again(session, posting.caller, webhook_id, delivery_id, now=now))

    return posting.answer(202, again)
