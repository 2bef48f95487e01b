"""The generated Kotlin, Java and Go clients: every operation called on a service, and an error of each kind decoded.

A program in each language calls an operation by its name. It returns the content and what the client decoded from it.
"""

import base64
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.contract.generated import Objects, Operation, operations, request
from tests.sdks import packages
from tests.sdks.conftest import serving
from tests.sdks.generated_calls import DOCUMENT, Sent, calls
from tests.sdks.packages import ROOT, generator, run
from tests.service.api import FEATURES, Api, unknown

pytestmark = [pytest.mark.slow, pytest.mark.release]

CALLERS = ROOT / "tests" / "sdks" / "callers"
LANGUAGES = ("go", "java", "kotlin")
ALL_MEDIA_TYPES = ("go",)  # the other generators write a function for the first media type only


class Caller:
    """A program that calls the operations of a generated client in the directory `client`."""

    def __init__(self, language: str, command: list[str], client: Path) -> None:
        self.language, self.client = language, client
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=packages.inherited()
        )

    def call(self, url: str, key: str, operation: Operation, sent: Sent) -> dict[str, Any]:
        """Call an operation. Return `status`, `content` and `decoded`."""
        named = {camel(parameter["name"]): None for parameter in operation.parameters}
        named |= {camel(name): value for name, value in sent.parameters.items()}
        in_path = re.findall(r"{(\w+)}", operation.path)
        line = {
            "url": url,
            "key": key,
            "operation": operation.name,
            "api": operation.definition["tags"][0].capitalize(),
            "path": [sent.parameters[name] for name in in_path],
            "parameters": {name: value for name, value in sent.parameters.items() if name not in in_path},
            "named": named,
            "media_type": sent.media_type,
            "body": None if sent.content is None else base64.b64encode(sent.content).decode(),
        }
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(line) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        assert "failure" not in answer, answer
        return answer | {"content": base64.b64decode(answer["content"] or "")}

    def close(self) -> None:
        """End the program."""
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


def camel(name: str) -> str:
    """Return the name of a parameter in Java and Kotlin."""
    first, *others = re.split("[-_]", name)
    return first[0].lower() + first[1:] + "".join(each[0].upper() + each[1:] for each in others)


def build(language: str, home: Path) -> list[str]:
    """Generate and compile a client. Return the command of the program that calls it."""
    run(generator(home), "tools/sdks.py", "--only", language, "--into", home, cwd=ROOT)
    client = home / language
    if language == "go":
        (client / "call").mkdir()
        shutil.copy(CALLERS / "call.go", client / "call")
        run("go", "build", "-o", client / "caller", "./call", cwd=client)
        return [str(client / "caller")]
    classes = f"{client}/target/classes:{client}/target/lib/*"
    if language == "java":
        run("mvn", "--batch-mode", "--no-transfer-progress", "process-classes", cwd=client)
        return ["java", "-cp", classes, str(CALLERS / "Call.java")]
    (client / "src" / "call").mkdir()
    shutil.copy(CALLERS / "Call.kt", client / "src" / "call")
    run("mvn", "--batch-mode", "--no-transfer-progress", "process-test-classes", cwd=client)
    return ["java", "-cp", f"{client}/target/test-classes:{classes}", "sfumato.api.call.CallKt"]


@pytest.fixture(scope="module", params=LANGUAGES)
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    home = tmp_path_factory.mktemp(request.param)
    caller = Caller(request.param, build(request.param, home), home / request.param)
    yield caller
    caller.close()


