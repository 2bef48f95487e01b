"""Problem documents (RFC 9457): one exception class per error code, and the conversion of every exception into one.

Problem
├── BadRequest             400 bad_request
├── Unauthenticated        401 unauthenticated
├── Forbidden              403 forbidden
├── NotFound               404 not_found
├── MethodNotAllowed       405 method_not_allowed
├── RequestTimeout         408 request_timeout
├── DuplicateContent       409 duplicate_content
├── NoRecords              409 no_records
├── MostlyClipped          409 mostly_clipped
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
├── BatchRefused           422 batch_refused
├── InsufficientReports    422 insufficient_reports
├── RateLimited            429 rate_limited
├── HeadTooLarge           431 head_too_large
├── InternalError          500 internal_error
└── Unavailable            503 unavailable

A problem states what is wrong and where. It never repeats a submitted value.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from connections.problems import BadRequest as BadRequest
from connections.problems import HeadTooLarge as HeadTooLarge
from connections.problems import Problem as Problem
from models import errors
from models.database.failures import is_database_unavailable
from sfumato.errors import MAX_NAMED, InvalidPoint, InvalidSetting, InvalidSpec, SfumatoError
from sfumato.errors import ReportMalformed as MalformedReport
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE

RETRY_SECONDS = 1
MAX_ERRORS = 20  # errors in one problem document
NULL = object()  # stands for a null that is not allowed: a value of no type


class Unauthenticated(Problem):
    """The key is missing or not valid."""

    code, status, title = "unauthenticated", 401, "A valid key is required"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail, headers=[("www-authenticate", 'Bearer realm="sfumato"')])


class Forbidden(Problem):
    """The key lacks a required scope."""

    code, status, title = "forbidden", 403, "The key does not permit this operation"


class NotFound(Problem):
    """The resource does not exist, or the key may not see it."""

    code, status, title = "not_found", 404, "The resource does not exist"
    explanation = "no operation has this path: check it against the API reference"


class MethodNotAllowed(Problem):
    """The path does not support the method."""

    code, status, title = "method_not_allowed", 405, "The path does not support this method"
    explanation = "no operation has this path and method: use a method that the header Allow lists"


class RequestTimeout(Problem):
    """The body arrived too slowly."""

    code, status, title = "request_timeout", 408, "The body arrived too slowly"
    explanation = "the body took too long: send it in smaller parts or over a faster connection"


class DuplicateContent(Problem):
    """The dataset already has an upload of the same records."""

    code, status, title = "duplicate_content", 409, "The records are already stored"


class NoRecords(Problem):
    """The dataset has no records for a job; `least_records` is the smallest useful number."""

    code, status, title = "no_records", 409, "The dataset has no records"
    example: ClassVar[dict[str, Any]] = {"least_records": 50}


class MostlyClipped(Problem):
    """More than half of the records of an upload are outside of the bounds."""

    code, status, title = "mostly_clipped", 409, "Most records are outside of the bounds"


class BudgetExhausted(Problem):
    """The cost exceeds the remaining privacy budget."""

    code, status, title = "budget_exhausted", 409, "The cost exceeds the remaining privacy budget of the dataset"
    example: ClassVar[dict[str, Any]] = {
        "short": "epsilon",
        "requested": 2.0,
        "granted": 4.0,
        "reserved": 0.0,
        "charged": 3.0,
        "entries": ["led_01jd0b1v3tq5c9m8x2h7r4k6ez"],
    }


class RoundClosed(Problem):
    """The round no longer accepts reports."""

    code, status, title = "round_closed", 409, "The round no longer accepts reports"


class TooFewReports(Problem):
    """The round has fewer reports than its minimum."""

    code, status, title = "too_few_reports", 409, "The round has fewer reports than its minimum"


class JobNotFinished(Problem):
    """The job has no result, or no result yet."""

    code, status, title = "job_not_finished", 409, "The job has no result"


class Conflict(Problem):
    """The state of the resource does not allow the operation."""

    code, status, title = "conflict", 409, "The state of the resource does not allow this operation"


class PreconditionFailed(Problem):
    """The resource changed after the ETag that the client sent."""

    code, status, title = "precondition_failed", 412, "The resource changed after the ETag that was sent"


class PayloadTooLarge(Problem):
    """The body exceeds a limit."""

    code, status, title = "payload_too_large", 413, "The body is too large"


class UnsupportedMediaType(Problem):
    """The path does not accept the content type."""

    code, status, title = "unsupported_media_type", 415, "The path does not accept this content type"


class IdempotencyKeyReused(Problem):
    """An earlier request with different content used the same idempotency key."""

    code, status, title = "idempotency_key_reused", 422, "The idempotency key was used for another request"


class ValidationFailed(Problem):
    """A field is missing or out of range; `errors` locates the first 20 fields."""

    code, status, title = "validation_failed", 422, "The request is not valid"
    example: ClassVar[dict[str, Any]] = {
        "errors": [{"pointer": "/epsilon", "message": "epsilon must lie in [1e-6, 32]"}]
    }

    def __init__(self, detail: str = "", *, errors: Sequence[dict[str, str]] = ()) -> None:
        errors = errors[:MAX_ERRORS]
        places = [(each["pointer"] or each.get("parameter", ""), each["message"]) for each in errors[:MAX_NAMED]]
        detail = detail or "; ".join(f"{place}: {message}" if place else message for place, message in places)
        super().__init__(detail, errors=list(errors) or [{"pointer": "", "message": detail or self.title}])


class ReportMalformed(Problem):
    """The mechanism of the round cannot produce the report; `index` is its position in the request."""

    code, status, title = "report_malformed", 422, "A report does not fit the round"
    example: ClassVar[dict[str, Any]] = {"index": 0}


class BatchRefused(Problem):
    """The batch is not a complete release of this round that the dataset's shuffler signed."""

    code, status, title = "batch_refused", 422, "A batch is not a valid release of the round"


