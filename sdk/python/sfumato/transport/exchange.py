"""Requests, responses, retries and pages, without input or output.

A request is retried after a broken connection, a timeout, and the statuses 408, 429, 500, 502, 503 and 504, with the
same bytes unless a function makes them for each attempt. Retries end after `retry_seconds`. `Retry-After` is respected
if it ends before that. Every request can be repeated: reports carry their id, other writes an `Idempotency-Key`.
"""

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sfumato.errors import ApiProblem, InvalidSpec, SfumatoError, Unreachable
from sfumato.plain import to_json
from sfumato.privacy.entropy import SystemEntropy

if TYPE_CHECKING:
    import httpx
    import tenacity

T = TypeVar("T")

PAGE_ITEMS = 200
FOREIGN = "the answer is not from the service"
TOO_LARGE = 413
_CHECK_THE_WAY = "check the URL, and the network and the proxies on the way to the service"
PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE = "urn:sfumato:problem:"  # the type of a problem is this and its code

_RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_IDEMPOTENCY_KEY = re.compile("[!-~]{1,255}")
_WAIT_FIRST_SECONDS = 0.1
_WAIT_MOST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the service.

    Attributes
    ----------
    path : str
        Path below `/v1/`, without a leading slash.
    json_body, content : object, bytes or callable
        The body. At most one of them is given. A function returns the bytes of each attempt.
    extra_seconds : float
        Time that a long poll adds to the timeout.
    after_seconds : float
        Delay before the request is sent.
    """

    method: str
    path: str
    json_body: Any = None
    content: bytes | Callable[[], bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    extra_seconds: float = 0.0
    after_seconds: float = 0.0

    @property
    def body(self) -> bytes | None:
        """Return the body as bytes."""
        if self.json_body is None:
            return self.content() if callable(self.content) else self.content
        return json.dumps(self.json_body, separators=(",", ":"), allow_nan=False, default=to_json).encode()

    @property
    def all_headers(self) -> dict[str, str]:
        """Return the headers with the content type of a JSON body."""
        return dict(self.headers) | ({} if self.json_body is None else {"Content-Type": "application/json"})


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads but JSON does not have."""
    raise ValueError(name)


@dataclass(frozen=True, slots=True)
class Response:
    """A response with a status below 300, or 304."""

    status: int
    headers: Mapping[str, str]  # case-insensitive
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON. Raise ApiProblem if it is not JSON."""
        try:
            return json.loads(self.body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise unexpected_response(self.status, "the response is not JSON") from None

    def object(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raise ApiProblem if it is not one."""
        value = self.json()
        if not isinstance(value, dict):
            raise unexpected_response(self.status, "the response is not a JSON object")
        return value

    def read(self, reader: Callable[[Mapping[str, Any]], T]) -> T:
        """Return the body as a resource that `reader` parses. Raise ApiProblem or InvalidSpec if it cannot."""
        return read(reader, self.object())

    @property
    def retry_after_seconds(self) -> float | None:
        """Return the delay in the `Retry-After` header, or None."""
        return _retry_after(self.headers)


# The steps of a call: a generator that yields requests, receives responses or problems, and returns the call's value.
# It does no input or output, so blocking and asynchronous clients share one definition.
Steps = Generator[Request, Response, T]


def get(path: str, **params: str) -> Request:
    """Return a GET request."""
    return Request("GET", path, params=params)


def query(path: str, body: Any) -> Request:
    """Return a POST request that changes no state, so it needs no idempotency key."""
    return Request("POST", path, json_body=body)


def post(path: str, body: Any = None, idempotency_key: str | None = None) -> Request:
    """Return a POST request. All its attempts share one idempotency key, which is random by default."""
    headers = {"Idempotency-Key": choose_idempotency_key(idempotency_key)}
    return Request("POST", path, json_body=body, headers=headers)


def patch(path: str, changes: Mapping[str, object], if_match: str | None = None) -> Request:
    """Return a PATCH request for the members that are not None."""
    headers = {} if if_match is None else {"If-Match": if_match}
    return Request("PATCH", path, json_body=drop_none(changes), headers=headers)


def in_order(oldest_first: bool) -> dict[str, str]:
    """Return the query of a list: none for the newest items first, which is the default."""
    return {"order": "oldest"} if oldest_first else {}


def drop_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in body.items() if value is not None}


def delete(path: str) -> Request:
    """Return a DELETE request."""
    return Request("DELETE", path)


def choose_idempotency_key(given: str | None) -> str:
    """Return the given idempotency key, or a random one of 128 bits. Raise InvalidSpec if no header can contain it."""
    if not given:
        return SystemEntropy().words(2).tobytes().hex()
    if not _IDEMPOTENCY_KEY.fullmatch(given):
        raise InvalidSpec("an idempotency key must have 1 to 255 visible ASCII characters, without spaces")
    return given


def read(reader: Callable[[Mapping[str, Any]], T], wire: object) -> T:
    """Return a JSON object as `reader` parses it. Raise InvalidSpec if the object has another form."""
    try:
        if isinstance(wire, Mapping):
            return reader(wire)
    except (KeyError, TypeError, ValueError):
        pass
    expected = reader.__name__.removeprefix("parse_").replace("_", " ")
    raise InvalidSpec(f"unexpected response of the service: expected a resource of type {expected}")


