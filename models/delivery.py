"""Deliveries: what a webhook is to be told, written in the transaction in which it happened.

    pending ──(a 2xx answer)──► delivered ──(asked for again)──► pending
       │ ▲
       │ └──(any other answer, or none: later again)
       └──(the last attempt failed, or 410)──► failed ──(asked for again)──► pending

Whoever sends holds a delivery by a lease and a fence, like a worker its job: one that dies
is found by its lapsed lease, and what a stale one says is void. So each is delivered at
least once, and its id is the same at every attempt: a receiver drops what it knows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, ForeignKey, Index, Integer, String, Text, delete, func, or_, select
from sqlalchemy.orm import Mapped, Session, aliased, mapped_column

from models import webhook as webhooks
from models.dataset import Dataset
from models.db import SECOND, Base, Id, canonical_json, new_id
from models.errors import Conflict, NotFound, RecordsKeyMissing, RecordsUnreadable
from models.sealing import Keyring
from models.tenant import Caller
from models.webhook import EventType, Webhook

PING = "webhook.ping"  # what a test sends; nobody subscribes to it

_MINUTE, _HOUR, _DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
DELAYS = (  # before each further attempt: three days in all
    *(5 * SECOND, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR),
    *(10 * _HOUR, 10 * _HOUR, 20 * _HOUR, 24 * _HOUR),
)
JITTER = 0.1  # each delay is up to so much shorter or longer, so that not all come back at once
MAX_RETRY_AFTER = _DAY  # a receiver may ask for so long a pause, and no longer
DISABLE_AFTER = 5 * _DAY  # a webhook that took nothing for so long is disabled
AT_ONCE_OF_A_WEBHOOK = 4  # a receiver that hangs holds no more of the senders than that
GONE = 410
SECRET_UNREADABLE = "secret_unreadable"  # noqa: S105 - the master key that seals it is not here
_WAIT_FOR_A_KEY = 5 * _MINUTE
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"  # to be sent, or being sent
    DELIVERED = "delivered"  # answered with a status 2xx
    FAILED = "failed"  # given up


class Delivery(Base):
    """One thing that happened, for one webhook."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (Index("ix_webhook_deliveries_state_next_attempt_at", "state", "next_attempt_at"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"), index=True)
    dataset_id: Mapped[str | None] = mapped_column(Id, index=True, comment="what it is about; none of a ping")
    event_type: Mapped[str] = mapped_column(String(40), comment="what happened")
    payload: Mapped[str] = mapped_column(Text, comment="the body, the same bytes at every attempt")
    state: Mapped[str] = mapped_column(String(10), comment="pending, delivered or failed")
    attempts: Mapped[int] = mapped_column(Integer, comment="since it was made, or asked for again")
    fence: Mapped[int] = mapped_column(BigInteger, comment="raised by every claim")
    next_attempt_at: Mapped[int | None] = mapped_column(BigInteger, comment="due then; none: it is over")
    lease_until: Mapped[int | None] = mapped_column(BigInteger, comment="a gateway sends it until then")
    last_status: Mapped[int | None] = mapped_column(Integer, comment="HTTP status of the last answer")
    last_error: Mapped[str | None] = mapped_column(String(40), comment="why the last attempt failed, as a code")
    created_at: Mapped[int] = mapped_column(BigInteger, index=True, comment="as told: of jobs over records, coarsely")


