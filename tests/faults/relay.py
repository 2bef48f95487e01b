"""A TCP relay on 127.0.0.1 that loses, repeats, cuts and swallows what passes, when it is told to.

It stands before the gateways, as a balancer does (each connection goes to the next one that
takes it), and before PostgreSQL and Redis, whose port changes when they are begun again. Clients
open a connection for each request, so what happens to a connection happens to one request.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16

TROUBLES = {
    "drop_response": "the request is delivered, its answer is thrown away",
    "duplicate": "the request is delivered to two gateways at the same moment",
    "repeat": "the request is delivered again after it was answered",
    "cut_body": "the connection breaks in the middle of the request",
    "swallow": "nothing of the request is delivered, and nobody says so for a while",
}

Ports = Callable[[], list[tuple[str, int]]]


@dataclass
class Trouble:
    """What is to happen to the next request whose head begins so."""

    kind: str
    head: bytes
    seconds: float = 0.5
    happened: threading.Event = field(default_factory=threading.Event)
    is_over: bool = False  # nobody waits for it any more


class Relay:
    """A relay with an event loop and a thread of its own.

    Parameters
    ----------
    upstreams : callable
        Where to, at this moment.
    host : str
        The address it listens on.
    run : callable, optional
        Starts the thread: one that has entered a network namespace, perhaps.
    """

    def __init__(
        self, upstreams: Ports, host: str = "127.0.0.1", run: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self._upstreams, self.host, self.port = upstreams, host, 0
        self._turn = 0
        self._troubles: deque[Trouble] = deque()
        self._lock = threading.Lock()
        self._listens, self._ended = threading.Event(), threading.Event()
        (run or (lambda target: threading.Thread(target=target, daemon=True).start()))(self._run)
        assert self._listens.wait(30)

    def arm(self, trouble: Trouble) -> None:
        """Have it happen once."""
        with self._lock:
            if not trouble.is_over:
                self._troubles.append(trouble)

    def disarm(self, trouble: Trouble) -> None:
        """Have it not happen, unless it did."""
        with self._lock, suppress(ValueError):
            trouble.is_over = True
            self._troubles.remove(trouble)

    def hold_all(self, *, held: bool) -> None:
        """Let nothing pass in either direction, and nobody know; or let everything pass again."""
        change = self._open.clear if held else self._open.set
        self._loop.call_soon_threadsafe(change)

    def close(self) -> None:
        """End."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._ended.wait(10)

    def _run(self) -> None:
        asyncio.run(self._serve())
        self._ended.set()

    async def _serve(self) -> None:
        self._loop, self._open, self._over = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._open.set()
        self._loop.set_exception_handler(lambda _loop, _context: None)  # connections break here all the time
        server = await asyncio.start_server(self._relay, self.host, 0, backlog=256)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        async with server:
            await self._over.wait()

    def _take(self, head: bytes) -> Trouble | None:
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
            trouble = self._take(head)
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
                await self._both_ways(reader, writer, *upstream)
            else:
                await self._with_trouble(trouble, head, reader, writer, upstream, writers)
        except OSError:
            pass
        finally:
            if trouble is not None and not trouble.happened.is_set():
                self.arm(trouble)  # there was no gateway, or it died on the way: the next request, then
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
        answers, asks = upstream
        if trouble.kind == "cut_body":
            asks.write(head[: max(1, len(head) * 2 // 3)])
            await asks.drain()
            trouble.happened.set()
            await asyncio.sleep(0.02)
            for each in (writer, asks):
                each.transport.abort()
            return
        seen = [head]
        copies = [asks]
        if trouble.kind == "duplicate" and (second := await self._connect()) is not None:
            writers.append(second[1])
            copies.append(second[1])
        for each in copies:
            each.write(head)
        forward = asyncio.create_task(self._pipe(reader, copies, seen))
        try:
            first = await answers.read(CHUNK_BYTES)
            if not first:
                return
            trouble.happened.set()
            if trouble.kind == "drop_response":
                writer.transport.abort()
                return
            if trouble.kind == "repeat" and (again := await self._connect()) is not None:
                writers.append(again[1])
                again[1].write(b"".join(seen))
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(again[0].read(CHUNK_BYTES), 5)
            writer.write(first)
            await self._pipe(answers, [writer])
        finally:
            forward.cancel()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        asks: asyncio.StreamWriter,
    ) -> None:
        pipes = [asyncio.create_task(self._pipe(reader, [asks])), asyncio.create_task(self._pipe(answers, [writer]))]
        _, pending = await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()

    async def _pipe(
        self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter], seen: list[bytes] | None = None
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._open.wait()
            if seen is not None:
                seen.append(chunk)
            for writer in writers:
                writer.write(chunk)
                await writer.drain()
