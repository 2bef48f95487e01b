"""Series with a clock that tests set: windows open once and in time, and each cycle costs the epsilon of one window."""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from models import maintenance
from models.collection import rounds
from models.database.types import EPOCH, SECOND
from models.errors import CeilingExceeded, Conflict, LimitExceeded, NotFound
from models.identity.tenants import TenantLimits
from models.jobs import claims, jobs, lifecycle
from models.ledger import ledger, sources
from models.series import series, windows
from models.tables.datasets import Dataset, Trust
from models.tables.jobs import Job, JobState
from models.tables.ledger import Ceiling
from models.tables.rounds import Round
from models.tables.series import Series, SeriesState, Window, WindowState
from sfumato.errors import InvalidSpec, SfumatoError
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.privacy.ledger import Head
from sfumato.privacy.ledger import LedgerEntry as Published
from sfumato.privacy.ledger import verify as verify_published
from sfumato.sizing.rounds import expected_reports, most_reports
from sfumato.specs import Participation, RoundSpec
from tests.models.webhooks.test_webhook import KEYRING
from tests.models.world import World, rolled_back, spec, together

ALGORITHM = {"type": "shifted_grid", "epsilon": 1.0, "cells": 4}
DAY = 86_400 * SECOND
LIMITS = TenantLimits(10_000, 1000, None, 16, 1000, sources.UNLIMITED, sources.UNLIMITED)
MONDAY = date(2027, 1, 18)


def at(text: str) -> int:
    """Return the microseconds of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


@dataclass
class Run:
    """A series, and a worker that takes its steps at the time of the world."""

    world: World
    dataset: Dataset
    id: str
    limits: TenantLimits = LIMITS

    @classmethod
    def create(cls, world: World, dataset: Dataset | None = None, **plan: Any) -> "Run":
        dataset = dataset or world.new_dataset(epsilon_nano=NANO)
        return cls(world, dataset, create(world, dataset, **plan).id)

    def step(self) -> windows.Step:
        return self.world.write(windows.take_step, self.id, find_limits=lambda *_: self.limits, now=self.world.now)

    def advance(self, to: int | None = None) -> list[str]:
        """Move the clock, take all steps that are due, and return the ids of new jobs."""
        self.world.now = self.world.now if to is None else to
        found = []
        while True:
            step = self.step()
            found += [step.job.id] if step.job is not None else []
            if step.is_done:
                return found

    def open_round(self, job_id: str, published: RoundSpec | None = None, **parts: Any) -> Round:
        """Open the round of a window's job, like the job runner."""
        with self.world.database.transaction() as session:
            claim = claims.Claim(job_id, self.world.job(job_id).fence)
            job = session.get_one(Job, job_id)
            if job.state == JobState.QUEUED:
                taken = claims.claim(session, now=self.world.now, lease_microseconds=DAY, max_attempts=5)
                assert taken is not None
                assert taken.job_id == job_id
                claim = taken
            opened = rounds.open_for_job(
                session,
                session.get_one(Dataset, self.dataset.id),
                published or spec(**parts),
                job.collection_target,
                job_id=job_id,
                actor=job.created_by,
                slot=windows.find_slot(session, job),
                keyring=lambda: KEYRING,
                now=self.world.now,
            )
            lifecycle.wait_for_reports(session, claim, now=self.world.now)
        return opened

    def cancel(self, job_id: str) -> None:
        self.world.write(lifecycle.cancel, self.world.caller, job_id, now=self.world.now)

    @property
    def row(self) -> Series:
        with self.world.database.reading() as session:
            return session.get_one(Series, self.id)

    @property
    def windows(self) -> list[Window]:
        with self.world.database.reading() as session:
            query = select(Window).where(Window.series_id == self.id).order_by(Window.index)
            return list(session.scalars(query))

    @property
    def states(self) -> list[str]:
        return [each.state for each in self.windows]

    def entries(self, *kinds: str) -> list[tuple[str, int, str]]:
        """Verify the ledger by the service and by its entries, and return them without the first grant."""
        with self.world.database.reading() as session:
            assert ledger.verify(session, self.dataset.id).ok
            rows = ledger.page(session, self.dataset.id, after_seq=0, limit=10_000)
            names = Published.__slots__
            published = [
                Published(
                    **{name: getattr(row, name) for name in names} | {"at": EPOCH + timedelta(microseconds=row.at)}
                )
                for row in rows
            ]
        assert verify_published(published, self.dataset.id, [Head(rows[-1].seq, rows[-1].hash)]).ok
        found = [(row.kind, row.epsilon_nano, row.reference) for row in rows[1:]]
        return [each for each in found if not kinds or each[0] in kinds]


