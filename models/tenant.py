"""Tenants and their keys. A key sees its tenant's data only, within its scopes.

    live ──(revoked)──► dead            live ──(rotated: another is made)──► live until its overlap ends ──► dead

A key is replaced once. When it was used last is not kept: a key of one device would tell on
which days that person takes part.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import audit
from models.audit import OPERATOR, Act
from models.db import SECOND, Base, CanonicalJson, Id, insert_unless_there, new_id
from models.errors import Conflict, NotFound

SECRET_PREFIX = "sfk_"  # noqa: S105 - makes a leaked key recognisable, is no secret itself
FIRST_TENANT = "default"


class Scope(StrEnum):
    """What a key may do."""

    ADMIN = "admin"  # everything in its tenant, keys included
    DATASETS = "datasets"  # make and change datasets, grant budgets, open rounds
    RECORDS = "records"  # upload and count raw records
    JOBS = "jobs"  # submit jobs, read results
    DEVICE = "device"  # ask for the open round, send reports
    LEDGER = "ledger"  # read budgets and the ledger


class Tenant(Base):
    """Who datasets and keys belong to."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")


class Key(Base):
    """A bearer secret of 256 random bits, kept as its SHA-256."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(100), comment="for people")
    secret_hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True, comment="SHA-256 of the secret")
    scopes: Mapped[list[str]] = mapped_column(CanonicalJson, comment="what it may do")
    dataset_id: Mapped[str | None] = mapped_column(Id, comment="the only dataset it sees, where set")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    expires_at: Mapped[int | None] = mapped_column(BigInteger, comment="no use from then on")
    revoked_at: Mapped[int | None] = mapped_column(BigInteger, comment="no use since then")
    replaces: Mapped[str | None] = mapped_column(Id, comment="the key it was made in place of")
    replaced_by: Mapped[str | None] = mapped_column(Id, comment="the key that was made in its place")

    def is_live(self, now: int) -> bool:
        """Whether it opens anything."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a live key, as routes see it."""

    key_id: str
    tenant_id: str
    scopes: frozenset[str]
    dataset_id: str | None
    expires_at: int | None
    request_id: str | None = None  # of the request it asks by, for the audit trail

    def may(self, scope: Scope) -> bool:
        """Whether the key has the scope; `admin` has them all."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, dataset_id: str) -> bool:
        """Whether a dataset of its tenant is within the key's binding."""
        return self.dataset_id is None or self.dataset_id == dataset_id


def operator(tenant_id: str) -> Caller:
    """Whoever has the database in hand, by the command line; no key asks."""
    return Caller(OPERATOR, tenant_id, frozenset({Scope.ADMIN}), None, None)


def hash_secret(secret: str | bytes) -> bytes:
    """What is stored of a secret. It has 256 random bits, so one SHA-256 is enough."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


def get_or_create_tenant(session: Session, name: str, *, now: int) -> Tenant:
    """The tenant of this name; of several that create it at once, one does."""
    session.execute(insert_unless_there(session, Tenant).values(id=new_id("ten"), name=name, created_at=now))
    return session.scalars(select(Tenant).where(Tenant.name == name)).one()


def create_tenant(session: Session, name: str, *, now: int) -> Tenant:
    """A new tenant, made by the operator. Raises Conflict where there is one of this name."""
    made_id = new_id("ten")
    session.execute(insert_unless_there(session, Tenant).values(id=made_id, name=name, created_at=now))
    made = session.get(Tenant, made_id)
    if made is None:
        raise Conflict("there is such a tenant; `sfumato keys create --tenant` makes another key of it")
    audit.record(session, operator(made_id), Act.TENANT_CREATED, made_id, now=now)
    return made


def find_tenant(session: Session, name: str) -> Tenant | None:
    """The tenant of this name, if there is one."""
    return session.scalars(select(Tenant).where(Tenant.name == name)).first()


def list_tenants(session: Session) -> list[Tenant]:
    """Every tenant, the oldest first."""
    return list(session.scalars(select(Tenant).order_by(Tenant.id)))


def lock(session: Session, tenant_id: str) -> None:
    """Hold the tenant's row until the commit: whoever counts what it has, to compare with a limit, counts alone."""
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(key_share=True))


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
    """A new key and its secret, which is shown this once and not kept. Without `by`, the operator makes it."""
    key, secret = _add_key(
        session, tenant_id, name=name, scopes=scopes, dataset_id=dataset_id, expires_at=expires_at, now=now
    )
    details = {"scopes": key.scopes}
    audit.record(
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
    """The live key with this hash, or None. Looked up by hash: nothing to time."""
    key = session.scalars(select(Key).where(Key.secret_hash == secret_hash)).first()
    if key is None or not key.is_live(now):
        return None
    return Caller(key.id, key.tenant_id, frozenset(key.scopes), key.dataset_id, key.expires_at)


def list_keys(session: Session, tenant_id: str, *, after: str = "", limit: int = 1000) -> list[Key]:
    """A tenant's keys, oldest first, without secrets."""
    query = select(Key).where(Key.tenant_id == tenant_id, Key.id > after).order_by(Key.id).limit(limit)
    return list(session.scalars(query))


def rotate_key(
    session: Session,
    caller: Caller,
    key_id: str,
    *,
    overlap_microseconds: int,
    expires_at: int | None = None,
    now: int,
) -> tuple[Key, str]:
    """A key in place of another, of the same name, scopes and dataset, and its secret.

    The old one works until the overlap is over, or until it would have ended anyway; the new
    one until `expires_at`, or without it as long as the old one would have.

    Raises
    ------
    NotFound
    Conflict
        The old one is revoked, has expired, or was replaced already.
    """
    old = _locked_key(session, caller.tenant_id, key_id)
    if old.replaced_by is not None:
        raise Conflict("this key was replaced already: rotate the one that replaced it")
    if not old.is_live(now):
        raise Conflict("this key is revoked or has expired: make a new one")
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
    audit.record(session, caller, Act.KEY_ROTATED, old.id, dataset_id=old.dataset_id, details=details, now=now)
    return new, secret


def revoke_key(session: Session, tenant_id: str, key_id: str, *, by: Caller | None = None, now: int) -> Key:
    """End a key; revoking again changes nothing. Without `by`, the operator does it. Raises NotFound."""
    key = _locked_key(session, tenant_id, key_id)
    if key.revoked_at is None:
        key.revoked_at = now
        audit.record(session, by or operator(tenant_id), Act.KEY_REVOKED, key.id, dataset_id=key.dataset_id, now=now)
    return key


def _locked_key(session: Session, tenant_id: str, key_id: str) -> Key:
    key = session.get(Key, key_id, with_for_update=True, populate_existing=True)
    if key is None or key.tenant_id != tenant_id:
        raise NotFound("key")
    return key


def has_any_key(session: Session) -> bool:
    """Whether a first key was made already."""
    return session.scalars(select(Key.id).limit(1)).first() is not None
