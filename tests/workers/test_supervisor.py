"""Real workers under real signals: what is killed is taken up again, and runs to one right result."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy.exc import SQLAlchemyError

from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import canonical_json
from models.jobs import lifecycle
from models.tables.jobs import JobState
from models.tables.rounds import Round, RoundState
from runtime.job_signal import RedisJobSignal
from runtime.settings import Settings
from sfumato.privacy.accounting import NANO
from tests.databases import on_both_databases
from tests.servers import PostgresServer
from tests.workers.collection import Collection
from tests.workers.driving import grid_spec
from tests.workers.processes import ROOT, is_gone, seconds_until, worker
from tests.workers.toy import PATIENCE_SECONDS, Toy, wait_for
from workers import supervisor as supervisors
from workers.supervisor import Supervisor

ONE_ROUND = [[0.0, 1.0]]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file the toy plan waits for."""
    return tmp_path / "gate"


@pytest.fixture
def toy(gate: Path) -> str:
    """A plan of one round that then waits until the gate opens."""
    return json.dumps({"draws": ONE_ROUND, "gate": str(gate)})


def n_reached(gate: Path) -> int:
    """Return the number of claims that have reached the gate."""
    marks = Path(f"{gate}.reached")
    return len(marks.read_text().splitlines()) if marks.exists() else 0


