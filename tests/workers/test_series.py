"""Windows from their start to their result, with the real plan and a clock that tests set."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import numpy as np
import pytest

from models import datasets
from models.collection import report_intake, rounds
from models.database.engine import Database
from models.database.types import SECOND
from models.identity.tenants import TenantLimits
from models.jobs import claims
from models.jobs.claims import Claim
from models.ledger import sources
from models.series import following, revisions, series, windows
from models.tables.jobs import JobState
from models.tables.rounds import Round
from models.tables.series import WindowState
from runtime.job_signal import PollingJobSignal
from runtime.settings import Settings
from sfumato.device.bulk import perturb_records
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.specs import Feature, Place
from tests.workers.collection import Collection
from workers import job_runner
from workers.job_runner import ClaimOutcome
from workers.series import follow_series
from workers.supervisor import Supervisor

DAY = 86_400 * SECOND
START = 1_800_230_400 * SECOND  # Monday, 2027-01-18, in UTC
FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
LIMITS = TenantLimits(10, 1000, None, 16, 1000, sources.UNLIMITED, sources.UNLIMITED)
PEOPLE = 12_000


class Clock:
    """A clock that tests set, in microseconds since the epoch."""

    now = START - DAY

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(database_url: str, clock: Clock) -> Iterator[Database]:
    opened = Database(database_url, pool_size=4, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def collection(database: Database) -> Collection:
    return Collection.create(database, features=FEATURES)


@pytest.fixture
def supervisor(database: Database) -> Supervisor:
    return Supervisor(Settings(), database, PollingJobSignal(0.1))


def create(collection: Collection, **plan: Any) -> str:
    """Create a series of daily windows from START in cycles of two, and return its id."""
    given: dict[str, Any] = {
        "name": "daily",
        "algorithm": {"type": "shifted_grid", "epsilon": 3.0, "clusters": 2, "cells": 4},
        "every": "day",
        "time_zone": "UTC",
        "first": date(2027, 1, 18),
        "n_windows": 2,
        "cycle": 2,
        "target_reports": PEOPLE,
        "min_reports": 0,
        "epsilon_nano": 3 * NANO,
        "total_nano": None,
        "limits": LIMITS,
        **plan,
    }
    with collection.database.transaction() as session:
        dataset = datasets.get(session, collection.caller, collection.dataset_id)
        return series.create(session, collection.caller, dataset, now=collection.database.clock(), **given).id


def step(collection: Collection) -> ClaimOutcome | None:
    """Let a worker claim the next job and work on it; None without a job."""
    database = collection.database
    with database.transaction() as session:
        claim = claims.claim(session, now=database.clock(), lease_microseconds=DAY, max_attempts=5)
    return None if claim is None else job_runner.run(database, Claim(claim.job_id, claim.fence))


def jobs_of(collection: Collection, series_id: str) -> list[tuple[str, str | None]]:
    """Return the state and the job of each window."""
    with collection.database.reading() as session:
        found = series.get(session, collection.caller, series_id)
        rows = windows.list_windows(session, found, after_seq=0, limit=100, newest_first=False)
        return [(window.state, window.job_id) for window, _ in rows]


def answer(collection: Collection, opened: Round, draws: np.ndarray, people: np.ndarray) -> None:
    """Report as the devices that the round selects."""
    reports = perturb_records(opened.spec, people, draws=draws)
    n = len(reports.slots)
    parts = [reports.report_ids, reports.slots.astype("<u4").view(np.uint8).reshape(n, 4), reports.values]
    packed = np.concatenate(parts, axis=1).tobytes()
    with collection.database.transaction() as session:
        report_intake.receive(session, opened.id, n, packed, now=collection.database.clock())


def close_due(database: Database) -> None:
    with database.transaction() as session:
        rounds.close_due(session, now=database.clock())


def test_each_person_reports_in_one_window_of_a_cycle(
    collection: Collection, supervisor: Supervisor, clock: Clock
) -> None:
    """Two windows share one draw, so that all people report once, and the cycle costs one window."""
    rng = np.random.default_rng(1)
    centres = np.array([[0.25, 0.3], [0.75, 0.7]])[rng.integers(0, 2, PEOPLE)]
    people = np.clip(centres + rng.normal(0, 0.06, (PEOPLE, 2)), 0, 1)
    draws = rng.integers(0, DRAW_SPAN, PEOPLE, dtype=np.uint64, endpoint=False)
    series_id = create(collection)
    n_reports = []
    for day in range(2):
        clock.now = START + day * DAY
        supervisor._advance_series()
        supervisor._advance_series()  # the second sweep finds nothing
        assert step(collection) is ClaimOutcome.COLLECTING
        opened = collection.get_open_round()
        assert opened.collection_id == f"{series_id}-0"
        assert opened.closes_at == START + (day + 1) * DAY
        answer(collection, opened, draws, people)
        clock.now = START + (day + 1) * DAY
        close_due(collection.database)
        assert step(collection) is ClaimOutcome.SUCCEEDED
        n_reports.append(collection.rounds_of(opened.job_id or "")[0].n_reports or 0)
    assert sum(n_reports) == PEOPLE
    assert abs(n_reports[0] - PEOPLE / 2) < 5 * (PEOPLE / 4) ** 0.5
    assert [charge.epsilon_nano for charge in collection.charges()] == [3 * NANO, 0]
    supervisor._advance_series()
    for state, job_id in jobs_of(collection, series_id):
        assert (state, job_id is not None) == (WindowState.OPENED, True)
        document = collection.document(job_id or "")
        assert document["model"]["n_clusters"] == 2
        assert document["algorithm"]["cells"] == 4
    check_followed(collection, series_id)
    balance = collection.balance()
    assert (balance.granted_nano, balance.reserved_nano) == (35 * NANO, 0)


def test_clusters_keep_their_ids_over_a_revision(collection: Collection, supervisor: Supervisor, clock: Clock) -> None:
    """The second window has another grid and epsilon. Its pool starts again, its ids continue, and it has no event."""
    rng = np.random.default_rng(4)
    centres = np.array([[0.25, 0.3], [0.75, 0.7]])[rng.integers(0, 2, PEOPLE)]
    people = np.clip(centres + rng.normal(0, 0.06, (PEOPLE, 2)), 0, 1)
    series_id = create(collection, cycle=1, total_nano=9 * NANO)
    finer = {"type": "shifted_grid", "epsilon": 4.0, "clusters": 2, "cells": 6}
    for day in range(2):
        clock.now = START + day * DAY
        supervisor._advance_series()
        assert step(collection) is ClaimOutcome.COLLECTING
        if day == 0:
            with collection.database.transaction() as session:
                locked = series.get(session, collection.caller, series_id, lock=True)
                changed = {"algorithm": finer, "epsilon_nano": 4 * NANO}
                revisions.revise(session, collection.caller, locked, changed, release=None, now=clock.now)
        answer(collection, collection.get_open_round(), rng.integers(0, DRAW_SPAN, PEOPLE, dtype=np.uint64), people)
        clock.now = START + (day + 1) * DAY
        close_due(collection.database)
        assert step(collection) is ClaimOutcome.SUCCEEDED
    first, second = shares_of(collection, series_id)
    assert {each["cluster_id"] for each in first} == {each["cluster_id"] for each in second}
    assert all(0.4 < each["share"] < 0.6 for each in second)
    with collection.database.reading() as session:
        found = series.get(session, collection.caller, series_id)
        _, pooled = following.get_map(session, found, None, pooled=True)
        assert following.page_events(session, found, after="", limit=9) == []
    assert pooled["weights"] == [{"window": 1, "weight": 1.0}]
    assert pooled["model"]["diagnostics"]["coarse_cells"] == 6
    assert [charge.epsilon_nano for charge in collection.charges()] == [3 * NANO, 4 * NANO]


def check_followed(collection: Collection, series_id: str) -> None:
    """Check that two windows have the same clusters, and that the second map pools both windows."""
    with collection.database.reading() as session:
        found = series.get(session, collection.caller, series_id)
        rows = windows.list_windows(session, found, after_seq=0, limit=100, newest_first=False)
        first, second = (window.shares or [] for window, _ in rows)
        ids = {each["cluster_id"] for each in second}
        assert {each["cluster_id"] for each in first} == ids
        assert len(ids) == 2
        assert all(0.3 < each["share"] < 0.7 and each["error"] < 0.05 for each in second)
        index, pooled = following.get_map(session, found, None, pooled=True)
        _, alone = following.get_map(session, found, 1, pooled=False)
    assert index == 1
    assert [each["weight"] for each in pooled["weights"]] == [0.9, 1.0]
    assert set(pooled["cluster_ids"]) == set(alone["cluster_ids"]) == ids
    assert pooled["model"]["diagnostics"]["n_reports"] > 1.8 * alone["model"]["diagnostics"]["n_reports"]


def test_windows_are_followed_in_order_and_once(
    collection: Collection, supervisor: Supervisor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies before it publishes the first window. The second one waits, and then both are followed."""
    rng = np.random.default_rng(2)
    people = np.clip(rng.normal(0.5, 0.1, (PEOPLE, 2)), 0, 1)
    draws = rng.integers(0, DRAW_SPAN, PEOPLE, dtype=np.uint64, endpoint=False)
    series_id = create(collection)
    for day in range(2):
        clock.now = START + day * DAY
        supervisor._advance_series()
        assert step(collection) is ClaimOutcome.COLLECTING
        answer(collection, collection.get_open_round(), draws, people)
        clock.now = START + (day + 1) * DAY
        close_due(collection.database)
        if day == 0:
            with monkeypatch.context() as patched:
                patched.setattr(job_runner, "_aggregate", fail_once)
                with pytest.raises(MemoryError):
                    step(collection)  # the claim lasts a day
    (_, first), (_, second) = jobs_of(collection, series_id)
    assert shares_of(collection, series_id) == [None, None]
    clock.now += 2 * DAY
    outcomes = [step(collection), step(collection)]
    assert outcomes == [ClaimOutcome.SUCCEEDED] * 2
    assert all(shares_of(collection, series_id))
    before = shares_of(collection, series_id)
    for job_id in (first, second):
        follow_series(collection.database, job_id or "")
    assert shares_of(collection, series_id) == before


