"""Clients of the service for analysts: datasets, budgets, rounds, jobs, series, results, keys and webhooks.

All attempts of a call that creates an object share one idempotency key. A lost response therefore
never creates a second job or a second grant.
"""

from typing import TYPE_CHECKING, Self

from sfumato.api.administration import AdministrationCalls
from sfumato.api.calls import Calls
from sfumato.api.datasets import DatasetCalls
from sfumato.api.jobs import JobCalls
from sfumato.api.records import RecordCalls
from sfumato.api.series import SeriesCalls
from sfumato.transport.http import AsyncHttp, Http, PoolSettings
from sfumato.transport.operations import AsyncBase, BlockingBase

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE_BYTES = 256 << 20


class Client(BlockingBase, DatasetCalls, JobCalls, SeriesCalls, RecordCalls, Calls, AdministrationCalls):
    """A connection pool to one service with one key.

    Every method raises ApiProblem if the service rejects the request, and Unreachable if it does
    not answer.

    Parameters
    ----------
    url, key : str, optional
        URL of the service, and a bearer key with scopes that permit the calls. Default: SFUMATO_URL and SFUMATO_KEY of
        the environment.
    timeout_seconds : float
        Timeout of one response, seconds. It is a second longer for each MiB of the request's body.
    retry_seconds : float
        Time during which a request is retried, seconds. 0 sends it once.
    transport : httpx.BaseTransport, optional
        Replacement of the network, for example in tests. The caller closes it.

    Examples
    --------
    >>> from sfumato import Client, Feature
    >>> with Client(url, key) as client:
    ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10), Feature("north", 0, 10)], epsilon=2)
    ...     names = [each.name for each in client.datasets() if each.id == dataset.id]
    >>> names
    ['Lunch']
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 30.0,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        settings = PoolSettings(timeout_seconds, retry_seconds, MAX_RESPONSE_BYTES)
        self._http = Http(url, key, settings, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncClient(AsyncBase, DatasetCalls, JobCalls, SeriesCalls, RecordCalls, Calls, AdministrationCalls):
    """An asynchronous client for asyncio or trio, with the methods of `Client`.

    Methods that return a value are awaited, and lists are iterated with `async for`. Retries,
    idempotency keys and checks are those of `Client`. Parsing of responses and reading of files, in
    parts of 16 MiB, block the event loop. Upload large files from a thread if that is too long.

    Parameters
    ----------
    url, key : str, optional
        URL of the service, and a bearer key with scopes that permit the calls. Default: SFUMATO_URL and SFUMATO_KEY of
        the environment.
    timeout_seconds : float
        Timeout of one response, seconds. It is a second longer for each MiB of the request's body.
    retry_seconds : float
        Time during which a request is retried, seconds. 0 sends it once.
    transport : httpx.AsyncBaseTransport, optional
        Replacement of the network, for example in tests. The caller closes it.

    Examples
    --------
    >>> import asyncio
    >>> from sfumato import AsyncClient, Feature
    >>> async def main():
    ...     async with AsyncClient(url, key) as client:
    ...         dataset = await client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=2)
    ...         return [each.kind async for each in client.ledger(dataset.id)]
    >>> asyncio.run(main())
    ['grant']
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 30.0,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        settings = PoolSettings(timeout_seconds, retry_seconds, MAX_RESPONSE_BYTES)
        self._http = AsyncHttp(url, key, settings, transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
