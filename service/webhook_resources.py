"""The wire's webhooks: what is asked for, what is answered, and how rows travel."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints
from pydantic.json_schema import SkipJsonSchema

from models import delivery as deliveries
from models import webhook as webhooks
from models.webhook import MAX_OVERLAP_SECONDS, MAX_URL, EventType
from service.clock import optional_timestamp, timestamp
from service.resources import ULID, Count, Cursor, DatasetId, Time
from service.schemas import EXAMPLE_ULID, Wire, example, integer

DAY_SECONDS = 86_400

WebhookId = Annotated[str, Field(pattern=f"^whk_{ULID}$", examples=[f"whk_{EXAMPLE_ULID}"])]
DeliveryId = Annotated[str, Field(pattern=f"^msg_{ULID}$", examples=[f"msg_{EXAMPLE_ULID}"])]
Type = Literal[
    "job.collecting",
    "job.succeeded",
    "job.failed",
    "job.canceled",
    "job.expired",
    "round.opened",
    "round.closed",
]
State = Literal["pending", "delivered", "failed"]
Types = Annotated[list[Type], Field(min_length=1, max_length=len(EventType))]
Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL)]
Description = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]

_URL = (
    "Where to: https, a public host, port 443 or one from 1024 on; no user, no fragment. Others, and plain http, only "
    "within networks that the operator allows."
)


class NewWebhook(Wire):
    """A webhook to be made."""

    model_config = example(url="https://hooks.example.com/sfumato", event_types=["job.succeeded", "job.failed"])

    url: Url = Field(description=_URL)
    event_types: Types = Field(description="Of what it is told.")
    dataset_id: DatasetId | SkipJsonSchema[None] = Field(
        None, description="The only dataset it is told of; left out, all."
    )
    description: Description = Field("", description="For people.")


class WebhookChange(Wire):
    """What may change of a webhook; what is left out stays."""

    model_config = example(enabled=True)

    url: Url | SkipJsonSchema[None] = Field(None, description=_URL)
    event_types: Types | SkipJsonSchema[None] = Field(None, description="Of what it is told from now on.")
    description: Description | SkipJsonSchema[None] = Field(None, description="For people.")
    enabled: bool | SkipJsonSchema[None] = Field(
        None, description="Whether it is told anything; enabling forgets earlier failures."
    )


class Webhook(Wire):
    """Who is told what happens; its secret is shown once."""

    id: WebhookId
    url: str
    event_types: list[Type]
    dataset_id: DatasetId | None
    description: str
    enabled: bool
    disabled_reason: str | None = Field(description="Why the service disabled it; null where it did not.")
    created_at: Time


class NewWebhookSecret(Webhook):
    """A webhook with a secret that was just made."""

    secret: str | None = Field(
        description="`whsec_...`; shown this once. Null where a repeated request is answered again."
    )


class WebhookPage(Wire):
    """Webhooks, oldest first."""

    items: list[Webhook]
    next_cursor: Cursor


class Rotation(Wire):
    """How a secret is replaced."""

    model_config = example(overlap_seconds=DAY_SECONDS)

    overlap_seconds: Annotated[int, integer(0, MAX_OVERLAP_SECONDS)] = Field(
        DAY_SECONDS, description="How long the secret of before signs beside the new one."
    )


class Delivery(Wire):
    """One thing that happened, for one webhook. Of what the receiver answered only the status is kept."""

    id: DeliveryId = Field(description="What the header `webhook-id` says, at every attempt.")
    webhook_id: WebhookId
    event_type: str = Field(description="What happened; `webhook.ping` of a test.")
    dataset_id: DatasetId | None
    state: State
    attempts: Count = Field(description="Since it was made, or asked for again.")
    next_attempt_at: Time | None = Field(description="Null where it is over.")
    last_status: Annotated[int, integer(100, 999)] | None = Field(description="HTTP status of the last answer.")
    last_error: str | None = Field(
        description="Why the last attempt failed: `bad_status`, `redirected`, `timeout`, `connection_failed`, "
        "`tls_failed`, `no_public_address`, `secret_unreadable`; null where it did not, or there was none."
    )
    created_at: Time = Field(description="When it happened; of a job over records as coarsely as the job tells it.")


class DeliveryPage(Wire):
    """Deliveries, oldest first."""

    items: list[Delivery]
    next_cursor: Cursor


# ---- rows as they travel ----


def webhook(row: webhooks.Webhook) -> Webhook:
    """A webhook, without its secret."""
    return Webhook.model_validate(_members(row))


def new_secret(row: webhooks.Webhook, secret: str | None) -> NewWebhookSecret:
    """A webhook with its new secret; without it where a repeated request is answered."""
    return NewWebhookSecret.model_validate(_members(row) | {"secret": secret})


def _members(row: webhooks.Webhook) -> dict[str, Any]:
    return {
        "id": row.id,
        "url": row.url,
        "event_types": row.event_types,
        "dataset_id": row.dataset_id,
        "description": row.description,
        "enabled": row.enabled,
        "disabled_reason": row.disabled_reason,
        "created_at": timestamp(row.created_at),
    }


def delivery(row: deliveries.Delivery) -> Delivery:
    """A delivery, without its payload."""
    return Delivery.model_validate(
        {
            "id": row.id,
            "webhook_id": row.webhook_id,
            "event_type": row.event_type,
            "dataset_id": row.dataset_id,
            "state": row.state,
            "attempts": row.attempts,
            "next_attempt_at": optional_timestamp(row.next_attempt_at),
            "last_status": row.last_status,
            "last_error": row.last_error,
            "created_at": timestamp(row.created_at),
        }
    )
