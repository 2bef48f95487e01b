"""Append entries to the ledger of a dataset, and verify it.

Each function runs inside the caller's transaction and locks the ledger's head row before it appends. Costs add up:
epsilon to epsilon, delta to delta. `models.tables.ledger` describes the entries.

Datasets over the same people have the same source, and their charges and reservations add up, deleted datasets
included. The datasets of a tenant without a label are one source, so that a new dataset has no new budget.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import hash_chain
from models.database.types import new_id, select_page
from models.errors import BudgetExhausted, BudgetKind, CeilingExceeded, Conflict, LimitExceeded, NotFound
from models.hash_chain import ChainVerification
from models.ledger.amounts import CURRENCIES, Amounts, Balance, Currency, balance_after
from models.tables.datasets import Dataset
from models.tables.identity import Tenant
from models.tables.ledger import Ceiling, Kind, LedgerEntry, LedgerHead, LedgerReservation
from sfumato.privacy.accounting import DELTA_MAX_ATTO, format_delta
from sfumato.privacy.ledger import GENESIS_HASH, Head

UNLIMITED = Ceiling()


class Spent(NamedTuple):
    """Amounts that a ceiling limits. Local and shuffled epsilon are two statements about the same reports."""

    epsilon_nano: int
    shuffled_nano: int
    delta_atto: int  # sum over both grants, as a bound fails for one person with this probability at most


@dataclass(frozen=True, slots=True)
class _Change:
    """An entry to append. `ceiling` limits the grants of the dataset, or the cost of its source."""

    kind: Kind
    amounts: Amounts
    reference: str
    reservation: str | None
    actor: str
    now: int
    ceiling: Ceiling = UNLIMITED

    @property
    def is_reserved(self) -> bool:
        """Return whether a reservation, which the source counts already, covers the change."""
        return self.kind is Kind.CHARGE and self.reservation is not None

    @property
    def added(self) -> Amounts:
        """Return what the change adds to the grants of the dataset, or to the cost of its source."""
        return self.amounts.minus(self.amounts.reservable()) if self.is_reserved else self.amounts

    @property
    def adds_to_source(self) -> bool:
        """Return whether a ceiling of the source applies."""
        spends = self.kind in (Kind.RESERVE, Kind.CHARGE) and (not self.is_reserved or any(self.added))
        return spends and self.ceiling != UNLIMITED


def open_ledger(session: Session, dataset_id: str) -> None:
    """Create the empty ledger of a dataset."""
    session.add(LedgerHead(dataset_id=dataset_id, seq=0, hash=GENESIS_HASH))
    session.flush()


def grant(
    session: Session,
    dataset_id: str,
    amounts: Amounts,
    *,
    reference: str,
    actor: str,
    now: int,
    ceiling: Ceiling = UNLIMITED,
) -> LedgerEntry:
    """Increase the budget. `reference` names the grant, so that a retry does not grant twice.

    Raise CeilingExceeded if the grants of the dataset would exceed `ceiling`, and LimitExceeded if its delta would
    exceed 1e-3 in total. The ceiling's epsilon limits the local and the shuffled epsilon alike, and its delta limits
    the sum of both deltas. A larger delta allows a mechanism that reveals one record in a thousand. Up to this limit,
    atto-delta is also exact in every JSON reader.
    """
    entry = _append(session, dataset_id, _Change(Kind.GRANT, amounts, reference, None, actor, now, ceiling))
    if max(entry.granted_delta_atto, entry.granted_shuffled_delta_atto) > DELTA_MAX_ATTO:
        raise LimitExceeded(f"the grants of a dataset may have a total delta of at most {format_delta(DELTA_MAX_ATTO)}")
    return entry


def reserve(
    session: Session,
    dataset_id: str,
    amounts: Amounts,
    *,
    job_id: str,
    actor: str,
    now: int,
    ceiling: Ceiling = UNLIMITED,
) -> LedgerEntry:
    """Reserve the declared cost of a job.

    Raise BudgetExhausted if the free budget is too small, and CeilingExceeded if the charges and reservations of the
    dataset's source would exceed `ceiling`.
    """
    return _append(session, dataset_id, _Change(Kind.RESERVE, amounts, job_id, job_id, actor, now, ceiling))


def charge(
    session: Session,
    dataset_id: str,
    amounts: Amounts,
    *,
    reference: str,
    reservation: str | None,
    actor: str,
    now: int,
    ceiling: Ceiling = UNLIMITED,
) -> LedgerEntry:
    """Charge a job's reservation, or the free budget if `reservation` is None.

    Amounts of the shuffled budget are charged to what is free of it in both cases.
    Raise BudgetExhausted if the reservation or the free budget is too small, and CeilingExceeded if the charges and
    reservations of the dataset's source would exceed `ceiling`. A charge to a reservation increases them by its
    shuffled amounts only. Its caller locks the source before the job (`lock_source`).
    """
    return _append(session, dataset_id, _Change(Kind.CHARGE, amounts, reference, reservation, actor, now, ceiling))


def release(session: Session, dataset_id: str, *, job_id: str, actor: str, now: int) -> LedgerEntry | None:
    """Release what remains of a job's reservation. Return None if nothing remains."""
    _lock(session, dataset_id)
    left = reserved_for(session, dataset_id, job_id)
    if not any(left):
        return None
    return _append(session, dataset_id, _Change(Kind.RELEASE, left, job_id, job_id, actor, now))


