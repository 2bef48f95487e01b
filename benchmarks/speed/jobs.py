"""Overhead of a job, from its POST to its result, with almost no computation.

The job uses a round of four cells that is tallied already, so that the time is that of the queue, the worker and the
response.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.speed.harness import bodies
from benchmarks.speed.harness.measurement import Measurement, Setting, alternate, compare
from benchmarks.speed.harness.serving import client_of, document
from benchmarks.speed.ingest import open_round
from devservers.fleet import Fleet, make_environment, start

EMBEDDED_SECONDS, REDIS_SECONDS = 0.050, 0.030
JOBS, QUICK_JOBS, WARM_JOBS = 40, 15, 5
PAUSE_SECONDS = 0.1  # longest pause between jobs; its random length avoids alignment with polls of the worker
N_REPORTS = 100
WAIT_SECONDS = 60
ROUND = {"encoding": {"type": "grid", "cells": [2, 2]}, "mechanism": "grr", "epsilon": 1, "target_reports": N_REPORTS}
ALGORITHM = {"type": "uniform_grid", "epsilon": 1}
SETTINGS = {"warm_kernels": "false", "rate_per_key": "0"}  # the first jobs compile the kernels that they need


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield the embedded service, and the service with PostgreSQL and Redis."""
    n_jobs = QUICK_JOBS if setting.quick else JOBS
    with embedded() as client:
        yield _row("embedded: SQLite, no Redis", client, EMBEDDED_SECONDS, setting.turns, n_jobs)
    with fleet() as client:
        yield _row("PostgreSQL and Redis", client, REDIS_SECONDS, setting.turns, n_jobs)


@contextmanager
def embedded() -> Iterator[httpx.Client]:
    """Run `sfumato serve` until its worker is ready."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        home = Path(folder)
        service = start(home, "serve", "serve", "--port", "0", environment=make_environment(home, **SETTINGS))
        try:
            url = service.wait_for_url()
            service.wait_for_worker()
            with client_of(f"{url}/v1", (home / "admin.key").read_text().strip()) as client:
                yield client
        finally:
            service.stop()


@contextmanager
def fleet() -> Iterator[httpx.Client]:
    """Run a gateway, a worker, PostgreSQL with durable commits, and Redis."""
    settings = {f"SFUMATO_{name.upper()}": value for name, value in SETTINGS.items()}
    with (
        tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder,
        Fleet(Path(folder), n_gateways=1, n_workers=1, durable=True, settings=settings) as servers,
        client_of(f"{servers.urls[0]}/v1", servers.key) as client,
    ):
        yield client


def _row(name: str, client: httpx.Client, limit: float, turns: int, n_jobs: int) -> Measurement:
    job = _job_request(client)
    for _ in range(WARM_JOBS):
        seconds_of(client, job)
    slowest: list[float] = []

    def ours() -> float:
        took = []
        for _ in range(n_jobs):
            time.sleep(random.uniform(0, PAUSE_SECONDS))  # noqa: S311 - no secret
            took.append(seconds_of(client, job))
        slowest.append(statistics.quantiles(took, n=20)[-1])
        return statistics.median(took)

    measured = alternate(ours, lambda: limit, turns)
    note = f"p50 of {n_jobs} jobs a turn, one after the other; p95 {1000 * statistics.median(slowest):.0f} ms."
    return compare(f"POST to result, {name}", f"{1000 * limit:.0f} ms", measured, bar=1.0, note=note)


def seconds_of(client: httpx.Client, job: dict[str, Any]) -> float:
    """Return the time from the POST to the last byte of the result."""
    began = time.perf_counter()
    submitted = document(client.post("/jobs", json=job))
    seen = document(client.get(f"/jobs/{submitted['id']}", params={"wait": WAIT_SECONDS}))
    assert seen["state"] == "succeeded", seen
    assert document(client.get(f"/jobs/{submitted['id']}/result"))["model"]
    return time.perf_counter() - began


def _job_request(client: httpx.Client) -> dict[str, Any]:
    """Fill a round; return the request of a job that uses it."""
    dataset_id, opened = open_round(client, ROUND)
    these = bodies.make_reports(opened["spec"], N_REPORTS)
    headers = {"content-type": bodies.FORMS["packed octets"]}
    content = bodies.body("packed octets", these)
    document(client.post(f"/rounds/{opened['id']}/reports", content=content, headers=headers))
    return {"dataset_id": dataset_id, "round_ids": [opened["id"]], "algorithm": ALGORITHM}
