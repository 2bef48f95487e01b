"""Job signals over Redis: a notification wakes a worker at once, and an unavailable Redis delays no sender."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from runtime import job_signal, redis_client
from runtime.job_signal import PollingJobSignal, RedisJobSignal, open_job_signal
from tests.models.world import Thread


def seconds(call: Callable[[], Any]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def fail() -> None:
    raise redis.ConnectionError


@pytest.fixture
def refusing_url() -> Iterator[str]:
    """URL of a port that refuses connections."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"redis://:hunter2@127.0.0.1:{bound.getsockname()[1]}/0"


@pytest.fixture
def silent_url() -> Iterator[str]:
    """URL of a server that accepts connections and never responds."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"redis://:hunter2@127.0.0.1:{server.getsockname()[1]}/0"


class TestRedisJobSignal:
    def test_notification_wakes_a_waiting_worker(self, redis_url: str) -> None:
        signal, other = RedisJobSignal(redis_url, 0.05), RedisJobSignal(redis_url, 0.05)
        waiting = Thread(lambda: seconds(lambda: signal.wait(100)))
        time.sleep(0.1)

        other.notify("job_1")

        assert waiting.outcome() < 50

    def test_notification_before_the_wait_wakes_one_wait(self, redis_url: str) -> None:
        signal = RedisJobSignal(redis_url, 0.05)
        assert not signal.wait(0.05)
        signal.notify("job_1")

        assert seconds(lambda: signal.wait(100)) < 50
        assert seconds(lambda: signal.wait(0.3)) >= 0.29
        signal.notify("job_1")
        assert signal.wait(100)

    def test_wait_may_be_longer_than_one_blocking_command(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_signal, "_MAX_BLOCK_SECONDS", 0.1)

        assert 0.45 <= seconds(lambda: RedisJobSignal(redis_url, 0.05).wait(0.5)) < 50

    def test_number_of_stored_notifications_is_bounded(self, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_signal, "_MAX_NOTIFICATIONS", 10)
        signal = RedisJobSignal(redis_url, 0.05)
        for i in range(25):
            signal.notify(f"job_{i}")

        with closing(redis.Redis.from_url(redis_url)) as client:
            assert client.lrange("sfumato:job-signal", 0, -1) == [b"job_%d" % i for i in range(15, 25)]


class TestUnavailableRedis:
    @pytest.mark.parametrize("kind", ["refusing_url", "silent_url"])
    def test_notify_times_out_and_does_not_raise(self, kind: str, request: pytest.FixtureRequest) -> None:
        signal = RedisJobSignal(request.getfixturevalue(kind), 0.05)

        assert redis_client.TIMEOUT_SECONDS <= 0.25
        assert seconds(lambda: signal.notify("job_1")) < 50

    def test_wait_lasts_one_polling_interval(self, refusing_url: str) -> None:
        signal = RedisJobSignal(refusing_url, 0.05)

        assert 0.05 <= seconds(lambda: signal.wait(100)) < 50

    def test_wait_for_a_server_that_never_responds_times_out(
        self, silent_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_signal, "_MAX_BLOCK_SECONDS", 0.2)
        signal = RedisJobSignal(silent_url, 0.05)

        assert seconds(lambda: signal.wait(100)) < 50

    def test_is_logged_once_without_the_password(self, refusing_url: str) -> None:
        signal = RedisJobSignal(refusing_url, 0.01)
        with capture_logs() as lines:
            for _ in range(3):
                signal.notify("job_1")
                signal.wait(0.01)

        assert [line["event"] for line in lines] == ["job_signal_unavailable"]
        assert "hunter2" not in repr(lines) + repr(signal)

    @pytest.mark.parametrize("kind", ["refusing_url", "silent_url"])
    def test_receives_one_call_per_second(
        self, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        signal = RedisJobSignal(request.getfixturevalue(kind), 0.01)
        calls: list[str] = []
        monkeypatch.setattr(redis.Redis, "pipeline", lambda *_, **__: (calls.append("notify"), fail())[1])
        monkeypatch.setattr(redis.Redis, "ping", lambda _: (calls.append("ping"), fail())[1])
        now = 1000.0
        monkeypatch.setattr(redis_client.time, "monotonic", lambda: now)
        monkeypatch.setattr(redis_client.time, "sleep", lambda _: None)
        for _ in range(3):
            for _ in range(20):
                signal.notify("job_1")
                signal.wait(5)
            now += redis_client.RETRY_SECONDS

        assert not signal.is_available
        assert calls == ["notify"] * 3

    def test_is_used_again_when_it_is_back(
        self, redis_url: str, refusing_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_client, "RETRY_SECONDS", 0.0)
        signal, back = RedisJobSignal(refusing_url, 0.01), RedisJobSignal(redis_url, 0.01)
        with capture_logs() as lines:
            signal.notify("job_1")
            assert not signal.is_available
            for name in ("_client", "_blocking_client"):
                setattr(signal._client, name, getattr(back._client, name))
            signal.notify("job_2")
            assert signal.is_available
            assert signal.wait(5)
            signal._client._breaker.record_failure()

        assert [line["event"] for line in lines] == ["job_signal_unavailable"] * 2


class TestOpenJobSignal:
    def test_without_redis_a_wait_is_one_polling_interval(self) -> None:
        signal = open_job_signal(None, 0.05)

        assert isinstance(signal, PollingJobSignal)
        assert seconds(lambda: signal.notify("job_1")) < 50
        assert 0.05 <= seconds(lambda: signal.wait(100)) < 50

    def test_with_redis_notifications_use_redis(self, redis_url: str) -> None:
        assert isinstance(open_job_signal(redis_url, 0.05), RedisJobSignal)
