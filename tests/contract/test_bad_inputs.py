"""Every invalid request gets a documented problem in time, without any submitted value."""

import json
import time
from typing import Any

import pytest

from service.http import problems
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE
from tests.contract.bad_inputs import MARK, Case, cases
from tests.contract.generated import Objects, Operation, operations
from tests.contract.test_openapi import COMMITTED
from tests.service.api import SQLITE_BEFORE_RELEASE, Api

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
ALL = [operation for operation in operations(DOCUMENT) if operation.path.startswith("/v1")]
CODES = {problem.code: problem.status for problem in problems.ALL_PROBLEMS}
SECONDS = 30.0  # maximum time of a response, even on a busy machine
MIN_CASES = 5_000

for_each_operation = pytest.mark.parametrize("operation", ALL, ids=lambda operation: operation.name)


def find_error(operation: Operation, case: Case, api: Api) -> str:
    """Return a description of what is wrong with the response; empty if it is correct."""
    began = time.monotonic()
    answer = case.send(api.http, api.secret)
    took = time.monotonic() - began
    status, text = answer.status_code, answer.text
    documented = {int(code) for code in operation.definition["responses"]} | case.also
    if status >= 500 or status not in documented:
        return f"status {status}: {text[:200]}"
    if took > SECONDS:
        return f"took {took:.1f} s"
    if status < 400 or case.method == "HEAD":
        return ""
    if answer.headers["content-type"] != PROBLEM_MEDIA_TYPE or CODES.get(answer.json()["code"]) != status:
        return f"not a problem document: {text[:200]}"
    # An error names undeclared columns of records, because only the caller's own names help to correct them.
    if operation.name == "uploadRecords" and case.what.startswith("('columns'"):
        return ""
    if MARK in text or any(MARK in value for value in answer.headers.values()):
        return f"contains a submitted value: {text[:300]}"
    return ""


@pytest.mark.slow
@SQLITE_BEFORE_RELEASE
@for_each_operation
def test_every_invalid_request_is_answered_as_documented(operation: Operation, api: Api) -> None:
    wrong = {
        case.what: error
        for case in cases(operation, Objects(DOCUMENT, api))
        if (error := find_error(operation, case, api))
    }
    assert wrong == {}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_there_are_thousands_of_invalid_requests(api: Api) -> None:
    objects = Objects(DOCUMENT, api)
    numbers = {operation.name: sum(1 for _ in cases(operation, objects)) for operation in ALL}
    assert min(numbers.values()) >= 70, numbers
    assert sum(numbers.values()) >= MIN_CASES
    print(f"{sum(numbers.values())} bad requests to {len(numbers)} operations")
