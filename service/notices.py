"""A gateway's ear and mouth at the bulletin: one subscription for all its requests.

What this process changes it tells its own requests in memory, and the other gateways over
Redis, from a task of its own: no request waits for that. What others tell is heard by one
subscription, asked twice a second whether it is there. Without Redis a worker of the same
machine is heard through a pipe. Without either, and while Redis is away, what other
processes change is found by polling.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from models import bulletin
from models.named_pipe import NamedPipe

PATIENCE_SECONDS = 0.25  # a Redis that does not answer within this is away
PING_SECONDS = 0.5  # a subscription that hears nothing for so long is asked whether it is there
MAX_UNANSWERED = 2  # questions; one may be missed because this process was busy
AGAIN_SECONDS = (0.1, 1.0)  # between attempts to subscribe: first, longest
SOON_SECONDS = 1.0  # progress is told so late, and so often, at most
MAX_UNSENT = 10_000  # ids that wait to be told to others

if TYPE_CHECKING:
    import redis.asyncio

log = structlog.get_logger(__name__)


class Notices:
    """What changed, as far as anybody told. All but `tell` and `tell_soon` belongs to the event loop.

    Parameters
    ----------
    redis_url : str, optional
    database_file : Path, optional
        Of an embedded database: without Redis, what its workers tell is heard beside it. Without either, only
        what this process tells is.
    """

    def __init__(self, redis_url: str | None, database_file: Path | None = None) -> None:
        self._redis_url = redis_url
        self._pipe = bulletin.pipe_beside(database_file) if redis_url is None and database_file is not None else None
        self._origin = bulletin.origin()
        self._on_change: list[Callable[[str], None]] = []
        self._on_subscription: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._client: redis.asyncio.Redis | None = None
        self._failures: tuple[type[Exception], ...] = (OSError, TimeoutError)
        self._unsent: dict[str, None] = {}
        self._has_unsent = asyncio.Event()
        self._soon: dict[str, None] = {}
        self._has_told_away = False
        self.is_subscribed = False

    @property
    def is_away(self) -> bool:
        """Whether there is to be a Redis, and nothing is heard of it."""
        return self._redis_url is not None and not self.is_subscribed

    def listen(self, on_change: Callable[[str], None], on_subscription: Callable[[], None] = lambda: None) -> None:
        """Call these with each id that changed, and where the subscription came or went."""
        self._on_change.append(on_change)
        self._on_subscription.append(on_subscription)

    def start(self) -> None:
        """Begin to listen; in the event loop."""
        self._loop = asyncio.get_running_loop()
        if self._pipe is not None and (file := self._pipe.open()) is not None:
            self._loop.add_reader(file, self._hear_pipe, self._pipe)
        if self._redis_url is None:
            return
        import redis.asyncio  # a tenth of a second that those pay who have a Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._failures = (redis.RedisError, OSError, TimeoutError)
        self._client = redis.asyncio.Redis.from_url(
            self._redis_url,
            socket_timeout=PATIENCE_SECONDS,
            socket_connect_timeout=PATIENCE_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._tasks = [
            asyncio.create_task(self._subscribe(self._client)),
            asyncio.create_task(self._send(self._client)),
        ]

    async def stop(self) -> None:
        """Leave."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        if self._client is not None:
            await self._client.aclose()
        if self._pipe is not None and self._loop is not None and (file := self._pipe.open()) is not None:
            self._loop.remove_reader(file)
            self._pipe.close()
        self._loop, self._tasks, self._client = None, [], None

    def tell(self, *ids: str) -> None:
        """Say that these jobs and datasets changed, after the commit; from any thread. Never raises, never waits.

        What is told before a request is answered is heard here before its answer goes out.
        """
        self._in_loop(self._tell, ids)

    def tell_soon(self, *ids: str) -> None:
        """The same within a second, once for all that is told meanwhile: for what changes many times a second."""
        self._in_loop(self._tell_soon, ids)

    def _in_loop(self, call: Callable[[tuple[str, ...]], None], ids: tuple[str, ...]) -> None:
        if ids and (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has ended, and with it everyone who waits
                loop.call_soon_threadsafe(call, ids)

    def _tell(self, ids: tuple[str, ...]) -> None:
        self._changed(ids)
        if self.is_subscribed and len(self._unsent) < MAX_UNSENT:
            self._unsent.update(dict.fromkeys(ids))
            self._has_unsent.set()

    def _tell_soon(self, ids: tuple[str, ...]) -> None:
        if not self._soon:
            asyncio.get_running_loop().call_later(SOON_SECONDS, self._tell_now)
        self._soon.update(dict.fromkeys(ids))

    def _tell_now(self) -> None:
        ids, self._soon = tuple(self._soon), {}
        self._tell(ids)

    def _changed(self, ids: tuple[str, ...] | list[str]) -> None:
        for each in ids:
            for call in self._on_change:
                call(each)

    def _hear_pipe(self, pipe: NamedPipe) -> None:
        for line in pipe.hear():
            _, ids = bulletin.read(line.encode())
            self._changed(ids)

    # ---- Redis ----

    async def _send(self, client: "redis.asyncio.Redis") -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            ids, self._unsent = list(self._unsent), {}
            with suppress(*self._failures):  # the subscription finds out
                async with asyncio.timeout(PATIENCE_SECONDS):
                    for message in bulletin.messages(self._origin, ids):
                        await client.publish(bulletin.CHANNEL, message)

    async def _subscribe(self, client: "redis.asyncio.Redis") -> None:
        pause, longest = AGAIN_SECONDS
        while True:
            try:
                await self._hear(client)
            except self._failures:
                pause = AGAIN_SECONDS[0] if self.is_subscribed else min(2 * pause, longest)
            self._note(is_subscribed=False)
            await asyncio.sleep(pause)

    async def _hear(self, client: "redis.asyncio.Redis") -> None:
        """Listen until Redis is away, which raises."""
        pubsub = client.pubsub()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await pubsub.subscribe(bulletin.CHANNEL)
            n_unanswered = 0
            while True:
                message = await pubsub.get_message(timeout=PING_SECONDS)
                if message is None:
                    if n_unanswered == MAX_UNANSWERED:
                        raise TimeoutError
                    n_unanswered += 1
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await pubsub.ping()
                    continue
                n_unanswered = 0
                if message["type"] == "subscribe":
                    self._note(is_subscribed=True)
                elif message["type"] == "message":
                    origin, ids = bulletin.read(message["data"])
                    if origin != self._origin:
                        self._changed(ids)
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _note(self, *, is_subscribed: bool) -> None:
        if is_subscribed == self.is_subscribed and (is_subscribed or self._has_told_away):
            return
        self.is_subscribed = is_subscribed
        if not is_subscribed:
            log.warning("bulletin_away", consequence="what other processes change is found by polling until it is back")
        self._has_told_away = not is_subscribed
        for call in self._on_subscription:
            call()
