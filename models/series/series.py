"""Create, find, pause and end series. `models.series.windows` opens their windows."""

from datetime import date
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import datasets
from models.database.types import SECOND, new_id, select_page
from models.errors import Conflict, LimitExceeded, NotFound
from models.identity import audit_trail, tenants
from models.identity.caller import Caller
from models.identity.tenants import TenantLimits
from models.ledger import ledger, sources
from models.ledger.sources import Spent
from models.series import revisions, windows
from models.series.calendar import boundary, check_first, find_zone
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Act
from models.tables.rounds import ReleaseTerms
from models.tables.series import Every, Series, SeriesState
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import EPSILON_MAX_NANO, format_epsilon

MAX_WINDOWS = 1000
MAX_SEASON = 26  # windows; an alarm needs two seasons, and a test has 52 windows
LEAST_CHANGE = 0.01  # default of the least change of a share that raises an alarm
MAX_SERIES = 16
MAX_AHEAD = 366 * 86_400 * SECOND  # from the creation of a series to its first window


def create(
    session: Session,
    caller: Caller,
    dataset: Dataset,
    *,
    name: str,
    algorithm: dict[str, Any],
    every: Every,
    time_zone: str,
    first: date,
    n_windows: int,
    cycle: int,
    target_reports: int,
    min_reports: int,
    epsilon_nano: int,
    total_nano: int | None,
    season: int = 1,
    least_change: float = LEAST_CHANGE,
    release: ReleaseTerms | None = None,
    limits: TenantLimits,
    now: int,
) -> Series:
    """Create a series and plan its first window. Its total counts towards the ceilings from now on.

    A series over records has one cycle, because all of its windows together cost the epsilon of one.

    A shuffled series has the terms of the release of each window. The pair of a release is not reserved: each round
    charges it to the budget towards the service. That budget must be large enough for all cycles now.

    Raises
    ------
    NotFound
        The dataset was deleted.
    Conflict
        The algorithm does not fit the dataset, records have Gaussian accounting, or terms of a release are missing for
        a shuffled dataset or given for a local one.
    InvalidSpec
        There is no such time zone, the first window lies in the past or too far ahead, the total is less than the cost
        of all cycles, or a release has more reports than windows expect or no known cost.
    BudgetExhausted
        The budget towards the service does not cover the releases of all cycles.
    LimitExceeded, CeilingExceeded
    """
    check_plan(every, time_zone, first, n_windows, now=now)
    check_cycle(cycle, n_windows)
    if dataset.trust == Trust.CENTRAL:
        check_records(dataset, cycle, n_windows, min_reports)
    cost_nano = check_cost(n_windows, cycle, epsilon_nano, total_nano)
    datasets.lock_live(session, dataset.id)
    tenants.lock(session, caller.tenant_id)
    _check_number(session, dataset)
    series = Series(
        id=new_id("ser"),
        tenant_id=caller.tenant_id,
        dataset_id=dataset.id,
        name=name,
        algorithm=algorithm,
        every=every,
        time_zone=time_zone,
        first_day=first.isoformat(),
        n_windows=n_windows,
        cycle=cycle,
        target_reports=target_reports,
        min_reports=min_reports,
        epsilon_nano=epsilon_nano,
        total_nano=total_nano or cost_nano,
        pending_nano=total_nano or cost_nano,
        season=season,
        least_change=least_change,
        state=SeriesState.ACTIVE.value,
        open_cycle=None,
        next_at=None,
        revision=0,
        created_by=caller.key_id,
        created_at=now,
        ended_at=None,
    )
    if series.has_records != (dataset.trust == Trust.CENTRAL):
        raise Conflict("a series must have density_map over records, and shifted_grid over reports")
    revisions.set_release(dataset, series, cycle, release)
    if release is not None:
        revisions.require_release_budget(session, series, series, series.n_cycles)
    session.add(series)
    session.flush()
    session.add(revisions.first_revision(series))
    windows.plan(session, series, 0)
    before = ledger.balance(session, dataset.id)
    granted = Spent(before.granted_nano, before.granted_shuffled_nano, before.granted_delta_atto)
    sources.check_series(session, series, limits.dataset_ceiling, limits.source_ceiling, granted)
    audit_trail.record(session, caller, Act.SERIES_CREATED, series.id, dataset_id=dataset.id, now=now)
    return series


