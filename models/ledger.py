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

_ENTRIES_AT_ONCE = 1000  # in memory, on a walk along the chain


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


def dataset_ids(session: Session) -> list[str]:
    """Every dataset that has a ledger, deleted ones too."""
    return list(session.scalars(select(LedgerHead.dataset_id).order_by(LedgerHead.dataset_id)))


def page(session: Session, dataset_id: str, *, after_seq: int, limit: int) -> list[LedgerEntry]:
    """Entries in order, from after `after_seq`."""
    return list(
        session.scalars(
            select(LedgerEntry)
            .where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.seq > after_seq)
            .order_by(LedgerEntry.seq)
            .limit(limit)
            .execution_options(populate_existing=True)  # as the database has them now
        )
    )


def verify(session: Session, dataset_id: str) -> Verification:
    """Walk a dataset's chain: order, hashes, balances, and that it ends where its head says. Raises NotFound.

    Entries may be added meanwhile (outside of `Database.reading`, which sees one state), so
    the head is read before and after the walk.
    """
    first_end = _end(session, dataset_id)
    hashes, running = {0: GENESIS_HASH}, Balance()
    n_entries, end_hash = 0, GENESIS_HASH
    for entry in _entries(session, dataset_id):
        running, reason = _follow(entry, n_entries, end_hash, running)
        if reason:
            return Verification(n_entries, end_hash, n_entries + 1, reason)
        n_entries, end_hash = entry.seq, entry.hash
        if n_entries == first_end[0]:
            hashes[n_entries] = end_hash
    if n_entries < first_end[0]:
        return Verification(n_entries, end_hash, n_entries + 1, "the last entries are missing")
    last_end = _end(session, dataset_id)
    hashes[n_entries] = end_hash
    if hashes[first_end[0]] != first_end[1] or hashes.get(last_end[0], last_end[1]) != last_end[1]:
        return Verification(n_entries, end_hash, max(1, n_entries), "the end is not the one that was written")
    if n_entries > last_end[0]:
        return Verification(n_entries, end_hash, last_end[0] + 1, "an entry was added behind the end")
    return Verification(n_entries, end_hash, None)


def _follow(entry: LedgerEntry, n_before: int, prev_hash: str, before: Balance) -> tuple[Balance, str]:
    """The balance after the entry that ought to come next, and what is wrong with it, if anything is."""
    if entry.seq != n_before + 1:
        return before, "an entry is missing"
    if entry.prev_hash != prev_hash or entry.hash != _hash(entry):
        return before, "an entry was changed"
    if entry.kind not in set(Kind):
        return before, "an entry is of no known kind"
    after = _after(before, Kind(entry.kind), entry.epsilon_nano, entry.reservation)
    if after != Balance(entry.granted_nano, entry.reserved_nano, entry.posted_nano) or after.free_nano < 0:
        return before, "a balance does not add up"
    return after, ""


def _end(session: Session, dataset_id: str) -> tuple[int, str]:
    row = session.execute(select(LedgerHead.seq, LedgerHead.hash).where(LedgerHead.dataset_id == dataset_id)).first()
    if row is None:
        raise NotFound("ledger")
    return row.seq, row.hash


def _entries(session: Session, dataset_id: str) -> Iterator[LedgerEntry]:
    """All entries in order, some at a time."""
    after_seq = -(1 << 63)
    while entries := page(session, dataset_id, after_seq=after_seq, limit=_ENTRIES_AT_ONCE):
        yield from entries
        after_seq = entries[-1].seq


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
            entries=_newest_charges(session, dataset_id),
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


def _newest_charges(session: Session, dataset_id: str) -> tuple[str, ...]:
    query = select(LedgerEntry.id).where(
        LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind.in_([Kind.RESERVE.value, Kind.POST.value])
    )
    return tuple(session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(10)))


def _hash(entry: LedgerEntry) -> str:
    columns = [c.key for c in LedgerEntry.__table__.columns if c.key != "hash"]
    return hashlib.sha256(canonical_json({key: getattr(entry, key) for key in columns}).encode()).hexdigest()
