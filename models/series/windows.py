"""Open the windows of series, in the process of a worker, and end their cycles.

Each step is one transaction that locks the dataset and the series. Several workers may take the steps of one series:
each step happens once, because the next one starts from the stored state. A window is opened at its start, or late if
half of it remains. Otherwise it is missed, and it is never opened afterwards.

Over records, the job of a window begins `SETTLING_SECONDS` after its end, when all uploads of the window are stored. It
may begin later as well, because the window has the same records then.
"""

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from models import datasets
from models.database.types import SECOND, select_page
from models.identity.caller import Caller
from models.identity.tenants import TenantLimits
from models.jobs import lifecycle
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.series.calendar import boundary
from models.tables.datasets import Dataset
from models.tables.jobs import Job, is_unfinished
from models.tables.rounds import CollectionTarget, Slot
from models.tables.series import TERMS, Series, SeriesRevision, SeriesState, Window, WindowState
from sfumato.sizing.rounds import most_reports

RETRY_SECONDS = 30  # until a window that could not open is tried again
SETTLING_SECONDS = 60  # from the end of a window over records to its job
LATE = "no worker was running in the first half of the window"
PAUSED = "the series was paused in the first half of the window"
PAUSED_AT_END = "the series was paused at the end of the window"


class Step(NamedTuple):
    """The outcome of a step."""

    is_done: bool  # whether nothing more is due now
    job: Job | None = None  # a job that was submitted


def list_due(session: Session, *, now: int, limit: int = 100) -> list[str]:
    """Return the ids of series with a step that is due, the longest waiting first. Lock nothing."""
    query = select(Series.id).where(Series.next_at <= now).order_by(Series.next_at, Series.id)
    return list(session.scalars(query.limit(limit)))


def take_step(
    session: Session, series_id: str, *, find_limits: Callable[[Session, str], TenantLimits], now: int
) -> Step:
    """Take the next step of a series that is due.

    Parameters
    ----------
    series_id : str
    find_limits : callable
        Returns the limits of a tenant.
    now : int
        Microseconds since the epoch.

    Raises
    ------
    SfumatoError
        The window that is due cannot open now. Nothing has changed; `postpone` notes the reason.
    """
    series = _lock_due(session, series_id, now)
    if series is None:
        return Step(is_done=True)
    window = next_window(session, series_id)
    if window is None and _has_unfinished(session, series):  # a job over records still charges the last cycle
        series.next_at = now + RETRY_SECONDS * SECOND
        return Step(is_done=True)
    if window is None:
        _finish(session, series, now)
        return Step(is_done=True)
    if _due_at(series, window) > now:  # the clock was set back
        series.next_at = _due_at(series, window)
        return Step(is_done=True)
    if series.open_cycle is not None and window.index // series.cycle != series.open_cycle:
        end_cycle(session, series, now=now)
        return Step(is_done=False)
    job = None
    if series.has_records and series.state == SeriesState.PAUSED:
        window.state, window.reason = WindowState.MISSED.value, PAUSED_AT_END
    elif now > window.last_start and not series.has_records:
        window.state = WindowState.MISSED.value
        window.reason = window.reason or (PAUSED if series.state == SeriesState.PAUSED else LATE)
    elif series.state == SeriesState.ACTIVE:
        job = _open(session, series, window, find_limits(session, series.tenant_id).max_active_jobs, now)
    else:
        series.next_at = window.last_start + 1
        return Step(is_done=True)
    plan(session, series, window.index + 1)
    return Step(is_done=False, job=job)


def postpone(session: Session, series_id: str, reason: str, *, now: int) -> None:
    """Note why a window has not opened, and try again later, at the latest when the window is missed."""
    series = _lock_due(session, series_id, now)
    window = None if series is None else next_window(session, series_id)
    if series is None or window is None:
        return
    window.reason = reason[:500]
    again = now + RETRY_SECONDS * SECOND
    is_early = now <= window.last_start and not series.has_records
    series.next_at = min(again, window.last_start + 1) if is_early else again


def _due_at(series: Series, window: Window) -> int:
    """Return the time from which the job of a window may begin."""
    return window.closes_at + SETTLING_SECONDS * SECOND if series.has_records else window.opens_at


