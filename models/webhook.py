"""Webhooks: addresses of a tenant's that are told what happens, and the secrets that sign what they are told.

A secret must be known to sign with, so it is kept, sealed by the master key that also seals
keys of records. After a rotation the one before signs too until it expires; there are never
more than two.
"""

import secrets as randomness
from base64 import b64encode
from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import BigInteger, Boolean, ForeignKey, LargeBinary, String, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import audit, tenant
from models import dataset as datasets
from models.audit import Act
from models.db import SCRUBBED, SECOND, Base, CanonicalJson, Id, new_id
from models.errors import LimitExceeded, NotFound
from models.sealing import Keyring
from models.tenant import Caller

SECRET_PREFIX = "whsec_"  # noqa: S105 - as Standard Webhooks has it; is no secret itself
SECRET_BYTES = 32
MAX_URL = 2000
MAX_OVERLAP_SECONDS = 7 * 86_400


class EventType(StrEnum):
    """What a webhook can be told; all of it, and no more, any key with `jobs` may read."""

    JOB_COLLECTING = "job.collecting"  # waits for devices
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELED = "job.canceled"
    JOB_EXPIRED = "job.expired"
    ROUND_OPENED = "round.opened"
    ROUND_CLOSED = "round.closed"


class Webhook(Base):
    """Who is told, and of what."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    url: Mapped[str] = mapped_column(String(MAX_URL), comment="where to; the service checks it")
    event_types: Mapped[list[str]] = mapped_column(CanonicalJson, comment="of what it is told")
    dataset_id: Mapped[str | None] = mapped_column(Id, comment="the only dataset it is told of, where set")
    description: Mapped[str] = mapped_column(String(200), comment="for people")
    enabled: Mapped[bool] = mapped_column(Boolean, comment="what is not, is told nothing")
    disabled_reason: Mapped[str | None] = mapped_column(String(200), comment="where the service disabled it")
    failing_since: Mapped[int | None] = mapped_column(BigInteger, comment="first failure since the last success")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")


class WebhookSecret(Base):
    """One of at most two secrets of a webhook, sealed."""

    __tablename__ = "webhook_secrets"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"), index=True)
    sealed_by: Mapped[str] = mapped_column(String(16), index=True, comment="the master key that opens it")
    sealed: Mapped[bytes] = mapped_column(LargeBinary, comment="nonce, ciphertext and tag of the secret")
    expires_at: Mapped[int | None] = mapped_column(BigInteger, comment="signs nothing from then on; none: the current")


def create(
    session: Session,
    caller: Caller,
    keyring: Keyring,
    *,
    url: str,
    event_types: Sequence[EventType],
    dataset_id: str | None,
    description: str,
    max_webhooks: int,
    now: int,
) -> tuple[Webhook, str]:
    """A new webhook and its secret, which is shown this once. Raises NotFound (the dataset), LimitExceeded."""
    if dataset_id is not None:
        datasets.get(session, caller, dataset_id)
    tenant.lock(session, caller.tenant_id)
    held = session.scalar(select(func.count()).where(Webhook.tenant_id == caller.tenant_id))
    if held is not None and held >= max_webhooks:
        raise LimitExceeded(f"a tenant may have {max_webhooks} webhooks")
    webhook = Webhook(
        id=new_id("whk"),
        tenant_id=caller.tenant_id,
        url=url,
        event_types=sorted(set(event_types)),
        dataset_id=dataset_id,
        description=description,
        enabled=True,
        disabled_reason=None,
        failing_since=None,
        created_at=now,
    )
    session.add(webhook)
    session.flush()
    secret = _new_secret(session, webhook.id, keyring)
    audit.record(session, caller, Act.WEBHOOK_CREATED, webhook.id, dataset_id=dataset_id, now=now)
    return webhook, secret


def get(session: Session, caller: Caller, webhook_id: str, *, lock: bool = False) -> Webhook:
    """A webhook of the caller's tenant; raises NotFound for every other.

    `lock` keeps it from being changed until the commit, and leaves others free to queue deliveries to it.
    """
    with_lock = {"key_share": True} if lock else None
    found = session.get(Webhook, webhook_id, with_for_update=with_lock, populate_existing=lock)
    if found is None or found.tenant_id != caller.tenant_id:
        raise NotFound("webhook")
    return found


def page(session: Session, caller: Caller, *, after: str, limit: int) -> list[Webhook]:
    """The tenant's webhooks, oldest first, from after an id."""
    query = select(Webhook).where(Webhook.tenant_id == caller.tenant_id, Webhook.id > after)
    return list(session.scalars(query.order_by(Webhook.id).limit(limit)))


