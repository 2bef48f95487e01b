"""The doorbell: tells an idle worker that a job waits. The database stays the truth.

Redis keys:
    sfumato:doorbell    list; one element, a job id, for each ring; read by BLPOP
    sfumato:limits:*    numbers; requests of the last two minutes, by `service.limits`
Redis channel, which keeps nothing:
    sfumato:bulletin    ids of jobs and datasets that changed; see `models.bulletin`
Without Redis, beside the embedded database:
    <file>-doorbell     named pipe; a line for each ring

A ring that is lost costs a worker's next look into the database, nothing else: nothing is
in Redis that is not in SQL, and Redis being away never fails a request.
"""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from models.named_pipe import NamedPipe

if TYPE_CHECKING:
    from redis import Redis

_KEY = "sfumato:doorbell"
_ONE_WAIT_SECONDS = 1.0  # a longer wait is several, so that a Redis that went silent is noticed
_MAX_RINGS = 10_000  # rings nobody hears are not kept for ever


class Doorbell(Protocol):
    """Rung after a commit that makes a job runnable; waited at by idle workers."""

    @property
    def is_away(self) -> bool:
        """Whether rings are lost at the moment, as far as the last one told."""

    def ring(self, job_id: str) -> None:
        """Say that a job needs a worker. Never raises."""

    def wait(self, seconds: float) -> bool:
        """Return at a ring, which is True, or after this time. Never raises."""


class PollingDoorbell:
    """No Redis, and a database on another machine: nobody rings, workers look into it at every interval."""

    is_away = False

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._stop = threading.Event()

    def ring(self, job_id: str) -> None:
        """Nothing to do: the worker's next look finds the job."""

    def wait(self, seconds: float) -> bool:
        """Sleep one polling interval, at most `seconds`."""
        return self._stop.wait(min(seconds, self._poll_seconds))


class PipeDoorbell:
    """No Redis, everything on one machine: rings through a pipe; a lost one costs a polling interval."""

    is_away = False

    def __init__(self, path: Path, poll_seconds: float) -> None:
        self._pipe = NamedPipe(path)
        self._poll_seconds = poll_seconds

    def ring(self, job_id: str) -> None:  # noqa: ARG002 - that there is one says enough
        """Wake the workers of this machine."""
        self._pipe.tell("")

    def wait(self, seconds: float) -> bool:
        """Return at a ring, or after one polling interval, at most `seconds`."""
        seconds = min(seconds, self._poll_seconds)
        if self._pipe.open() is None:
            time.sleep(seconds)
            return False
        return self._pipe.wait(seconds)


class RedisDoorbell:
    """Rings over Redis; while Redis is away it behaves like polling."""

    def __init__(self, url: str, poll_seconds: float) -> None:
        from models.redis_link import RedisLink  # loads Redis' client, which others do without

        self._link = RedisLink(
            url,
            event="doorbell_away",
            consequence="workers poll the database until it is back",
            wait_seconds=_ONE_WAIT_SECONDS,
        )
        self._poll_seconds = poll_seconds

    @property
    def is_away(self) -> bool:
        """Whether the last ring or wait was in vain."""
        return self._link.is_away

    def ring(self, job_id: str) -> None:
        """Push the job's id."""

        def push(redis: "Redis") -> None:
            with redis.pipeline(transaction=False) as pipe:
                pipe.rpush(_KEY, job_id)
                pipe.ltrim(_KEY, -_MAX_RINGS, -1)
                pipe.execute()

        self._link.run(push)

    def wait(self, seconds: float) -> bool:
        """Block until a ring."""
        deadline = time.monotonic() + seconds
        is_rung = False

        def hear(redis: "Redis") -> None:
            nonlocal is_rung
            while not is_rung and (left := deadline - time.monotonic()) > 0:
                is_rung = bool(redis.blpop([_KEY], timeout=max(0.01, min(left, _ONE_WAIT_SECONDS))))

        # one that was away is greeted first: a silent one would hold the worker up for a whole wait each time
        is_there = not self._link.is_away or self._link.run(lambda redis: redis.ping())
        if not (is_there and self._link.run(hear, waits=True)):
            time.sleep(max(0.0, min(deadline - time.monotonic(), self._poll_seconds)))
        return is_rung


def open_doorbell(redis_url: str | None, poll_seconds: float, database_file: Path | None = None) -> Doorbell:
    """The doorbell the settings ask for; without Redis it is beside the file of an embedded database."""
    if redis_url:
        return RedisDoorbell(redis_url, poll_seconds)
    if database_file is not None:
        return PipeDoorbell(database_file.with_name(f"{database_file.name}-doorbell"), poll_seconds)
    return PollingDoorbell(poll_seconds)
