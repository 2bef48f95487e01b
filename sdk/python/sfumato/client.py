"""The analyst's side: datasets, budgets, rounds, jobs, results, keys, webhooks.

Every call that creates something carries an idempotency key of its own and keeps it over
its retries, so a lost answer never makes a second job or a second grant.
"""

from typing import TYPE_CHECKING, Self

from sfumato._administration import AdministrationCalls
from sfumato._calls import Calls
from sfumato._datasets import DatasetCalls
from sfumato._http import AsyncHttp, Http
from sfumato._jobs import JobCalls
from sfumato._operations import AsyncSpeaker, Speaker
from sfumato._records import RecordCalls

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 256 << 20


class Client(Speaker, DatasetCalls, JobCalls, RecordCalls, Calls, AdministrationCalls):
    """A connection to one service, with one key.

    Every method raises ApiProblem where the service refuses, and Unreachable where it does
    not answer.

    Parameters
    ----------
    url, key : str
        Where the service is, and a bearer key; what it may do is up to its scopes.
    timeout_seconds : float
        Longest wait for one answer.
    retry_seconds : float
        How long one request is tried again; 0 tries once.
    transport : httpx.BaseTransport, optional
        In place of the network; the caller's to close.

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
        url: str,
        key: str,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 30.0,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        self._http = Http(
            url,
            key,
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
            max_answer_bytes=MAX_ANSWER_BYTES,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()


class AsyncClient(AsyncSpeaker, DatasetCalls, JobCalls, RecordCalls, Calls, AdministrationCalls):
    """The same, awaited, under asyncio or trio: every method of `Client`, by the same name.

    What `Client` returns is awaited here, and what it iterates over is read by `async for`.
    Retries, idempotency keys and checks are the same, from the same text. Between two awaits
    answers are parsed and files read, in parts of 16 MiB: programs that can bear no pause
    upload large files from a thread.

    Parameters
    ----------
    url, key : str
        Where the service is, and a bearer key; what it may do is up to its scopes.
    timeout_seconds : float
        Longest wait for one answer.
    retry_seconds : float
        How long one request is tried again; 0 tries once.
    transport : httpx.AsyncBaseTransport, optional
        In place of the network; the caller's to close.

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
        url: str,
        key: str,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 30.0,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        self._http = AsyncHttp(
            url,
            key,
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
            max_answer_bytes=MAX_ANSWER_BYTES,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.close()
