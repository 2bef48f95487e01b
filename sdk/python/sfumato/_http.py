"""The one place that sends: a connection pool to one service, blocking or awaited."""

import hmac
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from sfumato._exchange import Answer, Ask, Incoming, Steps, attempts, given_up

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_CHUNK_BYTES = 1 << 16


class _Pool:
    """What both kinds know of their service.

    Parameters
    ----------
    url : str
        Where the service is, without `/v1`.
    key : str
        Bearer key (`sfk_...`).
    timeout_seconds : float
        Longest wait for any one answer.
    retry_seconds : float
        After this long no further attempt is planned; 0 tries once.
    max_answer_bytes : int
        A longer answer is refused.
    """

    def __init__(
        self, url: str, key: str, *, timeout_seconds: float, retry_seconds: float, max_answer_bytes: int
    ) -> None:
        self._url = url.rstrip("/")
        self._key = key.encode()
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._max_answer_bytes = max_answer_bytes

    def keyed_digest(self, what: bytes) -> str:
        """HMAC-SHA256 under the bearer key: the same again for the same, and no way to test a guess without the key."""
        return hmac.digest(self._key, what, "sha256").hex()

    def _settings(self, key: str) -> dict[str, Any]:
        return {
            "base_url": f"{self._url}/v1/",
            "headers": {"Authorization": f"Bearer {key}", "Accept": "application/json"},
            "timeout": self._timeout_seconds,
            "follow_redirects": False,  # the key and the reports are for this service alone
        }

    def _built(self, client: "httpx.Client | httpx.AsyncClient", ask: Ask) -> "httpx.Request":
        return client.build_request(
            ask.method,
            ask.path,
            content=ask.body,
            headers=ask.sent_headers,
            params=ask.params,
            timeout=self._timeout_seconds + ask.extra_seconds,
        )


class Http(_Pool):
    """A pool that blocks; see `_Pool`. A `transport` in place of the network is the caller's to close."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_seconds: float,
        retry_seconds: float,
        max_answer_bytes: int,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        import httpx

        super().__init__(
            url,
            key,
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
            max_answer_bytes=max_answer_bytes,
        )
        self._owns_transport = transport is None
        self._client = httpx.Client(transport=transport, **self._settings(key))

    def close(self) -> None:
        """Give the connections back."""
        if self._owns_transport:
            self._client.close()

    def hold(self, conversation: Steps[T]) -> T:
        """Hold a conversation; what it returns."""
        try:
            ask = next(conversation)
            while True:
                try:
                    answer = self.perform(ask)
                except Exception as error:
                    ask = conversation.throw(error)
                else:
                    ask = conversation.send(answer)
        except StopIteration as done:
            returned: T = done.value
            return returned
        finally:
            conversation.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send what `Ask` says."""
        return self.perform(Ask(method, path, json_body=json_body, headers=headers or {}, params=params or {}))

    def perform(self, ask: Ask) -> Answer:
        """Send a request, again where it may help.

        Raises
        ------
        ApiProblem
            The service answered with an error, to the last attempt.
        Unreachable
            It did not answer.
        """
        if ask.after_seconds > 0:
            time.sleep(ask.after_seconds)
        request = self._built(self._client, ask)
        with given_up(self._url):
            for attempt in attempts(self._retry_seconds):
                with attempt:
                    return self._once(request)
        raise AssertionError("a retry context ends by returning or raising")

    def _once(self, request: "httpx.Request") -> Answer:
        response = self._client.send(request, stream=True)
        incoming = Incoming(response, self._max_answer_bytes)
        try:
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                incoming.take(chunk)
        finally:
            response.close()
        return incoming.answer()


class AsyncHttp(_Pool):
    """A pool that is awaited, under asyncio or trio; see `_Pool`. A `transport` is the caller's to close."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_seconds: float,
        retry_seconds: float,
        max_answer_bytes: int,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        import httpx

        super().__init__(
            url,
            key,
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
            max_answer_bytes=max_answer_bytes,
        )
        self._owns_transport = transport is None
        self._client = httpx.AsyncClient(transport=transport, **self._settings(key))

    async def close(self) -> None:
        """Give the connections back."""
        if self._owns_transport:
            await self._client.aclose()

    async def hold(self, conversation: Steps[T]) -> T:
        """As `Http.hold`."""
        try:
            ask = next(conversation)
            while True:
                try:
                    answer = await self.perform(ask)
                except Exception as error:
                    ask = conversation.throw(error)
                else:
                    ask = conversation.send(answer)
        except StopIteration as done:
            returned: T = done.value
            return returned
        finally:
            conversation.close()

    async def perform(self, ask: Ask) -> Answer:
        """As `Http.perform`."""
        import anyio

        if ask.after_seconds > 0:
            await anyio.sleep(ask.after_seconds)
        request = self._built(self._client, ask)
        with given_up(self._url):
            async for attempt in attempts(self._retry_seconds):
                with attempt:
                    return await self._once(request)
        raise AssertionError("a retry context ends by returning or raising")

    async def _once(self, request: "httpx.Request") -> Answer:
        response = await self._client.send(request, stream=True)
        incoming = Incoming(response, self._max_answer_bytes)
        try:
            async for chunk in response.aiter_bytes(_CHUNK_BYTES):
                incoming.take(chunk)
        finally:
            await response.aclose()
        return incoming.answer()
