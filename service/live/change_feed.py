"""Change feed of a gateway: publishes and receives change notifications over one shared Redis subscription.

A change in this process notifies its own listeners in memory. A separate task publishes it to the other gateways,
so no request waits for Redis. The subscription is checked twice a second. Without Redis, a pipe delivers
the notifications of workers on the same machine. Without both, and while Redis is unavailable,
the gateway finds the changes of other processes by polling.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from runtime import change_publisher
from runtime.named_pipe import NamedPipe

REDIS_TIMEOUT_SECONDS = 0.25
PING_SECONDS = 0.5  # idle time of the subscription before a ping
MAX_UNANSWERED = 2  # unanswered pings before reconnecting; one may be lost because this process was busy
RETRY_SECONDS = (0.1, 1.0)  # first and longest interval between attempts to subscribe
DEBOUNCE_SECONDS = 1.0  # longest delay, and shortest interval, of debounced notifications
MAX_UNSENT = 10_000  # ids queued for other gateways

if TYPE_CHECKING:
    import redis.asyncio

log = structlog.get_logger(__name__)


class ChangeFeed:
    """Notifications about changed jobs and datasets.

    Any thread may call `publish` and `publish_debounced`. Only the event loop's thread may use the rest.

    Parameters
    ----------
    redis_url : str, optional
    database_file : Path, optional
        File of an embedded database. Without Redis, its workers send notifications through a pipe beside it.
        Without both parameters, only this process sends notifications.
    """

    def __init__(self, redis_url: str | None, database_file: Path | None = None) -> None:
        self._redis_url = redis_url
        self._pipe = (
            change_publisher.change_pipe(database_file) if redis_url is None and database_file is not None else None
        )
        self._origin = change_publisher.new_publisher_id()
        self._on_change: list[Callable[[str], None]] = []
        self._on_subscription: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._client: redis.asyncio.Redis | None = None
        self._failures: tuple[type[Exception], ...] = (OSError, TimeoutError)
        self._unsent: dict[str, None] = {}
        self._has_unsent = asyncio.Event()
        self._debounced: dict[str, None] = {}
        self._has_warned = False
        self.is_subscribed = False

    @property
    def is_available(self) -> bool:
        """Return False if Redis is configured and the subscription is not active."""
        return self._redis_url is None or self.is_subscribed

    def add_listener(
        self, on_change: Callable[[str], None], on_subscription: Callable[[], None] = lambda: None
    ) -> None:
        """Call `on_change` with each changed id, and `on_subscription` when the subscription starts or ends."""
        self._on_change.append(on_change)
        self._on_subscription.append(on_subscription)

    def start(self) -> None:
        """Start to receive notifications in the running event loop."""
        self._loop = asyncio.get_running_loop()
        if self._pipe is not None and (file := self._pipe.open()) is not None:
            self._loop.add_reader(file, self._receive_from_pipe, self._pipe)
        if self._redis_url is None:
            return
        import redis.asyncio  # takes 0.1 s, so it is imported only if Redis is configured
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._failures = (redis.RedisError, OSError, TimeoutError)
        self._client = redis.asyncio.Redis.from_url(
            self._redis_url,
            socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._tasks = [
            asyncio.create_task(self._subscribe(self._client)),
            asyncio.create_task(self._send(self._client)),
        ]

    async def stop(self) -> None:
        """Stop and close the connections."""
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

    def publish(self, *ids: str) -> None:
        """Notify all gateways that these jobs and datasets changed. Call it after the commit, from any thread.

        It does not raise or block. A notification before a response reaches the listeners of this process
        before the client receives the response.
        """
        self._in_loop(self._publish, ids)

    def publish_debounced(self, *ids: str) -> None:
        """Notify within DEBOUNCE_SECONDS, once for all calls in this time. Use it for frequent changes."""
        self._in_loop(self._publish_debounced, ids)

    def _in_loop(self, call: Callable[[tuple[str, ...]], None], ids: tuple[str, ...]) -> None:
        if ids and (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the event loop has ended, and its listeners with it
                loop.call_soon_threadsafe(call, ids)

    def _publish(self, ids: tuple[str, ...]) -> None:
        self._notify_listeners(ids)
        if self.is_subscribed and len(self._unsent) < MAX_UNSENT:
            self._unsent.update(dict.fromkeys(ids))
            self._has_unsent.set()

    def _publish_debounced(self, ids: tuple[str, ...]) -> None:
        if not self._debounced:
            asyncio.get_running_loop().call_later(DEBOUNCE_SECONDS, self._publish_pending)
        self._debounced.update(dict.fromkeys(ids))

    def _publish_pending(self) -> None:
        ids, self._debounced = tuple(self._debounced), {}
        self._publish(ids)

    def _notify_listeners(self, ids: tuple[str, ...] | list[str]) -> None:
        for each in ids:
            for call in self._on_change:
                call(each)

    def _receive_from_pipe(self, pipe: NamedPipe) -> None:
        for line in pipe.read_lines():
            _, ids = change_publisher.parse_message(line.encode())
            self._notify_listeners(ids)

    # ---- Redis ----

    async def _send(self, client: "redis.asyncio.Redis") -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            ids, self._unsent = list(self._unsent), {}
            with suppress(*self._failures):  # the subscription task detects the failure
                async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                    for message in change_publisher.split_messages(self._origin, ids):
                        await client.publish(change_publisher.CHANNEL, message)

    async def _subscribe(self, client: "redis.asyncio.Redis") -> None:
        pause, longest = RETRY_SECONDS
        while True:
            try:
                await self._receive(client)
            except self._failures:
                pause = RETRY_SECONDS[0] if self.is_subscribed else min(2 * pause, longest)
            self._set_subscribed(is_subscribed=False)
            await asyncio.sleep(pause)

    async def _receive(self, client: "redis.asyncio.Redis") -> None:
        """Receive messages until Redis fails, which raises."""
        pubsub = client.pubsub()
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                await pubsub.subscribe(change_publisher.CHANNEL)
            n_unanswered = 0
            while True:
                message = await pubsub.get_message(timeout=PING_SECONDS)
                if message is None:
                    if n_unanswered == MAX_UNANSWERED:
                        raise TimeoutError
                    n_unanswered += 1
                    async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                        await pubsub.ping()
                    continue
                n_unanswered = 0
                if message["type"] == "subscribe":
                    self._set_subscribed(is_subscribed=True)
                elif message["type"] == "message":
                    origin, ids = change_publisher.parse_message(message["data"])
                    if origin != self._origin:
                        self._notify_listeners(ids)
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _set_subscribed(self, *, is_subscribed: bool) -> None:
        if is_subscribed == self.is_subscribed and (is_subscribed or self._has_warned):
            return
        self.is_subscribed = is_subscribed
        if not is_subscribed:
            log.warning("change_feed_unavailable", consequence="this gateway polls the database for changes")
        self._has_warned = not is_subscribed
        for call in self._on_subscription:
            call()
