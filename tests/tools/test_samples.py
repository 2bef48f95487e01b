"""The samples of the HTTP reference: each sends the request of its operation."""

import json
import re
import shlex
from typing import Any

import httpx
import pytest

import sfumato
from sfumato import mechanisms
from sfumato.specs import Feature, GridEncoding, RoundSpec, to_wire
from tools.site import samples, staging

DOCUMENT: dict[str, Any] = json.loads((staging.ROOT / "openapi" / "openapi.json").read_text())
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
SAMPLES = samples.list_samples(DOCUMENT)
TYPESCRIPT = (staging.ROOT / "sdk" / "typescript" / "src" / "client.ts").read_text()
URL = "http://service.example"
CHOICES = {"deleteRecords": ["which"]}  # the query must have one of two parameters
PACKED = {"assignPoints"}  # the Python call sends a binary format
READ_FIRST = {"sendReports", "uploadRecords"}  # the Python call first reads the round, or the dataset


class Answered(Exception):
    """The request of the operation has arrived."""


def a_round(example: dict[str, Any]) -> dict[str, Any]:
    features = (Feature("longitude", -180, 180), Feature("latitude", -90, 90))
    mechanism = mechanisms.design("ss", 16, 10**9)
    return example | {"spec": to_wire(RoundSpec(features, GridEncoding((4, 4)), mechanism))}


def is_of(request: httpx.Request, method: str, path: str) -> bool:
    pattern = re.sub(r"\{\w+\}", "[^/]+", path)
    return request.method == method and re.fullmatch(pattern, request.url.path) is not None


def includes(sent: Any, example: Any) -> bool:
    """Return whether a body has all members of an example. It may also have defaults."""
    if isinstance(example, dict):
        return all(key in sent and includes(sent[key], value) for key, value in example.items())
    return bool(sent == example)


@pytest.mark.parametrize("name", OPERATIONS)
class TestSamples:
    def test_curl_sends_the_example_of_the_document(self, name: str) -> None:
        method, path, operation = OPERATIONS[name]
        words = shlex.split(SAMPLES[name]["curl"].replace("$SFUMATO_URL", URL))
        address = next(word for word in words if word.startswith(URL))
        given = words[words.index("-X") + 1] if "-X" in words else "GET"
        assert is_of(httpx.Request(given, address), method, path)
        assert ("Authorization: Bearer $SFUMATO_KEY" in words) == bool(operation["security"])
        media_type, body = samples.read_body(DOCUMENT, operation)
        assert (f"Content-Type: {media_type}" in words) == ("requestBody" in operation)
        assert body is None or json.loads(words[-1]) == body

    def test_python_sends_the_request(self, name: str) -> None:
        if name in samples.CURL_ONLY:
            assert set(SAMPLES[name]) == {"curl"}
            return
        method, path, operation = OPERATIONS[name]

        def answer(request: httpx.Request) -> httpx.Response:
            if is_of(request, method, path):
                raise Answered(request.content)
            schemas = DOCUMENT["components"]["schemas"]
            assert name in READ_FIRST
            assert request.method == "GET"
            kind = "Round" if "/rounds/" in request.url.path else "Dataset"
            example = schemas[kind]["examples"][0]
            return httpx.Response(200, json=a_round(example) if kind == "Round" else example | {"trust": "central"})

        def connect() -> sfumato.Client:
            return sfumato.Client(URL, "sfk_x", transport=httpx.MockTransport(answer))

        code = SAMPLES[name]["Python"]
        first, _, rest = code.partition("\n")
        names = {each: getattr(sfumato, each) for each in first.removeprefix("from sfumato import ").split(", ")}
        with pytest.raises(Answered) as arrived:
            exec(rest, names | {"Client": connect})  # noqa: S102 - code of this repository
        _, body = samples.read_body(DOCUMENT, operation)
        if isinstance(body, dict) and name not in READ_FIRST | PACKED:  # else random or binary
            sent = json.loads(arrived.value.args[0])
            assert includes(sent, body)

    def test_typescript_calls_a_method_with_its_arguments(self, name: str) -> None:
        if name in samples.CURL_ONLY:
            return
        _, path, operation = OPERATIONS[name]
        found = re.search(rf"^  (?:async )?{name}\(\s*([^)]*)", TYPESCRIPT, flags=re.MULTILINE)
        assert found is not None
        declared = re.findall(r"(\w+)(\??): ", re.sub(r"\{[^}]*\}", "", found[1]))
        needed = [parameter for parameter, optional in declared if not optional and parameter != "options"]
        given = re.findall(r"\{(\w+)\}", path) + (["body"] if "requestBody" in operation else [])
        given += CHOICES.get(name, [])
        assert [parameter if parameter not in {"records", "reports"} else "body" for parameter in needed] == given
        assert f"client.{name}(" in SAMPLES[name]["TypeScript"]


class TestPage:
    def test_every_operation_has_samples_without_blank_lines(self) -> None:
        rendered = samples.render_samples(DOCUMENT)
        assert rendered.keys() == OPERATIONS.keys() == samples.PYTHON.keys() | samples.CURL_ONLY
        assert [name for name, html in rendered.items() if "\n\n" in html] == []
