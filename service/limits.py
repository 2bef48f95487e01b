"""How often somebody may ask: requests of one key and of one address, over a sliding minute.

Redis counts for all gateways, where there is one; while it is away each gateway counts for
itself, and once a second one request looks whether it is back. A count that is lost lets
somebody ask more often for a minute, and nothing else.

Devices of an app share a key: what only they do has a limit of its own, off by default.
A key that was live a moment ago is let in from any address, so that nobody who shares an
address with a guesser is shut out by it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from math import ceil
from typing import TYPE_CHECKING, Any

import structlog
from limits import RateLimitItemPerMinute, WindowStats
from limits.aio.storage import RedisStorage
from limits.aio.storage.base import SlidingWindowCounterSupport, Storage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from starlette.types import Scope

from models.settings import Settings
from models.tenant import Caller
from models.tenant import Scope as KeyScope
from service.metrics import GatewayMetrics
from service.problems import RateLimited

if TYPE_CHECKING:
    import redis.asyncio

WINDOW_SECONDS = 60
MAX_COUNTED = (
    100_000  # keys and addresses in one gateway's memory; of more, those that were quiet longest are forgotten
)
PATIENCE_SECONDS = 0.25  # a Redis that does not answer within this is away
AWAY_SECONDS = 1.0  # until a Redis that was away is asked again
REDIS_CONNECTIONS = 32
REDIS_PREFIX = "sfumato:limits"
_UNREAD_URL = "async+redis://pool:6379"  # the library wants one, with a port; it connects through the pool
MAX_HOPS = 16  # of a forwarded request that are looked at

_DEVICE_ONLY = frozenset({KeyScope.DEVICE.value})
_PROBES = ("/healthz", "/readyz")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """One limit: what it is called on the wire, and how many requests a minute it allows."""

    name: str
    item: RateLimitItemPerMinute

    @property
    def quota(self) -> bytes:
        """As `RateLimit-Policy` tells it."""
        return b'"%s";q=%d;w=%d' % (self.name.encode(), self.item.amount, WINDOW_SECONDS)


def _policy(name: str, amount: int) -> Policy | None:
    return Policy(name, RateLimitItemPerMinute(amount, namespace=name)) if amount else None


class RateLimits:
    """What a gateway asks before it lets a request on. Raises RateLimited; never fails because of Redis.

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
        self._shut_out: OrderedDict[str, float] = OrderedDict()  # addresses, and until when
        self._shut_out_until = 0.0  # the latest of them

    @property
    def counts_reports(self) -> bool:
        """Whether there is a limit that a request with reports counts for, if its key is live."""
        return self.per_address is not None or self._per_device_key is not None

    @property
    def is_redis_away(self) -> bool:
        """Whether this gateway counts for itself although there is to be a Redis."""
        return self._counts.is_away

    async def close(self) -> None:
        """Leave Redis."""
        await self._counts.close()

    async def of_address(self, scope: Scope) -> None:
        """Count a request, whoever it is from. Probes are not counted: their answers run the service."""
        if self.per_address is not None and scope["path"] not in _PROBES:
            await self._count(scope, self.per_address, address_of(scope, self._trusted))

    def policy_of(self, scope: Scope, caller: Caller) -> Policy | None:
        """The limit that a request of a live key counts for, if there is one."""
        if scope["path"].endswith("/reports") or caller.scopes == _DEVICE_ONLY:
            return self._per_device_key
        return self._per_key

    async def of_key(self, scope: Scope, policy: Policy, caller: Caller) -> None:
        """Count a request of a live key."""
        await self._count(scope, policy, caller.key_id)

    def is_shut_out(self, scope: Scope) -> bool:
        """Whether a request is from an address that failed too often just now: no unknown key of it is looked up."""
        return time.monotonic() < self._shut_out_until and self._left(address_of(scope, self._trusted)) > 0

    async def of_failure(self, scope: Scope) -> None:
        """Count a request without a live key."""
        if self._failures is None:
            return
        address = address_of(scope, self._trusted)
        if (left := self._left(address)) > 0:
            raise self._refusal(self._failures.name, left)
        try:
            await self._count(scope, self._failures, address)
        except RateLimited as refused:
            until = time.monotonic() + float((refused.headers or {})["retry-after"])
            self._shut_out[address] = until
            self._shut_out_until = max(until, self._shut_out_until)
            while len(self._shut_out) > MAX_COUNTED:
                self._shut_out.popitem(last=False)
            raise

    def _left(self, address: str) -> float:
        """Seconds for which an address is shut out still."""
        return self._shut_out.get(address, 0.0) - time.monotonic()

    async def _count(self, scope: Scope, policy: Policy, who: str) -> None:
        is_within, stats = await self._counts.hit(policy.item, who)
        seconds = min(max(stats.reset_time - time.time(), 0.0), WINDOW_SECONDS)
        told = scope["state"].setdefault("rate_limits", [])  # RequestContext puts them onto the answer
        told.append((policy.quota, b'"%s";r=%d;t=%d' % (policy.name.encode(), stats.remaining, ceil(seconds))))
        if not is_within:
            raise self._refusal(policy.name, seconds)

    def _refusal(self, policy: str, seconds: float) -> RateLimited:
        self._metrics.rate_limited.labels(policy).inc()
        return RateLimited(f"the limit `{policy}` of requests a minute is reached", retry_seconds=max(1, ceil(seconds)))


