"""An API client for the tests of the gateway, factories for objects, and checks of error responses."""

import base64
import secrets
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from models.database.engine import Database
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.jobs import lifecycle
from models.jobs.claims import Claim
from models.tables.identity import Scope
from models.tables.jobs import Job, JobState
from service.schemas.base import Problem
from sfumato import specs
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import ExpectedAgreement, Verdict
from sfumato.specs import Feature, UniformGrid

FEATURES = [
    {"name": "x", "lower": 0.0, "upper": 1.0, "unit": ""},
    {"name": "y", "lower": -1.0, "upper": 1.0, "unit": "m"},
]
GRID = {"type": "grid", "cells": [2, 2]}
UNIFORM = {"type": "uniform_grid", "epsilon": 1.0}


def show_algorithm(algorithm: dict[str, Any]) -> dict[str, Any]:
    """Return algorithm parameters as the API shows them: with defaults and without absent options."""
    wire = specs.to_wire(specs.job_from_wire(algorithm))
    return {name: value for name, value in wire.items() if value is not None}


def unknown(prefix: str) -> str:
    """Return a well-formed id of no object."""
    return f"{prefix}_{'0' * 26}"


class Api:
    """A client of a gateway with one key."""

    def __init__(self, http: httpx.Client, database: Database, secret: str) -> None:
        self.http, self.database, self.secret = http, database, secret

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request below /v1 with the key."""
        headers = {"Authorization": f"Bearer {self.secret}", **(options.pop("headers", None) or {})}
        return self.http.request(method, f"/v1{path}", headers=headers, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, **({"json": body} if body is not None else {}), **options)

    def made(self, path: str, body: Any, **options: Any) -> dict[str, Any]:
        """Send a POST that must succeed and return the document."""
        answer = self.post(path, body, **options)
        assert answer.status_code in (200, 201, 202), answer.text
        document: dict[str, Any] = answer.json()
        return document

    def patch(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.request("PATCH", path, json=body, **options)

    def delete(self, path: str) -> httpx.Response:
        return self.request("DELETE", path)

    def list_all(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Return the items of all pages of a list, oldest first."""
        if not path.endswith("/labels"):
            params = {"order": "oldest"} | params
        items: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            response = self.get(path, params=params | cursor)
            assert response.status_code == 200, response.text
            page = response.json()
            assert len(page["items"]) <= params["limit"]
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            cursor = {"cursor": page["next_cursor"]}

    def budget(self, dataset_id: str) -> dict[str, Any]:
        """Return the budget of a dataset."""
        document: dict[str, Any] = self.get(f"/datasets/{dataset_id}/budget").json()
        return document

    def dataset(self, **other: Any) -> dict[str, Any]:
        """Create a local dataset with two features and a large budget. Return it as later requests do."""
        given = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8, "min_reports": 1}
        created = self.made("/datasets", given | other)
        return {name: value for name, value in created.items() if name not in ("n_same_people", "warnings")}

    def round(self, dataset_id: str, **other: Any) -> dict[str, Any]:
        """Open a round with four symbols and values of one byte."""
        given = {"encoding": GRID, "mechanism": "grr", "epsilon": 1, "target_reports": 1000}
        return self.made(f"/datasets/{dataset_id}/rounds", given | other)

    def job(self, dataset_id: str, **other: Any) -> dict[str, Any]:
        """Submit a job. A member that is None is left out."""
        target = None if "round_ids" in other else 1000
        given = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": target} | other
        return self.made("/jobs", {name: value for name, value in given.items() if value is not None})

    def report(self, round_id: str, **other: Any) -> httpx.Response:
        """Send one report."""
        return self.post(f"/rounds/{round_id}/reports", single(**other))

    def n_received(self, round_id: str) -> int:
        """Return the number of received reports of a round."""
        received: int = self.get(f"/rounds/{round_id}").json()["n_received"]
        return received

    def finished_job(self, model: ClusterModel | None = None, **dataset: Any) -> str:
        """Create a job with a result in a new dataset. Return its id."""
        many = len(dataset.get("features", ())) > UniformGrid.definition.max_features
        algorithm = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 3} if many else UNIFORM
        job_id: str = self.job(self.dataset(**dataset)["id"], algorithm=algorithm, allow_insufficient=True)["id"]
        finish(self.database, job_id, model or a_model())
        return job_id

    def caller(self) -> Caller:
        """Return the caller that the key authenticates."""
        with self.database.reading() as session:
            caller = keys.authenticate(session, keys.hash_secret(self.secret), now=self.database.clock())
        assert caller is not None
        return caller

    def key(self, *scopes: str, **other: Any) -> "Api":
        """Return a client with another key of the same tenant."""
        given = {"name": "k", "scopes": [Scope(scope) for scope in scopes], "now": self.database.clock()} | other
        tenant_id = self.caller().tenant_id
        with self.database.transaction() as session:
            _, secret = keys.create_key(session, tenant_id, **given)
        return Api(self.http, self.database, secret)


