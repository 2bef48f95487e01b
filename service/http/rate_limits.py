"""Rate limits: requests per key and per client address, in a sliding window of one minute.

With Redis, all gateways share the counts. Without Redis, or while it is unavailable, each gateway counts
in its own memory. A lost count allows a client more requests for a minute and has no other effect.

Reports of keys with only the scope `device` are counted too: their number, not that of their requests.

All devices of an app share one key, so requests of device keys have a separate limit, which is off by default.
Only failed authentications are counted by address. Above their limit they are answered later, and a valid key
is accepted from every address, so that a client that guesses keys cannot block others behind the same address.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from math import ceil
from typing import TYPE_CHECKING, Any

from limits import RateLimitItemPerMinute, WindowStats
from limits.aio.storage import RedisStorage
from limits.aio.storage.base import SlidingWindowCounterSupport, Storage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from starlette.types import Scope

from models.identity.caller import Caller
from runtime.redis_client import TIMEOUT_SECONDS, CircuitBreaker
from runtime.settings import Settings
from service.http.headers import header_text, parse_address
from service.http.metrics import GatewayMetrics
from service.http.problems import RateLimited
from service.http.route_table import Kind, Rate, entry_of

if TYPE_CHECKING:
    import redis.asyncio

WINDOW_SECONDS = 60
MAX_COUNTED = 100_000  # keys and addresses counted in one gateway's memory; the least recently used are evicted
REDIS_CONNECTIONS = 32
REDIS_PREFIX = "sfumato:limits"
_UNUSED_URL = "async+redis://pool:6379"  # required by the library, which connects through the given pool instead
FAILURE_SECONDS = 1.0  # delay of the response to an invalid key above the limit
MAX_HOPS = 16  # hops of X-Forwarded-For that are examined


@dataclass(frozen=True, slots=True)
class Policy:
    """A rate limit with its public name and the requests it allows per minute."""

    name: str
    item: RateLimitItemPerMinute

    @property
    def quota(self) -> bytes:
        """Return the value of the `RateLimit-Policy` header."""
        return b'"%s";q=%d;w=%d' % (self.name.encode(), self.item.amount, WINDOW_SECONDS)


def _policy(name: str, amount: int) -> Policy | None:
    return Policy(name, RateLimitItemPerMinute(amount, namespace=name)) if amount else None


class RateLimits:
    """The rate limits of a gateway. They raise RateLimited, and never fail because of Redis.

    Parameters
    ----------
    settings : Settings
    metrics : GatewayMetrics
    """

    def __init__(self, settings: Settings, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._trusted = settings.proxy_networks
        self._counts = _Counts(settings.redis_url.get_secret_value() if settings.redis_url else None)
        self._per_key = _policy("key", settings.rate_per_key)
        self._per_device_key = _policy("device-key", settings.rate_per_device_key)
        self.per_address = _policy("address", settings.rate_per_address)
        self._failures = _policy("failures", settings.rate_of_failures)
        self._reports = (
            ReportCounts("reports-key", settings.reports_per_device_key),
            ReportCounts("reports-address", settings.reports_per_address),
        )
        self._slowed: OrderedDict[str, float] = OrderedDict()  # address to its end, monotonic seconds
        self._slowed_until = 0.0  # the latest end

    @property
    def counts_reports(self) -> bool:
        """Return whether a limit applies to uploads of reports with a valid key."""
        return self.per_address is not None or self._per_device_key is not None

    @property
    def is_redis_available(self) -> bool:
        """Return whether the last call to Redis succeeded. Otherwise this gateway counts in its own memory."""
        return self._counts.breaker.is_available

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._counts.close()

    async def count_address(self, scope: Scope) -> None:
        """Count a request of an address. Health probes are exempt, because the operator depends on their responses."""
        if self.per_address is not None and entry_of(scope).kind is not Kind.PROBE:
            await self._count(scope, self.per_address, client_address(scope, self._trusted))

    def policy_for(self, scope: Scope, caller: Caller) -> Policy | None:
        """Return the limit that applies to a request with a valid key, or None."""
        if caller.is_device_only or entry_of(scope).rate is Rate.DEVICE_KEY:
            return self._per_device_key
        return self._per_key

    async def count_key(self, scope: Scope, policy: Policy, caller: Caller) -> None:
        """Count a request with a valid key."""
        await self._count(scope, policy, caller.key_id)

    def allows_reports(self, scope: Scope, caller: Caller, n_reports: int) -> bool:
        """Count reports of a key with scope device only. Return whether its limits and those of its address allow them.

        Each gateway counts them in its own memory, so that a report waits for no other process.
        """
        return not caller.is_device_only or self._exceeded(scope, caller, n_reports) is None

    def count_reports(self, scope: Scope, caller: Caller, n_reports: int) -> None:
        """Count reports as `allows_reports` does. Raise RateLimited."""
        found = self._exceeded(scope, caller, n_reports) if caller.is_device_only else None
        if found is not None:
            self._metrics.rate_limited.labels(found.name).inc()
            raise RateLimited(
                f"the rate limit `{found.name}` is reached: at most {found.limit} reports per minute; "
                f"wait {found.left_seconds} s",
                retry_seconds=found.left_seconds,
            )

    def _exceeded(self, scope: Scope, caller: Caller, n_reports: int) -> "ReportCounts | None":
        by_key, by_address = self._reports
        if by_key.limit and not by_key.add(caller.key_id, n_reports):
            return by_key
        if by_address.limit and not by_address.add(client_address(scope, self._trusted), n_reports):
            return by_address
        return None

    def is_slowed(self, scope: Scope) -> bool:
        """Return whether the address sent too many invalid keys. Its uncached keys are then looked up in turn."""
        if time.monotonic() >= self._slowed_until:
            return False
        return self._slowed_seconds(client_address(scope, self._trusted)) > 0

    async def count_failure(self, scope: Scope) -> None:
        """Count a request without a valid key. Above the limit, wait, then raise RateLimited."""
        if self._failures is None:
            return
        address = client_address(scope, self._trusted)
        if (seconds := self._slowed_seconds(address)) > 0:
            await asyncio.sleep(FAILURE_SECONDS)
            raise self._reject(self._failures, seconds)
        try:
            await self._count(scope, self._failures, address)
        except RateLimited as rejection:
            until = time.monotonic() + float((rejection.headers or {})["retry-after"])
            self._slowed[address] = until
            self._slowed_until = max(until, self._slowed_until)
            while len(self._slowed) > MAX_COUNTED:
                self._slowed.popitem(last=False)
            raise

    def _slowed_seconds(self, address: str) -> float:
        """Return for how many seconds an address is still slowed; not positive if it is not."""
        return self._slowed.get(address, 0.0) - time.monotonic()

    async def _count(self, scope: Scope, policy: Policy, client: str) -> None:
        is_within, stats = await self._counts.hit(policy.item, client)
        seconds = min(max(stats.reset_time - time.time(), 0.0), WINDOW_SECONDS)
        limits = scope["state"].setdefault("rate_limits", [])  # RequestContext adds them to the response headers
        limits.append((policy.quota, b'"%s";r=%d;t=%d' % (policy.name.encode(), stats.remaining, ceil(seconds))))
        if not is_within:
            raise self._reject(policy, seconds)

    def _reject(self, policy: Policy, seconds: float) -> RateLimited:
        self._metrics.rate_limited.labels(policy.name).inc()
        retry_seconds = max(1, ceil(seconds))
        return RateLimited(
            f"the rate limit `{policy.name}` is reached: at most {policy.item.amount} requests per minute; "
            f"wait {retry_seconds} s",
            retry_seconds=retry_seconds,
        )


class ReportCounts:
    """Numbers of reports by key or by address in the current minute.

    Parameters
    ----------
    name : str
    limit : int
        Reports per minute of one client; 0 means no limit.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        self._counts: dict[str, int] = {}
        self._end = 0.0  # monotonic seconds

    def add(self, client: str, n_reports: int) -> bool:
        """Count reports. Return whether the client is within the limit. Reports above it are not counted."""
        now = time.monotonic()
        if now >= self._end or len(self._counts) >= MAX_COUNTED:
            self._counts, self._end = {}, now + WINDOW_SECONDS
        n_before = self._counts.get(client, 0)
        if n_before + n_reports > self.limit:
            return False
        self._counts[client] = n_before + n_reports
        return True

    @property
    def left_seconds(self) -> int:
        """Return the seconds until the next minute."""
        return max(1, ceil(self._end - time.monotonic()))


