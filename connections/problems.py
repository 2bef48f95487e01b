"""Problem documents (RFC 9457): the base of all error codes, and the codes that a connection answers by itself."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

from starlette.exceptions import HTTPException

from sfumato.transport.exchange import PROBLEM_TYPE


class RequestIds:
    """Generator of random request ids. Sequential ids would reveal the number of other requests."""

    _ID_CHARACTERS = 16
    _BATCH = 512  # ids per system call, because a system call for each id costs more

    def __init__(self) -> None:
        self._random = ""  # hexadecimal digits
        self._offset = 0

    def next(self) -> str:
        """Return a new request id."""
        if self._offset >= len(self._random):
            self._random, self._offset = secrets.token_hex(self._ID_CHARACTERS // 2 * self._BATCH), 0
        self._offset += self._ID_CHARACTERS
        return self._random[self._offset - self._ID_CHARACTERS : self._offset]


new_request_id = RequestIds().next


class Problem(HTTPException):
    """An exception that is answered with an error status and a problem document.

    Parameters
    ----------
    detail : str
        A sentence about this occurrence, without submitted values.
    headers : sequence of (str, str)
        Additional response headers.
    **more
        Members of the document in addition to type, title, status, detail, code and request_id.
    """

    code: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]
    explanation: ClassVar[str] = ""  # default detail: the cause and a remedy
    example: ClassVar[dict[str, Any]] = {}  # additional members, for the OpenAPI document

    def __init__(self, detail: str = "", *, headers: Sequence[tuple[str, str]] = (), **more: Any) -> None:
        super().__init__(self.status, detail or self.explanation or self.title, dict(headers))
        self.more = more

    def body(self, request_id: str) -> bytes:
        """Return the problem document as JSON."""
        document = {
            "type": f"{PROBLEM_TYPE}{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
            **self.more,
        }
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class BadRequest(Problem):
    """The server cannot parse the request."""

    code, status, title = "bad_request", 400, "The request cannot be read"
    explanation = "the request cannot be parsed: check its path, query and body"


class HeadTooLarge(Problem):
    """The request line and headers exceed a limit."""

    code, status, title = "head_too_large", 431, "The head of the request is too large"
    explanation = "the request line and headers exceed a limit: send fewer or shorter headers"
