"""Central jobs whose real workers are killed: what was charged is charged once, what was told is told again."""

import json
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from models.db import Database
from models.job import JobState
from models.ledger import Balance
from tests.workers.archive import GRANTED, RECORDS_KEY, Archive
from tests.workers.processes import WorkerProcess, worker
from tests.workers.toy import wait_for
from tests.workers.toy_central import PRICES
from workers.central import unpack

on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
LEASE_SECONDS = 1.0


@pytest.fixture
def archive(database_url: str) -> Iterator[Archive]:
    with closing(Database(database_url, pool_size=2)) as database:
        yield Archive.create(database)


class Gate:
    """The file the toy waits for; a worker that waits has left a mark."""

    def __init__(self, scratch: Path) -> None:
        self.path = scratch / "gate"

    def n_reached(self) -> int:
        marks = Path(f"{self.path}.reached")
        return len(marks.read_text().splitlines()) if marks.exists() else 0

    def open(self) -> None:
        self.path.touch()

    def worker(self, archive: Archive, moment: tuple[str, int], log: Path) -> AbstractContextManager[WorkerProcess]:
        """A real worker that stops there while the gate is shut."""
        return worker(
            log,
            archive.database.engine.url.render_as_string(hide_password=False),
            module="tests.workers.toy_central_worker",
            TOY=json.dumps({"at": list(moment), "gate": str(self.path)}),
            SFUMATO_RECORDS_KEY=RECORDS_KEY,
            SFUMATO_LEASE_SECONDS=LEASE_SECONDS,
        )


def kill(running: WorkerProcess, *, whole: bool) -> None:
    """SIGKILL to the computing process; or to its supervisor, which takes it along."""
    if whole:
        running.send(signal.SIGKILL)
        running.process.wait()
    else:
        running.child().send_signal(signal.SIGKILL)


class TestAKilledWorker:
    def run_through(self, archive: Archive, tmp_path: Path, moment: tuple[str, int], *, whole: bool) -> None:
        gate = Gate(tmp_path)
        n_charged = {"before": moment[1], "during": moment[1] + 1, "after": len(PRICES)}[moment[0]]
        n_kept = n_charged - (moment[0] == "during")
        job_id = archive.submit()
        with gate.worker(archive, moment, tmp_path / "first") as first:
            wait_for(lambda: gate.n_reached() == 1)
            stored = archive.answers(job_id)
            assert [each.epsilon_nano for each in stored] == list(PRICES[:n_charged])
            kept = [unpack(each.packed).tolist() for each in stored if each.packed is not None]
            assert len(kept) == n_kept
            gate.open()
            kill(first, whole=whole)
            if whole:
                with gate.worker(archive, moment, tmp_path / "second"):
                    wait_for(lambda: archive.job(job_id).is_final)
            else:
                wait_for(lambda: archive.job(job_id).is_final)
        assert archive.job(job_id).state == JobState.SUCCEEDED
        answers = archive.document(job_id)["model"]["diagnostics"]["answers"]
        assert answers[:n_kept] == kept
        assert [len(answer) for answer in answers] == [a["n_values"] for a in archive.document(job_id)["odometer"]]
        archive.check(job_id)
        assert archive.balance() == Balance(GRANTED, 0, sum(PRICES))

    @on_sqlite
    def test_between_a_charge_and_its_answer_pays_once(self, archive: Archive, tmp_path: Path) -> None:
        self.run_through(archive, tmp_path, ("during", 1), whole=False)

    @on_sqlite
    def test_between_an_answer_and_the_next_charge_is_told_the_same_again(
        self, archive: Archive, tmp_path: Path
    ) -> None:
        self.run_through(archive, tmp_path, ("before", 2), whole=True)

    @pytest.mark.slow
    @pytest.mark.parametrize("whole", [False, True], ids=["child", "supervisor"])
    @pytest.mark.parametrize(
        "moment",
        [
            *(("before", 0), ("during", 0), ("before", 1), ("during", 2), ("after", 0)),
            pytest.param(("during", 1), marks=pytest.mark.ci),
        ],
        ids=str,
    )
    def test_anywhere_comes_to_the_result_its_answers_give(
        self, archive: Archive, tmp_path: Path, moment: tuple[str, int], whole: bool
    ) -> None:
        self.run_through(archive, tmp_path, moment, whole=whole)


class TestCancelling:
    @on_sqlite
    def test_a_job_in_the_middle_ends_it_and_keeps_what_was_posted(self, archive: Archive, tmp_path: Path) -> None:
        gate = Gate(tmp_path)
        job_id = archive.submit()
        with gate.worker(archive, ("before", 1), tmp_path / "log"):
            wait_for(lambda: gate.n_reached() == 1)
            archive.cancel(job_id)
            wait_for(lambda: archive.job(job_id).is_final)
        assert archive.job(job_id).state == JobState.CANCELED
        assert archive.balance() == Balance(GRANTED, 0, PRICES[0])
        assert archive.answers(job_id) == []
