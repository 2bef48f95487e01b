"""Create, find, rotate and revoke API keys. `models.tables.identity` describes their life cycle."""

import hashlib
import secrets
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.database.types import SECOND, new_id, select_page
from models.errors import Conflict, NotFound
from models.identity import audit_trail
from models.identity.caller import Caller, operator
from models.tables.identity import Act, Key, Scope

SECRET_PREFIX = "sfk_"  # noqa: S105 - makes leaked keys recognisable


def hash_secret(secret: str | bytes) -> bytes:
    """Return the stored form of a secret. It has 256 random bits, so one SHA-256 suffices."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


def create_key(
    session: Session,
    tenant_id: str,
    *,
    name: str,
    scopes: list[Scope],
    dataset_id: str | None = None,
    expires_at: int | None = None,
    by: Caller | None = None,
    now: int,
) -> tuple[Key, str]:
    """Create a key. Return it with its secret, which is not stored. Without `by`, the operator is the actor."""
    key, secret = _add_key(
        session, tenant_id, name=name, scopes=scopes, dataset_id=dataset_id, expires_at=expires_at, now=now
    )
    details = {"scopes": key.scopes}
    audit_trail.record(
        session, by or operator(tenant_id), Act.KEY_CREATED, key.id, dataset_id=dataset_id, details=details, now=now
    )
    return key, secret


def _add_key(
    session: Session,
    tenant_id: str,
    *,
    name: str,
    scopes: Sequence[str],
    dataset_id: str | None,
    expires_at: int | None,
    replaces: str | None = None,
    now: int,
) -> tuple[Key, str]:
    secret = SECRET_PREFIX + secrets.token_hex(32)
    key = Key(
        id=new_id("key"),
        tenant_id=tenant_id,
        name=name,
        secret_hash=hash_secret(secret),
        scopes=sorted({str(scope) for scope in scopes}),
        dataset_id=dataset_id,
        created_at=now,
        expires_at=expires_at,
        revoked_at=None,
        replaces=replaces,
        replaced_by=None,
    )
    session.add(key)
    session.flush()
    return key, secret


def authenticate(session: Session, secret_hash: bytes, *, now: int) -> Caller | None:
    """Return the live key with this hash, or None. The lookup by hash reveals nothing by its duration."""
    key = session.scalars(select(Key).where(Key.secret_hash == secret_hash)).first()
    if key is None or not key.is_live(now):
        return None
    return Caller(key.id, key.tenant_id, frozenset(key.scopes), key.dataset_id, key.expires_at)


def list_keys(
    session: Session, tenant_id: str, *, after: str = "", limit: int = 1000, newest_first: bool = False
) -> list[Key]:
    """Return a tenant's keys after id `after`, in order."""
    query = select(Key).where(Key.tenant_id == tenant_id)
    return list(session.scalars(select_page(query, Key.id, after=after, limit=limit, newest_first=newest_first)))


def rotate_key(
    session: Session,
    caller: Caller,
    key_id: str,
    *,
    overlap_microseconds: int,
    expires_at: int | None = None,
    now: int,
) -> tuple[Key, str]:
    """Create the successor of a key, with the same name, scopes and dataset. Return it with its secret.

    The old key expires at the end of the overlap, unless it would expire earlier. The new key expires at `expires_at`,
    or if that is None, when the old key would have expired.

    Raises
    ------
    NotFound
    Conflict
        If the old key is revoked, expired, or already rotated.
    """
    old = _locked_key(session, caller.tenant_id, key_id)
    if old.replaced_by is not None:
        raise Conflict("this key was already rotated: rotate its successor")
    if not old.is_live(now):
        raise Conflict("this key is revoked or expired: create a new key")
    lasts_until = old.expires_at if expires_at is None else expires_at
    new, secret = _add_key(
        session,
        caller.tenant_id,
        name=old.name,
        scopes=old.scopes,
        dataset_id=old.dataset_id,
        expires_at=lasts_until,
        replaces=old.id,
        now=now,
    )
    ends_at = now + overlap_microseconds
    old.replaced_by = new.id
    old.expires_at = ends_at if old.expires_at is None else min(old.expires_at, ends_at)
    details = {"overlap_seconds": overlap_microseconds // SECOND, "replaced_by": new.id}
    audit_trail.record(session, caller, Act.KEY_ROTATED, old.id, dataset_id=old.dataset_id, details=details, now=now)
    return new, secret


def revoke_key(session: Session, tenant_id: str, key_id: str, *, by: Caller | None = None, now: int) -> Key:
    """Revoke a key, unless it is revoked already. Without `by`, the operator is the actor. Raise NotFound."""
    key = _locked_key(session, tenant_id, key_id)
    if key.revoked_at is None:
        key.revoked_at = now
        audit_trail.record(
            session, by or operator(tenant_id), Act.KEY_REVOKED, key.id, dataset_id=key.dataset_id, now=now
        )
    return key


def _locked_key(session: Session, tenant_id: str, key_id: str) -> Key:
    key = session.get(Key, key_id, with_for_update=True, populate_existing=True)
    if key is None or key.tenant_id != tenant_id:
        raise NotFound("key")
    return key


def has_any_key(session: Session) -> bool:
    """Return whether any key exists."""
    return session.scalars(select(Key.id).limit(1)).first() is not None