@dataclass(frozen=True, slots=True)
class Held:
    """A gateway's hold on a delivery, and all it needs to send it."""

    delivery_id: str
    fence: int
    url: str
    payload: str
    secrets: tuple[bytes, ...] = field(repr=False)  # newest first


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an attempt: the status of the answer, or why there was none."""

    status: int | None = None
    error: str | None = None
    retry_after_seconds: int | None = None

    @property
    def is_success(self) -> bool:
        """Whether the receiver has it."""
        return self.error is None and self.status is not None and 200 <= self.status < 300


# ---- what happened ----


def announce(
    session: Session, dataset_id: str, event_type: EventType, data: dict[str, Any], *, told: int, now: int
) -> None:
    """Queue a delivery to every webhook that wants this, in the transaction in which it happens.

    Parameters
    ----------
    data : dict
        What is told; nothing but what a key with `jobs` may read.
    told : int
        The time to tell: of a job over records not the moment itself (`Job.told`).
    now : int
        When to send it.
    """
    wanted = (
        select(Webhook)
        .join(Dataset, Dataset.tenant_id == Webhook.tenant_id)
        .where(
            Dataset.id == dataset_id,
            Webhook.enabled,
            or_(Webhook.dataset_id.is_(None), Webhook.dataset_id == dataset_id),
        )
        .order_by(Webhook.id)
        .with_for_update(read=True, key_share=True, of=Webhook)  # none is deleted before the delivery is there
    )
    for webhook in session.scalars(wanted).all():
        if event_type in webhook.event_types:
            _add(session, webhook, event_type, {**data, "dataset_id": dataset_id}, told=told, now=now)
    session.flush()


def ping(session: Session, caller: Caller, webhook_id: str, *, now: int) -> Delivery:
    """Queue a delivery that says nothing but which webhook it is for. Raises NotFound, Conflict (it is disabled)."""
    webhook = _enabled(session, caller, webhook_id)
    made = _add(session, webhook, PING, {"id": webhook.id}, told=now, now=now)
    session.flush()
    return made


def _add(session: Session, webhook: Webhook, event_type: str, data: dict[str, Any], *, told: int, now: int) -> Delivery:
    at = (_EPOCH + timedelta(microseconds=told)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # as the API writes times
    made = Delivery(
        id=new_id("msg", at=told),
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
        created_at=told,
    )
    session.add(made)
    return made


# ---- looking ----


def get(session: Session, caller: Caller, webhook_id: str, delivery_id: str) -> Delivery:
    """A delivery to a webhook of the caller's tenant; raises NotFound for every other."""
    webhooks.get(session, caller, webhook_id)
    found = session.get(Delivery, delivery_id)
    if found is None or found.webhook_id != webhook_id:
        raise NotFound("delivery")
    return found


def page(
    session: Session, caller: Caller, webhook_id: str, *, state: DeliveryState | None, after: str, limit: int
) -> list[Delivery]:
    """A webhook's deliveries, oldest first, from after an id. Raises NotFound."""
    webhooks.get(session, caller, webhook_id)
    query = select(Delivery).where(Delivery.webhook_id == webhook_id, Delivery.id > after)
    if state is not None:
        query = query.where(Delivery.state == state.value)
    return list(session.scalars(query.order_by(Delivery.id).limit(limit)))


def is_any_due(session: Session, *, now: int) -> bool:
    """Whether `claim` might find something to send: a look that locks nothing."""
    query = select(Delivery.id).join(Webhook, Webhook.id == Delivery.webhook_id).where(_is_due(now))
    return session.scalars(query.limit(1)).first() is not None


def n_pending(session: Session) -> int:
    """Deliveries that are not over, of all tenants."""
    return session.scalar(select(func.count()).where(Delivery.state == DeliveryState.PENDING.value)) or 0


# ---- sending ----


def claim(session: Session, keyring: Keyring, *, now: int, lease_microseconds: int, limit: int) -> list[Held]:
    """Take deliveries that are due, the longest waiting first, a few of each webhook.

    One whose secrets do not open is held without any: it cannot be sent from here.
    """
    sending = aliased(Delivery)
    under_way = (
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
        .where(_is_due(now), under_way < AT_ONCE_OF_A_WEBHOOK)
        .order_by(Delivery.next_attempt_at, Delivery.id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Delivery)
        .execution_options(populate_existing=True)
    )
    taken: list[Held] = []
    of_webhook: dict[str, int] = {}
    for delivery, url in session.execute(query).all():
        of_webhook[delivery.webhook_id] = of_webhook.get(delivery.webhook_id, 0) + 1
        if of_webhook[delivery.webhook_id] > AT_ONCE_OF_A_WEBHOOK:
            continue
        delivery.fence += 1
        delivery.attempts += 1
        delivery.lease_until = now + lease_microseconds
        secrets = _secrets(session, delivery.webhook_id, keyring, now)
        taken.append(Held(delivery.id, delivery.fence, url, delivery.payload, secrets))
    session.flush()
    return taken


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


