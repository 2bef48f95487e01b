"""Seeded clients that continue despite faults and record their requests and the responses.

They follow the documentation for clients: a request without a response is repeated, with the same bytes and the same id
or key. Responses that must never occur are recorded as faults.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from devservers.loopback import NO_TLS
from models.collection.report_log import ID_BYTES
from sfumato.specs import round_spec_from_wire
from tests.workers.collection import packed_reports

PAUSE_SECONDS = 0.05
TIMEOUT_SECONDS = 20.0
CELLS = (128, 128)  # each report of a round has its own bucket
N_BUCKETS = CELLS[0] * CELLS[1]
VALUE_BYTES = 2  # bytes per value
RECORD_SPAN = 1 << 20  # number of lattice cells; each record has its own
FEATURES = [{"name": "x", "lower": 0, "upper": 1}, {"name": "y", "lower": -5, "upper": 5}]
# Above four features, private_kmeans spends its delta in one block.
RECORD_FEATURES = [{"name": "x", "lower": 0, "upper": RECORD_SPAN}] + [
    {"name": name, "lower": 0, "upper": 1} for name in "yzuv"
]
CANARY = "canary"  # prefix of idempotency keys of uploads, which must never be logged
N_REPORTS = 60  # devices per job
LOCAL_JOBS: list[dict[str, Any]] = [
    {"type": "shifted_grid", "epsilon": 2.0, "clusters": 2, "cells": 4, "shifts": 3},
    {"type": "uniform_grid", "epsilon": 2.0, "clusters": 2, "cells": 4},
    {"type": "adaptive_grid_iterative", "epsilon": 2.0, "clusters": 2, "passes": 3},
    {"type": "adaptive_grid_tree", "epsilon": 2.0, "clusters": 2, "height": 2},
    {"type": "grid_kmeans", "epsilon": 2.0, "clusters": 2, "cells": 4},
]
CENTRAL_JOBS: list[dict[str, Any]] = [
    {"type": "private_kmeans", "epsilon": 0.25, "clusters": 2},
    {"type": "private_kmeans", "epsilon": 0.25, "delta": 1e-8, "clusters": 2},
    {"type": "auto", "mu": 0.05, "clusters": 2},
    {"type": "dp_kmeans", "epsilon": 0.25, "clusters": 2},
    {"type": "dp_uniform_grid_kmeans", "epsilon": 0.25, "clusters": 2},
]


class ClientStopped(Exception):
    """Raised when a client must stop without a response."""


@dataclass
class ClientContext:
    """The state that all clients of a wave share: address, stop flags, counters and faults."""

    url: str
    secret: str
    is_ending: threading.Event = field(default_factory=threading.Event)  # start no new work
    is_stopped: threading.Event = field(default_factory=threading.Event)  # abandon unfinished work
    wrong: list[str] = field(default_factory=list)
    n_requests: int = 0
    n_responses: int = 0
    n_resent: int = 0
    n_unavailable: int = 0

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request until there is a response and return it; raise ClientStopped."""
        content: Callable[[], Any] | None = more.pop("streamed", None)
        headers = {"Authorization": f"Bearer {self.secret}", "Connection": "close", **more.pop("headers", {})}
        while not self.is_stopped.is_set():
            self.n_requests += 1
            body = {"content": content()} if content is not None else {}
            with suppress(httpx.TransportError):
                response = httpx.request(
                    method,
                    self.url + path,
                    headers=headers,
                    timeout=TIMEOUT_SECONDS,
                    trust_env=False,
                    verify=NO_TLS,
                    **body,
                    **more,
                )
                if response.status_code < 500:
                    self.n_responses += 1
                    return response
                self.n_unavailable += 1
                self._check_unavailable(method, path, response)
            self.n_resent += 1
            time.sleep(PAUSE_SECONDS)
        raise ClientStopped

    def _check_unavailable(self, method: str, path: str, response: httpx.Response) -> None:
        """Check a 5xx response: only 503 `unavailable` with Retry-After is valid."""
        code = ""
        with suppress(ValueError, AttributeError):
            code = response.json().get("code", "")
        if (response.status_code, code) != (503, "unavailable") or not response.headers.get(
            "retry-after", ""
        ).isdigit():
            self.wrong.append(f"{method} {path} returned {response.status_code} {response.text[:200]}")

    def request_json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """Return the JSON of a response that must be a success."""
        response = self.send(method, path, **more)
        if not response.is_success:
            self.wrong.append(f"{method} {path} returned {response.status_code} {response.text[:300]}")
            raise ClientStopped
        findings: dict[str, Any] = response.json()
        return findings


