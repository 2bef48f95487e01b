"""Append entries to the ledger of a dataset, and verify it.

Each function runs inside the caller's transaction and locks the ledger's head row before it appends. Costs add up:
epsilon to epsilon, delta to delta, or by mu^2 as in `sfumato.privacy.accountant`. `models.tables.ledger` describes the
entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import hash_chain
from models.database.types import new_id, select_page
from models.errors import BudgetExhausted, Conflict, LimitExceeded, NotFound
from models.hash_chain import ChainVerification
from models.ledger.amounts import CURRENCIES, GAUSSIAN_START, Amounts, Balance, Currency, balance_after
from models.ledger.replay import Replay
from models.ledger.sources import UNLIMITED, Spent, check_ceiling, check_source, lock_source, pending_nano
from models.tables.ledger import Ceiling, Kind, LedgerEntry, LedgerHead, LedgerReservation
from sfumato.errors import InvalidSpec
from sfumato.privacy.accountant import Accounting, Cost, charge_mu2, most_mu2, release_delta, sum_mu2
from sfumato.privacy.accounting import DELTA_MAX_ATTO, format_delta, format_epsilon
from sfumato.privacy.cycles import CYCLE_PREFIX
from sfumato.privacy.ledger import GENESIS_HASH, Head


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
    starts: Accounting = "additive"  # the accounting, if this is the first entry

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
    starts: Accounting = "additive",
) -> LedgerEntry:
    """Increase the budget. `starts` is the accounting of the ledger, if this is its first entry.

    `reference` names the grant, so that a retry does not grant twice.

    Raise CeilingExceeded if the grants of the dataset would exceed `ceiling`, and LimitExceeded if its delta would
    exceed 1e-3 in total. The ceiling's epsilon limits the local and the shuffled epsilon alike, and its delta limits
    the sum of both deltas. A larger delta allows a mechanism that reveals one record in a thousand. Up to this limit,
    atto-delta is also exact in every JSON reader.
    """
    entry = _append(session, dataset_id, _Change(Kind.GRANT, amounts, reference, None, actor, now, ceiling, starts))
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
    """Reserve the declared cost of a job. By default, its mu^2 covers each way to divide epsilon and delta.

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
    head(session, dataset_id, lock=True)
    left = reserved_for(session, dataset_id, job_id)
    if not any(left):
        return None
    return _append(session, dataset_id, _Change(Kind.RELEASE, left, job_id, job_id, actor, now))


def open_cycle(
    session: Session, dataset_id: str, amounts: Amounts, *, cycle_id: str, actor: str, now: int
) -> LedgerEntry:
    """Grant the cost of a cycle and reserve it for the rounds of the cycle. Return the reservation.

    The ceilings counted the series when it was created, see `sources.check_series`. Repeating changes nothing.
    """
    _append(session, dataset_id, _Change(Kind.GRANT, amounts, cycle_id, None, actor, now))
    return _append(session, dataset_id, _Change(Kind.RESERVE, amounts, cycle_id, cycle_id, actor, now))


def end_cycle(session: Session, dataset_id: str, *, cycle_id: str, actor: str, now: int) -> LedgerEntry | None:
    """Release what a cycle did not spend, and remove it from the grants. Return None if nothing remains."""
    left = release(session, dataset_id, job_id=cycle_id, actor=actor, now=now)
    if left is None:
        return None
    amounts = Amounts.of(left)._replace(mu2_pico=0)  # the limit of mu^2 follows the grants
    return _append(session, dataset_id, _Change(Kind.EXPIRE, amounts, cycle_id, None, actor, now))


def switch_to_gaussian(session: Session, dataset_id: str, *, actor: str, now: int) -> LedgerEntry:
    """Count mu^2 from now on, and that of all charges so far. There is no way back.

    Raise Conflict if costs are Gaussian already, or a job has a reservation; InvalidSpec if the grants cover no mu^2;
    BudgetExhausted if the charges so far exceed the Gaussian budget, as large pure charges beside blocks can. A dataset
    with a shuffler can switch before its first round only, because the cost of a release is chosen for one accounting.
    """
    head(session, dataset_id, lock=True)
    before = balance(session, dataset_id)
    if before.accounting == "gaussian":
        raise Conflict("this dataset has Gaussian accounting already")
    if before.reserved_nano or before.reserved_delta_atto:
        raise Conflict("a job has a reservation: wait until the jobs of the dataset have ended, or cancel them")
    if before.charged_shuffled_delta_atto:
        raise Conflict("a shuffler has a round of this dataset: switch its accounting before the first round")
    require_gaussian(Amounts(*(granted for granted, _, _ in map(before.of, CURRENCIES))))
    query = select(LedgerEntry.epsilon_nano, LedgerEntry.delta_atto, func.count())
    charges = query.where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == Kind.CHARGE.value)
    rows = session.execute(charges.group_by(LedgerEntry.epsilon_nano, LedgerEntry.delta_atto))
    mu2_pico = sum_mu2({(epsilon_nano, delta_atto): number for epsilon_nano, delta_atto, number in rows})
    if mu2_pico is None:
        raise Conflict("a charge of delta alone has no mu^2: this dataset must keep additive accounting")
    change = _Change(Kind.GAUSSIAN, Amounts(mu2_pico=mu2_pico), dataset_id, None, actor, now)
    return _append(session, dataset_id, change)


