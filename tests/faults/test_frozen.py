"""Job processes that are stopped (SIGSTOP): other jobs of the dataset continue, and the stopped job is repeated."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from models.database.engine import Database
from models.tables.jobs import JobState
from models.tables.rounds import RoundState
from sfumato.privacy.accounting import NANO
from tests.faults.steps import CHILD_STEPS
from tests.workers.archive import RECORDS_KEY, Archive
from tests.workers.collection import Collection
from tests.workers.processes import is_gone, worker
from tests.workers.toy import wait_for

LEASE_SECONDS = 4.0
ROUND_STEPS = ("child.open", "child.opened", "child.aggregate", "child.count", "child.tally")
QUERY_STEPS = tuple(step for step in CHILD_STEPS if step not in ROUND_STEPS)
N_REPORTS = 200

on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url, wait_seconds=60)) as opened:
        yield opened


@contextmanager
def stepping_workers(url: str, scratch: Path) -> Iterator[None]:
    """Run workers with job processes that pause at the armed steps, and wait until they are ready."""
    scratch.joinpath("steps").mkdir()
    settings = {
        "FAULTS_DIRECTORY": scratch / "steps",
        "FAULTS_NAME": "worker",
        "SFUMATO_LEASE_SECONDS": LEASE_SECONDS,
        "SFUMATO_RECORDS_KEY": RECORDS_KEY,
    }
    with (
        worker(scratch / "first", url, module="tests.faults.stepping_worker", **settings) as first,
        worker(scratch / "second", url, module="tests.faults.stepping_worker", **settings) as second,
    ):
        for each in (first, second):
            each.wait_until_ready()
        yield


def arm(scratch: Path, step: str) -> None:
    (scratch / "steps" / f"arm.{step}").touch()


def freeze_at(scratch: Path, step: str) -> int:
    """Stop the job process that pauses at the step, and return its process id."""
    (paused,) = wait_for(lambda: list((scratch / "steps").glob(f"paused.{step}.*")))
    pid = int(paused.name.rpartition(".")[2])
    os.kill(pid, signal.SIGSTOP)
    paused.unlink()
    return pid


def run_job(archive: Archive) -> tuple[str, float]:
    """Run a job to its end. Return its id and its seconds."""
    began = time.monotonic()
    job_id = archive.submit()
    wait_for(lambda: archive.job(job_id).is_final)
    return job_id, time.monotonic() - began


@on_postgres
@pytest.mark.slow
class TestStoppedAtAStep:
    @pytest.mark.parametrize(
        "step",
        [pytest.param(each, marks=() if each == "child.charge" else pytest.mark.release) for each in QUERY_STEPS],
    )
    def test_of_a_central_job_delays_others_by_at_most_the_lease(
        self, database: Database, database_url: str, tmp_path: Path, step: str
    ) -> None:
        archive = Archive.create(database)
        with stepping_workers(database_url, tmp_path):
            _, undisturbed_seconds = run_job(archive)
            arm(tmp_path, step)
            stopped_job = archive.submit()
            pid = freeze_at(tmp_path, step)
            other_job, seconds = run_job(archive)
            assert seconds - undisturbed_seconds <= LEASE_SECONDS + 2
            wait_for(lambda: archive.job(stopped_job).is_final)
            wait_for(lambda: is_gone(pid))
        for job_id in (stopped_job, other_job):
            assert archive.job(job_id).state == JobState.SUCCEEDED
            archive.check(job_id)

    @pytest.mark.parametrize(
        "step", [pytest.param(each, marks=() if each == "child.open" else pytest.mark.release) for each in ROUND_STEPS]
    )
    def test_of_a_local_job_delays_others_by_at_most_the_lease(
        self, database: Database, database_url: str, tmp_path: Path, step: str
    ) -> None:
        collection = Collection.create(database)
        with stepping_workers(database_url, tmp_path):
            arm(tmp_path, step)
            stopped_job = collection.submit(epsilon_nano=NANO // 4)
            if step not in ("child.open", "child.opened"):
                collection.answer(wait_for(lambda: collection.rounds_of(stopped_job))[0], N_REPORTS)
            pid = freeze_at(tmp_path, step)
            began = time.monotonic()
            other_job = collection.submit(epsilon_nano=NANO // 4)
            wait_for(lambda: collection.rounds_of(other_job))
            assert time.monotonic() - began <= LEASE_SECONDS + 2
            wait_for(lambda: is_gone(pid))
            for job_id in (stopped_job, other_job):
                (own,) = wait_for(lambda job_id=job_id: collection.rounds_of(job_id))
                if own.state == RoundState.OPEN:
                    collection.answer(own, N_REPORTS)
                wait_for(lambda job_id=job_id: collection.job(job_id).is_final)
                job = collection.job(job_id)
                assert (job.state, job.error_code) == (JobState.SUCCEEDED, None)
        assert collection.balance().charged_nano == 2 * (NANO // 4)


@on_sqlite
@pytest.mark.slow
class TestHeartbeat:
    def test_an_idle_job_process_that_stops_is_replaced_and_costs_no_job_an_attempt(
        self, database: Database, database_url: str, tmp_path: Path
    ) -> None:
        collection = Collection.create(database)
        with worker(tmp_path / "log", database_url, SFUMATO_LEASE_SECONDS=LEASE_SECONDS, TOY='{"draws": []}') as one:
            one.wait_until_ready()
            stopped = one.child().pid
            os.kill(stopped, signal.SIGSTOP)
            wait_for(lambda: is_gone(stopped))
            job_id = collection.submit()
            wait_for(lambda: collection.job(job_id).is_final)
        assert (collection.job(job_id).state, collection.job(job_id).attempts) == (JobState.SUCCEEDED, 1)

    def test_a_pause_of_the_whole_worker_costs_no_job_an_attempt(
        self, database: Database, database_url: str, tmp_path: Path
    ) -> None:
        collection = Collection.create(database)
        with worker(tmp_path / "log", database_url, SFUMATO_LEASE_SECONDS=300, TOY='{"draws": []}') as one:
            one.wait_until_ready()
            family = [one.pid, one.child().pid]
            for order, seconds in ((signal.SIGSTOP, 6.0), (signal.SIGCONT, 2.0)):
                for pid in family:
                    os.kill(pid, order)
                time.sleep(seconds)
            assert one.child().pid == family[1]
            job_id = collection.submit()
            wait_for(lambda: collection.job(job_id).is_final)
        assert (collection.job(job_id).state, collection.job(job_id).attempts) == (JobState.SUCCEEDED, 1)
