"""Wake an idle worker when a job needs one. The database remains the only source of truth.

Redis keys:
    sfumato:job-signal  list with one job id per notification, read by BLPOP
    sfumato:limits:*    request counts of the last two minutes, see `service.http.rate_limits`
Redis channel, not stored:
    sfumato:changes     ids of changed jobs and datasets, see `runtime.change_publisher`
Without Redis, next to an embedded database:
    <database>-job-signal  named pipe with one line per notification

Redis contains nothing that the database lacks. If a notification is lost, a worker finds the job at its next poll.
An unavailable Redis never fails a request.
"""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runtime.named_pipe import NamedPipe
from runtime.redis_client import RedisClient

if TYPE_CHECKING:
    from redis import Redis

_KEY = "sfumato:job-signal"
_MAX_BLOCK_SECONDS = 1.0  # longer waits are split, so that a Redis that stopped answering is noticed
_MAX_NOTIFICATIONS = 10_000  # kept in the list; older ones are dropped


class JobSignal(Protocol):
    """Wakes idle workers. Gateways and workers notify after a commit that makes a job runnable."""

    @property
    def is_available(self) -> bool:
        """Return whether the last notification or wait succeeded."""

    def notify(self, job_id: str) -> None:
        """Notify one worker that a job needs it. Never raise."""

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most `seconds`. Return whether one arrived. Never raise."""


class PollingJobSignal:
    """Sends no notifications. Used when there is no Redis and the database is remote; workers poll."""

    is_available = True

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._stop = threading.Event()

    def notify(self, job_id: str) -> None:
        """Do nothing: a worker finds the job at its next poll."""

    def wait(self, seconds: float) -> bool:
        """Sleep for one polling interval, at most `seconds`."""
        return self._stop.wait(min(seconds, self._poll_seconds))


class PipeJobSignal:
    """Notifies the workers of the same machine through a named pipe. A lost notification costs a polling interval."""

    is_available = True

    def __init__(self, path: Path, poll_seconds: float) -> None:
        self._pipe = NamedPipe(path)
        self._poll_seconds = poll_seconds

    def notify(self, job_id: str) -> None:  # noqa: ARG002 - the worker claims the next job, whichever that is
        """Wake a worker of this machine."""
        self._pipe.write_line("")

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most one polling interval and at most `seconds`."""
        seconds = min(seconds, self._poll_seconds)
        if self._pipe.open() is None:
            time.sleep(seconds)
            return False
        return self._pipe.wait(seconds)


class RedisJobSignal:
    """Notifies workers over Redis. While Redis is unavailable, workers poll."""

    def __init__(self, url: str, poll_seconds: float) -> None:
        self._client = RedisClient(
            url,
            event="job_signal_unavailable",
            consequence="workers poll the database until Redis is back",
            wait_seconds=_MAX_BLOCK_SECONDS,
        )
        self._poll_seconds = poll_seconds

    @property
    def is_available(self) -> bool:
        """Return whether the last notification or wait succeeded."""
        return self._client.is_available

    def notify(self, job_id: str) -> None:
        """Push the job's id to the list."""

        def push(redis: "Redis") -> None:
            with redis.pipeline(transaction=False) as pipe:
                pipe.rpush(_KEY, job_id)
                pipe.ltrim(_KEY, -_MAX_NOTIFICATIONS, -1)
                pipe.execute()

        self._client.run(push)

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most `seconds`."""
        deadline = time.monotonic() + seconds
        is_notified = False

        def pop(redis: "Redis") -> None:
            nonlocal is_notified
            while not is_notified and (left := deadline - time.monotonic()) > 0:
                is_notified = bool(redis.blpop([_KEY], timeout=max(0.01, min(left, _MAX_BLOCK_SECONDS))))

        # After a failure, ping first: a server that does not answer would delay the worker by a whole wait each time.
        can_wait = self._client.is_available or self._client.run(lambda redis: redis.ping())
        if not (can_wait and self._client.run(pop, blocks=True)):
            time.sleep(max(0.0, min(deadline - time.monotonic(), self._poll_seconds)))
        return is_notified


def open_job_signal(redis_url: str | None, poll_seconds: float, database_file: Path | None = None) -> JobSignal:
    """Return the signal that the settings select: Redis, else the embedded database's pipe, else polling."""
    if redis_url:
        return RedisJobSignal(redis_url, poll_seconds)
    if database_file is not None:
        return PipeJobSignal(database_file.with_name(f"{database_file.name}-job-signal"), poll_seconds)
    return PollingJobSignal(poll_seconds)
