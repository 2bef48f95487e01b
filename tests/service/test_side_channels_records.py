"""A job over records looks the same whatever they are, to the byte, but for what was paid for.

One job runs over no records, over one, and over thousands, each on a database and a clock of its
own, with the same noisy answers; then a key without the scope `records` looks at all there is to see.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile
from typing import Any

import httpx
import numpy as np
import pytest
import structlog

from models import job as jobs
from models.db import SECOND, Database
from models.job import COARSE, Job
from tests.service.api import UNIFORM, Api, unknown
from tests.workers.archive import KEYRING, RECORDS_KEY
from workers.central import JobJournal
from workers.runner import Outcome, run

MINUTE = 60 * SECOND
SUBMITTED = 1_800_000_000 * SECOND
GATED = {"type": "gated_grid_kmeans", "epsilon": 1.0, "clusters": 3}
OF_THE_REQUEST = {"x-request-id", "ratelimit"}  # random; how often the key asked within the minute


# ---- the same job over other records ----


@dataclass
class Clock:
    """Stands at a time, and goes on by a step whenever somebody looks."""

    now: int = SUBMITTED
    step: int = 0

    def __call__(self) -> int:
        self.now += self.step
        return self.now


@dataclass
class Numbers:
    """In place of the random part of ids: 0, 1, 2, ..."""

    at: int = 0

    def randbits(self, _bits: int) -> int:
        self.at += 1
        return self.at


@dataclass
class Answers:
    """The noisy answers of the first run, which every other is told: what differs then was never paid for."""

    given: list[Any] = field(default_factory=list)
    is_first: bool = True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        charge, keep = JobJournal.charge, JobJournal.keep

        def charged(journal: JobJournal, index: int, *question: Any) -> Any:
            before = charge(journal, index, *question)
            assert before is None
            return None if self.is_first else self.given[index]

        def kept(journal: JobJournal, index: int, noisy: Any) -> None:
            keep(journal, index, noisy)
            self.given.append(noisy)

        monkeypatch.setattr(JobJournal, "charge", charged)
        monkeypatch.setattr(JobJournal, "keep", kept)


@dataclass
class Seen:
    """All that a key without the scope `records` sees of a world, and what the log says."""

    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, answer: httpx.Response) -> None:
        headers = {key: value for key, value in answer.headers.items() if key not in OF_THE_REQUEST}
        body = answer.content.replace(answer.headers["x-request-id"].encode(), b"")
        self.answers[name] = (answer.status_code, headers, body)


def records(n: int) -> list[list[float]]:
    """About three places; of other shapes for other numbers."""
    chance = np.random.default_rng(n)
    middles = np.array([[0.2, -0.6], [0.5, 0.1], [0.8, 0.7]])
    return (middles[np.arange(n) % 3] + chance.normal(0, 0.04, size=(n, 2))).tolist()


def look(analyst: Api, ids: dict[str, str], seen: Seen) -> None:
    """Every GET there is, and what a key may ask beside."""
    paths = analyst.http.get("/openapi.json").json()["paths"]
    for path in sorted(path for path, methods in paths.items() if "get" in methods and path.startswith("/v1")):
        seen.add(path, analyst.get(path.removeprefix("/v1").format(**ids)))
    job, dataset = f"/jobs/{ids['job_id']}", ids["dataset_id"]
    seen.add("waited", analyst.get(f"{job}?wait=0.1"))
    seen.add("pages", analyst.get(f"/datasets/{dataset}/ledger?limit=1"))
    seen.add("cancel", analyst.post(f"{job}/cancel"))
    seen.add("assign", analyst.post(f"{job}/assign", {"points": [[0.2, -0.6], [0.8, 0.7]]}))
    for name, algorithm in (("local", UNIFORM), ("over", GATED | {"epsilon": 30.0}), ("again", GATED)):
        seen.add(name, analyst.post("/jobs", {"dataset_id": dataset, "algorithm": algorithm}))
    seen.add("upload", analyst.post(f"/datasets/{dataset}/records", {"columns": ["x", "y"], "rows": [[0.1, 0.1]]}))
    seen.add("delete", analyst.request("DELETE", f"/datasets/{dataset}/records"))


@pytest.fixture
def seen_over(
    over: Callable[..., Api],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Seen]:
    """`seen_over(n_records, microseconds)`: what is seen of a job over so many, so long between looks at the clock.

    `anew`: with noise of its own, not the first run's.
    """
    answers = Answers()
    answers.install(monkeypatch)
    template = request.getfixturevalue("_sqlite_template")

    def see(n_records: int, microseconds: int, *, anew: bool = False) -> Seen:
        path, clock, numbers, seen = tmp_path / f"{n_records}{anew}.db", Clock(), Numbers(), Seen()
        if anew:
            answers.given, answers.is_first = [], True
        copyfile(template, path)
        monkeypatch.setattr("models.db.secrets", numbers)
        monkeypatch.setattr("models.db.system_clock", clock)
        database = Database(f"sqlite:///{path}", clock=clock)
        admin = over(database, records_key=RECORDS_KEY)
        dataset_id = admin.dataset(trust="central")["id"]
        if n_records:
            admin.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "y"], "rows": records(n_records)})
        numbers.at = 1000  # an upload and its key have taken some
        analyst = admin.key("jobs", "datasets", "ledger")
        with structlog.testing.capture_logs() as lines:
            job_id = analyst.made("/jobs", {"dataset_id": dataset_id, "algorithm": GATED})["id"]
            clock.step = microseconds
            with database.transaction() as session:
                held = jobs.claim(session, now=clock(), lease_microseconds=1 << 40, max_attempts=5)
            assert held is not None
            assert run(database, held, keyring=lambda: KEYRING) is Outcome.SUCCEEDED
            clock.step = 0
            clock.now = SUBMITTED + 50 * SECOND  # somebody looks later
            ids = {"dataset_id": dataset_id, "job_id": job_id}
            others = {"round_id": "rnd", "key_id": "key", "webhook_id": "whk", "delivery_id": "msg"}
            ids |= {name: unknown(prefix) for name, prefix in others.items()}
            look(analyst, ids, seen)
        seen.lines = [
            {name: value for name, value in line.items() if name not in ("request_id", "ms")} for line in lines
        ]
        answers.is_first = False
        database.close()
        return seen

    return see


class TestAJobOverOtherRecords:
    def test_looks_the_same_to_the_byte_where_its_noisy_answers_are_the_same(
        self, seen_over: Callable[..., Seen]
    ) -> None:
        many = seen_over(5000, 90_000)  # slow: so many of them
        assert many.answers["/v1/jobs/{job_id}/result"][0] == 200
        assert json.loads(many.answers["/v1/jobs/{job_id}/result"][2])["odometer"]
        assert many.answers["/v1/datasets/{dataset_id}/records"][0] == 403
        for other in (seen_over(0, 1), seen_over(1, 50)):
            assert other.answers.keys() == many.answers.keys()
            for name, answer in many.answers.items():
                assert other.answers[name] == answer, name
            assert other.lines == many.lines

    def test_but_for_what_was_paid_for(self, seen_over: Callable[..., Seen]) -> None:
        """The test above has something to find: with noise of its own, the same job over the same looks otherwise."""
        once, again = seen_over(1, 1), seen_over(1, 1, anew=True)
        assert once.answers.keys() == again.answers.keys()
        assert len(once.answers) >= 20
        other = {name for name in once.answers if once.answers[name] != again.answers[name]}
        assert {"/v1/jobs/{job_id}/result"} <= other
        drawn = {f"/v1/jobs/{{job_id}}/{name}" for name in ("result", "plot.svg", "plot.png")}
        assert other <= drawn | {"assign"}


class TestTimes:
    @pytest.mark.parametrize(
        ("seconds", "minutes"), [(0, 0), (59.9, 0), (60, 1), (119, 1), (120, 2), (239, 2), (1000, 16), (3599, 32)]
    )
    def test_of_a_job_over_records_are_powers_of_two_of_a_minute(self, seconds: float, minutes: int) -> None:
        job = Job(round_ids=[], target_reports=0, created_at=SUBMITTED)
        assert job.told(SUBMITTED + int(seconds * SECOND)) == SUBMITTED + minutes * COARSE
        assert COARSE == MINUTE

    @pytest.mark.parametrize("other", [{"target_reports": 1}, {"round_ids": ["rnd"]}])
    def test_of_a_local_job_are_told_as_they_are(self, other: dict[str, Any]) -> None:
        job = Job(**{"round_ids": [], "target_reports": 0, "created_at": SUBMITTED} | other)
        assert job.told(SUBMITTED + 7) == SUBMITTED + 7

    def test_of_a_clock_that_was_set_back_are_no_earlier_than_the_submission(self) -> None:
        job = Job(round_ids=[], target_reports=0, created_at=SUBMITTED)
        assert job.told(SUBMITTED - 5) == SUBMITTED

    def test_of_a_long_job_stand_alike_in_job_result_ledger_and_ids(
        self, started: Callable[..., Api], database_url: str
    ) -> None:
        """Claimed after 70 s, done after 200: its questions carry its start, its end is told once."""
        clock = Clock()
        api = started(records_key=RECORDS_KEY)
        database = Database(database_url, clock=clock)
        dataset_id = api.dataset(trust="central")["id"]
        created = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": GATED})
        with database.transaction() as session:
            at = session.get_one(Job, created["id"]).created_at
            held = jobs.claim(session, now=at + 70 * SECOND, lease_microseconds=1 << 40, max_attempts=5)
        assert held is not None
        clock.now = at + 200 * SECOND
        assert run(database, held, keyring=lambda: KEYRING) is Outcome.SUCCEEDED
        database.close()
        job = api.get(f"/jobs/{created['id']}").json()
        result = api.get(f"/jobs/{created['id']}/result").json()
        entries = api.get(f"/datasets/{dataset_id}/ledger").json()["items"][1:]
        started_at, finished_at = after(job["started_at"], job), after(job["finished_at"], job)
        assert (started_at, finished_at, after(result["created_at"], job)) == (60, 120, 120)
        kinds = {"reserve": 0, "post": 60, "release": 120}
        assert {e["kind"] for e in entries} >= {"reserve", "post"}
        for entry in entries:
            assert after(entry["at"], job) == kinds[entry["kind"]]
            assert abs(written_in(entry["id"]) - at // 1000 - 1000 * kinds[entry["kind"]]) <= 1


def after(at: str, job: dict[str, Any]) -> float:
    """Seconds after the job's submission."""
    return float((np.datetime64(at[:-1]) - np.datetime64(job["created_at"][:-1])) / np.timedelta64(1, "s"))


def written_in(ulid: str) -> int:
    """The millisecond an id tells."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    value = 0
    for letter in ulid.rpartition("_")[2][:10]:
        value = 32 * value + alphabet.index(letter)
    return value
