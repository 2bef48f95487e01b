"""Dask workers and connections that are lost, foreign, or not to be trusted: the answers stay the same."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dask.config
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from clustering.central.queries import Records
from models.database.engine import Database
from tests.databases import on_both_databases
from tests.workers.archive import KEYRING, RECORDS_KEY, Archive
from tests.workers.collection import Collection
from tests.workers.dask_cluster import DaskCluster, dask_cluster
from tests.workers.spreading import WORKS, a_crowd, aggregate_with, answered_round, assert_same, connected
from workers.aggregation.aggregate import aggregate_round
from workers.central_job import open_records
from workers.distributed import dask_client, distribute
from workers.distributed.dask_client import Scheduler, SchedulerUnavailable


@pytest.fixture(autouse=True)
def _all_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribute, "MIN_REPORTS", 1)
    monkeypatch.setattr(dask_client, "WORKERLESS_SECONDS", 5.0)
    monkeypatch.setattr(dask_client, "CONNECT_SECONDS", 30.0)  # on a busy machine


@pytest.fixture
def environment(database: Database) -> dict[str, str]:
    """Return the settings of a Dask worker."""
    url = database.engine.url.render_as_string(hide_password=False)
    return {"SFUMATO_DATABASE_URL": url, "SFUMATO_RECORDS_KEY": RECORDS_KEY}


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path) -> Iterator[DaskCluster]:
    """Two workers."""
    with dask_cluster(tmp_path, environment) as started:
        yield started


@pytest.fixture
def scheduler(cluster: DaskCluster) -> Iterator[Scheduler]:
    """The way to them."""
    opened = connected(cluster)
    yield opened
    opened.close()


@pytest.fixture
def archive(database: Database) -> Archive:
    return a_crowd(database)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return "".join(capsys.readouterr())


class TestLost:
    @pytest.mark.slow
    @on_both_databases
    def test_a_worker_killed_in_the_middle_changes_nothing(
        self,
        collection: Collection,
        cluster: DaskCluster,
        scheduler: Scheduler,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        closed = answered_round(collection, "ss")
        here = aggregate_round(collection.database, closed)
        monkeypatch.setattr(distribute, "PARTS_PER_WORKER", 30)  # sixty tasks
        n_asked = []
        call = Scheduler.call

        def call_and_kill(self: Scheduler, function: Callable, arguments: list) -> list:
            n_asked.append(len(arguments))
            killer = threading.Timer(0.3, os.kill, (cluster.workers[0].pid, signal.SIGKILL))
            killer.start()
            try:
                return call(self, _slow_count_part, arguments)
            finally:
                killer.join()

        monkeypatch.setattr(Scheduler, "call", call_and_kill)
        aggregation = aggregate_with(collection.database, closed, scheduler)
        assert cluster.workers[0].wait(timeout=30) == -signal.SIGKILL
        assert cluster.workers[1].poll() is None
        assert n_asked[0] >= 40
        assert aggregation == here
        assert "aggregation_not_distributed" not in said(capsys)

    @pytest.mark.release
    def test_with_all_workers_gone_it_is_done_here_and_the_log_says_why(
        self,
        collection: Collection,
        cluster: DaskCluster,
        scheduler: Scheduler,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        closed = answered_round(collection, "grr")
        monkeypatch.setattr(dask_client, "CONNECT_SECONDS", 1.0)
        for process in cluster.workers:
            process.kill()
        assert aggregate_with(collection.database, closed, scheduler) == aggregate_round(collection.database, closed)
        assert "aggregation_not_distributed" in (logged := said(capsys))
        assert "workers" in logged


def _slow_count_part(*asked: object) -> object:
    from workers.distributed.dask_tasks import count_part

    time.sleep(0.05)
    return count_part(*asked)


@pytest.mark.release
class TestAnotherDatabase:
    def test_on_the_workers_is_noticed(
        self, collection: Collection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        closed = answered_round(collection, "grr")
        with dask_cluster(tmp_path, {"SFUMATO_DATABASE_URL": f"sqlite:///{tmp_path}/empty.db"}) as elsewhere:
            astray = Scheduler(elsewhere.address)
            assert aggregate_with(collection.database, closed, astray) == aggregate_round(collection.database, closed)
            astray.close()
        assert "OperationalError" in said(capsys)


@pytest.mark.release
class TestSealed:
    def test_over_tls_with_certificates_of_an_authority_of_ones_own(
        self, archive: Archive, environment: dict[str, str], tmp_path: Path
    ) -> None:
        files = certificates(tmp_path)
        sealed = {
            "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": files["ca"],
            **{
                f"DASK_DISTRIBUTED__COMM__TLS__{who}__{what}": files[what.lower()]
                for who in ("SCHEDULER", "WORKER", "CLIENT")
                for what in ("KEY", "CERT")
            },
        }
        with dask_cluster(tmp_path, environment | sealed, options=["--protocol", "tls"]) as cluster:
            assert cluster.address.startswith("tls://")
            stranger = Scheduler(cluster.address)
            with pytest.raises(SchedulerUnavailable):
                stranger.count_workers()
            own = {"ca-file": files["ca"], "client.key": files["key"], "client.cert": files["cert"]}
            with dask.config.set({f"distributed.comm.tls.{name}": file for name, file in own.items()}):
                scheduler = connected(cluster)
                with open_records(archive.database, archive.dataset_id, KEYRING, scheduler) as held:
                    assert isinstance(held, distribute.DistributedRecords)
                    with open_records(archive.database, archive.dataset_id, KEYRING, None) as here:
                        assert_same(held.total(WORKS[2]), here.total(WORKS[2]))
                scheduler.close()

    @pytest.mark.parametrize(
        ("address", "is_sealed"),
        [
            ("tls://a.example:1", True),
            ("tcp://a.example:1", False),
            ("tcp://127.0.0.1:1", True),
            ("tcp://[::1]:1", True),
        ],
    )
    def test_is_what_nobody_else_can_read(self, address: str, is_sealed: bool) -> None:
        assert Scheduler(address).is_confidential is is_sealed


def certificates(folder: Path) -> dict[str, str]:
    """An authority's certificate, and one it signed with its key, in files."""
    now = datetime.now(UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "dask")]
    made = []
    for key, name, is_authority in zip(keys, names, (True, False), strict=True):
        builder = x509.CertificateBuilder(names[0], name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        made.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(Encoding.PEM))
    private = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files = {"ca": made[0], "cert": made[1], "key": private}
    for name, content in files.items():
        (folder / f"{name}.pem").write_bytes(content)
    return {name: str(folder / f"{name}.pem") for name in files}