class InsufficientReports(Problem):
    """The job expects too few reports for a meaningful result; `reports_needed` is a sufficient number, if any."""

    code, status, title = "insufficient_reports", 422, "The expected reports do not suffice for this job"
    example: ClassVar[dict[str, Any]] = {"reports_needed": 4683}


class RateLimited(Problem):
    """The client exceeds a rate limit."""

    code, status, title = "rate_limited", 429, "Too many requests"
    explanation = "a limit on requests is reached: wait for the number of seconds in Retry-After"

    def __init__(self, detail: str = "", *, retry_seconds: int = RETRY_SECONDS) -> None:
        super().__init__(detail, headers=[("retry-after", str(retry_seconds))])


class InternalError(Problem):
    """An unexpected error of the service."""

    code, status, title = "internal_error", 500, "An unexpected error of the service"
    explanation = "the service failed, and its log names this request_id: repeat the request once, then report the id"


class Unavailable(Problem):
    """The service is temporarily unable to handle the request."""

    code, status, title = "unavailable", 503, "The service is temporarily unavailable"
    explanation = "the service cannot store or read now, and nothing was done: send the request again after Retry-After"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail, headers=[("retry-after", str(RETRY_SECONDS))])


ALL_PROBLEMS: tuple[type[Problem], ...] = tuple(Problem.__subclasses__())
_BY_CODE = {problem.code: problem for problem in ALL_PROBLEMS}
_BY_STATUS = {problem.status: problem for problem in reversed(ALL_PROBLEMS)}  # the first class of each status wins
_BY_STATUS |= {409: Conflict, 422: ValidationFailed}


@contextmanager
def pointing_at(pointer: str) -> Iterator[None]:
    """Convert an invalid specification or point into ValidationFailed with a pointer to the member that was sent."""
    try:
        yield
    except (InvalidSpec, InvalidPoint) as error:
        raise ValidationFailed(errors=[{"pointer": pointer, "message": str(error)}]) from None


