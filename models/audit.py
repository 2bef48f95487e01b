"""The audit trail: who did which act of administration, when. Append-only, kept for ever.

An act leaves one event, in its own transaction: what was refused, rolled back, or asked for
again without changing anything leaves none. Events say which thing was touched and the names
of what was changed, never values that are private. Reports, forecasts and whatever only reads
leave no event, so no hot path comes here.

A tenant's events are one chain, as a dataset's ledger is: numbered without a gap, each with
the hash of the one before. The number is given under the lock of the tenant's head row, which
is the last that any transaction takes (see `models.db`): so a reader who goes by numbers
misses nobody who commits later, and whoever changes an event, or cuts the end off, leaves
a chain that does not hold.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import SECOND, Base, CanonicalJson, Id, canonical_json, insert_unless_there, new_id

if TYPE_CHECKING:
    from models.tenant import Caller  # tenants and their keys record here; here it is the other way round

GENESIS_HASH = "0" * 64
OPERATOR = "operator"  # no key asked for it: whoever has the database in hand, by the command line

_DAY = 86_400 * SECOND
_EVENTS_AT_ONCE = 1000  # in memory, on a walk along the chain


class Act(StrEnum):
    """What was done."""

    TENANT_CREATED = "tenant.created"
    QUOTA_UPDATED = "quota.updated"  # of the tenant itself
    KEY_CREATED = "key.created"
    KEY_ROTATED = "key.rotated"
    KEY_REVOKED = "key.revoked"
    DATASET_CREATED = "dataset.created"
    DATASET_UPDATED = "dataset.updated"
    DATASET_DELETED = "dataset.deleted"
    GRANT_CREATED = "grant.created"
    BUDGET_CLOSED = "budget.closed"  # after an older backup was restored
    RECORDS_UPLOADED = "records.uploaded"  # once a day, see `record_day`
    RECORDS_DELETED = "records.deleted"
    ROUND_CREATED = "round.created"
    ROUND_CLOSED = "round.closed"  # by hand; not one that was full, past its time, or whose job ended
    JOB_SUBMITTED = "job.submitted"
    JOB_CANCELED = "job.canceled"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_UPDATED = "webhook.updated"
    WEBHOOK_DELETED = "webhook.deleted"


class AuditHead(Base):
    """The end of a tenant's chain; its row is the trail's lock."""

    __tablename__ = "audit_heads"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, comment="number of the last event, 0 for none")
    hash: Mapped[str] = mapped_column(String(64), comment="hash of the last event: shows a cut-off tail")


class AuditEvent(Base):
    """One act; never changed, never removed."""

    __tablename__ = "audit_events"
    __table_args__ = (
        UniqueConstraint("tenant_id", "seq"),
        Index("ix_audit_events_dataset_id_seq", "dataset_id", "seq"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("audit_heads.tenant_id"))
    seq: Mapped[int] = mapped_column(BigInteger, comment="1, 2, 3, ... of the tenant, without a gap")
    at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch; of uploads the day's beginning")
    actor: Mapped[str] = mapped_column(Id, comment="the key that asked for it, or operator")
    act: Mapped[str] = mapped_column(String(40), comment="what was done, as key.created")
    subject_id: Mapped[str] = mapped_column(Id, comment="what it was done to")
    dataset_id: Mapped[str | None] = mapped_column(Id, comment="the dataset it was within, where there is one")
    request_id: Mapped[str | None] = mapped_column(String(40), comment="the request's, as the access log has it")
    details: Mapped[dict[str, Any]] = mapped_column(CanonicalJson, comment="public: names of what changed, no values")
    prev_hash: Mapped[str] = mapped_column(String(64), comment="hash of the event before, zeros for the first")
    hash: Mapped[str] = mapped_column(String(64), comment="SHA-256 of this event's canonical JSON without itself")


@dataclass(frozen=True, slots=True)
class Verification:
    """What a walk along a chain found."""

    n_events: int
    head_hash: str
    broken_at: int | None  # seq of the first event that does not hold
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.broken_at is None


def record(
    session: Session,
    caller: "Caller",
    act: Act,
    subject_id: str,
    *,
    now: int,
    dataset_id: str | None = None,
    details: dict[str, Any] | None = None,
) -> AuditEvent:
    """Write down what the caller did; the last thing its transaction does, since others of the tenant wait for it.

    Parameters
    ----------
    caller : Caller
        Whose key; `models.tenant.operator` for what is done without one.
    act : Act
    subject_id : str
        What it was done to: whoever may read the trail may know its id.
    dataset_id : str, optional
        The dataset it was within.
    details : dict, optional
        Public, small, JSON.
    """
    return _append(session, caller, act, subject_id, dataset_id, caller.request_id, details or {}, now)


def record_day(session: Session, caller: "Caller", act: Act, dataset_id: str, *, now: int) -> AuditEvent | None:
    """Write down that this key did this to this dataset today, the first time it does; else nothing.

    How many records there are is private, and so is how often and when they came, where each
    upload may be one person's. So the event tells the day and no request. The caller holds the
    dataset's row: of two that come first at once, one is.
    """
    today = now - now % _DAY
    known = select(AuditEvent.id).where(
        AuditEvent.dataset_id == dataset_id,
        AuditEvent.act == act.value,
        AuditEvent.actor == caller.key_id,
        AuditEvent.at == today,
    )
    if session.scalars(known.limit(1)).first() is not None:
        return None
    return _append(session, caller, act, dataset_id, dataset_id, None, {}, today)


def _append(
    session: Session,
    caller: "Caller",
    act: Act,
    subject_id: str,
    dataset_id: str | None,
    request_id: str | None,
    details: dict[str, Any],
    at: int,
) -> AuditEvent:
    end = _lock(session, caller.tenant_id)
    event = AuditEvent(
        id=new_id("aud", at=at),  # tells no finer time than `at` does
        tenant_id=caller.tenant_id,
        seq=end.seq + 1,
        at=at,
        actor=caller.key_id,
        act=act.value,
        subject_id=subject_id,
        dataset_id=dataset_id,
        request_id=request_id,
        details=details,
        prev_hash=end.hash,
    )
    event.hash = _hash(event)
    end.seq, end.hash = event.seq, event.hash
    session.add(event)
    session.flush()
    return event


def _lock(session: Session, tenant_id: str) -> AuditHead:
    """The end of the tenant's chain, held until the commit; begun where there is none."""
    held = select(AuditHead).where(AuditHead.tenant_id == tenant_id).with_for_update()
    held = held.execution_options(populate_existing=True)
    end = session.scalars(held).first()
    if end is None:
        session.flush()  # the tenant may be as new
        begun = insert_unless_there(session, AuditHead).values(tenant_id=tenant_id, seq=0, hash=GENESIS_HASH)
        session.execute(begun)
        end = session.scalars(held).one()
    return end


