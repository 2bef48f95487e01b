"""Costs of a source: charges and reservations of all its datasets, compared with the ceilings.

Datasets over the same people have the same source, and their charges and reservations add up, deleted datasets
included. For a ceiling of the operator, the datasets of a tenant without a label are one source. By default, a source
spends at most the largest grants of one of its datasets, so that a dataset that is created again has no new budget.
Datasets without a label are then of the same people if they have the same name.

The cycles that a series has not begun count like a reservation and like a grant, from the creation of the series on.
"""

from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.orm import Session

from models.errors import BudgetKind, CeilingExceeded
from models.ledger.amounts import Amounts, Balance
from models.tables.datasets import Dataset
from models.tables.identity import Tenant
from models.tables.ledger import Ceiling, LedgerEntry, LedgerHead
from models.tables.series import Series
from sfumato.privacy.accountant import Cost, is_allowed, limit_mu2, limit_release_mu2, release_delta

UNLIMITED = Ceiling()


class Spent(NamedTuple):
    """Amounts that a ceiling limits. Local and shuffled epsilon are two statements about the same reports."""

    epsilon_nano: int
    shuffled_nano: int
    delta_atto: int  # sum over both grants, as a bound fails for one person with this probability at most
    mu2_pico: int | None = None  # None unless all datasets with costs have Gaussian accounting, without a shuffler
    release_mu2_pico: int | None = None  # None unless all datasets with costs have Gaussian accounting and a shuffler


class Totals(NamedTuple):
    """Sums over the datasets of a source.

    Attributes
    ----------
    n_datasets : int
    spent : Spent
        Charges and reservations.
    reserved : Spent
        Reservations alone.
    largest : Ceiling
        The largest grant of a dataset, for each amount by itself.
    """

    n_datasets: int
    spent: Spent
    reserved: Spent
    largest: Ceiling


def of_source(tenant_id: str, source: str | None, name: str | None = None) -> ColumnElement[bool]:
    """Return the predicate of a source's datasets, or of those with this name among them."""
    of_label = and_(Dataset.tenant_id == tenant_id, Dataset.source == source)  # IS NULL for None
    return of_label if name is None else and_(of_label, Dataset.name == name)


def same_people(tenant_id: str, source: str | None, name: str) -> ColumnElement[bool]:
    """Return the predicate of the datasets over the same people: of one label, or without a label of one name."""
    return of_source(tenant_id, source, name if source is None else None)


def total(session: Session, datasets: ColumnElement[bool]) -> Totals:
    """Return the sums over datasets, deleted ones included."""
    entry = LedgerEntry
    delta_of_both = entry.granted_delta_atto + entry.granted_shuffled_delta_atto
    of_series = select(Series.dataset_id, func.sum(Series.pending_nano).label("nano")).group_by(Series.dataset_id)
    pending = of_series.subquery()
    later = func.coalesce(pending.c.nano, 0)
    of_records = later + entry.charged_nano + entry.reserved_nano + entry.charged_delta_atto + entry.reserved_delta_atto
    has_costs = case((of_records + entry.charged_shuffled_nano + entry.charged_shuffled_delta_atto > 0, 1))
    query = (
        select(
            func.sum(entry.charged_nano + entry.reserved_nano + later),
            func.sum(entry.charged_shuffled_nano),
            func.sum(entry.charged_delta_atto + entry.reserved_delta_atto + entry.charged_shuffled_delta_atto),
            func.sum(entry.charged_mu2_pico + entry.reserved_mu2_pico),
            func.sum(entry.reserved_nano + later),
            func.sum(entry.reserved_delta_atto),
            func.sum(entry.reserved_mu2_pico),
            func.max(entry.granted_nano + later),
            func.max(entry.granted_shuffled_nano),
            func.max(delta_of_both),
            func.count(),
            func.count(has_costs),
            func.count(case((entry.charged_mu2_pico.is_not(None), has_costs))),
            func.count(case((entry.granted_shuffled_delta_atto > 0, has_costs))),
        )
        .join(LedgerHead, (LedgerHead.dataset_id == entry.dataset_id) & (LedgerHead.seq == entry.seq))
        .join(Dataset, Dataset.id == LedgerHead.dataset_id)
        .outerjoin(pending, pending.c.dataset_id == Dataset.id)
        .where(datasets)
    )
    (
        nano,
        shuffled,
        atto,
        mu2,
        nano_r,
        atto_r,
        mu2_r,
        most,
        most_shuffled,
        most_atto,
        n,
        n_costs,
        n_gaussian,
        n_shuffled,
    ) = (int(each or 0) for each in session.execute(query).one())
    is_gaussian = n_costs == n_gaussian
    record_mu2 = mu2 if is_gaussian and not n_shuffled else None
    release_mu2 = mu2 if is_gaussian and n_shuffled == n_costs else None
    return Totals(
        n_datasets=n,
        spent=Spent(nano, shuffled, atto, record_mu2, release_mu2),
        reserved=Spent(nano_r, 0, atto_r, None if record_mu2 is None else mu2_r),
        largest=Ceiling(most, most_atto, most_shuffled),
    )


