"""Tenants and their keys. A key sees its tenant's data only, within its scopes."""

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import Base, CanonicalJson, Id, insert_unless_there, new_id
from models.errors import NotFound

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

    def may(self, scope: Scope) -> bool:
        """Whether the key has the scope; `admin` has them all."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, dataset_id: str) -> bool:
        """Whether a dataset of its tenant is within the key's binding."""
        return self.dataset_id is None or self.dataset_id == dataset_id


def hash_secret(secret: str) -> bytes:
    """What is stored of a secret. It has 256 random bits, so one SHA-256 is enough."""
    return hashlib.sha256(secret.encode()).digest()


def get_or_create_tenant(session: Session, name: str, *, now: int) -> Tenant:
    """The tenant of this name; of several that create it at once, one does."""
    session.execute(insert_unless_there(session, Tenant).values(id=new_id("ten"), name=name, created_at=now))
    return session.scalars(select(Tenant).where(Tenant.name == name)).one()


def find_tenant(session: Session, name: str) -> Tenant | None:
    """The tenant of this name, if there is one."""
    return session.scalars(select(Tenant).where(Tenant.name == name)).first()


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
    now: int,
) -> tuple[Key, str]:
    """A new key and its secret, which is shown this once and not kept."""
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


def revoke_key(session: Session, tenant_id: str, key_id: str, *, now: int) -> Key:
    """End a key; revoking again changes nothing. Raises NotFound."""
    key = session.get(Key, key_id, with_for_update=True, populate_existing=True)
    if key is None or key.tenant_id != tenant_id:
        raise NotFound("key")
    if key.revoked_at is None:
        key.revoked_at = now
    return key


def has_any_key(session: Session) -> bool:
    """Whether a first key was made already."""
    return session.scalars(select(Key.id).limit(1)).first() is not None
