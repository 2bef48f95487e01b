"""Real workers under real signals: what is killed is taken up again, and runs to one right result."""

import json
import os
import signal
import statistics
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

from models import job as jobs
from models.db import Database, canonical_json, migrate
from models.doorbell import PollingDoorbell, RedisDoorbell
from models.job import JobState
from models.round import Round, RoundState
from models.settings import Settings
from sfumato.accounting import NANO
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec
from tests.servers import PostgresServer
from tests.workers.collection import Collection
from tests.workers.processes import ROOT, is_gone, seconds_until, worker
from tests.workers.toy import PATIENCE_SECONDS, Toy, wait_for
from workers import supervisor as supervisors
from workers.supervisor import Supervisor

on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)

ONE_ROUND = [[0.0, 1.0]]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file the toy plan waits for."""
    return tmp_path / "gate"


@pytest.fixture
def toy(gate: Path) -> str:
    """A plan of one round that goes on without end after it while the gate is shut."""
    return json.dumps({"draws": ONE_ROUND, "gate": str(gate)})


def n_reached(gate: Path) -> int:
    """How many claims have come as far as the gate."""
    marks = Path(f"{gate}.reached")
    return len(marks.read_text().splitlines()) if marks.exists() else 0


def collect_one_round(collection: Collection, *, n: int = 200) -> str:
    """Submit a job and answer its round; its worker goes on by itself."""
    job_id = collection.submit(epsilon_nano=NANO // 4)
    asked = wait_for(collection.open_round)
    collection.answer(asked, n)
    return job_id


def is_final(collection: Collection, job_id: str) -> Callable[[], bool]:
    return lambda: collection.job(job_id).is_final


def assert_right(collection: Collection, job_id: str) -> None:
    """One result, the very one an undisturbed worker gives, for the price of one round."""
    assert collection.job(job_id).state == JobState.SUCCEEDED
    (own,) = collection.rounds_of(job_id)
    assert collection.balance().posted_nano == own.epsilon_nano
    assert collection.document(job_id)["rounds"][0]["n_reports"] == 200
    assert canonical_json(collection.document(job_id)["model"]) == undisturbed_model(collection.database, own)


def undisturbed_model(database: Database, own: Round) -> str:
    from clustering.plan import Collected, Tally, drive

    with database.reading() as session:
        tally = Tally.from_bytes(session.get_one(Round, own.id).tally or b"")
    plan = Toy(draws=((0.0, 1.0),))(None, own.spec.features, 200)  # type: ignore[arg-type]
    return canonical_json(drive(plan, lambda _: Collected(own.spec, tally)).to_wire())


@pytest.mark.slow
@pytest.mark.ci
class TestKilled:
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

    @on_sqlite
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

    @on_sqlite
    def test_a_child_that_dies_idle_costs_no_job_an_attempt(
        self, collection: Collection, database_url: str, tmp_path: Path
    ) -> None:
        toy = json.dumps({"draws": []})
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_MAX_ATTEMPTS=1) as running:
            running.wait_until_ready()
            running.child().kill()
            job_id = collection.submit()
            wait_for(is_final(collection, job_id))
            assert collection.job(job_id).state == JobState.SUCCEEDED
            assert collection.job(job_id).attempts == 1


@pytest.mark.slow
@pytest.mark.ci
class TestStopped:
    @on_sqlite
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

    @on_sqlite
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
            wait_for(lambda: "child_ready" in log.read_text())
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
@pytest.mark.ci
class TestLetGo:
    def test_a_cancelled_job_stops_computing_at_the_next_look(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path
    ) -> None:
        """Not at the next renewal, which is half a minute away; how long a look takes is the machine's affair."""
        assert supervisors.WATCH_SECONDS <= 0.25
        toy = json.dumps({"draws": ONE_ROUND, "gate": str(gate), "spins": True})
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_LEASE_SECONDS=120) as running:
            job_id = collect_one_round(collection)
            wait_for(lambda: n_reached(gate) == 1)
            child = running.child()
            with collection.database.transaction() as session:
                jobs.cancel(session, collection.caller, job_id, now=collection.database.clock())
            assert seconds_until(lambda: is_gone(child.pid)) < 15
            wait_for(is_final(collection, job_id))
            assert collection.job(job_id).state == JobState.CANCELED
            balance = collection.balance()
            assert (balance.reserved_nano, balance.posted_nano) == (0, collection.rounds_of(job_id)[0].epsilon_nano)
            gate.touch()
            wait_for(is_final(collection, collect_one_round(collection)))  # and the worker goes on

    @on_sqlite
    def test_a_job_past_its_deadline_fails_and_the_next_one_runs(
        self, collection: Collection, database_url: str, tmp_path: Path, gate: Path, toy: str
    ) -> None:
        with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_JOB_SECONDS=10):
            job_id = collect_one_round(collection)
            wait_for(is_final(collection, job_id))
            job = collection.job(job_id)
            assert (job.state, job.error_code) == (JobState.FAILED, "deadline_exceeded")
            assert job.error_detail == "computed for longer than 10 s"
            gate.touch()
            after = collect_one_round(collection)
            wait_for(is_final(collection, after))
            assert collection.job(after).state == JobState.SUCCEEDED

    @on_sqlite
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
            (killed,) = wait_for(lambda: first.said("child_killed"))
            assert killed["reason"] == "lost"
            assert is_gone(child.pid)
        assert_right(collection, job_id)