def create(world: World, dataset: Dataset, **plan: Any) -> Series:
    """Create a weekly series of Berlin of two cycles of three windows."""
    given: dict[str, Any] = {
        "name": "weekly",
        "algorithm": ALGORITHM,
        "every": "week",
        "time_zone": "Europe/Berlin",
        "first": MONDAY,
        "n_windows": 6,
        "cycle": 3,
        "target_reports": 300,
        "min_reports": 0,
        "epsilon_nano": NANO,
        "total_nano": None,
        "limits": LIMITS,
        "now": world.now,
        **plan,
    }
    return world.write(series.create, world.caller, dataset, **given)


@pytest.fixture
def run(world: World) -> Run:
    world.now = at("2027-01-15 12:00")
    return Run.create(world)


def starts(run: Run, index: int) -> int:
    """Return the start of a weekly window in winter: midnight in Berlin."""
    return at("2027-01-17 23:00") + 7 * DAY * index


def test_windows_open_at_their_start_and_plan_one_ahead(run: Run) -> None:
    assert run.states == ["planned"]
    assert run.row.next_at == run.windows[0].opens_at == starts(run, 0)
    assert run.advance(starts(run, 0) - 1) == []
    (job_id,) = run.advance(starts(run, 0))
    assert run.states == ["opened", "planned"]
    job = run.world.job(job_id)
    assert job.collection_id == f"{run.id}-0"
    assert (job.algorithm, job.created_by) == (ALGORITHM, run.world.caller.key_id)
    assert run.advance() == []  # nothing is due


def test_a_cycle_costs_one_window_and_is_one_draw(run: Run) -> None:
    intervals = []
    for index in range(3):
        (job_id,) = run.advance(starts(run, index))
        opened = run.open_round(job_id)
        assert opened.collection_id == f"{run.id}-0"
        assert (opened.index, opened.closes_at) == (index, starts(run, index + 1))
        intervals.append((opened.spec.participation.lo, opened.spec.participation.hi))
        run.cancel(job_id)
    assert intervals[0][0] == 0
    assert intervals[-1][1] == DRAW_SPAN
    assert [hi for _, hi in intervals[:-1]] == [lo for lo, _ in intervals[1:]]
    assert [amount for kind, amount, _ in run.entries("charge")] == [NANO, 0, 0]
    cycle = f"{run.id}-0"
    assert run.entries("grant", "reserve", "release", "expire") == [("grant", NANO, cycle), ("reserve", NANO, cycle)]
    with run.world.database.reading() as session:
        assert windows.charged_nano(session, run.row) == NANO


def test_what_a_cycle_did_not_spend_expires(run: Run) -> None:
    for index in range(3):
        (job_id,) = run.advance(starts(run, index))
        run.cancel(job_id)  # before its round
    free = run.world.balance(run.dataset.id).free.epsilon_nano
    run.advance(starts(run, 3))
    first, second = f"{run.id}-0", f"{run.id}-1"
    assert run.entries("release", "expire") == [("release", NANO, first), ("expire", NANO, first)]
    assert run.entries("grant", "reserve")[-2:] == [("grant", NANO, second), ("reserve", NANO, second)]
    balance = run.world.balance(run.dataset.id)
    assert balance.free.epsilon_nano == free == NANO  # the first grant of the dataset, which no cycle touches
    assert balance.granted_nano == 2 * NANO


def test_a_job_cannot_spend_the_grant_of_a_cycle(run: Run) -> None:
    run.advance(starts(run, 0))
    with pytest.raises(SfumatoError, match="1 is free"):
        run.world.submit(run.dataset, epsilon_nano=2 * NANO)
    run.world.submit(run.dataset, epsilon_nano=NANO)


def test_after_the_last_window_the_series_ends(run: Run) -> None:
    for index in range(6):
        for job_id in run.advance(starts(run, index)):
            run.open_round(job_id)
            run.cancel(job_id)
    assert run.row.state == SeriesState.ACTIVE
    run.advance(starts(run, 6))
    row = run.row
    assert (row.state, row.next_at, row.pending_nano, row.open_cycle) == (SeriesState.ENDED, None, 0, None)
    assert row.ended_at == starts(run, 6)
    assert run.world.balance(run.dataset.id).charged_nano == 2 * NANO


