"""A Redis client with short timeouts, behind a circuit breaker.

Every use of Redis has a slower replacement without it. A call therefore times out after `TIMEOUT_SECONDS`, and while
Redis is unavailable only one call per `RETRY_SECONDS` reaches it. All other calls use the replacement at once.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from redis import Redis

TIMEOUT_SECONDS = 0.25  # seconds until a call to Redis counts as failed
RETRY_SECONDS = 1.0  # seconds between attempts while Redis is unavailable

log = structlog.get_logger(__name__)


class CircuitBreaker:
    """Limits calls to an unavailable Redis to one per `RETRY_SECONDS`. Safe to use from several threads.

    Parameters
    ----------
    event, consequence : str
        Log event when Redis becomes unavailable, and its effect on the service.
    """

    def __init__(self, event: str, consequence: str) -> None:
        self._event, self._consequence = event, consequence
        self._lock = threading.Lock()
        self._retry_at = 0.0
        self.is_available = True  # result of the last call

    def allows_call(self) -> bool:
        """Return whether the caller may call Redis now. While Redis is unavailable, reserve the next attempt for it."""
        with self._lock:
            now = time.monotonic()
            if now < self._retry_at:
                return False
            if not self.is_available:
                self._retry_at = now + RETRY_SECONDS
            return True

    def record_success(self) -> None:
        """Allow all calls again."""
        self.is_available, self._retry_at = True, 0.0

    def record_failure(self) -> None:
        """Reject calls for `RETRY_SECONDS`. Log the first failure after a success."""
        with self._lock:
            if self.is_available:
                log.warning(self._event, consequence=self._consequence)
            self.is_available = False
            self._retry_at = time.monotonic() + RETRY_SECONDS


class RedisClient:
    """Runs commands in Redis and reports failures as a return value. Safe to use from several threads.

    Parameters
    ----------
    url : str
    event, consequence : str
        See `CircuitBreaker`.
    wait_seconds : float
        Longest time that a blocking command waits in Redis.
    """

    def __init__(self, url: str, *, event: str, consequence: str, wait_seconds: float = 0.0) -> None:
        from redis import RedisError  # loaded here: processes without Redis start faster

        self._errors = (RedisError, OSError)
        self._client = _open_client(url, TIMEOUT_SECONDS)
        self._blocking_client = _open_client(url, wait_seconds + TIMEOUT_SECONDS)
        self._breaker = CircuitBreaker(event, consequence)

    @property
    def is_available(self) -> bool:
        """Return whether the last command succeeded."""
        return self._breaker.is_available

    def run(self, command: Callable[["Redis"], object], *, blocks: bool = False) -> bool:
        """Run a command and return whether it succeeded. Return False at once after a recent failure.

        Parameters
        ----------
        command : callable
        blocks : bool
            Whether the command waits in Redis, so that it needs the longer timeout.
        """
        if not self._breaker.allows_call():
            return False
        try:
            command(self._blocking_client if blocks else self._client)
        except self._errors:
            self._breaker.record_failure()
            return False
        self._breaker.record_success()
        return True


def _open_client(url: str, answer_seconds: float) -> "Redis":
    """Return a client that does not retry: after a failure the caller uses the slower replacement."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, socket_connect_timeout=TIMEOUT_SECONDS, socket_timeout=answer_seconds, retry=retry)
