"""Figures of recovery: a job continues, a kernel ends in time, and no charge is repeated.

Real processes run on SQLite, and on PostgreSQL with Redis. Each figure is compared with the measured time less the
machine's own delay, which is measured at the same time. `-s` prints both.
"""

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import select

from devservers.loopback import NO_TLS
from models.database.engine import Database
from models.identity import audit_trail, keys, tenants
from models.ledger import ledger
from models.tables.datasets import Dataset
from models.tables.identity import Scope
from models.tables.jobs import Job, JobState
from sfumato.privacy.accounting import NANO
from tests.faults.timings import Answered, Noise, Timing, describe, meet
from tests.service.api import UNIFORM, Api, stranger
from tests.service.processes import running
from tests.workers.collection import Collection
from tests.workers.processes import WorkerProcess, is_gone, worker
from tests.workers.toy import wait_for
from workers.supervisor import WATCH_SECONDS

LEASE_SECONDS = 2.0
RECOVERY_SECONDS = LEASE_SECONDS + 1.0  # from the end of a worker to the claim by another one
CHILD_SECONDS = 1.0  # the same if only the job process ended
CANCEL_SECONDS = 0.5  # from the response to the end of the job process and the job

N_SUBMITTERS = 200
N_FUNDED = 10


@pytest.fixture
def settings(database_url: str, database_kind: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the environment of every process: the database, and Redis if production has it."""
    own = {"SFUMATO_DATABASE_URL": database_url, "SFUMATO_RATE_PER_KEY": "0"}
    if database_kind == "postgresql":
        own["SFUMATO_REDIS_URL"] = request.getfixturevalue("redis_url")
    return own


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, pool_size=4)
    yield opened
    opened.close()


class Workers:
    """Two workers that run the test plan, and jobs that wait at its gate after their only round."""

    def __init__(self, started: ExitStack, scratch: Path, collection: Collection, settings: dict[str, str]) -> None:
        self._started, self._scratch, self._collection = started, scratch, collection
        self._settings = {name: value for name, value in settings.items() if name != "SFUMATO_DATABASE_URL"}
        self._settings["SFUMATO_LEASE_SECONDS"] = str(LEASE_SECONDS)
        self._database_url = settings["SFUMATO_DATABASE_URL"]
        self.gate = scratch / "gate"
        self.workers: list[WorkerProcess] = []

    def be_two(self, **toy: Any) -> None:
        """Begin those that are missing; returns when each has a computing process that waits for work."""
        fields = json.dumps({"draws": [[0.0, 1.0]], "gate": str(self.gate), **toy})
        while len(self.workers) < 2:
            log = self._scratch / f"worker-{time.monotonic_ns()}"
            self.workers.append(
                self._started.enter_context(worker(log, self._database_url, TOY=fields, **self._settings))
            )
        wait_for(lambda: all(map(is_ready, self.workers)))

    def mid_job(self) -> tuple[str, WorkerProcess, psutil.Process]:
        """A job that computes: its id, its worker, and the worker's computing process."""
        self.gate.unlink(missing_ok=True)
        self._marks.unlink(missing_ok=True)
        job_id = self._collection.submit(epsilon_nano=NANO // 4)
        self._collection.answer(wait_for(self._collection.find_open_round), 200)
        wait_for(lambda: self.n_reached() == 1)
        child = psutil.Process(int(self._marks.read_text()))
        (holder,) = [each for each in self.workers if each.pid == child.ppid()]
        return job_id, holder, child

    @property
    def _marks(self) -> Path:
        return Path(f"{self.gate}.reached")

    def n_reached(self) -> int:
        """Return the number of claims that have reached the gate."""
        return len(self._marks.read_text().splitlines()) if self._marks.exists() else 0

    def job(self, job_id: str) -> Job:
        return self._collection.job(job_id)


def is_ready(each: WorkerProcess) -> bool:
    """Whether its computing process waits for work, or did so once."""
    warm = {line["pid"] for line in each.logged("job_process_ready")}
    return any(child.pid in warm and not is_gone(child.pid) for child in psutil.Process(each.pid).children())


@pytest.fixture
def workers(database: Database, settings: dict[str, str], tmp_path: Path) -> Iterator[Workers]:
    with ExitStack() as started:
        yield Workers(started, tmp_path, Collection.create(database), settings)


class TestJobOfDeadWorker:
    """Measure from SIGKILL to the claim by another worker, and let the job end."""

    def measure(self, workers: Workers, turn: int, *, supervisor: bool) -> Timing:
        workers.be_two()
        job_id, holder, child = workers.mid_job()
        time.sleep(turn * 0.13 % (LEASE_SECONDS / 4))  # at different times between two renewals
        fence = workers.job(job_id).fence
        workers.gate.touch()
        with Noise() as noise:
            began = time.monotonic()
            if supervisor:
                holder.process.kill()
                workers.workers.remove(holder)
            else:
                child.kill()
            wait_for(lambda: workers.job(job_id).fence > fence + (not supervisor), every=0.005)
            seconds = time.monotonic() - began
        wait_for(lambda: workers.job(job_id).is_final)
        assert workers.job(job_id).state == JobState.SUCCEEDED
        assert workers.n_reached() == 2  # the job was repeated once
        assert is_gone(child.pid)
        return Timing(seconds, noise.seconds)

    @pytest.mark.release
    @pytest.mark.parametrize("n_times", [12])
    def test_it_is_claimed_within_its_lease_and_a_second(self, workers: Workers, n_times: int) -> None:
        timings = [self.measure(workers, turn, supervisor=True) for turn in range(n_times)]
        print(describe("recovery, supervisor killed", timings))
        assert all(timing.is_within(RECOVERY_SECONDS) for timing in timings), timings
        assert (
            statistics.median(timing.seconds for timing in timings) > LEASE_SECONDS / 2
        )  # not before the lease expired

    @pytest.mark.release
    @pytest.mark.parametrize("n_times", [12])
    def test_it_is_claimed_within_a_second_if_only_the_job_process_died(self, workers: Workers, n_times: int) -> None:
        timings = [self.measure(workers, turn, supervisor=False) for turn in range(n_times)]
        print(describe("recovery, computing process killed", timings))
        assert all(timing.is_within(CHILD_SECONDS) for timing in timings), timings


class TestCancelledKernel:
    @pytest.mark.release
    @pytest.mark.parametrize("n_times", [20])
    def test_the_kernel_and_its_job_end_within_half_a_second(
        self, workers: Workers, database: Database, settings: dict[str, str], tmp_path: Path, n_times: int
    ) -> None:
        timings, deaths = [], []
        with (
            running(tmp_path / "gateway", "gateway", "--port", "0", **settings) as gateway,
            httpx.Client(base_url=gateway.url(), timeout=60, verify=NO_TLS) as http,
        ):
            api = key_of(http, database, tenants.FIRST_TENANT)
            for turn in range(n_times):
                workers.be_two(spins=True)
                job_id, _, child = workers.mid_job()
                time.sleep(turn * 0.017 % WATCH_SECONDS)
                with Noise() as noise:
                    assert api.post(f"/jobs/{job_id}/cancel").status_code == 200
                    began = time.monotonic()
                    wait_for(lambda pid=child.pid: is_gone(pid), every=0.002)
                    dead_seconds = time.monotonic() - began
                    wait_for(lambda path=f"/jobs/{job_id}": api.get(path).json()["state"] == "canceled", every=0.002)
                    seconds = time.monotonic() - began
                deaths.append(Timing(dead_seconds, noise.seconds))
                timings.append(Timing(seconds, noise.seconds))
        print(describe("cancel, until the computing process is gone", deaths))
        print(describe("cancel, until the job is canceled too", timings))
        assert all(timing.is_within(CANCEL_SECONDS) for timing in timings), timings


class TestConcurrentReservations:
    @pytest.mark.parametrize(
        "n_times", [pytest.param(3, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.release)]
    )
    def test_ten_of_two_hundred_concurrent_jobs_reserve_a_budget_for_ten(
        self, database: Database, settings: dict[str, str], tmp_path: Path, n_times: int
    ) -> None:
        patient = settings | {"SFUMATO_DATABASE_WAIT_SECONDS": "300"}  # requests wait for the row lock
        with (
            running(tmp_path / "a", "gateway", "--port", "0", **patient) as first,
            running(tmp_path / "b", "gateway", "--port", "0", **patient) as second,
            httpx.Client(base_url=first.url(), timeout=60, verify=NO_TLS) as http,
        ):
            urls, seconds = [first.url(), second.url()], []
            for _ in range(n_times):
                began = time.monotonic()
                self.race(stranger(http, database), urls)
                seconds.append(time.monotonic() - began)
        print(f"{n_times} races, {min(seconds):.2f} to {max(seconds):.2f} s each")

    def race(self, api: Api, urls: list[str]) -> None:
        within = api.dataset(epsilon=N_FUNDED * UNIFORM["epsilon"])["id"]
        body = json.dumps({"dataset_id": within, "algorithm": UNIFORM, "target_reports": 1000}).encode()

        with ExitStack() as held:  # block the dataset until all requests have arrived
            session = held.enter_context(api.database.transaction())
            session.get_one(Dataset, within, with_for_update=True)
            answers = meet(urls, api.secret, "/v1/jobs", body, N_SUBMITTERS, released=held.close)

        assert max(each.sent_at for each in answers) < min(each.answered_at for each in answers)
        assert Counter(map(outcome, answers)) == {(202, ""): N_FUNDED, (409, "budget_exhausted"): 190}
        accepted = {json.loads(each.body)["id"] for each in answers if each.status == 202}
        with api.database.reading() as session:
            assert ledger.verify(session, within).ok
            entries = ledger.page(session, within, after_seq=0, limit=1000)
            balance = ledger.balance(session, within)
            owner = session.get_one(Dataset, within).tenant_id
            assert audit_trail.verify(session, owner).ok
            assert set(session.scalars(select(Job.id).where(Job.dataset_id == within))) == accepted
        assert [entry.kind for entry in entries] == ["grant"] + ["reserve"] * N_FUNDED
        assert {entry.reference for entry in entries[1:]} == accepted
        assert (balance.granted_nano, balance.reserved_nano, balance.charged_nano) == (10 * NANO, 10 * NANO, 0)


def outcome(answer: Answered) -> tuple[int, str]:
    """Status and problem code."""
    return answer.status, "" if answer.status == 202 else json.loads(answer.body)["code"]


def key_of(http: httpx.Client, database: Database, name: str) -> Api:
    """An admin key of this tenant."""
    with database.transaction() as session:
        now = database.clock()
        owner = tenants.get_or_create_tenant(session, name, now=now)
        _, secret = keys.create_key(session, owner.id, name="t", scopes=[Scope.ADMIN], now=now)
    return Api(http, database, secret)
