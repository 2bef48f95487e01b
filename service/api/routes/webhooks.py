"""Routes of webhooks, their secrets and their deliveries."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import encryption
from models.identity.caller import Caller
from models.tables import webhooks as webhooks_tables
from models.tables.identity import Scope
from models.tables.webhooks import DeliveryState, EventType
from models.webhooks import deliveries, webhooks
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    JSON_BODY,
    NOT_FOUND,
    Created,
    DeliveryIdInPath,
    IdempotentRequest,
    Json,
    RequestedPage,
    Services,
    WebhookIdInPath,
    idempotent_post,
    rejections,
    respond,
)
from service.context import GatewayContext
from service.http import problems
from service.http.auth import require
from service.http.problems import ValidationFailed
from service.schemas import serializers
from service.schemas import webhooks as schemas
from service.schemas.webhooks import (
    Delivery,
    DeliveryPage,
    NewWebhook,
    NewWebhookSecret,
    Rotation,
    Webhook,
    WebhookChange,
    WebhookPage,
)
from service.webhooks import addresses
from service.webhooks.addresses import BadUrl

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=DocumentRoute)

AdminCaller = Annotated[Caller, Depends(require(Scope.ADMIN, whole_tenant=True))]
IdempotentPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.ADMIN, whole_tenant=True))]
StateInQuery = Annotated[
    schemas.DeliveryState | SkipJsonSchema[None], Query(description="Only deliveries in this state.")
]

_POSTED = (problems.BadRequest, problems.IdempotencyKeyReused)
_BODY = (*_POSTED, problems.PayloadTooLarge, problems.UnsupportedMediaType)


def _check_url(services: GatewayContext, url: str | None) -> None:
    if url is None:
        return
    try:
        addresses.parse(url, services.settings.allowed_webhook_networks)
    except BadUrl as error:
        raise ValidationFailed(errors=[{"pointer": "/url", "message": str(error)}]) from None


@router.post(
    "",
    summary="Create a webhook",
    status_code=201,
    response_model=NewWebhookSecret,
    responses=rejections(*_BODY, problems.NotFound),
)
def create_webhook(body: NewWebhook, request: IdempotentPost) -> Response:
    """Create a webhook that receives events of jobs and rounds.

    Only this response contains the secret that signs its deliveries.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    services = request.services
    _check_url(services, body.url)
    keyring = encryption.load_keyring(services.settings)

    def create(session: Session, now: int) -> Created:
        made, secret = webhooks.create(
            session,
            request.caller,
            keyring,
            url=body.url,
            event_types=[EventType(each) for each in body.event_types],
            dataset_id=body.dataset_id,
            description=body.description,
            max_webhooks=services.settings.max_webhooks,
            now=now,
        )
        return _created(made, secret, location=f"/v1/webhooks/{made.id}")

    return request.respond(201, create)


def _created(webhook: webhooks_tables.Webhook, secret: str, location: str | None = None) -> Created:
    """Build the response. The copy stored for idempotent replay omits the secret."""
    body = serializers.webhook(webhook)
    return Created(body | {"secret": secret}, location, kept=body | {"secret": None})


@router.get("", summary="List webhooks", response_model=WebhookPage, responses=rejections())
def list_webhooks(caller: AdminCaller, page: RequestedPage, services: Services) -> Response:
    """List the webhooks of the tenant without their secrets, newest first.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        rows = webhooks.page(session, caller, **page.bounds)
        return page.respond(rows, serializers.webhook)


@router.get("/{webhook_id}", summary="Get a webhook", response_model=Webhook, responses=NOT_FOUND)
def get_webhook(webhook_id: WebhookIdInPath, caller: AdminCaller, services: Services) -> Response:
    """Return a webhook without its secret, and the reason if the service disabled it.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        return respond(serializers.webhook(webhooks.get(session, caller, webhook_id)))


