"""The OpenAPI document is committed, valid, complete, and suitable for code generators."""

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

from service.http import problems
from service.ingestion.report_endpoint import READERS
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE
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
    """Yield every object of the document outside of examples."""
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


class TestDocument:
    @pytest.mark.slow
    def test_equals_the_committed_file_under_any_settings(self) -> None:
        env = os.environ | {"SFUMATO_MAX_PAGE": "7", "SFUMATO_MAX_WAIT_SECONDS": "3", "SFUMATO_PORT": "no number"}
        command = [sys.executable, "-m", "tools.openapi"]
        printed = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
        assert printed == COMMITTED.read_text(), "run `make openapi`"

    def test_is_served_by_the_gateway(self, http: httpx.Client, document: dict[str, Any]) -> None:
        assert http.get("/openapi.json").json() == document

    def test_has_the_version_that_generators_support(self, document: dict[str, Any]) -> None:
        assert document["openapi"] == "3.1.0"
        assert set(document) == {"openapi", "info", "servers", "security", "paths", "components", "tags"}

    def test_has_no_dangling_reference_and_no_unused_schema(self, document: dict[str, Any]) -> None:
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

    def test_is_shown_as_a_page_without_scripts(self, http: httpx.Client, document: dict[str, Any]) -> None:
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
    def test_have_unique_names_and_one_tag(self, document: dict[str, Any]) -> None:
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
            assert "{" not in path or "404" in operation["responses"]

    def test_need_a_key_and_name_its_scopes(self, document: dict[str, Any]) -> None:
        for _, path, operation in operations(document):
            assert operation["security"] == (document["security"] if path.startswith("/v1") else [])
            if path.startswith("/v1"):
                assert "scope" in operation["description"], path
                assert {"401", "403"} <= set(operation["responses"])

    def test_have_problems_as_error_responses(self, document: dict[str, Any]) -> None:
        codes = set()
        schema = {"$ref": "#/components/schemas/Problem"}
        for _, path, operation in operations(document):
            for status, response in operation["responses"].items():
                if int(status) < 400:
                    continue
                ((media_type, content),) = response["content"].items()
                assert (media_type, content["schema"]) == (PROBLEM_MEDIA_TYPE, schema), path
                for code, example in content["examples"].items():
                    codes.add(code)
                    assert (example["value"]["code"], example["value"]["status"]) == (code, int(status))
                    assert not list(misfits(document, schema, example["value"]))
        elsewhere = {"method_not_allowed", "head_too_large"}  # belong to no operation
        of_jobs = set(document["components"]["schemas"]["JobError"]["properties"]["code"]["examples"])
        assert codes | elsewhere | of_jobs == {problem.code for problem in problems.ALL_PROBLEMS}

    def test_that_create_something_accept_an_idempotency_key(self, document: dict[str, Any]) -> None:
        # Reports have ids of their own, a round accepts one batch, and the others store nothing.
        without, limits = set(), set()
        for method, _, operation in operations(document):
            schemas = [each["schema"] for each in operation.get("parameters", ()) if each["name"] == "Idempotency-Key"]
            limits |= {(key["minLength"], key["maxLength"], key["pattern"]) for key in schemas}
            if method == "post" and not schemas:
                without.add(operation["operationId"])
        forecasts = {"createForecast", "createProfileForecast", "createSeriesForecast"}
        assert without == {"sendReports", "releaseRound", "assignPoints"} | forecasts
        assert limits == {(1, 255, "^[!-~]+$")}

    def test_that_create_something_link_to_the_operations_on_it(self, document: dict[str, Any]) -> None:
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
        with_ids = {o["operationId"] for _, path, o in operations(document) if "{" in path} - {"getSource"}  # a label
        assert with_ids == reached

    def test_of_reports_list_every_media_type(self, document: dict[str, Any]) -> None:
        body = document["paths"]["/v1/rounds/{round_id}/reports"]["post"]["requestBody"]
        assert set(body["content"]) == {kind.decode() for kind in READERS}


