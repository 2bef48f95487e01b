"""A TCP relay on 127.0.0.1 that can discard, repeat, cut and swallow requests.

It stands in front of the gateways like a load balancer, with a gateway per connection in turn, and in front of
PostgreSQL and Redis. Their ports change when they restart. Clients open one connection per request, so that trouble
affects one request.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16

TROUBLES = {
    "drop_response": "the request is delivered, its response is discarded",
    "duplicate": "the request is delivered to two gateways at the same time",
    "repeat": "the request is delivered again after its response",
    "cut_body": "the connection breaks in the middle of the request",
    "swallow": "the request is not delivered, and the connection closes later",
}

Ports = Callable[[], list[tuple[str, int]]]


@dataclass
class Trouble:
    """A fault for the next request that starts with these bytes."""

    kind: str
    head: bytes
    seconds: float = 0.5
    happened: threading.Event = field(default_factory=threading.Event)
    is_over: bool = False  # disarmed


class Relay:
    """A relay with its own event loop and thread.

    Parameters
    ----------
    upstreams : callable
        Returns the current addresses of the servers.
    host : str
        Listening address.
    run : callable, optional
        Starts the thread, for example in another network namespace.
    """

    def __init__(
        self, upstreams: Ports, host: str = "127.0.0.1", run: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self._upstreams, self.host, self.port = upstreams, host, 0
        self.delay_seconds = 0.0  # before each piece of data in each direction
        self._turn = 0
        self._troubles: deque[Trouble] = deque()
        self._lock = threading.Lock()
        self._is_listening, self._has_ended = threading.Event(), threading.Event()
        (run or (lambda target: threading.Thread(target=target, daemon=True).start()))(self._run)
        assert self._is_listening.wait(30)

    def arm(self, trouble: Trouble) -> None:
        """Apply the trouble once."""
        with self._lock:
            if not trouble.is_over:
                self._troubles.append(trouble)

    def disarm(self, trouble: Trouble) -> None:
        """Remove the trouble if it has not happened."""
        with self._lock, suppress(ValueError):
            trouble.is_over = True
            self._troubles.remove(trouble)

    def pause_all(self, *, paused: bool) -> None:
        """Pause or continue all traffic in both directions."""
        change = self._open.clear if paused else self._open.set
        self._loop.call_soon_threadsafe(change)

    def close(self) -> None:
        """Stop the relay."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._has_ended.wait(10)

    def _run(self) -> None:
        asyncio.run(self._serve())
        self._has_ended.set()

    async def _serve(self) -> None:
        self._loop, self._open, self._over = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._open.set()
        self._loop.set_exception_handler(lambda _loop, _context: None)  # broken connections are expected
        server = await asyncio.start_server(self._relay, self.host, 0, backlog=256)
        self.port = server.sockets[0].getsockname()[1]
        self._is_listening.set()
        async with server:
            await self._over.wait()

    def _pop_trouble(self, head: bytes) -> Trouble | None:
        with self._lock:
            for trouble in self._troubles:
                if head.startswith(trouble.head):
                    self._troubles.remove(trouble)
                    return trouble
        return None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        upstreams = self._upstreams()
        self._turn += 1
        for nth in range(len(upstreams)):
            with suppress(OSError):
                return await asyncio.open_connection(*upstreams[(self._turn + nth) % len(upstreams)])
        return None

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers, trouble = [writer], None
        try:
            head = await reader.read(CHUNK_BYTES)
            if not head:
                return
            trouble = self._pop_trouble(head)
            await asyncio.sleep(self.delay_seconds)
            await self._open.wait()
            if trouble is not None and trouble.kind == "swallow":
                trouble.happened.set()
                await asyncio.sleep(trouble.seconds)
                return
            upstream = await self._connect()
            if upstream is None:
                return
            writers.append(upstream[1])
            if trouble is None:
                upstream[1].write(head)
                await self._relay_both_directions(reader, writer, *upstream)
            else:
                await self._with_trouble(trouble, head, reader, writer, upstream, writers)
        except OSError:
            pass
        finally:
            if trouble is not None and not trouble.happened.is_set():
                self.arm(trouble)  # no gateway received the request: apply the trouble to the next one
            for each in writers:
                with suppress(Exception):
                    each.transport.abort() if each is writer and len(writers) == 1 else each.close()

    async def _with_trouble(
        self,
        trouble: Trouble,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        writers: list[asyncio.StreamWriter],
    ) -> None:
        responses, requests = upstream
        if trouble.kind == "cut_body":
            requests.write(head[: max(1, len(head) * 2 // 3)])
            await requests.drain()
            trouble.happened.set()
            await asyncio.sleep(0.02)
            for each in (writer, requests):
                each.transport.abort()
            return
        received = [head]
        copies = [requests]
        if trouble.kind == "duplicate" and (second := await self._connect()) is not None:
            writers.append(second[1])
            copies.append(second[1])
        for each in copies:
            each.write(head)
        forward = asyncio.create_task(self._pipe(reader, copies, received))
        try:
            first = await responses.read(CHUNK_BYTES)
            if not first:
                return
            trouble.happened.set()
            if trouble.kind == "drop_response":
                writer.transport.abort()
                return
            if trouble.kind == "repeat" and (repeated := await self._connect()) is not None:
                writers.append(repeated[1])
                repeated[1].write(b"".join(received))
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(repeated[0].read(CHUNK_BYTES), 5)
            writer.write(first)
            await self._pipe(responses, [writer])
        finally:
            forward.cancel()

    async def _relay_both_directions(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        responses: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
    ) -> None:
        pipes = [
            asyncio.create_task(self._pipe(reader, [requests])),
            asyncio.create_task(self._pipe(responses, [writer])),
        ]
        _, pending = await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()

    async def _pipe(
        self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter], received: list[bytes] | None = None
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await asyncio.sleep(self.delay_seconds)
            await self._open.wait()
            if received is not None:
                received.append(chunk)
            for writer in writers:
                writer.write(chunk)
                await writer.drain()