def test_a_service_that_was_down_for_weeks_misses_windows_and_fills_none_later(run: Run) -> None:
    run.advance(starts(run, 0))
    (job_id,) = run.advance(starts(run, 4) + DAY)
    assert run.states == ["opened", "missed", "missed", "missed", "opened", "planned"]
    assert all(each.reason == windows.LATE for each in run.windows[1:4])
    assert run.world.job(job_id).collection_id == f"{run.id}-1"
    assert run.entries("grant") == [("grant", NANO, f"{run.id}-{number}") for number in range(2)]
    assert run.entries("expire") == [("expire", NANO, f"{run.id}-0")]


@pytest.mark.parametrize(("late", "state"), [(0, "opened"), (1, "missed")])
def test_a_window_opens_late_while_half_of_it_remains(run: Run, late: int, state: str) -> None:
    half = starts(run, 0) + 7 * DAY // 2
    run.advance(half + late)
    assert run.states[0] == state
    if state == "missed":
        assert run.entries() == []  # no grant for a missed window
        assert run.row.pending_nano == 2 * NANO


def test_a_clock_that_is_set_back_repeats_nothing(run: Run) -> None:
    run.advance(starts(run, 1))
    before = run.entries()
    assert run.advance(starts(run, 0) - DAY) == []
    assert run.advance(starts(run, 1) + DAY) == []
    assert run.entries() == before
    assert run.advance(starts(run, 2)) != []


def test_a_clock_that_jumps_ahead_ends_the_series_without_a_charge(run: Run) -> None:
    run.advance(starts(run, 100))
    assert run.states == ["missed"] * 6
    assert run.row.state == SeriesState.ENDED
    assert run.entries() == []


@pytest.mark.parametrize(
    ("every", "zone", "first", "expected"),
    [
        (  # the days of the change of the clock have 23 and 25 hours
            "day",
            "Europe/Berlin",
            date(2027, 3, 27),
            ["2027-03-26 23:00", "2027-03-27 23:00", "2027-03-28 22:00", "2027-03-29 22:00"],
        ),
        (
            "day",
            "Europe/Berlin",
            date(2027, 10, 30),
            ["2027-10-29 22:00", "2027-10-30 22:00", "2027-10-31 23:00", "2027-11-01 23:00"],
        ),
        (  # the clock skips midnight, so that the day begins at one
            "day",
            "Asia/Beirut",
            date(2027, 3, 27),
            ["2027-03-26 22:00", "2027-03-27 22:00", "2027-03-28 21:00", "2027-03-29 21:00"],
        ),
        (
            "month",
            "America/New_York",
            date(2027, 2, 28),
            ["2027-02-28 05:00", "2027-03-28 04:00", "2027-04-28 04:00", "2027-05-28 04:00"],
        ),
        ("week", "UTC", MONDAY, ["2027-01-18 00:00", "2027-01-25 00:00", "2027-02-01 00:00", "2027-02-08 00:00"]),
    ],
)
def test_boundaries_are_midnights_of_the_zone(
    world: World, every: str, zone: str, first: date, expected: list[str]
) -> None:
    world.now = at(expected[0]) - DAY
    run = Run.create(world, every=every, time_zone=zone, first=first, n_windows=3, cycle=1)
    for text in expected:
        run.advance(at(text))
    assert [each.opens_at for each in run.windows] == [at(text) for text in expected[:3]]
    assert [each.closes_at for each in run.windows] == [at(text) for text in expected[1:]]


def test_the_next_calendar_day_in_the_zone() -> None:
    from models.series.calendar import first_day

    late = at("2027-12-31 23:30")  # already the next day in Berlin
    assert first_day("day", "Europe/Berlin", late) == date(2028, 1, 2)
    assert first_day("day", "UTC", late) == date(2028, 1, 1)
    assert first_day("week", "UTC", at("2027-01-18 12:00")) == date(2027, 1, 25)
    assert first_day("month", "UTC", late) == date(2028, 1, 1)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"time_zone": "Europe/Atlantis"}, "IANA database"),
        ({"time_zone": "../../etc/passwd"}, "IANA database"),
        ({"time_zone": "Europe"}, "IANA database"),
        ({"every": "hour"}, "windows must be one of day, week, month"),
        ({"every": "month", "first": date(2027, 1, 31)}, "every month has"),
        ({"first": date(2026, 12, 21)}, "more than half of the first window has passed"),
        ({"first": date(2029, 1, 1)}, "within a year"),
        ({"first": date.max}, "within a year"),
        ({"n_windows": 0}, "1 to 1000 windows"),
        ({"n_windows": 1001}, "1 to 1000 windows"),
        ({"cycle": 0}, "at least 1 window"),
        ({"cycle": 7}, "at most as many as the series"),
        ({"total_nano": 2 * NANO - 1}, "has 2 cycles, which cost epsilon 2:"),
        ({"n_windows": 99, "cycle": 3, "epsilon_nano": NANO}, "more than any device allows"),
    ],
)
def test_a_bad_plan_is_refused_and_nothing_is_charged(world: World, plan: dict[str, Any], message: str) -> None:
    world.now = at("2027-01-15 12:00")
    dataset = world.new_dataset()
    with pytest.raises(InvalidSpec, match=message):
        create(world, dataset, **plan)
    assert len(world.chain(dataset.id)) == 1


