"""What a tenant may have at once, and whose turn with a worker it is.

An operator's settings hold for every tenant; a quota of a tenant's own, where one is set,
stands in the place of a setting. Turns make claims fair: a claim goes to the tenant with the
fewest running jobs, and of those to the one that was served longest ago.

The row of a tenant is the last that a claim locks: whoever holds it waits for nobody, but for
the audit trail's head.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, ForeignKey, Integer, Select, bindparam, func, or_, select
from sqlalchemy.orm import Mapped, Session, aliased, mapped_column

from models import audit
from models.audit import Act
from models.db import Base, insert_unless_there
from models.errors import LimitExceeded, NotFound
from models.settings import Settings
from models.tenant import operator

LARGEST = 1_000_000_000


class TenantQuota(Base):
    """A tenant's own limits, and its last turn."""

    __tablename__ = "tenant_quotas"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    turn: Mapped[int] = mapped_column(BigInteger, comment="of its last claim, counted over all tenants; 0: none yet")
    max_datasets: Mapped[int | None] = mapped_column(Integer, comment="none: the operator's setting holds")
    max_active_jobs: Mapped[int | None] = mapped_column(Integer, comment="none: the operator's setting holds")
    max_running_jobs: Mapped[int | None] = mapped_column(Integer, comment="none: as many as there are workers")
    max_open_rounds: Mapped[int | None] = mapped_column(Integer, comment="of a dataset; none: the setting holds")
    max_dataset_records: Mapped[int | None] = mapped_column(Integer, comment="none: the operator's setting holds")


# What an operator may set of a tenant: (lowest, highest), as the settings of the same names have it.
SETTABLE = {
    "max_datasets": (1, LARGEST),
    "max_active_jobs": (1, LARGEST),
    "max_running_jobs": (1, LARGEST),
    "max_open_rounds": (1, 64),
    "max_dataset_records": (1, LARGEST),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for a tenant: its own quota where it has one, else the operator's setting."""

    max_datasets: int
    max_active_jobs: int
    max_running_jobs: int | None
    max_open_rounds: int
    max_dataset_records: int


def limits(session: Session, tenant_id: str, settings: Settings) -> Limits:
    """What holds for a tenant."""
    own = session.get(TenantQuota, tenant_id, populate_existing=True)

    def chosen(name: str, default: int) -> int:
        value: int | None = getattr(own, name, None)
        return default if value is None else value

    return Limits(
        max_datasets=chosen("max_datasets", settings.max_datasets),
        max_active_jobs=chosen("max_active_jobs", settings.max_active_jobs),
        max_running_jobs=None if own is None else own.max_running_jobs,
        max_open_rounds=chosen("max_open_rounds", settings.max_open_rounds),
        max_dataset_records=chosen("max_dataset_records", settings.max_dataset_records),
    )


def set_own(session: Session, tenant_id: str, changes: dict[str, int | None], *, now: int) -> TenantQuota:
    """Set quotas of a tenant, as the operator; None takes one back. The others stay.

    Raises
    ------
    NotFound
        There is no such quota.
    LimitExceeded
        It is out of its range.
    """
    for name, value in changes.items():
        if name not in SETTABLE:
            raise NotFound(f"quota; there are {', '.join(SETTABLE)}")
        lowest, highest = SETTABLE[name]
        if value is not None and not lowest <= value <= highest:
            raise LimitExceeded(f"{name} is a whole number from {lowest} to {highest}")
    ensure(session, tenant_id)
    own = session.get_one(TenantQuota, tenant_id, with_for_update=True, populate_existing=True)
    changed = [name for name, value in changes.items() if getattr(own, name) != value]
    for name in changed:
        setattr(own, name, changes[name])
    session.flush()
    if changed:
        audit.record(
            session, operator(tenant_id), Act.QUOTA_UPDATED, tenant_id, details=audit.changed(changed), now=now
        )
    return own


def ensure(session: Session, tenant_id: str) -> None:
    """See to it that the tenant has a row to be locked and to take turns with."""
    session.execute(insert_unless_there(session, TenantQuota).values(tenant_id=tenant_id, turn=0))


# ---- turns ----


class Turns(NamedTuple):
    """The tenants with something to claim and room to run it, the next one first, but for those in `passed`."""

    free: Select[TenantQuota]  # whose turn nobody else holds this moment
    held: Select[TenantQuota]  # waits for whoever does


def next_tenant(session: Session, turns: Turns, values: dict[str, Any]) -> TenantQuota | None:
    """The tenant whose turn it is, its row locked; None where no tenant has a job that may be claimed.

    Parameters
    ----------
    session : Session
    turns : Turns
    values : dict
        Of their parameters. Tenants not to look at again are `passed`.
    """
    # Claims at the same moment go to different tenants. Only who holds no turn yet may wait for one.
    found = session.scalars(turns.free, values).first()
    if found is None and not values["passed"]:
        found = session.scalars(turns.held, values).first()
    return found


def turns(needs_worker: ColumnElement[bool], runs: ColumnElement[bool]) -> Turns:
    """What `next_tenant` asks.

    Parameters
    ----------
    needs_worker, runs : ColumnElement
        Which jobs may be claimed, and which count against their tenant's share.
    """
    from models.job import Job  # which asks whose turn it is; here it is the other way round

    running = select(Job.tenant_id, func.count().label("n")).where(runs).group_by(Job.tenant_id).subquery()
    n_running = func.coalesce(running.c.n, 0)
    # One job a tenant, by the index of unfinished ones; of EXISTS PostgreSQL makes a join that reads every job.
    first = select(Job.id).where(Job.tenant_id == TenantQuota.tenant_id, needs_worker).limit(1).scalar_subquery()
    query = (
        select(TenantQuota)
        .outerjoin(running, running.c.tenant_id == TenantQuota.tenant_id)
        .where(
            first.is_not(None),
            or_(TenantQuota.max_running_jobs.is_(None), n_running < TenantQuota.max_running_jobs),
            TenantQuota.tenant_id.not_in(bindparam("passed", expanding=True)),
        )
        .order_by(n_running, TenantQuota.turn, TenantQuota.tenant_id)
        .limit(1)
        .execution_options(populate_existing=True)
    )
    own = TenantQuota
    return Turns(query.with_for_update(of=own, skip_locked=True), query.with_for_update(of=own))


def has_room(session: Session, own: TenantQuota, runs: ColumnElement[bool]) -> bool:
    """Whether one more of its jobs may run: asked again under its lock, since another claim may have come between."""
    from models.job import Job

    if own.max_running_jobs is None:
        return True
    n_running = session.scalar(select(func.count()).where(Job.tenant_id == own.tenant_id, runs)) or 0
    return n_running < own.max_running_jobs


def serve(own: TenantQuota) -> None:
    """The tenant has its turn: every other one that waits comes before it now."""
    every = aliased(TenantQuota)
    own.turn = select(1 + func.max(every.turn)).scalar_subquery()


def ensure_all(session: Session, needs_worker: ColumnElement[bool]) -> None:
    """Give every tenant with something to claim a turn to wait for.

    A process of before version 0008 of the schema submits jobs and makes no such row.
    """
    from models.job import Job

    has_none = ~select(TenantQuota.tenant_id).where(TenantQuota.tenant_id == Job.tenant_id).exists()
    for tenant_id in sorted(session.scalars(select(Job.tenant_id).where(needs_worker, has_none).distinct())):
        ensure(session, tenant_id)