def page(
    session: Session,
    tenant_id: str,
    *,
    after_seq: int = 0,
    limit: int,
    dataset_id: str | None = None,
    act: str | None = None,
    actor: str | None = None,
) -> list[AuditEvent]:
    """A tenant's events in order, from after `after_seq`; only those of a dataset, an act, an actor, where given."""
    query = select(AuditEvent).where(AuditEvent.tenant_id == tenant_id, AuditEvent.seq > after_seq)
    given = ((AuditEvent.dataset_id, dataset_id), (AuditEvent.act, act), (AuditEvent.actor, actor))
    for column, only in given:
        if only is not None:
            query = query.where(column == only)
    fresh = query.order_by(AuditEvent.seq).limit(limit).execution_options(populate_existing=True)
    return list(session.scalars(fresh))


def verify(session: Session, tenant_id: str) -> Verification:
    """Walk a tenant's chain: numbers, hashes, and that it ends where its head says.

    In `Database.reading`, which sees one state of the database whoever adds to it meanwhile.
    """
    end = session.get(AuditHead, tenant_id, populate_existing=True)
    seq, head_hash = (0, GENESIS_HASH) if end is None else (end.seq, end.hash)
    n_events, last_hash = 0, GENESIS_HASH
    while events := page(session, tenant_id, after_seq=n_events, limit=_EVENTS_AT_ONCE):
        for event in events:
            if event.seq != n_events + 1:
                return Verification(n_events, last_hash, n_events + 1, "an event is missing")
            if event.prev_hash != last_hash or event.hash != _hash(event):
                return Verification(n_events, last_hash, event.seq, "an event was changed")
            n_events, last_hash = event.seq, event.hash
    if n_events < seq:
        return Verification(n_events, last_hash, n_events + 1, "the last events are missing")
    if (n_events, last_hash) != (seq, head_hash):
        return Verification(n_events, last_hash, max(1, n_events), "the end is not the one that was written")
    return Verification(n_events, last_hash, None)


def changed(names: Sequence[str]) -> dict[str, Any]:
    """The details of a change: names of what is another now, never what it was or is."""
    return {"changed": sorted(names)}


def _hash(event: AuditEvent) -> str:
    values = {c.key: getattr(event, c.key) for c in AuditEvent.__table__.columns if c.key != "hash"}
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()
