"""Analysts that run one job after the other, and privacy officers that read ledgers."""

import asyncio
import json
from typing import Any
from uuid import uuid4

from benchmarks.load.connection import JSON, Connection, EventLog, timed

EPSILON = 1.0  # cost of a job for a device
FEATURES = [{"name": name, "lower": 0.0, "upper": 10.0} for name in ("x", "y")]
ALGORITHM = {"type": "uniform_grid", "epsilon": EPSILON, "cells": 8, "clusters": 2}
FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
POLL_SECONDS = 1.0  # interval of an analyst's plain polls
LEDGER_SECONDS = 1.0
LONG_POLL_SECONDS = 10
LAST_JOB_SECONDS = 120.0  # wait for running jobs at the end


class ServiceRefused(Exception):
    """A request failed that an analyst cannot continue without."""


class Analyst:
    """The analyst of one dataset: submits jobs, waits by long poll or events, reads results, grants budget."""

    def __init__(self, url: str, key: str, target_reports: int, log: EventLog) -> None:
        self._connections = [Connection(url, key) for _ in range(2)]  # one for waiting, one for polling
        self.target_reports, self._log = target_reports, log
        self.dataset_id, self.device_key = "", ""
        self._job_id: str | None = None

    async def prepare(self) -> None:
        """Create the dataset and the key of its devices."""
        body = {"name": "load", "trust": "local", "features": FEATURES, "epsilon": EPSILON, "min_reports": 100}
        self.dataset_id = (await self._post("create", "/v1/datasets", body))["id"]
        wanted = {"name": "devices", "scopes": ["device"], "dataset_id": self.dataset_id}
        self.device_key = (await self._post("create", "/v1/keys", wanted))["secret"]

    async def work(self, stop: asyncio.Event) -> None:
        """Run one job after the other until `stop` is set; `finish` completes the last one."""
        n_jobs = 0
        while not stop.is_set():
            body = {
                "dataset_id": self.dataset_id,
                "algorithm": ALGORITHM,
                "target_reports": self.target_reports,
                "allow_insufficient": True,
            }
            self._job_id = (await self._post("submit", "/v1/jobs", body))["id"]
            job = await self._await_job(stop, by_events=n_jobs % 2 == 1)
            if job is None:
                return
            await self._read(job)
            await self._post("grant", f"/v1/datasets/{self.dataset_id}/grants", {"epsilon": EPSILON})
            n_jobs += 1

    async def finish(self) -> dict[str, Any]:
        """Close open rounds and wait for the last job; return the rounds of the dataset as the service counts them."""
        rounds = await self._rounds()
        for each in rounds.values():
            if each["state"] == "open":
                await self._post("close", f"/v1/rounds/{each['id']}/close?allow_empty=true")
        if self._job_id is not None:
            job = await self._await_job(None, by_events=False)
            if job is not None:
                await self._read(job)
        for _ in range(round(LAST_JOB_SECONDS / POLL_SECONDS)):
            rounds = await self._rounds()
            if all(each["state"] == "tallied" for each in rounds.values()):
                break
            await asyncio.sleep(POLL_SECONDS)
        for connection in self._connections:
            connection.close()
        return rounds

    async def _await_job(self, stop: asyncio.Event | None, *, by_events: bool) -> dict[str, Any] | None:
        """Return the finished job, or None if `stop` is set before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_JOB_SECONDS
        path = f"/v1/jobs/{self._job_id}"
        if by_events:
            connection, until = self._connections[1], lambda body: b"\n\n" in body
            await timed(self._log, "first event", connection, "GET", f"{path}/events", until=until)
        while not (stop.is_set() if stop is not None else loop.time() > deadline):
            polled = await timed(self._log, "job", self._connections[0], "GET", path)
            if polled is not None and polled.status == 200:
                job: dict[str, Any] = json.loads(polled.body)
                if job["state"] in FINAL:
                    return job
            wait = f"{path}?wait={LONG_POLL_SECONDS if stop is not None else 1}"
            await timed(self._log, "long poll", self._connections[1], "GET", wait)
            await asyncio.sleep(POLL_SECONDS / 10)
        return None

    async def _read(self, job: dict[str, Any]) -> None:
        if job["state"] != "succeeded":
            error = (job["error"] or {}).get("code", "")
            if error != "too_few_reports":  # the end of the run closed the round early
                self._log.errors[f"job {job['state']} {error}"] += 1
            return
        self._log.seconds["jobs"].append(0.0)
        for kind, path in (("result", "result"), ("plot", "plot.svg")):
            await timed(self._log, kind, self._connections[0], "GET", f"/v1/jobs/{job['id']}/{path}")

    async def _rounds(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        cursor = ""
        while True:
            path = f"/v1/datasets/{self.dataset_id}/rounds?limit=200{cursor}"
            response = await timed(self._log, "rounds", self._connections[0], "GET", path)
            if response is None or response.status != 200:
                raise ServiceRefused("the rounds of a dataset cannot be listed")
            page = json.loads(response.body)
            found |= {each["id"]: each for each in page["items"]}
            if not page["next_cursor"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    async def _post(self, kind: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = JSON + f"Idempotency-Key: {uuid4().hex}\r\n".encode()
        response = await timed(
            self._log,
            kind,
            self._connections[0],
            "POST",
            path,
            b"" if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        if response is None or response.status >= 300:
            raise ServiceRefused(f"POST {path} was answered {response and response.body[:300]}")
        document: dict[str, Any] = json.loads(response.body)
        return document


async def officer(url: str, key: str, dataset_ids: list[str], stop: asyncio.Event, log: EventLog) -> None:
    """Read the budget and the ledger of each dataset in turn, as a privacy officer."""
    connection = Connection(url, key)
    while not stop.is_set():
        for dataset_id in dataset_ids:
            await timed(log, "budget", connection, "GET", f"/v1/datasets/{dataset_id}/budget")
            await timed(log, "ledger", connection, "GET", f"/v1/datasets/{dataset_id}/ledger?limit=200")
            await asyncio.sleep(LEDGER_SECONDS / len(dataset_ids))
    connection.close()
