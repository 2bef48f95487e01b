"""Schemas of webhooks and deliveries."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from models.tables import webhooks as tables
from models.webhooks.webhooks import MAX_OVERLAP_SECONDS
from service.schemas.base import EXAMPLE_ULID, Wire, example, integer
from service.schemas.fields import ULID, Count, Cursor, DatasetId, Time

DAY_SECONDS = 86_400

WebhookId = Annotated[str, Field(pattern=f"^whk_{ULID}$", examples=[f"whk_{EXAMPLE_ULID}"])]
DeliveryId = Annotated[str, Field(pattern=f"^msg_{ULID}$", examples=[f"msg_{EXAMPLE_ULID}"])]
EventType = TypeAliasType(
    "EventType",
    Annotated[
        Literal[
            "job.collecting",
            "job.succeeded",
            "job.failed",
            "job.canceled",
            "job.expired",
            "round.opened",
            "round.closed",
            "series.event",
        ],
        Field(description="Type of an event."),
    ],
)
DeliveryState = TypeAliasType(
    "DeliveryState", Annotated[Literal["pending", "delivered", "failed"], Field(description="State of a delivery.")]
)
Types = Annotated[list[EventType], Field(min_length=1, max_length=len(tables.EventType))]
# The document is stricter than the service, which also accepts public addresses, and the operator's networks.
_HTTPS = {
    "pattern": r"^https://([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,63}"
    r"(:(443|102[4-9]|10[3-9][0-9]|1[1-9][0-9]{2}|[2-9][0-9]{3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}"
    r'|655[0-2][0-9]|6553[0-5]))?([/?][!"$-\[\]-~]*)?$'
}
Url = Annotated[str, StringConstraints(min_length=1, max_length=tables.MAX_URL), Field(json_schema_extra=_HTTPS)]
Description = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]

_URL = (
    "Address of the receiver: https, a public host, port 443 or a port from 1024 on, without user or fragment. Other "
    "addresses and plain http are accepted only in networks that the operator allows."
)


class NewWebhook(Wire):
    """A webhook to create."""

    model_config = example(url="https://hooks.example.com/sfumato", event_types=["job.succeeded", "job.failed"])

    url: Url = Field(description=_URL)
    event_types: Types = Field(description="Event types to deliver.")
    dataset_id: DatasetId | SkipJsonSchema[None] = Field(
        None, description="Deliver events of this dataset only; of all datasets if absent."
    )
    description: Description = Field("", description="Free text.")


class WebhookChange(Wire):
    """Changes of a webhook; absent members stay unchanged."""

    model_config = example(enabled=True)

    url: Url | SkipJsonSchema[None] = Field(None, description=_URL)
    event_types: Types | SkipJsonSchema[None] = Field(None, description="Event types to deliver from now on.")
    description: Description | SkipJsonSchema[None] = Field(None, description="Free text.")
    enabled: bool | SkipJsonSchema[None] = Field(
        None, description="Whether deliveries are sent. Enabling resets the count of failures."
    )


class Webhook(Wire):
    """A receiver of events. Its secret is shown once."""

    id: WebhookId
    url: str
    event_types: list[EventType]
    dataset_id: DatasetId | None
    description: str
    enabled: bool
    disabled_reason: str | None = Field(description="Reason why the service disabled the webhook; null if it did not.")
    created_at: Time


class NewWebhookSecret(Webhook):
    """A webhook with its new secret."""

    secret: str | None = Field(description="`whsec_...`; shown once. Null in the response to a repeated request.")


class WebhookPage(Wire):
    """Webhooks, newest first."""

    items: list[Webhook]
    next_cursor: Cursor


class Rotation(Wire):
    """Rotation of a secret."""

    model_config = example(overlap_seconds=DAY_SECONDS)

    overlap_seconds: Annotated[int, integer(0, MAX_OVERLAP_SECONDS)] = Field(
        DAY_SECONDS, description="Time that the previous secret also signs deliveries, in seconds."
    )


class Delivery(Wire):
    """Delivery of one event to one webhook. Of the response only the HTTP status is stored."""

    id: DeliveryId = Field(description="Value of the header `webhook-id` in every attempt.")
    webhook_id: WebhookId
    event_type: str = Field(description="Type of the event; `webhook.ping` for a test.")
    dataset_id: DatasetId | None
    state: DeliveryState
    attempts: Count = Field(description="Number of attempts since creation or the last request to redeliver.")
    next_attempt_at: Time | None = Field(description="Time of the next attempt; null if there is none.")
    last_status: Annotated[int, integer(100, 999)] | None = Field(
        description="HTTP status of the last response; null if there was none."
    )
    last_error: str | None = Field(
        description="Reason why the last attempt failed: `bad_status`, `redirected`, `timeout`, `connection_failed`, "
        "`tls_failed`, `no_public_address`, `secret_unreadable`; null without a failure."
    )
    created_at: Time = Field(
        description="Time of the event; for a job over records, coarsened like the times of the job."
    )


class DeliveryPage(Wire):
    """Deliveries, newest first."""

    items: list[Delivery]
    next_cursor: Cursor
