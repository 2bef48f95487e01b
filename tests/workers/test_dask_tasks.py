"""A Dask worker quotes no record in its errors and keeps records only as long as it may."""

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from clustering.central.queries import count_records
from models.database.engine import Database
from models.records import records
from runtime.settings import Settings
from tests.workers.archive import RECORDS_KEY, Archive
from tests.workers.spreading import WORKS, assert_same
from workers.distributed import dask_tasks
from workers.distributed.dask_client import Scheduler, SchedulerUnavailable
from workers.distributed.dask_tasks import RecordPart, TaskResult, forget_records, load_records, sum_records

SECRET = "the private value Zw9-4711"


@pytest.fixture
def database_kind() -> str:
    return "sqlite"


@pytest.fixture(autouse=True)
def _this_is_a_worker(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dask_tasks, "_check_no_spilling", lambda: None)
    monkeypatch.setattr(dask_tasks, "own_database", lambda: database)
    monkeypatch.setattr(dask_tasks, "settings", lambda: Settings(records_key=RECORDS_KEY))
    yield
    dask_tasks._cache.clear()


@pytest.fixture
def share(database: Database) -> RecordPart:
    """The second half of some records."""
    archive = Archive.create(database)
    archive.add(300, seed=1)
    with database.reading() as session:
        return RecordPart(archive.dataset_id, records.digest(session, archive.dataset_id), 1, 2)


def explode(points: np.ndarray) -> tuple[np.ndarray, ...]:
    raise ValueError(f"{SECRET} {points[0]}")


class TestAnError:
    def test_is_told_by_its_kind_alone(self, share: RecordPart) -> None:
        assert sum_records("a job", share, explode) == TaskResult(None, "ValueError")

    def test_of_a_task_is_the_schedulers_absence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Client:
            status = "running"

            def submit(self, function, *given, **options):
                return function(*given)

            def gather(self, futures, direct):
                return futures

        scheduler = Scheduler("tcp://127.0.0.1:1")
        monkeypatch.setattr(scheduler, "_connect", Client)
        monkeypatch.setattr(scheduler, "_wait", lambda client, futures: None)
        with pytest.raises(SchedulerUnavailable, match="ValueError") as away:
            scheduler.call(dask_tasks.dask_task(explode), [(np.zeros((1, 2)),)])
        assert SECRET not in str(away.value)

    def test_of_a_state_that_is_not_the_one_asked_about_is_one(self, share: RecordPart) -> None:
        assert load_records("a job", share._replace(digest="another")).failure == "DifferentDatabase"

    def test_of_a_worker_that_may_write_to_disk_is_one(
        self, share: RecordPart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        assert load_records("a job", share).failure is not None  # not even a worker
        assert dask_tasks._cache == {}


class TestRecords:
    def test_are_loaded_once_for_a_job_and_dropped_with_it(
        self, share: RecordPart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert load_records("a job", share) == TaskResult(None)
        loads = []
        monkeypatch.setattr(records, "load", lambda *given, **more: loads.append(given))
        expected = dask_tasks._cache["a job", share].points
        for work in WORKS:
            assert_same(sum_records("a job", share, work).value, work(expected))
        assert loads == []
        forget_records("another job")
        assert len(dask_tasks._cache) == 1
        forget_records("a job")
        assert dask_tasks._cache == {}

    def test_nobody_asks_for_any_more_are_dropped(self, share: RecordPart, monkeypatch: pytest.MonkeyPatch) -> None:
        load_records("a job", share)
        dask_tasks._drop_expired()
        assert len(dask_tasks._cache) == 1
        monkeypatch.setattr(dask_tasks, "KEPT_SECONDS", 0.0)
        dask_tasks._drop_expired()
        assert dask_tasks._cache == {}

    def test_are_in_no_argument(self, share: RecordPart) -> None:
        sum_records("a job", share, count_records)
        points = dask_tasks._cache["a job", share].points
        for work in WORKS:
            sent = pickle.dumps(("a job", share, work))
            assert len(sent) < 2000 < points.nbytes
