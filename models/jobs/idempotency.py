"""Idempotency keys: a repeated POST returns the stored response of the first one, and has no effect.

The response and the effect are stored in one transaction. On PostgreSQL, a concurrent repetition waits for the first
request at the unique key; on SQLite, at the write lock.

Uploads of records store a keyed hash of their idempotency key and of their body, with a secret of the dataset
(`DataKey.uploads`), never the values themselves or plain digests.
"""

from dataclasses import dataclass

from sqlalchemy import delete
from sqlalchemy.orm import Session

from models.database.types import SECOND, insert_if_absent
from models.errors import IdempotencyKeyReused
from models.tables.jobs import IdempotentResponse

KEEP_MICROSECONDS = 24 * 3600 * SECOND


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The stored response of a request."""

    status: int
    location: str | None
    body: bytes


def begin(session: Session, tenant_id: str, key: str, fingerprint: bytes, *, now: int) -> StoredResponse | None:
    """Take a key for this transaction and return None, or return the response stored for it.

    Raise IdempotencyKeyReused if the key was used for a different request.
    """
    session.execute(
        delete(IdempotentResponse).where(
            IdempotentResponse.tenant_id == tenant_id,
            IdempotentResponse.key == key,
            IdempotentResponse.created_at <= now - KEEP_MICROSECONDS,
        )
    )
    stored = None
    while stored is None:  # it may be deleted between the two statements
        claimed = session.execute(
            insert_if_absent(session, IdempotentResponse)
            .values(
                tenant_id=tenant_id, key=key, fingerprint=fingerprint, status=0, location=None, body=b"", created_at=now
            )
            .returning(IdempotentResponse.key)
        ).first()
        if claimed is not None:
            return None
        stored = session.get(IdempotentResponse, (tenant_id, key), populate_existing=True)
    if stored.fingerprint != fingerprint:
        raise IdempotencyKeyReused("this idempotency key was used for a different request")
    return StoredResponse(stored.status, stored.location, stored.body)


def finish(session: Session, tenant_id: str, key: str, response: StoredResponse) -> None:
    """Store the response."""
    stored = session.get_one(IdempotentResponse, (tenant_id, key))
    stored.status, stored.location, stored.body = response.status, response.location, response.body


def delete_expired(session: Session, *, now: int) -> None:
    """Delete responses older than a day."""
    session.execute(delete(IdempotentResponse).where(IdempotentResponse.created_at <= now - KEEP_MICROSECONDS))
