"""Rate limits by key and by address, shared over gateways, with and without Redis."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from ipaddress import ip_network
from typing import Any, ClassVar

import httpx
import pytest
from limits import RateLimitItemPerMinute
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from pydantic import SecretStr, ValidationError

from models.identity.caller import Caller
from runtime import redis_client
from runtime.settings import Settings
from service.http import rate_limits
from service.http.metrics import GatewayMetrics
from service.http.problems import RateLimited
from service.http.rate_limits import BoundedMemoryStorage, RateLimits, client_address
from service.http.route_table import enter
from tests.servers import RedisServer
from tests.service.api import SQLITE_KIND_ONLY, Api, refused

START = 1_800_000_000.0  # start of a minute
PATIENCE_SECONDS = 60.0  # a busy machine may need more than the default


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the wall clock, so that no minute ends during a test."""
    made = Clock()
    monkeypatch.setattr("time.time", made)
    return made


def parsed(answer: httpx.Response) -> dict[str, tuple[int, int, int]]:
    """Return (quota, remaining requests, seconds) by policy."""
    policies = [item.split(";") for item in answer.headers["ratelimit-policy"].split(", ")]
    states = [item.split(";") for item in answer.headers["ratelimit"].split(", ")]
    found = {}
    for (name, quota, window), (same, remaining, seconds) in zip(policies, states, strict=True):
        assert name == same
        assert window == "w=60"
        found[name.strip('"')] = tuple(int(each.split("=")[1]) for each in (quota, remaining, seconds))
    return found  # type: ignore[return-value]


@SQLITE_KIND_ONLY
class TestKey:
    def test_is_limited_and_sees_the_remaining_requests(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_key=5)
        other = api.key("admin")
        states = [parsed(api.get(path))["key"] for path in ("/datasets", "/datasets/ds_none", *["/jobs"] * 3)]
        assert [remaining for _, remaining, _ in states] == [4, 3, 2, 1, 0]
        assert all(quota == 5 and 0 <= seconds <= 60 for quota, _, seconds in states)
        response = api.get("/datasets")
        assert "key" in refused(response, 429, "rate_limited")["detail"]
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert parsed(response)["key"][:2] == (5, 0)
        assert other.get("/datasets").status_code == 200

    def test_sends_reports_without_limit_by_default(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_key=20)
        round_id = api.round(api.dataset()["id"])["id"]
        for key in (api, api.key("device")):
            for _ in range(25):
                response = key.report(round_id)
                assert response.status_code == 202
                assert "ratelimit" not in response.headers

    def test_of_devices_has_a_separate_limit(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_device_key=4)
        opened = api.round(api.dataset()["id"])
        device = api.key("device")
        assert device.get(f"/datasets/{opened['dataset_id']}/round").status_code == 200
        for _ in range(3):
            assert device.report(opened["id"]).status_code == 202
        refused(device.report(opened["id"]), 429, "rate_limited")
        assert parsed(api.get("/datasets"))["key"][0] == 12_000
        assert api.n_received(opened["id"]) == 3


class TestAddress:
    @SQLITE_KIND_ONLY
    def test_is_limited_in_requests_without_a_valid_key(self, started: Callable[..., Api]) -> None:
        api = started(rate_of_failures=4)
        for digit, status, code in (
            (n, 401, "unauthenticated") if n < 4 else (n, 429, "rate_limited") for n in range(7)
        ):
            response = Api(api.http, api.database, "sfk_" + str(digit) * 64 if digit else "").get("/datasets")
            refused(response, status, code)
        assert int(response.headers["retry-after"]) >= 1

    @SQLITE_KIND_ONLY
    def test_that_is_slowed_may_use_every_valid_key(self, started: Callable[..., Api]) -> None:
        """The key of an honest caller is not cached, and wrong keys wait at the same time."""
        api = started(rate_of_failures=2)
        fresh, wrong = api.key("admin"), Api(api.http, api.database, "sfk_" + "0" * 64)
        for _ in range(3):
            wrong.get("/datasets")
        with ThreadPoolExecutor(8) as pool:
            start = time.monotonic()
            failures = [pool.submit(wrong.get, "/datasets") for _ in range(8)]
            assert fresh.get("/datasets").status_code == 200
            for each in failures:
                refused(each.result(), 429, "rate_limited")
        assert time.monotonic() - start >= rate_limits.FAILURE_SECONDS  # failures are answered later

    def test_is_limited_in_all_requests_except_probes(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_address=3)
        assert api.get("/datasets").status_code == 200
        assert api.http.get("/openapi.json").status_code == 200
        assert set(parsed(api.get("/datasets"))) == {"address", "key"}
        refused(api.http.get("/openapi.json"), 429, "rate_limited")
        for path in (*["/healthz"] * 5, "/readyz"):
            assert api.http.get(path).status_code == 200


