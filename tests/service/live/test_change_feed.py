"""Notifications of changes reach the listeners of all gateways."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
import redis
from structlog.testing import capture_logs

from runtime import change_publisher
from runtime.change_publisher import NullPublisher, RedisPublisher, open_change_publisher
from service.live import change_feed
from service.live.change_feed import ChangeFeed
from tests.servers import RedisServer

TIMEOUT_SECONDS = 60  # longest wait for expected events


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        await asyncio.sleep(0.005)


def run(test: Callable[..., Awaitable[None]], *urls: str | None) -> None:
    """Run a test with one change feed per URL and the list of ids that each receives."""

    async def run_with_feeds() -> None:
        feeds = [ChangeFeed(url) for url in urls]
        received: list[list[str]] = [[] for _ in urls]
        for feed, ids in zip(feeds, received, strict=True):
            feed.add_listener(ids.append)
            feed.start()
        try:
            for feed, url in zip(feeds, urls, strict=True):
                if url is not None:
                    await until(lambda feed=feed: feed.is_subscribed)  # type: ignore[misc]
            await test(*feeds, *received)
        finally:
            for feed in feeds:
                await feed.stop()

    asyncio.run(run_with_feeds())


class TestPublish:
    def test_reaches_every_gateway_once(self, redis_url: str) -> None:
        many = [f"job_{i}" for i in range(3 * change_publisher.MAX_IDS_PER_MESSAGE + 1)]  # several messages
        batches = (["job_1", "ds_1"], ["job_2"], many)

        async def test(first: ChangeFeed, _other: ChangeFeed, own: list[str], remote: list[str]) -> None:
            for publish in (first.publish, open_change_publisher(redis_url).publish):  # a gateway and a worker
                for ids in batches:
                    publish(*ids)
                    await until(lambda ids=ids: len(own) == len(remote) == len(ids))  # type: ignore[misc]
                    assert own == remote == ids
                    own.clear()
                    remote.clear()

        run(test, redis_url, redis_url)

    def test_debounced_notifies_once_per_interval(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(change_feed, "DEBOUNCE_SECONDS", 0.1)

        async def test(feed: ChangeFeed, received: list[str]) -> None:
            for _ in range(2):
                for _ in range(100):
                    feed.publish_debounced("job_1", "job_2")
                await asyncio.sleep(0)
                assert len(received) % 2 == 0
                n_received = len(received)
                await until(lambda n_received=n_received: len(received) > n_received)  # type: ignore[misc]
            assert received == ["job_1", "job_2"] * 2

        run(test, None)

    def test_without_redis_reaches_only_its_own_process(self) -> None:
        async def test(first: ChangeFeed, _other: ChangeFeed, own: list[str], remote: list[str]) -> None:
            first.publish("job_1")
            await until(lambda: own)
            assert (own, remote) == (["job_1"], [])
            assert first.is_available
            assert not first.is_subscribed

        run(test, None, None)
        assert isinstance(open_change_publisher(None), NullPublisher)
        open_change_publisher(None).publish("job_1")

    def test_does_nothing_before_the_start_and_after_the_stop(self) -> None:
        feed = ChangeFeed(None)
        received: list[str] = []
        feed.add_listener(received.append)
        feed.publish("job_1")

        async def start_and_stop() -> None:
            feed.start()
            await feed.stop()

        asyncio.run(start_and_stop())
        feed.publish("job_2")
        feed.publish_debounced("job_3")
        assert received == []

    def test_continues_after_an_invalid_message(self, redis_url: str) -> None:
        async def test(_feed: ChangeFeed, received: list[str]) -> None:
            for message in (b"", b" ", b"\xff\xfe", b"x", b"x  ", b"{}", b"a" * 100_000, b"x " * 5000):
                with redis.Redis.from_url(redis_url) as stranger:
                    stranger.publish(change_publisher.CHANNEL, message)
                RedisPublisher(redis_url).publish("job_1")
                await until(lambda: "job_1" in received)
                received.clear()

        run(test, redis_url)

    def test_sends_only_ids(self, redis_url: str) -> None:
        with redis.Redis.from_url(redis_url) as client, client.pubsub() as subscriber:
            subscriber.subscribe(change_publisher.CHANNEL)
            assert subscriber.get_message(timeout=TIMEOUT_SECONDS)
            RedisPublisher(redis_url).publish("job_1", "ds_2")
            message = subscriber.get_message(timeout=TIMEOUT_SECONDS)
            assert message is not None
            publisher_id, *ids = message["data"].decode().split(" ")
            assert (len(publisher_id), ids) == (8, ["job_1", "ds_2"])
            assert client.keys("*") == []


def test_a_failure_of_redis_is_logged_once_and_notifies_the_listeners() -> None:
    server = RedisServer()
    server.start()
    changes: list[bool] = []

    async def test(feed: ChangeFeed, received: list[str]) -> None:
        feed.add_listener(lambda _: None, lambda: changes.append(feed.is_subscribed))
        server.process.kill()  # type: ignore[union-attr]
        await until(lambda: not feed.is_subscribed)
        feed.publish("job_1")
        await until(lambda: received)
        await asyncio.sleep(0.5)
        assert changes == [False]
        assert not feed.is_available

    try:
        with capture_logs() as logged:
            run(test, server.url())
    finally:
        server.stop()
    assert [each["event"] for each in logged] == ["change_feed_unavailable"]
    assert server.url().split("@")[0].rpartition(":")[2] not in repr(logged)
