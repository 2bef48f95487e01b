"""Open rounds are cached for a second, dropped on changes, and visible only to keys with access."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from models.database import types
from models.database.engine import Database
from models.tables.rounds import Round
from service.ingestion import open_rounds
from service.ingestion.open_rounds import CachedRounds, OpenRoundsCache
from service.live.change_feed import ChangeFeed
from tests.service.api import SQLITE_ONLY, Api, refused, unknown
from tests.service.processes import until


@pytest.fixture
def statements(database: Database) -> Iterator[list[str]]:
    """Record the queries of rounds."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "FROM rounds" in statement:
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    yield seen
    event.remove(database.engine, "before_cursor_execute", note)


@pytest.fixture
def long_cache_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the cache time, so that only a change drops a response."""
    monkeypatch.setattr(open_rounds, "CACHE_SECONDS", 600.0)


def shown(api: Api, dataset_id: str) -> list[str]:
    answer = api.get(f"/datasets/{dataset_id}/round")
    assert answer.status_code == 200
    return [each["id"] for each in answer.json()["rounds"]]


class TestRetention:
    @SQLITE_ONLY
    def test_is_stated_to_devices_as_fixed_when_the_round_opened(self, api: Api) -> None:
        dataset_id = api.dataset(keep_reports=False)["id"]
        stated = [api.round(dataset_id)["keep_reports"]]
        for keep in (True, False):
            api.patch(f"/datasets/{dataset_id}", {"keep_reports": keep})
            stated.append(api.round(dataset_id)["keep_reports"])
        shown_to_devices = api.key("device").get(f"/datasets/{dataset_id}/round").json()["rounds"]
        assert [each["keep_reports"] for each in shown_to_devices] == stated == [False, True, False]


class TestCache:
    def test_reads_once_for_all_devices(self, api: Api, statements: list[str], long_cache_time: None) -> None:
        opened = api.round(api.dataset()["id"])
        dataset_id = opened["dataset_id"]
        path = f"/datasets/{dataset_id}/round"
        first = api.get(path)
        statements.clear()
        for device in (api.key("device"), api.key("jobs"), api.key("device", dataset_id=dataset_id)):
            again = device.get(path)
            assert (again.status_code, again.content) == (200, first.content)
            names = ("etag", "cache-control", "content-type", "content-length")
            assert [again.headers[name] for name in names] == [first.headers[name] for name in names]
            named = device.get(path, headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
            assert (named.status_code, named.content, named.headers["etag"]) == (304, b"", first.headers["etag"])
        assert statements == []
        assert shown(api, dataset_id) == [opened["id"]]

    @SQLITE_ONLY
    def test_expires_after_a_second(self, api: Api) -> None:
        assert open_rounds.CACHE_SECONDS == 1.0
        opened = api.round(api.dataset()["id"])
        shown(api, opened["dataset_id"])
        with api.database.transaction() as session:  # a process that publishes no change
            session.get_one(Round, opened["id"]).state = "closed"
        time.sleep(1.0)
        assert shown(api, opened["dataset_id"]) == []
        refused(api.report(opened["id"]), 409, "round_closed")

    def test_expires_when_the_first_round_closes_by_time(self, api: Api, long_cache_time: None) -> None:
        made = api.dataset()
        opened = [api.round(made["id"], collect_seconds=seconds)["id"] for seconds in (3600, 2)]
        assert set(shown(api, made["id"])) <= set(opened)
        time.sleep(2.0)
        time.sleep(types.SLOW_SECONDS / 2)  # possible error of the database's clock
        assert shown(api, made["id"]) == opened[:1]

    def test_is_dropped_on_every_change(self, api: Api, long_cache_time: None) -> None:
        dataset_id = api.dataset()["id"]
        assert shown(api, dataset_id) == []
        first = api.round(dataset_id)["id"]
        assert shown(api, dataset_id) == [first]
        second = api.round(dataset_id, target_reports=1)["id"]
        assert shown(api, dataset_id) == [first, second]
        assert api.report(second).status_code == 202  # fills the round
        assert shown(api, dataset_id) == [first]
        api.made(f"/rounds/{first}/close?allow_empty=true", None)
        assert shown(api, dataset_id) == []
        api.delete(f"/datasets/{dataset_id}")
        refused(api.get(f"/datasets/{dataset_id}/round"), 404, "not_found")

    @SQLITE_ONLY
    def test_is_dropped_on_a_change_by_another_gateway(
        self, over: Callable[..., Api], database: Database, redis_url: str, long_cache_time: None
    ) -> None:
        first, second = (over(database, redis_url=redis_url) for _ in range(2))
        there = Api(second.http, first.database, first.secret)
        opened = first.round(first.dataset()["id"])
        assert shown(there, opened["dataset_id"]) == [opened["id"]]
        first.made(f"/rounds/{opened['id']}/close?allow_empty=true", None)
        until(lambda: not shown(there, opened["dataset_id"]))


@SQLITE_ONLY
class TestAccess:
    def test_to_cached_rounds_is_checked_at_each_request(self, api: Api, other: Api, long_cache_time: None) -> None:
        path = f"/datasets/{api.round(api.dataset()['id'])['dataset_id']}/round"
        tag = api.get(path).headers["etag"]
        missing = refused(other.get(f"/datasets/{unknown('ds')}/round"), 404, "not_found")
        for stranger in (other, other.key("device"), api.key("device", dataset_id=api.dataset()["id"])):
            for headers in ({}, {"If-None-Match": tag}, {"If-None-Match": "*"}):
                problem = refused(stranger.get(path, headers=headers), 404, "not_found")
                assert problem["detail"] == missing["detail"]
            assert api.get(path).status_code == 200
        refused(api.key("ledger").get(path), 403, "forbidden")
        refused(Api(api.http, api.database, "sfk_" + "0" * 64).get(path), 401, "unauthenticated")

    def test_other_methods_and_paths_do_not_use_the_cache(self, api: Api, long_cache_time: None) -> None:
        dataset_id = api.dataset()["id"]
        shown(api, dataset_id)
        assert api.post(f"/datasets/{dataset_id}/round", {}).status_code == 405
        for path in ("/datasets//round", "/datasets/ds_1/round", f"/datasets/{dataset_id}x/round"):
            refused(api.get(path), 404, "not_found")


def run(database: Database, test: Callable[[OpenRoundsCache], Any]) -> None:
    """Run a test with a cache and its change feed."""

    async def run_with_cache() -> None:
        change_feed = ChangeFeed(None)
        change_feed.start()
        await test(OpenRoundsCache(database, change_feed))

    asyncio.run(run_with_cache())


@SQLITE_ONLY
class TestQuery:
    def test_is_shared_and_its_failure_is_not_cached(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset_id, caller = api.dataset()["id"], api.caller()
        real, reads = OpenRoundsCache._read, []

        def read(self: OpenRoundsCache, dataset_id: str) -> CachedRounds:
            reads.append(dataset_id)
            if len(reads) == 1:
                raise RuntimeError
            return real(self, dataset_id)

        monkeypatch.setattr(OpenRoundsCache, "_read", read)

        async def test(rounds: OpenRoundsCache) -> None:
            for expected in (RuntimeError, CachedRounds, CachedRounds):
                calls = (rounds.get(caller, dataset_id) for _ in range(100))
                assert {type(each) for each in await asyncio.gather(*calls, return_exceptions=True)} == {expected}
            assert len(reads) == 2

        run(database, test)

    def test_that_is_older_than_a_change_is_not_cached(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, long_cache_time: None
    ) -> None:
        """The query read the round, the round was closed, then the query returned: its result is outdated."""
        dataset_id, caller = api.dataset()["id"], api.caller()
        real = OpenRoundsCache._read
        has_read, may_return = threading.Event(), threading.Event()

        def read(self: OpenRoundsCache, dataset_id: str) -> CachedRounds:
            cached = real(self, dataset_id)
            has_read.set()
            assert may_return.wait(60)
            return cached

        monkeypatch.setattr(OpenRoundsCache, "_read", read)

        async def test(rounds: OpenRoundsCache) -> None:
            early = asyncio.ensure_future(rounds.get(caller, dataset_id))
            await asyncio.to_thread(has_read.wait, 60)
            opened = (await asyncio.to_thread(api.round, dataset_id))["id"]
            rounds.drop(dataset_id)
            may_return.set()
            late = await rounds.get(caller, dataset_id)
            assert opened not in (await early).body.decode()
            assert opened in late.body.decode()
            assert rounds.cached(caller, dataset_id) is late

        run(database, test)

    def test_cache_time_counts_from_its_start(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset_id, caller = api.dataset()["id"], api.caller()
        real = OpenRoundsCache._read
        monkeypatch.setattr(open_rounds, "CACHE_SECONDS", 0.1)
        monkeypatch.setattr(OpenRoundsCache, "_read", lambda self, of: (real(self, of), time.sleep(0.15))[0])

        async def test(rounds: OpenRoundsCache) -> None:
            await rounds.get(caller, dataset_id)
            assert rounds.cached(caller, dataset_id) is None

        run(database, test)

    def test_results_of_many_datasets_stay_within_the_memory_limit(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, long_cache_time: None
    ) -> None:
        ids, caller = [api.dataset()["id"] for _ in range(6)], api.caller()
        monkeypatch.setattr(open_rounds, "MAX_CACHED_BYTES", 3 * (1024 + len(b'{"rounds":[]}')))

        async def test(rounds: OpenRoundsCache) -> None:
            for each in [*ids, *ids[:2], ids[1]]:
                await rounds.get(caller, each)
            assert [rounds.cached(caller, each) is not None for each in ids] == [True] * 2 + [False] * 3 + [True]
            for each in ids:
                rounds.drop(each)
            assert rounds._n_bytes == 0

        run(database, test)
