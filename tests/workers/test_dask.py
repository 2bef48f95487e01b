"""Tests of aggregations and sums on Dask workers: the same integers as in one process."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustering.central.queries import Records, count_records
from clustering.central.run import run as run_central
from clustering.centroids.fuzzy_cmeans import Rule, block_sums
from clustering.centroids.noisy_fcm import fit, scaled
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Sample
from models.collection import report_intake, rounds
from models.database.engine import Database
from models.errors import Conflict
from models.tables.rounds import Round
from sfumato.mechanisms import design
from sfumato.privacy.accounting import NANO
from sfumato.specs import GridEncoding, NoisyFcm, RoundSpec
from tests.workers.archive import KEYRING, RECORDS_KEY, Archive
from tests.workers.collection import Collection, packed_reports
from tests.workers.dask_cluster import DaskCluster, dask_cluster
from tests.workers.driving import must_claim
from tests.workers.spreading import N_REPORTS, WORKS, X, a_crowd, aggregate_with, answered_round, assert_same, connected
from workers.aggregation.aggregate import aggregate_round
from workers.central_job import open_records
from workers.distributed import dask_client, distribute
from workers.distributed.dask_client import Scheduler, SchedulerUnavailable
from workers.distributed.dask_tasks import PartCount
from workers.distributed.distribute import distribute_vectors
from workers.job_runner import ClaimOutcome, run

pytestmark = pytest.mark.slow

KINDS = ["ss", "grr", "discrete_laplace"]


@pytest.fixture(autouse=True)
def _all_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribute, "MIN_REPORTS", 1)


@pytest.fixture(scope="module")
def database(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Return one database for all tests of this module, which the workers use too."""
    path = tmp_path_factory.mktemp("dask") / "sfumato.db"
    shutil.copyfile(_sqlite_template, path)
    opened = Database(f"sqlite:///{path}", pool_size=4)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def cluster(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Run two workers with the database and the records key in their environment."""
    environment = {"SFUMATO_DATABASE_URL": str(database.engine.url), "SFUMATO_RECORDS_KEY": RECORDS_KEY}
    with dask_cluster(tmp_path_factory.mktemp("cluster"), environment) as started:
        yield started


@pytest.fixture(scope="module")
def scheduler(cluster: DaskCluster) -> Iterator[Scheduler]:
    """Return the scheduler of the cluster."""
    opened = connected(cluster)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def archive(database: Database) -> Archive:
    """Records; most tests read their sums, and the last adds some."""
    return a_crowd(database)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return "".join(capsys.readouterr())


class TestAFold:
    def test_of_every_kind_is_the_one_of_this_process(
        self, collection: Collection, scheduler: Scheduler, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for kind in KINDS:
            closed = answered_round(collection, kind)
            here = aggregate_round(collection.database, closed)
            assert here.n_repeated == N_REPORTS // 2
            assert aggregate_with(collection.database, closed, scheduler) == here
            assert here.tally.to_bytes() == aggregate_with(collection.database, closed, scheduler).tally.to_bytes()
        logged = said(capsys)
        assert logged.count("aggregation_distributed") == 2 * len(KINDS)
        assert "aggregation_not_distributed" not in logged

    def test_counts_the_first_of_reports_with_one_id(self, collection: Collection, scheduler: Scheduler) -> None:
        spec = RoundSpec(X, GridEncoding((30,)), design("grr", 30, NANO))
        collection.open_alone(spec, target_reports=3000)
        asked = collection.get_open_round()
        ids = np.random.default_rng(0).integers(0, 1 << 63, size=(1000, 2), dtype=np.uint64)
        for seed in range(3):  # other values each time; only the first compile
            _append(collection, asked, packed_reports(spec, 1000, seed, ids=ids))
        with collection.database.reading() as session:
            closed = session.get_one(Round, asked.id)
        first = _counted(packed_reports(spec, 1000, 0, ids=ids))
        for way in (None, scheduler):
            aggregation = aggregate_with(collection.database, closed, way)
            assert aggregation.tally.counts[0].tolist() == first
            assert aggregation.n_repeated == 2000

    def test_of_more_vectors_than_a_sample_holds_is_left_to_one_process(
        self, collection: Collection, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = answered_round(collection, "discrete_laplace")
        monkeypatch.setattr(distribute, "MAX_SAMPLE_VALUES", N_REPORTS)
        monkeypatch.setattr("clustering.rounds.counting.MAX_SAMPLE_VALUES", N_REPORTS)
        aggregation = aggregate_with(collection.database, closed, scheduler)
        assert aggregation == aggregate_round(collection.database, closed)
        assert aggregation.n_left_out == N_REPORTS // 2


def _append(collection: Collection, asked: Round, packed: bytes) -> None:
    with collection.database.transaction() as session:
        report_intake.receive(session, asked.id, 1000, packed, now=collection.database.clock())


def _counted(packed: bytes) -> list[int]:
    symbols = np.frombuffer(packed, dtype=np.uint8).reshape(1000, -1)[:, 20]
    return [int(n) for n in np.bincount(symbols, minlength=30)]


class TestVectors:
    def test_are_passed_over_to_the_last_bit_as_here(
        self, collection: Collection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("clustering.centroids.fuzzy_cmeans.BLOCK_POINTS", "workers.distributed.distribute.BLOCK_POINTS"):
            monkeypatch.setattr(name, 1 << 10)
        tallied = _tallied(collection, answered_round(collection, "discrete_laplace"))
        sample = Sample.from_bytes(tallied.tally or b"")
        centres, rule = np.array([[0.2], [0.7]]), Rule("mixed", 2.0, 0.3)
        here = block_sums(scaled(tallied.spec, sample), centres, rule)
        assert len(here) == 5
        monkeypatch.setattr(distribute, "MIN_VALUES", 1)
        monkeypatch.setattr("workers.distributed.dask_tasks.own_database", lambda: collection.database)
        passes = distribute_vectors(tallied, sample, _Within("tcp://127.0.0.1:1"))
        assert passes is not None
        assert (passes(block_sums, centres, rule) == here).all()
        away = distribute_vectors(tallied, sample, Scheduler("tcp://127.0.0.1:1"))
        assert away is not None
        monkeypatch.setattr(dask_client, "CONNECT_SECONDS", 0.3)
        assert (away(block_sums, centres, rule) == here).all()

    def test_on_the_workers_come_to_the_fit_of_this_process(
        self, collection: Collection, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(distribute, "MIN_VALUES", 1)
        tallied = _tallied(collection, answered_round(collection, "discrete_laplace"))
        sample = Sample.from_bytes(tallied.tally or b"")
        passes = distribute_vectors(tallied, sample, scheduler)
        models = [fit(NoisyFcm(1.0, 2), Collected(tallied.spec, sample, way)).to_wire() for way in (None, passes)]
        assert models[0] == models[1]

    def test_few_of_them_stay_here(self, collection: Collection, scheduler: Scheduler) -> None:
        tallied = _tallied(collection, answered_round(collection, "discrete_laplace"))
        assert distribute_vectors(tallied, Sample.from_bytes(tallied.tally or b""), scheduler) is None


class _Within(Scheduler):
    """Two workers that are this process."""

    def count_workers(self) -> int:
        return 2

    def call(self, function: Callable, arguments: list) -> list:
        replies = [function(*given) for given in arguments]
        assert [reply.failure for reply in replies] == [None, None]
        return [reply.value for reply in replies]


def _tallied(collection: Collection, closed: Round) -> Round:
    aggregation = aggregate_round(collection.database, closed)
    with collection.database.transaction() as session:
        stored = rounds.store_tally(
            session,
            closed.id,
            aggregation.tally.to_bytes(),
            aggregation.tally.n_reports,
            now=collection.database.clock(),
        )
        session.refresh(stored, ["tally"])
    return stored


class TestAnAbsentScheduler:
    def test_no_scheduler_at_the_address_is_no_failure_either(
        self, collection: Collection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(dask_client, "CONNECT_SECONDS", 0.5)
        closed = answered_round(collection, "grr")
        nobody = Scheduler("tcp://127.0.0.1:1")
        assert aggregate_with(collection.database, closed, nobody) == aggregate_round(collection.database, closed)
        began = time.monotonic()
        aggregate_with(collection.database, closed, nobody)  # which does not wait for it once more
        assert time.monotonic() - began < 0.4
        assert said(capsys).count("aggregation_not_distributed") == 2


class TestAnotherState:
    def test_state_is_noticed(self, collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = answered_round(collection, "grr")

        class TwoMinds(Scheduler):
            def count_workers(self) -> int:
                return 2

            def call(self, function: Callable, arguments: list) -> list:
                parts = [function(*given).value for given in arguments]
                return [parts[0], PartCount(parts[1].tally, 0, parts[1].counts._replace(n_bytes=1))]

        monkeypatch.setattr("workers.distributed.dask_tasks.own_database", lambda: collection.database)
        with pytest.raises(SchedulerUnavailable, match="different logs"):
            distribute.aggregate_on_workers(closed, TwoMinds("tcp://127.0.0.1:1"))


class TestRecords:
    def test_sums_over_parts_are_those_of_all(
        self, archive: Archive, scheduler: Scheduler, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with open_records(archive.database, archive.dataset_id, KEYRING, None) as here:
            assert isinstance(here, Records)
            expected = [here.total(work) for work in WORKS]
        with open_records(archive.database, archive.dataset_id, KEYRING, scheduler) as held:
            assert isinstance(held, distribute.DistributedRecords)
            assert (held.n_features, held.max_per_user) == (2, 3)
            for work, sums in zip(WORKS, expected, strict=True):
                assert_same(held.total(work), sums)
        assert "records_not_distributed" not in said(capsys)

    def test_a_job_charges_and_answers_as_ever(
        self, archive: Archive, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, cluster: DaskCluster
    ) -> None:
        monkeypatch.setattr("workers.job_runner.find_scheduler", lambda: scheduler)
        algorithm = {"type": "dp_kmeans", "epsilon": 1.0, "clusters": 2, "iterations": 3, "seed": 0}
        job_id = archive.submit(algorithm=algorithm)
        outcome = run(archive.database, must_claim(archive.database), run_central=run_central, keyring=lambda: KEYRING)
        assert outcome is ClaimOutcome.SUCCEEDED
        document = archive.document(job_id)
        assert document["epsilon_nano"] == NANO
        assert archive.balance().charged_nano == NANO
        assert len(archive.charges_of(job_id)) == len(document["odometer"]) == 6
        assert RECORDS_KEY not in cluster.logged()

    def test_stay_here_where_others_could_listen_in(self, archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
        with open_records(archive.database, archive.dataset_id, KEYRING, Scheduler("tcp://192.0.2.1:8786")) as held:
            assert isinstance(held, Records)
        assert "tls://" in said(capsys)

    def test_that_have_changed_are_not_mixed_with_those_of_before(
        self, archive: Archive, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_records(archive.database, archive.dataset_id, KEYRING, scheduler) as held:
            before = held.total(count_records)
            archive.add(10, users=[b"another"] * 10, seed=99)
            assert_same(held.total(count_records), before)
            with pytest.raises(Conflict, match="have changed since the job began"):
                _ = held.points


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_client_that_cannot_connect_is_closed_at_once(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """A client that the garbage collector ends can wait without end for a lock, together with a client that begins."""
    from distributed import Client

    made: list[Client] = []
    start = Client.start

    def noted(client: Client, **given: Any) -> None:
        made.append(client)
        start(client, **given)

    monkeypatch.setattr(Client, "start", noted)
    monkeypatch.setattr("workers.distributed.dask_client.CONNECT_SECONDS", 0.2)
    with pytest.raises(SchedulerUnavailable):
        Scheduler(f"{scheme}://127.0.0.1:1").count_workers()
    (client,) = made
    assert client.status == "closed"
