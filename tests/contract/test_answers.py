"""Everything the gateway answers in a long story fits the committed document."""

import json
import re
from typing import Any

import httpx
import pytest

from models.db import Database
from tests.contract.schema import misfits
from tests.contract.test_openapi import COMMITTED, operations
from tests.service.api import FEATURES, GRID, UNIFORM, Api, a_model, finish, packed, single, unknown
from tests.service.test_jobs import open_round

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())


class Witness(Api):
    """Holds every answer against the document, and remembers which operations and statuses it saw."""

    seen: set[tuple[str, str]]

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = super().request(method, path, **options)
        operation = self._operation(method.lower(), f"/v1{path.partition('?')[0]}")
        self.seen.add((operation["operationId"], str(answer.status_code)))
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
            if name != "Retry-After" or answer.status_code != 200:  # which only comes where no round is open
                assert name.lower() in answer.headers
        return answer

    def _operation(self, method: str, path: str) -> dict[str, Any]:
        for known_method, known, operation in operations(DOCUMENT):
            if known_method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path):
                return operation
        raise AssertionError(f"{method} {path} is not in the document")


def test_every_operation_answers_as_documented(api: Api, database: Database) -> None:
    api = Witness(api.http, database, api.secret)
    api.seen = set()
    made = api.dataset(epsilon=10)
    at = f"/datasets/{made['id']}"
    api.request("PATCH", at, json={"name": "new"})
    api.request("PATCH", at, json={"name": "new"}, headers={"If-Match": '"x"'})
    api.made(f"{at}/grants", {"epsilon": 1})
    api.get(f"{at}/round")
    opened = [
        api.round(
            made["id"], mechanism="ss", encoding={"type": "shifted_grid", "n_features": 2, "cells": 3, "shifts": 2}
        ),
        api.round(made["id"]),
    ]
    tag = api.get(f"{at}/round").headers["etag"]
    api.get(f"{at}/round", headers={"If-None-Match": tag})
    reports = f"/rounds/{opened[1]['id']}/reports"
    api.post(reports, single())
    api.post(reports, single(slot=5))
    api.post(reports, content=packed(10), headers={"content-type": "application/octet-stream"})
    api.post(reports, content=b"", headers={"content-type": "text/plain"})
    api.get(f"/rounds/{opened[1]['id']}")
    api.made(f"/rounds/{opened[1]['id']}/close", None)
    api.post(reports, single())
    api.made("/forecasts", {"algorithm": UNIFORM, "dataset_id": made["id"], "expected_reports": 1000})
    api.made("/forecasts", {"algorithm": UNIFORM, "n_features": 2, "expected_reports": 9, "wanted": {"quality": 0.5}})
    api.post("/forecasts", {"algorithm": UNIFORM, "dataset_id": unknown("ds"), "expected_reports": 1000})
    plain, waits = api.job(made["id"]), api.job(made["id"], algorithm=UNIFORM | {"clusters": 2})
    open_round(database, waits["id"])
    api.job(made["id"], round_ids=[opened[1]["id"]])
    api.get(f"/jobs/{waits['id']}")
    api.get(f"/jobs/{plain['id']}/result")
    finish(database, plain["id"], a_model())
    for path in ("", "/events", "/result", "/labels", "/labels?of=reports", "/plot.svg", "/plot.png"):
        api.get(f"/jobs/{plain['id']}{path}")
    api.post(f"/jobs/{plain['id']}/assign", {"points": [[0.1, 0.2]]})
    api.post(f"/jobs/{waits['id']}/cancel")
    api.post("/jobs", {"dataset_id": made["id"], "algorithm": UNIFORM | {"epsilon": 30}, "target_reports": 1})
    api.post("/jobs", {"dataset_id": unknown("ds"), "algorithm": UNIFORM, "target_reports": 1})
    api.post("/datasets", {"name": 5})
    api.post("/datasets", content=b"{", headers={"content-type": "application/json"})
    api.post("/datasets", content=b"", headers={"Idempotency-Key": "x" * 300})
    key = api.made("/keys", {"name": "k", "scopes": ["device"], "expires_at": "2100-01-01T00:00:00Z"})
    api.made(f"/keys/{key['id']}/rotate", {"overlap_seconds": 60})
    api.post(f"/keys/{key['id']}/rotate", {})
    api.request("DELETE", f"/keys/{key['id']}")
    api.get("/audit")
    hook = {"url": "https://hooks.example.invalid/", "event_types": ["job.failed"]}
    webhook = f"/webhooks/{api.made('/webhooks', hook)['id']}"
    api.post("/webhooks", hook | {"url": "https://127.0.0.1/"})
    api.made(f"{webhook}/rotate", {})
    delivery = f"{webhook}/deliveries/{api.made(f'{webhook}/test', None)['id']}"
    api.made(f"{delivery}/redeliver", None)
    for path in ("/webhooks", webhook, f"{webhook}/deliveries", f"{webhook}/deliveries?state=failed", delivery):
        api.get(path)
    api.request("PATCH", webhook, json={"enabled": False})
    api.post(f"{webhook}/test")
    api.request("DELETE", webhook)
    central = api.made("/datasets", {"name": "c", "trust": "central", "features": FEATURES, "epsilon": 1})
    api.post(f"/datasets/{central['id']}/rounds", {"encoding": GRID, "epsilon": 1, "target_reports": 1})
    records = f"/datasets/{central['id']}/records"
    api.made(records, {"columns": ["y", "x"], "rows": [[0.5, 0.5], [7, 0]]})
    api.post(records, {"columns": ["y"], "rows": []})
    api.post(records, content=b"x,y\n1", headers={"content-type": "text/csv"})
    api.post(records, content=b"", headers={"content-type": "text/plain"})
    api.post(f"{at}/records", {"columns": ["y", "x"], "rows": []})
    api.get(records)
    api.request("DELETE", records)
    asked = {"algorithm": {"type": "gated_grid_kmeans", "epsilon": 1, "clusters": 2}}
    over_records = api.made("/jobs", asked | {"dataset_id": central["id"]})
    finish(database, over_records["id"], a_model(labels=False), odometer=[("counts", 9, 1_000_000_000)])
    api.get(f"/jobs/{over_records['id']}/result")
    api.post("/jobs", asked | {"dataset_id": central["id"], "target_reports": 9})
    api.made("/forecasts", asked | {"dataset_id": central["id"], "expected_records": 1000})
    for path in ("/datasets", at, f"{at}/budget", f"{at}/ledger", f"{at}/rounds", "/jobs", "/keys", "/limits"):
        api.get(path)
    api.request("DELETE", at)
    succeeded = {name for name, status in api.seen if int(status) < 300}
    assert succeeded == {o["operationId"] for _, path, o in operations(DOCUMENT) if path.startswith("/v1")}
    assert len(api.seen) > len(succeeded) + 8  # refusals too


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_answers_as_documented(http: httpx.Client, path: str) -> None:
    schema = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert list(misfits(DOCUMENT, schema, http.get(path).json())) == []
