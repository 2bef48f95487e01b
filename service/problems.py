"""What the API answers when it refuses (RFC 9457): one class a code, and how every error becomes one.

Problem
├── BadRequest             400 bad_request
├── Unauthenticated        401 unauthenticated
├── Forbidden              403 forbidden
├── NotFound               404 not_found
├── MethodNotAllowed       405 method_not_allowed
├── RequestTimeout         408 request_timeout
├── BudgetExhausted        409 budget_exhausted
├── RoundClosed            409 round_closed
├── TooFewReports          409 too_few_reports
├── JobNotFinished         409 job_not_finished
├── Conflict               409 conflict
├── PreconditionFailed     412 precondition_failed
├── PayloadTooLarge        413 payload_too_large
├── UnsupportedMediaType   415 unsupported_media_type
├── IdempotencyKeyReused   422 idempotency_key_reused
├── ValidationFailed       422 validation_failed
├── ReportMalformed        422 report_malformed
├── InsufficientReports    422 insufficient_reports
├── RateLimited            429 rate_limited
├── InternalError          500 internal_error
└── Unavailable            503 unavailable

A problem says what is wrong and where, and never repeats what was sent.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from starlette.exceptions import HTTPException

from models import errors as refusals
from sfumato.accounting import ATTO, NANO
from sfumato.errors import InvalidPoint, InvalidSpec, SfumatoError
from sfumato.errors import ReportMalformed as MalformedReport

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1


class Problem(HTTPException):
    """An answer with an error status.

    Parameters
    ----------
    detail : str
        What is wrong this time, for people; holds nothing that was sent.
    headers : sequence of (str, str)
        Beyond the usual ones.
    **more
        Members of the document beside type, title, status, detail, code and request_id.
    """

    code: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]
    example: ClassVar[dict[str, Any]] = {}  # its own members, for the documentation

    def __init__(self, detail: str = "", *, headers: Sequence[tuple[str, str]] = (), **more: Any) -> None:
        super().__init__(self.status, detail or self.title, dict(headers))
        self.more = more

    def body(self, request_id: str) -> bytes:
        """The problem document as JSON."""
        document = {
            "type": f"urn:sfumato:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
            **self.more,
        }
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class BadRequest(Problem):
    """Nothing the service can read."""

    code, status, title = "bad_request", 400, "The request cannot be read"


class Unauthenticated(Problem):
    """No key, or none that is live."""

    code, status, title = "unauthenticated", 401, "A live key is needed"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail, headers=[("www-authenticate", 'Bearer realm="sfumato"')])


class Forbidden(Problem):
    """The key lacks the scope."""

    code, status, title = "forbidden", 403, "The key may not do this"


class NotFound(Problem):
    """Not there, or not for this key."""

    code, status, title = "not_found", 404, "There is no such thing"


class MethodNotAllowed(Problem):
    """The path does not know the method."""

    code, status, title = "method_not_allowed", 405, "This path does not know the method"


class RequestTimeout(Problem):
    """A body that arrives too slowly."""

    code, status, title = "request_timeout", 408, "The body did not arrive in time"


class BudgetExhausted(Problem):
    """The ledger cannot bear the charge."""

    code, status, title = "budget_exhausted", 409, "The dataset's budget cannot bear this"
    example: ClassVar[dict[str, Any]] = {
        "short": "epsilon",
        "requested": 2.0,
        "granted": 4.0,
        "reserved": 0.0,
        "posted": 3.0,
        "entries": ["led_01jd0b1v3tq5c9m8x2h7r4k6ez"],
    }


class RoundClosed(Problem):
    """The round takes no more reports."""

    code, status, title = "round_closed", 409, "The round takes no more reports"


class TooFewReports(Problem):
    """Fewer reports than the round's minimum."""

    code, status, title = "too_few_reports", 409, "Too few reports arrived"


class JobNotFinished(Problem):
    """The job has no result, or none yet."""

    code, status, title = "job_not_finished", 409, "The job has no result"


class Conflict(Problem):
    """The thing is in another state than this needs."""

    code, status, title = "conflict", 409, "The state of the thing does not allow this"


class PreconditionFailed(Problem):
    """The thing has changed since the caller looked."""

    code, status, title = "precondition_failed", 412, "The thing has changed since"


class PayloadTooLarge(Problem):
    """A body beyond the limit."""

    code, status, title = "payload_too_large", 413, "The body is too large"


class UnsupportedMediaType(Problem):
    """A body of a kind this path does not read."""

    code, status, title = "unsupported_media_type", 415, "This path does not read such a body"


class IdempotencyKeyReused(Problem):
    """The idempotency key was used for another request."""

    code, status, title = "idempotency_key_reused", 422, "The idempotency key was used for another request"


class ValidationFailed(Problem):
    """Readable, but not what it should be; `errors` says where."""

    code, status, title = "validation_failed", 422, "The request is not what it should be"
    example: ClassVar[dict[str, Any]] = {
        "errors": [{"pointer": "/epsilon", "message": "epsilon must lie in [1e-6, 32]"}]
    }

    def __init__(self, detail: str = "", *, errors: Sequence[dict[str, str]] = ()) -> None:
        super().__init__(detail, errors=list(errors) or [{"pointer": "", "message": detail or self.title}])


class ReportMalformed(Problem):
    """A report no device could have sent; `index` is its place in the request."""

    code, status, title = "report_malformed", 422, "A report cannot be of this round"
    example: ClassVar[dict[str, Any]] = {"index": 0}


class InsufficientReports(Problem):
    """So few devices that no result could mean anything; `reports_needed`, where there is such a number, would do."""

    code, status, title = "insufficient_reports", 422, "So few reports cannot carry what is asked"
    example: ClassVar[dict[str, Any]] = {"reports_needed": 4683}


