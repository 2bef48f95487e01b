"""Append entries to the ledger of a dataset, and verify it.

Each function runs inside the caller's transaction and locks the ledger's head row before it appends. Costs add up:
epsilon to epsilon, delta to delta. `models.tables.ledger` describes the entries.

Datasets over the same people have the same source, and their charges and reservations add up, deleted datasets
included. The datasets of a tenant without a label are one source, so that a new dataset has no new budget.
"""

from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import hash_chain
from models.database.types import new_id, select_page
from models.errors import BudgetExhausted, BudgetKind, CeilingExceeded, Conflict, LimitExceeded, NotFound
from models.hash_chain import ChainVerification
from models.tables.datasets import Dataset
from models.tables.identity import Tenant
from models.tables.ledger import Ceiling, Kind, LedgerEntry, LedgerHead, LedgerReservation
from sfumato.privacy import ledger as published
from sfumato.privacy.accounting import DELTA_MAX_ATTO, format_delta
from sfumato.privacy.ledger import GENESIS_HASH, Head
from sfumato.privacy.shuffling import Pair

UNLIMITED = Ceiling()


class Amounts(NamedTuple):
    """The amounts of an entry."""

    epsilon_nano: int
    delta_atto: int = 0


class Spent(NamedTuple):
    """Amounts that a ceiling limits. Local and shuffled epsilon are two statements about the same reports."""

    epsilon_nano: int
    shuffled_nano: int
    delta_atto: int  # sum over both grants, as a bound fails for one person with this probability at most


class Balance(published.Balance):
    """The published amounts after an entry, with what follows from them."""

    __slots__ = ()

    @property
    def free_nano(self) -> int:
        """Return the nano-epsilon that is neither reserved nor charged."""
        return self.granted_nano - self.reserved_nano - self.charged_nano

    @property
    def free_delta_atto(self) -> int:
        """Return the atto-delta that is neither reserved nor charged."""
        return self.granted_delta_atto - self.reserved_delta_atto - self.charged_delta_atto

    @property
    def free_shuffled(self) -> Pair:
        """Return the part of the shuffled budget that is not charged."""
        return (
            self.granted_shuffled_nano - self.charged_shuffled_nano,
            self.granted_shuffled_delta_atto - self.charged_shuffled_delta_atto,
        )

    @property
    def is_over(self) -> bool:
        """Return whether more is reserved and charged than granted."""
        return min(self.free_nano, self.free_delta_atto, *self.free_shuffled) < 0

    def after(self, kind: Kind, amounts: Amounts, reservation: str | None, shuffled: Pair = (0, 0)) -> "Balance":
        """Return the balance after an entry. Epsilon and delta move by the same rule."""
        granted, reserved, charged = {  # signs
            Kind.GRANT: (1, 0, 0),
            Kind.RESERVE: (0, 1, 0),
            Kind.CHARGE: (0, -1 if reservation else 0, 1),
            Kind.RELEASE: (0, -1, 0),
        }[kind]
        moves = [sign * amount for amount in amounts for sign in (granted, reserved, charged)]
        moves += [sign * amount for amount in shuffled for sign in (granted, charged)]
        return Balance(*(value + move for value, move in zip(self, moves, strict=True)))


def open_ledger(session: Session, dataset_id: str) -> None:
    """Create the empty ledger of a dataset."""
    session.add(LedgerHead(dataset_id=dataset_id, seq=0, hash=GENESIS_HASH))
    session.flush()