def require_gaussian(grants: Amounts) -> None:
    """Raise InvalidSpec if grants do not allow Gaussian accounting."""
    epsilon_nano, delta_atto = grants.shuffled if any(grants.shuffled) else grants[:2]
    if not delta_atto:
        raise InvalidSpec("Gaussian accounting needs a delta: grant one, such as 1e-6, or use additive accounting")
    if not Balance().after(Kind.GRANT, grants, None).limit_mu2:
        raise InvalidSpec(
            f"epsilon {format_epsilon(epsilon_nano)} and delta {format_delta(delta_atto)} are too small for Gaussian "
            "accounting: grant more, or use additive accounting"
        )


def check_free(session: Session, dataset_id: str, amounts: Amounts) -> None:
    """Raise BudgetExhausted unless a later charge of these amounts would be allowed now. Nothing is reserved."""
    before = balance(session, dataset_id)
    after = before.after(Kind.CHARGE, amounts, None)
    for currency, left in zip(CURRENCIES, after.slack, strict=True):
        if left < 0:
            raise _exhausted(session, dataset_id, currency, getattr(amounts, currency.amount), before)


def balance(session: Session, dataset_id: str) -> Balance:
    """Return the balance after the last entry."""
    entry = session.scalars(
        select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id).order_by(LedgerEntry.seq.desc()).limit(1)
    ).first()
    return Balance() if entry is None else balance_after(entry)


def reserved_for(session: Session, dataset_id: str, job_id: str) -> Amounts:
    """Return what remains of a job's reservation."""
    row = session.get(LedgerReservation, (dataset_id, job_id), populate_existing=True)
    return Amounts() if row is None else Amounts(row.epsilon_nano, row.delta_atto, mu2_pico=row.mu2_pico or 0)


def charged_nano(session: Session, dataset_id: str, reservations: Sequence[str]) -> int:
    """Return what was charged to reservations, in nano-epsilon."""
    query = select(func.sum(LedgerEntry.epsilon_nano)).where(
        LedgerEntry.dataset_id == dataset_id,
        LedgerEntry.kind == Kind.CHARGE.value,
        LedgerEntry.reservation.in_(reservations),
    )
    return int(session.scalar(query) or 0)


def head(session: Session, dataset_id: str, *, lock: bool = False) -> LedgerHead:
    """Return the head of the ledger, and lock it until the end of the transaction. Raise NotFound."""
    found = session.get(LedgerHead, dataset_id, populate_existing=True, with_for_update=lock or None)
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


def last_reservation(session: Session, dataset_id: str) -> LedgerEntry | None:
    """Return the newest reservation of a job; None if no job has reserved."""
    of_jobs = ~LedgerEntry.reference.startswith(CYCLE_PREFIX, autoescape=True)
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == Kind.RESERVE, of_jobs)
    return session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(1)).first()


def release_cost_of(session: Session, dataset_id: str, job_id: str) -> Cost:
    """Return what the releases of a job were charged; 0 unless the dataset is shuffled."""
    columns = LedgerEntry.shuffled_nano, LedgerEntry.shuffled_delta_atto, LedgerEntry.mu2_pico
    query = select(*map(func.sum, columns)).where(
        LedgerEntry.dataset_id == dataset_id,
        LedgerEntry.kind == Kind.CHARGE,
        LedgerEntry.reservation == job_id,
        LedgerEntry.shuffled_delta_atto > 0,
    )
    return Cost(*(int(amount or 0) for amount in session.execute(query).one()))


def verify(session: Session, dataset_id: str) -> ChainVerification:
    """Verify a dataset's ledger: chain, balances and reservations. Raise NotFound.

    Memory is bounded by the number of open reservations, not by the length of the ledger.
    """

    def read_end() -> Head:
        found = head(session, dataset_id)
        return Head(found.seq, found.hash)

    entries = hash_chain.read_all(
        session, select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id), LedgerEntry.seq
    )
    return hash_chain.verify(read_end, entries, Replay().fault)


