"""What changed reaches every gateway that has somebody waiting for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
import redis
from structlog.testing import capture_logs

from models import bulletin
from models.bulletin import RedisBulletin, SilentBulletin, open_bulletin
from service import notices
from service.notices import Notices
from tests.servers import RedisServer

PATIENCE_SECONDS = 60  # for what must come


async def come(condition: Callable[[], object]) -> None:
    """Wait for what must come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.005)


def run(test: Callable[..., Awaitable[None]], *urls: str | None) -> None:
    """A test among gateways' notices, one for each URL, each with what it heard."""

    async def among() -> None:
        gateways = [Notices(url) for url in urls]
        heard: list[list[str]] = [[] for _ in urls]
        for gateway, told in zip(gateways, heard, strict=True):
            gateway.listen(told.append)
            gateway.start()
        try:
            for gateway, url in zip(gateways, urls, strict=True):
                if url is not None:
                    await come(lambda gateway=gateway: gateway.is_subscribed)  # type: ignore[misc]
            await test(*gateways, *heard)
        finally:
            for gateway in gateways:
                await gateway.stop()

    asyncio.run(among())


class TestTelling:
    def test_is_heard_here_and_by_the_others_once(self, redis_url: str) -> None:
        async def test(first: Notices, _other: Notices, here: list[str], there: list[str]) -> None:
            first.tell("job_1", "ds_1")
            await come(lambda: len(there) == 2)
            first.tell("job_2")
            await come(lambda: len(there) == 3)
            assert here == there == ["job_1", "ds_1", "job_2"]

        run(test, redis_url, redis_url)

    def test_by_a_worker_is_heard_by_every_gateway(self, redis_url: str) -> None:
        async def test(_first: Notices, _other: Notices, here: list[str], there: list[str]) -> None:
            open_bulletin(redis_url).tell("job_1", "ds_1")
            await come(lambda: len(here) == len(there) == 2)
            assert here == there == ["job_1", "ds_1"]

        run(test, redis_url, redis_url)

    def test_of_more_than_a_message_holds_takes_several(self, redis_url: str) -> None:
        async def test(first: Notices, _other: Notices, _here: list[str], there: list[str]) -> None:
            ids = [f"job_{i}" for i in range(3 * bulletin.MAX_IDS + 1)]
            first.tell(*ids)
            await come(lambda: len(there) == len(ids))
            assert there == ids

        run(test, redis_url, redis_url)

    def test_soon_is_once_for_all_that_is_told_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(notices, "SOON_SECONDS", 0.3)

        async def test(only: Notices, heard: list[str]) -> None:
            for _ in range(2):
                for _ in range(100):
                    only.tell_soon("job_1", "job_2")
                await asyncio.sleep(0)
                assert len(heard) % 2 == 0
                n_heard = len(heard)
                await come(lambda n_heard=n_heard: len(heard) > n_heard)  # type: ignore[misc]
            assert heard == ["job_1", "job_2"] * 2

        run(test, None)

    def test_without_redis_is_heard_here_alone_and_nobody_is_away(self) -> None:
        async def test(first: Notices, _other: Notices, here: list[str], there: list[str]) -> None:
            first.tell("job_1")
            await come(lambda: here)
            assert (here, there) == (["job_1"], [])
            assert not first.is_away
            assert not first.is_subscribed

        run(test, None, None)
        assert isinstance(open_bulletin(None), SilentBulletin)
        open_bulletin(None).tell("job_1")

    def test_before_the_start_and_after_the_end_is_told_nobody(self) -> None:
        only = Notices(None)
        heard: list[str] = []
        only.listen(heard.append)
        only.tell("job_1")

        async def live() -> None:
            only.start()
            await only.stop()

        asyncio.run(live())
        only.tell("job_2")
        only.tell_soon("job_3")
        assert heard == []

    @pytest.mark.parametrize("message", [b"", b" ", b"\xff\xfe", b"x", b"x  ", b"{}", b"a" * 100_000, b"x " * 5000])
    def test_of_what_is_no_id_does_no_harm(self, redis_url: str, message: bytes) -> None:
        async def test(_only: Notices, heard: list[str]) -> None:
            with redis.Redis.from_url(redis_url) as stranger:
                stranger.publish(bulletin.CHANNEL, message)
            RedisBulletin(redis_url).tell("job_1")
            await come(lambda: "job_1" in heard)

        run(test, redis_url)

    def test_says_ids_and_nothing_else(self, redis_url: str) -> None:
        with redis.Redis.from_url(redis_url) as client, client.pubsub() as ear:
            ear.subscribe(bulletin.CHANNEL)
            assert ear.get_message(timeout=PATIENCE_SECONDS)
            RedisBulletin(redis_url).tell("job_1", "ds_2")
            told = ear.get_message(timeout=PATIENCE_SECONDS)
            assert told is not None
            origin, *ids = told["data"].decode().split(" ")
            assert (len(origin), ids) == (8, ["job_1", "ds_2"])
            assert client.keys("*") == []


class TestRedisAway:
    def test_is_told_once_and_noticed_by_who_listens(self) -> None:
        server = RedisServer()
        server.start()
        changes: list[bool] = []

        async def test(only: Notices, heard: list[str]) -> None:
            only.listen(lambda _: None, lambda: changes.append(only.is_subscribed))
            server.process.kill()  # type: ignore[union-attr]
            await come(lambda: not only.is_subscribed)
            only.tell("job_1")
            await come(lambda: heard)
            await asyncio.sleep(0.5)
            assert changes == [False]
            assert only.is_away

        try:
            with capture_logs() as said:
                run(test, server.url())
        finally:
            server.stop()
        assert [each["event"] for each in said] == ["bulletin_away"]
        assert server.url().split("@")[0].rpartition(":")[2] not in repr(said)
