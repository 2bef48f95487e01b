"""Calls for limits, the audit trail, and webhooks with their deliveries, and the objects that they return.

The audit trail and webhooks need a key with the scope `admin`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sfumato.api.parsers import parser
from sfumato.transport.exchange import Listing, Steps, delete, drop_none, get, in_order, patch, post
from sfumato.transport.operations import call, listing

DeliveryState = Literal["pending", "delivered", "failed"]
EventType = Literal[
    "job.collecting",
    "job.succeeded",
    "job.failed",
    "job.canceled",
    "job.expired",
    "round.opened",
    "round.closed",
    "series.event",
]


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of objects in use, and its limit."""

    used: int | None  # None if the key may not see it
    limit: int


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant's limits and its usage."""

    datasets: Usage
    active_jobs: Usage
    max_running_jobs: int | None
    max_open_rounds: int
    max_dataset_records: int
    max_dataset_epsilon: float | None = None  # largest grant of a dataset
    max_dataset_delta: float | None = None
    max_source_epsilon: float | None = None  # largest cost of all datasets of a source
    max_source_delta: float | None = None
    source_limit: Literal["amounts", "grants", "none"] = "none"  # limit of a source


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An administrative act. Its hash covers the hash of the event before it."""

    id: str
    tenant_id: str
    seq: int
    at: datetime
    actor: str  # id of the key, or `operator`
    act: str
    subject_id: str
    dataset_id: str | None
    request_id: str | None
    details: Mapping[str, Any]
    prev_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that receives events. Only the response that creates or rotates the secret contains it."""

    id: str
    url: str
    event_types: tuple[str, ...]
    dataset_id: str | None  # None for all datasets
    description: str
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that was or will be sent to a webhook."""

    id: str
    webhook_id: str
    event_type: str
    dataset_id: str | None
    state: DeliveryState
    attempts: int
    next_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    created_at: datetime


parse_limits = parser(TenantLimits)
parse_audit_event = parser(AuditEvent)
parse_webhook = parser(Webhook)
parse_delivery = parser(Delivery)


class AdministrationCalls:
    """The calls for limits, the audit trail and webhooks."""

    @call
    def limits(self) -> Steps[TenantLimits]:
        """Return the tenant's limits and usage.

        Examples
        --------
        >>> from sfumato import Client
        >>> with Client(url, key) as client:
        ...     limits = client.limits()
        >>> limits.max_open_rounds > 0
        True
        """
        return (yield get("limits")).read(parse_limits)

    @listing
    def audit_events(
        self,
        *,
        dataset_id: str | None = None,
        action: str | None = None,
        actor: str | None = None,
        object_id: str | None = None,
        oldest_first: bool = False,
    ) -> Listing[AuditEvent]:
        """Iterate over the audit trail, newest first.

        Parameters
        ----------
        dataset_id, action, actor, object_id : str, optional
            Only events of this dataset, this act (such as `dataset.created`), this key or `operator`, or this object.
        oldest_first : bool
        """
        filters = {"dataset_id": dataset_id, "action": action, "actor": actor, "object": object_id}
        return Listing("audit", parse_audit_event, drop_none(filters) | in_order(oldest_first))

    # ---- webhooks ----

    @call
    def create_webhook(
        self, url: str, event_types: Sequence[EventType], *, dataset_id: str | None = None, description: str = ""
    ) -> Steps[Webhook]:
        """Create a webhook. Only this response contains the secret that signs the deliveries.

        If the response is lost, the client deletes the webhook without known secret and creates another one.

        Parameters
        ----------
        url : str
            Public `https` URL. Redirects are not followed.
        event_types : sequence of str
            Types of events to send, such as `job.succeeded`; see `EventType`.
        dataset_id : str, optional
            Only send events of this dataset.
        """
        body: dict[str, Any] = {"url": url, "event_types": list(event_types)}
        body |= {"dataset_id": dataset_id} if dataset_id is not None else {}
        body |= {"description": description} if description else {}
        while True:
            created = (yield post("webhooks", body)).read(parse_webhook)
            if created.secret is not None:
                return created
            yield delete(f"webhooks/{created.id}")

    @listing
    def webhooks(self) -> Listing[Webhook]:
        """Iterate over the webhooks of the tenant, without secrets."""
        return Listing("webhooks", parse_webhook)

    @call
    def get_webhook(self, webhook_id: str) -> Steps[Webhook]:
        """Return a webhook."""
        return (yield get(f"webhooks/{webhook_id}")).read(parse_webhook)

    @call
    def update_webhook(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        event_types: Sequence[EventType] | None = None,
        description: str | None = None,
        enabled: bool | None = None,
    ) -> Steps[Webhook]:
        """Change settings of a webhook. None leaves a setting unchanged. A disabled webhook receives nothing."""
        changes = {
            "url": url,
            "event_types": None if event_types is None else list(event_types),
            "description": description,
            "enabled": enabled,
        }
        return (yield patch(f"webhooks/{webhook_id}", changes)).read(parse_webhook)

    @call
    def delete_webhook(self, webhook_id: str) -> Steps[None]:
        """Delete a webhook."""
        yield delete(f"webhooks/{webhook_id}")

    @call
    def rotate_webhook_secret(self, webhook_id: str, *, overlap_seconds: int = 86_400) -> Steps[Webhook]:
        """Create a new secret, which only this response contains. Both secrets sign until the overlap ends.

        If the response is lost, the client creates another secret.
        """
        while True:
            request = post(f"webhooks/{webhook_id}/rotate", {"overlap_seconds": overlap_seconds})
            created = (yield request).read(parse_webhook)
            if created.secret is not None:
                return created

    @call
    def ping_webhook(self, webhook_id: str) -> Steps[Delivery]:
        """Send a `webhook.ping` and return its delivery, which shows the outcome."""
        return (yield post(f"webhooks/{webhook_id}/test")).read(parse_delivery)

    @listing
    def deliveries(self, webhook_id: str, *, state: DeliveryState | None = None) -> Listing[Delivery]:
        """Iterate over the deliveries of a webhook."""
        return Listing(f"webhooks/{webhook_id}/deliveries", parse_delivery, {"state": state} if state else {})

    @call
    def get_delivery(self, webhook_id: str, delivery_id: str) -> Steps[Delivery]:
        """Return a delivery."""
        return (yield get(f"webhooks/{webhook_id}/deliveries/{delivery_id}")).read(parse_delivery)

    @call
    def redeliver(self, webhook_id: str, delivery_id: str) -> Steps[Delivery]:
        """Send a delivery again with the same bytes and a new number of attempts."""
        return (yield post(f"webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver")).read(parse_delivery)
