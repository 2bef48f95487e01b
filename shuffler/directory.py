"""Rounds of the service, fetched at most once every few seconds and stored with the first bytes that arrived."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from sfumato.errors import Unreachable
from sfumato.transport.exchange import Request
from shuffler.queue import Queue
from shuffler.rounds import parse_listing

if TYPE_CHECKING:
    from sfumato.transport.http import Http

CACHE_SECONDS = 5.0
WAIT_SECONDS = 4.0  # longest wait of a request for the service's answer
THREADS = 4  # requests to the service at once, one per dataset

logger = logging.getLogger(__name__)


class _Listing:
    """The open rounds of a dataset by the service's last answer, which is None before the first."""

    def __init__(self) -> None:
        self.last: frozenset[str] | None = None
        self.fresh_until = 0.0  # on the monotonic clock, seconds
        self.refresh: asyncio.Future[None] | None = None  # the request to the service, if one runs


class Directory:
    """The open rounds of each dataset. Only the event loop's thread uses it.

    One request to the service runs at a time for a dataset, in a thread of its own. The caller that starts it waits for
    it, at most WAIT_SECONDS; the others receive the rounds of the last answer. A service that fails, or answers with
    another form, changes nothing.

    Parameters
    ----------
    queue : Queue
        Keeps the rounds: all devices receive the bytes that the service published first.
    service : Http
    clock : callable
        Seconds since the epoch.
    """

    def __init__(self, queue: Queue, service: "Http", clock: Callable[[], float]) -> None:
        self._queue, self._service, self._clock = queue, service, clock
        self._listings: dict[str, _Listing] = {}
        self._threads = ThreadPoolExecutor(THREADS, "directory")

    def close(self) -> None:
        """Start no further request to the service."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def list_open(self, dataset_id: str) -> list[str]:
        """Return the ids of the rounds that accept reports. If the service fails, those of the last answer.

        Raises
        ------
        Unreachable
            The service never gave a valid answer for this dataset.
        """
        listing = self._listings.setdefault(dataset_id, _Listing())
        if listing.refresh is None and time.monotonic() >= listing.fresh_until:
            listing.refresh = asyncio.ensure_future(self._refresh(dataset_id, listing))
            await self._wait(listing)
        elif listing.last is None:
            await self._wait(listing)
        if listing.last is None:
            raise Unreachable("the service does not list its open rounds")
        found = await run_in_threadpool(self._queue.list_open, dataset_id, self._clock())
        return [round_id for round_id in found if round_id in listing.last]

    async def _wait(self, listing: _Listing) -> None:
        if listing.refresh is not None:
            await asyncio.wait([listing.refresh], timeout=WAIT_SECONDS)

    async def _refresh(self, dataset_id: str, listing: _Listing) -> None:
        loop = asyncio.get_running_loop()
        try:
            listing.last = await loop.run_in_executor(self._threads, self._fetch, dataset_id)
        except Exception as error:  # devices receive the last rounds
            reason = str(error) if isinstance(error, Unreachable) else type(error).__name__
            logger.warning("dataset %s: the service does not list its open rounds: %s", dataset_id, reason)
        finally:
            listing.fresh_until, listing.refresh = time.monotonic() + CACHE_SECONDS, None

    def _fetch(self, dataset_id: str) -> frozenset[str]:
        rounds = parse_listing(self._service.send(Request("GET", f"datasets/{dataset_id}/round")).object())
        for found in rounds:
            if self._queue.add_round(dataset_id, found) != found.document:
                logger.error("round %s: the service published other bytes; devices get the first ones", found.id)
        return frozenset(found.id for found in rounds)
