"""The way to a Dask scheduler, where one is configured: calls made on its workers, their answers in order.

What is called is a function of `workers.remote` with public arguments: ids, numbers, centres that were paid for. A
task's key and its arguments show in the scheduler's logs and on its dashboard, so nothing private is
ever in them. Answers come from the workers straight to this process.

Whatever goes wrong on the way is `SchedulerAway`: nothing is kept there that is not in the database, and
whoever called can do the same work here, to the same integers.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import structlog

from models.db import new_id
from models.settings import settings
from workers.process import describe

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 5.0  # for the scheduler to answer, and for a worker to be there
LOOK_SECONDS = 1.0  # how often it is looked whether there are workers, while tasks are under way
WORKERLESS_SECONDS = 30.0  # that there may be none before a call is given up: one that was lost may be replaced
AWAY_SECONDS = 60.0  # after the scheduler was not there it is not looked for again

log = structlog.get_logger(__name__)


class SchedulerAway(Exception):
    """The scheduler, or its workers, did not do what they were asked; the message holds nothing private."""


class Scheduler:
    """One Dask scheduler, connected to when it is first needed.

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
    def is_sealed(self) -> bool:
        """Whether nobody between the processes can read along: TLS, or everything on this machine."""
        host = self.address.split("://")[1].rsplit(":", 1)[0]
        return self.address.startswith("tls://") or host in ("127.0.0.1", "[::1]", "localhost")

    def n_workers(self) -> int:
        """How many workers there are, at least one. Raises SchedulerAway."""
        client = self._connected()
        deadline = time.monotonic() + CONNECT_SECONDS
        while not (n_workers := _n_workers(client)):
            if time.monotonic() > deadline:
                self._gone()
                raise SchedulerAway("it has no workers")
            time.sleep(LOOK_SECONDS / 10)
        return n_workers

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What the function, with each of these arguments, returns on some worker; in the arguments' order.

        A task whose worker is lost is done again by another. The function returns a `workers.remote.Reply`.

        Raises
        ------
        SchedulerAway
            The scheduler or all its workers are gone, or a task fails wherever it is tried.
        """
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        client = self._connected()
        name = getattr(function, "__name__", "call")
        try:
            futures = [client.submit(function, *given, key=new_id(name), pure=False) for given in arguments]
            self._await(client, futures)
            replies = client.gather(futures, direct=True)
        except SchedulerAway:
            raise
        except (KilledWorker, FutureCancelledError, OSError) as error:
            self._gone()
            raise SchedulerAway(type(error).__name__) from None
        except Exception as error:
            log.error("scheduler_failed", **describe(error))
            self._gone()
            raise SchedulerAway(type(error).__name__) from None
        for reply in replies:
            if reply.failure is not None:
                raise SchedulerAway(f"a worker of it answered {reply.failure}")
        return [reply.value for reply in replies]

    def tell_all(self, function: Callable[..., Any], *given: Any) -> None:
        """Have every worker call a function; whoever is not there is not told, and nothing is raised."""
        if self._client is None:
            return
        try:
            self._client.run(function, *given, on_error="ignore", nanny=False)
        except Exception as error:
            log.warning("scheduler_failed", **describe(error))

    def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close(timeout=1)
            except Exception as error:
                log.warning("scheduler_failed", **describe(error))

    def _connected(self) -> "Client":
        if self._client is not None and self._client.status == "running":
            return self._client
        self.close()
        if time.monotonic() < self._not_before:
            raise SchedulerAway("it was away a moment ago")
        try:
            self._client = _client_type()(
                self.address, timeout=CONNECT_SECONDS, set_as_default=False, direct_to_workers=True, name="sfumato"
            )
        except Exception as error:
            self._not_before = time.monotonic() + AWAY_SECONDS
            raise SchedulerAway(type(error).__name__) from None
        return self._client

    def _await(self, client: "Client", futures: list[Any]) -> None:
        from distributed import wait

        workers_seen = time.monotonic()
        while True:
            with client.as_current(), suppress(TimeoutError):
                wait(futures, timeout=LOOK_SECONDS)
                return
            if client.status != "running":
                raise SchedulerAway("the connection was lost")
            now = time.monotonic()
            if _n_workers(client):
                workers_seen = now
            elif now > workers_seen + WORKERLESS_SECONDS:
                raise SchedulerAway("all its workers are gone")

    def _gone(self) -> None:
        self.close()


@lru_cache
def _client_type() -> "type[Client]":
    """distributed's client, closed at once where it cannot connect.

    Left to the garbage collector, it is closed whenever that comes by: where another client is just being made, the
    two wait for one lock, in one thread.
    """
    from distributed import Client

    class PromptClient(Client):  # type: ignore[misc]  # it tells no types
        def start(self, **given: Any) -> None:
            try:
                super().start(**given)
            except BaseException:
                with suppress(Exception):
                    self.close(timeout=1)
                raise

    return PromptClient


def _n_workers(client: "Client") -> int:
    try:
        return len(client.scheduler_info(n_workers=-1)["workers"])
    except (OSError, TimeoutError, RuntimeError) as error:
        raise SchedulerAway(type(error).__name__) from None


@lru_cache
def own_scheduler() -> Scheduler | None:
    """The scheduler of this process's settings; None where there is none."""
    address = settings().dask_scheduler
    return None if address is None else Scheduler(address)