def stranger(http: httpx.Client, database: Database) -> Api:
    """Return a client with an admin key of a new tenant."""
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, secrets.token_hex(8), now=database.clock())
        _, secret = keys.create_key(session, owner.id, name="t", scopes=[Scope.ADMIN], now=database.clock())
    return Api(http, database, secret)


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check an error response against the contract and return its document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    Problem.model_validate(document)
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


def single(report_id: str | None = None, slot: Any = 0, value: bytes = b"\x01") -> dict[str, Any]:
    """Return one report as JSON."""
    return {
        "report_id": secrets.token_hex(16) if report_id is None else report_id,
        "slot": slot,
        "value": base64.b64encode(value).decode(),
    }


def packed(n_reports: int, slot: int = 0, value: bytes = b"\x01") -> bytes:
    """Return packed reports with new ids."""
    return b"".join(secrets.token_bytes(16) + slot.to_bytes(4, "little") + value for _ in range(n_reports))


def a_model(*, labels: bool = True) -> ClusterModel:
    """Return a model with two clusters, left and right."""
    label_map = np.array([[0, 0], [1, 1]]) if labels else None
    return ClusterModel(
        type="label_map" if labels else "centroids",
        features=tuple(Feature(**feature) for feature in FEATURES),  # type: ignore[arg-type]
        sizes=np.array([0.25, 0.75]),
        size_errors=np.array([0.01, 0.01]),
        centroids=np.array([[0.25, 0.0], [0.75, 0.0]]),
        label_map=label_map,
        density=None if label_map is None else np.full((2, 2), 0.25),
        verdict=Verdict.UNCERTAIN,
        expected_agreement=ExpectedAgreement(0.75, 0.5, 1.0) if labels else None,
        diagnostics={"n_reports": 1000},
        warnings=("a warning",),
        privacy={"sizes": "post_processed"},
    )


def claim_job(database: Database, job_id: str) -> Claim:
    """Start a job as a worker does. Return its claim."""
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.state, job.fence, job.started_at = JobState.RUNNING.value, 1, database.clock()
    return Claim(job_id, 1)


def finish(
    database: Database,
    job_id: str,
    model: ClusterModel,
    used: list[dict[str, Any]] | None = None,
    odometer: Sequence[tuple[str, int, int]] = (),
) -> None:
    """Finish a job as a worker does. For a job over records, the odometer lists (query, number of values, cost)."""
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.state, job.fence = JobState.RUNNING.value, 1
        document = {
            "model": model.to_wire(),
            "algorithm": job.algorithm,
            "epsilon_nano": 1_000_000_000,
            "rounds": used or [],
            "odometer": [
                {"description": text, "n_values": n_values, "epsilon_nano": cost, "delta_atto": 0, "rho_pico": 0}
                for text, n_values, cost in odometer
            ],
        }
        lifecycle.succeed(session, Claim(job_id, 1), document, software_version="0.1.0", now=database.clock())


# Marker for tests in which the kind of database does not matter.
SQLITE_ONLY = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
SQLITE_BEFORE_RELEASE = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.release)], indirect=True
)
SQLITE_KIND_ONLY = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
