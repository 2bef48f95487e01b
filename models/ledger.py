"""The ledger: what a dataset was granted, what is held, what is spent. Append-only.

    grant ──► free ──reserve──► reserved ──post──► posted
                ▲                   │
                └─────release───────┘          (a round of its own posts straight from free)

Written only here, inside the caller's transaction, under the lock of the dataset's head
row. Amounts are integers, nano-epsilon. Every entry carries the balance after it and the
hash of the one before it. At every instant posted + reserved <= granted.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, UniqueConstraint, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import Base, Id, canonical_json, new_id
from models.errors import BudgetExhausted, Conflict, NotFound

GENESIS_HASH = "0" * 64


class Kind(StrEnum):
    """What an entry does."""

    GRANT = "grant"  # a privacy officer allows more
    RESERVE = "reserve"  # a job holds what it may spend
    POST = "post"  # a round or a draw has spent
    RELEASE = "release"  # a job gives back what it held and did not spend


class LedgerHead(Base):
    """The end of a dataset's chain; its row is the ledger's lock."""

    __tablename__ = "ledger_heads"

    dataset_id: Mapped[str] = mapped_column(Id, primary_key=True, comment="whose ledger; outlives the dataset")
    seq: Mapped[int] = mapped_column(BigInteger, comment="number of the last entry, 0 for none")
    hash: Mapped[str] = mapped_column(String(64), comment="hash of the last entry: shows a cut-off tail")


class LedgerEntry(Base):
    """One charge or grant; never changed, never removed."""

    __tablename__ = "ledger_entries"
    __table_args__ = (
        UniqueConstraint("dataset_id", "seq"),
        UniqueConstraint("dataset_id", "kind", "reference"),  # makes a retry harmless
        CheckConstraint("posted_nano + reserved_nano <= granted_nano", name="never_over"),
        CheckConstraint("epsilon_nano >= 0 AND posted_nano >= 0 AND reserved_nano >= 0", name="not_negative"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("ledger_heads.dataset_id"), comment="whose ledger")
    seq: Mapped[int] = mapped_column(BigInteger, comment="1, 2, 3, ... without a gap")
    kind: Mapped[str] = mapped_column(String(8), comment="grant, reserve, post or release")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="the amount")
    reference: Mapped[str] = mapped_column(Id, comment="what it is for: a grant, job or round")
    reservation: Mapped[str | None] = mapped_column(Id, index=True, comment="the job whose reservation it touches")
    actor: Mapped[str] = mapped_column(Id, comment="the key that asked for it")
    at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    granted_nano: Mapped[int] = mapped_column(BigInteger, comment="granted, after this entry")
    reserved_nano: Mapped[int] = mapped_column(BigInteger, comment="reserved, after this entry")
    posted_nano: Mapped[int] = mapped_column(BigInteger, comment="posted, after this entry")
    prev_hash: Mapped[str] = mapped_column(String(64), comment="hash of the entry before, zeros for the first")
    hash: Mapped[str] = mapped_column(String(64), comment="SHA-256 of this entry's canonical JSON without itself")


@dataclass(frozen=True, slots=True)
class Balance:
    """Nano-epsilon after some entry."""

    granted_nano: int = 0
    reserved_nano: int = 0
    posted_nano: int = 0

    @property
    def free_nano(self) -> int:
        return self.granted_nano - self.reserved_nano - self.posted_nano


@dataclass(frozen=True, slots=True)
class Verification:
    """What a walk along the chain found."""

    n_entries: int
    head_hash: str
    broken_at: int | None  # seq of the first entry that does not hold
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.broken_at is None


def open_ledger(session: Session, dataset_id: str) -> None:
    """Begin a dataset's chain."""
    session.add(LedgerHead(dataset_id=dataset_id, seq=0, hash=GENESIS_HASH))
    session.flush()


def grant(session: Session, dataset_id: str, epsilon_nano: int, *, reference: str, actor: str, now: int) -> LedgerEntry:
    """Allow more. `reference` names the grant, so that a retry does not grant twice."""
    return _append(session, dataset_id, Kind.GRANT, epsilon_nano, reference, None, actor, now)


def reserve(session: Session, dataset_id: str, epsilon_nano: int, *, job_id: str, actor: str, now: int) -> LedgerEntry:
    """Hold what a job may spend; raises BudgetExhausted, and then nothing is held."""
    return _append(session, dataset_id, Kind.RESERVE, epsilon_nano, job_id, job_id, actor, now)


def post(
    session: Session,
    dataset_id: str,
    epsilon_nano: int,
    *,
    reference: str,
    reservation: str | None,
    actor: str,
    now: int,
) -> LedgerEntry:
    """Spend: out of a job's reservation, or where there is none out of what is free.

    Raises BudgetExhausted where the reservation, or what is free, is too small.
    """
    return _append(session, dataset_id, Kind.POST, epsilon_nano, reference, reservation, actor, now)


def release(session: Session, dataset_id: str, *, job_id: str, actor: str, now: int) -> LedgerEntry | None:
    """Give back what is left of a job's reservation; None where nothing is left."""
    _lock(session, dataset_id)
    left = reserved_for(session, dataset_id, job_id)
    if left == 0:
        return None
    return _append(session, dataset_id, Kind.RELEASE, left, job_id, job_id, actor, now)


