"""How the tests of the gateway speak to it: one caller, the things it makes, and what a refusal looks like."""

import base64
import secrets
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from models import job as jobs
from models import tenant
from models.db import Database
from models.job import Claim, Job, JobState
from models.tenant import Scope
from service.schemas import Problem
from sfumato import specs
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Feature

FEATURES = [
    {"name": "x", "lower": 0.0, "upper": 1.0, "unit": ""},
    {"name": "y", "lower": -1.0, "upper": 1.0, "unit": "m"},
]
GRID = {"type": "grid", "cells": [2, 2]}
UNIFORM = {"type": "uniform_grid", "epsilon": 1.0}


def told(algorithm: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they are told: with every default, without what was left out."""
    wire = specs.to_wire(specs.algorithm_from_wire(algorithm))
    return {name: value for name, value in wire.items() if value is not None}


def unknown(prefix: str) -> str:
    """A well-formed id that nothing has."""
    return f"{prefix}_{'0' * 26}"


class Api:
    """One key's way to a gateway."""

    def __init__(self, http: httpx.Client, database: Database, secret: str) -> None:
        self.http, self.database, self.secret = http, database, secret

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request below /v1 with the key."""
        headers = {"Authorization": f"Bearer {self.secret}", **(options.pop("headers", None) or {})}
        return self.http.request(method, f"/v1{path}", headers=headers, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, **({"json": body} if body is not None else {}), **options)

    def made(self, path: str, body: Any, **options: Any) -> dict[str, Any]:
        """POST what must succeed."""
        answer = self.post(path, body, **options)
        assert answer.status_code in (200, 201, 202), answer.text
        document: dict[str, Any] = answer.json()
        return document

    def dataset(self, **other: Any) -> dict[str, Any]:
        """A local dataset of two features with much budget."""
        given = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8, "min_reports": 1}
        return self.made("/datasets", given | other)

    def round(self, dataset_id: str, **other: Any) -> dict[str, Any]:
        """An open round of four symbols, one byte a value."""
        given = {"encoding": GRID, "mechanism": "grr", "epsilon": 1, "target_reports": 1000}
        return self.made(f"/datasets/{dataset_id}/rounds", given | other)

    def job(self, dataset_id: str, **other: Any) -> dict[str, Any]:
        """A queued job."""
        given = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": 1000}
        return self.made("/jobs", given | other)

    def report(self, round_id: str, **other: Any) -> httpx.Response:
        """Send one report."""
        return self.post(f"/rounds/{round_id}/reports", single(**other))

    def n_received(self, round_id: str) -> int:
        """What the round counts."""
        received: int = self.get(f"/rounds/{round_id}").json()["n_received"]
        return received

    def key(self, *scopes: str, dataset_id: str | None = None) -> "Api":
        """Another key of the same tenant."""
        with self.database.transaction() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(self.secret), now=self.database.clock())
            assert caller is not None
            _, secret = tenant.create_key(
                session,
                caller.tenant_id,
                name="k",
                scopes=[Scope(scope) for scope in scopes],
                dataset_id=dataset_id,
                now=self.database.clock(),
            )
        return Api(self.http, self.database, secret)


def stranger(http: httpx.Client, database: Database) -> Api:
    """An admin key of a tenant of its own."""
    with database.transaction() as session:
        owner = tenant.get_or_create_tenant(session, secrets.token_hex(8), now=database.clock())
        _, secret = tenant.create_key(session, owner.id, name="t", scopes=[Scope.ADMIN], now=database.clock())
    return Api(http, database, secret)


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check a refusal against the contract; its document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    Problem.model_validate(document)
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


def single(report_id: str | None = None, slot: Any = 0, value: bytes = b"\x01") -> dict[str, Any]:
    """One report as JSON."""
    return {
        "report_id": secrets.token_hex(16) if report_id is None else report_id,
        "slot": slot,
        "value": base64.b64encode(value).decode(),
    }


def packed(n_reports: int, slot: int = 0, value: bytes = b"\x01") -> bytes:
    """Packed octets of fresh reports."""
    return b"".join(secrets.token_bytes(16) + slot.to_bytes(4, "little") + value for _ in range(n_reports))


def a_model(*, labels: bool = True) -> ClusterModel:
    """Two clusters, left and right."""
    label_map = np.array([[0, 0], [1, 1]]) if labels else None
    return ClusterModel(
        type="label_map" if labels else "centroids",
        features=tuple(Feature(**feature) for feature in FEATURES),  # type: ignore[arg-type]
        sizes=np.array([0.25, 0.75]),
        size_errors=np.array([0.01, 0.01]),
        centroids=np.array([[0.25, 0.0], [0.75, 0.0]]),
        label_map=label_map,
        density=None if label_map is None else np.full((2, 2), 0.25),
        diagnostics={"n_reports": 1000},
        warnings=("a warning",),
        privacy={"sizes": "post_processed"},
    )


def finish(
    database: Database,
    job_id: str,
    model: ClusterModel,
    used: list[dict[str, Any]] | None = None,
    odometer: Sequence[tuple[str, int, int]] = (),
) -> None:
    """End a job as its worker would; of a central one the odometer holds what was asked, of how many, and its cost."""
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.state, job.fence = JobState.RUNNING.value, 1
        document = {
            "model": model.to_wire(),
            "algorithm": job.algorithm,
            "epsilon_nano": 1_000_000_000,
            "rounds": used or [],
            "odometer": [dict(zip(("what", "n_values", "epsilon_nano"), asked, strict=True)) for asked in odometer],
        }
        jobs.succeed(session, Claim(job_id, 1), document, software_version="0.1.0", now=database.clock())
