"""Tenants, their quotas, and turns that distribute workers fairly among tenants.

A tenant's quota overrides the operator's setting. A claim serves the tenant with the fewest running jobs; among equals,
the tenant with the oldest turn. The quota row is the last row that a claim locks, apart from the audit trail's head.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, bindparam, func, or_, select
from sqlalchemy.orm import Session, aliased

from models.database.types import insert_if_absent, new_id
from models.errors import Conflict, LimitExceeded, NotFound
from models.identity import audit_trail
from models.identity.caller import operator
from models.tables.identity import Act, Tenant, TenantQuota
from models.tables.jobs import Job
from models.tables.ledger import Ceiling
from runtime.settings import Settings
from sfumato.privacy.accounting import ATTO, DELTA_MAX_ATTO, NANO

FIRST_TENANT = "default"

LARGEST = 1_000_000_000
LARGEST_EPSILON_NANO = 1_000_000 * NANO


class Quota(NamedTuple):
    """A quota that the operator can set: its column, its inclusive range, and the stored number of one."""

    column: str
    lowest: int
    highest: int
    one: int = 1


# The settings of the same names have the same ranges.
SETTABLE = {
    "max_datasets": Quota("max_datasets", 1, LARGEST),
    "max_active_jobs": Quota("max_active_jobs", 1, LARGEST),
    "max_running_jobs": Quota("max_running_jobs", 1, LARGEST),
    "max_open_rounds": Quota("max_open_rounds", 1, 64),
    "max_dataset_records": Quota("max_dataset_records", 1, LARGEST),
    "max_dataset_epsilon": Quota("max_dataset_epsilon_nano", 0, LARGEST_EPSILON_NANO, NANO),
    "max_dataset_delta": Quota("max_dataset_delta_atto", 0, DELTA_MAX_ATTO, ATTO),
    "max_source_epsilon": Quota("max_source_epsilon_nano", 0, LARGEST_EPSILON_NANO, NANO),
    "max_source_delta": Quota("max_source_delta_atto", 0, DELTA_MAX_ATTO, ATTO),
}


def get_or_create_tenant(session: Session, name: str, *, now: int) -> Tenant:
    """Return the tenant of this name. If several transactions create it at once, one succeeds and all return it."""
    session.execute(insert_if_absent(session, Tenant).values(id=new_id("ten"), name=name, created_at=now))
    return session.scalars(select(Tenant).where(Tenant.name == name)).one()


def create_tenant(session: Session, name: str, *, now: int) -> Tenant:
    """Create a tenant as the operator. Raise Conflict if the name is taken."""
    tenant_id = new_id("ten")
    session.execute(insert_if_absent(session, Tenant).values(id=tenant_id, name=name, created_at=now))
    tenant = session.get(Tenant, tenant_id)
    if tenant is None:
        raise Conflict("a tenant of this name exists; `sfumato keys create --tenant` creates a key for it")
    audit_trail.record(session, operator(tenant_id), Act.TENANT_CREATED, tenant_id, now=now)
    return tenant


def find_tenant(session: Session, name: str) -> Tenant | None:
    """Return the tenant of this name, if it exists."""
    return session.scalars(select(Tenant).where(Tenant.name == name)).first()


def list_tenants(session: Session) -> list[Tenant]:
    """Return all tenants, oldest first."""
    return list(session.scalars(select(Tenant).order_by(Tenant.id)))


def lock(session: Session, tenant_id: str) -> None:
    """Lock the tenant's row until the commit, so that only one transaction at a time compares a count with a limit."""
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(key_share=True))


# ---- quotas ----


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant: its quotas, else the operator's settings."""

    max_datasets: int
    max_active_jobs: int
    max_running_jobs: int | None
    max_open_rounds: int
    max_dataset_records: int
    dataset_ceiling: Ceiling
    source_ceiling: Ceiling


