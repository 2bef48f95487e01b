"""Tenants do not meet: wherever an id can be named, one of another tenant answers as one that nothing has.

Made from the document: for every operation, every place of an id in its path, its query or its body. A new operation
is tried by itself, or makes a test fail by its name where its example or the kind of an id is missing.
"""

import json
from base64 import urlsafe_b64encode
from typing import Any

import httpx
import pytest

from models.tenant import Scope
from tests.contract.generated import Operation, Things, operations, request
from tests.contract.test_openapi import COMMITTED
from tests.service.api import Api, refused, unknown

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
ALL = [operation for operation in operations(DOCUMENT) if operation.path.startswith("/v1")]
PLACES = [(operation, (where, way), prefix) for operation in ALL for where, way, prefix in operation.id_places()]
IDS = [f"{operation.name}-{where}-{'.'.join(map(str, way))}" for operation, (where, way), _ in PLACES]
LISTS = [operation for operation in ALL if any(one["name"] == "cursor" for one in operation.parameters)]
OF_ONE_REQUEST = ("x-request-id", "date", "ratelimit", "ratelimit-policy")

# What an owner may be answered, whose request is right but for the state of what it names.
OWNERS_REFUSALS = {
    "sendReports": "report_malformed",  # the example's value is of another mechanism
    "createJob": "conflict",  # the round still takes reports, or is no such algorithm's
    "getPlot": "conflict",
    "getPlotPng": "conflict",
}

Place = tuple[str, tuple[Any, ...]]


def alike(one: httpx.Response, other: httpx.Response) -> bool:
    """Whether two answers tell the same, but for what no two answers have in common."""

    def told(answer: httpx.Response) -> tuple[Any, ...]:
        headers = sorted((name, value) for name, value in answer.headers.items() if name not in OF_ONE_REQUEST)
        return answer.status_code, headers, answer.json() | {"request_id": ""}

    return told(one) == told(other)


@pytest.fixture
def theirs(api: Api) -> Things:
    return Things(DOCUMENT, api)


@pytest.fixture
def mine(other: Api) -> Things:
    return Things(DOCUMENT, other)


def ask(api: Api, operation: Operation, things: Things, place: Place, named: str) -> httpx.Response:
    method, path, options = request(operation, things, at=place, by=named)
    return api.request(method, path, **options)


@pytest.mark.parametrize(("operation", "place", "prefix"), PLACES, ids=IDS)
class TestAnId:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_of_another_tenant_is_not_found(
        self, theirs: Things, mine: Things, operation: Operation, place: Place, prefix: str
    ) -> None:
        stolen = theirs.id(prefix, operation)
        before = theirs.seen(DOCUMENT)
        answer = ask(mine.api, operation, mine, place, stolen)
        refused(answer, 404, "not_found")
        assert stolen not in answer.text
        assert alike(answer, ask(mine.api, operation, mine, place, unknown(prefix)))
        assert theirs.seen(DOCUMENT) == before
        own = ask(theirs.api, operation, theirs, place, stolen)  # its owner finds it
        assert own.status_code < 300 or own.json()["code"] == OWNERS_REFUSALS.get(operation.name), own.text

    @pytest.mark.slow
    @pytest.mark.ci
    def test_is_not_looked_for_with_the_wrong_scope(
        self, theirs: Things, operation: Operation, place: Place, prefix: str
    ) -> None:
        assert operation.scopes, f"{operation.name} does not say which scopes it needs"
        there = theirs.id(prefix, operation)
        lacking = theirs.api.key(*sorted({*Scope} - {Scope.ADMIN} - {Scope(scope) for scope in operation.scopes}))
        answer = ask(lacking, operation, theirs, place, there)
        refused(answer, 403, "forbidden")
        assert alike(answer, ask(lacking, operation, theirs, place, unknown(prefix)))

    @pytest.mark.slow
    @pytest.mark.ci
    def test_beside_a_keys_own_dataset_is_not_found(
        self, theirs: Things, operation: Operation, place: Place, prefix: str
    ) -> None:
        hidden = theirs.id(prefix, operation)
        bound = theirs.api.key("admin", dataset_id=theirs.api.dataset()["id"])
        answer = ask(bound, operation, theirs, place, hidden)
        assert answer.status_code in (403, 404)  # 403: what no such key may do, to anything
        assert alike(answer, ask(bound, operation, theirs, place, unknown(prefix)))


@pytest.mark.parametrize("operation", LISTS, ids=lambda operation: operation.name)
def test_a_list_tells_nothing_of_a_place_in_another_tenants(theirs: Things, mine: Things, operation: Operation) -> None:
    hidden = [theirs.id(prefix, operation) for prefix in ("ds", "rnd", "job", "key")]
    method, path, options = request(operation, mine)
    for stolen in hidden:
        neighbour = stolen[:-1] + ("0" if stolen[-1] != "0" else "1")  # nothing has it, and nothing lies between
        answers = [
            mine.api.request(method, path, params={"cursor": urlsafe_b64encode(named.encode()).decode().rstrip("=")})
            for named in (stolen, neighbour)
        ]
        assert alike(*answers)
        assert not any(each in answers[0].text for each in hidden)
    answer = mine.api.request(method, path, **options)
    assert answer.status_code == 200
    assert not any(each in answer.text for each in hidden)


def test_every_operation_is_tried_that_names_a_thing() -> None:
    tried = {operation.name for operation, _, _ in PLACES}
    assert {operation.name for operation in ALL if "{" in operation.path} <= tried
    assert len(PLACES) >= 28
