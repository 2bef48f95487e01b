"""The HTTP server around the gateway: patient with bodies and idle clients, not with heads."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvicorn

from models.settings import Settings
from service import server
from service.app import create_app
from service.protocol import protocol_of

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Talking = Callable[..., None]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def talk(tmp_path: Path, no_settings: None) -> Talking:
    """Runs a server in this thread while a client talks to it; a head may take so long."""

    def run(client: Talk, head_seconds: float = 0.3) -> None:
        app = create_app(Settings(home=tmp_path))
        bound = server.bind("127.0.0.1", 0)

        async def both() -> None:
            config = uvicorn.Config(
                app, http=protocol_of(head_seconds, app.state.fast_path), log_config=None, lifespan="on", ws="none"
            )
            begun = asyncio.Event()
            running = server.Server(config, app.state.services, begun.set)
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


class TestAHead:
    def test_that_never_begins_is_not_waited_for(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            assert await reader.read() == b""

        talk(client)

    def test_that_trickles_is_not_waited_for(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def trickle() -> None:
                for _ in range(100):
                    writer.write(b"X: y\r\n")
                    await asyncio.sleep(0.05)

            writer.write(b"GET /healthz HTTP/1.1\r\n")
            trickling = asyncio.create_task(trickle())
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
            finally:
                trickling.cancel()

        talk(client)

    def test_that_trickles_after_another_request_is_not_waited_for(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEALTH)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}")
            writer.write(b"GET /healthz HT")
            assert await reader.read() == b""

        talk(client, 2.0)


class TestAConnection:
    def test_may_be_idle_for_longer_than_a_head_may_take(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for pause in (2.0, 0.0):
                writer.write(HEALTH)
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"}")
                await asyncio.sleep(pause)

        talk(client, 1.5)

    def test_may_bring_several_requests_at_once(self, talk: Talking) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEALTH * 5)
            for _ in range(5):
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"}")

        talk(client, 60.0)


class TestAddresses:
    def test_are_those_clients_of_this_machine_use(self) -> None:
        with server.bind("127.0.0.1", 0) as bound:
            port = bound.getsockname()[1]
            assert server.address(bound, None) == f"http://127.0.0.1:{port}"
            assert server.address(bound, "https://sfumato.example/") == "https://sfumato.example"
        with server.bind("0.0.0.0", 0) as bound:  # noqa: S104
            assert server.address(bound, None) == f"http://127.0.0.1:{bound.getsockname()[1]}"

    def test_that_are_taken_are_not_shared(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            server.bind(*taken.getsockname())