def headers(told: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """`RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10) of the limits a request met."""
    return [
        (b"ratelimit-policy", b", ".join(quota for quota, _ in told)),
        (b"ratelimit", b", ".join(state for _, state in told)),
    ]


class _Counts:
    """Counts in Redis, or here."""

    def __init__(self, redis_url: str | None) -> None:
        self._here = SlidingWindowCounterRateLimiter(BoundedMemory())
        self._redis_url = redis_url
        self._failures: tuple[type[Exception], ...] = () if redis_url is None else _failures()
        self._pool: redis.asyncio.ConnectionPool | None = None
        self._shared: SlidingWindowCounterRateLimiter | None = None
        self._ask_again_at = 0.0
        self.is_away = False

    async def hit(self, item: RateLimitItemPerMinute, who: str) -> tuple[bool, WindowStats]:
        """Count one request of somebody: whether it is within the limit, and how that stands then."""
        if self._redis_url is not None and time.monotonic() >= self._ask_again_at:
            if self.is_away:
                self._ask_again_at = time.monotonic() + AWAY_SECONDS  # meanwhile the others count here
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    answer = await _hit(self._in_redis(self._redis_url), item, who)
            except self._failures:
                self._note_away()
            else:
                self.is_away, self._ask_again_at = False, 0.0
                return answer
        return await _hit(self._here, item, who)

    def _note_away(self) -> None:
        if not self.is_away:
            log.warning("rate_limits_alone", consequence="each gateway counts for itself until Redis is back")
        self.is_away = True
        self._ask_again_at = time.monotonic() + AWAY_SECONDS

    def _in_redis(self, url: str) -> SlidingWindowCounterRateLimiter:
        if self._shared is None:
            import redis.asyncio
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            self._pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=REDIS_CONNECTIONS,
                timeout=PATIENCE_SECONDS,
                socket_timeout=PATIENCE_SECONDS,
                socket_connect_timeout=PATIENCE_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
            given: dict[str, Any] = {"connection_pool": self._pool}  # which the library types more narrowly
            storage = RedisStorage(_UNREAD_URL, implementation="redispy", key_prefix=REDIS_PREFIX, **given)
            self._shared = SlidingWindowCounterRateLimiter(storage)
        return self._shared

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()


def _failures() -> tuple[type[Exception], ...]:
    """How Redis fails. Loads its client, a tenth of a second that those pay who have a Redis."""
    import redis.asyncio

    return redis.RedisError, TimeoutError, OSError


async def _hit(
    limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, who: str
) -> tuple[bool, WindowStats]:
    is_within = await limiter.hit(item, who)
    return is_within, await limiter.get_window_stats(item, who)


class BoundedMemory(Storage, SlidingWindowCounterSupport):
    """Counts in this process, of a bounded number of keys and addresses.

    The library's own memory forgets only what has lapsed, which it looks for among all of
    them with every request: an attacker with many addresses fills the one and slows the other.
    """

    STORAGE_SCHEME = None

    def __init__(self, max_counted: int = MAX_COUNTED) -> None:
        super().__init__()
        self._max_counted = max_counted
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    @property
    def base_exceptions(self) -> type[Exception]:
        """What a storage may raise; this one nothing."""
        return RuntimeError

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count where the limit allows it."""
        window = self._window(key, expiry)
        if window.weight(expiry) + amount > limit:
            return False
        window.current += amount
        return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and seconds left of the window before this one, and the same of this one."""
        window = self._window(key, expiry)
        left = window.left(expiry)
        return window.previous, left if window.previous else 0.0, window.current, left + expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:  # noqa: ARG002 - the base class asks for it
        """Forget."""
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
        """Of another strategy."""
        raise NotImplementedError

    async def get(self, key: str) -> int:
        """Of another strategy."""
        raise NotImplementedError

    async def get_expiry(self, key: str) -> float:
        """Of another strategy."""
        raise NotImplementedError

    async def check(self) -> bool:
        """Always there."""
        return True

    async def reset(self) -> int:
        """Forget everything."""
        n_counted = len(self._windows)
        self._windows.clear()
        return n_counted

    async def clear(self, key: str) -> None:
        """Forget."""
        self._windows.pop(key, None)


@dataclass(slots=True)
class _Window:
    number: int  # since the epoch
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


# ---- whose address ----


def address_of(scope: Scope, trusted: Sequence[IPv4Network | IPv6Network]) -> str:
    """Who is taken to have sent a request: the peer, or whom the trusted proxies say they had it from.

    Of IPv6 the network of 64 bits, which one customer has to itself.
    """
    peer = scope.get("client")
    address = _parsed(peer[0]) if peer else None
    if address is None:
        return ""  # a socket without addresses
    if trusted and _is_in(address, trusted):
        address = _forwarded(scope, address, trusted)
    return str(address if isinstance(address, IPv4Address) else IPv6Address(int(address) >> 64 << 64))


def _forwarded(
    scope: Scope, peer: IPv4Address | IPv6Address, trusted: Sequence[IPv4Network | IPv6Network]
) -> IPv4Address | IPv6Address:
    """The last hop that no trusted proxy is: what stands before it anybody may have written."""
    given = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
    for hop in reversed(given.decode("latin-1").rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        address = _parsed(hop.strip())
        if address is None:
            return peer
        peer = address
        if not _is_in(address, trusted):
            return peer
    return peer


def _parsed(text: Any) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _is_in(address: IPv4Address | IPv6Address, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)
