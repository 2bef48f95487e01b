"""The doorbell: wakes a worker at once, and never fails or holds up whoever rings."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from models import doorbell, redis_link
from models.doorbell import PollingDoorbell, RedisDoorbell, open_doorbell
from tests.models.world import Thread


def seconds(call: Callable[[], Any]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def fail() -> None:
    raise redis.ConnectionError


@pytest.fixture
def refusing_url() -> Iterator[str]:
    """Of a port that is taken, and where nobody listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://:hunter2@127.0.0.1:{taken.getsockname()[1]}/0"


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Of a server that takes connections and never says a word."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"redis://:hunter2@127.0.0.1:{server.getsockname()[1]}/0"


class TestOverRedis:
    def test_a_ring_wakes_who_waits(self, redis_url: str) -> None:
        bell, other = RedisDoorbell(redis_url, 0.05), RedisDoorbell(redis_url, 0.05)
        waiting = Thread(lambda: seconds(lambda: bell.wait(100)))
        time.sleep(0.1)

        other.ring("job_1")

        assert waiting.outcome() < 50

    def test_a_ring_before_the_wait_is_heard_once(self, redis_url: str) -> None:
        bell = RedisDoorbell(redis_url, 0.05)
        bell.ring("job_1")

        assert seconds(lambda: bell.wait(100)) < 50
        assert seconds(lambda: bell.wait(0.3)) >= 0.29

    def test_a_wait_longer_than_one_question_to_redis_is_as_long_as_asked(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(doorbell, "_ONE_WAIT_SECONDS", 0.1)

        assert 0.45 <= seconds(lambda: RedisDoorbell(redis_url, 0.05).wait(0.5)) < 50

    def test_rings_that_nobody_hears_are_not_kept_for_ever(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(doorbell, "_MAX_RINGS", 10)
        bell = RedisDoorbell(redis_url, 0.05)
        for i in range(25):
            bell.ring(f"job_{i}")

        with closing(redis.Redis.from_url(redis_url)) as client:
            assert client.lrange("sfumato:doorbell", 0, -1) == [b"job_%d" % i for i in range(15, 25)]

    def test_who_waits_is_told_whether_it_was_a_ring(self, redis_url: str) -> None:
        bell = RedisDoorbell(redis_url, 0.05)
        assert not bell.wait(0.05)
        bell.ring("job_1")
        assert bell.wait(100)
        assert not bell.wait(0.05)


class TestRedisAway:
    @pytest.mark.parametrize("how", ["refusing_url", "silent_url"])
    def test_a_ring_is_given_up_soon_and_raises_nothing(self, how: str, request: pytest.FixtureRequest) -> None:
        bell = RedisDoorbell(request.getfixturevalue(how), 0.05)

        assert redis_link.PATIENCE_SECONDS <= 0.25
        assert seconds(lambda: bell.ring("job_1")) < 50  # the silent one would keep it waiting for ever

    def test_a_wait_is_one_polling_interval(self, refusing_url: str) -> None:
        bell = RedisDoorbell(refusing_url, 0.05)

        assert 0.05 <= seconds(lambda: bell.wait(100)) < 50

    def test_a_wait_for_a_silent_redis_ends_soon(self, silent_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doorbell, "_ONE_WAIT_SECONDS", 0.2)
        bell = RedisDoorbell(silent_url, 0.05)

        assert seconds(lambda: bell.wait(100)) < 50

    def test_is_said_once_and_without_the_password(self, refusing_url: str) -> None:
        bell = RedisDoorbell(refusing_url, 0.01)
        with capture_logs() as said:
            for _ in range(3):
                bell.ring("job_1")
                bell.wait(0.01)

        assert [each["event"] for each in said] == ["doorbell_away"]
        assert "hunter2" not in repr(said) + repr(bell)

    @pytest.mark.parametrize("how", ["refusing_url", "silent_url"])
    def test_one_ring_a_second_waits_for_it_and_no_more(
        self, how: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bell = RedisDoorbell(request.getfixturevalue(how), 0.01)
        tried: list[str] = []
        monkeypatch.setattr(redis.Redis, "pipeline", lambda *_, **__: (tried.append("ring"), fail())[1])
        monkeypatch.setattr(redis.Redis, "ping", lambda _: (tried.append("ping"), fail())[1])
        now = 1000.0
        monkeypatch.setattr(redis_link.time, "monotonic", lambda: now)
        monkeypatch.setattr(redis_link.time, "sleep", lambda _: None)
        for _ in range(3):
            for _ in range(20):
                bell.ring("job_1")
                bell.wait(5)
            now += redis_link.AWAY_SECONDS

        assert bell.is_away
        assert tried == ["ring"] * 3

    def test_and_back_rings_again(self, redis_url: str, refusing_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_link, "AWAY_SECONDS", 0.0)
        bell, back = RedisDoorbell(refusing_url, 0.01), RedisDoorbell(redis_url, 0.01)
        with capture_logs() as said:
            bell.ring("job_1")
            assert bell.is_away
            bell._link._client, bell._link._waiting_client = back._link._client, back._link._waiting_client
            bell.ring("job_2")
            assert not bell.is_away
            bell.wait(5)
            bell._link._note_away()

        assert [each["event"] for each in said] == ["doorbell_away"] * 2


class TestWithoutRedis:
    def test_nobody_rings_and_a_wait_is_one_polling_interval(self) -> None:
        bell = open_doorbell(None, 0.05)

        assert isinstance(bell, PollingDoorbell)
        assert seconds(lambda: bell.ring("job_1")) < 50
        assert 0.05 <= seconds(lambda: bell.wait(100)) < 50

    def test_with_redis_it_is_the_other(self, redis_url: str) -> None:
        assert isinstance(open_doorbell(redis_url, 0.05), RedisDoorbell)
