"""Group commit: what gathers, what is stored before the end, what nobody waits for."""

import asyncio
import threading
from typing import Any

import pytest

from models import report
from models import round as rounds
from models.db import Database
from models.doorbell import PollingDoorbell
from service.problems import Unavailable
from service.reports import Packed
from service.writer import ReportWriter
from tests.service.api import Api, packed


class _Slow:
    """A database whose transactions wait to be let go."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.let_go = threading.Event()
        self.began = threading.Semaphore(0)
        self.n_transactions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def run_in(self, *given: Any) -> Any:
        self.n_transactions += 1
        self.began.release()
        assert self.let_go.wait(120)
        return self._database.run_in(*given)


class TestTheWriter:
    @pytest.fixture
    def slow(self, database: Database) -> _Slow:
        return _Slow(database)

    def test_gathers_what_comes_during_a_commit_into_the_next(self, api: Api, slow: _Slow) -> None:
        opened = api.round(api.dataset()["id"])
        writer = ReportWriter(slow, PollingDoorbell(1))  # type: ignore[arg-type]
        writer.start()

        async def send() -> None:
            first = asyncio.create_task(writer.store(opened["id"], Packed(1, packed(1))))
            await asyncio.to_thread(slow.began.acquire)
            more = [asyncio.create_task(writer.store(opened["id"], Packed(1, packed(1)))) for _ in range(50)]
            await asyncio.sleep(0.05)
            assert not first.done()
            slow.let_go.set()
            await asyncio.gather(first, *more)

        asyncio.run(send())
        writer.stop()
        assert slow.n_transactions == 2
        assert api.n_received(opened["id"]) == 51

    def test_stores_what_waits_before_it_ends(self, api: Api, slow: _Slow) -> None:
        opened = api.round(api.dataset()["id"])
        writer = ReportWriter(slow, PollingDoorbell(1))  # type: ignore[arg-type]
        writer.start()

        async def send() -> None:
            tasks = [asyncio.create_task(writer.store(opened["id"], Packed(1, packed(1)))) for _ in range(9)]
            await asyncio.to_thread(slow.began.acquire)
            ending = asyncio.create_task(asyncio.to_thread(writer.stop))
            while not writer._is_ending:
                await asyncio.sleep(0.01)
            with pytest.raises(Unavailable):
                await writer.store(opened["id"], Packed(1, packed(1)))
            slow.let_go.set()
            await asyncio.gather(*tasks, ending)

        asyncio.run(send())
        assert api.n_received(opened["id"]) == 9

    def test_goes_on_after_those_who_waited_have_left(self, api: Api, slow: _Slow) -> None:
        opened = api.round(api.dataset()["id"])
        writer = ReportWriter(slow, PollingDoorbell(1))  # type: ignore[arg-type]
        writer.start()

        async def leave() -> None:
            task = asyncio.create_task(writer.store(opened["id"], Packed(1, packed(1))))
            await asyncio.to_thread(slow.began.acquire)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(leave())  # the loop is closed when the commit ends
        slow.let_go.set()
        asyncio.run(writer.store(opened["id"], Packed(1, packed(1))))
        writer.stop()
        assert api.n_received(opened["id"]) == 2

    def test_puts_no_more_into_a_commit_than_a_worker_reads_well(
        self, api: Api, slow: _Slow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("service.writer.GROUP_BYTES", 100)
        opened = api.round(api.dataset()["id"])
        writer = ReportWriter(slow, PollingDoorbell(1))  # type: ignore[arg-type]

        async def send() -> None:
            writer.start()
            tasks = [asyncio.create_task(writer.store(opened["id"], Packed(2, packed(2)))) for _ in range(10)]
            slow.let_go.set()
            await asyncio.gather(*tasks)

        asyncio.run(send())
        writer.stop()
        assert slow.n_transactions >= 4  # three requests of 42 bytes each
        assert api.n_received(opened["id"]) == 20

    def test_gives_large_requests_a_row_each(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("service.writer.APART_BYTES", 60)
        opened = api.round(api.dataset()["id"])
        writer = ReportWriter(database, PollingDoorbell(1))

        async def send() -> None:
            writer.start()
            sizes = (1, 3, 2, 4)
            await asyncio.gather(*(writer.store(opened["id"], Packed(n, packed(n))) for n in sizes))

        asyncio.run(send())
        writer.stop()
        assert api.n_received(opened["id"]) == 10
        with database.reading() as session:
            rows = [len(row) // 21 for _, row in report.batches(session, opened["id"])]
        assert rows == [3, 3, 4]  # the small ones together

    def test_locks_rounds_in_one_order(self, api: Api, slow: _Slow, monkeypatch: pytest.MonkeyPatch) -> None:
        made = api.dataset(epsilon=32)
        ids = [api.round(made["id"])["id"] for _ in range(5)]
        asked: list[str] = []
        real = rounds.receive

        def receive(session: Any, round_id: str, *rest: Any, **more: Any) -> Any:
            asked.append(round_id)
            return real(session, round_id, *rest, **more)

        monkeypatch.setattr("models.round.receive", receive)
        writer = ReportWriter(slow, PollingDoorbell(1))  # type: ignore[arg-type]

        async def send() -> None:
            first = asyncio.create_task(writer.store(ids[0], Packed(1, packed(1))))
            await asyncio.to_thread(slow.began.acquire)
            tasks = [asyncio.create_task(writer.store(each, Packed(1, packed(1)))) for each in reversed(ids)]
            await asyncio.sleep(0.05)
            slow.let_go.set()
            await asyncio.gather(first, *tasks)

        writer.start()
        asyncio.run(send())
        writer.stop()
        assert asked == [ids[0], *sorted(ids)]

    def test_gathers_what_comes_in_one_turn_of_the_loop_into_one_commit(self, api: Api, database: Database) -> None:
        opened = api.round(api.dataset()["id"])
        counted = _Slow(database)
        counted.let_go.set()
        writer = ReportWriter(counted, PollingDoorbell(1))  # type: ignore[arg-type]
        writer.start()

        async def send() -> None:
            await asyncio.gather(*[writer.store(opened["id"], Packed(1, packed(1))) for _ in range(40)])
            await writer.store(opened["id"], Packed(1, packed(1)))

        for _ in range(2):  # in a loop of its own, twice
            asyncio.run(send())
        writer.stop()
        assert counted.n_transactions == 4
        assert api.n_received(opened["id"]) == 82

    def test_a_stream_without_end_does_not_hold_a_group_back(self, api: Api, database: Database) -> None:
        opened = api.round(api.dataset()["id"], target_reports=10**6)
        writer = ReportWriter(database, PollingDoorbell(1))
        writer.start()

        async def send() -> None:
            first = asyncio.create_task(writer.store(opened["id"], Packed(1, packed(1))))
            others: list[asyncio.Task[None]] = []
            while not first.done():  # one more in every turn
                others.append(asyncio.create_task(writer.store(opened["id"], Packed(1, packed(1)))))
                await asyncio.sleep(0)
                assert len(others) < 1_000_000
            await asyncio.gather(*others)

        asyncio.run(send())
        writer.stop()
