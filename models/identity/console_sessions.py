"""Sessions of the console: a browser shows a key's secret once and receives a random token in exchange.

`models.tables.identity` describes their life cycle. Ended sessions are deleted when another session begins.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from models.database.types import SECOND
from models.identity.caller import Caller
from models.tables.identity import ConsoleSession, Key

SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 20  # sessions per key; a further one ends the oldest

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    """The identity of a live session.

    Attributes
    ----------
    caller : Caller
        The current state of the session's key.
    key_name : str
    csrf : str
        Token that forms must send. It derives from the session token, which other sites cannot read.
    """

    caller: Caller
    key_name: str
    csrf: str


def begin(session: Session, caller: Caller, *, now: int) -> str:
    """Create a session of a live key. Return its token, which is not stored."""
    session.execute(delete(ConsoleSession).where(ConsoleSession.expires_at <= now))
    sessions = session.scalars(
        select(ConsoleSession).where(ConsoleSession.key_id == caller.key_id).order_by(ConsoleSession.created_at)
    ).all()
    for oldest in sessions[: max(0, len(sessions) + 1 - MAX_SESSIONS)]:
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


def find(session: Session, token: str, *, now: int) -> SessionIdentity | None:
    """Return the identity of this token, or None unless the session and its key are live."""
    row = session.execute(
        select(ConsoleSession, Key)
        .join(Key, Key.id == ConsoleSession.key_id)
        .where(ConsoleSession.token_hash == _hash(token))
    ).first()
    if row is None:
        return None
    found, key = row
    if found.expires_at <= now or not key.is_live(now):
        return None
    caller = Caller(key.id, key.tenant_id, frozenset(key.scopes), key.dataset_id, key.expires_at)
    ends_at = found.expires_at if key.expires_at is None else min(found.expires_at, key.expires_at)
    return SessionIdentity(replace(caller, expires_at=ends_at), key.name, _csrf(token))


def end(session: Session, token: str) -> None:
    """Delete the session, if it exists."""
    session.execute(delete(ConsoleSession).where(ConsoleSession.token_hash == _hash(token)))


def _hash(token: str) -> bytes:
    """Return the stored form of a token. It has 256 random bits, so one SHA-256 suffices."""
    return hashlib.sha256(token.encode()).digest()


def _csrf(token: str) -> str:
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()