@pytest.fixture(scope="module")
def api(caller: Caller, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run a service for one language, because a tenant has few webhooks, and return a client with its first key."""
    with serving(tmp_path_factory.mktemp("service") / "home") as api:
        yield api


# Members that the service omits if they have their default. Java and Kotlin add it when they decode.
OMITTED = {("periodic", DOCUMENT["components"]["schemas"]["Feature"]["properties"]["periodic"]["default"])}


def without_nulls(value: Any) -> Any:
    """Return a document without null members, which clients may omit, and with numbers and times in one form."""
    if isinstance(value, dict):
        kept = {name: inner for name, inner in value.items() if inner is not None}
        return {
            name: without_nulls(inner)
            for name, inner in kept.items()
            if isinstance(inner, (dict, list)) or (name, inner) not in OMITTED
        }
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", value):
        whole, _, fraction = value.removesuffix("Z").removesuffix("+00:00").partition(".")
        return f"{whole}.{fraction:0<6}Z" if whole.count(":") == 2 else f"{whole}:00.000000Z"
    return value


class TestEveryOperation:
    @pytest.mark.parametrize("operation", operations(DOCUMENT), ids=lambda operation: operation.name)
    def test_is_called_and_its_answer_decoded(self, caller: Caller, api: Api, operation: Operation) -> None:
        success = {int(status): answer for status, answer in operation.definition["responses"].items() if status < "4"}
        api.dataset()  # it has no label, so that the source `-` exists
        sent, *others = calls(operation, Objects(DOCUMENT, api))
        for each in [sent, *(others if caller.language in ALL_MEDIA_TYPES else ())]:
            answer = caller.call(str(api.http.base_url), api.secret, operation, each)
            assert answer["status"] in success, answer["content"]
            if "application/json" in success[answer["status"]].get("content", {}):
                assert without_nulls(answer["decoded"]) == without_nulls(json.loads(answer["content"]))


def problems() -> list[tuple[str, Operation, int, dict[str, Any]]]:
    """Return (code, operation, status, example) of each code of the document, of the first operation that has it."""
    found: dict[str, tuple[str, Operation, int, dict[str, Any]]] = {}
    for operation in operations(DOCUMENT):
        for status, answer in operation.definition["responses"].items():
            examples = answer.get("content", {}).get("application/problem+json", {}).get("examples", {})
            for code, example in examples.items():
                found.setdefault(code, (code, operation, int(status), example["value"]))
    return list(found.values())


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """Run a server that answers each request with the example of a problem. Its code is the first part of the path."""
    by_code = {code: (status, example) for code, _, status, example in problems()}

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, example = by_code[self.path.split("/")[1]]
            content = json.dumps(example).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/problem+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 — names of the library

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class TestProblems:
    def test_of_each_code_are_decoded(self, caller: Caller, refusing: str) -> None:
        decoded = {}
        for code, operation, status, _ in problems():
            answer = caller.call(f"{refusing}/{code}", "key", operation, example(operation))
            assert answer["status"] == status
            decoded[code] = without_nulls(answer["decoded"])
        assert decoded == {code: without_nulls(value) for code, _, _, value in problems()}

    def test_of_a_service_are_decoded(self, caller: Caller, api: Api) -> None:
        named = {operation.name: operation for operation in operations(DOCUMENT)}
        device = str(api.made("/keys", {"name": "d", "scopes": ["device"]})["secret"])
        dataset_id = str(api.dataset(epsilon=1)["id"])
        costly = {"dataset_id": dataset_id, "algorithm": {"type": "uniform_grid", "epsilon": 2}, "target_reports": 1000}
        job_id = str(api.job(str(api.dataset()["id"]))["id"])
        wrong = {"name": "", "trust": "local", "features": FEATURES, "epsilon": 1}

        def refuse(name: str, sent: Sent, key: str = api.secret) -> dict[str, Any]:
            answer = caller.call(str(api.http.base_url), key, named[name], sent)
            assert without_nulls(answer["decoded"]) == without_nulls(json.loads(answer["content"]))
            assert answer["decoded"]["status"] == answer["status"]
            return dict(answer["decoded"])

        assert refuse("listJobs", Sent({}), "sfm_wrong")["code"] == "unauthenticated"
        assert refuse("listKeys", Sent({}), device)["code"] == "forbidden"
        assert refuse("getDataset", Sent({"dataset_id": unknown("ds")}))["code"] == "not_found"
        assert refuse("getResult", Sent({"job_id": job_id}))["code"] == "job_not_finished"
        changed = Sent({"dataset_id": dataset_id, "If-Match": '"0"'}, "application/json", b'{"name": "e"}')
        assert refuse("updateDataset", changed)["code"] == "precondition_failed"
        exhausted = refuse("createJob", Sent({}, "application/json", json.dumps(costly).encode()))
        assert (exhausted["code"], exhausted["granted"]) == ("budget_exhausted", 1)
        invalid = refuse("createDataset", Sent({}, "application/json", json.dumps(wrong).encode()))
        assert invalid["code"] == "validation_failed"
        assert {error["pointer"] for error in invalid["errors"]} == {"/name"}


def example(operation: Operation) -> Sent:
    """Return the call of the document's example."""
    body = request(operation, None)[2].get("json")
    path = request(operation, None)[1]
    pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.path.removeprefix("/v1"))
    match = re.fullmatch(pattern, path)
    assert match is not None
    if body is not None:
        return Sent(match.groupdict(), "application/json", json.dumps(body).encode())
    is_binary = "requestBody" in operation.definition
    return Sent(match.groupdict(), *(("application/octet-stream", b"0") if is_binary else ()))
