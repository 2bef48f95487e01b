"""The responses about a job over records depend on the records only through the charged noisy answers.

A job runs over no records, over one record and over thousands, each with a separate database and clock and with the
same noisy answers. Then a key without the scope `records` reads all resources, which must be identical to the byte.
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

from models.database.engine import Database
from models.database.types import SECOND
from models.jobs import claims
from models.tables.jobs import COARSE_MICROSECONDS, Job
from tests.service.api import UNIFORM, Api, unknown
from tests.workers.archive import KEYRING, RECORDS_KEY
from workers.central_job import JobJournal
from workers.job_runner import ClaimOutcome, run

MINUTE = 60 * SECOND
SUBMITTED = 1_800_000_000 * SECOND
GATED = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 3}
OF_THE_REQUEST = {"x-request-id", "ratelimit"}  # random, or depends on the requests of the key within the minute


# ---- the same job over other records ----


@dataclass
class Clock:
    """A clock that advances by a step at each reading."""

    now: int = SUBMITTED
    step: int = 0

    def __call__(self) -> int:
        self.now += self.step
        return self.now


@dataclass
class Numbers:
    """A counter in place of the random part of ids: 0, 1, 2, ..."""

    at: int = 0

    def randbits(self, _bits: int) -> int:
        self.at += 1
        return self.at


@dataclass
class Answers:
    """The noisy answers of the first run, repeated in all other runs. Remaining differences were not charged."""

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
class Visible:
    """All responses that a key without the scope `records` gets, and the log."""

    responses: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, response: httpx.Response) -> None:
        headers = {key: value for key, value in response.headers.items() if key not in OF_THE_REQUEST}
        body = response.content.replace(response.headers["x-request-id"].encode(), b"")
        self.responses[name] = (response.status_code, headers, body)


def records(n: int) -> list[list[float]]:
    """Return records around three points. Their shape depends on the number."""
    chance = np.random.default_rng(n)
    middles = np.array([[0.2, -0.6], [0.5, 0.1], [0.8, 0.7]])
    return (middles[np.arange(n) % 3] + chance.normal(0, 0.04, size=(n, 2))).tolist()


def read_everything(analyst: Api, ids: dict[str, str], visible: Visible) -> None:
    """Send every GET request and the other requests that the key permits."""
    paths = analyst.http.get("/openapi.json").json()["paths"]
    for path in sorted(path for path, methods in paths.items() if "get" in methods and path.startswith("/v1")):
        visible.add(path, analyst.get(path.removeprefix("/v1").format(**ids)))
    job, dataset = f"/jobs/{ids['job_id']}", ids["dataset_id"]
    visible.add("waited", analyst.get(f"{job}?wait=0.1"))
    visible.add("pages", analyst.get(f"/datasets/{dataset}/ledger?limit=1"))
    visible.add("cancel", analyst.post(f"{job}/cancel"))
    visible.add("assign", analyst.post(f"{job}/assign", {"points": [[0.2, -0.6], [0.8, 0.7]]}))
    for name, algorithm in (("local", UNIFORM), ("over", GATED | {"epsilon": 30.0}), ("again", GATED)):
        visible.add(name, analyst.post("/jobs", {"dataset_id": dataset, "algorithm": algorithm}))
    body = {"columns": ["x", "y"], "rows": [[0.1, 0.1]]}
    visible.add("upload", analyst.post(f"/datasets/{dataset}/records", body))
    visible.add("delete", analyst.delete(f"/datasets/{dataset}/records?all=true"))


@pytest.fixture
def run_job(
    over: Callable[..., Api], _sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Visible]:
    """Return `run_job(n_records, microseconds)`, which runs a job on a clock with this step.

    With `is_new`, the job draws its own noise instead of that of the first run.
    """
    answers = Answers()
    answers.install(monkeypatch)

    def run_job(n_records: int, microseconds: int, *, is_new: bool = False) -> Visible:
        path, clock, numbers = tmp_path / f"{n_records}{is_new}.db", Clock(), Numbers()
        if is_new:
            answers.given, answers.is_first = [], True
        copyfile(_sqlite_template, path)
        monkeypatch.setattr("models.database.types.secrets", numbers)
        monkeypatch.setattr("models.database.types.system_clock", clock)
        database = Database(f"sqlite:///{path}", clock=clock)
        admin = over(database, records_key=RECORDS_KEY)
        dataset_id = admin.dataset(trust="central", source="clinic")["id"]
        if n_records:
            admin.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "y"], "rows": records(n_records)})
        numbers.at = 1000  # an upload and its key have used some ids
        analyst, visible = admin.key("jobs", "datasets", "ledger"), Visible()
        with structlog.testing.capture_logs() as lines:
            job_id = analyst.made("/jobs", {"dataset_id": dataset_id, "algorithm": GATED})["id"]
            clock.step = microseconds
            with database.transaction() as session:
                claim = claims.claim(session, now=clock(), lease_microseconds=1 << 40, max_attempts=5)
            assert claim is not None
            assert run(database, claim, keyring=lambda: KEYRING) is ClaimOutcome.SUCCEEDED
            clock.step = 0
            clock.now = SUBMITTED + 50 * SECOND  # the analyst reads the result later
            prefixes = {
                "round_id": "rnd",
                "key_id": "key",
                "webhook_id": "whk",
                "delivery_id": "msg",
                "series_id": "ser",
                "cluster_id": "clu",
            }
            ids = {name: unknown(prefix) for name, prefix in prefixes.items()}
            ids |= {"dataset_id": dataset_id, "job_id": job_id, "source": "clinic"}
            read_everything(analyst, ids, visible)
        visible.lines = [{name: line[name] for name in line.keys() - {"request_id", "ms"}} for line in lines]
        answers.is_first = False
        database.close()
        return visible

    return run_job


class TestJobOverOtherRecords:
    @pytest.mark.slow
    def test_has_identical_responses_given_the_same_noisy_answers(self, run_job: Callable[..., Visible]) -> None:
        many = run_job(5000, 90_000)  # slow clock: many records
        assert many.responses["/v1/jobs/{job_id}/result"][0] == 200
        assert json.loads(many.responses["/v1/jobs/{job_id}/result"][2])["odometer"]
        assert many.responses["/v1/datasets/{dataset_id}/records"][0] == 403
        one = run_job(1, 50)
        for other in (run_job(0, 1), one):
            assert other.responses.keys() == many.responses.keys()
            for name, response in many.responses.items():
                assert other.responses[name] == response, name
            assert other.lines == many.lines
        # With other noise, the same job has other responses, so the comparison can fail.
        other = run_job(1, 1, is_new=True)
        assert one.responses.keys() == other.responses.keys()
        assert len(one.responses) >= 20
        changed = {name for name in one.responses if one.responses[name] != other.responses[name]}
        assert {"/v1/jobs/{job_id}/result"} <= changed
        of_result = {f"/v1/jobs/{{job_id}}/{name}" for name in ("result", "plot.svg", "plot.png")} | {"assign"}
        of_job = {"/v1/jobs", "/v1/jobs/{job_id}", "/v1/jobs/{job_id}/events", "waited", "cancel"}
        assert changed <= of_result | of_job  # a job states the verdict of its result


class TestTimes:
    def test_of_a_job_over_records_are_powers_of_two_of_a_minute(self) -> None:
        assert COARSE_MICROSECONDS == MINUTE
        job = Job(round_ids=[], target_reports=0, created_at=SUBMITTED)
        for seconds, minutes in ((0, 0), (59.9, 0), (60, 1), (119, 1), (120, 2), (239, 2), (1000, 16), (3599, 32)):
            assert job.public_time(SUBMITTED + int(seconds * SECOND)) == SUBMITTED + minutes * MINUTE
        assert job.public_time(SUBMITTED - 5) == SUBMITTED  # after the clock was set back

    @pytest.mark.parametrize("other", [{"target_reports": 1}, {"round_ids": ["rnd"]}])
    def test_of_a_local_job_are_exact(self, other: dict[str, Any]) -> None:
        job = Job(**{"round_ids": [], "target_reports": 0, "created_at": SUBMITTED} | other)
        assert job.public_time(SUBMITTED + 7) == SUBMITTED + 7

    def test_of_a_long_job_agree_in_job_result_ledger_and_ids(
        self, started: Callable[..., Api], database_url: str
    ) -> None:
        """The worker claims the job after 70 s and ends it after 200 s. The charges have the time of the start."""
        clock = Clock()
        api = started(records_key=RECORDS_KEY)
        database = Database(database_url, clock=clock)
        dataset_id = api.dataset(trust="central")["id"]
        job_id = api.key("jobs").made("/jobs", {"dataset_id": dataset_id, "algorithm": GATED})["id"]
        with database.transaction() as session:
            at = session.get_one(Job, job_id).created_at
            claim = claims.claim(session, now=at + 70 * SECOND, lease_microseconds=1 << 40, max_attempts=5)
        assert claim is not None
        clock.now = at + 200 * SECOND
        assert run(database, claim, keyring=lambda: KEYRING) is ClaimOutcome.SUCCEEDED
        database.close()
        job, result = api.get(f"/jobs/{job_id}").json(), api.get(f"/jobs/{job_id}/result").json()
        times = (job["started_at"], job["finished_at"], result["created_at"])
        assert [after(time, job) for time in times] == [60, 120, 120]
        entries = api.get(f"/datasets/{dataset_id}/ledger?order=oldest").json()["items"][1:]
        seconds = {"reserve": 0, "charge": 60, "release": 120}
        assert {entry["kind"] for entry in entries} >= {"reserve", "charge"}
        for entry in entries:
            assert after(entry["at"], job) == seconds[entry["kind"]]
            assert abs(time_in(entry["id"]) - at // 1000 - 1000 * seconds[entry["kind"]]) <= 1


def after(at: str, job: dict[str, Any]) -> float:
    """Return the seconds after the job's submission."""
    return float((np.datetime64(at[:-1]) - np.datetime64(job["created_at"][:-1])) / np.timedelta64(1, "s"))


def time_in(ulid: str) -> int:
    """Return the millisecond in an id."""
    value = 0
    for letter in ulid.rpartition("_")[2][:10]:
        value = 32 * value + "0123456789abcdefghjkmnpqrstvwxyz".index(letter)
    return value