def collect_one_round(collection: Collection, *, n: int = 200) -> str:
    """Submit a job and report to its round; its worker then continues."""
    job_id = collection.submit(epsilon_nano=NANO // 4)
    asked = wait_for(collection.find_open_round)
    collection.answer(asked, n)
    return job_id


def is_final(collection: Collection, job_id: str) -> Callable[[], bool]:
    return lambda: collection.job(job_id).is_final


def assert_right(collection: Collection, job_id: str) -> None:
    """One result, the very one an undisturbed worker gives, for the price of one round."""
    assert collection.job(job_id).state == JobState.SUCCEEDED
    (own,) = collection.rounds_of(job_id)
    assert collection.balance().charged_nano == own.epsilon_nano
    assert collection.document(job_id)["rounds"][0]["n_reports"] == 200
    assert canonical_json(collection.document(job_id)["model"]) == undisturbed_model(collection.database, own)


def undisturbed_model(database: Database, own: Round) -> str:
    from clustering.rounds.law import checking_law
    from clustering.rounds.outside import counting_outside
    from clustering.rounds.plan import Collected, drive
    from clustering.rounds.tally import Tally

    with database.reading() as session:
        tally = Tally.from_bytes(session.get_one(Round, own.id).tally or b"")
    plan = Toy(draws=((0.0, 1.0),))(None, own.spec.features, 200)  # type: ignore[arg-type]
    plan = checking_law(counting_outside(plan, opens_counting=True))
    return canonical_json(drive(plan, lambda _: Collected(own.spec, tally)).to_wire())


@pytest.mark.slow
class TestKilled:
    @on_both_databases
    def test_a_child_killed_in_mid_job_is_replaced_and_the_job_resumes_at_once(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=300) as running:
            job_id = collect_one_round(collection)
            wait_for(lambda: n_reached(gate) == 1)
            gate.touch()
            running.child().send_signal(signal.SIGKILL)
            wait_for(is_final(collection, job_id))  # long before the lease of 300 s
            assert n_reached(gate) == 2
            assert_right(collection, job_id)

    @on_both_databases
    def test_a_supervisor_killed_takes_its_child_along_and_another_resumes_when_the_lease_lapses(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        lease = 4.0  # a holder that has to wait for its turn keeps it
        with (
            worker(tmp_path / "first", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=lease) as first,
            worker(tmp_path / "second", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=lease) as second,
        ):
            first.wait_until_ready()
            second.wait_until_ready()
            job_id = collect_one_round(collection)
            wait_for(lambda: n_reached(gate) == 1)
            child = int(Path(f"{gate}.reached").read_text())
            holder = first if first.child().pid == child else second
            gate.touch()
            holder.send(signal.SIGKILL)
            wait_for(lambda: is_gone(child))  # it would sleep for an hour
            wait_for(is_final(collection, job_id))
            assert n_reached(gate) == 2
            assert_right(collection, job_id)

    def test_a_job_that_kills_every_worker_is_given_up(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_MAX_ATTEMPTS=2) as running:
            job_id = collect_one_round(collection)
            for attempt in (1, 2):
                wait_for(lambda attempt=attempt: n_reached(gate) == attempt)
                running.child().send_signal(signal.SIGSEGV)
            wait_for(is_final(collection, job_id))
            job = collection.job(job_id)
            assert (job.state, job.error_code) == (JobState.FAILED, "worker_lost")
            assert collection.balance().reserved_nano == 0
            assert running.process.poll() is None

    def test_a_child_that_dies_idle_costs_no_job_an_attempt(
        self, collection: Collection, database_url: str, tmp_path: Path
    ) -> None:
        toy = json.dumps({"draws": []})
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_MAX_ATTEMPTS=1) as running:
            running.wait_until_ready()
            idle = running.child()
            idle.kill()
            wait_for(lambda: is_gone(idle.pid))  # otherwise the supervisor may still give it the job
            job_id = collection.submit()
            wait_for(is_final(collection, job_id))
            assert collection.job(job_id).state == JobState.SUCCEEDED
            assert collection.job(job_id).attempts == 1


@pytest.mark.slow
class TestStopped:
    def test_a_worker_told_to_stop_hands_its_job_to_another_at_once(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        with worker(tmp_path / "first", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=300) as first:
            job_id = collect_one_round(collection)
            wait_for(lambda: n_reached(gate) == 1)
            child = first.child().pid
            first.send(signal.SIGTERM)
            assert first.process.wait(PATIENCE_SECONDS) == 0
            assert is_gone(child)
            assert (collection.job(job_id).state, collection.job(job_id).attempts) == (JobState.RUNNING, 0)
        gate.touch()
        with worker(tmp_path / "second", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=300) as second:
            wait_for(is_final(collection, job_id))  # long before the lease of 300 s
            second.send(signal.SIGINT)
            assert second.process.wait(PATIENCE_SECONDS) == 0
        assert_right(collection, job_id)

    def test_a_worker_may_finish_its_job_and_takes_no_other(
        self, collection: Collection, database_url: str, tmp_path: Path
    ) -> None:
        slow = json.dumps({"draws": ONE_ROUND, "pause_seconds": 3.0})
        with worker(tmp_path / "log", database_url, TOY=slow, SFUMATO_WORKER_DRAIN_SECONDS=300) as draining:
            job_id = collect_one_round(collection)
            wait_for(lambda: len(draining.logged("job_claimed")) == 2)
            other = collection.submit()
            draining.send(signal.SIGTERM)
            assert draining.process.wait(PATIENCE_SECONDS) == 0
        assert_right(collection, job_id)
        assert collection.job(other).state == JobState.QUEUED

    def test_a_second_signal_ends_the_wait_for_a_job(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_WORKER_DRAIN_SECONDS=300) as draining:
            job_id = collect_one_round(collection)
            wait_for(lambda: n_reached(gate) == 1)
            draining.send(signal.SIGTERM)
            time.sleep(0.5)
            draining.send(signal.SIGTERM)
            assert draining.process.wait(PATIENCE_SECONDS) == 0
        assert (collection.job(job_id).state, collection.job(job_id).attempts) == (JobState.RUNNING, 0)

    def test_a_worker_ends_with_the_process_that_started_it(
        self, collection: Collection, database_url: str, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        starter = (
            "import subprocess, sys, time\n"
            "command = [sys.executable, '-m', 'tests.workers.toy_worker']\n"
            "worker = subprocess.Popen(command, stderr=open(sys.argv[1], 'wb'))\n"
            "print(worker.pid, flush=True)\n"
            "time.sleep(600)\n"
        )
        environment = os.environ | {"SFUMATO_DATABASE_URL": database_url, "SFUMATO_DIE_WITH_PARENT": "1"}
        environment["SFUMATO_WARM_KERNELS"] = "false"
        with subprocess.Popen(
            [sys.executable, "-c", starter, str(log)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            wait_for(lambda: "job_process_ready" in log.read_text())
            family = [pid, *(p.pid for p in psutil.Process(pid).children())]
            parent.kill()
        wait_for(lambda: all(is_gone(member) for member in family))
        assert "worker_stopped" in log.read_text()

    def test_a_worker_whose_parent_is_gone_already_does_not_begin(self, tmp_path: Path) -> None:
        nobody = subprocess.Popen(["true"])
        nobody.wait()
        environment = os.environ | {"SFUMATO_HOME": str(tmp_path), "SFUMATO_DIE_WITH_PARENT": str(nobody.pid)}
        done = subprocess.run([sys.executable, "-m", "workers"], cwd=ROOT, env=environment, check=False)
        assert done.returncode == 1
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
class TestLetGo:
    @on_both_databases
    def test_a_cancelled_job_stops_computing_at_the_next_look(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path
    ) -> None:
        """It does not wait for the next renewal, which is half a minute away."""
        assert supervisors.WATCH_SECONDS <= 0.25
        toy = json.dumps({"draws": ONE_ROUND, "gate": str(gate), "spins": True})
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=120) as running:
            job_id = collect_one_round(collection)
            wait_for(lambda: n_reached(gate) == 1)
            child = running.child()
            with collection.database.transaction() as session:
                lifecycle.cancel(session, collection.caller, job_id, now=collection.database.clock())
            assert seconds_until(lambda: is_gone(child.pid)) < 15
            wait_for(is_final(collection, job_id))
            assert collection.job(job_id).state == JobState.CANCELED
            balance = collection.balance()
            assert (balance.reserved_nano, balance.charged_nano) == (0, collection.rounds_of(job_id)[0].epsilon_nano)
            gate.touch()
            wait_for(is_final(collection, collect_one_round(collection)))  # the worker continues

    def test_a_job_past_its_deadline_fails_and_the_next_one_runs(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_JOB_SECONDS=10):
            job_id = collect_one_round(collection)
            wait_for(is_final(collection, job_id))
            job = collection.job(job_id)
            assert (job.state, job.error_code) == (JobState.FAILED, "deadline_exceeded")
            assert job.error_detail is not None
            assert job.error_detail.startswith("the job computed for longer than 10 s")
            assert "SFUMATO_JOB_SECONDS" in job.error_detail
            gate.touch()
            after = collect_one_round(collection)
            wait_for(is_final(collection, after))
            assert collection.job(after).state == JobState.SUCCEEDED

    def test_a_worker_that_lost_its_lease_while_it_was_frozen_kills_its_child_and_writes_nothing(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        with worker(tmp_path / "first", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=1) as first:
            job_id = collect_one_round(collection)
            wait_for(lambda: n_reached(gate) == 1)
            child = first.child()
            first.freeze(str(collection.database.engine.url.database))
            gate.touch()
            with worker(tmp_path / "second", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=1):
                wait_for(is_final(collection, job_id))
            assert child.is_running()
            first.send(signal.SIGCONT)
            (killed,) = wait_for(lambda: first.logged("job_process_killed"))
            assert killed["reason"] == "lost"
            assert is_gone(child.pid)
        assert_right(collection, job_id)


class RecordingPublisher:
    """Records the published ids, and the state of the job at that time."""

    is_available = True

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.published: list[tuple[tuple[str, ...], str]] = []

    def publish(self, *ids: str) -> None:
        self.published.append((ids, self._collection.job(ids[0]).state))

    def wait(self, n_published: int) -> tuple[list[tuple[str, ...]], list[str]]:
        """Wait for this number of messages. Return their ids and the states, and forget them."""
        wait_for(lambda: len(self.published) >= n_published)
        ids, states = zip(*self.published, strict=True)
        self.published = []
        return list(ids), list(states)


class TestIdleWorker:
    def test_recovers_from_an_outage_wakes_at_a_signal_and_publishes_changes(
        self, collection: Collection, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Run a supervisor in a thread, with a real job process."""
        monkeypatch.setattr(supervisors, "POLL_SECONDS", 100.0)  # only a signal wakes the supervisor
        monkeypatch.setattr(supervisors, "ANNOUNCE_SECONDS", 0.03)
        n_attempts = 0

        def refuse() -> None:
            nonlocal n_attempts
            n_attempts += 1
            raise SQLAlchemyError("away")

        settings, database = Settings(database_url=database_url, warm_kernels=False), Database(database_url)
        transaction, publisher = database.transaction, RecordingPublisher(collection)
        monkeypatch.setattr(database, "transaction", refuse)
        job_signal, toy = RedisJobSignal(redis_url, 100.0), Toy(draws=(), pause_seconds=1.0)
        supervisor = Supervisor(settings, database, job_signal, start=toy, publisher=publisher)
        thread = threading.Thread(target=supervisor.run)
        thread.start()

        def run_job() -> str:
            job_id = collection.submit()
            sender.notify(job_id)
            assert seconds_until(is_final(collection, job_id)) < 50
            return job_id

        with closing(database):
            try:
                wait_for(lambda: n_attempts)
                time.sleep(2.0)
                assert n_attempts <= 8  # after 0.1, 0.3, 0.7 and 1.5 s
                monkeypatch.setattr(database, "transaction", transaction)
                sender = RedisJobSignal(redis_url, 100.0)
                job_id = run_job()
                ids, states = publisher.wait(2)
                assert ids == [(job_id,), (job_id, collection.dataset_id)]
                assert (states[0] != JobState.QUEUED, states[1]) == (True, JobState.SUCCEEDED)
                monkeypatch.setattr(supervisors, "ANNOUNCE_SECONDS", PATIENCE_SECONDS)
                job_id = run_job()  # ends before its start is announced
                assert publisher.wait(1) == ([(job_id, collection.dataset_id)], [JobState.SUCCEEDED])
            finally:
                supervisor.stop()
                job_signal.notify("stop")
                thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()

    def test_without_redis_polls_for_jobs_and_for_rounds_to_close_or_to_aggregate(
        self, collection: Collection, database_url: str, tmp_path: Path
    ) -> None:
        alone = collection.open_alone(grid_spec(), target_reports=50)
        opened = collection.get_open_round()
        collection.answer(opened, 50)
        expiring = collection.submit(target_reports=100, min_reports=10, seconds=1)
        away = {"TOY": json.dumps({"draws": ONE_ROUND}), "SFUMATO_REDIS_URL": "redis://127.0.0.1:1/0"}
        with worker(tmp_path / "log", database_url, **away) as running:
            wait_for(is_final(collection, expiring))
            job = collection.job(expiring)
            assert (job.state, job.error_code) == (JobState.EXPIRED, "too_few_reports")
            with collection.database.reading() as session:
                stored = session.get_one(Round, alone)
            assert (stored.state, stored.n_reports) == (RoundState.TALLIED, 50)
            wait_for(is_final(collection, collect_one_round(collection)))
            assert len(running.logged("job_signal_unavailable")) == 1
            assert running.logged("kernels_compiled") == []  # SFUMATO_WARM_KERNELS


@pytest.mark.slow
class TestDatabaseAway:
    def test_a_worker_outlives_its_database(
        self,
        durable_postgres: PostgresServer,
        tmp_path: Path,
        gate: Path,
        toy: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        url = durable_postgres.url()
        monkeypatch.setattr(
            "devservers.servers.free_port", lambda port=durable_postgres.port: port
        )  # it comes back there
        migrate(url)
        with closing(Database(url)) as database:
            collection = Collection.create(database)
            with worker(tmp_path / "log", url, TOY=toy, SFUMATO_LEASE_SECONDS=1) as running:
                job_id = collect_one_round(collection)
                wait_for(lambda: n_reached(gate) == 1)
                durable_postgres.kill()
                wait_for(lambda: running.logged("database_away"))
                gate.touch()
                running.child().kill()  # the job cannot be handed back: its lease will have to lapse
                wait_for(lambda: running.logged("iteration_failed"))
                durable_postgres.start()

                def is_over() -> bool:
                    with suppress(SQLAlchemyError):
                        return collection.job(job_id).is_final
                    return False

                wait_for(is_over)
                assert running.process.poll() is None
            assert_right(collection, job_id)


class TestSupervisorProcess:
    def test_it_never_loads_numba(self) -> None:
        code = "import sys, workers.__main__; print(sorted({'numba', 'clustering', 'scipy'} & set(sys.modules)))"
        said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == "[]"
