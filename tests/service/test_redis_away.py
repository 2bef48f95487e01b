"""Everything that Redis speeds up works without it, however it ends, and is fast again once it is back."""

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

from models import redis_link
from models.bulletin import RedisBulletin
from models.db import Database
from models.doorbell import RedisDoorbell
from models.redis_link import RedisLink
from models.settings import Settings
from service import limits, watches
from service.app import create_app
from service.limits import WINDOW_SECONDS
from service.services import Services
from tests.servers import RedisServer
from tests.service.api import Api, a_model, finish, stranger
from tests.service.inprocess import InProcess
from tests.service.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.ci]

LONG_SECONDS = 600.0  # what only a notice can be faster than


class Redis:
    """A server of the test's own, which ends in every way and comes back on the same port."""

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
        """There again, empty or as it was."""
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
    """Two gateways and what a worker has, over one database and one Redis."""

    def __init__(self, directory: Path, database_url: str, url: str) -> None:
        self.database = Database(database_url)
        settings = Settings(home=directory, redis_url=SecretStr(url))
        self.apps = [create_app(settings, self.database) for _ in range(2)]
        self.running = [InProcess(app) for app in self.apps]
        self.bell, self.bulletin = RedisDoorbell(url, 0.05), RedisBulletin(url)

    @property
    def services(self) -> list[Services]:
        return [app.state.services for app in self.apps]

    def ask_again(self) -> None:
        """As if it had been left alone for long enough."""
        for each in [*self.links, *(one.limits._counts for one in self.services)]:
            each._ask_again_at = 0.0

    @property
    def links(self) -> list[RedisLink]:
        bells = [self.bell, *(one.doorbell for one in self.services)]
        return [self.bulletin._link, *(bell._link for bell in bells if isinstance(bell, RedisDoorbell))]

    def until_subscribed(self) -> None:
        until(lambda: all(each.notices.is_subscribed for each in self.services))


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
    """One key's way to both."""
    first = stranger(gateways.running[0].client, gateways.database)
    return [first, Api(gateways.running[1].client, gateways.database, first.secret)]


def usual_seconds(calls: list[Callable[[], object]]) -> float:
    """The median of their times."""
    took = []
    for call in calls:
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)
    return statistics.median(took)


@contextmanager
def waiting(api: Api, job_id: str) -> Iterator[Callable[[], str]]:
    """A long poll; what state it told."""
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
    """Requests that make use of every part, each of which must be answered."""
    made = apis[0].dataset(epsilon=30)
    opened = [apis[0].round(made["id"], epsilon=1) for _ in range(8)]

    def close(round_id: str) -> None:
        assert apis[0].made(f"/rounds/{round_id}/close", None)["state"] == "closed"
        shown = apis[0].get(f"/datasets/{made['id']}/round").json()["rounds"]  # by this gateway, at once
        assert round_id not in [each["id"] for each in shown]

    def submit() -> None:
        job = apis[0].job(made["id"])
        assert apis[1].made(f"/jobs/{job['id']}/cancel", None)["state"] == "canceled"
        assert apis[0].get(f"/jobs/{job['id']}/events").text.count("data: ") == 1

    calls: list[Callable[[], object]] = []
    for each in opened:
        calls += [lambda round_id=each["id"]: close(round_id), submit, lambda: gateways.bell.wait(0.01)]  # type: ignore[misc]
        calls += [lambda: gateways.bulletin.tell("job_x"), lambda: apis[1].get("/datasets").raise_for_status()]
    return calls


class TestRedisAway:
    @pytest.mark.parametrize("how", ["kill", "hang"])
    def test_every_request_is_answered_and_all_is_fast_again_after(
        self, how: str, server: Redis, gateways: Gateways, apis: list[Api], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, calls = everything(gateways, apis), everything(gateways, apis)
        usual = usual_seconds(before)
        for module in (limits, redis_link):  # on a busy machine a second passes soon
            monkeypatch.setattr(module, "AWAY_SECONDS", LONG_SECONDS)
        job = apis[0].job(apis[0].dataset()["id"])
        with waiting(apis[1], job["id"]) as state:
            getattr(server, how)()
            # each of these asks Redis for something; if each had to wait for it, each would wait a quarter of a second
            assert usual_seconds(calls) < usual + 0.2
            gateways.ask_again()
            for module in (limits, redis_link):
                monkeypatch.setattr(module, "AWAY_SECONDS", 0.05)
            until(lambda: all(each.notices.is_away for each in gateways.services))
            until(lambda: apis[0].get("/datasets").is_success and gateways.services[0].limits.is_redis_away)
            until(lambda: (gateways.bell.ring("x"), gateways.bell.is_away)[1])
            finish(gateways.database, job["id"], a_model())  # and nobody can tell
            assert state() == "succeeded"
        assert gateways.services[0].metrics.registry.get_sample_value("sfumato_redis_away", {"part": "bulletin"}) == 1

        server.heal()
        gateways.until_subscribed()
        until(lambda: apis[0].get("/datasets").is_success and not gateways.services[0].limits.is_redis_away)
        until(lambda: (gateways.bell.ring("job_1"), not gateways.bell.is_away)[1])
        until(lambda: (gateways.bulletin.tell("job_1"), not gateways.bulletin.is_away)[1])
        assert gateways.services[0].metrics.registry.get_sample_value("sfumato_redis_away", {"part": "bulletin"}) == 0
        monkeypatch.setattr(watches, "NOTICED_SECONDS", LONG_SECONDS)
        job = apis[0].job(apis[0].dataset()["id"])
        with waiting(apis[1], job["id"]) as state:
            time.sleep(0.5)
            finish(gateways.database, job["id"], a_model())
            gateways.bulletin.tell(job["id"])
            assert state() == "succeeded"

    def test_emptied_it_loses_nothing(self, server: Redis, gateways: Gateways, apis: list[Api]) -> None:
        for number, call in enumerate(everything(gateways, apis)):
            if number % 5 == 0:
                server.flush()
            call()
        assert all(each.notices.is_subscribed for each in gateways.services)
        assert not any(each.limits.is_redis_away or each.doorbell.is_away for each in gateways.services)


class TestWhatIsInRedis:
    def test_is_rings_and_counts_that_lapse(self, server: Redis, gateways: Gateways, apis: list[Api]) -> None:
        for call in everything(gateways, apis):
            call()
        for _ in range(20):
            apis[0].job(apis[0].dataset()["id"])
        Api(apis[0].http, gateways.database, "sfk_" + "0" * 64).get("/datasets")
        with closing(server.client()) as client:
            keys = sorted(key.decode() for key in client.scan_iter("*"))
            assert "sfumato:doorbell" in keys
            counts = [key for key in keys if key != "sfumato:doorbell"]
            assert len(counts) >= 2
            assert all("sfumato:limits" in key for key in counts)
            for key in counts:
                assert 0 < client.ttl(key) <= 2 * WINDOW_SECONDS
                assert (client.get(key) or b"").isdigit()
            rung = client.lrange("sfumato:doorbell", 0, -1)
            assert all(each.startswith((b"job_", b"rnd_")) for each in rung)
            with gateways.database.reading() as session:
                known = {row[0] for row in session.connection().exec_driver_sql("SELECT id FROM jobs")}
                known |= {row[0] for row in session.connection().exec_driver_sql("SELECT id FROM rounds")}
            assert {each.decode() for each in rung} <= known