def headers(limits: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10)."""
    return [
        (b"ratelimit-policy", b", ".join(quota for quota, _ in limits)),
        (b"ratelimit", b", ".join(state for _, state in limits)),
    ]


class _Counts:
    """Request counts in Redis, or in this process while Redis is unavailable."""

    def __init__(self, redis_url: str | None) -> None:
        self._local = SlidingWindowCounterRateLimiter(BoundedMemoryStorage())
        self._redis_url = redis_url
        self._failures: tuple[type[Exception], ...] = () if redis_url is None else _failures()
        self._pool: redis.asyncio.ConnectionPool | None = None
        self._shared: SlidingWindowCounterRateLimiter | None = None
        self.breaker = CircuitBreaker("rate_limits_local", "each gateway counts in its own memory until Redis is back")

    async def hit(self, item: RateLimitItemPerMinute, client: str) -> tuple[bool, WindowStats]:
        """Count one request of a client. Return whether it is within the limit, and the state of the limit."""
        if self._redis_url is not None and self.breaker.allows_call():
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    result = await _hit(self._in_redis(self._redis_url), item, client)
            except self._failures:
                self.breaker.record_failure()
            else:
                self.breaker.record_success()
                return result
        return await _hit(self._local, item, client)

    def _in_redis(self, url: str) -> SlidingWindowCounterRateLimiter:
        if self._shared is None:
            import redis.asyncio
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            self._pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=REDIS_CONNECTIONS,
                timeout=TIMEOUT_SECONDS,
                socket_timeout=TIMEOUT_SECONDS,
                socket_connect_timeout=TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
            options: dict[str, Any] = {"connection_pool": self._pool}  # the library's type is too narrow
            storage = RedisStorage(_UNUSED_URL, implementation="redispy", key_prefix=REDIS_PREFIX, **options)
            self._shared = SlidingWindowCounterRateLimiter(storage)
        return self._shared

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of a failed Redis call. Loading its client takes 0.1 s, so call this only with Redis."""
    import redis.asyncio

    return redis.RedisError, TimeoutError, OSError