class TestSchemas:
    def test_are_closed_in_requests_and_open_in_responses(self, document: dict[str, Any]) -> None:
        schemas = document["components"]["schemas"]
        kinds = {name: schemas[name].get("additionalProperties", True) for name in ("NewDataset", "Feature", "NewJob")}
        assert kinds == dict.fromkeys(kinds, False)
        opened = {name: schemas[name].get("additionalProperties", True) for name in ("Dataset", "Job", "Problem")}
        assert opened == dict.fromkeys(opened, True)
        later = json.loads(json.dumps(schemas["Receipt"]["examples"][0])) | {"a_member_of_a_later_version": 1}
        assert not list(misfits(document, schemas["Receipt"], later))

    def test_are_described(self, document: dict[str, Any]) -> None:
        for name, schema in document["components"]["schemas"].items():
            assert schema["description"], name
            for member, inner in schema.get("properties", {}).items():
                assert inner.get("description") or "const" in inner or "$ref" in inner, f"{name}.{member}"
            for example in schema.get("examples", ()):
                assert not list(misfits(document, schema, example)), name

    def test_of_responses_have_valid_examples(self, document: dict[str, Any]) -> None:
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

    def test_of_requests_have_valid_examples(self, document: dict[str, Any]) -> None:
        shown = 0
        for _, path, operation in operations(document):
            for content in operation.get("requestBody", {}).get("content", {}).values():
                examples = [each["value"] for each in content.get("examples", {}).values()]
                if "$ref" in content["schema"]:
                    examples += resolve(document, content["schema"]["$ref"]).get("examples", [])
                if not examples:
                    assert content["schema"]["format"] == "binary"
                for example in examples:
                    shown += 1
                    assert not list(misfits(document, content["schema"], example)), path
        assert shown >= 9

    def test_of_unions_have_a_tag_without_a_default(self, document: dict[str, Any]) -> None:
        found = [schema for _, schema in nodes(document["components"]["schemas"]) if "oneOf" in schema]
        unions = [schema for schema in found if sum("$ref" in kind for kind in schema["oneOf"]) > 1]
        names = [union["discriminator"]["propertyName"] for union in unions]
        # attributes; forecasts; algorithms and profiles, those of series, encodings, mechanisms, memberships, labels
        assert sorted(names) == ["kind", "trust"] + ["type"] * 6
        for name, union in zip(names, unions, strict=True):
            for tag, reference in union["discriminator"]["mapping"].items():
                member = resolve(document, reference)
                assert member["properties"][name] == {"const": tag, "type": "string"}
                assert name in member["required"]

    def test_of_numbers_have_a_format_and_an_exact_range(self, document: dict[str, Any]) -> None:
        for at, schema in schemas(document["components"]["schemas"]):
            if schema["type"] == "number":
                assert schema["format"] == "double", at
            if schema["type"] == "integer" and "const" not in schema:
                assert schema["format"] == "int64", at
                assert schema["maximum"] <= 2**53 - 1, at
                assert isinstance(schema["maximum"], int), at

    def test_of_enums_objects_and_unions_have_a_name(self, document: dict[str, Any]) -> None:
        # Generators invent a name for each other place, such as `State1`.
        components = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        for at, schema in nodes(document):
            if at.endswith("/properties"):
                continue
            is_object = schema.get("type") == "object" or isinstance(schema.get("properties"), dict)
            kinds = [each for key in ("anyOf", "oneOf") for each in schema.get(key, ()) if each.get("type") != "null"]
            is_union = len(kinds) > 1 and any("$ref" in kind for kind in kinds)
            assert at in components or not (is_object or is_union or "enum" in schema), at
        assert not [name for name in components if name[-1].isdigit()]

    def test_have_no_null_defaults(self, document: dict[str, Any]) -> None:
        for at, schema in nodes(document):
            assert not ("default" in schema and schema["default"] is None), at
            assert "prefixItems" not in schema, at
            assert not ("title" in schema and "/schemas/" in at and isinstance(schema["title"], str)), at
