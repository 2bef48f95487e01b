"""Group commit of reports: batches, shutdown and abandoned requests."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from models.collection import report_intake, report_log
from models.database.engine import Database
from runtime.job_signal import PollingJobSignal
from service.http.problems import Unavailable
from service.ingestion.report_formats import PackedReports
from service.ingestion.report_writer import ReportWriter
from tests.service.api import SQLITE_ONLY, Api, packed


class SlowDatabase:
    """A database that blocks transactions until the test releases them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.release = threading.Event()
        self.started = threading.Semaphore(0)
        self.n_transactions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def run_in(self, *given: Any) -> Any:
        self.n_transactions += 1
        self.started.release()
        assert self.release.wait(120)
        return self._database.run_in(*given)


@pytest.fixture
def slow(database: Database) -> SlowDatabase:
    return SlowDatabase(database)


@contextmanager
def running(database: object) -> Iterator[ReportWriter]:
    """Run a writer and stop it at the end."""
    writer = ReportWriter(database, PollingJobSignal(1))  # type: ignore[arg-type]
    writer.start()
    yield writer
    writer.stop()


def store(writer: ReportWriter, round_id: str, n_reports: int = 1) -> "asyncio.Task[None]":
    """Start to store new reports."""
    return asyncio.create_task(writer.store(round_id, PackedReports(n_reports, packed(n_reports))))


@SQLITE_ONLY
class TestReportWriter:
    def test_commits_reports_that_arrive_during_a_commit_together(self, api: Api, slow: SlowDatabase) -> None:
        round_id = api.round(api.dataset()["id"])["id"]

        async def send() -> None:
            first = store(writer, round_id)
            await asyncio.to_thread(slow.started.acquire)
            more = [store(writer, round_id) for _ in range(50)]
            await asyncio.sleep(0.05)
            assert not first.done()
            slow.release.set()
            await asyncio.gather(first, *more)

        with running(slow) as writer:
            asyncio.run(send())
        assert slow.n_transactions == 2
        assert api.n_received(round_id) == 51

    def test_stores_queued_reports_before_it_stops(self, api: Api, slow: SlowDatabase) -> None:
        round_id = api.round(api.dataset()["id"])["id"]

        async def send() -> None:
            tasks = [store(writer, round_id) for _ in range(9)]
            await asyncio.to_thread(slow.started.acquire)
            stopping = asyncio.create_task(asyncio.to_thread(writer.stop))
            while not writer._is_stopping:
                await asyncio.sleep(0.01)
            with pytest.raises(Unavailable):
                await store(writer, round_id)
            slow.release.set()
            await asyncio.gather(*tasks, stopping)

        with running(slow) as writer:
            asyncio.run(send())
        assert api.n_received(round_id) == 9

    def test_continues_after_the_event_loop_of_a_request_has_ended(self, api: Api, slow: SlowDatabase) -> None:
        round_id = api.round(api.dataset()["id"])["id"]

        with running(slow) as writer:
            loop = asyncio.new_event_loop()
            task = loop.create_task(writer.store(round_id, PackedReports(1, packed(1))))
            loop.run_until_complete(asyncio.to_thread(slow.started.acquire))
            loop.run_until_complete(loop.shutdown_default_executor())
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.close()  # before the commit ends
            slow.release.set()
            asyncio.run(writer.store(round_id, PackedReports(1, packed(1))))
        assert api.n_received(round_id) == 2

    def test_stores_reports_of_a_cancelled_request_and_of_the_others(self, api: Api, slow: SlowDatabase) -> None:
        round_id = api.round(api.dataset()["id"])["id"]

        async def send() -> None:
            tasks = [store(writer, round_id) for _ in range(3)]
            await asyncio.to_thread(slow.started.acquire)
            tasks[0].cancel()
            slow.release.set()
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in errors] == [asyncio.CancelledError, type(None), type(None)]

        with running(slow) as writer:
            asyncio.run(send())
        assert api.n_received(round_id) == 3

    def test_limits_the_bytes_of_a_commit(self, api: Api, slow: SlowDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.ingestion.report_writer.GROUP_BYTES", 100)
        round_id = api.round(api.dataset()["id"])["id"]

        async def send() -> None:
            tasks = [store(writer, round_id, 2) for _ in range(10)]
            slow.release.set()
            await asyncio.gather(*tasks)

        with running(slow) as writer:
            asyncio.run(send())
        assert slow.n_transactions >= 4  # three requests of 42 bytes per commit
        assert api.n_received(round_id) == 20

    def test_stores_large_requests_in_rows_of_their_own(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("service.ingestion.report_writer.APART_BYTES", 60)
        round_id = api.round(api.dataset()["id"])["id"]

        async def send() -> None:
            await asyncio.gather(*(store(writer, round_id, n) for n in (1, 3, 2, 4)))

        with running(database) as writer:
            asyncio.run(send())
        assert api.n_received(round_id) == 10
        with database.reading() as session:
            rows = [len(row) // 21 for _, row in report_log.batches(session, round_id)]
        assert rows == [3, 3, 4]  # the small requests share a row

    def test_locks_rounds_in_the_same_order(
        self, api: Api, slow: SlowDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset_id = api.dataset(epsilon=32)["id"]
        ids = [api.round(dataset_id)["id"] for _ in range(5)]
        received: list[str] = []
        real = report_intake.receive

        def receive(session: Any, round_id: str, *rest: Any, **more: Any) -> Any:
            received.append(round_id)
            return real(session, round_id, *rest, **more)

        monkeypatch.setattr("models.collection.report_intake.receive", receive)

        async def send() -> None:
            first = store(writer, ids[0])
            await asyncio.to_thread(slow.started.acquire)
            tasks = [store(writer, each) for each in reversed(ids)]
            await asyncio.sleep(0.05)
            slow.release.set()
            await asyncio.gather(first, *tasks)

        with running(slow) as writer:
            asyncio.run(send())
        assert received == [ids[0], *sorted(ids)]

    def test_commits_reports_of_one_event_loop_iteration_together(self, api: Api, slow: SlowDatabase) -> None:
        round_id = api.round(api.dataset()["id"])["id"]
        slow.release.set()

        async def send() -> None:
            await asyncio.gather(*(store(writer, round_id) for _ in range(40)))
            await store(writer, round_id)

        with running(slow) as writer:
            for _ in range(2):  # each in a new event loop
                asyncio.run(send())
        assert slow.n_transactions == 4
        assert api.n_received(round_id) == 82

    def test_closes_a_batch_under_a_constant_stream(self, api: Api, database: Database) -> None:
        round_id = api.round(api.dataset()["id"], target_reports=10**6)["id"]

        async def send() -> None:
            first, others = store(writer, round_id), []
            while not first.done():  # one more per iteration
                others.append(store(writer, round_id))
                await asyncio.sleep(0)
                assert len(others) < 1_000_000
            await asyncio.gather(*others)

        with running(database) as writer:
            asyncio.run(send())