def scope(peer: str | None, *forwarded: str) -> dict[str, Any]:
    return {
        "client": (peer, 4711) if peer is not None else None,
        "headers": [(b"x-forwarded-for", each.encode("latin-1")) for each in forwarded],
    }


class TestClientAddress:
    TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))

    @pytest.mark.parametrize(
        ("peer", "forwarded", "address"),
        [
            ("192.0.2.1", (), "192.0.2.1"),
            ("192.0.2.1", ("198.51.100.7",), "192.0.2.1"),  # an untrusted peer can forge the header
            ("10.0.0.1", ("198.51.100.7",), "198.51.100.7"),
            ("10.0.0.1", ("203.0.113.9, 198.51.100.7, 10.2.3.4",), "198.51.100.7"),
            ("10.0.0.1", ("203.0.113.9", "198.51.100.7"), "198.51.100.7"),
            ("10.0.0.1", (), "10.0.0.1"),
            ("10.0.0.1", ("10.0.0.7",), "10.0.0.7"),
            ("10.0.0.1", ("198.51.100.7, nonsense",), "10.0.0.1"),
            ("10.0.0.1", ("",), "10.0.0.1"),
            ("10.0.0.1", ("198.51.100.7, ,",), "198.51.100.7"),
            ("10.0.0.1", ("198.51.100.7:51432, 10.2.3.4:80",), "198.51.100.7"),
            ("10.0.0.1", ("[2001:db8:1:2:3::4]:51432",), "2001:db8:1:2::"),
            ("10.0.0.1", ("\xff" * 50,), "10.0.0.1"),
            ("10.0.0.1", ("198.51.100.7," + "10.0.0.9," * 5000 + "10.0.0.9",), "10.0.0.9"),
            ("fd00::1", ("2001:db8:1:2:3:4:5:6",), "2001:db8:1:2::"),
            ("2001:db8:1:2:ffff::1", (), "2001:db8:1:2::"),
            ("::ffff:192.0.2.1", (), "192.0.2.1"),
            ("", (), ""),
            ("/run/socket", (), ""),
            (None, ("198.51.100.7",), ""),
        ],
    )
    def test_is_the_last_untrusted_hop(self, peer: str | None, forwarded: tuple[str, ...], address: str) -> None:
        assert client_address(scope(peer, *forwarded), self.TRUSTED) == address

    def test_ignores_the_header_by_default(self) -> None:
        assert client_address(scope("127.0.0.1", "198.51.100.7"), Settings().proxy_networks) == "127.0.0.1"

    @pytest.mark.parametrize("wrong", ["proxy", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.1 10.0.0.2"])
    def test_rejects_invalid_networks(self, wrong: str) -> None:
        with pytest.raises(ValidationError, match="separate entries with commas"):
            Settings(trusted_proxies=wrong)
        assert len(Settings(trusted_proxies="10.0.0.0/8, 192.0.2.1,").proxy_networks) == 2


class TestWindow:
    def test_slides(self, clock: Clock) -> None:
        limiter, item = SlidingWindowCounterRateLimiter(BoundedMemoryStorage()), RateLimitItemPerMinute(10)

        async def count_accepted(seconds: float) -> int:
            clock.now += seconds
            return sum([await limiter.hit(item, "x") for _ in range(20)])

        async def run() -> list[int]:
            # after 60 s all ten still count, after 90 s half of them
            return [await count_accepted(seconds) for seconds in (0, 60, 30, 300)]

        assert asyncio.run(run()) == [10, 0, 5, 10]

    def test_evicts_the_least_recently_used_client(self) -> None:
        memory = BoundedMemoryStorage(max_counted=3)
        limiter, item = SlidingWindowCounterRateLimiter(memory), RateLimitItemPerMinute(1)

        async def run() -> list[bool]:
            accepted = [await limiter.hit(item, client) for client in "abcadab"]  # d evicts b
            assert await memory.reset() == 3
            return accepted

        assert asyncio.run(run()) == [True, True, True, False, True, False, True]

    def test_is_the_same_in_redis(self, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rate_limits, "TIMEOUT_SECONDS", 60.0)
        gateways = [counting(redis_url) for _ in range(2)]

        async def run() -> list[bool]:
            item = RateLimitItemPerMinute(6, namespace=redis_url[-8:])
            accepted = [(await each._counts.hit(item, "x"))[0] for each in gateways * 5]
            for each in gateways:
                await each.close()
            return accepted

        assert asyncio.run(run()) == [True] * 6 + [False] * 4


def counting(redis_url: str | None, **settings: Any) -> RateLimits:
    """Return the rate limits of a gateway."""
    url = SecretStr(redis_url) if redis_url else None
    return RateLimits(Settings(redis_url=url, **settings), GatewayMetrics())


@contextmanager
def silent_url() -> Iterator[str]:
    """Yield the URL of a server that accepts connections and never responds."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@contextmanager
def refusing_url() -> Iterator[str]:
    """Yield the URL of a bound port without a listener."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}/0"


class TestUnavailableRedis:
    def test_each_gateway_counts_in_its_own_memory(self) -> None:
        async def run(url: str) -> list[bool]:
            gateway = counting(url)
            accepted = [(await gateway._counts.hit(RateLimitItemPerMinute(2), "x"))[0] for _ in range(4)]
            await gateway.close()
            assert not gateway.is_redis_available
            return accepted

        with silent_url() as silent, refusing_url() as refusing:
            for url in (silent, refusing, "redis://redis.invalid/0", "unix:///nowhere/redis.sock"):
                assert asyncio.run(run(url)) == [True, True, False, False]

    def test_one_request_per_second_waits_for_it(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        attempts: list[str] = []
        monkeypatch.setattr(rate_limits.time, "monotonic", clock)
        item = RateLimitItemPerMinute(1000)

        async def run(gateway: RateLimits) -> None:
            in_redis = gateway._counts._in_redis
            monkeypatch.setattr(gateway._counts, "_in_redis", lambda url: (attempts.append(url), in_redis(url))[1])
            for _ in range(3):
                await asyncio.gather(*(gateway._counts.hit(item, "x") for _ in range(20)))
                clock.now += redis_client.RETRY_SECONDS
            await gateway.close()

        with refusing_url() as url:
            asyncio.run(run(counting(url)))
        assert len(attempts) == 20 + 1 + 1  # the first twenty find out that it is unavailable

    def test_counts_are_shared_again_once_it_is_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_client, "RETRY_SECONDS", 0.0)
        monkeypatch.setattr(rate_limits, "TIMEOUT_SECONDS", PATIENCE_SECONDS)
        server = RedisServer()
        server.start()
        assert server.process is not None
        gateway, other = counting(server.url()), counting(server.url())
        item = RateLimitItemPerMinute(3)

        async def hits(n: int, of: RateLimits = gateway) -> list[bool]:
            return [(await of._counts.hit(item, "x"))[0] for _ in range(n)]

        async def run() -> None:
            assert await hits(2) == [True, True]
            assert gateway.is_redis_available
            os.kill(server.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
            monkeypatch.setattr(rate_limits, "TIMEOUT_SECONDS", 0.1)
            assert await hits(4) == [True, True, True, False]  # starts with an empty count
            assert not gateway.is_redis_available
            os.kill(server.process.pid, signal.SIGCONT)  # type: ignore[union-attr]
            monkeypatch.setattr(rate_limits, "TIMEOUT_SECONDS", PATIENCE_SECONDS)
            while not gateway.is_redis_available:
                await hits(1)
            assert sum(await hits(3) + await hits(3, other)) <= 1  # two were counted before
            assert await hits(1, other) == [False]
            await gateway.close()
            await other.close()

        try:
            asyncio.run(run())
        finally:
            server.stop()


class TestPolicies:
    REQUEST: ClassVar = {"path": "/v1/jobs", "state": {}}

    def policy(self, path: str, *scopes: str, **settings: Any) -> str | None:
        caller = Caller("key_x", "ten_x", frozenset(scopes), None, None)
        scope: dict[str, Any] = {"path": path}
        enter(scope)
        found = counting(None, **settings).policy_for(scope, caller)
        return found.name if found else None

    def test_have_defaults(self) -> None:
        assert self.policy("/v1/datasets", "admin") == "key"
        assert self.policy("/v1/rounds/rnd_x/reports", "admin") is None
        assert self.policy("/v1/datasets/ds_x/round", "device") is None
        assert self.policy("/v1/datasets/ds_x/round", "device", "datasets") == "key"

    def test_of_zero_are_off(self) -> None:
        assert self.policy("/v1/jobs", "admin", rate_per_key=0) is None

        async def run() -> None:
            for _ in range(50):
                await counting(None, rate_of_failures=0).count_failure({**self.REQUEST, **scope("192.0.2.1")})

        asyncio.run(run())

    def test_that_are_reached_are_counted_in_the_metrics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rate_limits, "FAILURE_SECONDS", 0.0)
        metrics = GatewayMetrics()
        gateway = RateLimits(Settings(rate_of_failures=1), metrics)
        request = {**self.REQUEST, **scope("192.0.2.1")}

        async def run() -> None:
            await gateway.count_failure(request)
            for _ in range(2):
                with pytest.raises(RateLimited):
                    await gateway.count_failure(request)
                assert gateway.is_slowed(request)
            assert not gateway.is_slowed({**self.REQUEST, **scope("192.0.2.2")})

        asyncio.run(run())
        assert metrics.registry.get_sample_value("sfumato_rate_limited_total", {"policy": "failures"}) == 2
