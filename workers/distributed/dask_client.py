"""Client of a Dask scheduler: calls functions on its workers and returns their results in order.

The called functions are those of `workers.distributed.dask_tasks`, with public arguments: ids, numbers, and centroids
that were charged. The keys and arguments of tasks appear in the scheduler's logs and on its dashboard, so they never
contain private data. Results travel directly from the workers to this process.

Every failure raises `SchedulerUnavailable`. The caller then computes the same integers locally, because the database
holds all the inputs.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import structlog

from connections.log_records import describe
from models.database.types import new_id
from runtime.settings import settings

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 5.0  # timeout for the scheduler to respond, and for the first worker to appear
CHECK_SECONDS = 1.0  # between checks for workers during a call
WORKERLESS_SECONDS = 30.0  # without any worker before a call fails; a lost worker may be replaced
RETRY_SECONDS = 60.0  # after a failed connection until the next attempt

log = structlog.get_logger(__name__)


class SchedulerUnavailable(Exception):
    """The scheduler or its workers failed. The message contains nothing private."""


class Scheduler:
    """A Dask scheduler. The connection opens when it is first needed.

    Parameters
    ----------
    address : str
        tls://host:port, with the certificates of Dask's own configuration (`DASK_DISTRIBUTED__COMM__TLS__*`);
        or tcp://host:port.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: Client | None = None
        self._not_before = 0.0

    @property
    def is_confidential(self) -> bool:
        """Return whether the network cannot read the traffic: it uses TLS, or stays on this machine."""
        host = self.address.split("://")[1].rsplit(":", 1)[0]
        return self.address.startswith("tls://") or host in ("127.0.0.1", "[::1]", "localhost")

    def count_workers(self) -> int:
        """Return the number of workers, at least one.

        Raises
        ------
        SchedulerUnavailable
        """
        client = self._connect()
        deadline = time.monotonic() + CONNECT_SECONDS
        while not (n_workers := _count_workers(client)):
            if time.monotonic() > deadline:
                self.close()
                raise SchedulerUnavailable("it has no workers")
            time.sleep(CHECK_SECONDS / 10)
        return n_workers

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a task function on the workers once for each tuple of arguments, and return the values in order.

        If a worker is lost, another worker repeats its tasks. The function returns a
        `workers.distributed.dask_tasks.TaskResult`.

        Raises
        ------
        SchedulerUnavailable
            The scheduler or all its workers are gone, or a task fails on every worker.
        """
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        client = self._connect()
        name = getattr(function, "__name__", "call")
        try:
            futures = [client.submit(function, *given, key=new_id(name), pure=False) for given in arguments]
            self._wait(client, futures)
            results = client.gather(futures, direct=True)
        except SchedulerUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, KilledWorker | FutureCancelledError | OSError):
                log.error("scheduler_failed", **describe(error))
            self.close()
            raise SchedulerUnavailable(type(error).__name__) from None
        for result in results:
            if result.failure is not None:
                raise SchedulerUnavailable(f"a task failed with {result.failure}")
        return [result.value for result in results]

    def call_all(self, function: Callable[..., Any], *given: Any) -> None:
        """Call a function on every worker that is available. Log failures and never raise."""
        if self._client is None:
            return
        try:
            self._client.run(function, *given, on_error="ignore", nanny=False)
        except Exception as error:
            log.warning("scheduler_failed", **describe(error))

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close(timeout=1)
            except Exception as error:
                log.warning("scheduler_failed", **describe(error))

    def _connect(self) -> "Client":
        if self._client is not None and self._client.status == "running":
            return self._client
        self.close()
        if time.monotonic() < self._not_before:
            raise SchedulerUnavailable("the last connection attempt failed a moment ago")
        try:
            self._client = _client_type()(
                self.address, timeout=CONNECT_SECONDS, set_as_default=False, direct_to_workers=True, name="sfumato"
            )
        except Exception as error:
            self._not_before = time.monotonic() + RETRY_SECONDS
            raise SchedulerUnavailable(type(error).__name__) from None
        return self._client

    def _wait(self, client: "Client", futures: list[Any]) -> None:
        from distributed import wait

        workers_seen = time.monotonic()
        while True:
            with client.as_current(), suppress(TimeoutError):
                wait(futures, timeout=CHECK_SECONDS)
                return
            if client.status != "running":
                raise SchedulerUnavailable("the connection was lost")
            now = time.monotonic()
            if _count_workers(client):
                workers_seen = now
            elif now > workers_seen + WORKERLESS_SECONDS:
                raise SchedulerUnavailable("all its workers are gone")


@lru_cache
def _client_type() -> "type[Client]":
    """Return a subclass of distributed's client that closes at once if it cannot connect.

    Otherwise the garbage collector closes the client later. If another client is being created then, the two wait for
    one lock in the same thread.
    """
    from distributed import Client

    class PromptClient(Client):  # type: ignore[misc]  # distributed has no type annotations
        def start(self, **given: Any) -> None:
            try:
                super().start(**given)
            except BaseException:
                with suppress(Exception):
                    self.close(timeout=1)
                raise

    return PromptClient


def _count_workers(client: "Client") -> int:
    try:
        return len(client.scheduler_info(n_workers=-1)["workers"])
    except (OSError, TimeoutError, RuntimeError) as error:
        raise SchedulerUnavailable(type(error).__name__) from None


@lru_cache
def get_scheduler() -> Scheduler:
    """Return the scheduler of this process's settings, which must configure one."""
    address = settings().dask_scheduler
    assert address is not None  # noqa: S101 - callers check the setting before they import this package
    return Scheduler(address)
