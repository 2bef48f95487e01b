"""A way to Redis that gives up soon, and leaves a Redis that is away alone for a second.

What is asked of Redis here has a slower way through SQL. So whoever asks waits for it a
quarter of a second at most, and while it is away one of them a second does; the others go
the slower way at once.
"""

import threading
import time
from collections.abc import Callable

import structlog
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

PATIENCE_SECONDS = 0.25  # a Redis that does not answer within this is away
AWAY_SECONDS = 1.0  # until a Redis that was away is asked again

log = structlog.get_logger(__name__)


class RedisLink:
    """Any thread's way to Redis.

    Parameters
    ----------
    url : str
    event, consequence : str
        What the log says where Redis is away.
    wait_seconds : float
        How long orders that wait may have Redis wait before it answers.
    """

    def __init__(self, url: str, *, event: str, consequence: str, wait_seconds: float = 0.0) -> None:
        self._client = _client(url, PATIENCE_SECONDS)
        self._waiting_client = _client(url, wait_seconds + PATIENCE_SECONDS)
        self._event, self._consequence = event, consequence
        self._deciding = threading.Lock()
        self._ask_again_at = 0.0
        self.is_away = False  # as far as the last order told

    def run(self, order: Callable[[Redis], object], *, waits: bool = False) -> bool:
        """Whether Redis did it; False at once where it was away a moment ago. Never raises because of Redis."""
        with self._deciding:
            now = time.monotonic()
            if now < self._ask_again_at:
                return False
            if self.is_away:
                self._ask_again_at = now + AWAY_SECONDS  # meanwhile the others do without
        try:
            order(self._waiting_client if waits else self._client)
        except (RedisError, OSError):
            self._note_away()
            return False
        self.is_away, self._ask_again_at = False, 0.0
        return True

    def _note_away(self) -> None:
        with self._deciding:
            if not self.is_away:
                log.warning(self._event, consequence=self._consequence)
            self.is_away = True
            self._ask_again_at = time.monotonic() + AWAY_SECONDS


def _client(url: str, answer_seconds: float) -> Redis:
    """A client that tries once: what follows a failure is the slower way."""
    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, socket_connect_timeout=PATIENCE_SECONDS, socket_timeout=answer_seconds, retry=retry)