def grant(
    session: Session,
    dataset_id: str,
    epsilon_nano: int,
    *,
    delta_atto: int = 0,
    shuffled: Pair = (0, 0),
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
    amounts = Amounts(epsilon_nano, delta_atto)
    entry = _append(session, dataset_id, Kind.GRANT, amounts, reference, None, actor, now, ceiling, shuffled)
    if max(entry.granted_delta_atto, entry.granted_shuffled_delta_atto) > DELTA_MAX_ATTO:
        raise LimitExceeded(f"the grants of a dataset may have a total delta of at most {format_delta(DELTA_MAX_ATTO)}")
    return entry


def reserve(
    session: Session,
    dataset_id: str,
    epsilon_nano: int,
    *,
    delta_atto: int = 0,
    job_id: str,
    actor: str,
    now: int,
    ceiling: Ceiling = UNLIMITED,
) -> LedgerEntry:
    """Reserve the declared cost of a job.

    Raise BudgetExhausted if the free budget is too small, and CeilingExceeded if the charges and reservations of the
    dataset's source would exceed `ceiling`.
    """
    amounts = Amounts(epsilon_nano, delta_atto)
    return _append(session, dataset_id, Kind.RESERVE, amounts, job_id, job_id, actor, now, ceiling)


def charge(
    session: Session,
    dataset_id: str,
    epsilon_nano: int,
    *,
    delta_atto: int = 0,
    shuffled: Pair = (0, 0),
    reference: str,
    reservation: str | None,
    actor: str,
    now: int,
    ceiling: Ceiling = UNLIMITED,
) -> LedgerEntry:
    """Charge a job's reservation, or the free budget if `reservation` is None.

    `shuffled` is charged to the free shuffled budget in both cases.
    Raise BudgetExhausted if the reservation or the free budget is too small, and CeilingExceeded if the charges and
    reservations of the dataset's source would exceed `ceiling`. A charge to a reservation increases them by `shuffled`
    only. Its caller locks the source before the job (`lock_source`).
    """
    amounts = Amounts(epsilon_nano, delta_atto)
    return _append(session, dataset_id, Kind.CHARGE, amounts, reference, reservation, actor, now, ceiling, shuffled)


def release(session: Session, dataset_id: str, *, job_id: str, actor: str, now: int) -> LedgerEntry | None:
    """Release what remains of a job's reservation. Return None if nothing remains."""
    _lock(session, dataset_id)
    left = reserved_for(session, dataset_id, job_id)
    if left == Amounts(0, 0):
        return None
    return _append(session, dataset_id, Kind.RELEASE, left, job_id, job_id, actor, now)


def balance(session: Session, dataset_id: str) -> Balance:
    """Return the balance after the last entry."""
    entry = session.scalars(
        select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq.desc()).limit(1)
    ).first()
    return Balance() if entry is None else balance_after(entry)


def balance_after(entry: LedgerEntry) -> Balance:
    """Return the balance that an entry stores."""
    return Balance(*(getattr(entry, name) for name in Balance._fields))


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
    return Amounts(0, 0) if row is None else Amounts(row.epsilon_nano, row.delta_atto)


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
    amounts, shuffled = _amounts(entry)
    if min(*amounts, *shuffled) < 0:
        return before, "an amount is negative"
    if not _fits_reservation(Kind(entry.kind), amounts, entry.reservation, reserved):
        return before, "a job charged or released more than it had reserved"
    if any(shuffled) and entry.kind not in (Kind.GRANT, Kind.CHARGE):
        return before, "the shuffled budget has no reservations"
    after = before.after(Kind(entry.kind), amounts, entry.reservation, shuffled)
    if after != balance_after(entry) or after.is_over:
        return before, "a balance does not add up"
    return after, ""


def _amounts(entry: LedgerEntry) -> tuple[Amounts, Pair]:
    return Amounts(entry.epsilon_nano, entry.delta_atto), (entry.shuffled_nano, entry.shuffled_delta_atto)


def _fits_reservation(kind: Kind, amounts: Amounts, job_id: str | None, reserved: dict[str, Amounts]) -> bool:
    """Apply an entry to the open reservations. Return False if its job has not reserved as much."""
    if kind is Kind.GRANT or (kind is Kind.CHARGE and job_id is None):
        return True
    if job_id is None:
        return False
    sign = 1 if kind is Kind.RESERVE else -1
    before = reserved.pop(job_id, Amounts(0, 0))
    left = Amounts(*(value + sign * amount for value, amount in zip(before, amounts, strict=True)))
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


