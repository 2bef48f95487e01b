"""Waiting for a job: long polls and server-sent events.

The database is asked at a modest interval, from a thread for the moment of the question
only; in between nothing is held but the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.concurrency import run_in_threadpool

from models import job as jobs
from models import round as rounds
from models import tenant
from models.tenant import Caller
from service import views
from service.dependencies import to_json
from service.problems import is_database_away
from service.services import Services
from service.views import Json

FIRST_SECONDS = 0.05  # until the second look
LONGEST_SECONDS = 1.0  # between two looks at a job where nothing happens
HEARTBEAT_SECONDS = 15.0
_SLOWER = 1.5


async def look(services: Services, caller: Caller, job_id: str) -> Json:
    """The job as it stands; raises NotFound."""
    return await run_in_threadpool(_look, services, caller, job_id)


def _look(services: Services, caller: Caller, job_id: str) -> Json:
    with services.database.reading() as session:
        return views.job(jobs.get(session, caller, job_id), rounds.of_job(session, job_id))


def is_final(job: Json) -> bool:
    """Whether nothing more will happen to it."""
    return job["state"] in jobs.FINAL


async def wait(
    services: Services, caller: Caller, job_id: str, seconds: float, is_gone: Callable[[], Awaitable[bool]]
) -> Json:
    """The job when it is over, or after `seconds`, or when the client or the server leaves.

    Raises NotFound, RateLimited.
    """
    job = await look(services, caller, job_id)
    if seconds <= 0 or is_final(job):
        return job
    services.watchers.check()
    deadline = asyncio.get_running_loop().time() + seconds
    pause = FIRST_SECONDS
    with services.watchers:
        while True:
            left = deadline - asyncio.get_running_loop().time()
            if is_final(job) or left <= 0 or services.stopping.is_set() or await is_gone():
                return job
            await _pause(services, min(pause, left))
            pause = min(pause * _SLOWER, LONGEST_SECONDS)
            job = await look(services, caller, job_id)


async def stream(services: Services, caller: Caller, job_id: str, first: Json) -> AsyncIterator[bytes]:
    """Server-sent events: the job at every change until it is over; ends with the server or the key too."""
    with services.watchers:
        async for event in _events(services, caller, job_id, first):
            yield event


async def _events(services: Services, caller: Caller, job_id: str, first: Json) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    job, sent = first, b""
    pause, quiet_since = FIRST_SECONDS, loop.time()
    while True:
        document = to_json(job)
        if document != sent:
            yield b"event: job\ndata: " + document + b"\n\n"
            sent, pause, quiet_since = document, FIRST_SECONDS, loop.time()
        elif loop.time() > quiet_since + HEARTBEAT_SECONDS:
            if not await _is_live(services, caller):
                return
            yield b": still there\n\n"
            quiet_since = loop.time()
        if is_final(job) or services.stopping.is_set():
            return
        await _pause(services, pause)
        pause = min(pause * _SLOWER, LONGEST_SECONDS)
        try:
            job = await look(services, caller, job_id)
        except Exception as error:
            if not is_database_away(error):
                raise


async def _is_live(services: Services, caller: Caller) -> bool:
    """Whether the key that asked still opens anything."""

    def look() -> bool:
        with services.database.reading() as session:
            key = session.get(tenant.Key, caller.key_id)
            return key is not None and key.is_live(services.database.clock())

    return await run_in_threadpool(look)


async def _pause(services: Services, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await services.stopping.wait()
    except TimeoutError:
        return
