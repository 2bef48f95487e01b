"""Enqueue deliveries to webhooks, claim them for sending, and store the outcomes.

`models.tables.webhooks` shows the states of a delivery.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, or_, select
from sqlalchemy.orm import Session, aliased

from models.database.types import SECOND, canonical_json, new_id, select_page
from models.encryption import Keyring
from models.errors import Conflict, NotFound, RecordsKeyMissing, RecordsUnreadable
from models.identity.caller import Caller
from models.tables.datasets import Dataset
from models.tables.webhooks import Delivery, DeliveryState, EventType, Webhook
from models.webhooks import webhooks

PING = "webhook.ping"  # event type of a test; webhooks cannot subscribe to it

_MINUTE, _HOUR, _DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
DELAYS = (  # before each further attempt, three days in total
    *(5 * SECOND, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR),
    *(10 * _HOUR, 10 * _HOUR, 20 * _HOUR, 24 * _HOUR),
)
JITTER = 0.1  # relative random change of each delay, so that retries spread
MAX_RETRY_AFTER = _DAY  # longest pause that a receiver can request
DISABLE_AFTER = 5 * _DAY  # a webhook is disabled if all attempts of this time failed
QUIET = 2 * _DAY  # time without a failed attempt that ends a series of failures; longer than any delay
MAX_CONCURRENT = 4  # simultaneous deliveries per webhook, so that one slow receiver cannot block all senders
GONE = 410
SECRET_UNREADABLE = "secret_unreadable"  # noqa: S105 - error code for a missing master key
_KEY_RETRY = 5 * _MINUTE  # delay after a missing master key
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeliveryLease:
    """A sender's lease on a delivery, with everything needed to send it."""

    delivery_id: str
    fence: int
    url: str
    payload: str
    secrets: tuple[bytes, ...] = field(repr=False)  # newest first


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of an attempt: the status of the response, or an error code."""

    status: int | None = None
    error: str | None = None
    retry_after_seconds: int | None = None

    @property
    def is_success(self) -> bool:
        """Return whether the receiver accepted the delivery."""
        return self.error is None and self.status is not None and 200 <= self.status < 300


# ---- events ----


def enqueue(
    session: Session, dataset_id: str, event_type: EventType, data: dict[str, Any], *, public_time: int, now: int
) -> None:
    """Enqueue a delivery to every webhook with this event type, in the transaction of the event.

    Parameters
    ----------
    data : dict
        Facts that a key with the scope `jobs` may read.
    public_time : int
        Time of the event to publish, see `Job.public_time`.
    now : int
        Time of the first attempt.
    """
    receivers = (
        select(Webhook)
        .join(Dataset, Dataset.tenant_id == Webhook.tenant_id)
        .where(
            Dataset.id == dataset_id,
            Webhook.enabled,
            or_(Webhook.dataset_id.is_(None), Webhook.dataset_id == dataset_id),
        )
        .order_by(Webhook.id)
        .with_for_update(read=True, key_share=True, of=Webhook)  # prevents a concurrent deletion
    )
    for webhook in session.scalars(receivers).all():
        if event_type in webhook.event_types:
            _add(session, webhook, event_type, {**data, "dataset_id": dataset_id}, public_time=public_time, now=now)
    session.flush()


def ping(session: Session, caller: Caller, webhook_id: str, *, now: int) -> Delivery:
    """Enqueue a test delivery with the webhook's id. Raise NotFound, Conflict (if the webhook is disabled)."""
    webhook = _enabled(session, caller, webhook_id)
    delivery = _add(session, webhook, PING, {"id": webhook.id}, public_time=now, now=now)
    session.flush()
    return delivery


