"""Waiting for a job by long polling or server-sent events.

A wait occupies its connection and no thread: `service.live.job_watcher` polls the database once for all
watchers of a job.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

from models.identity.caller import Caller
from service.http.auth import INVALID_KEY
from service.http.problems import Unauthenticated
from service.live.job_watcher import JobSnapshot, JobWatchers

DISCONNECT_SECONDS = 1.0  # interval between checks whether the client has left
HEARTBEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 2000  # delay before a client reconnects after its stream broke off
_RETRY = b"retry: %d\n\n" % RETRY_MILLISECONDS
_MAX_EVENT_ID = 64


async def wait(
    watchers: JobWatchers, caller: Caller, job_id: str, seconds: float, is_disconnected: Callable[[], Awaitable[bool]]
) -> JobSnapshot:
    """Return the job when it is final, after `seconds`, or when the client or the server leaves.

    Raises
    ------
    NotFound
    RateLimited
        Too many requests wait.
    Unauthenticated
        The key became invalid during the wait.
    """
    if seconds <= 0 or watchers.limit.is_full:
        snapshot = await watchers.fetch(caller, job_id)
        if seconds > 0 and not snapshot.is_final:
            watchers.limit.check()
        return snapshot
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    # Subscribe before the first query, so that no change between the two is missed. The two share one query.
    with watchers.watch(caller, job_id) as watcher:
        snapshot = await watchers.fetch(caller, job_id)
        while not (
            snapshot.is_final or watchers.stopping.is_set() or loop.time() >= deadline or await is_disconnected()
        ):
            await watcher.wait_for_change(min(deadline - loop.time(), DISCONNECT_SECONDS))
            if watcher.is_key_invalid:
                raise Unauthenticated(INVALID_KEY)
            snapshot = watcher.snapshot or snapshot
    return snapshot


def event_id(document: bytes) -> str:
    """Return the id of the event for a job document. The same document always has the same id."""
    return hashlib.sha256(document).hexdigest()[:16]


def has_seen_end(snapshot: JobSnapshot, last_event_id: str | None) -> bool:
    """Return whether the job is final and the client's last event showed this state."""
    return snapshot.is_final and last_event_id == event_id(snapshot.document)


def one_event(snapshot: JobSnapshot, last_event_id: str | None) -> bytes:
    """Return the current state as a whole stream, without an event if the client has received it."""
    current = event_id(snapshot.document)
    return _RETRY if current == last_event_id else _RETRY + _event(current, snapshot.document)


def _event(event: str, document: bytes) -> bytes:
    return b"id: %s\nevent: job\ndata: %s\n\n" % (event.encode(), document)


async def stream(
    watchers: JobWatchers, caller: Caller, job_id: str, first: JobSnapshot, last_event_id: str | None = None
) -> AsyncIterator[bytes]:
    """Yield server-sent events with the job at every change until it is final, the server stops or the key ends.

    A client that reads slowly gets the latest state when it is ready. Intermediate states are not queued.

    Parameters
    ----------
    watchers : JobWatchers
    caller : Caller
    job_id : str
    first : JobSnapshot
        Result of an earlier `fetch`, which checked that the caller may see the job.
    last_event_id : str, optional
        Last event that the client received. It is not sent again.
    """
    loop = asyncio.get_running_loop()
    with watchers.watch(caller, job_id) as watcher:
        yield _RETRY
        snapshot, sent, quiet_since = first, (last_event_id or "")[:_MAX_EVENT_ID], loop.time()
        while True:
            current = event_id(snapshot.document)
            if current != sent:
                yield _event(current, snapshot.document)
                sent, quiet_since = current, loop.time()
            elif loop.time() >= quiet_since + HEARTBEAT_SECONDS:
                yield b": heartbeat\n\n"
                quiet_since = loop.time()
            if snapshot.is_final or watchers.stopping.is_set():
                return
            await watcher.wait_for_change(quiet_since + HEARTBEAT_SECONDS - loop.time())
            if watcher.is_key_invalid:
                return
            snapshot = watcher.snapshot or snapshot
