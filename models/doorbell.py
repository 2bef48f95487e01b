"""The doorbell: tells an idle worker that a job waits. The database stays the truth.

Redis keys:
    sfumato:doorbell    list; one element, a job id, for each ring; read by BLPOP
    sfumato:limits:*    numbers; requests of the last two minutes, by `service.limits`

A ring that is lost costs a worker's next look into the database, nothing else: nothing is
in Redis that is not in SQL, and Redis being away never fails a request.
"""

import threading
import time
from typing import Protocol

import structlog
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

_KEY = "sfumato:doorbell"
_PATIENCE_SECONDS = 0.5  # a Redis that does not answer within this is away
_ONE_WAIT_SECONDS = 2.0  # a longer wait is several, so that a Redis that went silent is noticed
_MAX_RINGS = 10_000  # rings nobody hears are not kept for ever

log = structlog.get_logger(__name__)


class Doorbell(Protocol):
    """Rung after a commit that makes a job runnable; waited at by idle workers."""

    @property
    def is_away(self) -> bool:
        """Whether rings are lost at the moment, as far as the last one told."""

    def ring(self, job_id: str) -> None:
        """Say that a job needs a worker. Never raises."""

    def wait(self, seconds: float) -> None:
        """Return at a ring, or after this time. Never raises."""


class PollingDoorbell:
    """No Redis: nobody rings, workers look into the database at every interval."""

    is_away = False

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._stop = threading.Event()

    def ring(self, job_id: str) -> None:
        """Nothing to do: the worker's next look finds the job."""

    def wait(self, seconds: float) -> None:
        """Sleep one polling interval, at most `seconds`."""
        self._stop.wait(min(seconds, self._poll_seconds))


class RedisDoorbell:
    """Rings over Redis; while Redis is away it behaves like polling."""

    def __init__(self, url: str, poll_seconds: float) -> None:
        self._ringer = _client(url, answer_seconds=_PATIENCE_SECONDS)
        self._listener = _client(url, answer_seconds=_ONE_WAIT_SECONDS + _PATIENCE_SECONDS)
        self._poll_seconds = poll_seconds
        self.is_away = False

    def ring(self, job_id: str) -> None:
        """Push the job's id."""
        try:
            with self._ringer.pipeline(transaction=False) as pipe:
                pipe.rpush(_KEY, job_id)
                pipe.ltrim(_KEY, -_MAX_RINGS, -1)
                pipe.execute()
            self.is_away = False
        except RedisError:
            self._note_away()

    def wait(self, seconds: float) -> None:
        """Block until a ring."""
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                if self._listener.blpop([_KEY], timeout=max(0.01, min(left, _ONE_WAIT_SECONDS))):
                    break
            self.is_away = False
        except RedisError:
            self._note_away()
            time.sleep(min(seconds, self._poll_seconds))

    def _note_away(self) -> None:
        if not self.is_away:
            log.warning("doorbell_away", consequence="workers poll the database until it is back")
        self.is_away = True


def _client(url: str, *, answer_seconds: float) -> Redis:
    """A client that tries once: what follows a failure here is a look into the database, at once."""
    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, socket_connect_timeout=_PATIENCE_SECONDS, socket_timeout=answer_seconds, retry=retry)


def open_doorbell(redis_url: str | None, poll_seconds: float) -> Doorbell:
    """The doorbell the settings ask for."""
    return RedisDoorbell(redis_url, poll_seconds) if redis_url else PollingDoorbell(poll_seconds)
