"""How often somebody may ask: by key, by address, over gateways, with and without Redis."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from limits import RateLimitItemPerMinute
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from pydantic import SecretStr, ValidationError

from models.settings import Settings
from models.tenant import Caller
from service import limits
from service.limits import BoundedMemory, RateLimits, address_of
from service.metrics import GatewayMetrics
from service.problems import RateLimited
from tests.servers import RedisServer
from tests.service.api import Api, refused

START = 1_800_000_000.0  # a minute's beginning


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The wall clock of whatever counts here: no minute ends in the middle of a test."""
    made = Clock()
    monkeypatch.setattr("time.time", made)
    return made


def parsed(answer: httpx.Response) -> dict[str, tuple[int, int, int]]:
    """Quota, what remains and seconds, by policy."""
    policies = [item.split(";") for item in answer.headers["ratelimit-policy"].split(", ")]
    states = [item.split(";") for item in answer.headers["ratelimit"].split(", ")]
    found = {}
    for (name, quota, window), (same, remaining, seconds) in zip(policies, states, strict=True):
        assert name == same
        assert window == "w=60"
        found[name.strip('"')] = tuple(int(each.split("=")[1]) for each in (quota, remaining, seconds))
    return found  # type: ignore[return-value]


class TestAKey:
    def test_may_ask_so_often_and_is_told_how_often_still(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_key=5)
        told = []
        for _ in range(5):
            answer = api.get("/datasets")
            assert answer.status_code == 200
            told.append(parsed(answer)["key"])
        assert [remaining for _, remaining, _ in told] == [4, 3, 2, 1, 0]
        assert all(quota == 5 and 0 <= seconds <= 60 for quota, _, seconds in told)
        answer = api.get("/datasets")
        document = refused(answer, 429, "rate_limited")
        assert "key" in document["detail"]
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert parsed(answer)["key"][:2] == (5, 0)

    def test_is_told_on_refusals_too(self, started: Callable[..., Api]) -> None:
        answer = started(rate_per_key=5).get("/datasets/ds_none")
        assert answer.status_code == 404
        assert parsed(answer)["key"][1] == 4

    def test_does_not_use_up_what_another_may(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_key=3)
        other = api.key("admin")
        assert {api.get("/datasets").status_code for _ in range(3)} == {200}
        refused(api.get("/datasets"), 429, "rate_limited")
        assert other.get("/datasets").status_code == 200

    def test_sends_reports_without_limit_as_it_comes(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_key=20)
        round_id = api.round(api.dataset()["id"])["id"]
        device = api.key("device")
        for key in (api, device):
            for _ in range(25):
                answer = key.report(round_id)
                assert answer.status_code == 202
                assert "ratelimit" not in answer.headers

    def test_of_devices_has_a_limit_of_its_own(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_device_key=4)
        made = api.dataset()
        round_id = api.round(made["id"])["id"]
        device = api.key("device")
        assert device.get(f"/datasets/{made['id']}/round").status_code == 200
        for _ in range(3):
            assert device.report(round_id).status_code == 202
        refused(device.report(round_id), 429, "rate_limited")
        assert parsed(api.get("/datasets"))["key"][0] == 12_000
        assert api.n_received(round_id) == 3