def has_entry(session: Session, dataset_id: str, noted: Head) -> bool:
    """Return whether the ledger has an entry with the number and the hash of a head that was noted earlier."""
    if noted.seq == 0:
        return True
    found = select(LedgerEntry.hash).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.seq == noted.seq)
    return session.scalar(found) == noted.hash


def _counted(change: _Change, before: Balance) -> _Change:
    """Return a change with its mu^2: none under additive accounting, else that of the caller or of the amounts."""
    amounts, of_releases = change.amounts, before.release_accounting == "gaussian"
    if change.kind is Kind.GAUSSIAN:
        return change
    if before.accounting == "additive" or (of_releases and change.kind is not Kind.CHARGE):
        return replace(change, amounts=amounts._replace(mu2_pico=0))
    if of_releases:
        if any(amounts.shuffled) and not amounts.mu2_pico:
            raise Conflict("the accounting of this dataset has changed: open the round again")
        return change
    if amounts.mu2_pico or change.kind not in (Kind.RESERVE, Kind.CHARGE):
        return change
    count = most_mu2 if change.kind is Kind.RESERVE else charge_mu2
    return replace(change, amounts=amounts._replace(mu2_pico=count(amounts.epsilon_nano, amounts.delta_atto)))


def _append(session: Session, dataset_id: str, change: _Change) -> LedgerEntry:
    if change.adds_to_source:
        lock_source(session, dataset_id)  # before the head, see `models.database.engine`
    end = head(session, dataset_id, lock=True)
    before = balance(session, dataset_id)
    if end.seq == 0 and change.starts == "gaussian":
        before = Balance(**GAUSSIAN_START)
    change = _counted(change, before)
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
    reservable = change.amounts.reservable()
    after = before.after(change.kind, change.amounts, change.reservation)
    available = reserved_for(session, dataset_id, change.reservation or "") if change.is_reserved else reservable
    left = available.minus(reservable)
    for currency, *amounts in zip(CURRENCIES, left, after.slack, strict=True):
        if min(amounts) < 0:
            raise _exhausted(session, dataset_id, currency, getattr(change.amounts, currency.amount), before)
    if change.adds_to_source:
        check_source(session, dataset_id, change.ceiling, change.added, after=after)
    elif change.kind is Kind.GRANT and change.ceiling != UNLIMITED:
        delta_atto = before.granted_delta_atto + before.granted_shuffled_delta_atto
        granted_nano = before.granted_nano + pending_nano(session, dataset_id)
        granted = Spent(granted_nano, before.granted_shuffled_nano, delta_atto)
        check_ceiling("dataset", change.ceiling, granted, change.added)
    entry = LedgerEntry(
        id=new_id("led", at=change.now),  # reveals no finer time than `at`
        dataset_id=dataset_id,
        kind=change.kind.value,
        reference=change.reference,
        reservation=change.reservation,
        actor=change.actor,
        at=change.now,
        **change.amounts._asdict() | ({} if after.accounting == "gaussian" else {"mu2_pico": None}),
        **after._asdict(),
    )
    if change.reservation:
        remains = reservable if change.kind is Kind.RESERVE else left
        _store_reservation(session, dataset_id, change.reservation, remains)
    hash_chain.append(session, end, entry)
    return entry


def _store_reservation(session: Session, dataset_id: str, job_id: str, left: Amounts) -> None:
    """Store what remains of a reservation; delete the row if nothing remains. The caller has locked the head."""
    costs = {"epsilon_nano": left.epsilon_nano, "delta_atto": left.delta_atto, "mu2_pico": left.mu2_pico or None}
    if any(left):
        session.merge(LedgerReservation(dataset_id=dataset_id, job_id=job_id, **costs))
    elif (row := session.get(LedgerReservation, (dataset_id, job_id))) is not None:
        session.delete(row)


def _exhausted(
    session: Session, dataset_id: str, currency: Currency, requested: int, before: Balance
) -> BudgetExhausted:
    """Return the error with the newest entries that reserved or charged the missing amount."""
    granted, reserved, charged = before.of(currency)
    if currency.kind == "shuffled_delta" and before.release_accounting == "gaussian":
        granted = release_delta(granted)
    charges = LedgerEntry.kind.in_([Kind.RESERVE.value, Kind.CHARGE.value])
    amount = getattr(LedgerEntry, currency.amount)
    query = select(LedgerEntry.id).where(LedgerEntry.dataset_id == dataset_id, charges, amount > 0)
    entries = tuple(session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(10)))
    return BudgetExhausted(
        currency.kind, requested=requested, granted=granted, reserved=reserved, charged=charged, entries=entries
    )
