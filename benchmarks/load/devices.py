"""Devices that request the round and report at random times, in an open loop that does not wait for responses."""

import asyncio
import base64
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.load.connection import JSON, Connection, EventLog, timed
from sfumato.device.bulk import pack, perturb_records
from sfumato.specs import RoundSpec, round_spec_from_wire

STOCK_REPORTS = 200  # perturbed at once in a few milliseconds, so that the event loop is not blocked
BATCH_REPORTS = 200
BATCH_GAP_SECONDS = 5.0
RETRY_SECONDS = 0.5  # pause of a device if no round is open
_OCTETS = b"Content-Type: application/octet-stream\r\n"


@dataclass
class OpenRound:
    """An open round, and reports that are not sent yet."""

    round_id: str
    spec: RoundSpec
    _stock: list[bytes] = field(default_factory=list)

    def report(self) -> bytes:
        """Return the body of a new report."""
        if not self._stock:
            self._stock = list(_bodies(self.spec, STOCK_REPORTS))
        return self._stock.pop()

    def batch(self) -> bytes:
        """Return the packed body of many reports."""
        return pack(perturb_records(self.spec, _people(self.spec, BATCH_REPORTS))).tobytes()


def _people(spec: RoundSpec, n: int) -> NDArray[np.float64]:
    """Return records in two clusters within the bounds of the features."""
    rng = np.random.default_rng()
    middle = np.where(rng.random((n, 1)) < 0.6, 0.3, 0.7)
    points = rng.normal(middle, 0.06, size=(n, len(spec.features))).clip(0, 1)
    lower = np.array([feature.lower for feature in spec.features])
    upper = np.array([feature.upper for feature in spec.features])
    return np.asarray(lower + points * (upper - lower))


def _bodies(spec: RoundSpec, n: int) -> Iterator[bytes]:
    reports = perturb_records(spec, _people(spec, n))
    for report_id, slot, value in zip(reports.report_ids, reports.slots.tolist(), reports.values, strict=True):
        text = base64.b64encode(value.tobytes()).decode()
        yield json.dumps({"report_id": report_id.tobytes().hex(), "slot": slot, "value": text}).encode()


class RoundCache:
    """Parsed rounds, shared by all devices that received the same bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, OpenRound | None] = {}

    def read(self, body: bytes) -> OpenRound | None:
        """Return the open round, or None if there is none."""
        if body not in self._known:
            if len(self._known) > 64:
                self._known.clear()
            rounds = json.loads(body)["rounds"]
            self._known[body] = OpenRound(rounds[0]["id"], round_spec_from_wire(rounds[0]["spec"])) if rounds else None
        return self._known[body]


class DeviceClient:
    """A connection that serves one device after the other."""

    def __init__(self, url: str, key: str, dataset_id: str, round_cache: RoundCache, log: EventLog) -> None:
        self._connection = Connection(url, key)
        self._path = f"/v1/datasets/{dataset_id}/round"
        self._round_cache, self._log = round_cache, log
        self._etag, self._open_round = b"", None  # type: tuple[bytes, OpenRound | None]

    async def visit(self) -> bool:
        """Request the round and report if one is open; return whether one was."""
        condition = b"If-None-Match: %s\r\n" % self._etag if self._etag else b""
        response = await timed(self._log, "round", self._connection, "GET", self._path, headers=condition)
        if response is None:
            return False
        if response.status == 200:
            self._etag, self._open_round = response.headers.get(b"etag", b""), self._round_cache.read(response.body)
        if self._open_round is None:
            return False
        await self.send("report", self._open_round, self._open_round.report(), 1, JSON)
        return True

    async def send_batch(self) -> None:
        """Send many reports in one request."""
        if await self.visit() and self._open_round is not None:
            await self.send("batch", self._open_round, self._open_round.batch(), BATCH_REPORTS, _OCTETS)

    async def send(self, kind: str, open_round: OpenRound, body: bytes, n_reports: int, media_type: bytes) -> None:
        """Send reports, and log that they were acknowledged."""
        path = f"/v1/rounds/{open_round.round_id}/reports"
        response = await timed(self._log, kind, self._connection, "POST", path, body, headers=media_type)
        if response is not None and response.status == 202:
            self._log.acknowledged[open_round.round_id] += n_reports

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def open_loop(clients: list[DeviceClient], per_second: float, seconds: float, log: EventLog) -> None:
    """Start devices at exponential intervals, independent of responses.

    If the last device of a client still waits, the next one is queued behind it. The log has the delay as `behind`,
    which includes delays of this process.
    """
    clock = time.perf_counter
    end = clock() + seconds
    gap = len(clients) / per_second

    async def live(client: DeviceClient) -> None:
        due = clock() + random.expovariate(1 / gap)
        while due < end:
            await asyncio.sleep(max(0.0, due - clock()))
            log.seconds["behind"].append(max(0.0, clock() - due))
            await client.visit()
            due += random.expovariate(1 / gap)

    await asyncio.gather(*map(live, clients))


async def closed_loop(clients: list[DeviceClient], seconds: float) -> int:
    """Start each device when the last one ends; return the number of visits with a report."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    n_reported = 0

    async def live(client: DeviceClient) -> None:
        nonlocal n_reported
        while loop.time() < end:
            if await client.visit():
                n_reported += 1
            else:
                await asyncio.sleep(RETRY_SECONDS)

    await asyncio.gather(*map(live, clients))
    return n_reported


async def batches(client: DeviceClient, stop: asyncio.Event) -> None:
    """Send a batch every few seconds until `stop` is set."""
    while not stop.is_set():
        await client.send_batch()
        try:
            await asyncio.wait_for(stop.wait(), BATCH_GAP_SECONDS)
        except TimeoutError:
            continue