def from_exception(error: Exception) -> Problem:
    """Return the problem that answers an exception; InternalError for unexpected exceptions."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _from_validation(error)
    if isinstance(error, SfumatoError):
        return _from_domain(error)
    if isinstance(error, HTTPException):  # raised by the router
        problem = _BY_STATUS.get(error.status_code, BadRequest if error.status_code < 500 else InternalError)
        return problem(headers=list((error.headers or {}).items())) if problem is MethodNotAllowed else problem()
    if is_database_unavailable(error):
        return Unavailable()
    return InternalError()


_UNITS = {"epsilon": NANO, "delta": ATTO, "shuffled_epsilon": NANO, "shuffled_delta": ATTO, "mu2": PICO}


def _from_domain(error: SfumatoError) -> Problem:
    if isinstance(error, InvalidSetting):
        return ValidationFailed(errors=[{"pointer": f"/{error.member}", "message": str(error)}])
    if isinstance(error, InvalidSpec | InvalidPoint | errors.LimitExceeded):
        return ValidationFailed(str(error))
    if isinstance(error, MalformedReport):
        return ReportMalformed(error.reason, index=error.index)
    if isinstance(error, errors.BudgetExhausted):
        one = _UNITS[error.short]
        amounts = {name: getattr(error, name) / one for name in ("requested", "granted", "reserved", "charged")}
        return BudgetExhausted(str(error), short=error.short, **amounts, entries=list(error.entries))
    if isinstance(error, errors.CeilingExceeded):
        one = _UNITS[error.short]
        amounts = {name: getattr(error, name) / one for name in ("requested", "limit", "spent")}
        return BudgetExhausted(str(error), ceiling=error.ceiling, short=error.short, **amounts)
    if isinstance(error, errors.ChangeRejected):
        return _BY_CODE.get(error.code, Conflict)(str(error))
    return InternalError()


# ---- validation errors of pydantic ----


def _from_validation(error: RequestValidationError) -> Problem:
    items = list(error.errors())
    if any(item["type"] == "json_invalid" for item in items):
        return BadRequest("the body is not valid JSON: check its syntax and send it as UTF-8")
    if isinstance(error.body, bytes):  # not parsed, because the content type is not JSON
        return UnsupportedMediaType("the content type is not supported: send application/json")
    return ValidationFailed(errors=list(islice(_field_errors(items, error.body), MAX_ERRORS)))


def _field_errors(items: Sequence[Any], body: Any) -> Iterator[dict[str, str]]:
    last_null: Any = None
    for item in items:
        if item["type"] == "none_required":  # the other branch of the optional union has the useful message
            continue
        where, *path = item["loc"]
        message = _message(item)
        if item.get("input") is NULL:
            if item["loc"] == last_null:  # the other branches of a union
                continue
            last_null = item["loc"]
        if where == "body":
            pointer = _pointer(path, body, keep_last=item["type"] == "missing")
            for name in item.get("ctx", {}).get("names") or [""]:
                yield {"pointer": f"{pointer}/{name}" if name else pointer, "message": message}
        else:
            yield {"pointer": "", "parameter": str(path[0]) if path else str(where), "message": message}


def _message(item: Any) -> str:
    if item.get("input") is NULL:
        return "null is not allowed: leave the member out, or give it a value"
    if item["type"] == "union_tag_invalid":  # pydantic's own message repeats the tag
        return f"unknown type: expected one of {item['ctx']['expected_tags']}"
    if item["type"] == "union_tag_not_found":
        return "expected an object with a `type`"
    if item["type"] == "missing":
        return "this field is required: add it"
    if item["type"] == "model_attributes_type":
        return "expected an object"
    return str(item["msg"]).replace("Input should", "the value must")


def _pointer(path: Sequence[str | int], body: Any, *, keep_last: bool) -> str:
    """Return a JSON Pointer (RFC 6901) into the body, without the union tags that pydantic adds to a path."""
    steps: list[str | int] = []
    value = body
    for position, step in enumerate(path):
        exists = isinstance(value, dict) and step in value
        exists = exists or (isinstance(value, list) and isinstance(step, int) and step < len(value))
        if exists:
            value = value[step]
        elif not (keep_last and position == len(path) - 1):
            continue
        steps.append(step)
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


# ---- OpenAPI document ----


def problem_responses(*problems: type[Problem], is_limited: bool = True) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of an operation: the given problems and those that every operation can raise."""
    by_status: dict[int, list[type[Problem]]] = {}
    common = [ValidationFailed, PayloadTooLarge, *([RateLimited] if is_limited else []), InternalError, Unavailable]
    kinds: list[type[Problem]] = [*problems, *common, RequestTimeout]
    for problem in dict.fromkeys(kinds):
        by_status.setdefault(problem.status, []).append(problem)
    return {
        status: {
            "description": "; ".join(f"`{p.code}`: {p.title}" for p in same_status),
            "content": {
                PROBLEM_MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "examples": {p.code: {"value": _example(p)} for p in same_status},
                }
            },
        }
        | _header_descriptions(same_status[0])
        for status, same_status in sorted(by_status.items())
    }


def _header_descriptions(problem: type[Problem]) -> dict[str, Any]:
    names = [name.title() for name in problem().headers or {}]
    described = {name: {"description": "Defined in RFC 9110.", "schema": {"type": "string"}} for name in names}
    return {"headers": described} if described else {}


def _example(problem: type[Problem]) -> dict[str, Any]:
    example: dict[str, Any] = json.loads(problem().body("5f0c9d2e7a41b8c3"))
    return example | problem.example