class Client(threading.Thread):
    """A client that repeats `run_step` until it must stop."""

    def __init__(self, context: ClientContext, name: str, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.context, self.rng = context, random.Random(f"{seed} {name}")  # noqa: S311 - a schedule, not a secret
        self.doing = ""

    def new_key(self) -> dict[str, str]:
        """Return a new idempotency key."""
        return {"Idempotency-Key": f"{self.name}-{self.rng.randbytes(8).hex()}"}

    def run(self) -> None:
        try:
            while not self.context.is_ending.is_set():
                self.run_step()
        except ClientStopped:
            return
        except Exception as error:
            self.context.wrong.append(f"the client {self.name} failed: {error!r}")

    def run_step(self) -> None:
        """Do one unit of work."""
        raise NotImplementedError


@dataclass
class BucketRound:
    """A round in which every report has its own bucket."""

    id: str
    sent: dict[int, bytes] = field(default_factory=dict)  # bucket -> packed report
    acknowledged: set[int] = field(default_factory=set)


class Devices(Client):
    """Devices that report to their own rounds, each report to another bucket, and sometimes repeat a report."""

    def __init__(self, context: ClientContext, name: str, seed: str) -> None:
        super().__init__(context, name, seed)
        self.dataset_id = ""
        self.rounds: list[BucketRound] = []

    def run_step(self) -> None:
        if not self.rounds or self.rng.random() < 0.02:
            self._open()
        bucket_round = self.rounds[-1]
        n = self.rng.choice([1, 1, 1, 1, 5, 20])
        first = len(bucket_round.sent)
        if first + n > N_BUCKETS:
            self._open()
            return
        buckets = list(range(first, first + n))
        for bucket in buckets:
            bucket_round.sent[bucket] = self.rng.randbytes(ID_BYTES) + bytes(4) + bucket.to_bytes(VALUE_BYTES, "little")
        acknowledged_buckets = list(
            self.rng.sample(sorted(bucket_round.acknowledged), k=min(2, len(bucket_round.acknowledged)))
        )
        repeated = acknowledged_buckets if self.rng.random() < 0.1 else []
        packed = b"".join(bucket_round.sent[bucket] for bucket in buckets + repeated)
        response = self.context.send(
            "POST",
            f"/v1/rounds/{bucket_round.id}/reports",
            content=packed,
            headers={"Content-Type": "application/octet-stream"},
        )
        if response.status_code == 202:
            bucket_round.acknowledged.update(buckets)
        elif response.json().get("code") == "round_closed":
            self._open()
        else:
            self.context.wrong.append(f"reports returned {response.status_code} {response.text[:200]}")
        time.sleep(self.rng.uniform(0.02, 0.15))

    def _open(self) -> None:
        if not self.dataset_id or len(self.rounds) % 12 == 11:  # a dataset's budget allows 12 rounds
            body = {"name": self.name, "trust": "local", "features": FEATURES, "epsilon": 30, "min_reports": 1}
            self.dataset_id = self.context.request_json("POST", "/v1/datasets", json=body, headers=self.new_key())["id"]
        if self.rounds and self.rng.random() < 0.3:
            self.context.request_json("POST", f"/v1/rounds/{self.rounds[-1].id}/close?allow_empty=true")
        body = {
            "encoding": {"type": "grid", "cells": list(CELLS)},
            "mechanism": "grr",
            "epsilon": 1.0,
            "target_reports": self.rng.randint(20, 200),
        }
        request_json = self.context.request_json(
            "POST", f"/v1/datasets/{self.dataset_id}/rounds", json=body, headers=self.new_key()
        )
        self.rounds.append(BucketRound(request_json["id"]))


@dataclass
class SubmittedJob:
    """A job and its state as reported to the analyst."""

    id: str
    dataset_id: str
    state: str = ""
    is_cancelled: bool = False
    sent: dict[str, set[bytes]] = field(default_factory=dict)  # round -> packed reports
    acknowledged: dict[str, set[bytes]] = field(default_factory=dict)


class Analyst(Client):
    """An analyst that submits jobs, lets devices report to them, and cancels some."""

    trust, features, jobs_per_dataset = "local", FEATURES, 12

    def __init__(self, context: ClientContext, name: str, seed: str) -> None:
        super().__init__(context, name, seed)
        self.jobs: list[SubmittedJob] = []
        self.datasets: list[str] = []

    def run_step(self) -> None:
        if not self.datasets or len(self.jobs) % self.jobs_per_dataset == self.jobs_per_dataset - 1:
            self.datasets.append(self.make_dataset())
        submitted = self.context.request_json("POST", "/v1/jobs", json=self.body(), headers=self.new_key())
        job = SubmittedJob(submitted["id"], self.datasets[-1])
        self.jobs.append(job)
        cancels_at = time.monotonic() + self.rng.uniform(0, 3) if self.rng.random() < 0.15 else None
        while not job.state:
            job_state = self.context.request_json("GET", f"/v1/jobs/{job.id}?wait=1")
            if job_state["finished_at"]:
                job.state = job_state["state"]
            elif cancels_at is not None and time.monotonic() > cancels_at:
                job.is_cancelled, cancels_at = True, None
                self.context.request_json("POST", f"/v1/jobs/{job.id}/cancel")
            elif job_state["progress"]["open_round_id"]:
                self.answer_round(job, job_state["progress"]["open_round_id"])

    def make_dataset(self) -> str:
        """Create a dataset and return its id."""
        body = {"name": self.name, "trust": self.trust, "features": self.features, "epsilon": 30}
        if self.trust == "local":
            body |= {"min_reports": 1, "keep_reports": True}
        return str(self.context.request_json("POST", "/v1/datasets", json=body, headers=self.new_key())["id"])

    def body(self) -> dict[str, Any]:
        """Return a job to submit."""
        return {
            "dataset_id": self.datasets[-1],
            "algorithm": self.rng.choice(LOCAL_JOBS),
            "target_reports": N_REPORTS,
            "allow_insufficient": True,
        }

    def answer_round(self, job: SubmittedJob, round_id: str) -> None:
        """Let devices report to the round in small groups until it is full."""
        if round_id in job.sent:
            return
        bucket_round = self.context.request_json("GET", f"/v1/rounds/{round_id}")
        spec = round_spec_from_wire(bucket_round["spec"])
        n = bucket_round["target_reports"]
        packed = packed_reports(spec, n, self.rng.getrandbits(40))
        width = len(packed) // n
        reports = [packed[at : at + width] for at in range(0, len(packed), width)]
        sent = job.sent.setdefault(round_id, set())
        acknowledged = job.acknowledged.setdefault(round_id, set())
        while reports:
            some, reports = reports[:20], reports[20:]
            sent.update(some)
            response = self.context.send(
                "POST",
                f"/v1/rounds/{round_id}/reports",
                content=b"".join(some),
                headers={"Content-Type": "application/octet-stream"},
            )
            if response.status_code == 202:
                acknowledged.update(some)
            elif response.json().get("code") == "round_closed":
                return
            else:
                self.context.wrong.append(f"reports returned {response.status_code} {response.text[:200]}")


class CentralAnalyst(Analyst):
    """An analyst that submits jobs on the records of a curator's dataset."""

    trust, features, jobs_per_dataset = "central", RECORD_FEATURES, 10**9

    def __init__(self, context: ClientContext, name: str, seed: str, curator: "Curator") -> None:
        super().__init__(context, name, seed)
        self.curator = curator

    def make_dataset(self) -> str:
        while not any(upload.is_acknowledged for upload in tuple(self.curator.uploads)):  # a job needs records
            if self.context.is_ending.wait(0.02):
                raise ClientStopped
        return self.curator.dataset_id

    def body(self) -> dict[str, Any]:
        return {"dataset_id": self.datasets[-1], "algorithm": self.rng.choice(CENTRAL_JOBS)}

    def run_step(self) -> None:
        if len(self.jobs) >= 100:  # the dataset's budget allows 100 jobs
            self.context.is_ending.wait(0.2)
            return
        super().run_step()
        self.context.is_ending.wait(0.1)


@dataclass
class RecordUpload:
    """An upload with records numbered from `first`."""

    first: int
    n_records: int
    is_acknowledged: bool = False


class Curator(Client):
    """A curator that uploads records in pieces, each record with its own number."""

    def __init__(self, context: ClientContext, name: str, seed: str) -> None:
        super().__init__(context, name, seed)
        self.dataset_id = ""
        self.uploads: list[RecordUpload] = []
        self._next = 0

    def run_step(self) -> None:
        if not self.dataset_id:
            body = {"name": self.name, "trust": "central", "features": RECORD_FEATURES, "epsilon": 30, "delta": 1e-6}
            body |= {"accounting": "gaussian"}
            self.dataset_id = self.context.request_json("POST", "/v1/datasets", json=body, headers=self.new_key())["id"]
        upload = RecordUpload(self._next, self.rng.choice([1, 50, 400]))
        self._next += upload.n_records
        self.uploads.append(upload)
        new_key = f"{CANARY}-{self.name}-{self.rng.randbytes(8).hex()}"

        def body() -> Iterator[bytes]:
            yield b"x,y,z,u,v\n"
            for begin in range(0, upload.n_records, 50):
                numbers = range(upload.first + begin, min(upload.first + begin + 50, upload.first + upload.n_records))
                yield b"".join(b"%d.5,0.25,0.5,0.5,0.5\n" % number for number in numbers)
                time.sleep(0.005)

        self.context.request_json(
            "POST",
            f"/v1/datasets/{self.dataset_id}/records",
            streamed=body,
            headers={"Content-Type": "text/csv", "Idempotency-Key": new_key},
        )
        upload.is_acknowledged = True
        self.context.is_ending.wait(self.rng.uniform(0, 0.2))


@dataclass
class ClientGroup:
    """All clients of one wave."""

    context: ClientContext
    devices: list[Devices]
    analysts: list[Analyst]
    curator: Curator
    central: CentralAnalyst

    @classmethod
    def create(cls, url: str, secret: str, seed: str) -> "ClientGroup":
        """Return clients that are not started."""
        context = ClientContext(url, secret)
        curator = Curator(context, "curator", seed)
        return cls(
            context,
            [Devices(context, f"devices{nth}", seed) for nth in range(2)],
            [Analyst(context, f"analyst{nth}", seed) for nth in range(2)],
            curator,
            CentralAnalyst(context, "central", seed, curator),
        )

    @property
    def all(self) -> list[Client]:
        return [*self.devices, *self.analysts, self.curator, self.central]

    def start(self) -> None:
        """Start all clients."""
        for client in self.all:
            client.start()

    def finish(self, deadline: float) -> list[str]:
        """Let all clients finish their work and start nothing new. Return those that do not finish until a time."""
        self.context.is_ending.set()
        for client in self.all:
            client.join(max(0.0, deadline - time.monotonic()))
        stuck = [client.name for client in self.all if client.is_alive()]
        self.context.is_stopped.set()
        for client in self.all:
            client.join(2 * TIMEOUT_SECONDS)
        return stuck