def check_cost(n_windows: int, cycle: int, epsilon_nano: int, total_nano: int | None) -> int:
    """Return what all cycles cost one person. Raise InvalidSpec if no device allows it, or if it exceeds the total."""
    cost_nano = -(-n_windows // cycle) * epsilon_nano
    if cost_nano > EPSILON_MAX_NANO:
        raise InvalidSpec(
            f"the series costs one person epsilon {format_epsilon(cost_nano)}, more than any device allows: plan a "
            f"longer cycle or fewer windows, so that it costs at most {format_epsilon(EPSILON_MAX_NANO)}"
        )
    if total_nano is not None and total_nano < cost_nano:
        raise InvalidSpec(
            f"the series has {-(-n_windows // cycle)} cycles, which cost epsilon {format_epsilon(cost_nano)}: raise "
            "epsilon_total to this amount, lower the epsilon of the algorithm, or plan fewer windows"
        )
    return cost_nano


def _check_number(session: Session, dataset: Dataset) -> None:
    """Raise LimitExceeded if a locked dataset has all series that it may have."""
    n_open = select(func.count()).where(Series.dataset_id == dataset.id, Series.state != SeriesState.ENDED)
    if (session.scalar(n_open) or 0) >= MAX_SERIES:
        raise LimitExceeded(f"a dataset may have {MAX_SERIES} series that have not ended: end one first")


def check_cycle(cycle: int, n_windows: int) -> None:
    """Raise InvalidSpec unless a cycle has 1 to `n_windows` windows."""
    if not 1 <= cycle <= n_windows:
        raise InvalidSpec("a cycle must have at least 1 window, and at most as many as the series")


def check_records(dataset: Dataset, cycle: int, n_windows: int, min_reports: int) -> None:
    """Raise an error unless a series over records has one cycle, no minimum, and additive accounting.

    Raises
    ------
    InvalidSpec
        The cycle is shorter than the series, or a window has a minimal number of reports, which is private.
    Conflict
        The dataset has Gaussian accounting.
    """
    if cycle != n_windows:
        raise InvalidSpec(
            f"a series over records must have one cycle of all {n_windows} windows, because they have disjoint records "
            f"and cost the epsilon of one window together: set cycle to {n_windows}"
        )
    if min_reports:
        raise InvalidSpec("min_reports must be 0 over records, because the number of records is private: remove it")
    if dataset.accounting == "gaussian":
        raise Conflict(
            "a series over records needs additive accounting, because its windows share one epsilon: create a dataset "
            "with additive accounting"
        )


def check_plan(every: Every, time_zone: str, first: date, n_windows: int, *, now: int) -> None:
    """Raise InvalidSpec if windows cannot be planned: their zone, their number, or the day of the first one."""
    check_first(every, first)
    find_zone(time_zone)
    if not 1 <= n_windows <= MAX_WINDOWS:
        raise InvalidSpec(f"a series must have 1 to {MAX_WINDOWS} windows")
    if first.year >= 9000:
        raise InvalidSpec("the first window must begin within a year")
    opens_at, closes_at = (boundary(every, time_zone, first, index) for index in (0, 1))
    if now > opens_at + (closes_at - opens_at) // 2:
        raise InvalidSpec("more than half of the first window has passed: choose a later day")
    if opens_at > now + MAX_AHEAD:
        raise InvalidSpec("the first window must begin within a year")


def get(session: Session, caller: Caller, series_id: str, *, lock: bool = False) -> Series:
    """Return a series that the caller may access. Raise NotFound. `lock` locks its dataset and the series."""
    series = session.get(Series, series_id)
    if series is None or series.tenant_id != caller.tenant_id or not caller.sees(series.dataset_id):
        raise NotFound("series")
    if lock:
        datasets.lock_live(session, series.dataset_id)
        series = session.get_one(Series, series_id, with_for_update=True, populate_existing=True)
    return series


def page(
    session: Session, caller: Caller, *, dataset_id: str | None, after: str, limit: int, newest_first: bool = False
) -> list[Series]:
    """Return the series that the caller may access, after an id, in order; of one dataset, if one is given."""
    query = select(Series).where(Series.tenant_id == caller.tenant_id)
    for wanted in (dataset_id, caller.dataset_id):
        if wanted is not None:
            query = query.where(Series.dataset_id == wanted)
    return list(session.scalars(select_page(query, Series.id, after=after, limit=limit, newest_first=newest_first)))


def change(
    session: Session, caller: Caller, series_id: str, *, name: str | None, state: SeriesState | None, now: int
) -> Series:
    """Rename, pause, continue or end a series. None leaves a member unchanged.

    An open window is completed in each case. The windows of a pause are missed. Raise NotFound, or Conflict if the
    series has ended.
    """
    series = get(session, caller, series_id, lock=True)
    changed = []
    if name is not None and name != series.name:
        series.name = name
        changed.append("name")
    if state is not None and state != series.state:
        if series.state == SeriesState.ENDED:
            raise Conflict("this series has ended: create another one")
        if state is SeriesState.ENDED:
            windows.stop(session, series, now=now)
        else:
            series.state = state.value
            planned = windows.next_window(session, series.id)
            if planned is not None:
                series.next_at = planned.opens_at
        changed.append("state")
    session.flush()
    if changed:
        details = audit_trail.changed_fields(changed)
        audit_trail.record(
            session, caller, Act.SERIES_UPDATED, series.id, dataset_id=series.dataset_id, details=details, now=now
        )
    return series