def _append(
    session: Session,
    dataset_id: str,
    kind: Kind,
    amounts: Amounts,
    reference: str,
    reservation: str | None,
    actor: str,
    now: int,
    ceiling: Ceiling = UNLIMITED,
    shuffled: Pair = (0, 0),
) -> LedgerEntry:
    is_reserved = kind is Kind.CHARGE and reservation is not None  # the source counts the reservation already
    added = Amounts(0, 0) if is_reserved else amounts
    adds_to_source = ceiling != UNLIMITED and kind in (Kind.RESERVE, Kind.CHARGE) and (not is_reserved or any(shuffled))
    if adds_to_source:
        lock_source(session, dataset_id)  # before the head, see `models.database.engine`
    end = _lock(session, dataset_id)
    repeated = session.scalars(
        select(LedgerEntry).where(
            LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == kind, LedgerEntry.reference == reference
        )
    ).first()
    if repeated is not None:
        if (*_amounts(repeated), repeated.reservation) != (amounts, shuffled, reservation):
            raise Conflict(f"the ledger already contains a {kind} for {reference} with another amount")
        return repeated
    before = balance(session, dataset_id)
    after = before.after(kind, amounts, reservation, shuffled)
    available = reserved_for(session, dataset_id, reservation) if kind is Kind.CHARGE and reservation else amounts
    if after.free_nano < 0 or amounts.epsilon_nano > available.epsilon_nano:
        raise _exhausted(session, dataset_id, "epsilon", amounts.epsilon_nano, before[:3])
    if after.free_delta_atto < 0 or amounts.delta_atto > available.delta_atto:
        raise _exhausted(session, dataset_id, "delta", amounts.delta_atto, before[3:6])
    if after.free_shuffled[0] < 0:
        amounts_before = (before.granted_shuffled_nano, 0, before.charged_shuffled_nano)
        raise _exhausted(session, dataset_id, "shuffled_epsilon", shuffled[0], amounts_before)
    if after.free_shuffled[1] < 0:
        amounts_before = (before.granted_shuffled_delta_atto, 0, before.charged_shuffled_delta_atto)
        raise _exhausted(session, dataset_id, "shuffled_delta", shuffled[1], amounts_before)
    if adds_to_source:
        _check_ceiling("source", ceiling, spent_of_source(session, dataset_id), added, shuffled)
    elif kind is Kind.GRANT:
        delta_atto = before.granted_delta_atto + before.granted_shuffled_delta_atto
        granted = Spent(before.granted_nano, before.granted_shuffled_nano, delta_atto)
        _check_ceiling("dataset", ceiling, granted, added, shuffled)
    entry = LedgerEntry(
        id=new_id("led", at=now),  # reveals no finer time than `at`
        dataset_id=dataset_id,
        kind=kind.value,
        reference=reference,
        reservation=reservation,
        actor=actor,
        at=now,
        shuffled_nano=shuffled[0],
        shuffled_delta_atto=shuffled[1],
        **amounts._asdict(),
        **after._asdict(),
    )
    if reservation:
        left = amounts if kind is Kind.RESERVE else _subtract(available, amounts)
        _store_reservation(session, dataset_id, reservation, left)
    hash_chain.append(session, end, entry)
    return entry


def _check_ceiling(
    name: Literal["dataset", "source"], ceiling: Ceiling, spent: Spent, requested: Amounts, shuffled: Pair
) -> None:
    short_delta: BudgetKind = "shuffled_delta" if shuffled[1] else "delta"
    checks: tuple[tuple[BudgetKind, int | None, int, int], ...] = (
        ("epsilon", ceiling.epsilon_nano, spent.epsilon_nano, requested.epsilon_nano),
        ("shuffled_epsilon", ceiling.epsilon_nano, spent.shuffled_nano, shuffled[0]),
        (short_delta, ceiling.delta_atto, spent.delta_atto, requested.delta_atto + shuffled[1]),
    )
    for short, limit, before, amount in checks:
        if limit is not None and amount and before + amount > limit:
            raise CeilingExceeded(name, short, limit=limit, spent=before, requested=amount)


def _subtract(amounts: Amounts, spent: Amounts) -> Amounts:
    return Amounts(amounts.epsilon_nano - spent.epsilon_nano, amounts.delta_atto - spent.delta_atto)


def _store_reservation(session: Session, dataset_id: str, job_id: str, left: Amounts) -> None:
    """Store what remains of a reservation; delete the row if nothing remains. The caller has locked the head."""
    row = session.get(LedgerReservation, (dataset_id, job_id))
    if row is None:
        if any(left):
            session.add(LedgerReservation(dataset_id=dataset_id, job_id=job_id, **left._asdict()))
    elif any(left):
        row.epsilon_nano, row.delta_atto = left
    else:
        session.delete(row)


def _exhausted(
    session: Session, dataset_id: str, short: BudgetKind, requested: int, before: tuple[int, ...]
) -> BudgetExhausted:
    """Return the error with the newest entries that reserved or charged the missing amount."""
    granted, reserved, charged = before
    amount = {
        "epsilon": LedgerEntry.epsilon_nano,
        "delta": LedgerEntry.delta_atto,
        "shuffled_epsilon": LedgerEntry.shuffled_nano,
        "shuffled_delta": LedgerEntry.shuffled_delta_atto,
    }[short]
    charges = LedgerEntry.kind.in_([Kind.RESERVE.value, Kind.CHARGE.value])
    query = select(LedgerEntry.id).where(LedgerEntry.dataset_id == dataset_id, charges, amount > 0)
    entries = tuple(session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(10)))
    return BudgetExhausted(
        short, requested=requested, granted=granted, reserved=reserved, charged=charged, entries=entries
    )
