"""Jobs over records with workers that are killed: each query is charged once, and stored answers are repeated."""

import json
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from models.database.engine import Database
from models.ledger import ledger
from models.ledger.amounts import Balance
from models.tables.jobs import JobState
from sfumato.privacy.accountant import charge_mu2, limit_mu2
from tests.workers.archive import GRANTED, RECORDS_KEY, Archive
from tests.workers.processes import WorkerProcess, worker
from tests.workers.toy import wait_for
from tests.workers.toy_central import BLOCK_PRICES, DELTA_ATTO, PRICES
from workers.central_job import unpack

on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
LEASE_SECONDS = 1.0


@pytest.fixture
def archive(database_url: str) -> Iterator[Archive]:
    with closing(Database(database_url, pool_size=2)) as database:
        yield Archive.create(database, delta_atto=5 * DELTA_ATTO)


class Gate:
    """A file on which the test algorithm waits. A waiting worker leaves a mark."""

    def __init__(self, scratch: Path) -> None:
        self.path = scratch / "gate"

    def n_reached(self) -> int:
        marks = Path(f"{self.path}.reached")
        return len(marks.read_text().splitlines()) if marks.exists() else 0

    def open(self) -> None:
        self.path.touch()

    def worker(
        self, archive: Archive, moment: tuple[str, int], log: Path, *, has_block: bool
    ) -> AbstractContextManager[WorkerProcess]:
        """A real worker that stops there while the gate is shut."""
        return worker(
            log,
            archive.database.engine.url.render_as_string(hide_password=False),
            module="tests.workers.toy_central_worker",
            TOY=json.dumps({"at": list(moment), "gate": str(self.path), "has_block": has_block}),
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


class TestKilledWorker:
    def run_through(
        self, archive: Archive, tmp_path: Path, moment: tuple[str, int], *, whole: bool, has_block: bool = False
    ) -> None:
        gate = Gate(tmp_path)
        prices = BLOCK_PRICES if has_block else tuple((price, 0) for price in PRICES)
        n_charged = {"before": moment[1], "during": moment[1] + 1, "after": len(prices)}[moment[0]]
        n_kept = n_charged - (moment[0] == "during")
        job_id = archive.submit(delta_atto=2 * DELTA_ATTO if has_block else 0)
        with gate.worker(archive, moment, tmp_path / "first", has_block=has_block) as first:
            wait_for(lambda: gate.n_reached() == 1)
            stored = archive.answers(job_id)
            assert tuple((each.epsilon_nano, each.delta_atto) for each in stored) == prices[:n_charged]
            kept = [unpack(each.packed).tolist() for each in stored if each.packed is not None]
            assert len(kept) == n_kept
            gate.open()
            kill(first, whole=whole)
            if whole:
                with gate.worker(archive, moment, tmp_path / "second", has_block=has_block):
                    wait_for(lambda: archive.job(job_id).is_final)
            else:
                wait_for(lambda: archive.job(job_id).is_final)
        assert archive.job(job_id).state == JobState.SUCCEEDED
        assert archive.job(job_id).attempts == 2
        answers = archive.document(job_id)["model"]["diagnostics"]["answers"]
        assert answers[:n_kept] == kept
        odometer = archive.document(job_id)["odometer"]
        assert [len(answer) for answer in answers] == [a["n_values"] for a in odometer]
        assert tuple((a["epsilon_nano"], a["delta_atto"]) for a in odometer) == prices
        archive.check(job_id)
        charged = [sum(amounts) for amounts in zip(*prices, strict=True)]
        balance = archive.balance()
        expected = Balance(balance.granted_nano, 0, charged[0], 5 * DELTA_ATTO, 0, charged[1])
        if balance.accounting == "gaussian":
            limit, mu2 = limit_mu2(*balance.granted_cost[:2]), sum(charge_mu2(*price) for price in prices)
            expected = expected._replace(granted_mu2_pico=limit, reserved_mu2_pico=0, charged_mu2_pico=mu2)
        assert balance == expected
        with archive.database.reading() as session:
            assert ledger.verify(session, archive.dataset_id).ok

    @on_sqlite
    @pytest.mark.slow
    def test_a_kill_between_charge_and_answer_charges_once(self, archive: Archive, tmp_path: Path) -> None:
        self.run_through(archive, tmp_path, ("during", 1), whole=False)

    @on_sqlite
    @pytest.mark.slow
    def test_a_kill_after_an_answer_repeats_the_stored_answer(self, archive: Archive, tmp_path: Path) -> None:
        self.run_through(archive, tmp_path, ("before", 2), whole=True)

    @pytest.mark.release
    @pytest.mark.parametrize("whole", [False, True], ids=["child", "supervisor"])
    @pytest.mark.parametrize(
        "moment",
        [("before", 0), ("during", 0), ("before", 1), ("during", 1), ("during", 2), ("after", 0)],
        ids=str,
    )
    def test_a_kill_at_any_step_gives_the_result_of_the_answers(
        self, archive: Archive, tmp_path: Path, moment: tuple[str, int], whole: bool
    ) -> None:
        self.run_through(archive, tmp_path, moment, whole=whole)

    @pytest.mark.parametrize("whole", [False, True], ids=["child", "supervisor"])
    @pytest.mark.parametrize(
        ("database_kind", "moment"),
        [
            pytest.param("postgresql", ("during", 2), marks=pytest.mark.slow),
            pytest.param("sqlite", ("during", 2), marks=pytest.mark.release),
            *(
                pytest.param(kind, each, marks=pytest.mark.release)
                for kind in ("sqlite", "postgresql")
                for each in [("during", 0), ("before", 1), ("before", 2), ("before", 3), ("during", 3), ("after", 0)]
            ),
        ],
        ids=str,
        indirect=["database_kind"],
    )
    def test_a_kill_near_a_concentrated_block_charges_it_once(
        self, archive: Archive, tmp_path: Path, moment: tuple[str, int], whole: bool
    ) -> None:
        self.run_through(archive, tmp_path, moment, whole=whole, has_block=True)

    @pytest.mark.parametrize("whole", [False, True], ids=["child", "supervisor"])
    @pytest.mark.parametrize(
        "moment",
        [("before", 1), ("during", 2), ("before", 3)],
        ids=str,
    )
    @pytest.mark.release
    def test_a_kill_with_gaussian_accounting_counts_mu2_once(
        self, database_url: str, tmp_path: Path, moment: tuple[str, int], whole: bool
    ) -> None:
        with closing(Database(database_url, pool_size=2)) as database:
            granted = {"epsilon_nano": 2 * GRANTED, "delta_atto": 5 * DELTA_ATTO}
            archive = Archive.create(database, accounting="gaussian", **granted)
            self.run_through(archive, tmp_path, moment, whole=whole, has_block=True)


class TestCancelling:
    @on_sqlite
    @pytest.mark.slow
    def test_a_cancelled_job_ends_and_keeps_its_charges(self, archive: Archive, tmp_path: Path) -> None:
        gate = Gate(tmp_path)
        job_id = archive.submit()
        with gate.worker(archive, ("before", 1), tmp_path / "log", has_block=False):
            wait_for(lambda: gate.n_reached() == 1)
            archive.cancel(job_id)
            wait_for(lambda: archive.job(job_id).is_final)
        assert archive.job(job_id).state == JobState.CANCELED
        assert archive.balance() == Balance(GRANTED, 0, PRICES[0], 5 * DELTA_ATTO)
        assert archive.answers(job_id) == []