def balance(session: Session, dataset_id: str) -> Balance:
    """Return the balance after the last entry."""
    entry = session.scalars(
        select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq.desc()).limit(1)
    ).first()
    return Balance() if entry is None else balance_after(entry)


def spent_of_source(session: Session, dataset_id: str) -> Spent:
    """Return what is charged or reserved in all datasets of a dataset's source, deleted ones included."""
    own = session.execute(select(Dataset.tenant_id, Dataset.source).where(Dataset.id == dataset_id)).one()
    query = (
        select(
            func.sum(LedgerEntry.charged_nano + LedgerEntry.reserved_nano),
            func.sum(LedgerEntry.charged_shuffled_nano),
            func.sum(
                LedgerEntry.charged_delta_atto
                + LedgerEntry.reserved_delta_atto
                + LedgerEntry.charged_shuffled_delta_atto
            ),
        )
        .join(LedgerHead, (LedgerHead.dataset_id == LedgerEntry.dataset_id) & (LedgerHead.seq == LedgerEntry.seq))
        .join(Dataset, Dataset.id == LedgerHead.dataset_id)
        .where(Dataset.tenant_id == own.tenant_id, Dataset.source == own.source)  # IS NULL for None
    )
    return Spent(*(int(total or 0) for total in session.execute(query).one()))


def reserved_for(session: Session, dataset_id: str, job_id: str) -> Amounts:
    """Return what remains of a job's reservation."""
    row = session.get(LedgerReservation, (dataset_id, job_id), populate_existing=True)
    return Amounts() if row is None else Amounts(row.epsilon_nano, row.delta_atto)


def head(session: Session, dataset_id: str) -> LedgerHead:
    """Return the head of the ledger. Raise NotFound."""
    found = session.get(LedgerHead, dataset_id)
    if found is None:
        raise NotFound("ledger")
    return found


def dataset_ids(session: Session) -> list[str]:
    """Return the ids of all datasets with a ledger, including deleted ones."""
    return list(session.scalars(select(LedgerHead.dataset_id).order_by(LedgerHead.dataset_id)))


def page(
    session: Session,
    dataset_id: str,
    *,
    after_seq: int,
    limit: int,
    kind: Kind | None = None,
    newest_first: bool = False,
) -> list[LedgerEntry]:
    """Return at most `limit` entries after number `after_seq`, in order; of one kind, if one is given."""
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id)
    if kind is not None:
        query = query.where(LedgerEntry.kind == kind)
    query = select_page(query, LedgerEntry.seq, after=after_seq, limit=limit, newest_first=newest_first)
    return list(session.scalars(query.execution_options(populate_existing=True)))


def verify(session: Session, dataset_id: str) -> ChainVerification:
    """Verify a dataset's ledger: chain, balances and reservations. Raise NotFound.

    Memory is bounded by the number of open reservations, not by the length of the ledger.
    """

    def read_end() -> Head:
        row = session.execute(select(LedgerHead.seq, LedgerHead.hash).where(LedgerHead.dataset_id == dataset_id))
        found = row.first()
        if found is None:
            raise NotFound("ledger")
        return Head(found.seq, found.hash)

    running = Balance()
    reserved: dict[str, Amounts] = {}

    def check(entry: LedgerEntry) -> str:
        nonlocal running
        running, reason = _follow(entry, running, reserved)
        return reason

    entries = hash_chain.read_all(
        session, select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id), LedgerEntry.seq
    )
    return hash_chain.verify(read_end, entries, check)


def has_entry(session: Session, dataset_id: str, noted: Head) -> bool:
    """Return whether the ledger has an entry with the number and the hash of a head that was noted earlier."""
    if noted.seq == 0:
        return True
    found = select(LedgerEntry.hash).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.seq == noted.seq)
    return session.scalar(found) == noted.hash


def _follow(entry: LedgerEntry, before: Balance, reserved: dict[str, Amounts]) -> tuple[Balance, str]:
    """Return the balance after an entry, and why the entry is invalid, if it is."""
    if entry.kind not in set(Kind):
        return before, "the kind of an entry is unknown"
    kind, amounts = Kind(entry.kind), Amounts.of(entry)
    if min(amounts) < 0:
        return before, "an amount is negative"
    if not _move_reservation(kind, amounts.reservable(), entry.reservation, reserved):
        return before, "a job charged or released more than it had reserved"
    if any(amounts.shuffled) and kind not in (Kind.GRANT, Kind.CHARGE):
        return before, "the shuffled budget has no reservations"
    after = before.after(kind, amounts, entry.reservation)
    if after != balance_after(entry) or after.is_over:
        return before, "a balance does not add up"
    return after, ""


