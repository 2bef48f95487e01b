"""Terms of the windows of series: the release of a shuffled window, and revisions, which change the terms of a cycle.

A revision begins with the first cycle without an open window. Windows before it keep their terms. The series itself has
the terms of its next window. The cost of a cycle
is granted when its first window opens, so that no grant changes.
"""

from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from models import datasets
from models.collection import rounds
from models.database.types import select_page
from models.errors import Conflict
from models.identity import audit_trail
from models.identity.caller import Caller
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.series.windows import begin_revision, next_window
from models.tables.datasets import Dataset, OutOfBounds
from models.tables.identity import Act
from models.tables.rounds import ReleaseTerms
from models.tables.series import TERMS, Series, SeriesRevision, SeriesState, Terms
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import DRAW_SPAN, format_epsilon
from sfumato.records.outside import count_outside
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import expected_reports
from sfumato.specs import Participation, circles_of, local_algorithm_from_wire


def copy_terms(terms: Terms) -> dict[str, Any]:
    """Return the terms of a series or of a revision by name."""
    return {name: getattr(terms, name) for name in TERMS}


def check_batch(min_batch: int, target_reports: int, cycle: int) -> int:
    """Return the least number of reports that a window expects. Raise InvalidSpec if a release has more."""
    expected = expected_reports(target_reports, Participation(0, DRAW_SPAN // cycle))
    if min_batch > expected:
        raise InvalidSpec(
            f"windows expect {expected} reports at least, so that a release of {min_batch} would rarely happen: "
            "lower min_batch, plan more devices, or a shorter cycle"
        )
    return expected


def set_release(dataset: Dataset, terms: Terms, cycle: int, release: ReleaseTerms | None) -> None:
    """Set the release of a window, and its cost.

    Windows of a cycle have disjoint draws and equal terms, so that a cycle costs one release.

    Raises
    ------
    Conflict
        Terms of a release are missing for a shuffled dataset, or given for a local one.
    InvalidSpec
        A release has more reports than windows expect, or no known cost.
    """
    if (release is not None) != (dataset.shuffler is not None):
        raise Conflict("a series must have terms of a release if its dataset is shuffled, and none otherwise")
    if release is None:
        return
    expected = check_batch(release.min_batch, terms.target_reports, cycle)
    (only,) = planned_rounds(
        local_algorithm_from_wire(terms.algorithm), dataset.n_features, expected, circles_of(dataset.features)
    )
    spec = only.spec(dataset.features)
    counts = dataset.out_of_bounds == OutOfBounds.COUNT
    found = rounds.release_cost(count_outside(spec) if counts else spec, release, dataset)
    terms.min_batch, terms.honest_share_nano = release.min_batch, release.honest_share_nano
    terms.shuffled_nano, terms.shuffled_delta_atto = found.epsilon_nano, found.delta_atto
    terms.shuffled_mu2_pico = found.mu2_pico or None


def require_release_budget(session: Session, series: Series, terms: Terms, n_cycles: int) -> None:
    """Raise BudgetExhausted unless the budget covers releases of cycles with these terms, and those of other series.

    Of the other series, cycles count that have not begun.
    """
    later = Amounts(0, 0, *(n_cycles * amount for amount in terms.release_cost))
    others = select(Series).where(Series.dataset_id == series.dataset_id, Series.state != SeriesState.ENDED)
    for other in session.scalars(others.where(Series.id != series.id)):
        first = find_later_window(session, other)
        n_later = 0 if first is None else other.n_cycles - first // other.cycle
        pending = find_pending(session, other) or other
        later = later.plus(Amounts(0, 0, *(n_later * amount for amount in pending.release_cost)))
    ledger.check_free(session, series.dataset_id, later)


def find_later_window(session: Session, series: Series) -> int | None:
    """Return the first window of the first cycle that has not begun; None after the last one began."""
    planned = next_window(session, series.id)
    if planned is None:
        return None
    cycle = planned.index // series.cycle
    first = planned.index if cycle != series.open_cycle else (cycle + 1) * series.cycle
    return first if first < series.n_windows else None


def find_pending(session: Session, series: Series) -> SeriesRevision | None:
    """Return the revision that has not begun; None if there is none."""
    return session.get(SeriesRevision, (series.id, series.revision + 1), populate_existing=True)


def first_revision(series: Series) -> SeriesRevision:
    """Return revision 0, with the terms of the creation."""
    return SeriesRevision(
        series_id=series.id,
        number=0,
        first_window=0,
        created_by=series.created_by,
        created_at=series.created_at,
        **copy_terms(series),
    )


def revise(
    session: Session,
    caller: Caller,
    series: Series,
    changed: dict[str, Any],
    *,
    release: ReleaseTerms | None,
    now: int,
) -> SeriesRevision:
    """Change terms of a locked series from its next cycle on. A revision without an opened window is replaced.

    `changed` has terms by name; others stay as those of the next window. `release` is that of the new terms. If the
    next window begins the cycle, the series has the new terms at once.

    Raises
    ------
    Conflict
        The series has ended, or its last cycle has begun.
    InvalidSpec
        Nothing changes, the later cycles cost more than what is left of the total, or see `set_release`.
    BudgetExhausted
        The budget towards the service does not cover the releases of the later cycles.
    """
    if series.state == SeriesState.ENDED:
        raise Conflict("this series has ended: create another one")
    if release == series.release and all(getattr(series, name) == value for name, value in changed.items()):
        raise InvalidSpec("the series has these terms already: a revision must change one of them")
    first = find_later_window(session, series)
    if first is None:
        raise Conflict("the last cycle of this series has begun: create another series for later windows")
    present = session.get_one(SeriesRevision, (series.id, series.revision))
    if present.number and present.first_window == first:  # no window has opened with these terms
        series.revision -= 1
    session.execute(
        delete(SeriesRevision).where(SeriesRevision.series_id == series.id, SeriesRevision.number > series.revision)
    )
    revision = SeriesRevision(
        series_id=series.id,
        number=series.revision + 1,
        first_window=first,
        created_by=caller.key_id,
        created_at=now,
        **copy_terms(series) | changed,
    )
    n_cycles = series.n_cycles - first // series.cycle
    cost_nano = n_cycles * revision.epsilon_nano
    if cost_nano > series.pending_nano:
        raise InvalidSpec(
            f"the later {n_cycles} cycles cost epsilon {format_epsilon(cost_nano)}, and "
            f"{format_epsilon(series.pending_nano)} of the total is left: lower epsilon, or create another series"
        )
    dataset = datasets.get_live(session, series.dataset_id)
    set_release(dataset, revision, series.cycle, release)
    if release is not None:
        require_release_budget(session, series, revision, n_cycles)
    session.add(revision)
    session.flush()
    planned = next_window(session, series.id)
    if planned is not None:
        begin_revision(session, series, planned)
    audit_trail.record(session, caller, Act.SERIES_REVISED, series.id, dataset_id=series.dataset_id, now=now)
    return revision


def page(
    session: Session, series: Series, *, after_seq: int, limit: int, newest_first: bool = False
) -> list[SeriesRevision]:
    """Return revisions of a series in order. `after_seq` is 1 more than the last number read; 0 for the first page."""
    query = select(SeriesRevision).where(SeriesRevision.series_id == series.id)
    query = select_page(
        query, SeriesRevision.number, after=after_seq, limit=limit, newest_first=newest_first, counts_from=0
    )
    return list(session.scalars(query))
