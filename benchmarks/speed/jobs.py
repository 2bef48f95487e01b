"""What a job costs beside its computing: from its POST to its result, for one that has next to nothing to compute.

The job works on a round of four cells that was tallied before, so that nothing is left but the way through the queue,
the worker and back.
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

from benchmarks.speed import bodies, serving
from benchmarks.speed.ingest import FEATURES
from benchmarks.speed.row import Row, Setting, compare, in_turns
from demo.fleet import Fleet, until

GROUP = "jobs"
EMBEDDED_SECONDS, REDIS_SECONDS = 0.050, 0.030
JOBS, QUICK_JOBS, WARM_JOBS = 40, 15, 5
PAUSE_SECONDS = 0.1  # at most, between two jobs: a worker's looks have no beat to fall in with
N_REPORTS = 100
WAIT_SECONDS = 60
ROUND = {"encoding": {"type": "grid", "cells": [2, 2]}, "mechanism": "grr", "epsilon": 1, "target_reports": N_REPORTS}
ALGORITHM = {"type": "uniform_grid", "epsilon": 1}
SETTINGS = {"warm_kernels": "false", "rate_per_key": "0"}  # those the job needs are compiled by the first ones


def rows(setting: Setting) -> Iterator[Row]:
    """Embedded, and with PostgreSQL and Redis."""
    n_jobs = QUICK_JOBS if setting.quick else JOBS
    with embedded() as client:
        yield _row("embedded: SQLite, no Redis", client, EMBEDDED_SECONDS, setting.turns, n_jobs)
    with fleet() as client:
        yield _row("PostgreSQL and Redis", client, REDIS_SECONDS, setting.turns, n_jobs)


@contextmanager
def embedded() -> Iterator[httpx.Client]:
    """`sfumato serve`, its worker ready."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        home = Path(folder)
        started = serving.begin(
            home, "serve", ["service.cli", "serve", "--port", "0"], serving.environment(home, **SETTINGS)
        )
        try:
            url = started.await_url()
            until(lambda: "child_ready" in started.log(), "the worker was not ready", lambda: None)
            with _client(url, (home / "admin.key").read_text().strip()) as client:
                yield client
        finally:
            started.stop()


@contextmanager
def fleet() -> Iterator[httpx.Client]:
    """A gateway, a worker, PostgreSQL that waits for the disk, Redis."""
    settings = {f"SFUMATO_{name.upper()}": value for name, value in SETTINGS.items()}
    with (
        tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder,
        Fleet(Path(folder), n_gateways=1, n_workers=1, durable=True, settings=settings) as servers,
        _client(servers.urls[0], servers.key) as client,
    ):
        yield client


def _client(url: str, key: str) -> httpx.Client:
    return httpx.Client(
        base_url=f"{url}/v1", headers={"Authorization": f"Bearer {key}"}, timeout=serving.PATIENCE_SECONDS
    )


def _row(name: str, client: httpx.Client, limit: float, turns: int, n_jobs: int) -> Row:
    job = _asked(client)
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

    measured = in_turns(ours, lambda: limit, turns)
    note = f"p50 of {n_jobs} jobs a turn, one after the other; p95 {1000 * statistics.median(slowest):.0f} ms."
    return compare(GROUP, f"POST to result, {name}", f"{1000 * limit:.0f} ms", measured, bar=1.0, note=note)


def seconds_of(client: httpx.Client, job: dict[str, Any]) -> float:
    """From the POST to the last byte of the result."""
    began = time.perf_counter()
    submitted = _made(client.post("/jobs", json=job))
    seen = _made(client.get(f"/jobs/{submitted['id']}", params={"wait": WAIT_SECONDS}))
    assert seen["state"] == "succeeded", seen
    assert _made(client.get(f"/jobs/{submitted['id']}/result"))["model"]
    return time.perf_counter() - began


def _asked(client: httpx.Client) -> dict[str, Any]:
    """A job over a round that is full."""
    given = {"name": "speed", "trust": "local", "features": FEATURES, "epsilon": 8, "min_reports": 1}
    dataset = _made(client.post("/datasets", json=given))
    opened = _made(client.post(f"/datasets/{dataset['id']}/rounds", json=ROUND))
    these = bodies.reports(N_REPORTS, *bodies.columns_of(opened["spec"]))
    headers = {"content-type": bodies.FORMS["packed octets"]}
    _made(client.post(f"/rounds/{opened['id']}/reports", content=bodies.body("packed octets", these), headers=headers))
    return {"dataset_id": dataset["id"], "round_ids": [opened["id"]], "algorithm": ALGORITHM}


def _made(answer: httpx.Response) -> dict[str, Any]:
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document