class RateLimited(Problem):
    """More at once than the service bears."""

    code, status, title = "rate_limited", 429, "Too many requests at once"

    def __init__(self, detail: str = "", *, retry_seconds: int = RETRY_SECONDS) -> None:
        super().__init__(detail, headers=[("retry-after", str(retry_seconds))])


class InternalError(Problem):
    """A fault of the service's own."""

    code, status, title = "internal_error", 500, "The service failed; the log has it under this request_id"


class Unavailable(Problem):
    """Not now; try again."""

    code, status, title = "unavailable", 503, "The service cannot do this right now; try again"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail, headers=[("retry-after", str(RETRY_SECONDS))])


ALL_PROBLEMS: tuple[type[Problem], ...] = tuple(Problem.__subclasses__())
_BY_CODE = {problem.code: problem for problem in ALL_PROBLEMS}
_BY_STATUS = {problem.status: problem for problem in reversed(ALL_PROBLEMS)}  # the first of a status wins
_BY_STATUS |= {409: Conflict, 422: ValidationFailed}


def from_exception(error: Exception) -> Problem:
    """The problem any exception is answered with; InternalError for what nobody foresaw."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _from_validation(error)
    if isinstance(error, SfumatoError):
        return _from_domain(error)
    if isinstance(error, HTTPException):  # the router's own
        problem = _BY_STATUS.get(error.status_code, BadRequest if error.status_code < 500 else InternalError)
        return problem(headers=list((error.headers or {}).items())) if problem is MethodNotAllowed else problem()
    if is_database_away(error):
        return Unavailable()
    return InternalError()


def is_database_away(error: Exception) -> bool:
    """Whether the database cannot be reached, or is too busy: another attempt may help."""
    if isinstance(error, OperationalError | InterfaceError | PoolExhausted):
        return True
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _from_domain(error: SfumatoError) -> Problem:
    if isinstance(error, InvalidSpec | InvalidPoint | refusals.LimitExceeded):
        return ValidationFailed(str(error))
    if isinstance(error, MalformedReport):
        return ReportMalformed(error.reason, index=error.index)
    if isinstance(error, refusals.BudgetExhausted):
        one = NANO if error.short == "epsilon" else ATTO
        amounts = {name: getattr(error, name) / one for name in ("requested", "granted", "reserved", "posted")}
        return BudgetExhausted(str(error), short=error.short, **amounts, entries=list(error.entries))
    if isinstance(error, refusals.Refused):
        return _BY_CODE.get(error.code, Conflict)(str(error))
    return InternalError()


# ---- what pydantic refused ----


def _from_validation(error: RequestValidationError) -> Problem:
    found = list(error.errors())
    if any(item["type"] == "json_invalid" for item in found):
        return BadRequest("the body is not JSON")
    if isinstance(error.body, bytes):  # it was never read as JSON
        return UnsupportedMediaType("this path reads application/json")
    return ValidationFailed(errors=list(_places(found, error.body)))


def _places(found: Sequence[Any], body: Any) -> Iterator[dict[str, str]]:
    for item in found:
        if item["type"] == "none_required":  # the other half of what is optional; the first half says it better
            continue
        where, *path = item["loc"]
        message = _message(item)
        if where == "body":
            yield {"pointer": _pointer(path, body, keep_last=item["type"] == "missing"), "message": message}
        else:
            yield {"pointer": "", "parameter": str(path[0]) if path else str(where), "message": message}


def _message(item: Any) -> str:
    if item["type"] == "union_tag_invalid":  # pydantic's own message repeats the tag
        return f"unknown type; known are {item['ctx']['expected_tags']}"
    if item["type"] == "union_tag_not_found":
        return "an object with a `type` is needed"
    if item["type"] == "model_attributes_type":
        return "an object is needed"
    return str(item["msg"])


def _pointer(path: Sequence[str | int], body: Any, *, keep_last: bool) -> str:
    """A JSON Pointer (RFC 6901) into the body, without what pydantic adds to a path (the tags of unions)."""
    steps: list[str | int] = []
    here = body
    for place, step in enumerate(path):
        is_there = isinstance(here, dict) and step in here
        is_there = is_there or (isinstance(here, list) and isinstance(step, int) and step < len(here))
        if is_there:
            here = here[step]
        elif not (keep_last and place == len(path) - 1):
            continue
        steps.append(step)
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


# ---- in the OpenAPI document ----


def documented(*problems: type[Problem], is_limited: bool = True) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an operation that may answer these problems, and those that any may."""
    by_status: dict[int, list[type[Problem]]] = {}
    of_any = [PayloadTooLarge, *([RateLimited] if is_limited else []), InternalError, Unavailable]
    kinds: list[type[Problem]] = [*problems, *of_any]
    if PayloadTooLarge in kinds:  # whoever takes a body waits for it
        kinds.append(RequestTimeout)
    for problem in dict.fromkeys(kinds):
        by_status.setdefault(problem.status, []).append(problem)
    return {
        status: {
            "description": "; ".join(f"`{p.code}`: {p.title}" for p in of_status),
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "examples": {p.code: {"value": _example(p)} for p in of_status},
                }
            },
        }
        | _documented_headers(of_status[0])
        for status, of_status in sorted(by_status.items())
    }


def _documented_headers(problem: type[Problem]) -> dict[str, Any]:
    names = [name.title() for name in problem().headers or {}]
    described = {name: {"description": "As RFC 9110 has it.", "schema": {"type": "string"}} for name in names}
    return {"headers": described} if described else {}


def _example(problem: type[Problem]) -> dict[str, Any]:
    example: dict[str, Any] = json.loads(problem().body("5f0c9d2e7a41b8c3"))
    return example | problem.example
