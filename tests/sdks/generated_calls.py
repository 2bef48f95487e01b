"""Calls of every operation of the document, independent of a language: parameters, media type and content."""

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from service.ingestion.record_formats import READERS
from sfumato.transport.batches import MEDIA_TYPE
from tests.contract.generated import Objects, Operation, request
from tests.contract.test_openapi import COMMITTED
from tests.service.api import Api, a_model, packed
from tests.service.followed import follow
from tests.service.processes import until
from tests.service.shuffler import TERMS, sealed_reports, shuffled_dataset, signed

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
STREAM, FILE = "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"
ROWS = np.array([[2.35, 48.86], [-0.58, 44.84]])
CHOICES: dict[str, dict[str, Any]] = {  # parameters of the query and of the path that are no ids
    "closeRound": {"allow_empty": True},
    "deleteRecords": {"all": True},
    "getSource": {"source": "-"},
}


@dataclass(frozen=True)
class Sent:
    """One call of an operation."""

    parameters: dict[str, Any]
    media_type: str | None = None
    content: bytes | None = None


def calls(operation: Operation, objects: Objects) -> Iterator[Sent]:
    """Yield a call with a body of each media type of the operation, or one without a body."""
    prefixes = {str(way[0]): prefix for where, way, prefix in operation.id_places() if where == "path"}
    path = {name: objects.id(prefix, operation) for name, prefix in prefixes.items()}
    path |= CHOICES.get(operation.name, {})
    contents: dict[str, bytes] = {}
    body = request(operation, objects)[2].get("json")
    if operation.name == "sendReports":
        path["round_id"] = objects.api.round(objects.api.dataset()["id"])["id"]  # its mechanism is known
        one = packed(1)
        body |= {"values": [base64.b64encode(one[20:]).decode()]}
        columns = [pa.array([one[:16]], pa.binary(16)), pa.array([0], pa.uint32()), pa.array([one[20:]], pa.binary(1))]
        table = pa.table(columns, ["report_id", "slot", "value"])
        contents = {"application/octet-stream": one, STREAM: stream(table), FILE: file(table)}
    if operation.name == "getSeriesMap":
        follow(objects.api, path["series_id"])
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
        lines = [",".join(map(str, row)) for row in ROWS.tolist()]
        contents = {"application/octet-stream": ROWS.tobytes(), STREAM: stream(table), FILE: file(table)}
        contents["text/csv"] = "\n".join([",".join(table.column_names), *lines]).encode()
    if operation.name == "releaseRound":
        path["round_id"] = objects.api.round(shuffled_dataset(objects.api), target_reports=20, **TERMS)["id"]
        reports = sealed_reports(objects.api, path["round_id"], 20)
        contents = {MEDIA_TYPE: signed(path["round_id"], reports).body}
    if operation.json_body is None and not contents:
        yield Sent(path)
    if operation.json_body is not None:
        yield Sent(path, "application/json", json.dumps(body).encode())
    assert {*contents} == {*operation.definition.get("requestBody", {}).get("content", {})} - {"application/json"}
    for media_type, content in contents.items():
        yield Sent(path, media_type, content)


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
