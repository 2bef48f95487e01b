"""Tenants, keys, console sessions, quotas and the audit trail.

A key grants access to the data of its tenant, within its scopes:

    live ──(revoked)──► dead            live ──(rotated)──► live until the end of the overlap ──► dead

A key can be rotated once. The last-used time is not stored, because it would reveal when the owner of a device
participated.

A console session maps the random token of a browser to a key. The key's secret is stored neither in the session nor in
the browser. Sessions that ended are deleted when another session begins:

    live ──(signed out | 12 h passed | key revoked or expired | too many sessions of the key)──► deleted

A tenant's quotas override the operator's settings. Turns make claims fair: the next claim takes a job of the tenant
with the fewest running jobs; among equals, of the tenant with the oldest turn.

The audit trail records each administrative action, in the transaction of the action. Events of a tenant form a hash
chain like a ledger, and are never changed or deleted. They contain names of changed fields but no private values.
"""

from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from models.database.types import Base, CanonicalJson, Id


class Scope(StrEnum):
    """Permission of a key."""

    ADMIN = "admin"  # all actions in the tenant, including keys
    DATASETS = "datasets"  # create and change datasets, open rounds
    GRANTS = "grants"  # grant budgets, label datasets with their source
    RECORDS = "records"  # upload and count raw records
    JOBS = "jobs"  # submit jobs, read results
    DEVICE = "device"  # fetch open rounds, send reports
    LEDGER = "ledger"  # read budgets and the ledger


class Tenant(Base):
    """An owner of datasets and keys."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")


class Key(Base):
    """An API key: a bearer secret of 256 random bits, stored as its SHA-256."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(100), comment="display name")
    secret_hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True, comment="SHA-256 of the secret")
    scopes: Mapped[list[str]] = mapped_column(CanonicalJson, comment="scopes of the key")
    dataset_id: Mapped[str | None] = mapped_column(Id, comment="only accessible dataset; null for all of the tenant")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    expires_at: Mapped[int | None] = mapped_column(BigInteger, comment="end of validity")
    revoked_at: Mapped[int | None] = mapped_column(BigInteger, comment="time of revocation")
    replaces: Mapped[str | None] = mapped_column(Id, comment="key from which this key was rotated")
    replaced_by: Mapped[str | None] = mapped_column(Id, comment="key to which this key was rotated")

    def is_live(self, now: int) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class ConsoleSession(Base):
    """A session of one browser, stored as the SHA-256 of its token."""

    __tablename__ = "console_sessions"

    token_hash: Mapped[bytes] = mapped_column(
        LargeBinary(32), primary_key=True, comment="SHA-256 of the cookie's token"
    )
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id"), index=True, comment="key that began the session")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    expires_at: Mapped[int] = mapped_column(BigInteger, comment="end of validity")


class TenantQuota(Base):
    """Quotas of a tenant and its last turn. Null means the operator's setting."""

    __tablename__ = "tenant_quotas"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    turn: Mapped[int] = mapped_column(BigInteger, comment="number of the last claim over all tenants; 0 if none")
    max_datasets: Mapped[int | None] = mapped_column(Integer, comment="datasets; null for the setting")
    max_active_jobs: Mapped[int | None] = mapped_column(Integer, comment="unfinished jobs; null for the setting")
    max_running_jobs: Mapped[int | None] = mapped_column(Integer, comment="jobs with a worker; null for no limit")
    max_open_rounds: Mapped[int | None] = mapped_column(Integer, comment="open rounds per dataset; null for setting")
    max_dataset_records: Mapped[int | None] = mapped_column(Integer, comment="records per dataset; null for setting")
    max_dataset_epsilon_nano: Mapped[int | None] = mapped_column(BigInteger, comment="granted to a dataset; or null")
    max_dataset_delta_atto: Mapped[int | None] = mapped_column(BigInteger, comment="granted to a dataset; or null")
    max_source_epsilon_nano: Mapped[int | None] = mapped_column(BigInteger, comment="charged to a source; or null")
    max_source_delta_atto: Mapped[int | None] = mapped_column(BigInteger, comment="charged to a source; or null")


class Act(StrEnum):
    """Kind of an audit event."""

    TENANT_CREATED = "tenant.created"
    QUOTA_UPDATED = "quota.updated"
    KEY_CREATED = "key.created"
    KEY_ROTATED = "key.rotated"
    KEY_REVOKED = "key.revoked"
    DATASET_CREATED = "dataset.created"
    DATASET_UPDATED = "dataset.updated"
    DATASET_DELETED = "dataset.deleted"
    SOURCE_SET = "source.set"
    GRANT_CREATED = "grant.created"
    BUDGET_CLOSED = "budget.closed"  # after the restore of an older backup
    RECORDS_UPLOADED = "records.uploaded"  # once per day, see `record_day`
    RECORDS_DELETED = "records.deleted"
    PERSON_DELETED = "person.deleted"  # the records of one person; the event does not name the person
    ROUND_CREATED = "round.created"
    ROUND_CLOSED = "round.closed"  # closed by a key; not when full, past its time, or at the end of its job
    TALLY_WITHHELD = "tally.withheld"  # a batch has fewer valid reports than honest ones were declared
    JOB_SUBMITTED = "job.submitted"
    JOB_CANCELED = "job.canceled"
    CLUSTERS_NAMED = "clusters.named"
    SERIES_CREATED = "series.created"
    SERIES_UPDATED = "series.updated"
    SERIES_REVISED = "series.revised"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_UPDATED = "webhook.updated"
    WEBHOOK_DELETED = "webhook.deleted"


class AuditHead(Base):
    """The end of a tenant's audit chain. Its row is the lock of the trail."""

    __tablename__ = "audit_heads"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, comment="number of the last event; 0 if none")
    hash: Mapped[str] = mapped_column(String(64), comment="hash of the last event; detects a removed tail")


class AuditEvent(Base):
    """One administrative action. Rows are never changed or deleted."""

    __tablename__ = "audit_events"
    __table_args__ = (
        UniqueConstraint("tenant_id", "seq"),
        Index("ix_audit_events_dataset_id_seq", "dataset_id", "seq"),
        Index("ix_audit_events_of_act", "tenant_id", "act", "seq"),
        Index("ix_audit_events_of_actor", "tenant_id", "actor", "seq"),
        Index("ix_audit_events_of_subject", "tenant_id", "subject_id", "seq"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("audit_heads.tenant_id"))
    seq: Mapped[int] = mapped_column(BigInteger, comment="1, 2, 3, ... within the tenant, without a gap")
    at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch; for uploads, start of the day")
    actor: Mapped[str] = mapped_column(Id, comment="key of the caller, or operator")
    act: Mapped[str] = mapped_column(String(40), comment="kind of action, for example key.created")
    subject_id: Mapped[str] = mapped_column(Id, comment="object of the action")
    dataset_id: Mapped[str | None] = mapped_column(Id, comment="dataset that contains the object, if any")
    request_id: Mapped[str | None] = mapped_column(String(40), comment="request id in the access log")
    details: Mapped[dict[str, Any]] = mapped_column(CanonicalJson, comment="names of changed fields; no private values")
    prev_hash: Mapped[str] = mapped_column(String(64), comment="hash of the previous event; zeros for the first")
    hash: Mapped[str] = mapped_column(String(64), comment="SHA-256 of this event's canonical JSON without this column")
