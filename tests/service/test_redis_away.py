"""All functions work without Redis after any kind of failure, and are fast again once it is back."""

import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr
from redis.backoff import NoBackoff
from redis.retry import Retry

from devservers.inprocess import InProcess
from models.database.engine import Database
from runtime import redis_client
from runtime.change_publisher import RedisPublisher
from runtime.job_signal import RedisJobSignal
from runtime.redis_client import RedisClient
from runtime.settings import Settings
from service.app import create_app
from service.context import GatewayContext
from service.http.rate_limits import WINDOW_SECONDS
from service.live import job_watcher
from tests.servers import RedisServer
from tests.service.api import Api, a_model, finish, stranger
from tests.service.processes import until

pytestmark = pytest.mark.slow

LONG_SECONDS = 600.0  # longer than any test, so that only notifications are faster


class Redis:
    """A Redis server that fails in several ways and restarts on the same port."""

    def __init__(self) -> None:
        self.server = RedisServer()
        self.server.start()
        self.url = self.server.url()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=60)

    def _process(self) -> "subprocess.Popen[bytes]":
        assert self.server.process is not None
        return self.server.process

    def kill(self) -> None:
        self._process().kill()
        self._process().wait()

    def hang(self) -> None:
        os.kill(self._process().pid, signal.SIGSTOP)

    def flush(self) -> None:
        with closing(self.client()) as client:
            client.flushall()

    def heal(self) -> None:
        """Restart the server, with or without its data."""
        if self._process().poll() is None:
            os.kill(self._process().pid, signal.SIGCONT)
        else:
            out = subprocess.DEVNULL
            again = subprocess.Popen(self._process().args, stdin=out, stdout=out, stderr=out)
            self.server.process = again
        until(self._answers)

    def _answers(self) -> bool:
        try:
            with closing(self.client()) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def stop(self) -> None:
        if self._process().poll() is None:
            os.kill(self._process().pid, signal.SIGCONT)
        self.server.stop()


@pytest.fixture
def server() -> Iterator[Redis]:
    started = Redis()
    yield started
    started.stop()


class Gateways:
    """Two gateways, and the Redis clients of a worker, over one database and one Redis."""

    def __init__(self, directory: Path, database_url: str, url: str) -> None:
        self.database = Database(database_url)
        settings = Settings(home=directory, redis_url=SecretStr(url))
        self.apps = [create_app(settings, self.database) for _ in range(2)]
        self.running = [InProcess(app) for app in self.apps]
        self.bell, self.publisher = RedisJobSignal(url, 0.05), RedisPublisher(url)

    @property
    def services(self) -> list[GatewayContext]:
        return [app.state.context for app in self.apps]

    def reset_breakers(self) -> None:
        """Reset the circuit breakers, as if their waiting time had passed."""
        breakers = [one.rate_limits._counts.breaker for one in self.services]
        for breaker in (*breakers, *(each._breaker for each in self.links)):
            breaker._retry_at = 0.0

    def unavailable(self) -> float | None:
        """Return the metric of the first gateway's change feed."""
        registry = self.services[0].metrics.registry
        return registry.get_sample_value("sfumato_redis_unavailable", {"part": "change_feed"})

    @property
    def links(self) -> list[RedisClient]:
        bells = [self.bell, *(one.job_signal for one in self.services)]
        return [self.publisher._client, *(bell._client for bell in bells if isinstance(bell, RedisJobSignal))]

    def until_subscribed(self) -> None:
        until(lambda: all(each.change_feed.is_subscribed for each in self.services))


@pytest.fixture
def gateways(tmp_path: Path, database_url: str, server: Redis, no_settings: None) -> Iterator[Gateways]:
    made = Gateways(tmp_path, database_url, server.url)
    for each in made.running:
        each.__enter__()
    made.until_subscribed()
    yield made
    for each in made.running:
        each.__exit__(None, None, None)
    made.database.close()


@pytest.fixture
def apis(gateways: Gateways) -> list[Api]:
    """Return API clients of both gateways with the same key."""
    first = stranger(gateways.running[0].client, gateways.database)
    return [first, Api(gateways.running[1].client, gateways.database, first.secret)]


def usual_seconds(calls: list[Callable[[], object]]) -> float:
    """Return the median duration of the calls."""
    took = []
    for call in calls:
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)
    return statistics.median(took)


@contextmanager
def waiting(api: Api, job_id: str) -> Iterator[Callable[[], str]]:
    """Long-poll a job and return its state."""
    states: list[str] = []
    thread = threading.Thread(
        target=lambda: states.append(api.get(f"/jobs/{job_id}", params={"wait": 60}).json()["state"])
    )
    thread.start()

    def state() -> str:
        thread.join(100)
        return states[0]

    yield state
    thread.join(100)


