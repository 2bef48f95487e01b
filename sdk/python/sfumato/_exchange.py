"""What goes to the service and what comes back, without sending it: requests, answers, problems, patience, pages.

A request is tried again after a broken connection, a timeout, 408, 429 and 5xx, with the
same bytes, until `retry_seconds` have passed; `Retry-After` is honoured where it ends
before that. Everything sent here may be repeated: reports carry their id, other writes an
`Idempotency-Key`.
"""

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sfumato.entropy import SystemEntropy
from sfumato.errors import ApiProblem, InvalidSpec, SfumatoError, Unreachable

if TYPE_CHECKING:
    import httpx
    import stamina

T = TypeVar("T")

PAGE_ITEMS = 200

_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_WAIT_FIRST_SECONDS = 0.1
_WAIT_MOST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is to be sent.

    Attributes
    ----------
    path : str
        Below `/v1/`, without a slash in front.
    json_body, content : object, bytes
        At most one of them.
    extra_seconds : float
        How much longer than usual the service may think (long polls).
    after_seconds : float
        How long to wait before it is sent.
    """

    method: str
    path: str
    json_body: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    extra_seconds: float = 0.0
    after_seconds: float = 0.0

    @property
    def body(self) -> bytes | None:
        """What travels."""
        if self.json_body is None:
            return self.content
        return json.dumps(self.json_body, separators=(",", ":"), allow_nan=False).encode()

    @property
    def sent_headers(self) -> dict[str, str]:
        """What travels above it."""
        return dict(self.headers) | ({} if self.json_body is None else {"Content-Type": "application/json"})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a status below 300, or 304."""

    status: int
    headers: Mapping[str, str]  # without regard to case
    body: bytes

    def json(self) -> Any:
        """The body as JSON; raises ApiProblem where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise unexpected(self.status, "the answer is not JSON") from None

    def object(self) -> dict[str, Any]:
        """The body as a JSON object; raises ApiProblem where it is none."""
        value = self.json()
        if not isinstance(value, dict):
            raise unexpected(self.status, "the answer is not a JSON object")
        return value

    def read(self, reader: Callable[[Mapping[str, Any]], T]) -> T:
        """The body as one of the service's resources; raises ApiProblem or InvalidSpec."""
        return read(reader, self.object())

    @property
    def retry_after_seconds(self) -> float | None:
        """What the `Retry-After` header says, if anything."""
        return _retry_after(self.headers)


# A conversation: yields what to ask, is sent the answer (or thrown the problem), returns what was wanted. It does
# no input or output of its own, so that one text serves a client that blocks and one that is awaited.
Steps = Generator[Ask, Answer, T]


def get(path: str, **params: str) -> Ask:
    """Ask for what is at a path."""
    return Ask("GET", path, params=params)


def ask(path: str, body: Any) -> Ask:
    """Ask a question that takes a body, and changes nothing."""
    return Ask("POST", path, json_body=body)


def post(path: str, body: Any = None, idempotency_key: str | None = None) -> Ask:
    """Ask for an effect; its idempotency key, a fresh one by default, is kept over the retries."""
    return Ask("POST", path, json_body=body, headers={"Idempotency-Key": idempotency_key or fresh_key()})


def patch(path: str, changes: Mapping[str, object], if_match: str | None = None) -> Ask:
    """Ask for a change of what is given: what is None stays."""
    return Ask("PATCH", path, json_body=given(changes), headers={} if if_match is None else {"If-Match": if_match})


def given(body: Mapping[str, Any]) -> dict[str, Any]:
    """What was given; None stands for what was not, and does not travel."""
    return {name: value for name, value in body.items() if value is not None}


def delete(path: str) -> Ask:
    """Ask for an end."""
    return Ask("DELETE", path)


def fresh_key() -> str:
    """An idempotency key nobody had before."""
    return SystemEntropy().words(2).tobytes().hex()


def read(reader: Callable[[Mapping[str, Any]], T], wire: object) -> T:
    """Read an answer with a function for it; raises InvalidSpec where it is something else."""
    try:
        if isinstance(wire, Mapping):
            return reader(wire)
    except (KeyError, TypeError, ValueError):
        pass
    raise InvalidSpec(f"the service's answer is no {reader.__name__.replace('_', ' ')}")