async def _hit(
    limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, client: str
) -> tuple[bool, WindowStats]:
    is_within = await limiter.hit(item, client)
    return is_within, await limiter.get_window_stats(item, client)


class BoundedMemoryStorage(Storage, SlidingWindowCounterSupport):
    """Counts in the memory of this process, for a bounded number of keys and addresses.

    The library's own memory storage is unbounded and scans all entries for expired ones with every request,
    so an attacker with many addresses could fill it and slow it down.
    """

    STORAGE_SCHEME = None

    def __init__(self, max_counted: int = MAX_COUNTED) -> None:
        super().__init__()
        self._max_counted = max_counted
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    @property
    def base_exceptions(self) -> type[Exception]:
        """Return the exceptions a storage may raise; this one raises none."""
        return RuntimeError

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count a request if the limit allows it. Return whether it does."""
        window = self._window(key, expiry)
        if window.weight(expiry) + amount > limit:
            return False
        window.current += amount
        return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Return the count and remaining seconds of the previous window, then of the current one."""
        window = self._window(key, expiry)
        left = window.left(expiry)
        return window.previous, left if window.previous else 0.0, window.current, left + expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:  # noqa: ARG002 - required by the base class
        """Remove the counts of a key."""
        self._windows.pop(key, None)

    def _window(self, key: str, expiry: int) -> "_Window":
        number = int(time.time() // expiry)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(number)
            if len(self._windows) > self._max_counted:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(key)
            window.move_to(number)
        return window

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Raise NotImplementedError; only other strategies call it."""
        raise NotImplementedError

    async def get(self, key: str) -> int:
        """Raise NotImplementedError; only other strategies call it."""
        raise NotImplementedError

    async def get_expiry(self, key: str) -> float:
        """Raise NotImplementedError; only other strategies call it."""
        raise NotImplementedError

    async def check(self) -> bool:
        """Return whether the storage is available, which it always is."""
        return True

    async def reset(self) -> int:
        """Remove all counts. Return their number."""
        n_counted = len(self._windows)
        self._windows.clear()
        return n_counted

    async def clear(self, key: str) -> None:
        """Remove the counts of a key."""
        self._windows.pop(key, None)


@dataclass(slots=True)
class _Window:
    number: int  # windows since the epoch
    previous: int = 0
    current: int = 0

    def move_to(self, number: int) -> None:
        if number != self.number:
            self.previous = self.current if number == self.number + 1 else 0
            self.number, self.current = number, 0

    def left(self, expiry: int) -> float:
        return expiry - time.time() % expiry

    def weight(self, expiry: int) -> int:
        return int(self.previous * self.left(expiry) / expiry + self.current)


# ---- client address ----


def client_address(scope: Scope, trusted: Sequence[IPv4Network | IPv6Network]) -> str:
    """Return the client address: the peer, or the last untrusted hop of X-Forwarded-For if the peer is a trusted proxy.

    For IPv6, return the /64 network, because providers assign a whole /64 to each customer.
    """
    peer = scope.get("client")
    if not trusted:
        return _peer_address(peer[0]) if peer else ""
    address = parse_address(peer[0]) if peer else None
    if address is None:
        return ""  # the socket has no addresses
    if _is_in(address, trusted):
        address = _last_untrusted_hop(scope, address, trusted)
    return _counted(address)


@lru_cache(maxsize=4096)
def _peer_address(peer: str) -> str:
    """Return the counted address of a peer that is no proxy."""
    address = parse_address(peer)
    return "" if address is None else _counted(address)


def _counted(address: IPv4Address | IPv6Address) -> str:
    return str(address if isinstance(address, IPv4Address) else IPv6Address(int(address) >> 64 << 64))


def _last_untrusted_hop(
    scope: Scope, peer: IPv4Address | IPv6Address, trusted: Sequence[IPv4Network | IPv6Network]
) -> IPv4Address | IPv6Address:
    """Return the last hop that is not a trusted proxy. Earlier entries are ignored, because clients can forge them."""
    for hop in reversed(header_text(scope, b"x-forwarded-for").rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        if not hop.strip():
            continue  # a list may have empty elements
        address = parse_address(hop)
        if address is None:
            return peer
        peer = address
        if not _is_in(address, trusted):
            return peer
    return peer


def _is_in(address: IPv4Address | IPv6Address, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)
