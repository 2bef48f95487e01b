"""Devices that ask for the round and report, at times of their own: an open loop, which waits for nobody's answer."""

import asyncio
import base64
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.load.connection import Broken, Connection
from benchmarks.load.notes import Notes
from sfumato.bulk import pack, perturb_records
from sfumato.specs import RoundSpec, round_spec_from_wire

STOCK_REPORTS = 200  # perturbed at once: a few milliseconds, so that the generator does not stand still
BATCH_REPORTS = 200
BATCH_GAP_SECONDS = 5.0
ASK_AGAIN_SECONDS = 0.5  # what a device waits for where no round is open
_JSON = b"Content-Type: application/json\r\n"
_OCTETS = b"Content-Type: application/octet-stream\r\n"


@dataclass
class Offer:
    """A round that is open, and reports that nobody has sent yet."""

    round_id: str
    spec: RoundSpec
    _stock: list[bytes] = field(default_factory=list)

    def report(self) -> bytes:
        """One report's body; a device's own, sent once."""
        if not self._stock:
            self._stock = list(_bodies(self.spec, STOCK_REPORTS))
        return self._stock.pop()

    def batch(self) -> bytes:
        """Many reports, packed."""
        return pack(perturb_records(self.spec, _people(self.spec, BATCH_REPORTS))).tobytes()


def _people(spec: RoundSpec, n: int) -> NDArray[np.float64]:
    """Where people are: two clusters in the features' bounds."""
    rng = np.random.default_rng()
    middle = np.where(rng.random((n, 1)) < 0.6, 0.3, 0.7)
    points = rng.normal(middle, 0.06, size=(n, len(spec.features))).clip(0, 1)
    lower = np.array([feature.lower for feature in spec.features])
    upper = np.array([feature.upper for feature in spec.features])
    return np.asarray(lower + points * (upper - lower))


def _bodies(spec: RoundSpec, n: int) -> Iterator[bytes]:
    made = perturb_records(spec, _people(spec, n))
    for report_id, slot, value in zip(made.report_ids, made.slots.tolist(), made.values, strict=True):
        text = base64.b64encode(value.tobytes()).decode()
        yield json.dumps({"report_id": report_id.tobytes().hex(), "slot": slot, "value": text}).encode()


class Offers:
    """What the service asked last, read once for all devices that were told the same bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Offer | None] = {}

    def read(self, body: bytes) -> Offer | None:
        """The open round, None where none is."""
        if body not in self._known:
            if len(self._known) > 64:
                self._known.clear()
            rounds = json.loads(body)["rounds"]
            self._known[body] = Offer(rounds[0]["id"], round_spec_from_wire(rounds[0]["spec"])) if rounds else None
        return self._known[body]


class Client:
    """One of many: a connection over which one device after the other asks and reports."""

    def __init__(self, url: str, key: str, dataset_id: str, offers: Offers, notes: Notes) -> None:
        self._connection = Connection(url, key)
        self._path = f"/v1/datasets/{dataset_id}/round"
        self._offers, self._notes = offers, notes
        self._etag, self._offer = b"", None  # type: tuple[bytes, Offer | None]

    async def visit(self) -> bool:
        """A device asks for the round and, where one is open, reports; whether one was."""
        asked = b"If-None-Match: %s\r\n" % self._etag if self._etag else b""
        answer = await timed(self._notes, "round", self._connection, "GET", self._path, headers=asked)
        if answer is None:
            return False
        if answer.status == 200:
            self._etag, self._offer = answer.headers.get(b"etag", b""), self._offers.read(answer.body)
        if self._offer is None:
            return False
        await self.send("report", self._offer, self._offer.report(), 1, _JSON)
        return True

    async def send_batch(self) -> None:
        """A crowd's worth in one request."""
        if await self.visit() and self._offer is not None:
            await self.send("batch", self._offer, self._offer.batch(), BATCH_REPORTS, _OCTETS)

    async def send(self, kind: str, offer: Offer, body: bytes, n_reports: int, media_type: bytes) -> None:
        """Send reports, and remember that they were acknowledged."""
        path = f"/v1/rounds/{offer.round_id}/reports"
        answer = await timed(self._notes, kind, self._connection, "POST", path, body, headers=media_type)
        if answer is not None and answer.status == 202:
            self._notes.acknowledged[offer.round_id] += n_reports

    def close(self) -> None:
        """Leave."""
        self._connection.close()


async def timed(
    notes: Notes, kind: str, connection: Connection, method: str, path: str, body: bytes = b"", **options: Any
) -> Any:
    """The answer, None where there was none; noted either way."""
    began = time.perf_counter()
    try:
        answer = await connection.ask(method, path, body, **options)
    except Broken as broken:
        notes.errors[f"no answer: {broken}"] += 1
        return None
    took = time.perf_counter() - began  # uvloop's own clock knows whole milliseconds
    if answer.status >= 400:
        notes.errors[f"{answer.status} {code(answer.body)}"] += 1
    else:
        notes.seconds[kind].append(took)
        if kind == "report":
            notes.at.append((began, took))
    return answer


def code(body: bytes) -> str:
    """A problem's code."""
    try:
        return str(json.loads(body)["code"])
    except (ValueError, KeyError, TypeError):
        return "without a problem"


async def open_loop(clients: list[Client], per_second: float, seconds: float, notes: Notes) -> None:
    """Every client's devices come as they come (exponential gaps), whether the last was answered or not.

    Where a client's last device still waits, the next one waits behind it; how long is noted as `behind`,
    together with how late this process was itself.
    """
    clock = time.perf_counter
    end = clock() + seconds
    gap = len(clients) / per_second

    async def live(client: Client) -> None:
        due = clock() + random.expovariate(1 / gap)
        while due < end:
            await asyncio.sleep(max(0.0, due - clock()))
            notes.seconds["behind"].append(max(0.0, clock() - due))
            await client.visit()
            due += random.expovariate(1 / gap)

    await asyncio.gather(*map(live, clients))


async def closed_loop(clients: list[Client], seconds: float) -> int:
    """Every client's devices follow one another at once; visits that ended in a report, which is what saturates."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    n_reported = 0

    async def live(client: Client) -> None:
        nonlocal n_reported
        while loop.time() < end:
            if await client.visit():
                n_reported += 1
            else:
                await asyncio.sleep(ASK_AGAIN_SECONDS)

    await asyncio.gather(*map(live, clients))
    return n_reported


async def batches(client: Client, stop: asyncio.Event) -> None:
    """A batch every few seconds."""
    while not stop.is_set():
        await client.send_batch()
        try:
            await asyncio.wait_for(stop.wait(), BATCH_GAP_SECONDS)
        except TimeoutError:
            continue
