"""The ledger: what a dataset was granted, what is held, what is spent. Append-only.

    grant ──► free ──reserve──► reserved ──post──► posted
                ▲                   │
                └─────release───────┘          (a round of its own posts straight from free)

Written only here, inside the caller's transaction, under the lock of the dataset's head
row. Amounts are integers, nano-epsilon and atto-delta, and one entry moves both by the same
rule. Every entry carries the balance after it and the hash of the one before it. At every
instant posted + reserved <= granted, of both. Costs add up: epsilon to epsilon, delta to delta.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, UniqueConstraint, case, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import ledger_hold
from models.db import Base, Id, canonical_json, new_id
from models.errors import BudgetExhausted, Conflict, LimitExceeded, NotFound
from models.ledger_hold import Held
from sfumato.accounting import DELTA_MAX_ATTO, format_delta

GENESIS_HASH = "0" * 64

DELTA_COLUMNS = frozenset({"delta_atto", "granted_delta_atto", "reserved_delta_atto", "posted_delta_atto"})

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
        Index("ix_ledger_entries_of_reservation", "dataset_id", "reservation", "seq"),
        CheckConstraint("posted_nano + reserved_nano <= granted_nano", name="never_over"),
        CheckConstraint("epsilon_nano >= 0 AND posted_nano >= 0 AND reserved_nano >= 0", name="not_negative"),
        CheckConstraint("posted_delta_atto + reserved_delta_atto <= granted_delta_atto", name="never_over_delta"),
        CheckConstraint(
            "delta_atto >= 0 AND posted_delta_atto >= 0 AND reserved_delta_atto >= 0", name="not_negative_delta"
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("ledger_heads.dataset_id"), comment="whose ledger")
    seq: Mapped[int] = mapped_column(BigInteger, comment="1, 2, 3, ... without a gap")
    kind: Mapped[str] = mapped_column(String(8), comment="grant, reserve, post or release")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="the amount")
    reference: Mapped[str] = mapped_column(Id, comment="what it is for: a grant, job or round")
    reservation: Mapped[str | None] = mapped_column(Id, comment="the job whose reservation it touches")
    actor: Mapped[str] = mapped_column(Id, comment="the key that asked for it")
    at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    granted_nano: Mapped[int] = mapped_column(BigInteger, comment="granted, after this entry")
    reserved_nano: Mapped[int] = mapped_column(BigInteger, comment="reserved, after this entry")
    posted_nano: Mapped[int] = mapped_column(BigInteger, comment="posted, after this entry")
    prev_hash: Mapped[str] = mapped_column(String(64), comment="hash of the entry before, zeros for the first")
    hash: Mapped[str] = mapped_column(String(64), comment="SHA-256 of this entry's canonical JSON without itself")
    delta_atto: Mapped[int] = mapped_column(BigInteger, server_default="0", comment="the amount of delta")
    granted_delta_atto: Mapped[int] = mapped_column(
        BigInteger, server_default="0", comment="of delta, after this entry"
    )
    reserved_delta_atto: Mapped[int] = mapped_column(
        BigInteger, server_default="0", comment="of delta, after this entry"
    )
    posted_delta_atto: Mapped[int] = mapped_column(BigInteger, server_default="0", comment="of delta, after this entry")


class Amounts(NamedTuple):
    """What an entry moves."""

    epsilon_nano: int
    delta_atto: int = 0


class Balance(NamedTuple):
    """Nano-epsilon and atto-delta after some entry."""

    granted_nano: int = 0
    reserved_nano: int = 0
    posted_nano: int = 0
    granted_delta_atto: int = 0
    reserved_delta_atto: int = 0
    posted_delta_atto: int = 0

    @property
    def free_nano(self) -> int:
        return self.granted_nano - self.reserved_nano - self.posted_nano

    @property
    def free_delta_atto(self) -> int:
        return self.granted_delta_atto - self.reserved_delta_atto - self.posted_delta_atto

    @property
    def is_over(self) -> bool:
        return self.free_nano < 0 or self.free_delta_atto < 0

    def after(self, kind: Kind, amounts: Amounts, reservation: str | None) -> "Balance":
        """The balance after an entry: epsilon and delta move alike."""
        signs = {  # of granted, reserved, posted
            Kind.GRANT: (1, 0, 0),
            Kind.RESERVE: (0, 1, 0),
            Kind.POST: (0, -1 if reservation else 0, 1),
            Kind.RELEASE: (0, -1, 0),
        }[kind]
        moves = [sign * amount for amount in amounts for sign in signs]
        return Balance(*(value + move for value, move in zip(self, moves, strict=True)))


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


def grant(
    session: Session,
    dataset_id: str,
    epsilon_nano: int,
    *,
    delta_atto: int = 0,
    reference: str,
    actor: str,
    now: int,
) -> LedgerEntry:
    """Allow more. `reference` names the grant, so that a retry does not grant twice.

    Raises LimitExceeded where the dataset's delta would come to more than 1e-3 in all: by then some
    person in a thousand may be given away, and a count of atto-delta stays exact in every JSON reader.
    """
    entry = _append(session, dataset_id, Kind.GRANT, Amounts(epsilon_nano, delta_atto), reference, None, actor, now)
    if delta_atto and entry.granted_delta_atto > DELTA_MAX_ATTO:
        raise LimitExceeded(f"a dataset is granted a delta of {format_delta(DELTA_MAX_ATTO)} at most in all")
    return entry


def reserve(
    session: Session, dataset_id: str, epsilon_nano: int, *, delta_atto: int = 0, job_id: str, actor: str, now: int
) -> LedgerEntry:
    """Hold what a job may spend; raises BudgetExhausted, and then nothing is held."""
    amounts = Amounts(epsilon_nano, delta_atto)
    return _append(session, dataset_id, Kind.RESERVE, amounts, job_id, job_id, actor, now)


def post(
    session: Session,
    dataset_id: str,
    epsilon_nano: int,
    *,
    delta_atto: int = 0,
    reference: str,
    reservation: str | None,
    actor: str,
    now: int,
) -> LedgerEntry:
    """Spend: out of a job's reservation, or where there is none out of what is free.

    Raises BudgetExhausted where the reservation, or what is free, is too small.
    """
    amounts = Amounts(epsilon_nano, delta_atto)
    return _append(session, dataset_id, Kind.POST, amounts, reference, reservation, actor, now)


def release(session: Session, dataset_id: str, *, job_id: str, actor: str, now: int) -> LedgerEntry | None:
    """Give back what is left of a job's reservation; None where nothing is left."""
    _lock(session, dataset_id)
    left = reserved_for(session, dataset_id, job_id)
    if left == Amounts(0, 0):
        return None
    return _append(session, dataset_id, Kind.RELEASE, left, job_id, job_id, actor, now)


