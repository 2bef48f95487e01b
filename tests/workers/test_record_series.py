"""Series over records: windows have disjoint records, and all of them together cost the epsilon of one window."""

from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from models import datasets, maintenance
from models.database.engine import Database
from models.errors import Conflict
from models.jobs import claims
from models.jobs.claims import Claim
from models.ledger import ledger
from models.records import window_records
from models.series import following, series, windows
from models.tables.jobs import JobState
from models.tables.series import SeriesState, WindowState
from runtime.job_signal import PollingJobSignal
from runtime.settings import Settings
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from tests.databases import on_both_databases
from tests.workers.archive import GRANTED, KEYRING, Archive
from tests.workers.test_series import DAY, LIMITS, START, Clock
from workers import job_runner
from workers.job_runner import ClaimOutcome
from workers.supervisor import Supervisor

ALGORITHM = {"type": "density_map", "epsilon": 1.0, "cells": 16}
MINUTE = 60_000_000
N = 4000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(database_url: str, clock: Clock) -> Iterator[Database]:
    opened = Database(database_url, pool_size=4, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def archive(database: Database) -> Archive:
    return Archive.create(database, n_records=0)


@pytest.fixture
def supervisor(database: Database) -> Supervisor:
    return Supervisor(Settings(), database, PollingJobSignal(0.1))


def create(archive: Archive, **plan: Any) -> str:
    """Create a series of three daily windows from START, and return its id."""
    given: dict[str, Any] = {
        "name": "daily",
        "algorithm": ALGORITHM,
        "every": "day",
        "time_zone": "UTC",
        "first": date(2027, 1, 18),
        "n_windows": 3,
        "cycle": 3,
        "target_reports": 3 * N,
        "min_reports": 0,
        "epsilon_nano": NANO,
        "total_nano": None,
        "limits": LIMITS,
        **plan,
    }
    with archive.database.transaction() as session:
        dataset = datasets.get(session, archive.caller, archive.dataset_id)
        return series.create(session, archive.caller, dataset, now=archive.database.clock(), **given).id


def two_groups(seed: int, n: int = N, share: float = 0.5) -> np.ndarray:
    """Return points of two round groups, as shares of the ranges. The first one has a share of them."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.25, 0.3], [0.75, 0.7]])[(rng.random(n) > share).astype(int)]
    return np.clip(centres + rng.normal(0, 0.06, (n, 2)), 0, 0.999)


def work(archive: Archive) -> ClaimOutcome | None:
    """Let a worker claim the next job and work on it; None without a job."""
    database = archive.database
    with database.transaction() as session:
        claim = claims.claim(session, now=database.clock(), lease_microseconds=DAY, max_attempts=5)
    if claim is None:
        return None
    return job_runner.run(database, Claim(claim.job_id, claim.fence), keyring=lambda: KEYRING)


def load(archive: Archive, since: int, until: int) -> np.ndarray:
    with archive.database.reading() as session:
        return window_records.load(session, archive.dataset_id, KEYRING, since=since, until=until).points


def list_windows(archive: Archive, series_id: str) -> list[Any]:
    with archive.database.reading() as session:
        found = series.get(session, archive.caller, series_id)
        rows = windows.list_windows(session, found, after_seq=0, limit=100, newest_first=False)
        return [window for window, _ in rows]


def play(archive: Archive, supervisor: Supervisor, clock: Clock, day: int, **people: Any) -> ClaimOutcome | None:
    """Upload records in a window, and take the steps after its end."""
    clock.now = START + day * DAY + DAY // 2
    archive.add(N, shares=two_groups(day, **people))
    clock.now = START + (day + 1) * DAY + MINUTE
    supervisor._advance_series()
    return work(archive)


class TestRecordsOfAWindow:
    def test_have_the_uploads_that_were_completed_in_it(self, archive: Archive, clock: Clock) -> None:
        for day in range(3):
            clock.now = START + day * DAY
            archive.add(10 * (day + 1), seed=day)
        ends = [START + day * DAY for day in range(4)]
        parts = [load(archive, since, until) for since, until in pairwise(ends)]
        assert [len(part) for part in parts] == [10, 20, 30]
        whole = {tuple(row) for part in parts for row in part.tolist()}
        assert len(whole) == 60
        assert len(load(archive, START, START + 3 * DAY)) == 60

    def test_a_user_has_a_bounded_number_of_records_in_all_windows(self, database: Database, clock: Clock) -> None:
        """Users with five records keep the first three, however they are divided among windows and uploads."""
        archive = Archive.create(database, n_records=0, max_per_user=3)
        for day, names in enumerate(([b"a", b"b"], [b"a", b"a", b"b"], [b"a", b"a", b"b", b"b", b"c"])):
            clock.now = START + day * DAY
            archive.add(len(names), users=names, seed=day)
        ends = [START + day * DAY for day in range(4)]
        sizes = [len(load(archive, since, until)) for since, until in pairwise(ends)]
        assert sizes == [2, 3, 2]  # b has one left in the third window, and c has one

    def test_a_later_upload_never_changes_an_earlier_window(self, database: Database, clock: Clock) -> None:
        archive = Archive.create(database, n_records=0, max_per_user=1)
        clock.now = START
        archive.add(5)
        before = load(archive, START, START + DAY)
        clock.now = START + DAY
        archive.add(7, seed=1)
        assert (load(archive, START, START + DAY) == before).all()


class TestASeries:
    @on_both_databases
    def test_all_windows_cost_the_epsilon_of_one(self, archive: Archive, supervisor: Supervisor, clock: Clock) -> None:
        series_id = create(archive)
        clock.now = START + DAY
        supervisor._advance_series()
        assert work(archive) is None  # a minute passes after the end
        outcomes = [play(archive, supervisor, clock, day) for day in range(3)]
        assert outcomes == [ClaimOutcome.SUCCEEDED] * 3
        charges = [charge.epsilon_nano for charge in archive.charges()]
        assert (sum(charges), charges[2:]) == (NANO, [0] * 4)
        assert {charge.reservation for charge in archive.charges()} == {f"{series_id}-0"}
        clock.now += MINUTE
        supervisor._advance_series()
        balance = archive.balance()
        assert (balance.granted_nano, balance.reserved_nano) == (GRANTED + NANO, 0)
        with archive.database.reading() as session:
            assert ledger.verify(session, archive.dataset_id).ok
            assert series.get(session, archive.caller, series_id).state == SeriesState.ENDED

    def test_windows_are_pooled_and_keep_their_clusters(
        self, archive: Archive, supervisor: Supervisor, clock: Clock
    ) -> None:
        series_id = create(archive)
        for day in range(3):
            assert play(archive, supervisor, clock, day) is ClaimOutcome.SUCCEEDED
        found = list_windows(archive, series_id)
        ids = [{each["cluster_id"] for each in window.shares} for window in found]
        assert ids[0] == ids[1] == ids[2]
        assert len(ids[0]) == 2
        assert all(abs(each["share"] - 0.5) < 5 * each["error"] for window in found for each in window.shares)
        with archive.database.reading() as session:
            one = series.get(session, archive.caller, series_id)
            _, pooled = following.get_map(session, one, None, pooled=True)
            _, alone = following.get_map(session, one, 2, pooled=False)
        assert [each["weight"] for each in pooled["weights"]] == [0.9**2, 0.9, 1.0]
        assert pooled["model"]["diagnostics"]["noisy_count"] == pytest.approx(2.98 * N, rel=0.05)
        assert set(alone["cluster_ids"]) == ids[0]
        assert pooled["model"]["privacy"]["sizes"] == alone["model"]["privacy"]["sizes"]

    def test_a_change_is_an_event(self, archive: Archive, supervisor: Supervisor, clock: Clock) -> None:
        series_id = create(archive, n_windows=6, cycle=6)
        for day in range(6):
            assert play(archive, supervisor, clock, day, share=0.5 if day < 3 else 0.8) is ClaimOutcome.SUCCEEDED
        with archive.database.reading() as session:
            found = series.get(session, archive.caller, series_id)
            (event,) = following.page_events(session, found, after="", limit=9)
        assert (event.window, event.change) == (3, 3)
        assert {each["kind"] for each in event.kinds or []} <= {"grown", "shrunk"}
        assert abs(event.kinds[0]["size"]) == pytest.approx(0.3, abs=0.05)

    def test_windows_that_end_in_a_pause_are_missed(
        self, archive: Archive, supervisor: Supervisor, clock: Clock
    ) -> None:
        series_id = create(archive)
        pause(archive, series_id, SeriesState.PAUSED)
        assert play(archive, supervisor, clock, 0) is None
        pause(archive, series_id, SeriesState.ACTIVE)
        assert play(archive, supervisor, clock, 1) is ClaimOutcome.SUCCEEDED
        first, second, _ = list_windows(archive, series_id)
        assert (first.state, first.job_id) == (WindowState.MISSED, None)
        assert first.reason == windows.PAUSED_AT_END
        assert second.job_id is not None

    def test_a_service_that_was_down_computes_all_windows_later(
        self, archive: Archive, supervisor: Supervisor, clock: Clock
    ) -> None:
        series_id = create(archive)
        for day in range(3):
            clock.now = START + day * DAY
            archive.add(N, shares=two_groups(day))
        clock.now = START + 30 * DAY
        supervisor._advance_series()
        assert [work(archive) for _ in range(4)] == [*[ClaimOutcome.SUCCEEDED] * 3, None]
        assert all(window.shares for window in list_windows(archive, series_id))
        assert sum(charge.epsilon_nano for charge in archive.charges()) == NANO

    def test_an_ended_series_completes_the_windows_that_have_ended(
        self, archive: Archive, supervisor: Supervisor, clock: Clock
    ) -> None:
        series_id = create(archive)
        clock.now = START + DAY // 2
        archive.add(N, shares=two_groups(0))
        clock.now = START + DAY + MINUTE
        supervisor._advance_series()
        pause(archive, series_id, SeriesState.ENDED)
        assert work(archive) is ClaimOutcome.SUCCEEDED
        clock.now += DAY
        supervisor._advance_series()
        assert len(list_windows(archive, series_id)) == 1
        assert archive.balance().reserved_nano == 0
        assert sum(charge.epsilon_nano for charge in archive.charges()) == NANO

    def test_a_window_after_the_end_of_its_cycle_is_not_computed(
        self, archive: Archive, supervisor: Supervisor, clock: Clock
    ) -> None:
        """The grant has expired, so that a release would cost what was never granted."""
        series_id = create(archive)
        clock.now = START + DAY + MINUTE
        supervisor._advance_series()
        with archive.database.transaction() as session:
            datasets.lock_live(session, archive.dataset_id)
            windows.stop_all(session, archive.dataset_id, now=clock.now)
        assert work(archive) is ClaimOutcome.FAILED
        assert [entry.epsilon_nano for entry in archive.charges()] == []
        (window,) = list_windows(archive, series_id)
        assert archive.job(window.job_id).state == JobState.FAILED
        assert "the series has ended" in (archive.job(window.job_id).error_detail or "")

    def test_deleted_records_end_the_series(self, archive: Archive, supervisor: Supervisor, clock: Clock) -> None:
        series_id = create(archive)
        assert play(archive, supervisor, clock, 0) is ClaimOutcome.SUCCEEDED
        with archive.database.transaction() as session:
            maintenance.delete_records(session, archive.caller, archive.dataset_id, now=clock.now)
        assert play(archive, supervisor, clock, 1) is None
        with archive.database.reading() as session:
            assert series.get(session, archive.caller, series_id).state == SeriesState.ENDED


class TestRefused:
    @pytest.mark.parametrize(
        ("plan", "text"),
        [
            ({"cycle": 1}, "set cycle to 3"),
            ({"min_reports": 5}, "min_reports must be 0 over records"),
        ],
    )
    def test_plans_without_a_meaning_over_records(self, archive: Archive, plan: dict[str, Any], text: str) -> None:
        with pytest.raises(InvalidSpec, match=text):
            create(archive, **plan)

    def test_the_algorithm_of_reports(self, archive: Archive) -> None:
        with pytest.raises(Conflict, match="density_map over records"):
            create(archive, algorithm={"type": "shifted_grid", "epsilon": 1.0, "cells": 4})

    def test_gaussian_accounting(self, database: Database) -> None:
        gaussian = Archive.create(database, n_records=0, delta_atto=10**12, accounting="gaussian")
        with pytest.raises(Conflict, match="additive accounting"):
            create(gaussian)


def pause(archive: Archive, series_id: str, state: SeriesState) -> None:
    with archive.database.transaction() as session:
        series.change(session, archive.caller, series_id, name=None, state=state, now=archive.database.clock())