def test_an_error_while_following_does_not_cost_the_result(
    collection: Collection, supervisor: Supervisor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    series_id = create(collection)
    rng = np.random.default_rng(3)
    people = np.clip(rng.normal(0.5, 0.1, (PEOPLE, 2)), 0, 1)
    draws = rng.integers(0, DRAW_SPAN, PEOPLE, dtype=np.uint64, endpoint=False)
    clock.now = START
    supervisor._advance_series()
    assert step(collection) is ClaimOutcome.COLLECTING
    answer(collection, collection.get_open_round(), draws, people)
    clock.now = START + DAY
    close_due(collection.database)
    with monkeypatch.context() as patched:
        patched.setattr("workers.series.follow", fail_always)
        assert step(collection) is ClaimOutcome.SUCCEEDED
    assert shares_of(collection, series_id)[0] is None
    ((_, job_id), *_) = jobs_of(collection, series_id)
    follow_series(collection.database, job_id or "")
    assert shares_of(collection, series_id)[0]


def fail_always(*_: Any, **__: Any) -> Any:
    """Fail like a defect."""
    raise ValueError


def fail_once(*_: Any) -> Any:
    """Fail like a job process that is killed."""
    raise MemoryError


def shares_of(collection: Collection, series_id: str) -> list[Any]:
    """Return the shares of the windows of a series."""
    with collection.database.reading() as session:
        found = series.get(session, collection.caller, series_id)
        rows = windows.list_windows(session, found, after_seq=0, limit=9, newest_first=False)
        return [each.shares for each, _ in rows]


def test_a_window_with_too_few_reports_is_empty_and_keeps_its_charge(
    collection: Collection, supervisor: Supervisor, clock: Clock
) -> None:
    series_id = create(collection, min_reports=50)
    clock.now = START
    supervisor._advance_series()
    assert step(collection) is ClaimOutcome.COLLECTING
    clock.now = START + DAY
    close_due(collection.database)
    assert step(collection) is ClaimOutcome.FAILED
    ((_, job_id), _) = jobs_of(collection, series_id)
    job = collection.job(job_id or "")
    assert (job.state, job.error_code) == (JobState.EXPIRED, "too_few_reports")
    assert collection.balance().charged_nano == 3 * NANO
    supervisor._advance_series()
    assert step(collection) is ClaimOutcome.COLLECTING  # the next window of the cycle costs nothing
    assert collection.balance().charged_nano == 3 * NANO


def test_a_job_that_waited_longer_than_its_window_fails_without_a_charge(
    collection: Collection, supervisor: Supervisor, clock: Clock
) -> None:
    create(collection)
    clock.now = START
    supervisor._advance_series()
    clock.now = START + DAY
    assert step(collection) is ClaimOutcome.FAILED
    assert collection.charges() == []


def test_a_window_that_cannot_open_is_tried_again_and_missed_at_last(
    collection: Collection, database: Database, clock: Clock
) -> None:
    full = Supervisor(Settings(max_active_jobs=1), database, PollingJobSignal(0.1))
    collection.submit()
    series_id = create(collection)
    clock.now = START
    full._advance_series()
    assert jobs_of(collection, series_id) == [("planned", None)]
    with database.reading() as session:
        planned = windows.next_window(session, series_id)
        assert planned is not None
        assert "1 unfinished jobs" in (planned.reason or "")
    clock.now = START + DAY // 2 + 1
    full._advance_series()
    assert jobs_of(collection, series_id) == [("missed", None), ("planned", None)]


def test_the_map_of_a_window_warns_of_clusters_near_a_pole(
    database: Database, supervisor: Supervisor, clock: Clock
) -> None:
    """The pooled map has the warning of the window's own result."""
    collection = Collection.create(database, features=Place().features)
    rng = np.random.default_rng(5)
    people = np.array([[86.0, 10.0], [-30.0, 100.0]])[rng.integers(0, 2, PEOPLE)] + rng.normal(0, 0.5, (PEOPLE, 2))
    algorithm = {"type": "shifted_grid", "epsilon": 3.0, "clusters": 2, "cells": 12, "length_scale": 0.05}
    series_id = create(collection, algorithm=algorithm, cycle=1, n_windows=1)
    clock.now = START
    supervisor._advance_series()
    assert step(collection) is ClaimOutcome.COLLECTING
    answer(collection, collection.get_open_round(), np.zeros(PEOPLE, dtype=np.uint64), people)
    clock.now = START + DAY
    close_due(database)
    assert step(collection) is ClaimOutcome.SUCCEEDED
    with database.reading() as session:
        found = series.get(session, collection.caller, series_id)
        maps = [following.get_map(session, found, 0, pooled=pooled)[1]["model"] for pooled in (False, True)]
    assert all(any(text.startswith("Near a pole: cluster") for text in each["warnings"]) for each in maps)
