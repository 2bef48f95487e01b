"""All responses in a long sequence of requests fit the committed document."""

import json
import re
from typing import Any

import httpx
import pytest

from models.database.engine import Database
from tests.contract.generated import Objects, request
from tests.contract.generated import operations as list_operations
from tests.contract.schema import misfits
from tests.contract.test_openapi import COMMITTED, operations
from tests.service.api import GRID, UNIFORM, Api, a_model, finish, packed, single, unknown
from tests.service.api.test_jobs import open_round
from tests.service.shuffler import TERMS, release, shuffled_dataset

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())


class CheckedApi(Api):
    """Client that validates every response by the document and records operations and statuses."""

    responses: set[tuple[str, str]]

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = super().request(method, path, **options)
        operation = self._operation(method.lower(), f"/v1{path.partition('?')[0]}")
        self.responses.add((operation["operationId"], str(answer.status_code)))
        described = operation["responses"].get(str(answer.status_code))
        assert described is not None, (operation["operationId"], answer.status_code, answer.text)
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        if not answer.content:
            assert "content" not in described or answer.status_code == 304
            return answer
        schema = described["content"][media_type]["schema"]
        value = answer.json() if media_type.endswith("json") else answer.text
        assert list(misfits(DOCUMENT, schema, value)) == []
        for name in described.get("headers", {}):
            if name != "Retry-After" or answer.status_code != 200:  # sent only without an open round
                assert name.lower() in answer.headers
        return answer

    def _operation(self, method: str, path: str) -> dict[str, Any]:
        for known_method, known, operation in operations(DOCUMENT):
            if known_method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path):
                return operation
        raise AssertionError(f"{method} {path} is not in the document")


def test_every_operation_answers_as_documented(api: Api, database: Database) -> None:
    """Send the example of each operation, and requests with other responses."""
    api = CheckedApi(api.http, database, api.secret)
    api.responses = set()
    objects = Objects(DOCUMENT, api)
    every = [operation for operation in list_operations(DOCUMENT) if operation.path.startswith("/v1")]
    for method, path, options in [request(operation, objects) for operation in every if operation.method != "delete"]:
        api.request(method, path, **options)
    send_reports(api)
    run_jobs(api)
    api.post("/datasets", {"name": 5})
    api.post("/datasets", content=b"{", headers={"content-type": "application/json"})
    api.post("/datasets", content=b"", headers={"Idempotency-Key": "x" * 300})
    key = api.made("/keys", {"name": "k", "scopes": ["device"], "expires_at": "2100-01-01T00:00:00Z"})
    for _ in range(2):
        api.post(f"/keys/{key['id']}/rotate", {"overlap_seconds": 60})
    webhook = {"url": "https://hooks.example.invalid/", "event_types": ["job.failed"]}
    at = f"/webhooks/{api.made('/webhooks', webhook)['id']}"
    api.post("/webhooks", webhook | {"url": "https://127.0.0.1/"})
    api.get(f"{at}/deliveries?state=failed")
    api.patch(at, {"enabled": False})
    api.post(f"{at}/test")
    for method, path, options in [request(operation, objects) for operation in every if operation.method == "delete"]:
        api.request(method, path, **options)
    succeeded = {name for name, status in api.responses if int(status) < 300}
    assert succeeded == {operation.name for operation in every}
    assert len(api.responses) > len(succeeded) + 8  # includes refusals


def send_reports(api: Api) -> None:
    """Request rounds and send reports, of which some are refused."""
    dataset = api.dataset(epsilon=10)
    at = f"/datasets/{dataset['id']}"
    api.patch(at, {"name": "new"}, headers={"If-Match": '"x"'})
    api.get(f"{at}/round")
    encoding = {"type": "shifted_grid", "n_features": 2, "cells": 3, "shifts": 2}
    api.round(dataset["id"], mechanism="ss", encoding=encoding)
    opened = f"/rounds/{api.round(dataset['id'])['id']}"
    release(api, api.round(shuffled_dataset(api), target_reports=20, **TERMS)["id"], 20)
    api.get(f"{at}/round", headers={"If-None-Match": api.get(f"{at}/round").headers["etag"]})
    for options in (
        {"body": single()},
        {"body": single(slot=5)},
        {"content": packed(10), "headers": {"content-type": "application/octet-stream"}},
        {"content": b"", "headers": {"content-type": "text/plain"}},
    ):
        api.post(f"{opened}/reports", **options)
    api.get(opened)
    api.made(f"{opened}/close", None)
    api.post(f"{opened}/reports", single())


def run_jobs(api: Api) -> None:
    """Submit jobs over reports and over records, forecast them, and read their results."""
    dataset_id, central = api.dataset(epsilon=10)["id"], api.dataset(trust="central")["id"]
    unknown_dataset = {"algorithm": UNIFORM, "dataset_id": unknown("ds")}
    wanted = {"algorithm": UNIFORM, "n_features": 2, "expected_reports": 9, "target": {"quality": 0.5}}
    for body in (wanted, unknown_dataset | {"expected_reports": 1000}):
        api.post("/forecasts", body)
    finished, waiting = api.job(dataset_id)["id"], api.job(dataset_id, algorithm=UNIFORM | {"clusters": 2})["id"]
    open_round(api.database, waiting)
    api.get(f"/jobs/{waiting}")
    api.get("/sources/-")
    api.get(f"/jobs/{finished}/result")
    finish(api.database, finished, a_model())
    for path in ("", "/events", "/result", "/labels", "/labels?of=reports", "/plot.svg", "/plot.png"):
        api.get(f"/jobs/{finished}{path}")
    api.post(f"/jobs/{finished}/assign", {"points": [[0.1, 0.2]]})
    for names in (["west", ""], ["west"], []):
        api.patch(f"/jobs/{finished}/result", {"names": names})
    api.patch(f"/jobs/{waiting}/result", {"names": []})
    api.patch(f"/jobs/{unknown('job')}/result", {"names": []})
    api.post(f"/jobs/{waiting}/cancel")
    too_expensive = {"dataset_id": dataset_id, "algorithm": UNIFORM | {"epsilon": 30}}
    for body in (too_expensive, unknown_dataset):
        api.post("/jobs", body | {"target_reports": 1})
    at = f"/datasets/{central}"
    api.post(f"{at}/rounds", {"encoding": GRID, "epsilon": 1, "target_reports": 1})
    for path, body in (*[(at, [[0.5, 0.5], [7, 0]])] * 2, (at, []), (f"/datasets/{dataset_id}", [])):
        api.post(f"{path}/records", {"columns": ["y", "x"], "rows": body})
    for body, media_type in ((b"x,y\n1", "text/csv"), (b"", "text/plain")):
        api.post(f"{at}/records", content=body, headers={"content-type": media_type})
    api.get(f"{at}/records")
    over_records = {"dataset_id": central, "algorithm": {"type": "private_kmeans", "epsilon": 1, "clusters": 2}}
    job_id = api.made("/jobs", over_records)["id"]
    finish(api.database, job_id, a_model(labels=False), odometer=[("counts", 9, 1_000_000_000)])
    api.get(f"/jobs/{job_id}/result")
    api.post("/jobs", over_records | {"target_reports": 9})
    api.made("/forecasts", over_records | {"expected_records": 1000})
    profile = {"type": "profile", "of": job_id, "attributes": ["x"], "epsilon": 0.3}
    api.made("/forecasts/profiles", {"algorithm": profile, "expected_records": 1000})


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_answers_as_documented(http: httpx.Client, path: str) -> None:
    schema = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert list(misfits(DOCUMENT, schema, http.get(path).json())) == []