def _add(
    session: Session, webhook: Webhook, event_type: str, data: dict[str, Any], *, public_time: int, now: int
) -> Delivery:
    at = (_EPOCH + timedelta(microseconds=public_time)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # format of times in the API
    delivery = Delivery(
        id=new_id("msg", at=public_time),
        webhook_id=webhook.id,
        dataset_id=data.get("dataset_id"),
        event_type=str(event_type),
        payload=canonical_json({"type": event_type, "timestamp": at, "data": data}),
        state=DeliveryState.PENDING.value,
        attempts=0,
        fence=0,
        next_attempt_at=now,
        lease_until=None,
        last_status=None,
        last_error=None,
        created_at=public_time,
    )
    session.add(delivery)
    return delivery


# ---- queries ----


def get(session: Session, caller: Caller, webhook_id: str, delivery_id: str) -> Delivery:
    """Return a delivery to a webhook of the caller's tenant. Raise NotFound."""
    webhooks.get(session, caller, webhook_id)
    found = session.get(Delivery, delivery_id)
    if found is None or found.webhook_id != webhook_id:
        raise NotFound("delivery")
    return found


def page(
    session: Session,
    caller: Caller,
    webhook_id: str,
    *,
    state: DeliveryState | None,
    after: str,
    limit: int,
    newest_first: bool = False,
) -> list[Delivery]:
    """Return a webhook's deliveries after id `after`, in order. Raise NotFound."""
    webhooks.get(session, caller, webhook_id)
    query = select(Delivery).where(Delivery.webhook_id == webhook_id)
    if state is not None:
        query = query.where(Delivery.state == state.value)
    return list(session.scalars(select_page(query, Delivery.id, after=after, limit=limit, newest_first=newest_first)))


def is_any_due(session: Session, *, now: int) -> bool:
    """Return whether a claim might find a delivery. This check locks no row."""
    query = select(Delivery.id).join(Webhook, Webhook.id == Delivery.webhook_id).where(_is_due(now))
    return session.scalars(query.limit(1)).first() is not None


def count_pending(session: Session) -> int:
    """Return the number of pending deliveries of all tenants."""
    return session.scalar(select(func.count()).where(Delivery.state == DeliveryState.PENDING.value)) or 0


# ---- sending ----


def claim(session: Session, keyring: Keyring, *, now: int, lease_microseconds: int, limit: int) -> list[DeliveryLease]:
    """Claim due deliveries, oldest first, at most `MAX_CONCURRENT` per webhook.

    A lease without secrets means that the keyring cannot decrypt them, so that this sender cannot send the delivery.
    """
    sending = aliased(Delivery)
    n_sending = (
        select(func.count())
        .where(
            sending.webhook_id == Delivery.webhook_id,
            sending.state == DeliveryState.PENDING.value,
            sending.lease_until > now,
        )
        .correlate(Delivery)
        .scalar_subquery()
    )
    query = (
        select(Delivery, Webhook.url)
        .join(Webhook, Webhook.id == Delivery.webhook_id)
        .where(_is_due(now), n_sending < MAX_CONCURRENT)
        .order_by(Delivery.next_attempt_at, Delivery.id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Delivery)
        .execution_options(populate_existing=True)
    )
    leases: list[DeliveryLease] = []
    n_claimed = Counter[str]()
    for delivery, url in session.execute(query).all():
        n_claimed[delivery.webhook_id] += 1
        if n_claimed[delivery.webhook_id] > MAX_CONCURRENT:
            continue
        delivery.fence += 1
        delivery.attempts += 1
        delivery.lease_until = now + lease_microseconds
        secrets = _secrets(session, delivery.webhook_id, keyring, now)
        leases.append(DeliveryLease(delivery.id, delivery.fence, url, delivery.payload, secrets))
    session.flush()
    return leases


def _secrets(session: Session, webhook_id: str, keyring: Keyring, now: int) -> tuple[bytes, ...]:
    try:
        return tuple(webhooks.live_secrets(session, webhook_id, keyring, now=now))
    except (RecordsKeyMissing, RecordsUnreadable):
        return ()


def _is_due(now: int) -> ColumnElement[bool]:
    return (
        (Delivery.state == DeliveryState.PENDING.value)
        & (Delivery.next_attempt_at <= now)
        & or_(Delivery.lease_until.is_(None), Delivery.lease_until <= now)
        & Webhook.enabled
    )


def settle(
    session: Session, lease: DeliveryLease, outcome: DeliveryOutcome, *, now: int, random: Callable[[], float]
) -> str | None:
    """Store the outcome of an attempt, unless another sender has claimed the delivery since.

    Parameters
    ----------
    random : callable
        Uniform numbers in [0, 1), for the jitter.

    Returns
    -------
    str or None
        `delivered`, `retried`, `given_up`, or `disabled` (the webhook); None if the lease is stale.
    """
    webhook_id = session.scalar(select(Delivery.webhook_id).where(Delivery.id == lease.delivery_id))
    if webhook_id is None:  # deleted with its webhook or dataset
        return None
    webhook = session.get(Webhook, webhook_id, with_for_update={"key_share": True}, populate_existing=True)
    delivery = session.get(Delivery, lease.delivery_id, with_for_update=True, populate_existing=True)
    if webhook is None or delivery is None or delivery.fence != lease.fence or delivery.lease_until is None:
        return None
    if delivery.state != DeliveryState.PENDING:
        return None
    is_failing = webhook.failing_since is not None and _failed_recently(session, webhook_id, now)
    delivery.lease_until, delivery.last_status, delivery.last_error = None, outcome.status, outcome.error
    if outcome.is_success:
        webhook.failing_since = None
        delivery.state, delivery.next_attempt_at = DeliveryState.DELIVERED.value, None
        return "delivered"
    if outcome.error == SECRET_UNREADABLE:  # not the receiver's fault, so it is not counted as an attempt
        delivery.attempts -= 1
        delivery.next_attempt_at = now + _KEY_RETRY
        return "retried"
    if not is_failing or webhook.failing_since is None:
        webhook.failing_since = now
    if outcome.status == GONE:
        webhooks.disable(webhook, "the receiver responded with status 410 (gone)")
        _give_up(delivery, now)
        return "disabled"
    if delivery.attempts > len(DELAYS):
        _give_up(delivery, now)
    else:
        stretch = 1 + JITTER * (2 * random() - 1)
        requested = min((outcome.retry_after_seconds or 0) * SECOND, MAX_RETRY_AFTER)
        delivery.next_attempt_at = now + max(round(DELAYS[delivery.attempts - 1] * stretch), requested)
    if webhook.enabled and now - webhook.failing_since >= DISABLE_AFTER:
        webhooks.disable(webhook, f"all attempts of {DISABLE_AFTER // _DAY} days failed")
        return "disabled"
    return "given_up" if delivery.state == DeliveryState.FAILED else "retried"


def _give_up(delivery: Delivery, now: int) -> None:
    delivery.state, delivery.next_attempt_at = DeliveryState.FAILED.value, None
    delivery.lease_until = now  # read by `_failed_recently`


def _failed_recently(session: Session, webhook_id: str, now: int) -> bool:
    """Return whether an attempt at this webhook failed within `QUIET` before the current one.

    Without this check, a failure after a quiet time, or after an outage of all gateways, would count as one of many.
    """
    is_leased = case((Delivery.lease_until.is_not(None), 1), else_=0)
    waits = (
        (Delivery.state == DeliveryState.PENDING.value)
        & (Delivery.attempts - is_leased >= 1)
        & (Delivery.next_attempt_at > now - QUIET)
    )
    has_ended = (Delivery.state == DeliveryState.FAILED.value) & (Delivery.lease_until > now - QUIET)
    recent = select(Delivery.id).where(Delivery.webhook_id == webhook_id, or_(waits, has_ended))
    return session.scalars(recent.limit(1)).first() is not None


def redeliver(session: Session, caller: Caller, webhook_id: str, delivery_id: str, *, now: int) -> Delivery:
    """Repeat a delivery with the same id and body. A pending delivery becomes due at once.

    Raise NotFound, Conflict (if the webhook is disabled).
    """
    _enabled(session, caller, webhook_id)
    get(session, caller, webhook_id, delivery_id)
    found = session.get(Delivery, delivery_id, with_for_update=True, populate_existing=True)
    if found is None:  # pruned by another transaction
        raise NotFound("delivery")
    if found.state != DeliveryState.PENDING:
        found.state, found.attempts, found.lease_until = DeliveryState.PENDING.value, 0, None
    found.next_attempt_at = now
    session.flush()
    return found


def _enabled(session: Session, caller: Caller, webhook_id: str) -> Webhook:
    webhook = webhooks.get(session, caller, webhook_id, lock=True)
    if not webhook.enabled:
        raise Conflict("this webhook is disabled: enable it first")
    return webhook


# ---- retention ----


def delete_round_events(session: Session, dataset_id: str) -> None:
    """Delete pending deliveries about the rounds of a deleted dataset. Jobs remain readable, so theirs stay."""
    pending = select(Delivery.id).where(
        Delivery.dataset_id == dataset_id,
        Delivery.state == DeliveryState.PENDING.value,
        Delivery.event_type.in_((EventType.ROUND_OPENED.value, EventType.ROUND_CLOSED.value)),
    )
    ids = list(session.scalars(pending.with_for_update(skip_locked=True)))  # locked ones are being sent
    session.execute(delete(Delivery).where(Delivery.id.in_(ids)))


def is_any_old(session: Session, *, now: int, keep_microseconds: int) -> bool:
    """Return whether `prune` would delete a delivery."""
    old = select(Delivery.id).where(Delivery.created_at <= now - keep_microseconds)
    return session.scalars(old.limit(1)).first() is not None


def prune(session: Session, *, now: int, keep_microseconds: int, limit: int) -> int:
    """Delete the oldest deliveries beyond the retention time, in any state. Return their number."""
    old = select(Delivery.id).where(Delivery.created_at <= now - keep_microseconds).order_by(Delivery.created_at)
    ids = list(session.scalars(old.limit(limit).with_for_update(skip_locked=True)))
    session.execute(delete(Delivery).where(Delivery.id.in_(ids)))
    return len(ids)