def change(
    session: Session,
    caller: Caller,
    webhook_id: str,
    *,
    url: str | None,
    event_types: Sequence[EventType] | None,
    description: str | None,
    enabled: bool | None,
    now: int,
) -> Webhook:
    """Change what may change; its dataset never does. Enabling begins anew: earlier failures are forgotten.

    What waits to be delivered goes to the address it has then. Raises NotFound.
    """
    found = get(session, caller, webhook_id, lock=True)
    kinds = None if event_types is None else sorted(set(event_types))
    given = {"url": url, "event_types": kinds, "description": description, "enabled": enabled}
    names = [name for name, value in given.items() if value not in (None, getattr(found, name))]
    if url is not None:
        found.url = url
    if kinds is not None:
        found.event_types = [*kinds]
    if description is not None:
        found.description = description
    if enabled is not None:
        found.enabled, found.disabled_reason, found.failing_since = enabled, None, None
    if names:
        _audit_change(session, caller, found, names, now)
    return found


def _audit_change(session: Session, caller: Caller, webhook: Webhook, names: list[str], now: int) -> None:
    details = audit.changed(names)
    audit.record(
        session, caller, Act.WEBHOOK_UPDATED, webhook.id, dataset_id=webhook.dataset_id, details=details, now=now
    )


def remove(session: Session, caller: Caller, webhook_id: str, *, now: int) -> None:
    """Forget a webhook, its secrets, and all deliveries to it. Raises NotFound."""
    found = get(session, caller, webhook_id, lock=True)
    session.execute(delete(Webhook).where(Webhook.id == webhook_id))  # the rest goes with it
    session.info[SCRUBBED] = True
    audit.record(session, caller, Act.WEBHOOK_DELETED, webhook_id, dataset_id=found.dataset_id, now=now)


def disable(webhook: Webhook, reason: str) -> None:
    """Tell it nothing more, until somebody enables it. The caller holds its row."""
    webhook.enabled, webhook.disabled_reason = False, reason


# ---- secrets ----


def rotate_secret(
    session: Session, caller: Caller, webhook_id: str, keyring: Keyring, *, overlap_seconds: int, now: int
) -> tuple[Webhook, str]:
    """A new secret; the one before signs beside it for so long, and those before that no more. Raises NotFound."""
    found = get(session, caller, webhook_id, lock=True)
    for stored in _secrets(session, webhook_id):
        if stored.expires_at is None and overlap_seconds:
            stored.expires_at = now + overlap_seconds * SECOND
        else:
            session.delete(stored)
    session.flush()
    session.info[SCRUBBED] = True
    secret = _new_secret(session, webhook_id, keyring)
    _audit_change(session, caller, found, ["secret"], now)
    return found, secret


def live_secrets(session: Session, webhook_id: str, keyring: Keyring, *, now: int) -> list[bytes]:
    """What signs a delivery now, newest first. Raises RecordsKeyMissing, RecordsUnreadable."""
    return [
        keyring.unseal(stored.sealed_by, stored.sealed, _belongs_to(stored))
        for stored in _secrets(session, webhook_id)
        if stored.expires_at is None or stored.expires_at > now
    ]


def _secrets(session: Session, webhook_id: str) -> list[WebhookSecret]:
    """Newest first."""
    found = session.scalars(select(WebhookSecret).where(WebhookSecret.webhook_id == webhook_id))
    return sorted(found, key=lambda each: (each.expires_at is None, each.expires_at), reverse=True)


def _new_secret(session: Session, webhook_id: str, keyring: Keyring) -> str:
    secret = randomness.token_bytes(SECRET_BYTES)
    stored = WebhookSecret(
        id=new_id("whs"), webhook_id=webhook_id, sealed_by=keyring.newest_id, sealed=b"", expires_at=None
    )
    stored.sealed = keyring.seal(secret, _belongs_to(stored))
    session.add(stored)
    session.flush()
    return SECRET_PREFIX + b64encode(secret).decode()


def _belongs_to(stored: WebhookSecret) -> bytes:
    return f"sfumato webhook secret|{stored.webhook_id}|{stored.id}|".encode()


def masters_in_use(session: Session) -> set[str]:
    """What the master keys are called that seal secrets."""
    return set(session.scalars(select(WebhookSecret.sealed_by).distinct()))


def outdated(session: Session, keyring: Keyring, *, after: str, limit: int) -> list[str]:
    """Secrets that another than the newest master key seals, in order, from after an id."""
    query = select(WebhookSecret.id).where(WebhookSecret.sealed_by != keyring.newest_id, WebhookSecret.id > after)
    return list(session.scalars(query.order_by(WebhookSecret.id).limit(limit)))


def reseal(session: Session, secret_id: str, keyring: Keyring) -> None:
    """Seal a secret with the newest master key; nothing where it is gone or is sealed so.

    Raises
    ------
    RecordsKeyMissing, RecordsUnreadable
        No master key here opens it; it was changed. It stays as it was.
    """
    stored = session.get(WebhookSecret, secret_id, with_for_update=True, populate_existing=True)
    if stored is None or stored.sealed_by == keyring.newest_id:
        return
    secret = keyring.unseal(stored.sealed_by, stored.sealed, _belongs_to(stored))
    stored.sealed, stored.sealed_by = keyring.seal(secret, _belongs_to(stored)), keyring.newest_id
    session.info[SCRUBBED] = True