def test_other_trust_models_and_deleted_datasets_are_refused(world: World) -> None:
    world.now = at("2027-01-15 12:00")
    central = world.new_dataset(trust=Trust.CENTRAL, out_of_bounds=None)
    with pytest.raises(InvalidSpec, match="a series over records must have one cycle"):
        create(world, central)
    with pytest.raises(Conflict, match="density_map over records"):
        create(world, central, n_windows=4, cycle=4)
    deleted = world.new_dataset()
    world.write(maintenance.delete_dataset, world.caller, deleted.id, now=world.now)
    with pytest.raises(NotFound, match="dataset"):
        create(world, deleted)


def test_a_pause_misses_windows_and_loses_none_that_can_still_open(run: Run) -> None:
    run.advance(starts(run, 0))
    change(run, SeriesState.PAUSED)
    run.advance(starts(run, 1))
    assert run.states == ["opened", "planned"]
    run.advance(starts(run, 2))
    assert run.windows[1].reason == windows.PAUSED
    change(run, SeriesState.ACTIVE)
    assert len(run.advance(starts(run, 2) + DAY)) == 1
    assert run.states == ["opened", "missed", "opened", "planned"]


def change(run: Run, state: SeriesState) -> Series:
    return run.world.write(series.change, run.world.caller, run.id, name=None, state=state, now=run.world.now)


def test_an_end_completes_the_open_window_and_then_expires_its_cycle(run: Run) -> None:
    (job_id,) = run.advance(starts(run, 0))
    row = change(run, SeriesState.ENDED)
    assert (row.state, row.pending_nano, row.next_at) == (SeriesState.ENDED, 0, starts(run, 1))
    assert run.states == ["opened"]
    run.open_round(job_id)  # the window still collects
    run.advance(starts(run, 1))
    assert run.row.next_at is None
    assert run.entries("charge", "expire")[0][:2] == ("charge", NANO)
    with pytest.raises(Conflict, match="has ended"):
        change(run, SeriesState.ACTIVE)


def test_an_end_before_the_first_window_costs_nothing(run: Run) -> None:
    change(run, SeriesState.ENDED)
    assert run.states == []
    assert run.advance(starts(run, 3)) == []
    assert run.entries() == []


def test_the_deletion_of_the_dataset_ends_its_series_at_once(run: Run) -> None:
    run.advance(starts(run, 0))
    run.world.write(maintenance.delete_dataset, run.world.caller, run.dataset.id, now=run.world.now)
    assert (run.row.state, run.row.next_at) == (SeriesState.ENDED, None)
    assert run.entries("expire") == [("expire", NANO, f"{run.id}-0")]
    assert run.advance(starts(run, 2)) == []


def test_closing_a_restored_budget_charges_the_open_cycle(run: Run) -> None:
    run.advance(starts(run, 0))
    charged = run.world.write(maintenance.close_budget, run.dataset.id, now=run.world.now)
    assert charged.epsilon_nano == 2 * NANO  # the cycle, and the free budget
    assert run.entries("expire") == []
    assert run.world.balance(run.dataset.id).free.epsilon_nano == 0


def test_a_job_that_a_worker_takes_after_its_window_opens_no_round(run: Run) -> None:
    (job_id,) = run.advance(starts(run, 0))
    run.world.now = starts(run, 1)
    with pytest.raises(Conflict, match="this window ended before"):
        run.open_round(job_id)
    assert run.entries("charge") == []


def test_a_full_queue_delays_a_window_and_says_why(run: Run) -> None:
    run.limits = replace(LIMITS, max_active_jobs=0)
    run.world.now = starts(run, 0)
    with pytest.raises(LimitExceeded):
        run.step()
    assert run.entries() == []  # the grant was rolled back with the job
    run.world.write(windows.postpone, run.id, "the queue is full", now=run.world.now)
    assert run.windows[0].reason == "the queue is full"
    assert run.row.next_at == starts(run, 0) + windows.RETRY_SECONDS * SECOND
    run.advance(starts(run, 0) + 4 * DAY)
    assert run.windows[0].state == WindowState.MISSED
    assert run.windows[0].reason == "the queue is full"


