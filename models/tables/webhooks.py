"""Webhooks, their secrets, and deliveries to them.

A webhook is an address of a tenant that receives events. Its secret signs the deliveries, so it is stored, encrypted by
the master key that also encrypts data keys. After a rotation the previous secret also signs until it expires; there are
at most two.

A delivery is written in the transaction of its event:

    pending ──(2xx response)──► delivered ──(redelivery requested)──► pending
       │ ▲
       │ └──(other response, or none: retry later)
       └──(last attempt failed, or 410)──► failed ──(redelivery requested)──► pending

A sender claims a delivery with a lease and a fence, like a worker its job. Another sender claims it after the lease has
expired, and outcomes with a stale fence are ignored. Each event is delivered at least once. The id of a delivery is the
same at every attempt, so receivers can drop duplicates.
"""

from enum import StrEnum

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from models.database.types import Base, CanonicalJson, Id

MAX_URL = 2000  # characters


class EventType(StrEnum):
    """Event that a webhook can receive. Any key with the scope `jobs` may read the same facts."""

    JOB_COLLECTING = "job.collecting"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELED = "job.canceled"
    JOB_EXPIRED = "job.expired"
    ROUND_OPENED = "round.opened"
    ROUND_CLOSED = "round.closed"
    SERIES_EVENT = "series.event"


class Webhook(Base):
    """A receiver of events."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    url: Mapped[str] = mapped_column(String(MAX_URL), comment="address of the receiver, checked by the gateway")
    event_types: Mapped[list[str]] = mapped_column(CanonicalJson, comment="events to deliver")
    dataset_id: Mapped[str | None] = mapped_column(Id, comment="only dataset with deliveries; null for all")
    description: Mapped[str] = mapped_column(String(200), comment="display text")
    enabled: Mapped[bool] = mapped_column(Boolean, comment="false stops deliveries")
    disabled_reason: Mapped[str | None] = mapped_column(String(200), comment="set if the service disabled it")
    failing_since: Mapped[int | None] = mapped_column(BigInteger, comment="first failure since the last success")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")


class WebhookSecret(Base):
    """One of at most two secrets of a webhook, encrypted."""

    __tablename__ = "webhook_secrets"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"), index=True)
    sealed_by: Mapped[str] = mapped_column(String(16), index=True, comment="id of the master key")
    sealed: Mapped[bytes] = mapped_column(LargeBinary, comment="nonce, ciphertext and tag of the secret")
    expires_at: Mapped[int | None] = mapped_column(BigInteger, comment="end of validity; null for the current secret")

    @property
    def belongs_to(self) -> bytes:
        """Return the associated data of the ciphertext."""
        return f"sfumato webhook secret|{self.webhook_id}|{self.id}|".encode()


class DeliveryState(StrEnum):
    """State of a delivery."""

    PENDING = "pending"  # due now or later
    DELIVERED = "delivered"  # the receiver responded with a status 2xx
    FAILED = "failed"  # no further attempt


class Delivery(Base):
    """One event for one webhook."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (Index("ix_webhook_deliveries_state_next_attempt_at", "state", "next_attempt_at"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"), index=True)
    dataset_id: Mapped[str | None] = mapped_column(Id, index=True, comment="dataset of the event; null for a ping")
    event_type: Mapped[str] = mapped_column(String(40), comment="event type")
    payload: Mapped[str] = mapped_column(Text, comment="body, identical at every attempt")
    state: Mapped[str] = mapped_column(String(10), comment="pending, delivered or failed")
    attempts: Mapped[int] = mapped_column(Integer, comment="attempts since creation or requested redelivery")
    fence: Mapped[int] = mapped_column(BigInteger, comment="number of claims; an outcome with a lower fence is stale")
    next_attempt_at: Mapped[int | None] = mapped_column(BigInteger, comment="time of the next attempt; null if final")
    lease_until: Mapped[int | None] = mapped_column(BigInteger, comment="end of the sender's lease")
    last_status: Mapped[int | None] = mapped_column(Integer, comment="HTTP status of the last response")
    last_error: Mapped[str | None] = mapped_column(String(40), comment="error code of the last attempt")
    created_at: Mapped[int] = mapped_column(BigInteger, index=True, comment="public time of the event")
