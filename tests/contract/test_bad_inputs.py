"""Whatever is sent, every operation answers as documented: a problem, in time, with nothing of what was sent."""

import json
import time
from typing import Any

import pytest

from service import problems
from tests.contract.bad_inputs import MARK, Case, cases
from tests.contract.generated import Operation, Things, operations
from tests.contract.test_openapi import COMMITTED
from tests.service.api import Api

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
ALL = [operation for operation in operations(DOCUMENT) if operation.path.startswith("/v1")]
CODES = {problem.code: problem.status for problem in problems.ALL_PROBLEMS}
SECONDS = 30.0  # for one answer, on a machine however busy
ONE_IN = 29  # of the cases in the fast run; a prime, so that each operation has others of every kind
MIN_CASES = 5_000

of_each = pytest.mark.parametrize("operation", ALL, ids=lambda operation: operation.name)


def complaint(operation: Operation, case: Case, api: Api) -> str:
    """What is wrong with the answer; nothing, where it is as it should be."""
    began = time.monotonic()
    answer = case.send(api.http, api.secret)
    took = time.monotonic() - began
    status, text = answer.status_code, answer.text
    documented = {int(told) for told in operation.told["responses"]} | case.also
    if status >= 500 or status not in documented:
        return f"answers {status}: {text[:200]}"
    if took > SECONDS:
        return f"takes {took:.1f} s"
    if status < 400 or case.method == "HEAD":
        return ""
    if answer.headers["content-type"] != problems.MEDIA_TYPE or CODES.get(answer.json()["code"]) != status:
        return f"is no problem: {text[:200]}"
    if MARK in text or any(MARK in value for value in answer.headers.values()):
        return f"repeats what was sent: {text[:300]}"
    return ""


def try_all(operation: Operation, api: Api, *, one_in: int = 1) -> None:
    things = Things(DOCUMENT, api)
    wrong = []
    for place, case in enumerate(cases(operation, things)):
        if (place + len(operation.name)) % one_in == 0 and (said := complaint(operation, case, api)):
            wrong.append(f"{operation.name}, {case.what}: {said}")
    assert not wrong, f"{len(wrong)} answers\n" + "\n".join(wrong[:40])


@of_each
@pytest.mark.slow
@pytest.mark.ci
def test_a_share_is_answered_as_documented(operation: Operation, api: Api) -> None:
    try_all(operation, api, one_in=ONE_IN)


@pytest.mark.slow
@pytest.mark.ci
@of_each
def test_every_one_is_answered_as_documented(operation: Operation, api: Api) -> None:
    try_all(operation, api)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_there_are_thousands(api: Api) -> None:
    things = Things(DOCUMENT, api)
    numbers = {operation.name: sum(1 for _ in cases(operation, things)) for operation in ALL}
    assert min(numbers.values()) >= 70, numbers
    assert sum(numbers.values()) >= MIN_CASES
    print(f"{sum(numbers.values())} bad requests to {len(numbers)} operations")