@pytest.mark.release
class TestRecords:
    @on_both_databases
    def test_lost_with_their_worker_are_loaded_by_another(
        self, archive: Archive, cluster: DaskCluster, scheduler: Scheduler, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with open_records(archive.database, archive.dataset_id, KEYRING, None) as here:
            assert isinstance(here, Records)
            expected = [here.total(work) for work in WORKS]
        with open_records(archive.database, archive.dataset_id, KEYRING, scheduler) as held:
            assert isinstance(held, distribute.DistributedRecords)
            assert (held.n_features, held.max_per_user) == (2, 3)
            for work, sums in zip(WORKS, expected, strict=True):
                assert_same(held.total(work), sums)
            cluster.workers[0].kill()
            for work, sums in zip(WORKS, expected, strict=True):
                assert_same(held.total(work), sums)
            assert "records_not_distributed" not in said(capsys)
            cluster.workers[1].kill()
            assert_same(held.total(WORKS[2]), expected[2])
            assert "records_not_distributed" in said(capsys)

    def test_stay_here_where_a_worker_may_write_them_to_disk(
        self, archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        url = archive.database.engine.url.render_as_string(hide_password=False)
        environment = {"SFUMATO_DATABASE_URL": url, "SFUMATO_RECORDS_KEY": RECORDS_KEY}
        with dask_cluster(tmp_path, environment, n_workers=0) as spilling:
            spilling.add_worker("--memory-limit", "4GB")
            way = Scheduler(spilling.address)
            with open_records(archive.database, archive.dataset_id, KEYRING, way) as held:
                assert isinstance(held, Records)
            way.close()
        assert "SpillsToDisk" in said(capsys)