def balance(session: Session, dataset_id: str) -> Balance:
    """Granted, reserved and posted, by the last entry."""
    entry = session.scalars(
        select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq.desc()).limit(1)
    ).first()
    return Balance() if entry is None else balance_after(entry)


def balance_after(entry: LedgerEntry) -> Balance:
    """The balance an entry carries."""
    return Balance(*(getattr(entry, name) for name in Balance._fields))


def reserved_for(session: Session, dataset_id: str, job_id: str) -> Amounts:
    """What a job still holds: reserved less posted and released under its reservation.

    What `ledger_hold` says, and the entries behind it: none, but where an older process wrote them.
    """
    held = ledger_hold.find(session, dataset_id, job_id)
    sign = case((LedgerEntry.kind == Kind.RESERVE.value, 1), else_=-1)
    row = session.execute(
        select(func.sum(sign * LedgerEntry.epsilon_nano), func.sum(sign * LedgerEntry.delta_atto)).where(
            LedgerEntry.dataset_id == dataset_id, LedgerEntry.reservation == job_id, LedgerEntry.seq > held.seq
        )
    ).one()
    return Amounts(held.epsilon_nano + int(row[0] or 0), held.delta_atto + int(row[1] or 0))


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
    """Walk a dataset's chain: order, hashes, balances, reservations, and that it ends where its head says.

    Raises NotFound. In memory is only what open reservations still hold, however long the chain is.
    Entries may be added meanwhile (outside of `Database.reading`, which sees one state), so
    the head is read before and after the walk.
    """
    first_end = _end(session, dataset_id)
    hashes, running = {0: GENESIS_HASH}, Balance()
    held: dict[str, Amounts] = {}
    n_entries, end_hash = 0, GENESIS_HASH
    for entry in _entries(session, dataset_id):
        running, reason = _follow(entry, n_entries, end_hash, running, held)
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


