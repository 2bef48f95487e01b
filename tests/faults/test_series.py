"""A series over a year of weeks, with a kill in each: windows open once, cycles are charged once, no report is lost."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from devservers.loopback import NO_TLS
from models.ledger import ledger
from sfumato.specs import round_spec_from_wire
from tests.faults.deployment import Deployment
from tests.faults.service_under_test import wait_until
from tests.workers.collection import packed_reports

pytestmark = [pytest.mark.release, pytest.mark.timeout(3000)]

N_WINDOWS, CYCLE, EPSILON = 52, 4, 2.0
N_REPORTS = 40  # reports of a window
KILL_SECONDS = 2.0  # a kill occurs up to so long after the begin of a window
VICTIMS = ("worker0", "worker1", "gateway0")


class Analyst:
    """Requests that are repeated until the gateway answers. A context manager."""

    def __init__(self, deployment: Deployment) -> None:
        self._http = httpx.Client(
            base_url=f"http://{deployment.entry.host}:{deployment.entry.port}/v1",
            headers={"Authorization": f"Bearer {deployment.secret}"},
            timeout=30,
            verify=NO_TLS,
        )

    def __enter__(self) -> "Analyst":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Return the JSON of a response. Repeat the request until there is one."""

        def attempt() -> httpx.Response | None:
            with suppress(httpx.TransportError):
                answer = self._http.request(method, path, **options)
                return None if answer.status_code >= 500 else answer
            return None

        answer: httpx.Response = wait_until(attempt)
        assert answer.is_success, answer.text
        return answer.json()

    def windows(self, series_id: str) -> list[dict[str, Any]]:
        """Return all windows, oldest first."""
        found: list[dict[str, Any]] = self.call("GET", f"/series/{series_id}/windows?limit=100&order=oldest")["items"]
        return found


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    running = Deployment("sqlite", tmp_path)
    try:
        wait_until(running.is_ready)
        yield running
    finally:
        running.close()


def kill_later(deployment: Deployment, victim: str, seconds: float) -> threading.Timer:
    """Kill a process after some seconds, and start it again."""

    def kill() -> None:
        deployment.kill(victim)
        deployment.start()

    timer = threading.Timer(seconds, kill)
    timer.start()
    return timer


@pytest.fixture
def analyst(deployment: Deployment) -> Iterator[Analyst]:
    with Analyst(deployment) as requests:
        yield requests


def test_a_kill_in_each_window_opens_charges_and_loses_nothing(deployment: Deployment, analyst: Analyst) -> None:
    rng = np.random.default_rng(1)
    feature = {"name": "x", "lower": 0, "upper": 1}
    new = {"name": "d", "trust": "local", "features": [feature], "epsilon": EPSILON, "min_reports": 1}
    dataset = analyst.call("POST", "/datasets", json=new)
    plan = {
        "dataset_id": dataset["id"],
        "name": "weekly",
        "algorithm": {"type": "shifted_grid", "epsilon": EPSILON, "cells": 4, "clusters": 2},
        "windows": {"every": "week", "count": N_WINDOWS},
        "cycle": CYCLE,
        "target_reports": 4000,
        "allow_insufficient": True,
    }
    series_id = analyst.call("POST", "/series", json=plan)["id"]
    sent = []
    for index in range(N_WINDOWS):
        opens_at = datetime.fromisoformat(analyst.windows(series_id)[index]["opens_at"]).timestamp()
        deployment.shift_clock("gateway0", opens_at + 60 - time.time())
        timer = kill_later(deployment, str(rng.choice(VICTIMS)), float(rng.uniform(0, KILL_SECONDS)))
        sent.append(report(analyst, dataset["id"], series_id, index))
        timer.join()
    deployment.shift_clock("gateway0", opens_at + 8 * 86_400 - time.time())
    wait_until(lambda: analyst.call("GET", f"/series/{series_id}")["state"] == "ended")
    wait_until(lambda: {each["state"] for each in analyst.windows(series_id)} == {"done"})
    found = analyst.windows(series_id)
    assert [each["n_reports"] for each in found] == sent
    assert len({each["job_id"] for each in found}) == N_WINDOWS
    assert all(each["clusters"] for each in found)
    with deployment.database.reading() as session:
        assert ledger.verify(session, dataset["id"]).ok
        entries = ledger.page(session, dataset["id"], after_seq=0, limit=1000)
    n_cycles = -(-N_WINDOWS // CYCLE)
    kinds = Counter((each.kind, each.epsilon_nano > 0) for each in entries)
    assert kinds == {
        ("grant", True): 1 + n_cycles,
        ("reserve", True): n_cycles,
        ("charge", True): n_cycles,
        ("charge", False): N_WINDOWS - n_cycles,
    }


def report(analyst: Analyst, dataset_id: str, series_id: str, index: int) -> int:
    """Report to the open round of a window in four groups. Return the number of reports."""

    def find_job() -> str | None:
        found: str | None = analyst.windows(series_id)[index]["job_id"]
        return found

    def find_round() -> dict[str, Any] | None:
        opened = analyst.call("GET", f"/datasets/{dataset_id}/rounds?state=open")["items"]
        return next((each for each in opened if each["job_id"] == job_id), None)

    job_id = wait_until(find_job)
    opened = wait_until(find_round)
    packed = packed_reports(round_spec_from_wire(opened["spec"]), N_REPORTS, index)
    width = len(packed) // N_REPORTS
    for begin in range(0, N_REPORTS, N_REPORTS // 4):
        part = packed[begin * width : (begin + N_REPORTS // 4) * width]
        headers = {"Content-Type": "application/octet-stream"}
        analyst.call("POST", f"/rounds/{opened['id']}/reports", content=part, headers=headers)
    return N_REPORTS