def list_datasets(session: Session, datasets: ColumnElement[bool], *, limit: int) -> list[tuple[Dataset, LedgerEntry]]:
    """Return datasets, newest first, deleted ones included, each with the last entry of its ledger."""
    query = (
        select(Dataset, LedgerEntry)
        .join(LedgerHead, LedgerHead.dataset_id == Dataset.id)
        .join(LedgerEntry, (LedgerEntry.dataset_id == Dataset.id) & (LedgerEntry.seq == LedgerHead.seq))
        .where(datasets)
        .order_by(Dataset.id.desc())
        .limit(limit)
    )
    return [(dataset, entry) for dataset, entry in session.execute(query)]


def count_same_people(session: Session, dataset: Dataset) -> int:
    """Return the number of other datasets over the same people, deleted ones included."""
    people = same_people(dataset.tenant_id, dataset.source, dataset.name)
    return session.scalar(select(func.count()).where(people, Dataset.id != dataset.id)) or 0


def spent_of_source(session: Session, dataset_id: str) -> Spent:
    """Return what is charged or reserved in all datasets of a dataset's source, deleted ones included."""
    own = session.execute(select(Dataset.tenant_id, Dataset.source).where(Dataset.id == dataset_id)).one()
    return total(session, of_source(own.tenant_id, own.source)).spent


def pending_nano(session: Session, dataset_id: str) -> int:
    """Return what the series of a dataset may still be granted, in nano-epsilon."""
    total_nano = session.scalar(select(func.sum(Series.pending_nano)).where(Series.dataset_id == dataset_id))
    return int(total_nano or 0)


def check_series(session: Session, series: Series, dataset_ceiling: Ceiling, ceiling: Ceiling, granted: Spent) -> None:
    """Raise CeilingExceeded if a new series exceeds a ceiling of its dataset or of its source.

    The series has been added to the session, and its caller holds `lock_source`.

    Parameters
    ----------
    granted : Spent
        What the dataset is granted.
    """
    added = Amounts(series.pending_nano)
    before_nano = granted.epsilon_nano + pending_nano(session, series.dataset_id) - added.epsilon_nano
    check_ceiling("dataset", dataset_ceiling, granted._replace(epsilon_nano=before_nano), added)
    if ceiling == UNLIMITED:
        return
    query = select(Dataset.tenant_id, Dataset.source, Dataset.name).where(Dataset.id == series.dataset_id)
    tenant_id, source, name = session.execute(query).one()
    is_largest = ceiling.is_largest_grant
    found = total(session, same_people(tenant_id, source, name) if is_largest else of_source(tenant_id, source))
    before = _without_mu2(found.spent)
    before = before._replace(epsilon_nano=before.epsilon_nano - added.epsilon_nano)
    check_ceiling("grants" if is_largest else "source", found.largest if is_largest else ceiling, before, added)