def _move_reservation(kind: Kind, amounts: Amounts, job_id: str | None, reserved: dict[str, Amounts]) -> bool:
    """Apply an entry to the open reservations. Return False if its job has not reserved as much."""
    if kind is Kind.GRANT or (kind is Kind.CHARGE and job_id is None):
        return True
    if job_id is None:
        return False
    before = reserved.pop(job_id, Amounts())
    left = before.plus(amounts) if kind is Kind.RESERVE else before.minus(amounts)
    if any(left):
        reserved[job_id] = left
    return min(left) >= 0


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


def lock_source(session: Session, dataset_id: str) -> None:
    """Lock the row of the dataset's tenant until the commit, so that one transaction at a time adds to a source."""
    query = select(Tenant.id).join(Dataset, Dataset.tenant_id == Tenant.id).where(Dataset.id == dataset_id)
    session.execute(query.with_for_update(of=Tenant, key_share=True))


def _append(session: Session, dataset_id: str, change: _Change) -> LedgerEntry:
    if change.adds_to_source:
        lock_source(session, dataset_id)  # before the head, see `models.database.engine`
    end = _lock(session, dataset_id)
    repeated = session.scalars(
        select(LedgerEntry).where(
            LedgerEntry.dataset_id == dataset_id,
            LedgerEntry.kind == change.kind,
            LedgerEntry.reference == change.reference,
        )
    ).first()
    if repeated is not None:
        if (Amounts.of(repeated), repeated.reservation) != (change.amounts, change.reservation):
            raise Conflict(f"the ledger already contains a {change.kind} for {change.reference} with another amount")
        return repeated
    before, reservable = balance(session, dataset_id), change.amounts.reservable()
    after = before.after(change.kind, change.amounts, change.reservation)
    available = reserved_for(session, dataset_id, change.reservation or "") if change.is_reserved else reservable
    left = available.minus(reservable)
    for currency, remaining, free in zip(CURRENCIES, left, after.free, strict=True):
        if min(remaining, free) < 0:
            raise _exhausted(session, dataset_id, currency, getattr(change.amounts, currency.amount), before)
    if change.adds_to_source:
        _check_ceiling("source", change, spent_of_source(session, dataset_id))
    elif change.kind is Kind.GRANT:
        delta_atto = before.granted_delta_atto + before.granted_shuffled_delta_atto
        _check_ceiling("dataset", change, Spent(before.granted_nano, before.granted_shuffled_nano, delta_atto))
    entry = LedgerEntry(
        id=new_id("led", at=change.now),  # reveals no finer time than `at`
        dataset_id=dataset_id,
        kind=change.kind.value,
        reference=change.reference,
        reservation=change.reservation,
        actor=change.actor,
        at=change.now,
        **change.amounts._asdict(),
        **after._asdict(),
    )
    if change.reservation:
        remains = reservable if change.kind is Kind.RESERVE else left
        _store_reservation(session, dataset_id, change.reservation, remains)
    hash_chain.append(session, end, entry)
    return entry


def _check_ceiling(name: Literal["dataset", "source"], change: _Change, spent: Spent) -> None:
    limit_nano, limit_atto, added = change.ceiling.epsilon_nano, change.ceiling.delta_atto, change.added
    short_delta: BudgetKind = "shuffled_delta" if added.shuffled_delta_atto else "delta"
    checks: tuple[tuple[BudgetKind, int | None, int, int], ...] = (
        ("epsilon", limit_nano, spent.epsilon_nano, added.epsilon_nano),
        ("shuffled_epsilon", limit_nano, spent.shuffled_nano, added.shuffled_nano),
        (short_delta, limit_atto, spent.delta_atto, added.delta_atto + added.shuffled_delta_atto),
    )
    for short, limit, before, amount in checks:
        if limit is not None and amount and before + amount > limit:
            raise CeilingExceeded(name, short, limit=limit, spent=before, requested=amount)


def _store_reservation(session: Session, dataset_id: str, job_id: str, left: Amounts) -> None:
    """Store what remains of a reservation; delete the row if nothing remains. The caller has locked the head."""
    row = session.get(LedgerReservation, (dataset_id, job_id))
    if row is None:
        if any(left):
            values = {"epsilon_nano": left.epsilon_nano, "delta_atto": left.delta_atto}
            session.add(LedgerReservation(dataset_id=dataset_id, job_id=job_id, **values))
    elif any(left):
        row.epsilon_nano, row.delta_atto = left.epsilon_nano, left.delta_atto
    else:
        session.delete(row)


def _exhausted(
    session: Session, dataset_id: str, currency: Currency, requested: int, before: Balance
) -> BudgetExhausted:
    """Return the error with the newest entries that reserved or charged the missing amount."""
    granted, reserved, charged = before.of(currency)
    charges = LedgerEntry.kind.in_([Kind.RESERVE.value, Kind.CHARGE.value])
    amount = getattr(LedgerEntry, currency.amount)
    query = select(LedgerEntry.id).where(LedgerEntry.dataset_id == dataset_id, charges, amount > 0)
    entries = tuple(session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(10)))
    return BudgetExhausted(
        currency.kind, requested=requested, granted=granted, reserved=reserved, charged=charged, entries=entries
    )