def limits(session: Session, tenant_id: str, settings: Settings) -> TenantLimits:
    """Return the limits of a tenant."""
    own = session.get(TenantQuota, tenant_id, populate_existing=True)

    def chosen(name: str, default: int) -> int:
        value: int | None = getattr(own, name, None)
        return default if value is None else value

    def amount(name: str) -> int | None:
        value: int | None = getattr(own, SETTABLE[name].column, None)
        default: Decimal | None = getattr(settings, name)
        return int(default * SETTABLE[name].one) if value is None and default is not None else value

    of_source = Ceiling(amount("max_source_epsilon"), amount("max_source_delta"))
    if of_source == Ceiling() and settings.source_limit == "grants":
        of_source = Ceiling(is_largest_grant=True)
    return TenantLimits(
        max_datasets=chosen("max_datasets", settings.max_datasets),
        max_active_jobs=chosen("max_active_jobs", settings.max_active_jobs),
        max_running_jobs=None if own is None else own.max_running_jobs,
        max_open_rounds=chosen("max_open_rounds", settings.max_open_rounds),
        max_dataset_records=chosen("max_dataset_records", settings.max_dataset_records),
        dataset_ceiling=Ceiling(amount("max_dataset_epsilon"), amount("max_dataset_delta")),
        source_ceiling=of_source,
    )


def set_quotas(session: Session, tenant_id: str, changes: dict[str, Decimal | None], *, now: int) -> TenantQuota:
    """Set quotas of a tenant as the operator. None removes a quota; quotas that are not named stay.

    Raises
    ------
    NotFound
        If a quota does not exist.
    LimitExceeded
        If a value is outside its range.
    """
    columns = {}
    for name, value in changes.items():
        if name not in SETTABLE:
            raise NotFound(f"quota; valid quotas: {', '.join(SETTABLE)}")
        quota = SETTABLE[name]
        stored = None if value is None else Fraction(value) * quota.one
        if stored is not None and (stored.denominator != 1 or not quota.lowest <= stored <= quota.highest):
            multiple = "an integer" if quota.one == 1 else f"a multiple of {1 / quota.one:g}"
            highest = f"{quota.highest / quota.one:g}" if quota.one > 1 else quota.highest
            raise LimitExceeded(f"{name} must be {multiple} from {quota.lowest} to {highest}")
        columns[quota.column] = None if stored is None else stored.numerator
    ensure_quotas(session, tenant_id)
    own = session.get_one(TenantQuota, tenant_id, with_for_update=True, populate_existing=True)
    changed = [name for name in changes if getattr(own, SETTABLE[name].column) != columns[SETTABLE[name].column]]
    for column, amount in columns.items():
        setattr(own, column, amount)
    session.flush()
    if changed:
        audit_trail.record(
            session,
            operator(tenant_id),
            Act.QUOTA_UPDATED,
            tenant_id,
            details=audit_trail.changed_fields(changed),
            now=now,
        )
    return own


def ensure_quotas(session: Session, tenant_id: str) -> None:
    """Create the tenant's quota row, which claims lock, if it does not exist."""
    session.execute(insert_if_absent(session, TenantQuota).values(tenant_id=tenant_id, turn=0))


# ---- turns ----


class Turns(NamedTuple):
    """Queries for the next tenant with a claimable job and a free running-job quota, except those in `passed`."""

    unlocked: Select[TenantQuota]  # skips locked rows
    waiting: Select[TenantQuota]  # waits for locked rows


def next_tenant(session: Session, turns: Turns, values: dict[str, Any]) -> TenantQuota | None:
    """Return the quota row of the next tenant, locked, or None if no tenant has a claimable job.

    Parameters
    ----------
    session : Session
    turns : Turns
    values : dict
        Parameters of the queries. `passed` has the tenants to skip.
    """
    # Concurrent claims serve different tenants. Only a claim without a locked row may wait for one.
    found = session.scalars(turns.unlocked, values).first()
    if found is None and not values["passed"]:
        found = session.scalars(turns.waiting, values).first()
    return found


def build_turns(needs_worker: ColumnElement[bool], runs: ColumnElement[bool]) -> Turns:
    """Return the queries of `next_tenant`.

    Parameters
    ----------
    needs_worker, runs : ColumnElement
        Predicates of claimable jobs, and of jobs that count as running.
    """
    running = select(Job.tenant_id, func.count().label("n")).where(runs).group_by(Job.tenant_id).subquery()
    n_running = func.coalesce(running.c.n, 0)
    # Reads one job per tenant by the index of unfinished jobs. PostgreSQL turns EXISTS into a join over all jobs.
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
    """Return whether another job of the tenant may run. Called under the row's lock, as another claim may have won."""
    if own.max_running_jobs is None:
        return True
    n_running = session.scalar(select(func.count()).where(Job.tenant_id == own.tenant_id, runs)) or 0
    return n_running < own.max_running_jobs


def take_turn(own: TenantQuota) -> None:
    """Give the tenant the newest turn, so that all other waiting tenants come first."""
    every = aliased(TenantQuota)
    own.turn = select(1 + func.max(every.turn)).scalar_subquery()