def _follow(
    entry: LedgerEntry, n_before: int, prev_hash: str, before: Balance, held: dict[str, Amounts]
) -> tuple[Balance, str]:
    """The balance after the entry that ought to come next, and what is wrong with it, if anything is."""
    if entry.seq != n_before + 1:
        return before, "an entry is missing"
    if entry.prev_hash != prev_hash or entry.hash != _hash(entry):
        return before, "an entry was changed"
    if entry.kind not in set(Kind):
        return before, "an entry is of no known kind"
    amounts = Amounts(entry.epsilon_nano, entry.delta_atto)
    if min(amounts) < 0:
        return before, "an amount is negative"
    if not _is_borne(Kind(entry.kind), amounts, entry.reservation, held):
        return before, "a job spent or gave back more than it had reserved"
    after = before.after(Kind(entry.kind), amounts, entry.reservation)
    if after != balance_after(entry) or after.is_over:
        return before, "a balance does not add up"
    return after, ""


def _is_borne(kind: Kind, amounts: Amounts, reservation: str | None, held: dict[str, Amounts]) -> bool:
    """Move what jobs hold; False where none is named, or it does not hold as much. Who holds nothing is forgotten."""
    if kind is Kind.GRANT or (kind is Kind.POST and reservation is None):
        return True
    if reservation is None:
        return False
    sign = 1 if kind is Kind.RESERVE else -1
    left = Amounts(*(has + sign * amount for has, amount in zip(held.pop(reservation, (0, 0)), amounts, strict=True)))
    if any(left):
        held[reservation] = left
    return min(left) >= 0


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


def _append(
    session: Session,
    dataset_id: str,
    kind: Kind,
    amounts: Amounts,
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
        if (repeated.epsilon_nano, repeated.delta_atto, repeated.reservation) != (*amounts, reservation):
            raise Conflict(f"the ledger already holds a {kind} for {reference} of another amount")
        return repeated
    before = balance(session, dataset_id)
    after = before.after(kind, amounts, reservation)
    held = reserved_for(session, dataset_id, reservation) if kind is Kind.POST and reservation else amounts
    left = (
        amounts if kind is Kind.RESERVE else Amounts(*(has - amount for has, amount in zip(held, amounts, strict=True)))
    )
    if after.free_nano < 0 or amounts.epsilon_nano > held.epsilon_nano:
        raise _exhausted(session, dataset_id, "epsilon", amounts.epsilon_nano, before[:3])
    if after.free_delta_atto < 0 or amounts.delta_atto > held.delta_atto:
        raise _exhausted(session, dataset_id, "delta", amounts.delta_atto, before[3:])
    entry = LedgerEntry(
        id=new_id("led", at=now),  # tells no finer time than `at` does
        dataset_id=dataset_id,
        seq=end.seq + 1,
        kind=kind.value,
        reference=reference,
        reservation=reservation,
        actor=actor,
        at=now,
        prev_hash=end.hash,
        **amounts._asdict(),
        **after._asdict(),
    )
    entry.hash = _hash(entry)
    end.seq, end.hash = entry.seq, entry.hash
    session.add(entry)
    if reservation:
        ledger_hold.keep(session, dataset_id, reservation, Held(entry.seq, *left))
    session.flush()
    return entry


def _exhausted(
    session: Session, dataset_id: str, short: Literal["epsilon", "delta"], requested: int, before: tuple[int, ...]
) -> BudgetExhausted:
    """What is refused, with the newest charges that hold or spent what is short."""
    granted, reserved, posted = before
    amount = LedgerEntry.epsilon_nano if short == "epsilon" else LedgerEntry.delta_atto
    charges = LedgerEntry.kind.in_([Kind.RESERVE.value, Kind.POST.value])
    query = select(LedgerEntry.id).where(LedgerEntry.dataset_id == dataset_id, charges, amount > 0)
    entries = tuple(session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(10)))
    return BudgetExhausted(
        short, requested=requested, granted=granted, reserved=reserved, posted=posted, entries=entries
    )


def _hash(entry: LedgerEntry) -> str:
    """SHA-256 of the entry's columns; those of delta count where any of them is not 0.

    So entries of before there was a delta have the hash they were written with, and no two entries share one.
    """
    values = {c.key: getattr(entry, c.key) for c in LedgerEntry.__table__.columns if c.key != "hash"}
    if not any(values[name] for name in DELTA_COLUMNS):
        values = {name: value for name, value in values.items() if name not in DELTA_COLUMNS}
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()