# ---- pages ----


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list of the service's, to be read page after page."""

    path: str
    reader: Callable[[Mapping[str, Any]], T]
    params: Mapping[str, str] = field(default_factory=dict)

    def ask(self, cursor: str | None = None) -> Ask:
        """Ask for a page: the first, or the one a cursor leads to."""
        following = {} if cursor is None else {"cursor": cursor}
        return Ask("GET", self.path, params={**self.params, "limit": str(PAGE_ITEMS), **following})

    def page(self, answer: Answer, cursor: str | None) -> tuple[Iterator[T], str | None]:
        """The items of a page, and where the list goes on, if it does."""
        document = answer.object()
        items, following = document.get("items"), document.get("next_cursor")
        if not isinstance(items, list) or not (following is None or isinstance(following, str)):
            raise unexpected(200, "the answer is no page of a list")
        ends = not following or following == cursor  # the same again would turn in circles
        return (read(self.reader, item) for item in items), None if ends else following

    def steps(self, take: Callable[[T], None]) -> Steps[None]:
        """Hand every item over, as a part of a conversation."""
        cursor = None
        while True:
            items, cursor = self.page((yield self.ask(cursor)), cursor)
            for item in items:
                take(item)
            if cursor is None:
                return


# ---- patience ----


class TryAgain(SfumatoError):
    """The service asks for patience; never leaves the files that send."""

    def __init__(self, problem: ApiProblem, after_seconds: float | None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.after_seconds = after_seconds


def attempts(retry_seconds: float) -> "stamina._core._RetryContextIterator":
    """The attempts at one request, to be iterated over, or asynchronously so."""
    import httpx
    import stamina

    deadline = time.monotonic() + retry_seconds

    def again(error: Exception) -> bool | float:
        if isinstance(error, TryAgain) and error.after_seconds is not None:
            return error.after_seconds if time.monotonic() + error.after_seconds <= deadline else False
        if isinstance(error, TryAgain):
            return True
        our_own = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)  # the same however often it is tried
        return isinstance(error, httpx.TransportError) and not isinstance(error, our_own)

    return stamina.retry_context(
        on=again,
        attempts=None if retry_seconds > 0 else 1,
        timeout=retry_seconds or None,
        wait_initial=_WAIT_FIRST_SECONDS,
        wait_max=_WAIT_MOST_SECONDS,
    )


@contextmanager
def given_up(url: str) -> Iterator[None]:
    """What the last attempt ended with, as this package's errors."""
    import httpx

    try:
        yield
    except TryAgain as last:
        raise last.problem from None
    except httpx.RequestError as error:
        raise Unreachable(f"no answer from {url} ({type(error).__name__})") from None


class Incoming:
    """An answer as it arrives: bounded."""

    def __init__(self, response: "httpx.Response", max_bytes: int) -> None:
        self._response = response
        self._max_bytes = max_bytes
        self._body = bytearray()

    def take(self, chunk: bytes) -> None:
        """Take the next bytes; raises ApiProblem where they are too many."""
        self._body += chunk
        if len(self._body) > self._max_bytes:
            raise unexpected(self._response.status_code, f"the answer is over {self._max_bytes} bytes long")

    def answer(self) -> Answer:
        """The whole; raises ApiProblem or TryAgain where it is a problem."""
        status, headers = self._response.status_code, self._response.headers
        if status < 300 or status == 304:
            return Answer(status, headers, bytes(self._body))
        problem = _problem(status, bytes(self._body))
        if status in _TRY_AGAIN:
            raise TryAgain(problem, _retry_after(headers))
        raise problem


def _problem(status: int, body: bytes) -> ApiProblem:
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and "code" in document:
        return ApiProblem(status, document)
    if 300 <= status < 400:
        return unexpected(status, "a redirect, which is not followed")
    return unexpected(status, "an error without a problem document")


def unexpected(status: int, title: str) -> ApiProblem:
    """A problem for an answer that is none of the service's."""
    return ApiProblem(status, {"code": "unexpected_answer", "title": title, "status": status})


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date, which the clock here may not agree with
        return None
    return seconds if 0 <= seconds < float("inf") else None
