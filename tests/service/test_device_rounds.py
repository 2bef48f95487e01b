"""What devices are shown is held for a second, dropped when it changes, and shown to nobody else."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from models import server_clock
from models.db import Database
from models.round import Round
from service import device_rounds
from service.device_rounds import Answer, DeviceRounds
from service.notices import Notices
from tests.service.api import Api, refused, unknown


@pytest.fixture
def statements(database: Database) -> Iterator[list[str]]:
    """What is read of rounds meanwhile."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "FROM rounds" in statement:
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    yield seen
    event.remove(database.engine, "before_cursor_execute", note)


@pytest.fixture
def held_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that end with a change alone."""
    monkeypatch.setattr(device_rounds, "HOLD_SECONDS", 600.0)


def shown(api: Api, dataset_id: str) -> list[str]:
    answer = api.get(f"/datasets/{dataset_id}/round")
    assert answer.status_code == 200
    return [each["id"] for each in answer.json()["rounds"]]


class TestHeld:
    def test_is_read_once_for_all_devices(self, api: Api, statements: list[str], held_long: None) -> None:
        made = api.dataset()
        opened = api.round(made["id"])
        path = f"/datasets/{made['id']}/round"
        first = api.get(path)
        statements.clear()
        devices = [api.key("device"), api.key("jobs"), api.key("device", dataset_id=made["id"])]
        for device in devices:
            again = device.get(path)
            assert (again.status_code, again.content) == (200, first.content)
            names = ("etag", "cache-control", "content-type", "content-length")
            assert [again.headers[name] for name in names] == [first.headers[name] for name in names]
            named = device.get(path, headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
            assert (named.status_code, named.content, named.headers["etag"]) == (304, b"", first.headers["etag"])
        assert statements == []
        assert shown(api, made["id"]) == [opened["id"]]

    def test_ends_after_a_second(self, api: Api, statements: list[str]) -> None:
        assert device_rounds.HOLD_SECONDS == 1.0
        made = api.dataset()
        opened = api.round(made["id"])
        shown(api, made["id"])
        with api.database.transaction() as session:  # by another process that tells nobody
            session.get_one(Round, opened["id"]).state = "closed"
        time.sleep(1.0)
        assert shown(api, made["id"]) == []
        refused(api.report(opened["id"]), 409, "round_closed")

    def test_ends_with_the_first_rounds_own_time(self, api: Api, held_long: None) -> None:
        made = api.dataset()
        opened = [api.round(made["id"], collect_seconds=seconds)["id"] for seconds in (3600, 2)]
        assert set(shown(api, made["id"])) <= set(opened)
        time.sleep(2.0)
        time.sleep(server_clock.SLOW_SECONDS / 2)  # so far off a reading of the database's clock may be
        assert shown(api, made["id"]) == opened[:1]

    def test_ends_with_every_change(self, api: Api, held_long: None) -> None:
        made = api.dataset()
        assert shown(api, made["id"]) == []
        first = api.round(made["id"])["id"]
        assert shown(api, made["id"]) == [first]
        second = api.round(made["id"], target_reports=1)["id"]
        assert shown(api, made["id"]) == [first, second]
        assert api.report(second).status_code == 202  # it is full
        assert shown(api, made["id"]) == [first]
        api.made(f"/rounds/{first}/close", None)
        assert shown(api, made["id"]) == []
        assert int(api.get(f"/datasets/{made['id']}/round").headers["retry-after"]) > 0
        api.request("DELETE", f"/datasets/{made['id']}")
        refused(api.get(f"/datasets/{made['id']}/round"), 404, "not_found")

    def test_by_another_gateway_ends_as_it_is_told(
        self, over: Callable[..., Api], database: Database, redis_url: str, held_long: None
    ) -> None:
        first, second = (over(database, redis_url=redis_url) for _ in range(2))
        there = Api(second.http, first.database, first.secret)
        made = first.dataset()
        opened = first.round(made["id"])["id"]
        assert shown(there, made["id"]) == [opened]
        first.made(f"/rounds/{opened}/close", None)
        deadline = time.monotonic() + 60
        while shown(there, made["id"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)


class TestWhoSeesIt:
    def test_is_whoever_may_and_nobody_else_though_it_is_held(self, api: Api, other: Api, held_long: None) -> None:
        made, elsewhere = api.dataset(), api.dataset()
        api.round(made["id"])
        path = f"/datasets/{made['id']}/round"
        tag = api.get(path).headers["etag"]
        for stranger in (other, other.key("device"), api.key("device", dataset_id=elsewhere["id"])):
            for headers in ({}, {"If-None-Match": tag}, {"If-None-Match": "*"}):
                problem = refused(stranger.get(path, headers=headers), 404, "not_found")
                assert (
                    problem["detail"]
                    == refused(stranger.get(f"/datasets/{unknown('ds')}/round"), 404, "not_found")["detail"]
                )
            assert api.get(path).status_code == 200
        refused(api.key("ledger").get(path), 403, "forbidden")
        refused(Api(api.http, api.database, "sfk_" + "0" * 64).get(path), 401, "unauthenticated")

    def test_is_nobody_by_another_method(self, api: Api, held_long: None) -> None:
        made = api.dataset()
        shown(api, made["id"])
        assert api.post(f"/datasets/{made['id']}/round", {}).status_code == 405
        for path in ("/datasets//round", "/datasets/ds_1/round", f"/datasets/{made['id']}x/round"):
            refused(api.get(path), 404, "not_found")


class TestALook:
    def run(self, database: Database, test: Callable[[DeviceRounds], Any]) -> None:
        async def within() -> None:
            notices = Notices(None)
            notices.start()
            await test(DeviceRounds(database, notices))

        asyncio.run(within())

    def test_is_one_for_all_who_wait_and_its_failure_is_not_held(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = api.dataset()
        caller = _caller(api)
        real, looks = DeviceRounds._read, []

        def read(self: DeviceRounds, dataset_id: str) -> Answer:
            looks.append(dataset_id)
            if len(looks) == 1:
                raise RuntimeError
            return real(self, dataset_id)

        monkeypatch.setattr(DeviceRounds, "_read", read)

        async def test(rounds: DeviceRounds) -> None:
            for expected in (RuntimeError, Answer, Answer):
                asked = (rounds.answer(caller, made["id"]) for _ in range(100))
                assert {type(each) for each in await asyncio.gather(*asked, return_exceptions=True)} == {expected}
            assert len(looks) == 2

        self.run(database, test)

    def test_that_was_overtaken_by_a_change_is_not_held(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, held_long: None
    ) -> None:
        """It read, the round was closed, it came back: what it saw was so before the close."""
        made = api.dataset()
        caller = _caller(api)
        real = DeviceRounds._read
        read, go_on = threading.Event(), threading.Event()

        def slow(self: DeviceRounds, dataset_id: str) -> Answer:
            answer = real(self, dataset_id)
            read.set()
            assert go_on.wait(60)
            return answer

        monkeypatch.setattr(DeviceRounds, "_read", slow)

        async def test(rounds: DeviceRounds) -> None:
            early = asyncio.ensure_future(rounds.answer(caller, made["id"]))
            await asyncio.to_thread(read.wait, 60)
            opened = (await asyncio.to_thread(api.round, made["id"]))["id"]
            rounds.drop(made["id"])
            go_on.set()
            late = await rounds.answer(caller, made["id"])
            assert opened not in (await early).body.decode()
            assert opened in late.body.decode()
            assert rounds.held(caller, made["id"]) is late

        self.run(database, test)

    def test_counts_from_before_it_began(self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        made = api.dataset()
        caller = _caller(api)
        real = DeviceRounds._read

        def slow(self: DeviceRounds, dataset_id: str) -> Answer:
            answer = real(self, dataset_id)
            time.sleep(1.1)
            return answer

        monkeypatch.setattr(DeviceRounds, "_read", slow)

        async def test(rounds: DeviceRounds) -> None:
            await rounds.answer(caller, made["id"])
            assert rounds.held(caller, made["id"]) is None

        self.run(database, test)

    def test_of_many_datasets_takes_no_more_memory_than_it_may(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, held_long: None
    ) -> None:
        listed = [api.dataset()["id"] for _ in range(6)]
        caller = _caller(api)
        monkeypatch.setattr(device_rounds, "MAX_HELD_BYTES", 3 * (1024 + len(b'{"rounds":[]}')))

        async def test(rounds: DeviceRounds) -> None:
            for each in [*listed, *listed[:2], listed[1]]:
                await rounds.answer(caller, each)
            assert [rounds.held(caller, each) is not None for each in listed] == [True] * 2 + [False] * 3 + [True]
            for each in listed:
                rounds.drop(each)
            assert rounds._n_bytes == 0

        self.run(database, test)


def _caller(api: Api) -> Any:
    from models import tenant

    with api.database.reading() as session:
        return tenant.authenticate(session, tenant.hash_secret(api.secret), now=api.database.clock())