def test_workers_at_once_open_a_window_once(run: Run) -> None:
    run.world.now = starts(run, 0)
    steps = together([run.step for _ in range(4)])
    assert not [each for each in steps if isinstance(each, Exception)]
    assert sum(each.job is not None for each in steps) == 1
    assert run.states == ["opened", "planned"]
    assert len(run.entries("grant")) == 1


def test_a_crash_before_the_commit_changes_nothing(run: Run) -> None:
    run.world.now = starts(run, 0)
    before = run.entries()
    with rolled_back(run.world.database) as session:
        windows.take_step(session, run.id, find_limits=lambda *_: LIMITS, now=run.world.now)
    assert run.entries() == before
    assert run.states == ["planned"]
    assert len(run.advance()) == 1


class TestCeilings:
    """The whole total counts from the creation of a series on."""

    def test_of_the_dataset(self, world: World) -> None:
        world.now = at("2027-01-15 12:00")
        dataset = world.new_dataset(epsilon_nano=NANO)
        limits = replace(LIMITS, dataset_ceiling=Ceiling(4 * NANO))
        create(world, dataset, limits=limits)
        with pytest.raises(CeilingExceeded):
            create(world, dataset, limits=limits)
        with pytest.raises(CeilingExceeded):  # a grant beside a series
            world.write(grant_of, world, dataset, 2 * NANO, limits.dataset_ceiling)
        world.write(grant_of, world, dataset, NANO, limits.dataset_ceiling)

    def test_of_the_source(self, world: World) -> None:
        world.now = at("2027-01-15 12:00")
        one, other = (world.new_dataset(source="staff") for _ in range(2))
        limits = replace(LIMITS, source_ceiling=Ceiling(3 * NANO))
        create(world, one, limits=limits)
        with pytest.raises(CeilingExceeded):
            create(world, other, limits=limits)
        with pytest.raises(CeilingExceeded):
            world.submit(other, epsilon_nano=2 * NANO, ceiling=limits.source_ceiling)
        world.submit(other, epsilon_nano=NANO, ceiling=limits.source_ceiling)

    def test_of_datasets_over_the_same_people(self, world: World) -> None:
        world.now = at("2027-01-15 12:00")
        one, other = (world.new_dataset(name="lunch", epsilon_nano=NANO) for _ in range(2))
        limits = replace(LIMITS, source_ceiling=Ceiling(is_largest_grant=True))
        create(world, one, limits=limits)
        with pytest.raises(CeilingExceeded):  # the series of both cost 4, and the grants of one allow 3
            create(world, other, limits=limits)

    def test_cycles_do_not_count_twice(self, run: Run) -> None:
        with run.world.database.reading() as session:
            before = sources.spent_of_source(session, run.dataset.id)
        for index in range(3):
            run.advance(starts(run, index))
        with run.world.database.reading() as session:
            assert sources.spent_of_source(session, run.dataset.id) == before
        assert before.epsilon_nano == 2 * NANO


def grant_of(session: Any, world: World, dataset: Dataset, amount: int, ceiling: Ceiling) -> Any:
    from models import datasets

    return datasets.grant(
        session, world.caller, dataset.id, epsilon_nano=amount, delta_atto=0, ceiling=ceiling, now=world.now
    )


def test_lists_show_what_a_caller_may_see(run: Run) -> None:
    other = run.world.new_caller("other")
    bound = run.world.new_caller("tenant", run.dataset.id)
    elsewhere = run.world.new_dataset()
    create(run.world, elsewhere)
    with run.world.database.reading() as session:
        assert [each.id for each in series.page(session, bound, dataset_id=None, after="", limit=9)] == [run.id]
        assert len(series.page(session, run.world.caller, dataset_id=None, after="", limit=9)) == 2
        assert series.page(session, other, dataset_id=None, after="", limit=9) == []
        with pytest.raises(NotFound):
            series.get(session, other, run.id)
        assert jobs.count_active(session, run.world.caller.tenant_id) == 0


def test_targets_of_a_round() -> None:
    """The larger bound exceeds the smaller one, and both are whole for all devices."""
    part = Participation(0, DRAW_SPAN // 13)
    assert expected_reports(100_000, part) < 100_000 // 13 < most_reports(100_000, part)
    assert most_reports(100_000, Participation()) == 100_000
    assert most_reports(1, part) == 1
