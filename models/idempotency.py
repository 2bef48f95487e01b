"""Idempotency keys: a repeated POST answers what the first one answered, and does nothing.

The stored answer and the effect are one transaction. On PostgreSQL a repeat that comes
while the first is under way waits for it at the unique key; on SQLite at the write lock.

Uploads of records keep neither their key nor a plain digest of their body, but both hashed
with a secret of their dataset (`DataKey.uploads`).
"""

from dataclasses import dataclass

from sqlalchemy import BigInteger, ForeignKey, Integer, LargeBinary, String, delete
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import SECOND, Base, insert_unless_there
from models.errors import IdempotencyKeyReused

KEEP_MICROSECONDS = 24 * 3600 * SECOND


class IdempotentAnswer(Base):
    """What a request with an idempotency key was answered."""

    __tablename__ = "idempotent_answers"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True, comment="the client's Idempotency-Key")
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32), comment="SHA-256 of method, path and body")
    status: Mapped[int] = mapped_column(Integer, comment="HTTP status, 0 while the first request is under way")
    location: Mapped[str | None] = mapped_column(String(200))
    body: Mapped[bytes] = mapped_column(LargeBinary, comment="the answer's JSON")
    created_at: Mapped[int] = mapped_column(BigInteger, index=True, comment="forgotten a day later")


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored answer."""

    status: int
    location: str | None
    body: bytes


def begin(session: Session, tenant_id: str, key: str, fingerprint: bytes, *, now: int) -> Answer | None:
    """Claim a key for this transaction, or find what it was answered before.

    Raises IdempotencyKeyReused where the key was used for another request.
    """
    session.execute(
        delete(IdempotentAnswer).where(
            IdempotentAnswer.tenant_id == tenant_id,
            IdempotentAnswer.key == key,
            IdempotentAnswer.created_at <= now - KEEP_MICROSECONDS,
        )
    )
    stored = None
    while stored is None:  # it may be forgotten between the two statements
        claimed = session.execute(
            insert_unless_there(session, IdempotentAnswer)
            .values(
                tenant_id=tenant_id, key=key, fingerprint=fingerprint, status=0, location=None, body=b"", created_at=now
            )
            .returning(IdempotentAnswer.key)
        ).first()
        if claimed is not None:
            return None
        stored = session.get(IdempotentAnswer, (tenant_id, key), populate_existing=True)
    if stored.fingerprint != fingerprint:
        raise IdempotencyKeyReused("this idempotency key was used for another request")
    return Answer(stored.status, stored.location, stored.body)


def finish(session: Session, tenant_id: str, key: str, answer: Answer) -> None:
    """Keep the answer beside its effect."""
    stored = session.get_one(IdempotentAnswer, (tenant_id, key))
    stored.status, stored.location, stored.body = answer.status, answer.location, answer.body


def forget(session: Session, *, now: int) -> None:
    """Drop the answers that are a day old."""
    session.execute(delete(IdempotentAnswer).where(IdempotentAnswer.created_at <= now - KEEP_MICROSECONDS))
