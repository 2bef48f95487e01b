"""Costs of a source: charges and reservations of all its datasets, compared with the operator's ceilings.

Datasets over the same people have the same source, and their charges and reservations add up, deleted datasets
included. The datasets of a tenant without a label are one source, so that a new dataset has no new budget.
"""

from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.errors import BudgetKind, CeilingExceeded
from models.ledger.amounts import Amounts
from models.tables.datasets import Dataset
from models.tables.identity import Tenant
from models.tables.ledger import Ceiling, LedgerEntry, LedgerHead
from sfumato.privacy.accountant import Cost, is_allowed, limit_mu2

UNLIMITED = Ceiling()


class Spent(NamedTuple):
    """Amounts that a ceiling limits. Local and shuffled epsilon are two statements about the same reports."""

    epsilon_nano: int
    shuffled_nano: int
    delta_atto: int  # sum over both grants, as a bound fails for one person with this probability at most
    mu2_pico: int | None = None  # None unless all datasets with costs have Gaussian accounting


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
            func.sum(LedgerEntry.charged_mu2_pico + LedgerEntry.reserved_mu2_pico),
            func.count(),
            func.count(LedgerEntry.charged_mu2_pico),
        )
        .join(LedgerHead, (LedgerHead.dataset_id == LedgerEntry.dataset_id) & (LedgerHead.seq == LedgerEntry.seq))
        .join(Dataset, Dataset.id == LedgerHead.dataset_id)
        .where(Dataset.tenant_id == own.tenant_id, Dataset.source == own.source)  # IS NULL for None
    )
    nano, shuffled, atto, mu2, n_datasets, n_gaussian = (int(total or 0) for total in session.execute(query).one())
    return Spent(nano, shuffled, atto, mu2 if n_datasets == n_gaussian else None)


def lock_source(session: Session, dataset_id: str) -> None:
    """Lock the row of the dataset's tenant until the commit, so that one transaction at a time adds to a source."""
    query = select(Tenant.id).join(Dataset, Dataset.tenant_id == Tenant.id).where(Dataset.id == dataset_id)
    session.execute(query.with_for_update(of=Tenant, key_share=True))


def check_ceiling(name: Literal["dataset", "source"], ceiling: Ceiling, spent: Spent, added: Amounts) -> None:
    """Raise CeilingExceeded if `added` to `spent` exceeds a ceiling.

    Costs of a source add up additively, or as in a dataset with Gaussian accounting if all its datasets with costs have
    that and the ceiling limits epsilon and delta.
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
    short_delta: BudgetKind = "shuffled_delta" if added.shuffled_delta_atto else "delta"
    checks: tuple[tuple[BudgetKind, int | None, int, int], ...] = (
        ("epsilon", limit_nano, spent.epsilon_nano, added.epsilon_nano),
        ("shuffled_epsilon", limit_nano, spent.shuffled_nano, added.shuffled_nano),
        (short_delta, limit_atto, spent.delta_atto, added.delta_atto + added.shuffled_delta_atto),
    )
    for short, limit, before, amount in checks:
        if limit is not None and amount and before + amount > limit:
            raise CeilingExceeded(name, short, limit=limit, spent=before, requested=amount)