# ---- pages ----


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A paginated list."""

    path: str
    reader: Callable[[Mapping[str, Any]], T]
    params: Mapping[str, str] = field(default_factory=dict)

    def request(self, cursor: str | None = None) -> Request:
        """Return the request for the first page, or for the page of a cursor."""
        following = {} if cursor is None else {"cursor": cursor}
        return Request("GET", self.path, params={**self.params, "limit": str(PAGE_ITEMS), **following})

    def page(self, response: Response, cursor: str | None) -> tuple[Iterator[T], str | None]:
        """Return the items of a page, and the cursor of the next page if there is one."""
        document = response.object()
        items, following = document.get("items"), document.get("next_cursor")
        if not isinstance(items, list) or not (following is None or isinstance(following, str)):
            raise unexpected_response(response.status, "the response is not a page of a list")
        ends = not following or following == cursor  # a repeated cursor would loop forever
        return (read(self.reader, item) for item in items), None if ends else following

    def steps(self, take: Callable[[T], None]) -> Steps[None]:
        """Pass every item to `take`, as part of the steps of a call."""
        cursor = None
        while True:
            items, cursor = self.page((yield self.request(cursor)), cursor)
            for item in items:
                take(item)
            if cursor is None:
                return


# ---- retries ----


class TemporaryProblem(SfumatoError):
    """A problem that permits a retry. `translate_errors` replaces it before it reaches a caller."""

    def __init__(self, problem: ApiProblem, after_seconds: float | None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.after_seconds = after_seconds


def attempts(retry_seconds: float) -> "Iterator[tenacity.AttemptManager]":
    """Yield the contexts of the attempts of one request."""
    import tenacity

    return iter(tenacity.Retrying(**retry_policy(retry_seconds)))


def async_attempts(retry_seconds: float) -> "AsyncIterator[tenacity.AttemptManager]":
    """Yield the contexts of the attempts of one request."""
    import anyio
    import tenacity

    return aiter(tenacity.AsyncRetrying(sleep=anyio.sleep, **retry_policy(retry_seconds)))


def retry_policy(retry_seconds: float) -> dict[str, Any]:
    """Return the arguments of tenacity: which errors are retried, when, and until when. Nothing is logged."""
    import httpx
    import tenacity

    own_errors = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)  # a retry would fail again
    growing = tenacity.wait_exponential(_WAIT_FIRST_SECONDS, _WAIT_MOST_SECONDS) + tenacity.wait_random(0, 1)
    deadline = time.monotonic() + retry_seconds

    def should_retry(error: BaseException) -> bool:
        if isinstance(error, TemporaryProblem):
            return error.after_seconds is None or time.monotonic() + error.after_seconds <= deadline
        return isinstance(error, httpx.TransportError) and not isinstance(error, own_errors)

    def wait_seconds(state: "tenacity.RetryCallState") -> float:
        error = state.outcome and state.outcome.exception()
        stated = error.after_seconds if isinstance(error, TemporaryProblem) else None
        return growing(state) if stated is None else stated

    stop = tenacity.stop_after_delay(retry_seconds) if retry_seconds > 0 else tenacity.stop_after_attempt(1)
    retry = tenacity.retry_if_exception(should_retry)
    return {"retry": retry, "wait": wait_seconds, "stop": stop, "reraise": True}


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Replace the error of the last attempt by an ApiProblem or Unreachable."""
    import httpx

    try:
        yield
    except TemporaryProblem as last:
        raise last.problem from None
    except httpx.RequestError as error:
        raise Unreachable(f"no response from {url} ({type(error).__name__})") from None


class ResponseBuffer:
    """A response with a length limit while it arrives."""

    def __init__(self, response: "httpx.Response", max_bytes: int) -> None:
        self._response = response
        self._max_bytes = max_bytes
        self._body = bytearray()

    def append(self, chunk: bytes) -> None:
        """Append the next bytes. Raise ApiProblem if the response is too long."""
        self._body += chunk
        if len(self._body) > self._max_bytes:
            raise unexpected_response(self._response.status_code, f"the response has more than {self._max_bytes} bytes")

    def response(self) -> Response:
        """Return the whole response. Raise ApiProblem or TemporaryProblem if it is an error."""
        status, headers = self._response.status_code, self._response.headers
        if self._response.request.method == "DELETE" and status < 300 and status != 204:
            raise unexpected_response(status, "the deletion is not confirmed")
        if status < 300 or status == 304:
            return Response(status, headers, bytes(self._body))
        n_sent = self._response.request.headers.get("Content-Length", "")
        problem = _problem(status, headers, bytes(self._body), n_sent)
        if status in _RETRYABLE_STATUSES:
            raise TemporaryProblem(problem, _retry_after(headers))
        raise problem


def _problem(status: int, headers: Mapping[str, str], body: bytes, n_sent: str) -> ApiProblem:
    """Return the problem of an error response. Its code is `unexpected_response` unless the service wrote it.

    Parameters
    ----------
    n_sent : str
        Length of the request's body, as in its header.
    """
    if 300 <= status < 400:
        return unexpected_response(status, "the request was redirected, and redirects are not followed")
    media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    try:
        document = Response(status, headers, body).object() if media_type == PROBLEM_MEDIA_TYPE else {}
    except ApiProblem as foreign:
        return foreign
    is_own = document.get("type") == f"{PROBLEM_TYPE}{document.get('code')}" and document.get("status") == status
    if is_own:
        return ApiProblem(status, document)
    if status == TOO_LARGE:
        size = f"below {n_sent} bytes" if n_sent.isdigit() and n_sent != "0" else "of a limited size"
        return unexpected_response(
            status,
            f"the proxy in front of the service accepts bodies {size} only",
            "send smaller parts, or raise the limit of the proxy (nginx: client_max_body_size)",
        )
    return unexpected_response(status, FOREIGN)


def unexpected_response(status: int, title: str, remedy: str = _CHECK_THE_WAY) -> ApiProblem:
    """Return the problem for a response that does not follow the API. Another program may have answered."""
    return ApiProblem(status, {"code": "unexpected_response", "title": f"{title}: {remedy}", "status": status})


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date that depends on the service's clock
        return None
    return seconds if 0 <= seconds < float("inf") else None
