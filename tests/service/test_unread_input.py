"""Input that an operation does not read is refused: generated from the API document, for every operation."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.api import SQLITE_BEFORE_RELEASE, Api, unknown

pytestmark = SQLITE_BEFORE_RELEASE

ROOT = Path(__file__).parents[2]
PREFIXES = {
    "dataset_id": "ds",
    "round_id": "rnd",
    "series_id": "ser",
    "job_id": "job",
    "key_id": "key",
    "webhook_id": "whk",
    "delivery_id": "msg",
    "cluster_id": "clu",
}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    document = json.loads((ROOT / "openapi/openapi.json").read_text(encoding="utf-8"))
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


OPERATIONS = list(operations())
IDS = [each["operationId"] for _, _, each in OPERATIONS]
WITHOUT_BODY = [each for each in OPERATIONS if "requestBody" not in each[2]]


def send(api: Api, method: str, path: str, **options: Any) -> httpx.Response:
    filled = re.sub(r"\{(\w+)\}", lambda found: unknown(PREFIXES[found[1]]), path.replace("{source}", "ward-1"))
    if "{round_id}" in path:
        filled = path.format(round_id=api.round(api.dataset()["id"])["id"])
    headers = {"Authorization": f"Bearer {api.secret}", **options.pop("headers", {})}
    return api.http.request(method, filled, headers=headers, **options)


def query_parameters(operation: dict[str, Any]) -> list[str]:
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]


class TestParameters:
    @pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=IDS)
    def test_an_unknown_parameter_is_refused_by_name(
        self, api: Api, method: str, path: str, operation: dict[str, Any]
    ) -> None:
        body = {"json": {}} if "requestBody" in operation else {}
        refused = send(api, method, path, params={"dry_runn": "private"}, **body)
        assert refused.status_code == 422, refused.text
        (error,) = refused.json()["errors"]
        assert error["parameter"] == "dry_runn"
        assert "private" not in refused.text
        for name in query_parameters(operation):
            assert f"`{name}`" in error["message"]

    @pytest.mark.parametrize(
        ("method", "path", "name"),
        [(method, path, name) for method, path, each in OPERATIONS for name in query_parameters(each)],
    )
    def test_a_parameter_is_sent_once_with_a_value(self, api: Api, method: str, path: str, name: str) -> None:
        for query, message in ((f"{name}=", "has no value"), (f"{name}=1&{name}=1", "several times")):
            refused = send(api, method, f"{path}?{query}")
            assert refused.status_code == 422
            assert [each["parameter"] for each in refused.json()["errors"]] == [name]
            assert message in refused.json()["detail"]

    def test_the_nearest_parameter_is_named(self, api: Api) -> None:
        for wrong, known in (("curser", "cursor"), ("datasetId", "dataset_id")):
            assert f"use `{known}`" in api.get(f"/jobs?{wrong}=1").json()["detail"]

    def test_a_name_that_may_be_a_value_is_not_repeated(self, api: Api) -> None:
        assert "@" not in api.get("/jobs", params={"ann@example.org": "1"}).text

    def test_the_key_is_checked_first(self, http: httpx.Client) -> None:
        assert http.get("/v1/jobs?stat=1").status_code == 401


class TestBodies:
    @pytest.mark.parametrize(
        ("method", "path", "operation"), WITHOUT_BODY, ids=[e[2]["operationId"] for e in WITHOUT_BODY]
    )
    def test_a_body_is_refused_where_none_is_read(
        self, api: Api, method: str, path: str, operation: dict[str, Any]
    ) -> None:
        for content, pointers in ((b'{"dry_run": true, "state": 1}', ["/dry_run", "/state"]), (b"x", [""])):
            refused = send(api, method, path, content=content, headers={"Content-Type": "application/json"})
            assert refused.status_code == 422, refused.text
            assert [each["pointer"] for each in refused.json()["errors"]] == pointers
            assert all("has no body" in each["message"] for each in refused.json()["errors"])

    def test_a_member_that_is_a_parameter_is_explained(self, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        refused = api.post(f"/rounds/{opened['id']}/close", {"allow_empty": True})
        assert "send `allow_empty` as a query parameter" in refused.json()["detail"]

    def test_a_chunked_body_is_refused_too(self, api: Api) -> None:
        content = iter([json.dumps({"dry_run": True}).encode()])
        assert api.request("GET", "/jobs", content=content).status_code == 422
