"""How one text of a call becomes a method of `Client`, and one of `AsyncClient` that is awaited.

A call is written once, as a conversation: a generator that yields what to ask, is sent the
answer, and returns what was wanted. `@call` makes of it a method that holds the conversation at
once, or gives a coroutine that does, by whose method it is; `@listing` does the same for lists.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_args, overload

from sfumato._exchange import Listing, Steps
from sfumato._http import AsyncHttp, Http

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")


class Speaker:
    """One who waits for the answer: `Client`."""

    _http: Http


class AsyncSpeaker:
    """One whose answers are awaited: `AsyncClient`."""

    _http: AsyncHttp


class Operation(Generic[P, S, A]):
    """A method that gives `S` to a `Client`, and to be awaited `A` to an `AsyncClient`."""

    def __init__(
        self,
        conversation: Callable[Concatenate[Any, P], Steps[T]],
        held: Callable[[Speaker, T], S],
        awaited: Callable[[AsyncSpeaker, T], A],
    ) -> None:
        @functools.wraps(conversation)
        def hold(speaker: Speaker, *args: P.args, **kwargs: P.kwargs) -> S:
            return held(speaker, speaker._http.hold(conversation(speaker, *args, **kwargs)))

        @functools.wraps(conversation)
        async def wait(speaker: AsyncSpeaker, *args: P.args, **kwargs: P.kwargs) -> A:
            return awaited(speaker, await speaker._http.hold(conversation(speaker, *args, **kwargs)))

        functools.update_wrapper(cast(Any, self), conversation)
        self._hold, self._wait = _as_told(hold), _as_told(wait)

    @overload
    def __get__(self, speaker: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, speaker: Speaker, owner: type) -> Callable[P, S]: ...
    @overload
    def __get__(self, speaker: AsyncSpeaker, owner: type) -> Callable[P, Awaitable[A]]: ...
    def __get__(self, speaker: Any, owner: type) -> Any:
        return _method(self._hold, self._wait, speaker, owner)


class Listed(Generic[P, S, A]):
    """A method that gives an iterator of `S` to a `Client`, and an asynchronous one of `A` to an `AsyncClient`."""

    def __init__(
        self,
        described: Callable[Concatenate[Any, P], Listing[T]],
        held: Callable[[Speaker, T], S],
        awaited: Callable[[AsyncSpeaker, T], A],
    ) -> None:
        @functools.wraps(described)
        def iterate(speaker: Speaker, *args: P.args, **kwargs: P.kwargs) -> Iterator[S]:
            return (held(speaker, item) for item in pages(speaker._http, described(speaker, *args, **kwargs)))

        @functools.wraps(described)
        def aiterate(speaker: AsyncSpeaker, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[A]:
            return (awaited(speaker, item) async for item in apages(speaker._http, described(speaker, *args, **kwargs)))

        functools.update_wrapper(cast(Any, self), described)
        self._iterate, self._aiterate = _as_told(iterate), _as_told(aiterate)

    @overload
    def __get__(self, speaker: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, speaker: Speaker, owner: type) -> Callable[P, Iterator[S]]: ...
    @overload
    def __get__(self, speaker: AsyncSpeaker, owner: type) -> Callable[P, AsyncIterator[A]]: ...
    def __get__(self, speaker: Any, owner: type) -> Any:
        return _method(self._iterate, self._aiterate, speaker, owner)


def call(conversation: Callable[Concatenate[Any, P], Steps[T]]) -> Operation[P, T, T]:
    """A method that returns what its conversation does."""
    return Operation(conversation, _as_it_is, _as_it_is)


def listing(described: Callable[Concatenate[Any, P], Listing[T]]) -> Listed[P, T, T]:
    """A method that iterates over a list, page after page."""
    return Listed(described, _as_it_is, _as_it_is)


def pages(http: Http, listing: Listing[T]) -> Iterator[T]:
    """Every item of a list, as they are asked for."""
    cursor = None
    while True:
        items, cursor = listing.page(http.perform(listing.ask(cursor)), cursor)
        yield from items
        if cursor is None:
            return


async def apages(http: AsyncHttp, listing: Listing[T]) -> AsyncIterator[T]:
    """The same, awaited."""
    cursor = None
    while True:
        items, cursor = listing.page(await http.perform(listing.ask(cursor)), cursor)
        for item in items:
            yield item
        if cursor is None:
            return


def _as_it_is(_speaker: object, value: T) -> T:
    return value


def _method(held: Any, awaited: Any, speaker: Any, owner: type) -> Any:
    function = awaited if issubclass(owner, AsyncSpeaker) else held
    return function if speaker is None else MethodType(function, speaker)


def _as_told(function: Callable[P, T]) -> Callable[P, T]:
    """The function, that says of itself what it gives in the end, and not the conversation's type."""
    given = inspect.signature(function)
    kind = get_args(given.return_annotation)
    function.__signature__ = given.replace(return_annotation=kind[-1] if kind else given.return_annotation)  # type: ignore[attr-defined]
    return function
