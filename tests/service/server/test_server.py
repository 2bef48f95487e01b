"""Timeouts of the HTTP server for heads, and none for idle connections; bound addresses."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from connections.server import address, bind, configuration
from runtime.settings import Settings
from service.app import create_app
from service.server import server

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Talking = Callable[..., None]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def talk(tmp_path: Path, no_settings: None) -> Talking:
    """Run a server with a timeout for heads while a client uses it."""

    def run(client: Talk, head_seconds: float = 0.3) -> None:
        app = create_app(Settings(home=tmp_path))
        bound = bind("127.0.0.1", 0)

        async def both() -> None:
            config = configuration(app, head_seconds)
            begun = asyncio.Event()
            running = server.Server(config, app.state.context, begun.set)
            serving = asyncio.create_task(running.serve(sockets=[bound]))
            await begun.wait()
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            try:
                async with asyncio.timeout(120):
                    await client(reader, writer)
            finally:
                writer.close()
                running.should_exit = True
                await serving

        asyncio.run(both())
        bound.close()

    return run


class TestHead:
    def test_that_never_starts_times_out(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            assert await reader.read() == b""

        talk(client)

    def test_that_is_too_slow_times_out(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def trickle() -> None:
                for _ in range(100):
                    writer.write(b"X: y\r\n")
                    await asyncio.sleep(0.05)

            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            trickling = asyncio.create_task(trickle())
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
            finally:
                trickling.cancel()

        talk(client)

    def test_that_is_too_slow_after_another_request_times_out(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEALTH)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}")
            writer.write(b"GET /healthz HT")
            assert await reader.read() == b""

        talk(client, 2.0)


class TestConnection:
    def test_may_be_idle_for_longer_than_the_timeout_of_heads(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for pause in (2.0, 0.0):
                writer.write(HEALTH)
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"}")
                await asyncio.sleep(pause)

        talk(client, 1.5)

    def test_may_pipeline_requests(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEALTH * 5)
            for _ in range(5):
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"}")

        talk(client, 60.0)


class TestAddresses:
    def test_are_reachable_from_this_machine(self) -> None:
        with bind("127.0.0.1", 0) as bound:
            port = bound.getsockname()[1]
            assert address(bound, None) == f"http://127.0.0.1:{port}"
            assert address(bound, "https://sfumato.example/") == "https://sfumato.example"
        with bind("0.0.0.0", 0) as bound:  # noqa: S104
            assert address(bound, None) == f"http://127.0.0.1:{bound.getsockname()[1]}"

    def test_that_are_in_use_are_not_shared(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            bind(*taken.getsockname())