class TestAnAddress:
    def test_without_a_live_key_may_fail_so_often(self, started: Callable[..., Api]) -> None:
        api = started(rate_of_failures=4)
        wrong = Api(api.http, api.database, "sfk_" + "0" * 64)
        for secret in ("sfk_" + "1" * 64, "", "sfk_" + "2" * 64, "sfk_" + "3" * 64):
            refused(Api(api.http, api.database, secret).get("/datasets"), 401, "unauthenticated")
        for _ in range(3):
            answer = wrong.get("/datasets")
            refused(answer, 429, "rate_limited")
            assert int(answer.headers["retry-after"]) >= 1

    def test_that_failed_too_often_has_no_key_looked_up_but_lets_known_ones_in(
        self, started: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api = started(rate_of_failures=2)
        fresh = api.key("admin")
        assert api.get("/datasets").status_code == 200  # seen live
        revoked = api.made("/keys", {"name": "k", "scopes": ["admin"]})
        assert api.request("DELETE", f"/keys/{revoked['id']}").status_code == 204  # every key is looked up anew
        for _ in range(3):
            Api(api.http, api.database, "sfk_" + "0" * 64).get("/datasets")
        asked: list[int] = []
        look_up = api.database.reading
        monkeypatch.setattr(api.database, "reading", lambda: (asked.append(1), look_up())[1])
        refused(Api(api.http, api.database, "sfk_" + "4" * 64).get("/datasets"), 429, "rate_limited")
        refused(fresh.get("/datasets"), 429, "rate_limited")
        assert asked == []
        assert api.get("/datasets").status_code == 200

    def test_may_ask_so_often_whoever_asks_probes_apart(self, started: Callable[..., Api]) -> None:
        api = started(rate_per_address=3)
        assert api.get("/datasets").status_code == 200
        assert api.http.get("/openapi.json").status_code == 200
        assert set(parsed(api.get("/datasets"))) == {"address", "key"}
        refused(api.http.get("/openapi.json"), 429, "rate_limited")
        assert {api.http.get("/healthz").status_code for _ in range(5)} == {200}
        assert api.http.get("/readyz").status_code == 200


def scope(peer: str | None, *forwarded: str) -> dict[str, Any]:
    return {
        "client": (peer, 4711) if peer is not None else None,
        "headers": [(b"x-forwarded-for", each.encode("latin-1")) for each in forwarded],
    }


class TestWhoseAddress:
    TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))

    @pytest.mark.parametrize(
        ("peer", "forwarded", "address"),
        [
            ("192.0.2.1", (), "192.0.2.1"),
            ("192.0.2.1", ("198.51.100.7",), "192.0.2.1"),  # anybody may write the header
            ("10.0.0.1", ("198.51.100.7",), "198.51.100.7"),
            ("10.0.0.1", ("203.0.113.9, 198.51.100.7, 10.2.3.4",), "198.51.100.7"),
            ("10.0.0.1", ("203.0.113.9", "198.51.100.7"), "198.51.100.7"),
            ("10.0.0.1", (), "10.0.0.1"),
            ("10.0.0.1", ("10.0.0.7",), "10.0.0.7"),
            ("10.0.0.1", ("198.51.100.7, nonsense",), "10.0.0.1"),
            ("10.0.0.1", ("",), "10.0.0.1"),
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
    def test_it_is(self, peer: str | None, forwarded: tuple[str, ...], address: str) -> None:
        assert address_of(scope(peer, *forwarded), self.TRUSTED) == address

    def test_no_header_is_believed_as_it_comes(self) -> None:
        assert address_of(scope("127.0.0.1", "198.51.100.7"), Settings().proxy_networks) == "127.0.0.1"

    @pytest.mark.parametrize("wrong", ["proxy", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.1 10.0.0.2"])
    def test_networks_that_are_none_are_refused(self, wrong: str) -> None:
        with pytest.raises(ValidationError, match="with commas between them"):
            Settings(trusted_proxies=wrong)
        assert len(Settings(trusted_proxies="10.0.0.0/8, 192.0.2.1,").proxy_networks) == 2


class TestAWindow:
    def test_slides(self, clock: Clock) -> None:
        limiter, item = SlidingWindowCounterRateLimiter(BoundedMemory()), RateLimitItemPerMinute(10)

        async def taken() -> int:
            return sum([await limiter.hit(item, "x") for _ in range(20)])

        async def run() -> list[int]:
            found = [await taken()]
            clock.now += 60  # all ten count still
            found.append(await taken())
            clock.now += 30  # half of them
            found.append(await taken())
            clock.now += 300
            found.append(await taken())
            return found

        assert asyncio.run(run()) == [10, 0, 5, 10]

    def test_forgets_who_was_quiet_longest_where_there_are_too_many(self) -> None:
        memory = BoundedMemory(max_counted=3)
        limiter, item = SlidingWindowCounterRateLimiter(memory), RateLimitItemPerMinute(1)

        async def run() -> None:
            for who in ("a", "b", "c"):
                assert await limiter.hit(item, who)
            assert not await limiter.hit(item, "a")
            assert await limiter.hit(item, "d")  # in the place of b
            assert not await limiter.hit(item, "a")
            assert await limiter.hit(item, "b")
            assert await memory.reset() == 3

        asyncio.run(run())

    def test_is_the_same_in_redis(self, redis_url: str) -> None:
        first, second = (counting(redis_url) for _ in range(2))

        async def run() -> list[bool]:
            item = RateLimitItemPerMinute(6, namespace=redis_url[-8:])
            found = [(await one._counts.hit(item, "x"))[0] for one in (first, second) * 5]
            await first.close()
            await second.close()
            return found

        assert asyncio.run(run()) == [True] * 6 + [False] * 4


def counting(redis_url: str | None, **settings: Any) -> RateLimits:
    """A gateway's limits."""
    url = SecretStr(redis_url) if redis_url else None
    return RateLimits(Settings(redis_url=url, **settings), GatewayMetrics())


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Of a server that takes connections and never says a word."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.fixture
def refusing_url() -> Iterator[str]:
    """Of a port that is taken, and where nobody listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}/0"


@pytest.fixture
def nameless_url() -> str:
    """Of a host that is none, without a port."""
    return "redis://redis.invalid/0"


@pytest.fixture
def pathless_url() -> str:
    """Of a socket that is not there."""
    return "unix:///nowhere/redis.sock"


class TestRedisAway:
    @pytest.mark.parametrize("how", ["silent_url", "refusing_url", "nameless_url", "pathless_url"])
    def test_each_gateway_counts_for_itself(self, how: str, request: pytest.FixtureRequest) -> None:
        gateway = counting(request.getfixturevalue(how))
        item = RateLimitItemPerMinute(2)

        async def run() -> list[bool]:
            found = [(await gateway._counts.hit(item, "x"))[0] for _ in range(4)]
            await gateway.close()
            return found

        assert asyncio.run(run()) == [True, True, False, False]
        assert gateway.is_redis_away

    def test_one_request_a_second_waits_for_it_and_no_more(
        self, refusing_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = counting(refusing_url)
        tried: list[float] = []
        in_redis = gateway._counts._in_redis
        monkeypatch.setattr(gateway._counts, "_in_redis", lambda url: (tried.append(1), in_redis(url))[1])
        clock = Clock()
        monkeypatch.setattr(limits.time, "monotonic", clock)
        item = RateLimitItemPerMinute(1000)

        async def run() -> None:
            for _ in range(3):
                await asyncio.gather(*(gateway._counts.hit(item, "x") for _ in range(20)))
                clock.now += limits.AWAY_SECONDS
            await gateway.close()

        # the first twenty do not know yet that it is away
        asyncio.run(run())
        assert len(tried) == 20 + 1 + 1

    def test_it_is_counted_there_again_once_it_is_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "AWAY_SECONDS", 0.0)
        server = RedisServer()
        server.start()
        assert server.process is not None
        gateway, other = counting(server.url()), counting(server.url())
        item = RateLimitItemPerMinute(3)

        async def hits(n: int, of: RateLimits = gateway) -> list[bool]:
            return [(await of._counts.hit(item, "x"))[0] for _ in range(n)]

        async def run() -> None:
            assert await hits(2) == [True, True]
            assert not gateway.is_redis_away
            os.kill(server.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
            assert await hits(4) == [True, True, True, False]  # from a beginning of its own
            assert gateway.is_redis_away
            os.kill(server.process.pid, signal.SIGCONT)  # type: ignore[union-attr]
            while gateway.is_redis_away:
                await hits(1)
            assert sum(await hits(3) + await hits(3, other)) <= 1  # two were counted there before
            assert await hits(1, other) == [False]
            await gateway.close()
            await other.close()

        try:
            asyncio.run(run())
        finally:
            server.stop()


class TestPolicies:
    @pytest.mark.parametrize(
        ("scopes", "path", "policy"),
        [
            ({"admin"}, "/v1/datasets", "key"),
            ({"admin"}, "/v1/rounds/rnd_x/reports", None),
            ({"device"}, "/v1/datasets/ds_x/round", None),
            ({"device", "datasets"}, "/v1/datasets/ds_x/round", "key"),
        ],
    )
    def test_as_they_come(self, scopes: set[str], path: str, policy: str | None) -> None:
        caller = Caller("key_x", "ten_x", frozenset(scopes), None, None)
        found = counting(None).policy_of({"path": path}, caller)
        assert (found.name if found else None) == policy

    def test_that_are_zero_limit_nothing(self) -> None:
        gateway = counting(None, rate_per_key=0, rate_of_failures=0)
        assert gateway.policy_of({"path": "/v1/jobs"}, Caller("k", "t", frozenset({"admin"}), None, None)) is None

        async def run() -> None:
            for _ in range(50):
                await gateway.of_failure({"path": "/v1/jobs", "state": {}, **scope("192.0.2.1")})

        asyncio.run(run())

    def test_that_are_reached_are_counted(self) -> None:
        metrics = GatewayMetrics()
        gateway = RateLimits(Settings(rate_of_failures=1), metrics)
        asked = {"path": "/v1/jobs", "state": {}, **scope("192.0.2.1")}

        async def run() -> None:
            await gateway.of_failure(asked)
            with pytest.raises(RateLimited):
                await gateway.of_failure(asked)

            assert gateway.is_shut_out(asked)
            with pytest.raises(RateLimited):
                await gateway.of_failure(asked)
            assert not gateway.is_shut_out({**asked, **scope("192.0.2.2")})

        asyncio.run(run())
        assert metrics.registry.get_sample_value("sfumato_rate_limited_total", {"policy": "failures"}) == 2
