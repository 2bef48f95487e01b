"""Seeded clients that go on whatever happens: each remembers what it sent and what it was told.

All do what the documents ask of a client: what was not answered is sent again, the same bytes under the
same id or key, until there is an answer. What must never be answered they write down as it comes.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from models.report import ID_BYTES
from sfumato.specs import round_spec_from_wire
from tests.workers.collection import packed_reports

PAUSE_SECONDS = 0.05
TIMEOUT_SECONDS = 20.0
PATIENCE_SECONDS = 240.0  # for what was begun to end, once everything runs again
CELLS = (128, 128)  # of a round whose every report is a bucket of its own
N_BUCKETS = CELLS[0] * CELLS[1]
VALUE_BYTES = 2  # of such a report
RECORD_SPAN = 1 << 20  # cells of the lattice: each record is one of its own
FEATURES = [{"name": "x", "lower": 0, "upper": 1}, {"name": "y", "lower": -5, "upper": 5}]
RECORD_FEATURES = [{"name": "x", "lower": 0, "upper": RECORD_SPAN}, {"name": "y", "lower": 0, "upper": 1}]
CANARY = "canary"  # begins every idempotency key of an upload: none of it may be logged
N_REPORTS = 60  # devices of a job
LOCAL_JOBS: list[dict[str, Any]] = [
    {"type": "shifted_grid", "epsilon": 2.0, "clusters": 2, "cells": 4, "shifts": 3},
    {"type": "uniform_grid", "epsilon": 2.0, "clusters": 2, "cells": 4},
    {"type": "adaptive_grid_iterative", "epsilon": 2.0, "clusters": 2, "passes": 3},
    {"type": "adaptive_grid_tree", "epsilon": 2.0, "clusters": 2, "height": 2},
    {"type": "grid_kmeans", "epsilon": 2.0, "clusters": 2, "cells": 4},
]
CENTRAL_JOBS: list[dict[str, Any]] = [
    {"type": "gated_grid_kmeans", "epsilon": 0.25, "clusters": 2},
    {"type": "dp_kmeans", "epsilon": 0.25, "clusters": 2},
    {"type": "dp_uniform_grid_kmeans", "epsilon": 0.25, "clusters": 2},
]


class Ended(Exception):
    """Nobody waits for the answer any more."""


@dataclass
class Line:
    """What all clients of a wave share: the address, whether to go on, what went wrong."""

    url: str
    secret: str
    patience_seconds: float
    has_to_end: threading.Event = field(default_factory=threading.Event)  # begin nothing new
    is_over: threading.Event = field(default_factory=threading.Event)  # give up what is under way
    wrong: list[str] = field(default_factory=list)
    n_requests: int = 0
    n_answered: int = 0
    n_resent: int = 0
    n_unavailable: int = 0

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer to a request that is sent again until there is one; raises Ended."""
        content: Callable[[], Any] | None = more.pop("streamed", None)
        headers = {"Authorization": f"Bearer {self.secret}", "Connection": "close", **more.pop("headers", {})}
        while not self.is_over.is_set():
            self.n_requests += 1
            body = {"content": content()} if content is not None else {}
            with suppress(httpx.TransportError):
                answer = httpx.request(
                    method, self.url + path, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False, **body, **more
                )
                if answer.status_code < 500:
                    self.n_answered += 1
                    return answer
                self.n_unavailable += 1
                self._check_refusal(method, path, answer)
            self.n_resent += 1
            time.sleep(PAUSE_SECONDS)
        raise Ended

    def _check_refusal(self, method: str, path: str, answer: httpx.Response) -> None:
        """Of 5xx there is one: unavailable, with a word on when to come back."""
        code = ""
        with suppress(ValueError, AttributeError):
            code = answer.json().get("code", "")
        if (answer.status_code, code) != (503, "unavailable") or not answer.headers.get("retry-after", "").isdigit():
            self.wrong.append(f"{method} {path} was answered {answer.status_code} {answer.text[:200]}")

    def made(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """The JSON of an answer that must be a success."""
        answer = self.ask(method, path, **more)
        if not answer.is_success:
            self.wrong.append(f"{method} {path} was answered {answer.status_code} {answer.text[:300]}")
            raise Ended
        found: dict[str, Any] = answer.json()
        return found


class Client(threading.Thread):
    """One client; `work` is called until it is told to end."""

    def __init__(self, line: Line, name: str, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.line, self.chance = line, random.Random(f"{seed} {name}")  # noqa: S311 - a schedule, not a secret
        self.doing = ""

    def key(self) -> dict[str, str]:
        """A new idempotency key."""
        return {"Idempotency-Key": f"{self.name}-{self.chance.randbytes(8).hex()}"}

    def run(self) -> None:
        try:
            while not self.line.has_to_end.is_set():
                self.work()
        except Ended:
            return
        except Exception as error:
            self.line.wrong.append(f"the client {self.name} fell over: {error!r}")

    def work(self) -> None:
        """One thing after another."""
        raise NotImplementedError


@dataclass
class Bucketed:
    """A round whose every report is a bucket of its own."""

    id: str
    sent: dict[int, bytes] = field(default_factory=dict)  # bucket -> packed report
    acknowledged: set[int] = field(default_factory=set)


class Devices(Client):
    """Devices that report to rounds of their own, each report another bucket, every so often one sent twice."""

    def __init__(self, line: Line, name: str, seed: str) -> None:
        super().__init__(line, name, seed)
        self.dataset_id = ""
        self.rounds: list[Bucketed] = []

    def work(self) -> None:
        if not self.rounds or self.chance.random() < 0.02:
            self._open()
        asked = self.rounds[-1]
        n = self.chance.choice([1, 1, 1, 1, 5, 20])
        first = len(asked.sent)
        if first + n > N_BUCKETS:
            self._open()
            return
        buckets = list(range(first, first + n))
        for bucket in buckets:
            asked.sent[bucket] = self.chance.randbytes(ID_BYTES) + bytes(4) + bucket.to_bytes(VALUE_BYTES, "little")
        again = list(self.chance.sample(sorted(asked.acknowledged), k=min(2, len(asked.acknowledged))))
        twice = again if self.chance.random() < 0.1 else []
        packed = b"".join(asked.sent[bucket] for bucket in buckets + twice)
        answer = self.line.ask(
            "POST",
            f"/v1/rounds/{asked.id}/reports",
            content=packed,
            headers={"Content-Type": "application/octet-stream"},
        )
        if answer.status_code == 202:
            asked.acknowledged.update(buckets)
        elif answer.json().get("code") == "round_closed":
            self._open()
        else:
            self.line.wrong.append(f"reports were answered {answer.status_code} {answer.text[:200]}")
        time.sleep(self.chance.uniform(0.02, 0.15))

    def _open(self) -> None:
        if not self.dataset_id or len(self.rounds) % 12 == 11:  # a dataset's budget bears so many rounds
            body = {"name": self.name, "trust": "local", "features": FEATURES, "epsilon": 30, "min_reports": 1}
            self.dataset_id = self.line.made("POST", "/v1/datasets", json=body, headers=self.key())["id"]
        if self.rounds and self.chance.random() < 0.3:
            self.line.made("POST", f"/v1/rounds/{self.rounds[-1].id}/close")
        body = {
            "encoding": {"type": "grid", "cells": list(CELLS)},
            "mechanism": "grr",
            "epsilon": 1.0,
            "target_reports": self.chance.randint(20, 200),
        }
        made = self.line.made("POST", f"/v1/datasets/{self.dataset_id}/rounds", json=body, headers=self.key())
        self.rounds.append(Bucketed(made["id"]))


@dataclass
class Submitted:
    """One job, and what came of it as far as its analyst was told."""

    id: str
    dataset_id: str
    state: str = ""
    is_cancelled: bool = False
    sent: dict[str, set[bytes]] = field(default_factory=dict)  # round -> packed reports
    acknowledged: dict[str, set[bytes]] = field(default_factory=dict)


class Analyst(Client):
    """Submits one job after another, has devices answer it, cancels some."""

    trust, features, most_jobs = "local", FEATURES, 12

    def __init__(self, line: Line, name: str, seed: str) -> None:
        super().__init__(line, name, seed)
        self.jobs: list[Submitted] = []
        self.datasets: list[str] = []

    def work(self) -> None:
        if not self.datasets or len(self.jobs) % self.most_jobs == self.most_jobs - 1:
            self.datasets.append(self.make_dataset())
        submitted = self.line.made("POST", "/v1/jobs", json=self.body(), headers=self.key())
        job = Submitted(submitted["id"], self.datasets[-1])
        self.jobs.append(job)
        cancels_at = time.monotonic() + self.chance.uniform(0, 3) if self.chance.random() < 0.15 else None
        while not job.state:
            seen = self.line.made("GET", f"/v1/jobs/{job.id}?wait=1")
            if seen["finished_at"]:
                job.state = seen["state"]
            elif cancels_at is not None and time.monotonic() > cancels_at:
                job.is_cancelled, cancels_at = True, None
                self.line.made("POST", f"/v1/jobs/{job.id}/cancel")
            elif seen["progress"]["open_round_id"]:
                self.answer(job, seen["progress"]["open_round_id"])

    def make_dataset(self) -> str:
        """A new one's id."""
        body = {"name": self.name, "trust": self.trust, "features": self.features, "epsilon": 30}
        if self.trust == "local":
            body |= {"min_reports": 1, "keep_reports": True}
        return str(self.line.made("POST", "/v1/datasets", json=body, headers=self.key())["id"])

    def body(self) -> dict[str, Any]:
        """A job to submit."""
        return {
            "dataset_id": self.datasets[-1],
            "algorithm": self.chance.choice(LOCAL_JOBS),
            "target_reports": N_REPORTS,
            "allow_insufficient": True,
        }

    def answer(self, job: Submitted, round_id: str) -> None:
        """Devices answer the round, a few at a time, until it is full."""
        if round_id in job.sent:
            return
        asked = self.line.made("GET", f"/v1/rounds/{round_id}")
        spec = round_spec_from_wire(asked["spec"])
        n = asked["target_reports"]
        packed = packed_reports(spec, n, self.chance.getrandbits(40))
        width = len(packed) // n
        reports = [packed[at : at + width] for at in range(0, len(packed), width)]
        sent = job.sent.setdefault(round_id, set())
        acknowledged = job.acknowledged.setdefault(round_id, set())
        while reports:
            some, reports = reports[:20], reports[20:]
            sent.update(some)
            answer = self.line.ask(
                "POST",
                f"/v1/rounds/{round_id}/reports",
                content=b"".join(some),
                headers={"Content-Type": "application/octet-stream"},
            )
            if answer.status_code == 202:
                acknowledged.update(some)
            elif answer.json().get("code") == "round_closed":
                return
            else:
                self.line.wrong.append(f"reports were answered {answer.status_code} {answer.text[:200]}")


class CentralAnalyst(Analyst):
    """Submits jobs over the records of a curator's dataset."""

    trust, features, most_jobs = "central", RECORD_FEATURES, 10**9

    def __init__(self, line: Line, name: str, seed: str, curator: "Curator") -> None:
        super().__init__(line, name, seed)
        self.curator = curator

    def make_dataset(self) -> str:
        while not self.curator.dataset_id:
            if self.line.has_to_end.wait(0.02):
                raise Ended
        return self.curator.dataset_id

    def body(self) -> dict[str, Any]:
        return {"dataset_id": self.datasets[-1], "algorithm": self.chance.choice(CENTRAL_JOBS)}

    def work(self) -> None:
        if len(self.jobs) >= 100:  # as many as the dataset's budget bears
            self.line.has_to_end.wait(0.2)
            return
        super().work()
        self.line.has_to_end.wait(0.1)


@dataclass
class Uploaded:
    """One upload: its records are the numbers from `first` on."""

    first: int
    n_records: int
    is_acknowledged: bool = False


class Curator(Client):
    """Uploads records piece by piece, each record a number of its own."""

    def __init__(self, line: Line, name: str, seed: str) -> None:
        super().__init__(line, name, seed)
        self.dataset_id = ""
        self.uploads: list[Uploaded] = []
        self._next = 0

    def work(self) -> None:
        if not self.dataset_id:
            body = {"name": self.name, "trust": "central", "features": RECORD_FEATURES, "epsilon": 30}
            self.dataset_id = self.line.made("POST", "/v1/datasets", json=body, headers=self.key())["id"]
        upload = Uploaded(self._next, self.chance.choice([1, 50, 400]))
        self._next += upload.n_records
        self.uploads.append(upload)
        key = f"{CANARY}-{self.name}-{self.chance.randbytes(8).hex()}"

        def body() -> Iterator[bytes]:
            yield b"x,y\n"
            for begin in range(0, upload.n_records, 50):
                numbers = range(upload.first + begin, min(upload.first + begin + 50, upload.first + upload.n_records))
                yield b"".join(b"%d.5,0.25\n" % number for number in numbers)
                time.sleep(0.005)

        self.line.made(
            "POST",
            f"/v1/datasets/{self.dataset_id}/records",
            streamed=body,
            headers={"Content-Type": "text/csv", "Idempotency-Key": key},
        )
        upload.is_acknowledged = True
        self.line.has_to_end.wait(self.chance.uniform(0, 0.2))


@dataclass
class Crowd:
    """All clients of one wave."""

    line: Line
    devices: list[Devices]
    analysts: list[Analyst]
    curator: Curator
    central: CentralAnalyst

    @classmethod
    def of(cls, url: str, secret: str, seed: str) -> "Crowd":
        """Clients that have not begun."""
        line = Line(url, secret, PATIENCE_SECONDS)
        curator = Curator(line, "curator", seed)
        return cls(
            line,
            [Devices(line, f"devices{nth}", seed) for nth in range(2)],
            [Analyst(line, f"analyst{nth}", seed) for nth in range(2)],
            curator,
            CentralAnalyst(line, "central", seed, curator),
        )

    @property
    def all(self) -> list[Client]:
        return [*self.devices, *self.analysts, self.curator, self.central]

    def start(self) -> None:
        """Begin."""
        for client in self.all:
            client.start()

    def settle(self) -> None:
        """Have everybody end what is under way and begin nothing new; who cannot is written down."""
        self.line.has_to_end.set()
        deadline = time.monotonic() + self.line.patience_seconds
        for client in self.all:
            client.join(max(0.0, deadline - time.monotonic()))
        stuck = [client.name for client in self.all if client.is_alive()]
        if stuck:
            self.line.wrong.append(f"not answered within {self.line.patience_seconds:g} s: {', '.join(stuck)}")
        self.line.is_over.set()
        for client in self.all:
            client.join(2 * TIMEOUT_SECONDS)