def _has_unfinished(session: Session, series: Series) -> bool:
    """Return whether a job over the records of a window has not ended."""
    jobs = select(Job.id).join(Window, Window.job_id == Job.id).where(Window.series_id == series.id, is_unfinished())
    return series.has_records and session.scalar(jobs.limit(1)) is not None


def _lock_due(session: Session, series_id: str, now: int) -> Series | None:
    """Lock the dataset and the series, and return the series if a step of it is due."""
    dataset_id = session.scalar(select(Series.dataset_id).where(Series.id == series_id))
    if dataset_id is None:
        return None
    session.execute(select(Dataset.id).where(Dataset.id == dataset_id).with_for_update(key_share=True))
    series = session.get(Series, series_id, with_for_update=True, populate_existing=True)
    return series if series is not None and series.next_at is not None and series.next_at <= now else None


def next_window(session: Session, series_id: str) -> Window | None:
    """Return the planned window of a series, or None after the last one."""
    query = select(Window).where(Window.series_id == series_id, Window.state == WindowState.PLANNED)
    return session.scalars(query.execution_options(populate_existing=True)).first()


def last_window(session: Session, series_id: str) -> Window | None:
    """Return the last window that is not planned."""
    query = select(Window).where(Window.series_id == series_id, Window.state != WindowState.PLANNED)
    return session.scalars(query.order_by(Window.index.desc()).limit(1)).first()


def plan(session: Session, series: Series, index: int) -> None:
    """Store the window of this number, unless the series has none, and the time of the next step.

    Windows over records never overlap, also if the rules of a time zone change: each begins after the one before.
    """
    opens_at = boundary(series.every, series.time_zone, series.first, index)
    before = session.get(Window, {"series_id": series.id, "index": index - 1})
    if series.has_records and before is not None:
        opens_at = max(opens_at, before.closes_at)
    series.next_at = opens_at
    if index < series.n_windows:
        window = Window(
            series_id=series.id,
            index=index,
            opens_at=opens_at,
            closes_at=max(opens_at, boundary(series.every, series.time_zone, series.first, index + 1)),
            state=WindowState.PLANNED.value,
            revision=series.revision,
            job_id=None,
            reason=None,
        )
        session.add(window)
        begin_revision(session, series, window)
        series.next_at = _due_at(series, window)
    session.flush()


def _open(session: Session, series: Series, window: Window, max_active_jobs: int, now: int) -> Job:
    """Submit the job of a window. Before the first one of a cycle, grant and reserve the cost of the cycle."""
    dataset = datasets.get_live(session, series.dataset_id)
    begin_revision(session, series, window)  # it has begun unless an earlier version planned the window
    number = window.index // series.cycle
    caller = Caller(series.created_by, series.tenant_id, frozenset(), None, None)
    job = lifecycle.submit(
        session,
        caller,
        dataset,
        lifecycle.NewJob(
            series.algorithm,
            Amounts(series.epsilon_nano),
            _collection(series, window, now),
            cycle_id=series.cycle_id(number),
            opens_cycle=series.open_cycle is None,
        ),
        max_active_jobs=max_active_jobs,
        now=now,
    )
    if series.open_cycle is None:
        series.open_cycle, series.pending_nano = number, series.pending_nano - series.epsilon_nano
    window.state, window.job_id, window.reason = WindowState.OPENED.value, job.id, None
    session.flush()
    return job


