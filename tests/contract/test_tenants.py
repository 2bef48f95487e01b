"""An id of another tenant gets the same response as an unknown id, at every place for an id.

The cases come from the document: every id in the path, the query or the body of every operation. A new operation is
included automatically, or fails a test with its name if its example or the prefix of an id is missing.
"""

import json
from typing import Any

import httpx
import pytest

from models.tables.identity import Scope
from tests.contract.generated import Objects, Operation, operations, request
from tests.contract.test_openapi import COMMITTED
from tests.service.api import SQLITE_BEFORE_RELEASE, Api, refused, unknown

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
ALL = [operation for operation in operations(DOCUMENT) if operation.path.startswith("/v1")]
PLACES = [(operation, (where, way), prefix) for operation in ALL for where, way, prefix in operation.id_places()]
IDS = [f"{operation.name}-{where}-{'.'.join(map(str, way))}" for operation, (where, way), _ in PLACES]
LISTS = [operation for operation in ALL if any(one["name"] == "cursor" for one in operation.parameters)]
LABELLED = {"getSource"}  # its path has a label that tenants choose; tests/service/api/test_sources.py has two tenants
VARYING_HEADERS = ("x-request-id", "date", "ratelimit", "ratelimit-policy")

# Refusals that the owner of an object may get because of the state of the object.
OWNER_REFUSALS = {
    "sendReports": "report_malformed",  # the value in the example belongs to another mechanism
    "closeRound": "too_few_reports",  # the round is empty
    "releaseRound": "conflict",  # the dataset is not shuffled
    "createJob": "conflict",  # the round is still open, or does not fit the algorithm
    "getSeriesMap": "job_not_finished",  # no window has a map
    "getPlot": "conflict",
    "getPlotPng": "conflict",
}

Place = tuple[str, tuple[Any, ...]]


def alike(one: httpx.Response, other: httpx.Response) -> bool:
    """Return whether two responses are equal, except for values that differ in every response."""

    def content(answer: httpx.Response) -> tuple[Any, ...]:
        headers = sorted((name, value) for name, value in answer.headers.items() if name not in VARYING_HEADERS)
        return answer.status_code, headers, answer.json() | {"request_id": ""}

    return content(one) == content(other)


@pytest.fixture
def theirs(api: Api) -> Objects:
    return Objects(DOCUMENT, api)


@pytest.fixture
def mine(other: Api) -> Objects:
    return Objects(DOCUMENT, other)


def send(api: Api, operation: Operation, objects: Objects, place: Place, named: str) -> httpx.Response:
    method, path, options = request(operation, objects, at=place, by=named)
    return api.request(method, path, **options)


@SQLITE_BEFORE_RELEASE
@pytest.mark.parametrize(("operation", "place", "prefix"), PLACES, ids=IDS)
class TestId:
    @pytest.mark.slow
    def test_of_another_tenant_is_not_found(
        self, theirs: Objects, mine: Objects, operation: Operation, place: Place, prefix: str
    ) -> None:
        stolen = theirs.id(prefix, operation)
        before = theirs.readable(DOCUMENT)
        answer = send(mine.api, operation, mine, place, stolen)
        refused(answer, 404, "not_found")
        assert stolen not in answer.text
        assert alike(answer, send(mine.api, operation, mine, place, unknown(prefix)))
        assert theirs.readable(DOCUMENT) == before
        own = send(theirs.api, operation, theirs, place, stolen)  # the owner finds it
        assert own.status_code < 300 or own.json()["code"] == OWNER_REFUSALS.get(operation.name), own.text

    @pytest.mark.slow
    def test_is_not_looked_up_without_the_scope(
        self, theirs: Objects, operation: Operation, place: Place, prefix: str
    ) -> None:
        assert operation.scopes, f"{operation.name} does not name its scopes"
        there = theirs.id(prefix, operation)
        lacking = theirs.api.key(*sorted({*Scope} - {Scope.ADMIN} - {Scope(scope) for scope in operation.scopes}))
        answer = send(lacking, operation, theirs, place, there)
        refused(answer, 403, "forbidden")
        assert alike(answer, send(lacking, operation, theirs, place, unknown(prefix)))

    @pytest.mark.slow
    def test_of_another_dataset_is_not_found_by_a_dataset_key(
        self, theirs: Objects, operation: Operation, place: Place, prefix: str
    ) -> None:
        hidden = theirs.id(prefix, operation)
        bound = theirs.api.key("admin", dataset_id=theirs.api.dataset()["id"])
        answer = send(bound, operation, theirs, place, hidden)
        assert answer.status_code in (403, 404)  # 403: no dataset key may call this operation
        assert alike(answer, send(bound, operation, theirs, place, unknown(prefix)))


@pytest.mark.parametrize("operation", LISTS, ids=lambda operation: operation.name)
def test_a_list_rejects_no_cursor_by_the_objects_of_another_tenant(
    theirs: Objects, mine: Objects, operation: Operation
) -> None:
    hidden = [theirs.id(prefix, operation) for prefix in ("ds", "rnd", "job", "key")]
    method, path, options = request(operation, mine)
    for stolen in hidden:
        neighbour = stolen[:-1] + ("0" if stolen[-1] != "0" else "1")  # an unused id next to the stolen one
        answers = [mine.api.request(method, path, params={"cursor": named}) for named in (stolen, neighbour)]
        assert alike(*answers)
        assert not any(each in answers[0].text for each in hidden)
    answer = mine.api.request(method, path, **options)
    assert answer.status_code == 200
    assert not any(each in answer.text for each in hidden)


def test_every_operation_with_an_id_is_covered() -> None:
    covered = {operation.name for operation, _, _ in PLACES} | LABELLED
    assert {operation.name for operation in ALL if "{" in operation.path} <= covered
    assert len(PLACES) >= 28