def everything(gateways: Gateways, apis: list[Api]) -> list[Callable[[], object]]:
    """Send requests that use every function of Redis. Each must succeed."""
    made = apis[0].dataset(epsilon=30)
    opened = [apis[0].round(made["id"], epsilon=1) for _ in range(8)]

    def close(round_id: str) -> None:
        assert apis[0].made(f"/rounds/{round_id}/close?allow_empty=true", None)["state"] == "closed"
        shown = apis[0].get(f"/datasets/{made['id']}/round").json()["rounds"]  # this gateway sees it at once
        assert round_id not in [each["id"] for each in shown]

    def submit() -> None:
        job = apis[0].job(made["id"])
        assert apis[1].made(f"/jobs/{job['id']}/cancel", None)["state"] == "canceled"
        assert apis[0].get(f"/jobs/{job['id']}/events").text.count("data: ") == 1

    calls: list[Callable[[], object]] = []
    for each in opened:
        calls += [lambda round_id=each["id"]: close(round_id), submit, lambda: gateways.bell.wait(0.01)]  # type: ignore[misc]
        calls += [lambda: gateways.publisher.publish("job_x"), lambda: apis[1].get("/datasets").raise_for_status()]
    return calls


class TestUnavailableRedis:
    @pytest.mark.parametrize("how", ["kill", "hang"])
    def test_all_requests_succeed_and_are_fast_again_afterwards(
        self, how: str, server: Redis, gateways: Gateways, apis: list[Api], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, calls = everything(gateways, apis), everything(gateways, apis)
        usual = usual_seconds(before)
        limits = gateways.services[0].rate_limits
        monkeypatch.setattr(redis_client, "RETRY_SECONDS", LONG_SECONDS)  # prevents a retry on a busy machine
        job = apis[0].job(apis[0].dataset()["id"])
        with waiting(apis[1], job["id"]) as state:
            getattr(server, how)()
            # each request uses Redis; without the circuit breaker each would wait for 0.25 s
            assert usual_seconds(calls) < usual + 0.2
            gateways.reset_breakers()
            monkeypatch.setattr(redis_client, "RETRY_SECONDS", 0.05)
            until(lambda: all(not each.change_feed.is_available for each in gateways.services))
            until(lambda: apis[0].get("/datasets").is_success and not limits.is_redis_available)
            until(lambda: (gateways.bell.notify("x"), not gateways.bell.is_available)[1])
            finish(gateways.database, job["id"], a_model())  # no notification can be sent
            assert state() == "succeeded"
        assert gateways.unavailable() == 1

        server.heal()
        gateways.until_subscribed()
        until(lambda: apis[0].get("/datasets").is_success and limits.is_redis_available)
        until(lambda: (gateways.bell.notify("job_1"), gateways.bell.is_available)[1])
        until(lambda: (gateways.publisher.publish("job_1"), gateways.publisher.is_available)[1])
        assert gateways.unavailable() == 0
        monkeypatch.setattr(job_watcher, "NOTIFIED_POLL_SECONDS", LONG_SECONDS)
        job = apis[0].job(apis[0].dataset()["id"])
        with waiting(apis[1], job["id"]) as state:
            time.sleep(0.5)
            finish(gateways.database, job["id"], a_model())
            gateways.publisher.publish(job["id"])
            assert state() == "succeeded"

    def test_an_emptied_redis_loses_nothing(self, server: Redis, gateways: Gateways, apis: list[Api]) -> None:
        for number, call in enumerate(everything(gateways, apis)):
            if number % 5 == 0:
                server.flush()
            call()
        for each in gateways.services:
            assert each.change_feed.is_subscribed
            assert each.rate_limits.is_redis_available
            assert each.job_signal.is_available


class TestRedisContent:
    def test_is_notifications_and_counts_that_expire(self, server: Redis, gateways: Gateways, apis: list[Api]) -> None:
        for call in everything(gateways, apis):
            call()
        for _ in range(20):
            apis[0].job(apis[0].dataset()["id"])
        Api(apis[0].http, gateways.database, "sfk_" + "0" * 64).get("/datasets")
        with closing(server.client()) as client:
            counts = [key.decode() for key in client.scan_iter("*") if key != b"sfumato:job-signal"]
            assert len(counts) >= 2
            for key in counts:
                assert "sfumato:limits" in key
                assert 0 < client.ttl(key) <= 2 * WINDOW_SECONDS
                assert (client.get(key) or b"").isdigit()
            ids = {each.decode() for each in client.lrange("sfumato:job-signal", 0, -1)}
        with gateways.database.reading() as session:
            rows = session.connection().exec_driver_sql("SELECT id FROM jobs UNION SELECT id FROM rounds")
            assert set() < ids <= {row[0] for row in rows}