def settle(session: Session, held: Held, outcome: Outcome, *, now: int, random: Callable[[], float]) -> str | None:
    """Write down what came of an attempt, unless somebody else holds the delivery by now.

    Parameters
    ----------
    random : callable
        Uniform in [0, 1), for the jitter.

    Returns
    -------
    str or None
        `delivered`, `retried`, `given_up` or `disabled` (the webhook with it); None where nothing was written.
    """
    webhook_id = session.scalar(select(Delivery.webhook_id).where(Delivery.id == held.delivery_id))
    if webhook_id is None:  # it went with its webhook, or its dataset
        return None
    webhook = session.get(Webhook, webhook_id, with_for_update={"key_share": True}, populate_existing=True)
    delivery = session.get(Delivery, held.delivery_id, with_for_update=True, populate_existing=True)
    if webhook is None or delivery is None or delivery.fence != held.fence or delivery.lease_until is None:
        return None
    delivery.lease_until, delivery.last_status, delivery.last_error = None, outcome.status, outcome.error
    if outcome.is_success:
        webhook.failing_since = None
        delivery.state, delivery.next_attempt_at = DeliveryState.DELIVERED.value, None
        return "delivered"
    if outcome.error == SECRET_UNREADABLE:  # no fault of the receiver's: not an attempt
        delivery.attempts -= 1
        delivery.next_attempt_at = now + _WAIT_FOR_A_KEY
        return "retried"
    webhook.failing_since = webhook.failing_since or now
    if outcome.status == GONE:
        webhooks.disable(webhook, "the receiver answered 410: it is gone for good")
        delivery.state, delivery.next_attempt_at = DeliveryState.FAILED.value, None
        return "disabled"
    if delivery.attempts > len(DELAYS):
        delivery.state, delivery.next_attempt_at = DeliveryState.FAILED.value, None
    else:
        stretch = 1 + JITTER * (2 * random() - 1)
        asked = min((outcome.retry_after_seconds or 0) * SECOND, MAX_RETRY_AFTER)
        delivery.next_attempt_at = now + max(round(DELAYS[delivery.attempts - 1] * stretch), asked)
    if webhook.enabled and now - webhook.failing_since >= DISABLE_AFTER:
        webhooks.disable(webhook, f"no delivery succeeded for {DISABLE_AFTER // _DAY} days")
        return "disabled"
    return "given_up" if delivery.state == DeliveryState.FAILED else "retried"


def again(session: Session, caller: Caller, webhook_id: str, delivery_id: str, *, now: int) -> Delivery:
    """Send a delivery once more, with the same id and bytes; one that is pending becomes due at once.

    Raises NotFound, Conflict (the webhook is disabled).
    """
    _enabled(session, caller, webhook_id)
    get(session, caller, webhook_id, delivery_id)
    found = session.get(Delivery, delivery_id, with_for_update=True, populate_existing=True)
    if found is None:  # it was just pruned
        raise NotFound("delivery")
    if found.state != DeliveryState.PENDING:
        found.state, found.attempts = DeliveryState.PENDING.value, 0
    found.next_attempt_at = now
    session.flush()
    return found


def _enabled(session: Session, caller: Caller, webhook_id: str) -> Webhook:
    webhook = webhooks.get(session, caller, webhook_id, lock=True)
    if not webhook.enabled:
        raise Conflict("this webhook is disabled: enable it first")
    return webhook


# ---- forgetting ----


def forget_rounds(session: Session, dataset_id: str) -> None:
    """Drop what waits to be told of a deleted dataset's rounds; its jobs can still be read."""
    waiting = select(Delivery.id).where(
        Delivery.dataset_id == dataset_id,
        Delivery.state == DeliveryState.PENDING.value,
        Delivery.event_type.in_((EventType.ROUND_OPENED.value, EventType.ROUND_CLOSED.value)),
    )
    ids = list(session.scalars(waiting.with_for_update(skip_locked=True)))  # whoever holds one is about to send it
    session.execute(delete(Delivery).where(Delivery.id.in_(ids)))


def is_any_old(session: Session, *, now: int, keep_microseconds: int) -> bool:
    """Whether `prune` would find something."""
    old = select(Delivery.id).where(Delivery.created_at <= now - keep_microseconds)
    return session.scalars(old.limit(1)).first() is not None


def prune(session: Session, *, now: int, keep_microseconds: int, limit: int) -> int:
    """Drop the oldest deliveries, over or not, that happened before the retention; how many."""
    old = select(Delivery.id).where(Delivery.created_at <= now - keep_microseconds).order_by(Delivery.created_at)
    ids = list(session.scalars(old.limit(limit).with_for_update(skip_locked=True)))
    session.execute(delete(Delivery).where(Delivery.id.in_(ids)))
    return len(ids)
