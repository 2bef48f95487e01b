"""Waiting for a job: long polls and server-sent events.

Nothing is held meanwhile but the connection: `service.watches` looks into the database, once
for all who wait for the same job.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

from models.tenant import Caller
from service.problems import Unauthenticated
from service.services import Services
from service.watches import Seen

GONE_SECONDS = 1.0  # a client that left is noticed within this
HEARTBEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 2000  # until a client whose stream broke off asks again
_MAX_EVENT_ID = 64


async def wait(
    services: Services, caller: Caller, job_id: str, seconds: float, is_gone: Callable[[], Awaitable[bool]]
) -> Seen:
    """The job when it is over, or after `seconds`, or when the client or the server leaves.

    Raises NotFound, RateLimited; Unauthenticated where the key ends meanwhile.
    """
    if seconds <= 0 or services.watchers.is_full:
        seen = await services.watches.look(caller, job_id)
        if seconds > 0 and not seen.is_final:
            services.watchers.check()
        return seen
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    # the first look is that of who waits: what happens after it is told, and nobody looks twice
    with services.watchers, services.watches.watching(caller, job_id) as watch:
        seen = await services.watches.look(caller, job_id)
        while not (seen.is_final or services.stopping.is_set() or loop.time() >= deadline or await is_gone()):
            await watch.change(min(deadline - loop.time(), GONE_SECONDS))
            if watch.is_key_dead:
                raise Unauthenticated("this key is unknown, expired or revoked")
            seen = watch.seen or seen
    return seen


def event_id(document: bytes) -> str:
    """What an event is called: the same for the same state of a job."""
    return hashlib.sha256(document).hexdigest()[:16]


def is_over_for(seen: Seen, last_event_id: str | None) -> bool:
    """Whether a client that comes back has seen the job's end already."""
    return seen.is_final and last_event_id == event_id(seen.document)


async def stream(
    services: Services, caller: Caller, job_id: str, first: Seen, last_event_id: str | None = None
) -> AsyncIterator[bytes]:
    """Server-sent events: the job at every change until it is over; ends with the server or the key too.

    A client that reads slowly is sent what is newest when it is ready, and nothing is kept for it.

    Parameters
    ----------
    services : Services
    caller : Caller
    job_id : str
    first : Seen
        A look that found the job, and that the caller may see it.
    last_event_id : str, optional
        The event a client saw last: it is not sent again.
    """
    loop = asyncio.get_running_loop()
    with services.watchers, services.watches.watching(caller, job_id) as watch:
        yield b"retry: %d\n\n" % RETRY_MILLISECONDS
        seen, sent, quiet_since = first, (last_event_id or "")[:_MAX_EVENT_ID], loop.time()
        while True:
            named = event_id(seen.document)
            if named != sent:
                yield b"id: %s\nevent: job\ndata: %s\n\n" % (named.encode(), seen.document)
                sent, quiet_since = named, loop.time()
            elif loop.time() >= quiet_since + HEARTBEAT_SECONDS:
                yield b": still there\n\n"
                quiet_since = loop.time()
            if seen.is_final or services.stopping.is_set():
                return
            await watch.change(quiet_since + HEARTBEAT_SECONDS - loop.time())
            if watch.is_key_dead:
                return
            seen = watch.seen or seen