class TestSweep:
    @on_sqlite
    def test_rounds_past_their_time_close_by_themselves_and_rounds_of_no_job_are_folded(
        self, collection: Collection, database_url: str, tmp_path: Path
    ) -> None:
        spec = RoundSpec((Feature("x", 0.0, 10.0),), GridEncoding((12,)), design("ss", 12, NANO // 4))
        alone = collection.open_alone(spec, target_reports=50)
        asked = collection.open_round()
        assert asked is not None
        collection.answer(asked, 50)
        job_id = collection.submit(target_reports=100, min_reports=10, seconds=1)
        with worker(tmp_path / "log", database_url, TOY=json.dumps({"draws": ONE_ROUND})):
            wait_for(is_final(collection, job_id))
            assert (collection.job(job_id).state, collection.job(job_id).error_code) == (
                JobState.EXPIRED,
                "too_few_reports",
            )
            with collection.database.reading() as session:
                folded = session.get_one(Round, alone)
            assert (folded.state, folded.n_reports) == (RoundState.TALLIED, 50)


class TestDoorbell:
    def run_here(self, collection: Collection, url: str, doorbell: object, work: Callable[[Supervisor], None]) -> None:
        """A supervisor in a thread of this process, with a real child, while `work` runs."""
        settings = Settings(database_url=url, warm_kernels=False)
        here = Supervisor(settings, collection.database, doorbell, start=Toy(draws=()))  # type: ignore[arg-type]
        thread = threading.Thread(target=here.run)
        thread.start()
        try:
            work(here)
        finally:
            here.stop()
            doorbell.ring("stop")  # type: ignore[attr-defined]
            thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()

    @on_sqlite
    def test_a_ring_wakes_an_idle_worker(
        self, collection: Collection, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisors, "LOOK_SECONDS", 100.0)  # so that nothing else wakes it
        ringer = RedisDoorbell(redis_url, 100.0)
        waits: list[float] = []

        def work(_: Supervisor) -> None:
            for _ in range(3):
                job_id = collection.submit()
                ringer.ring(job_id)
                waits.append(seconds_until(is_final(collection, job_id)))

        self.run_here(collection, database_url, RedisDoorbell(redis_url, 100.0), work)
        assert statistics.median(waits) < 50  # the first one has its child to wait for

    @on_sqlite
    def test_with_redis_away_a_worker_polls(self, collection: Collection, database_url: str, tmp_path: Path) -> None:
        with worker(
            tmp_path / "log",
            database_url,
            TOY=json.dumps({"draws": []}),
            SFUMATO_REDIS_URL="redis://127.0.0.1:1/0",
        ) as running:
            running.wait_until_ready()
            assert [ready["warmed"] for ready in running.said("child_ready")] == [[]]  # as its settings wish
            for _ in range(2):
                wait_for(is_final(collection, collection.submit()))  # for ever, where nothing looks
            assert len(running.said("doorbell_away")) == 1


class TestDatabaseAway:
    @on_sqlite
    def test_an_idle_worker_backs_off_and_goes_on(
        self, collection: Collection, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        n_refused = 0
        transaction = Database.transaction

        def away(database: Database):
            nonlocal n_refused
            n_refused += 1
            raise SQLAlchemyError("away")

        settings, lonely = Settings(database_url=database_url, warm_kernels=False), Database(database_url)
        here = Supervisor(settings, lonely, PollingDoorbell(0.01), start=Toy(draws=()))
        monkeypatch.setattr(lonely, "transaction", lambda: away(lonely))
        thread = threading.Thread(target=here.run)
        thread.start()
        try:
            wait_for(lambda: n_refused)
            time.sleep(2.0)
            assert n_refused <= 8  # .1, .3, .7, 1.5 s apart
            monkeypatch.setattr(lonely, "transaction", lambda: transaction(lonely))
            job_id = collection.submit()
            wait_for(is_final(collection, job_id))
        finally:
            here.stop()
            thread.join(PATIENCE_SECONDS)
            lonely.close()
        assert collection.job(job_id).state == JobState.SUCCEEDED

    def test_a_worker_outlives_its_database(
        self,
        durable_postgres: PostgresServer,
        tmp_path: Path,
        gate: Path,
        toy: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        url = durable_postgres.url()
        monkeypatch.setattr("demo.servers.free_port", lambda port=durable_postgres.port: port)  # it comes back there
        migrate(url)
        with closing(Database(url)) as database:
            collection = Collection.create(database)
            with worker(tmp_path / "log", url, TOY=toy, SFUMATO_LEASE_SECONDS=1) as running:
                job_id = collect_one_round(collection)
                wait_for(lambda: n_reached(gate) == 1)
                durable_postgres.kill()
                wait_for(lambda: running.said("database_away"))
                gate.touch()
                running.child().kill()  # the job cannot be handed back: its lease will have to lapse
                wait_for(lambda: running.said("turn_failed"))
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
