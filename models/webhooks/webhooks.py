"""Create, change, find and delete webhooks, and rotate their secrets.

A secret is stored encrypted, because it is needed to sign. After a rotation the previous secret also signs until it
expires; there are at most two.
"""

import secrets as randomness
from base64 import b64encode
from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from models import datasets
from models.database.types import SCRUBBED, SECOND, new_id, select_page
from models.encryption import Keyring
from models.errors import LimitExceeded, NotFound
from models.identity import audit_trail, tenants
from models.identity.caller import Caller
from models.tables.identity import Act
from models.tables.webhooks import EventType, Webhook, WebhookSecret

SECRET_PREFIX = "whsec_"  # noqa: S105 - prefix of the Standard Webhooks specification
SECRET_BYTES = 32
MAX_OVERLAP_SECONDS = 7 * 86_400


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
    """Create a webhook. Return it with its secret. Raise NotFound (for the dataset), LimitExceeded."""
    if dataset_id is not None:
        datasets.get(session, caller, dataset_id)
    tenants.lock(session, caller.tenant_id)
    n_webhooks = session.scalar(select(func.count()).where(Webhook.tenant_id == caller.tenant_id))
    if n_webhooks is not None and n_webhooks >= max_webhooks:
        raise LimitExceeded(f"a tenant may have at most {max_webhooks} webhooks")
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
    audit_trail.record(session, caller, Act.WEBHOOK_CREATED, webhook.id, dataset_id=dataset_id, now=now)
    return webhook, secret


def get(session: Session, caller: Caller, webhook_id: str, *, lock: bool = False) -> Webhook:
    """Return a webhook of the caller's tenant. Raise NotFound.

    `lock` prevents changes until the commit, but allows other transactions to enqueue deliveries to the webhook.
    """
    with_lock = {"key_share": True} if lock else None
    found = session.get(Webhook, webhook_id, with_for_update=with_lock, populate_existing=lock)
    if found is None or found.tenant_id != caller.tenant_id:
        raise NotFound("webhook")
    return found


def page(session: Session, caller: Caller, *, after: str, limit: int, newest_first: bool = False) -> list[Webhook]:
    """Return the tenant's webhooks after id `after`, in order."""
    query = select(Webhook).where(Webhook.tenant_id == caller.tenant_id)
    return list(session.scalars(select_page(query, Webhook.id, after=after, limit=limit, newest_first=newest_first)))


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
    """Change the given fields. Enabling or disabling also resets the record of failures. Raise NotFound.

    Pending deliveries go to the new address.
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
    details = audit_trail.changed_fields(names)
    audit_trail.record(
        session, caller, Act.WEBHOOK_UPDATED, webhook.id, dataset_id=webhook.dataset_id, details=details, now=now
    )


def remove(session: Session, caller: Caller, webhook_id: str, *, now: int) -> None:
    """Delete a webhook, its secrets, and all deliveries to it. Raise NotFound."""
    found = get(session, caller, webhook_id, lock=True)
    session.execute(delete(Webhook).where(Webhook.id == webhook_id))  # cascades
    session.info[SCRUBBED] = True
    audit_trail.record(session, caller, Act.WEBHOOK_DELETED, webhook_id, dataset_id=found.dataset_id, now=now)


def disable(webhook: Webhook, reason: str) -> None:
    """Stop deliveries until a key enables the webhook. The caller has locked its row."""
    webhook.enabled, webhook.disabled_reason = False, reason


# ---- secrets ----


def rotate_secret(
    session: Session, caller: Caller, webhook_id: str, keyring: Keyring, *, overlap_seconds: int, now: int
) -> tuple[Webhook, str]:
    """Create a new secret and delete all but the previous one, which signs until the overlap ends. Raise NotFound."""
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
    """Return the valid secrets, newest first. Raise RecordsKeyMissing, RecordsUnreadable."""
    return [
        keyring.open_row(stored)
        for stored in _secrets(session, webhook_id)
        if stored.expires_at is None or stored.expires_at > now
    ]


def _secrets(session: Session, webhook_id: str) -> list[WebhookSecret]:
    """Return the secrets, newest first."""
    found = session.scalars(select(WebhookSecret).where(WebhookSecret.webhook_id == webhook_id))
    return sorted(found, key=lambda each: (each.expires_at is None, each.expires_at), reverse=True)


def _new_secret(session: Session, webhook_id: str, keyring: Keyring) -> str:
    secret = randomness.token_bytes(SECRET_BYTES)
    stored = WebhookSecret(id=new_id("whs"), webhook_id=webhook_id, expires_at=None)
    keyring.seal_row(stored, secret)
    session.add(stored)
    session.flush()
    return SECRET_PREFIX + b64encode(secret).decode()
