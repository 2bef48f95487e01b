"""The client of openapi-python-client: its generation without warnings, and a call of every operation of a service."""

import base64
import importlib
import io
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from models.database.engine import Database
from service.ingestion.record_formats import READERS
from sfumato.transport.batches import MEDIA_TYPE
from tests.contract.generated import Objects, Operation, operations, request
from tests.contract.test_openapi import COMMITTED
from tests.sdks.packages import ROOT, run
from tests.sdks.test_python import UV
from tests.service.api import Api, a_model, packed
from tests.service.processes import running, until
from tests.service.shuffler import TERMS, sealed_reports, shuffled_dataset, signed

pytestmark = pytest.mark.slow

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
PACKAGE = "sfumato_api"  # the name in openapi/generators/python.yaml
STREAM, FILE = "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"
ROWS = np.array([[2.35, 48.86], [-0.58, 44.84]])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Generate the client in a new environment and import it."""
    home = tmp_path_factory.mktemp("generator")  # one for each test process
    python = home / "venv" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, python.parents[1], cwd=ROOT)
    lock = ROOT / "openapi" / "generators" / "requirements.lock"
    run(UV, "pip", "install", "--quiet", "--python", python, "--require-hashes", "--requirement", lock, cwd=ROOT)
    printed = run(python, "tools/sdks.py", "--only-python", home, cwd=ROOT)  # fails on a warning of the generator
    assert printed.endswith("no problems\n")
    directory = str(home / "python")
    sys.path.insert(0, directory)
    yield importlib.import_module(PACKAGE)
    sys.path.remove(directory)
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run a service and return a client with its first key."""
    home = tmp_path_factory.mktemp("service") / "home"
    key = base64.b64encode(b"\x01" * 32).decode()
    with running(home, "serve", "--port", "0", SFUMATO_RECORDS_KEY=key, SFUMATO_RATE_PER_KEY="0") as service:
        url, secret = service.url(), (home / "admin.key").read_text().strip()
        database = Database(f"sqlite:///{home / 'sfumato.db'}")
        with httpx.Client(base_url=url, timeout=60) as http:
            yield Api(http, database, secret)
        database.close()


def snake(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()


def call(package: ModuleType, api: Api, operation: Operation, body: Any = None, **options: Any) -> Any:
    """Call an operation by the generated function. `options` are parameters of its path and query."""
    tag = operation.definition["tags"][0]
    module = importlib.import_module(f"{package.__name__}.api.{tag}.{snake(operation.name)}")
    given = {} if body is None else {"body": body}
    with package.AuthenticatedClient(str(api.http.base_url), api.secret, raise_on_unexpected_status=True) as client:
        return module.sync_detailed(client=client, **given, **options)


def bodies(package: ModuleType, operation: Operation, objects: Objects, path: dict[str, str]) -> Iterator[Any]:
    """Yield a body of each media type of the operation: the example, or a file."""
    models, types = (importlib.import_module(f"{package.__name__}.{name}") for name in ("models", "types"))
    contents: dict[str, bytes] = {}
    body = request(operation, objects)[2].get("json")
    if operation.name == "sendReports":
        path["round_id"] = objects.api.round(objects.api.dataset()["id"])["id"]  # its mechanism is known
        one = packed(1)
        body |= {"values": [base64.b64encode(one[20:]).decode()]}
        columns = [pa.array([one[:16]], pa.binary(16)), pa.array([0], pa.uint32()), pa.array([one[20:]], pa.binary(1))]
        table = pa.table(columns, ["report_id", "slot", "value"])
        contents = {"application/octet-stream": one, STREAM: stream(table), FILE: file(table)}
    if operation.name == "createProfileForecast":
        body["algorithm"] |= {"of": clustered(objects.api), "attributes": ["x"]}
    if operation.name == "uploadRecords":
        names = ["longitude", "latitude"]
        as_csv, as_npy, *as_arrow = (ROWS * scale for scale in (0.9, 0.8, 0.7, 0.6))  # equal ones would be refused
        tables = [pa.table([pa.array(column) for column in rows.T], names) for rows in as_arrow]
        text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in as_csv)])
        npy = io.BytesIO()
        np.save(npy, as_npy)
        contents = {"text/csv": text.encode(), "application/x-npy": npy.getvalue()}
        contents |= {STREAM: stream(tables[0]), FILE: file(tables[1])}
        assert {*contents, "application/json"} == {kind.decode() for kind in READERS}
    if operation.name == "assignPoints":
        table = pa.table([pa.array(column) for column in ROWS.T], [feature.name for feature in a_model().features])
        contents = {"application/octet-stream": ROWS.tobytes(), STREAM: stream(table), FILE: file(table)}
    if operation.name == "releaseRound":
        path["round_id"] = objects.api.round(shuffled_dataset(objects.api), target_reports=20, **TERMS)["id"]
        reports = sealed_reports(objects.api, path["round_id"], 20)
        contents = {MEDIA_TYPE: signed(path["round_id"], reports).body}
    if operation.json_body is None and not contents:
        yield None
    if operation.json_body is not None:
        name = operation.json_body["schema"]["$ref"].rpartition("/")[2].replace("ReportUpload", "ReportColumns")
        yield getattr(models, name).from_dict(body)
    assert {*contents} == {*operation.definition.get("requestBody", {}).get("content", {})} - {"application/json"}
    for media_type, content in contents.items():
        yield types.File(io.BytesIO(content), mime_type=media_type)


def clustered(api: Api) -> str:
    """Return a job over records that has succeeded."""
    dataset_id = api.dataset(trust="central")["id"]
    rows = np.random.default_rng(1).random((2000, 2)).round(3).tolist()
    api.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "y"], "rows": rows})
    algorithm = {"type": "private_kmeans", "epsilon": 1, "clusters": 2}
    job_id = str(api.made("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm})["id"])
    until(lambda: api.get(f"/jobs/{job_id}").json()["state"] == "succeeded")
    return job_id


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_all_modules_of_the_generated_client_are_imported(package: ModuleType) -> None:
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")]
    for name in names:
        importlib.import_module(name)
    assert {name.rpartition(".")[2] for name in names} >= {snake(each.name) for each in operations(DOCUMENT)}
    assert not [name for name in names if re.search(r"type_\d", name)]  # invented names


@pytest.mark.parametrize("operation", operations(DOCUMENT), ids=lambda operation: operation.name)
def test_generated_client_calls(package: ModuleType, api: Api, operation: Operation) -> None:
    objects = Objects(DOCUMENT, api)
    prefixes = {str(way[0]): prefix for where, way, prefix in operation.id_places() if where == "path"}
    path = {name: objects.id(prefix, operation) for name, prefix in prefixes.items()}
    success = {int(status): answer for status, answer in operation.definition["responses"].items() if status < "4"}
    choices = {"closeRound": {"allow_empty": True}, "deleteRecords": {"all_": True}, "getSource": {"source": "-"}}
    options = choices.get(operation.name, {})
    api.dataset()  # it has no label, so that the source `-` exists
    for body in bodies(package, operation, objects, path):
        answer = call(package, api, operation, body, **path, **options)
        assert answer.status_code in success, answer.content
        media_types = [*success[answer.status_code].get("content", {})]
        if media_types == ["application/json"]:
            # the client's format of a time: without a fraction if it is zero
            text = re.sub(r"(?:\.0{6}|(\.\d{6}))Z", lambda time: (time[1] or "") + "+00:00", answer.content.decode())
            assert answer.parsed.to_dict() == json.loads(text)
        else:
            assert (answer.parsed is not None) == bool(media_types)