def balance(session: Session, dataset_id: str) -> Balance:
    """Granted, reserved and posted, by the last entry."""
    entry = session.scalars(
        select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq.desc()).limit(1)
    ).first()
    return Balance() if entry is None else Balance(entry.granted_nano, entry.reserved_nano, entry.posted_nano)


def reserved_for(session: Session, dataset_id: str, job_id: str) -> int:
    """What a job still holds: reserved less posted and released under its reservation."""
    rows = session.execute(
        select(LedgerEntry.kind, func.sum(LedgerEntry.epsilon_nano))
        .where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.reservation == job_id)
        .group_by(LedgerEntry.kind)
    )
    total = {kind: int(amount) for kind, amount in rows}
    return total.get(Kind.RESERVE, 0) - total.get(Kind.POST, 0) - total.get(Kind.RELEASE, 0)


def head(session: Session, dataset_id: str) -> LedgerHead:
    """The end of the chain; raises NotFound."""
    found = session.get(LedgerHead, dataset_id)
    if found is None:
        raise NotFound("ledger")
    return found


def page(session: Session, dataset_id: str, *, after_seq: int, limit: int) -> list[LedgerEntry]:
    """Entries in order, from after `after_seq`."""
    return list(
        session.scalars(
            select(LedgerEntry)
            .where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.seq > after_seq)
            .order_by(LedgerEntry.seq)
            .limit(limit)
        )
    )


def verify(session: Session, dataset_id: str) -> Verification:
    """Walk a dataset's chain: order, hashes, balances, and that its tail is whole."""
    expected, prev_hash, running = 1, GENESIS_HASH, Balance()
    for entry in _entries(session, dataset_id):
        after = _after(running, Kind(entry.kind), entry.epsilon_nano, entry.reservation)
        reason = ""
        if entry.seq != expected:
            reason = "an entry is missing"
        elif entry.prev_hash != prev_hash or entry.hash != _hash(entry):
            reason = "an entry was changed"
        elif after != Balance(entry.granted_nano, entry.reserved_nano, entry.posted_nano) or after.free_nano < 0:
            reason = "a balance does not add up"
        if reason:
            return Verification(expected - 1, prev_hash, expected, reason)
        expected, prev_hash, running = expected + 1, entry.hash, after
    end = head(session, dataset_id)
    if (end.seq, end.hash) != (expected - 1, prev_hash):
        return Verification(expected - 1, prev_hash, expected, "the last entries are missing")
    return Verification(expected - 1, prev_hash, None)


def _entries(session: Session, dataset_id: str) -> Iterator[LedgerEntry]:
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq)
    return iter(session.scalars(query.execution_options(yield_per=1000)))


def _lock(session: Session, dataset_id: str) -> LedgerHead:
    end = session.scalars(
        select(LedgerHead)
        .where(LedgerHead.dataset_id == dataset_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).first()
    if end is None:
        raise NotFound("ledger")
    return end


def _after(before: Balance, kind: Kind, amount: int, reservation: str | None) -> Balance:
    granted, reserved, posted = before.granted_nano, before.reserved_nano, before.posted_nano
    if kind is Kind.GRANT:
        return Balance(granted + amount, reserved, posted)
    if kind is Kind.RESERVE:
        return Balance(granted, reserved + amount, posted)
    if kind is Kind.RELEASE:
        return Balance(granted, reserved - amount, posted)
    return Balance(granted, reserved - amount if reservation else reserved, posted + amount)


def _append(
    session: Session,
    dataset_id: str,
    kind: Kind,
    epsilon_nano: int,
    reference: str,
    reservation: str | None,
    actor: str,
    now: int,
) -> LedgerEntry:
    end = _lock(session, dataset_id)
    repeated = session.scalars(
        select(LedgerEntry).where(
            LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == kind, LedgerEntry.reference == reference
        )
    ).first()
    if repeated is not None:
        if (repeated.epsilon_nano, repeated.reservation) != (epsilon_nano, reservation):
            raise Conflict(f"the ledger already holds a {kind} for {reference} of another amount")
        return repeated
    before = balance(session, dataset_id)
    after = _after(before, kind, epsilon_nano, reservation)
    overdrawn = kind is Kind.POST and reservation and epsilon_nano > reserved_for(session, dataset_id, reservation)
    if after.free_nano < 0 or overdrawn:
        raise BudgetExhausted(
            requested_nano=epsilon_nano,
            granted_nano=before.granted_nano,
            reserved_nano=before.reserved_nano,
            posted_nano=before.posted_nano,
        )
    entry = LedgerEntry(
        id=new_id("led"),
        dataset_id=dataset_id,
        seq=end.seq + 1,
        kind=kind.value,
        epsilon_nano=epsilon_nano,
        reference=reference,
        reservation=reservation,
        actor=actor,
        at=now,
        granted_nano=after.granted_nano,
        reserved_nano=after.reserved_nano,
        posted_nano=after.posted_nano,
        prev_hash=end.hash,
    )
    entry.hash = _hash(entry)
    end.seq, end.hash = entry.seq, entry.hash
    session.add(entry)
    session.flush()
    return entry


def _hash(entry: LedgerEntry) -> str:
    columns = [c.key for c in LedgerEntry.__table__.columns if c.key != "hash"]
    return hashlib.sha256(canonical_json({key: getattr(entry, key) for key in columns}).encode()).hexdigest()
