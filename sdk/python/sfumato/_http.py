"""The one place that speaks HTTP: bearer key, problems, bounded retries, bounded answers.

A request is tried again after a broken connection, a timeout, 408, 429 and 5xx, with the
same bytes, until `retry_seconds` have passed; `Retry-After` is honoured where it ends
before that. Everything sent here may be repeated: reports carry their id, other writes an
`Idempotency-Key`.
"""

import hmac
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.entropy import SystemEntropy
from sfumato.errors import ApiProblem, SfumatoError, Unreachable

if TYPE_CHECKING:
    import httpx

PAGE_ITEMS = 200

_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_WAIT_FIRST_SECONDS = 0.1
_WAIT_MOST_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16


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
            raise _unexpected(self.status, "the answer is not JSON") from None

    def object(self) -> dict[str, Any]:
        """The body as a JSON object; raises ApiProblem where it is none."""
        value = self.json()
        if not isinstance(value, dict):
            raise _unexpected(self.status, "the answer is not a JSON object")
        return value

    @property
    def retry_after_seconds(self) -> float | None:
        """What the `Retry-After` header says, if anything."""
        return _retry_after(self.headers)


class Http:
    """A connection pool to one service.

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
    transport : httpx.BaseTransport, optional
        In place of the network; the caller's to close.
    """

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

        self._url = url.rstrip("/")
        self._key = key.encode()
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._max_answer_bytes = max_answer_bytes
        self._owns_transport = transport is None
        self._client = httpx.Client(
            base_url=f"{self._url}/v1/",
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=timeout_seconds,
            transport=transport,
            follow_redirects=False,  # the key and the reports are for this service alone
        )

    def close(self) -> None:
        """Give the connections back."""
        if self._owns_transport:
            self._client.close()

    def keyed_digest(self, what: bytes) -> str:
        """HMAC-SHA256 under the bearer key: the same again for the same, and no way to test a guess without the key."""
        return hmac.digest(self._key, what, "sha256").hex()

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The JSON object at a path."""
        return self.request("GET", path, params=params).object()

    def post(self, path: str, body: Any = None, idempotency_key: str | None = None) -> dict[str, Any]:
        """Ask for an effect; its idempotency key, a fresh one by default, is kept over the retries."""
        key = idempotency_key or SystemEntropy().words(2).tobytes().hex()
        return self.request("POST", path, json_body=body, headers={"Idempotency-Key": key}).object()

    def delete(self, path: str) -> None:
        """Ask for an end."""
        self.request("DELETE", path)

    def items(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[Any]:
        """Every item of a list, page after page."""
        cursor: dict[str, str] = {}
        while True:
            page = self.get(path, {**(params or {}), "limit": str(PAGE_ITEMS), **cursor})
            items, following = page.get("items"), page.get("next_cursor")
            if not isinstance(items, list) or not (following is None or isinstance(following, str)):
                raise _unexpected(200, "the answer is no page of a list")
            yield from items
            if not following or following == cursor.get("cursor"):
                return
            cursor = {"cursor": following}

    def request(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        extra_seconds: float = 0.0,
    ) -> Answer:
        """Send a request, again where it may help.

        Parameters
        ----------
        path : str
            Below `/v1/`, without a slash in front.
        extra_seconds : float
            How much longer than usual the service may think (long polls).

        Raises
        ------
        ApiProblem
            The service answered with an error, to the last attempt.
        Unreachable
            It did not answer.
        """
        import httpx
        import stamina

        sent = dict(headers or {})
        if json_body is not None:
            content = json.dumps(json_body, separators=(",", ":"), allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        request = self._client.build_request(
            method,
            path,
            content=content,
            headers=sent,
            params=params,
            timeout=self._timeout_seconds + extra_seconds,
        )
        deadline = time.monotonic() + self._retry_seconds

        def again(error: Exception) -> bool | float:
            if isinstance(error, _TryAgain) and error.after_seconds is not None:
                return error.after_seconds if time.monotonic() + error.after_seconds <= deadline else False
            if isinstance(error, _TryAgain):
                return True
            our_own = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)  # the same however often it is tried
            return isinstance(error, httpx.TransportError) and not isinstance(error, our_own)

        try:
            for attempt in stamina.retry_context(
                on=again,
                attempts=None if self._retry_seconds > 0 else 1,
                timeout=self._retry_seconds or None,
                wait_initial=_WAIT_FIRST_SECONDS,
                wait_max=_WAIT_MOST_SECONDS,
            ):
                with attempt:
                    return self._once(request)
        except _TryAgain as given_up:
            raise given_up.problem from None
        except httpx.RequestError as error:
            raise Unreachable(f"no answer from {self._url} ({type(error).__name__})") from None
        raise AssertionError("a retry context ends by returning or raising")

    def _once(self, request: "httpx.Request") -> Answer:
        response = self._client.send(request, stream=True)
        try:
            body = bytearray()
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                body += chunk
                if len(body) > self._max_answer_bytes:
                    raise _unexpected(response.status_code, f"the answer is over {self._max_answer_bytes} bytes long")
        finally:
            response.close()
        status = response.status_code
        if status < 300 or status == 304:
            return Answer(status, response.headers, bytes(body))
        problem = _problem(status, bytes(body))
        if status in _TRY_AGAIN:
            raise _TryAgain(problem, _retry_after(response.headers))
        raise problem


class _TryAgain(SfumatoError):
    """The service asks for patience; never leaves this file."""

    def __init__(self, problem: ApiProblem, after_seconds: float | None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.after_seconds = after_seconds


def _problem(status: int, body: bytes) -> ApiProblem:
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and "code" in document:
        return ApiProblem(status, document)
    if 300 <= status < 400:
        return _unexpected(status, "a redirect, which is not followed")
    return _unexpected(status, "an error without a problem document")


def _unexpected(status: int, title: str) -> ApiProblem:
    return ApiProblem(status, {"code": "unexpected_answer", "title": title, "status": status})


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date, which the clock here may not agree with
        return None
    return seconds if 0 <= seconds < float("inf") else None
