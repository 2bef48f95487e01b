"""What surrounds datasets and jobs: limits, the audit trail, webhooks and their deliveries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sfumato.resources import Wire, moment, moment_or_none

DeliveryState = Literal["pending", "delivered", "failed"]
EventType = Literal[
    "job.collecting", "job.succeeded", "job.failed", "job.canceled", "job.expired", "round.opened", "round.closed"
]


@dataclass(frozen=True, slots=True)
class Used:
    """How many there are of something, and how many there may be."""

    used: int | None  # None where the key may not see
    limit: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may have at once, and has."""

    datasets: Used
    active_jobs: Used
    max_running_jobs: int | None
    max_open_rounds: int
    max_dataset_records: int


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One act of administration; each has the hash of the one before."""

    id: str
    tenant_id: str
    seq: int
    at: datetime
    actor: str  # the key, or `operator`
    act: str
    subject_id: str
    dataset_id: str | None
    request_id: str | None
    details: Mapping[str, Any]
    prev_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that is told what happens; its secret is shown once, when it is made."""

    id: str
    url: str
    event_types: tuple[str, ...]
    dataset_id: str | None  # None: of all datasets
    description: str
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something a webhook was told, or is to be."""

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


def limits(wire: Wire) -> Limits:
    """Limits."""
    return Limits(
        datasets=_used(wire["datasets"]),
        active_jobs=_used(wire["active_jobs"]),
        max_running_jobs=wire["max_running_jobs"],
        max_open_rounds=wire["max_open_rounds"],
        max_dataset_records=wire["max_dataset_records"],
    )


def _used(wire: Wire) -> Used:
    return Used(wire["used"], wire["limit"])


def audit_event(wire: Wire) -> AuditEvent:
    """An event of the audit trail."""
    return AuditEvent(**{name: wire[name] for name in AuditEvent.__slots__} | {"at": moment(wire["at"])})


def webhook(wire: Wire) -> Webhook:
    """A webhook."""
    plain = ("id", "url", "dataset_id", "description", "enabled", "disabled_reason")
    return Webhook(
        **{name: wire[name] for name in plain},
        event_types=tuple(wire["event_types"]),
        created_at=moment(wire["created_at"]),
        secret=wire.get("secret"),
    )


def delivery(wire: Wire) -> Delivery:
    """A delivery."""
    times = {"next_attempt_at": moment_or_none(wire["next_attempt_at"]), "created_at": moment(wire["created_at"])}
    return Delivery(**{name: wire[name] for name in Delivery.__slots__} | times)
