"""Analysts, who ask for job after job and wait for each, and privacy officers, who read the ledgers."""

import asyncio
import json
from typing import Any
from uuid import uuid4

from benchmarks.load.connection import Connection
from benchmarks.load.crowd import timed
from benchmarks.load.notes import Notes

EPSILON = 1.0  # of a job's devices
FEATURES = [{"name": name, "lower": 0.0, "upper": 10.0} for name in ("x", "y")]
ALGORITHM = {"type": "uniform_grid", "epsilon": EPSILON, "cells": 8, "clusters": 2}
FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
LOOK_SECONDS = 1.0  # between an analyst's plain looks at a job
LEDGER_SECONDS = 1.0
LONG_POLL_SECONDS = 10
LAST_JOB_SECONDS = 120.0  # for the jobs under way at the end
_JSON = b"Content-Type: application/json\r\n"


class ServiceRefused(Exception):
    """The service did not do what no analyst can go on without."""


class Analyst:
    """One dataset's: grants, submits, waits by turns with a long poll and with events, reads the result."""

    def __init__(self, url: str, key: str, target_reports: int, notes: Notes) -> None:
        self._connections = [Connection(url, key) for _ in range(2)]  # one waits while the other looks
        self.target_reports, self._notes = target_reports, notes
        self.dataset_id, self.device_key = "", ""
        self._job_id: str | None = None

    async def prepare(self) -> None:
        """Make the dataset and the key of its devices."""
        body = {"name": "load", "trust": "local", "features": FEATURES, "epsilon": EPSILON, "min_reports": 100}
        self.dataset_id = (await self._post("create", "/v1/datasets", body))["id"]
        wanted = {"name": "devices", "scopes": ["device"], "dataset_id": self.dataset_id}
        self.device_key = (await self._post("create", "/v1/keys", wanted))["secret"]

    async def work(self, stop: asyncio.Event) -> None:
        """Job after job, until told to stop; the last one is left to `finish`."""
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
        """Close what is open, wait for the last job; every round of the dataset, as the service counts it."""
        rounds = await self._rounds()
        for each in rounds.values():
            if each["state"] == "open":
                await self._post("close", f"/v1/rounds/{each['id']}/close", {})
        if self._job_id is not None:
            job = await self._await_job(None, by_events=False)
            if job is not None:
                await self._read(job)
        for _ in range(round(LAST_JOB_SECONDS / LOOK_SECONDS)):
            rounds = await self._rounds()
            if all(each["state"] == "tallied" for each in rounds.values()):
                break
            await asyncio.sleep(LOOK_SECONDS)
        for connection in self._connections:
            connection.close()
        return rounds

    async def _await_job(self, stop: asyncio.Event | None, *, by_events: bool) -> dict[str, Any] | None:
        """The job in the end; None where told to stop before."""
        loop = asyncio.get_running_loop()
        gone = loop.time() + LAST_JOB_SECONDS
        path = f"/v1/jobs/{self._job_id}"
        if by_events:
            connection, until = self._connections[1], lambda body: b"\n\n" in body
            await timed(self._notes, "first event", connection, "GET", f"{path}/events", until=until)
        while not (stop.is_set() if stop is not None else loop.time() > gone):
            looked = await timed(self._notes, "job", self._connections[0], "GET", path)
            if looked is not None and looked.status == 200:
                job: dict[str, Any] = json.loads(looked.body)
                if job["state"] in FINAL:
                    return job
            wait = f"{path}?wait={LONG_POLL_SECONDS if stop is not None else 1}"
            await timed(self._notes, "long poll", self._connections[1], "GET", wait)
            await asyncio.sleep(LOOK_SECONDS / 10)
        return None

    async def _read(self, job: dict[str, Any]) -> None:
        if job["state"] != "succeeded":
            error = (job["error"] or {}).get("code", "")
            if error != "too_few_reports":  # a round that the end of the run closed early
                self._notes.errors[f"job {job['state']} {error}"] += 1
            return
        self._notes.seconds["jobs"].append(0.0)
        for kind, path in (("result", "result"), ("plot", "plot.svg")):
            await timed(self._notes, kind, self._connections[0], "GET", f"/v1/jobs/{job['id']}/{path}")

    async def _rounds(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        cursor = ""
        while True:
            path = f"/v1/datasets/{self.dataset_id}/rounds?limit=200{cursor}"
            answer = await timed(self._notes, "rounds", self._connections[0], "GET", path)
            if answer is None or answer.status != 200:
                raise ServiceRefused("the rounds of a dataset cannot be listed")
            page = json.loads(answer.body)
            found |= {each["id"]: each for each in page["items"]}
            if not page["next_cursor"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    async def _post(self, kind: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = _JSON + f"Idempotency-Key: {uuid4().hex}\r\n".encode()
        answer = await timed(
            self._notes, kind, self._connections[0], "POST", path, json.dumps(body).encode(), headers=headers
        )
        if answer is None or answer.status >= 300:
            raise ServiceRefused(f"POST {path} was answered {answer and answer.body[:300]}")
        document: dict[str, Any] = json.loads(answer.body)
        return document


async def officer(url: str, key: str, dataset_ids: list[str], stop: asyncio.Event, notes: Notes) -> None:
    """A privacy officer: each dataset's budget, then its ledger, page after page."""
    connection = Connection(url, key)
    while not stop.is_set():
        for dataset_id in dataset_ids:
            await timed(notes, "budget", connection, "GET", f"/v1/datasets/{dataset_id}/budget")
            await timed(notes, "ledger", connection, "GET", f"/v1/datasets/{dataset_id}/ledger?limit=200")
            await asyncio.sleep(LEDGER_SECONDS / len(dataset_ids))
    connection.close()
