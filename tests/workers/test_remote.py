"""What a Dask worker does by itself: answers without quoting anything, and keeps records no longer than it should."""

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from clustering.questions import number_of
from models import record
from models.db import Database
from models.settings import Settings
from tests.workers.archive import RECORDS_KEY, Archive
from tests.workers.spreading import WORKS, assert_same
from workers import remote
from workers.remote import Reply, Share, add_up, forget, hold
from workers.scheduler import Scheduler, SchedulerAway

SECRET = "the private value Zw9-4711"


@pytest.fixture
def database_kind() -> str:
    return "sqlite"


@pytest.fixture(autouse=True)
def _this_is_a_worker(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote, "_check_no_spilling", lambda: None)
    monkeypatch.setattr(remote, "own_database", lambda: database)
    monkeypatch.setattr(remote, "settings", lambda: Settings(records_key=RECORDS_KEY))
    yield
    remote._kept.clear()


@pytest.fixture
def share(database: Database) -> Share:
    """The second half of some records."""
    archive = Archive.create(database)
    archive.add(300, seed=1)
    with database.reading() as session:
        return Share(archive.dataset_id, record.digest(session, archive.dataset_id), 1, 2)


def explode(points: np.ndarray) -> tuple[np.ndarray, ...]:
    raise ValueError(f"{SECRET} {points[0]}")


class TestAnError:
    def test_is_told_by_its_kind_alone(self, share: Share) -> None:
        assert add_up("a job", share, explode) == Reply(None, "ValueError")

    def test_of_a_task_is_the_schedulers_absence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Client:
            status = "running"

            def submit(self, function, *given, **options):
                return function(*given)

            def gather(self, futures, direct):
                return futures

        scheduler = Scheduler("tcp://127.0.0.1:1")
        monkeypatch.setattr(scheduler, "_connected", Client)
        monkeypatch.setattr(scheduler, "_await", lambda client, futures: None)
        with pytest.raises(SchedulerAway, match="ValueError") as away:
            scheduler.call(remote.answered(explode), [(np.zeros((1, 2)),)])
        assert SECRET not in str(away.value)

    def test_of_a_state_that_is_not_the_one_asked_about_is_one(self, share: Share) -> None:
        assert hold("a job", share._replace(digest="another")).failure == "NotTheSame"

    def test_of_a_worker_that_may_write_to_disk_is_one(self, share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        assert hold("a job", share).failure is not None  # not even a worker
        assert remote._kept == {}


class TestRecords:
    def test_are_loaded_once_for_a_job_and_dropped_with_it(self, share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
        assert hold("a job", share) == Reply(None)
        loads = []
        monkeypatch.setattr(record, "load", lambda *given, **more: loads.append(given))
        expected = remote._kept["a job", share].points
        for work in WORKS:
            assert_same(add_up("a job", share, work).value, work(expected))
        assert loads == []
        forget("another job")
        assert len(remote._kept) == 1
        forget("a job")
        assert remote._kept == {}

    def test_nobody_asks_for_any_more_are_dropped(self, share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
        hold("a job", share)
        remote._drop_old()
        assert len(remote._kept) == 1
        monkeypatch.setattr(remote, "KEPT_SECONDS", 0.0)
        remote._drop_old()
        assert remote._kept == {}

    def test_are_in_no_argument(self, share: Share) -> None:
        add_up("a job", share, number_of)
        points = remote._kept["a job", share].points
        for work in WORKS:
            sent = pickle.dumps(("a job", share, work))
            assert len(sent) < 2000 < points.nbytes
