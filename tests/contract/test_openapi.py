"""The OpenAPI document: committed, valid, complete, and fit for code generators."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import problems
from service.ingest import READERS
from tests.contract.schema import misfits, resolve

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "openapi" / "openapi.json"
METHODS = {"get", "post", "patch", "delete", "put"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(COMMITTED.read_text())
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        assert set(methods) <= METHODS
        for method, operation in methods.items():
            yield method, path, operation


def nodes(value: Any, at: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the document but those inside examples."""
    if isinstance(value, dict):
        yield at, value
        for name, item in value.items():
            if name not in ("example", "examples", "default"):
                yield from nodes(item, f"{at}/{name}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from nodes(item, f"{at}/{place}")


def schemas(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for at, node in nodes(document):
        if "type" in node and isinstance(node["type"], str) and not at.endswith(("/properties", "securitySchemes/key")):
            yield at, node


class TestTheDocument:
    def test_is_the_one_that_is_committed_whatever_the_settings(self) -> None:
        env = os.environ | {"SFUMATO_MAX_PAGE": "7", "SFUMATO_MAX_WAIT_SECONDS": "3", "SFUMATO_PORT": "no number"}
        made = subprocess.run(
            [sys.executable, "-m", "service.openapi"], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
        assert made.stdout == COMMITTED.read_text(), "run `make openapi`"

    def test_is_the_one_a_gateway_shows(self, http: httpx.Client, document: dict[str, Any]) -> None:
        assert http.get("/openapi.json").json() == document

    def test_is_of_the_version_generators_read(self, document: dict[str, Any]) -> None:
        assert document["openapi"] == "3.1.0"
        assert set(document) == {"openapi", "info", "paths", "components", "tags"}

    def test_refers_to_what_is_there_and_has_nothing_nobody_refers_to(self, document: dict[str, Any]) -> None:
        named = {node["$ref"] for _, node in nodes(document) if isinstance(node.get("$ref"), str)}
        named |= {
            reference
            for _, node in nodes(document)
            if isinstance(node.get("discriminator"), dict)
            for reference in node["discriminator"]["mapping"].values()
        }
        for reference in named:
            assert resolve(document, reference)
        assert named == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def test_is_shown_to_people(self, http: httpx.Client, document: dict[str, Any]) -> None:
        page = http.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "<script" not in page.text
        assert not re.search(r"(src|href)='?\"?(https?:)?//", page.text)
        text = unescape(re.sub(r"<[^>]+>", "", page.text))
        for method, path, operation in operations(document):
            assert f"{method.upper()} {path}" in text
            assert operation["summary"] in text
        for name in document["components"]["schemas"]:
            assert f"id='schema-{name}'" in page.text


class TestOperations:
    def test_have_names_of_their_own_and_one_tag(self, document: dict[str, Any]) -> None:
        found = list(operations(document))
        ids = [operation["operationId"] for _, _, operation in found]
        assert len(set(ids)) == len(ids) >= 28
        assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", name) for name in ids)
        tags = {tag["name"] for tag in document["tags"]}
        assert all(len(operation["tags"]) == 1 for _, _, operation in found)
        assert {operation["tags"][0] for _, _, operation in found} == tags

    def test_are_described(self, document: dict[str, Any]) -> None:
        for method, path, operation in operations(document):
            assert operation["summary"], (method, path)
            assert len(operation["description"]) > 20, (method, path)
            for parameter in operation.get("parameters", ()):
                assert parameter["description"], (method, path, parameter["name"])
            assert all(response["description"] for response in operation["responses"].values())

    def test_need_a_key_and_say_which_scopes(self, document: dict[str, Any]) -> None:
        for _, path, operation in operations(document):
            assert ("security" in operation) == path.startswith("/v1")
            if path.startswith("/v1"):
                assert "scope" in operation["description"], path
                assert {"401", "403"} <= set(operation["responses"])

    def test_answer_errors_with_problems(self, document: dict[str, Any]) -> None:
        told = set()
        for _, path, operation in operations(document):
            for status, response in operation["responses"].items():
                if int(status) < 400:
                    continue
                ((media_type, content),) = response["content"].items()
                assert (media_type, content["schema"]) == (
                    problems.MEDIA_TYPE,
                    {"$ref": "#/components/schemas/Problem"},
                ), path
                for code, shown in content["examples"].items():
                    told.add(code)
                    assert (shown["value"]["code"], shown["value"]["status"]) == (code, int(status))
                    assert not list(misfits(document, content["schema"], shown["value"]))
        anywhere = {"method_not_allowed"}  # of no operation: that is what it says
        of_jobs = set(document["components"]["schemas"]["JobError"]["properties"]["code"]["examples"])
        assert told | anywhere | of_jobs == {problem.code for problem in problems.ALL_PROBLEMS}

    def test_with_an_id_may_not_find_it(self, document: dict[str, Any]) -> None:
        for _, path, operation in operations(document):
            if "{" in path:
                assert "404" in operation["responses"]

    def test_that_make_something_take_an_idempotency_key(self, document: dict[str, Any]) -> None:
        without = {
            operation["operationId"]
            for method, _, operation in operations(document)
            if method == "post" and "Idempotency-Key" not in [p["name"] for p in operation.get("parameters", ())]
        }
        assert without == {
            "sendReports",
            "assignPoints",
            "createForecast",
        }  # reports have ids, the others store nothing
        keys = [
            parameter["schema"]
            for _, _, operation in operations(document)
            for parameter in operation.get("parameters", ())
            if parameter["name"] == "Idempotency-Key"
        ]
        told = {(key["minLength"], key["maxLength"], key["pattern"]) for key in keys}
        assert told == {(1, 255, "^[!-~]+$")}

    def test_that_make_something_are_linked_to_all_that_is_about_it(self, document: dict[str, Any]) -> None:
        linked = {
            operation["operationId"]: set(response["links"])
            for _, _, operation in operations(document)
            for response in operation["responses"].values()
            if "links" in response
        }
        assert {"getDataset", "createRound", "listRounds", "uploadRecords", "deleteDataset"} <= linked["createDataset"]
        assert {"getRound", "closeRound", "sendReports"} <= linked["createRound"] & linked["listRounds"]
        assert {"getJob", "cancelJob", "getResult", "assignPoints"} <= linked["createJob"]
        reached = set().union(*linked.values())
        assert {o["operationId"] for _, path, o in operations(document) if "{" in path} == reached

    def test_of_reports_name_every_form(self, document: dict[str, Any]) -> None:
        body = document["paths"]["/v1/rounds/{round_id}/reports"]["post"]["requestBody"]
        assert set(body["content"]) == {kind.decode() for kind in READERS}


class TestSchemas:
    def test_are_closed_and_described(self, document: dict[str, Any]) -> None:
        for name, schema in document["components"]["schemas"].items():
            assert schema["description"], name
            if schema.get("type") == "object":
                assert schema["additionalProperties"] is False, name

    def test_have_no_member_without_words(self, document: dict[str, Any]) -> None:
        for name, schema in document["components"]["schemas"].items():
            for member, inner in schema.get("properties", {}).items():
                assert inner.get("description") or "const" in inner, f"{name}.{member}"

    def test_of_answers_have_examples_that_fit(self, document: dict[str, Any]) -> None:
        shown = 0
        for _, path, operation in operations(document):
            for status, response in operation["responses"].items():
                content = response.get("content", {}).get("application/json")
                if content is None:
                    continue
                examples = [each["value"] for each in content.get("examples", {}).values()]
                examples = examples or resolve(document, content["schema"]["$ref"])["examples"]
                for example in examples:
                    shown += 1
                    assert not list(misfits(document, content["schema"], example)), (path, status)
        assert shown >= 28

    def test_of_requests_have_examples_that_fit(self, document: dict[str, Any]) -> None:
        shown = 0
        for _, path, operation in operations(document):
            for content in operation.get("requestBody", {}).get("content", {}).values():
                examples = [each["value"] for each in content.get("examples", {}).values()]
                if "$ref" in content["schema"]:
                    examples += resolve(document, content["schema"]["$ref"])["examples"]
                elif not examples:
                    assert content["schema"]["format"] == "binary"
                for example in examples:
                    shown += 1
                    assert not list(misfits(document, content["schema"], example)), path
        assert shown >= 9

    def test_have_examples_that_fit(self, document: dict[str, Any]) -> None:
        for name, schema in document["components"]["schemas"].items():
            for example in schema.get("examples", ()):
                assert not list(misfits(document, schema, example)), name

    def test_of_unions_have_a_tag_without_a_default(self, document: dict[str, Any]) -> None:
        unions = [schema for _, schema in nodes(document["components"]["schemas"]) if "oneOf" in schema]
        names = [union["discriminator"]["propertyName"] for union in unions]
        assert sorted(names) == ["trust"] + ["type"] * 4  # forecasts; algorithms, encodings, mechanisms, memberships
        for name, union in zip(names, unions, strict=True):
            for tag, reference in union["discriminator"]["mapping"].items():
                member = resolve(document, reference)
                assert member["properties"][name] == {"const": tag, "type": "string"}
                assert name in member["required"]

    def test_of_numbers_say_their_format_and_stay_exact(self, document: dict[str, Any]) -> None:
        for at, schema in schemas(document["components"]["schemas"]):
            if schema["type"] == "number":
                assert schema["format"] == "double", at
            if schema["type"] == "integer" and "const" not in schema:
                assert schema["format"] == "int64", at
                assert schema["maximum"] <= 2**53 - 1, at
                assert isinstance(schema["maximum"], int), at

    def test_have_no_nulls_for_what_is_left_out(self, document: dict[str, Any]) -> None:
        for at, schema in nodes(document):
            assert not ("default" in schema and schema["default"] is None), at
            assert "prefixItems" not in schema, at
            assert not ("title" in schema and "/schemas/" in at and isinstance(schema["title"], str)), at
