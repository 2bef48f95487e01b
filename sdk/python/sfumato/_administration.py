"""The client's calls for limits, the audit trail and webhooks; the last two need a key with the scope `admin`."""

from collections.abc import Sequence
from typing import Any

from sfumato import administration as read_as
from sfumato._exchange import Listing, Steps, delete, get, given, patch, post
from sfumato._operations import call, listing
from sfumato.administration import AuditEvent, Delivery, DeliveryState, EventType, Limits, Webhook


class AdministrationCalls:
    """What a client can do around datasets and jobs."""

    @call
    def limits(self) -> Steps[Limits]:
        """What the tenant may have at once, and has.

        Examples
        --------
        >>> from sfumato import Client
        >>> with Client(url, key) as client:
        ...     limits = client.limits()
        >>> limits.max_open_rounds > 0
        True
        """
        return (yield get("limits")).read(read_as.limits)

    @listing
    def audit_events(
        self, *, dataset_id: str | None = None, act: str | None = None, actor: str | None = None
    ) -> Listing[AuditEvent]:
        """Who made, changed or ended what, in order.

        Parameters
        ----------
        dataset_id, act, actor : str, optional
            Only of this dataset, such acts (`dataset.created`), of this key (or `operator`).
        """
        return Listing("audit", read_as.audit_event, given({"dataset_id": dataset_id, "act": act, "actor": actor}))

    # ---- webhooks ----

    @call
    def create_webhook(
        self, url: str, event_types: Sequence[EventType], *, dataset_id: str | None = None, description: str = ""
    ) -> Steps[Webhook]:
        """Have an address told what happens; the secret that signs it is in the answer, and nowhere else ever again.

        Where that one answer is lost, the webhook nobody can check is deleted, and another made.

        Parameters
        ----------
        url : str
            Public, `https`; redirects are not followed.
        event_types : sequence of str
            Such as `job.succeeded`: see `EventType`.
        dataset_id : str, optional
            Only of this dataset.
        """
        body: dict[str, Any] = {"url": url, "event_types": list(event_types)}
        body |= {"dataset_id": dataset_id} if dataset_id is not None else {}
        body |= {"description": description} if description else {}
        while True:
            made = (yield post("webhooks", body)).read(read_as.webhook)
            if made.secret is not None:
                return made
            yield delete(f"webhooks/{made.id}")

    @listing
    def webhooks(self) -> Listing[Webhook]:
        """Every webhook of the tenant, without secrets."""
        return Listing("webhooks", read_as.webhook)

    @call
    def get_webhook(self, webhook_id: str) -> Steps[Webhook]:
        """One webhook."""
        return (yield get(f"webhooks/{webhook_id}")).read(read_as.webhook)

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
        """Change what may change; what is left out stays. Disabled, it is told nothing."""
        changes = {
            "url": url,
            "event_types": None if event_types is None else list(event_types),
            "description": description,
            "enabled": enabled,
        }
        return (yield patch(f"webhooks/{webhook_id}", changes)).read(read_as.webhook)

    @call
    def delete_webhook(self, webhook_id: str) -> Steps[None]:
        """Tell the address nothing more."""
        yield delete(f"webhooks/{webhook_id}")

    @call
    def rotate_webhook_secret(self, webhook_id: str, *, overlap_seconds: int = 86_400) -> Steps[Webhook]:
        """Make a new secret, in the answer alone; the one before signs beside it until the overlap is over.

        Where that one answer is lost, another is made.
        """
        while True:
            asked = post(f"webhooks/{webhook_id}/rotate", {"overlap_seconds": overlap_seconds})
            made = (yield asked).read(read_as.webhook)
            if made.secret is not None:
                return made

    @call
    def ping_webhook(self, webhook_id: str) -> Steps[Delivery]:
        """Send it a `webhook.ping`; the delivery tells what comes of it."""
        return (yield post(f"webhooks/{webhook_id}/test")).read(read_as.delivery)

    @listing
    def deliveries(self, webhook_id: str, *, state: DeliveryState | None = None) -> Listing[Delivery]:
        """What it was told, or is to be."""
        return Listing(f"webhooks/{webhook_id}/deliveries", read_as.delivery, {"state": state} if state else {})

    @call
    def get_delivery(self, webhook_id: str, delivery_id: str) -> Steps[Delivery]:
        """One delivery."""
        return (yield get(f"webhooks/{webhook_id}/deliveries/{delivery_id}")).read(read_as.delivery)

    @call
    def redeliver(self, webhook_id: str, delivery_id: str) -> Steps[Delivery]:
        """Send the same bytes once more, with all attempts anew."""
        return (yield post(f"webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver")).read(read_as.delivery)
