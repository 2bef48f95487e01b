"""Tenants do not meet: with a key of another tenant, every path that names a thing answers that there is none."""

import json
from typing import Any

import pytest

from models.db import Database
from tests.contract.test_openapi import COMMITTED, operations
from tests.service.api import GRID, UNIFORM, Api, a_model, finish, refused, single, unknown

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
WITH_IDS = [(method, path, o["operationId"]) for method, path, o in operations(DOCUMENT) if "{" in path]
BODIES: dict[str, Any] = {
    "updateDataset": {"name": "stolen"},
    "createGrant": {"epsilon": 1},
    "createRound": {"encoding": GRID, "epsilon": 1, "target_reports": 10},
    "sendReports": single(),
    "uploadRecords": {"columns": ["x", "y"], "rows": [[0.5, 0.5]]},
    "assignPoints": {"points": [[0.1, 0.2]]},
}

OF_CENTRAL = ("uploadRecords", "countRecords", "deleteRecords")


@pytest.fixture
def ids(api: Api, database: Database) -> dict[str, str]:
    """One of everything, of one tenant."""
    made = api.dataset()
    job = api.job(made["id"])
    finish(database, job["id"], a_model())
    return {
        "dataset_id": made["id"],
        "round_id": api.round(made["id"])["id"],
        "job_id": job["id"],
        "key_id": api.made("/keys", {"name": "k", "scopes": ["device"]})["id"],
    }


@pytest.mark.parametrize(("method", "path", "operation"), WITH_IDS, ids=[name for _, _, name in WITH_IDS])
def test_another_tenants_thing_is_not_found(
    api: Api, other: Api, ids: dict[str, str], method: str, path: str, operation: str
) -> None:
    if operation in OF_CENTRAL:
        ids = ids | {"dataset_id": api.dataset(trust="central")["id"]}
    before = state(api, ids)
    body = BODIES.get(operation)
    where = path.removeprefix("/v1").format(**ids)
    stolen = refused(other.request(method.upper(), where, json=body), 404, "not_found")
    nowhere = path.removeprefix("/v1").format(**{name: unknown(value.split("_")[0]) for name, value in ids.items()})
    missing = refused(other.request(method.upper(), nowhere, json=body), 404, "not_found")
    assert stolen | {"request_id": ""} == missing | {"request_id": ""}  # nobody can tell one from the other
    assert state(api, ids) == before
    assert api.request(method.upper(), where, json=body).status_code < 300  # its owner finds it


def state(api: Api, ids: dict[str, str]) -> list[Any]:
    """What an owner sees."""
    paths = (f"/datasets/{ids['dataset_id']}", f"/rounds/{ids['round_id']}", f"/jobs/{ids['job_id']}", "/keys")
    return [api.get(path).json() for path in (*paths, f"/datasets/{ids['dataset_id']}/ledger")]


def test_an_id_in_a_body_is_no_way_around(api: Api, other: Api, ids: dict[str, str]) -> None:
    mine = other.dataset()["id"]
    api.made(f"/rounds/{ids['round_id']}/close", None)
    job = {"dataset_id": ids["dataset_id"], "algorithm": UNIFORM, "target_reports": 10}
    refused(other.post("/jobs", job), 404, "not_found")
    refused(other.post("/jobs", {**job, "dataset_id": mine, "round_ids": [ids["round_id"]]}), 404, "not_found")
    refused(
        other.post("/forecasts", {"dataset_id": ids["dataset_id"], "algorithm": UNIFORM, "expected_reports": 10}),
        404,
        "not_found",
    )
    refused(other.post("/keys", {"name": "k", "scopes": ["device"], "dataset_id": ids["dataset_id"]}), 404, "not_found")


def test_lists_hold_nothing_of_another_tenant(api: Api, other: Api, ids: dict[str, str]) -> None:
    assert other.get("/datasets").json()["items"] == []
    assert other.get("/jobs").json()["items"] == []
    assert other.get("/jobs", params={"dataset_id": ids["dataset_id"]}).json()["items"] == []
    assert ids["key_id"] not in other.get("/keys").text
