"""Decorators that derive the methods of `Client` and `AsyncClient` from one definition.

A call is defined once, as a generator that yields requests, receives responses and returns the
value of the call. `@call` makes a method that blocks on a `Client` and returns a coroutine on an
`AsyncClient`. `@listing` does the same for calls that return an iterator.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_args, get_type_hints, overload

from sfumato.transport.exchange import Listing, Steps
from sfumato.transport.http import AsyncHttp, Http

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")


class BlockingBase:
    """Base of `Client`. Its methods block."""

    _http: Http


class AsyncBase:
    """Base of `AsyncClient`. Its methods are awaited."""

    _http: AsyncHttp


class Operation(Generic[P, S, A]):
    """A method that returns `S` on a `Client` and an awaitable of `A` on an `AsyncClient`."""

    def __init__(
        self,
        steps: Callable[Concatenate[Any, P], Steps[T]],
        wrap: Callable[[BlockingBase, T], S],
        wrap_async: Callable[[AsyncBase, T], A],
    ) -> None:
        @functools.wraps(steps)
        def run(client: BlockingBase, *args: P.args, **kwargs: P.kwargs) -> S:
            return wrap(client, client._http.run(steps(client, *args, **kwargs)))

        @functools.wraps(steps)
        async def run_async(client: AsyncBase, *args: P.args, **kwargs: P.kwargs) -> A:
            return wrap_async(client, await client._http.run(steps(client, *args, **kwargs)))

        functools.update_wrapper(cast(Any, self), steps)
        self._run, self._run_async = _set_return_type(run, wrap), _set_return_type(run_async, wrap_async)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: BlockingBase, owner: type) -> Callable[P, S]: ...
    @overload
    def __get__(self, client: AsyncBase, owner: type) -> Callable[P, Awaitable[A]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return _bind(self._run, self._run_async, client, owner)


class ListOperation(Generic[P, S, A]):
    """A method that returns an iterator of `S` on a `Client` and an async iterator of `A` on an `AsyncClient`."""

    def __init__(
        self,
        describe: Callable[Concatenate[Any, P], Listing[T]],
        wrap: Callable[[BlockingBase, T], S],
        wrap_async: Callable[[AsyncBase, T], A],
    ) -> None:
        @functools.wraps(describe)
        def iterate(client: BlockingBase, *args: P.args, **kwargs: P.kwargs) -> Iterator[S]:
            return (wrap(client, item) for item in iterate_pages(client._http, describe(client, *args, **kwargs)))

        @functools.wraps(describe)
        def iterate_async(client: AsyncBase, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[A]:
            listing = describe(client, *args, **kwargs)
            return (wrap_async(client, item) async for item in aiterate_pages(client._http, listing))

        functools.update_wrapper(cast(Any, self), describe)
        self._iterate = _set_return_type(iterate, wrap, Iterator)
        self._iterate_async = _set_return_type(iterate_async, wrap_async, AsyncIterator)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: BlockingBase, owner: type) -> Callable[P, Iterator[S]]: ...
    @overload
    def __get__(self, client: AsyncBase, owner: type) -> Callable[P, AsyncIterator[A]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return _bind(self._iterate, self._iterate_async, client, owner)


def call(steps: Callable[Concatenate[Any, P], Steps[T]]) -> Operation[P, T, T]:
    """Return a method that runs the steps and returns their value."""
    return Operation(steps, _unwrapped, _unwrapped)


def listing(describe: Callable[Concatenate[Any, P], Listing[T]]) -> ListOperation[P, T, T]:
    """Return a method that iterates over a paginated list."""
    return ListOperation(describe, _unwrapped, _unwrapped)


def iterate_pages(http: Http, listing: Listing[T]) -> Iterator[T]:
    """Yield every item of a list. Fetch each page when its first item is needed."""
    cursor = None
    while True:
        items, cursor = listing.page(http.send(listing.request(cursor)), cursor)
        yield from items
        if cursor is None:
            return


async def aiterate_pages(http: AsyncHttp, listing: Listing[T]) -> AsyncIterator[T]:
    """Yield every item of a list, as `iterate_pages` does."""
    cursor = None
    while True:
        items, cursor = listing.page(await http.send(listing.request(cursor)), cursor)
        for item in items:
            yield item
        if cursor is None:
            return


def _unwrapped(_client: object, value: T) -> T:
    return value


def _bind(blocking: Any, awaitable: Any, client: Any, owner: type) -> Any:
    function = awaitable if issubclass(owner, AsyncBase) else blocking
    return function if client is None else MethodType(function, client)


def _set_return_type(function: Callable[P, T], wrap: Callable[..., Any], container: Any = None) -> Callable[P, T]:
    """Replace the return annotation by the type of the call's value after `wrap`, and return the function."""
    signature = inspect.signature(function)
    value = get_args(signature.return_annotation)[-1]
    if wrap is not _unwrapped:  # a class method of the wrapped type, or a function
        value = wrap.__self__ if isinstance(wrap, MethodType) else get_type_hints(wrap)["return"]
    annotation = value if container is None else container[value]
    function.__signature__ = signature.replace(return_annotation=annotation)  # type: ignore[attr-defined]
    function.__annotations__ = function.__annotations__ | {"return": annotation}  # `wraps` shares the original one
    return function