def lock_source(session: Session, dataset_id: str) -> None:
    """Lock the row of the dataset's tenant until the commit, so that one transaction at a time adds to a source."""
    query = select(Tenant.id).join(Dataset, Dataset.tenant_id == Tenant.id).where(Dataset.id == dataset_id)
    session.execute(query.with_for_update(of=Tenant, key_share=True))


def check_source(session: Session, dataset_id: str, ceiling: Ceiling, added: Amounts, *, after: Balance) -> None:
    """Raise CeilingExceeded if `added` exceeds the ceiling of the dataset's source. The caller holds `lock_source`.

    `after` is the balance of the dataset with `added`. Costs of another accounting than its own add up.
    """

    def spent_of(found: Totals) -> Spent:
        spent = _without_mu2(found.spent)
        if after.own_accounting == "gaussian":
            return spent._replace(mu2_pico=found.spent.mu2_pico)
        if after.release_accounting == "gaussian":
            return spent._replace(release_mu2_pico=found.spent.release_mu2_pico)
        return spent

    query = select(Dataset.tenant_id, Dataset.source, Dataset.name).where(Dataset.id == dataset_id)
    tenant_id, source, name = session.execute(query).one()
    if not ceiling.is_largest_grant:
        check_ceiling("source", ceiling, spent_of(total(session, of_source(tenant_id, source))), added)
        return
    found = total(session, same_people(tenant_id, source, name))
    if found.n_datasets > 1:  # otherwise the ledger's own rule is the same
        check_ceiling("grants", found.largest, spent_of(found), added)


def _without_mu2(spent: Spent) -> Spent:
    """Return amounts that add up."""
    return spent._replace(mu2_pico=None, release_mu2_pico=None)


def check_ceiling(name: Literal["dataset", "source", "grants"], ceiling: Ceiling, spent: Spent, added: Amounts) -> None:
    """Raise CeilingExceeded if `added` to `spent` exceeds a ceiling.

    Costs of a source add up additively, or as in a dataset with Gaussian accounting if all its datasets with costs have
    that, all of them with a shuffler or all without one, and the ceiling limits epsilon and delta.
    """
    limit_nano, limit_atto = ceiling.epsilon_nano, ceiling.delta_atto
    if spent.mu2_pico is not None and limit_nano is not None and limit_atto:
        most = Cost(limit_nano, limit_atto, limit_mu2(limit_nano, limit_atto))
        used = Cost(
            spent.epsilon_nano + added.epsilon_nano,
            spent.delta_atto + added.delta_atto,
            spent.mu2_pico + added.mu2_pico,
        )
        if not is_allowed("gaussian", most, used):
            requested = added.mu2_pico
            raise CeilingExceeded(name, "mu2", limit=most.mu2_pico, spent=spent.mu2_pico, requested=requested)
        return
    limit_shuffled = limit_nano if ceiling.shuffled_nano is None else ceiling.shuffled_nano
    short_delta: BudgetKind = "shuffled_delta" if added.shuffled_delta_atto else "delta"
    shuffled: tuple[BudgetKind, int | None, int, int]
    shuffled = "shuffled_epsilon", limit_shuffled, spent.shuffled_nano, added.shuffled_nano
    if spent.release_mu2_pico is not None and limit_shuffled is not None and limit_atto:
        most_mu2 = limit_release_mu2(limit_shuffled, limit_atto)
        shuffled = "mu2", most_mu2, spent.release_mu2_pico, added.mu2_pico
        limit_atto = release_delta(limit_atto)
    checks: tuple[tuple[BudgetKind, int | None, int, int], ...] = (
        ("epsilon", limit_nano, spent.epsilon_nano, added.epsilon_nano),
        shuffled,
        (short_delta, limit_atto, spent.delta_atto, added.delta_atto + added.shuffled_delta_atto),
    )
    for short, limit, before, amount in checks:
        if limit is not None and amount and before + amount > limit:
            raise CeilingExceeded(name, short, limit=limit, spent=before, requested=amount)
