"""A gateway in this process with its event loop in a thread, and an httpx client for any thread."""

import asyncio
import threading
from types import TracebackType
from typing import Self

import httpx
from fastapi import FastAPI

PATIENCE_SECONDS = 200  # longest wait for a response on a busy machine


class _Transport(httpx.BaseTransport):
    """Pass requests to the application in its event loop."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop) -> None:
        self._asgi = httpx.ASGITransport(app)
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._answer(request), self._loop).result(PATIENCE_SECONDS)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        sent = httpx.Request(request.method, request.url, headers=request.headers.raw, content=request.read())
        response = await self._asgi.handle_async_request(sent)
        return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())


class InProcess:
    """A running application. `client` sends requests to it, and `transport` those of other clients and devices."""

    client: httpx.Client
    transport: httpx.BaseTransport

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._lifespan = app.router.lifespan_context(app)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._lifespan.__aenter__(), self.loop).result(PATIENCE_SECONDS)
        self.transport = _Transport(self.app, self.loop)
        self.client = httpx.Client(transport=self.transport, base_url="http://gateway")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        asyncio.run_coroutine_threadsafe(self._lifespan.__aexit__(None, None, None), self.loop).result(PATIENCE_SECONDS)
        asyncio.run_coroutine_threadsafe(self.loop.shutdown_default_executor(), self.loop).result(PATIENCE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
