"""Sessions of the console: a browser showed a key once, and holds a random token in its place.

    live ──(signed out | twelve hours over | its key revoked or expired | too many of its key)──► gone

The key itself is not kept, neither here nor in the browser. What is not live any more is
removed as the next session begins.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import SECOND, Base
from models.tenant import Caller, Key

SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 20  # of one key; where one more begins, the oldest ends

_TOKEN_BYTES = 32


class ConsoleSession(Base):
    """One browser's, kept as the SHA-256 of its token."""

    __tablename__ = "console_sessions"

    token_hash: Mapped[bytes] = mapped_column(
        LargeBinary(32), primary_key=True, comment="SHA-256 of the cookie's token"
    )
    key_id: Mapped[str] = mapped_column(
        ForeignKey("keys.id"), index=True, comment="the key it was begun with, and ends with"
    )
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    expires_at: Mapped[int] = mapped_column(BigInteger, comment="no use from then on")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who a live session is.

    Attributes
    ----------
    caller : Caller
        Its key, as that is now.
    key_name : str
    csrf : str
        What a form has to bring along: it follows from the token, which a page of another site does not have.
    """

    caller: Caller
    key_name: str
    csrf: str


def begin(session: Session, caller: Caller, *, now: int) -> str:
    """A new session of a live key; its token, which is not kept."""
    session.execute(delete(ConsoleSession).where(ConsoleSession.expires_at <= now))
    held = session.scalars(
        select(ConsoleSession).where(ConsoleSession.key_id == caller.key_id).order_by(ConsoleSession.created_at)
    ).all()
    for oldest in held[: max(0, len(held) + 1 - MAX_SESSIONS)]:
        session.delete(oldest)
    token = secrets.token_hex(_TOKEN_BYTES)
    session.add(
        ConsoleSession(
            token_hash=_hash(token),
            key_id=caller.key_id,
            created_at=now,
            expires_at=min(now + SESSION_SECONDS * SECOND, caller.expires_at or now + SESSION_SECONDS * SECOND),
        )
    )
    session.flush()
    return token


def find(session: Session, token: str, *, now: int) -> SignedIn | None:
    """Who holds this token, if the session and its key are live."""
    row = session.execute(
        select(ConsoleSession, Key)
        .join(Key, Key.id == ConsoleSession.key_id)
        .where(ConsoleSession.token_hash == _hash(token))
    ).first()
    if row is None:
        return None
    held, key = row
    if held.expires_at <= now or not key.is_live(now):
        return None
    caller = Caller(key.id, key.tenant_id, frozenset(key.scopes), key.dataset_id, key.expires_at)
    ends_at = held.expires_at if key.expires_at is None else min(held.expires_at, key.expires_at)
    return SignedIn(replace(caller, expires_at=ends_at), key.name, _csrf(token))


def end(session: Session, token: str) -> None:
    """Sign out; again changes nothing."""
    session.execute(delete(ConsoleSession).where(ConsoleSession.token_hash == _hash(token)))


def _hash(token: str) -> bytes:
    """What is stored of a token. It has 256 random bits, so one SHA-256 is enough."""
    return hashlib.sha256(token.encode()).digest()


def _csrf(token: str) -> str:
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()