def _collection(series: Series, window: Window, now: int) -> CollectionTarget:
    """Return what the job of a window collects: nothing over records."""
    if series.has_records:
        return CollectionTarget(0, 0, 0)
    most = most_reports(series.target_reports, series.participation(window.index))
    return CollectionTarget(most, series.min_reports, (window.closes_at - now) // SECOND, series.release)


def begin_revision(session: Session, series: Series, window: Window) -> None:
    """Take the terms of the revision that begins with the planned window, if there is one.

    So a series always has the terms of its next window. Earlier windows, also open ones, keep those of their revision.
    """
    pending = session.get(SeriesRevision, (series.id, series.revision + 1), populate_existing=True)
    if pending is not None and pending.first_window <= window.index:
        for name in TERMS:
            setattr(series, name, getattr(pending, name))
        series.revision = pending.number
    window.revision = series.revision


def find_period(session: Session, job: Job) -> tuple[int, int] | None:
    """Return the start and the end of the window of a job over records; None if the job belongs to no series."""
    if job.collection_id is None:
        return None
    window = session.scalars(select(Window).where(Window.job_id == job.id)).one()
    return window.opens_at, window.closes_at


def find_slot(session: Session, job: Job) -> Slot | None:
    """Return the place of a job's round in the cycle of its series; None if the job belongs to no series."""
    if job.collection_id is None:
        return None
    query = select(Series, Window).join(Window, Window.series_id == Series.id).where(Window.job_id == job.id)
    series, window = session.execute(query).one()
    return Slot(job.collection_id, series.participation(window.index), window.closes_at)


def end_cycle(session: Session, series: Series, *, now: int) -> None:
    """Release and expire what the open cycle of a locked series did not spend."""
    if series.open_cycle is None:
        return
    cycle_id = series.cycle_id(series.open_cycle)
    ledger.end_cycle(session, series.dataset_id, cycle_id=cycle_id, actor=series.created_by, now=now)
    series.open_cycle = None


def _finish(session: Session, series: Series, now: int) -> None:
    """End the last cycle, and the series, after its last window."""
    end_cycle(session, series, now=now)
    if series.state != SeriesState.ENDED:
        series.state, series.ended_at, series.pending_nano = SeriesState.ENDED.value, now, 0
    series.next_at = None


def stop(session: Session, series: Series, *, now: int, at_once: bool = False) -> None:
    """End a locked series: no further window opens. An open window is completed, unless `at_once`.

    Over records, the jobs of the windows that have ended are completed.
    """
    session.execute(delete(Window).where(Window.series_id == series.id, Window.state == WindowState.PLANNED))
    last = last_window(session, series.id)
    is_open = last is not None and last.closes_at > now and series.open_cycle is not None and not at_once
    is_computed = not at_once and _has_unfinished(session, series)
    if series.state != SeriesState.ENDED:
        series.state, series.ended_at, series.pending_nano = SeriesState.ENDED.value, now, 0
    series.next_at = last.closes_at if is_open and last is not None else None
    if is_computed:
        series.next_at = now + RETRY_SECONDS * SECOND
    elif not is_open:
        end_cycle(session, series, now=now)
    session.flush()


def stop_all(session: Session, dataset_id: str, *, now: int, spend: bool = False, at_once: bool = True) -> Amounts:
    """End all series of a locked dataset. If `at_once`, the caller has canceled its jobs.

    With `spend`, what is left of open cycles is charged, because charges after a backup are not known. Return what was
    charged.
    """
    unended = select(Series).where(Series.dataset_id == dataset_id, Series.next_at.is_not(None)).order_by(Series.id)
    charged = Amounts()
    for series in session.scalars(unended.with_for_update().execution_options(populate_existing=True)).all():
        if spend and series.open_cycle is not None:
            cycle_id = series.cycle_id(series.open_cycle)
            left = ledger.reserved_for(session, dataset_id, cycle_id)
            if any(left):
                ledger.charge(
                    session,
                    dataset_id,
                    left,
                    reference=f"{cycle_id}#end",
                    reservation=cycle_id,
                    actor=series.created_by,
                    now=now,
                )
                charged = charged.plus(left)
        stop(session, series, now=now, at_once=at_once)
    return charged


def list_windows(
    session: Session, series: Series, *, after_seq: int, limit: int, newest_first: bool
) -> list[tuple[Window, Job | None]]:
    """Return windows with their jobs in order. `after_seq` is 1 more than the last index read; 0 for the first page."""
    query = select(Window, Job).outerjoin(Job, Job.id == Window.job_id).where(Window.series_id == series.id)
    query = select_page(query, Window.index, after=after_seq, limit=limit, newest_first=newest_first, counts_from=0)
    return [(window, job) for window, job in session.execute(query)]


def charged_nano(session: Session, series: Series) -> int:
    """Return what the windows of a series have charged, in nano-epsilon."""
    ids = [series.cycle_id(number) for number in range(series.n_cycles)]
    return ledger.charged_nano(session, series.dataset_id, ids)