@router.patch(
    "/{webhook_id}",
    summary="Change a webhook",
    response_model=Webhook,
    responses=rejections(problems.NotFound, *JSON_BODY),
)
def update_webhook(
    webhook_id: WebhookIdInPath, body: WebhookChange, caller: AdminCaller, services: Services
) -> Response:
    """Change the address, the event types, the description, or whether deliveries are sent.

    Absent members stay unchanged.

    While a webhook is disabled, nothing is sent and no events are stored for it. Deliveries that were pending are sent
    when it is enabled again. Needs the scope `admin` and a key that is not bound to one dataset.
    """
    _check_url(services, body.url)

    def change(session: Session) -> Json:
        now = services.database.clock()
        return serializers.webhook(webhooks.change(session, caller, webhook_id, **body.model_dump(), now=now))

    return respond(services.database.run("change_webhook", change))


@router.delete("/{webhook_id}", summary="Delete a webhook", status_code=204, responses=NOT_FOUND)
def delete_webhook(webhook_id: WebhookIdInPath, caller: AdminCaller, services: Services) -> Response:
    """Delete a webhook, its secrets and its deliveries. A delivery that is being sent may still arrive.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """

    def remove(session: Session) -> None:
        webhooks.remove(session, caller, webhook_id, now=services.database.clock())

    services.database.run("delete_webhook", remove)
    return Response(status_code=204)


@router.post(
    "/{webhook_id}/rotate",
    summary="Rotate the secret of a webhook",
    response_model=NewWebhookSecret,
    responses=rejections(*_BODY, problems.NotFound),
)
def rotate_webhook_secret(webhook_id: WebhookIdInPath, body: Rotation, request: IdempotentPost) -> Response:
    """Create a new secret, which only this response contains.

    The previous secret also signs deliveries until the overlap ends.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    keyring = encryption.load_keyring(request.services.settings)

    def rotate(session: Session, now: int) -> Created:
        found, secret = webhooks.rotate_secret(
            session, request.caller, webhook_id, keyring, overlap_seconds=body.overlap_seconds, now=now
        )
        return _created(found, secret)

    return request.respond(200, rotate)


@router.post(
    "/{webhook_id}/test",
    summary="Send a test event",
    status_code=202,
    response_model=Delivery,
    responses=rejections(*_POSTED, problems.NotFound, problems.Conflict),
)
def test_webhook(webhook_id: WebhookIdInPath, request: IdempotentPost) -> Response:
    """Queue a `webhook.ping`, which is sent within about two seconds. Read its delivery for the outcome.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """

    def ping(session: Session, now: int) -> Created:
        return _queued(deliveries.ping(session, request.caller, webhook_id, now=now))

    return request.respond(202, ping)


def _queued(row: webhooks_tables.Delivery) -> Created:
    return Created(serializers.delivery(row), location=f"/v1/webhooks/{row.webhook_id}/deliveries/{row.id}")


@router.get(
    "/{webhook_id}/deliveries", summary="List a webhook's deliveries", response_model=DeliveryPage, responses=NOT_FOUND
)
def list_webhook_deliveries(
    webhook_id: WebhookIdInPath,
    caller: AdminCaller,
    page: RequestedPage,
    services: Services,
    state: StateInQuery = None,
) -> Response:
    """List the stored deliveries of a webhook, newest first.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    only = None if state is None else DeliveryState(state)
    with services.database.reading() as session:
        rows = deliveries.page(session, caller, webhook_id, state=only, **page.bounds)
        return page.respond(rows, serializers.delivery)


@router.get(
    "/{webhook_id}/deliveries/{delivery_id}", summary="Get a delivery", response_model=Delivery, responses=NOT_FOUND
)
def get_webhook_delivery(
    webhook_id: WebhookIdInPath, delivery_id: DeliveryIdInPath, caller: AdminCaller, services: Services
) -> Response:
    """Return the state of a delivery and the outcome of its last attempt.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        return respond(serializers.delivery(deliveries.get(session, caller, webhook_id, delivery_id)))


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    summary="Redeliver an event",
    status_code=202,
    response_model=Delivery,
    responses=rejections(*_POSTED, problems.NotFound, problems.Conflict),
)
def redeliver_webhook(webhook_id: WebhookIdInPath, delivery_id: DeliveryIdInPath, request: IdempotentPost) -> Response:
    """Queue the same bytes with the same `webhook-id` again, with a full number of attempts.

    The earlier outcome does not matter.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """

    def again(session: Session, now: int) -> Created:
        return _queued(deliveries.redeliver(session, request.caller, webhook_id, delivery_id, now=now))

    return request.respond(202, again)
