"""Slow clients of a real gateway are disconnected in time and do not affect other clients."""

import asyncio
import json
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from devservers.loopback import NO_TLS
from models.database.engine import Database
from models.database.schema import migrate
from models.identity import keys, tenants
from models.tables.identity import Scope
from tests.service.processes import Running, running

SLOW_SECONDS = 3.0
CUT_SECONDS = 45.0  # on a busy machine; less than the timeout of bodies and idle connections
CROWD_SECONDS = 4 * CUT_SECONDS  # the buffers of many clients take time to fill
OF_A_KIND = 50
MAX_UNREAD = 256  # pipelined requests, more than the kernel buffers responses for

Client = Callable[[str, int, str], Awaitable[bytes]]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Start a gateway process and return it with an admin key."""
    home = tmp_path_factory.mktemp("slow")
    url = f"sqlite:///{home / 'sfumato.db'}"
    migrate(url)
    database = Database(url)
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, "t", now=database.clock())
        _, secret = keys.create_key(session, owner.id, name="k", scopes=[Scope.ADMIN], now=database.clock())
    database.close()
    with running(Path(home), "gateway", "--port", "0", SFUMATO_SLOW_SECONDS=str(SLOW_SECONDS)) as started:
        yield started, secret


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection."""
    came = b""
    with suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            came += part
    return came


async def trickle(host: str, port: int, begins: bytes) -> bytes:
    """Send a first part, then a byte per second."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(begins)

    async def go_on() -> None:
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(1)
                writer.write(b"x")
                await writer.drain()

    trickling = asyncio.create_task(go_on())
    try:
        return await until_closed(reader)
    finally:
        trickling.cancel()
        writer.close()


async def silent(host: str, port: int, _secret: str) -> bytes:
    return await trickle_nothing(host, port)


async def trickle_nothing(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return await until_closed(reader)
    finally:
        writer.close()


async def slow_head(host: str, port: int, _secret: str) -> bytes:
    return await trickle(host, port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")


async def slow_body(host: str, port: int, secret: str) -> bytes:
    head = f"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
    return await trickle(host, port, head.encode() + b"Content-Type: application/json\r\nContent-Length: 9000\r\n\r\n{")


async def body_nobody_needs(host: str, port: int, _secret: str) -> bytes:
    """Send a body without a key, and continue after the early response."""
    return await trickle(host, port, b"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n{")


async def slow_reader(host: str, port: int, _secret: str) -> bytes:
    """Request much data and read a byte per second. Only a write detects the disconnect; reads see buffered bytes."""
    loop = asyncio.get_running_loop()
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.setblocking(False)
        await loop.sock_connect(one, (host, port))
        await loop.sock_sendall(one, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * MAX_UNREAD)
        came = b""
        with suppress(ConnectionError):
            while part := await loop.sock_recv(one, 1):
                came += part
                await asyncio.sleep(1)
                with suppress(BlockingIOError):
                    one.send(b"\n")
    return came


async def timed(client: Client, host: str, port: int, secret: str) -> tuple[float, bytes]:
    began = time.monotonic()
    async with asyncio.timeout(10 * CUT_SECONDS):
        came = await client(host, port, secret)
    return time.monotonic() - began, came


def latencies(url: str, secret: str, n: int) -> list[float]:
    """Return the latencies of sequential requests."""
    took = []
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60, verify=NO_TLS) as client:
        for _ in range(n):
            began = time.monotonic()
            assert client.get("/v1/datasets").status_code == 200
            took.append(time.monotonic() - began)
    return took


KINDS: dict[str, Client] = {
    "silent": silent,
    "slow_head": slow_head,
    "slow_body": slow_body,
    "body_nobody_needs": body_nobody_needs,
    "slow_reader": slow_reader,
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_is_disconnected_in_time(gateway: tuple[Running, str], kind: str) -> None:
    started, secret = gateway
    at = urlsplit(started.url())
    took, came = asyncio.run(timed(KINDS[kind], str(at.hostname), int(at.port or 0), secret))
    assert SLOW_SECONDS - 0.5 < took < CUT_SECONDS
    if kind == "slow_body":
        head, _, body = came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in head
        assert json.loads(body)["code"] == "request_timeout"
    if kind == "body_nobody_needs":
        assert came.startswith(b"HTTP/1.1 401 ")


@pytest.mark.release
def test_two_hundred_are_disconnected_without_affecting_others(gateway: tuple[Running, str]) -> None:
    started, secret = gateway
    url = started.url()
    at = urlsplit(url)
    alone = latencies(url, secret, 40)
    beside: list[float] = []

    async def all_at_once() -> list[tuple[float, bytes]]:
        slow = [
            asyncio.create_task(timed(client, str(at.hostname), int(at.port or 0), secret))
            for client in (silent, slow_head, slow_body, slow_reader)
            for _ in range(OF_A_KIND)
        ]
        await asyncio.sleep(1)
        assert not any(one.done() for one in slow)
        beside.extend(await asyncio.to_thread(latencies, url, secret, 40))
        return await asyncio.gather(*slow)

    ended = asyncio.run(all_at_once())
    assert len(ended) == 4 * OF_A_KIND
    assert max(took for took, _ in ended) < CROWD_SECONDS
    assert statistics.median(beside) < 5 * statistics.median(alone) + 0.25
    latencies(url, secret, 5)  # the gateway still works
