"""Device and client against the real service: its own process, its own database."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from models import report
from models.db import Database
from sfumato import mechanisms
from sfumato.accounting import NANO
from sfumato.bulk import perturb_records
from sfumato.client import AsyncClient, Client
from sfumato.device import Device, Outcome
from sfumato.errors import ApiProblem, CapExceeded, ReportMalformed
from sfumato.ledger import Head
from sfumato.resources import Dataset, Round
from sfumato.specs import Draw, Feature, GridEncoding, ShiftedGrid, UniformGrid
from sfumato.store import FileStore, MemoryStore

ROOT = Path(__file__).parents[2]
START_SECONDS = 180
STOP_SECONDS = 120
FEATURES = (Feature("x", 0, 8, "km"), Feature("y", -4, 4))
RECORD = [1.5, 3.5]


@dataclass(frozen=True)
class Live:
    """A service that runs, and its database seen from behind."""

    url: str
    key: str
    database: Database

    def log(self, round_id: str) -> bytes:
        """Every packed report of a round, as stored."""
        with self.database.reading() as session:
            return b"".join(packed for _, packed in report.batches(session, round_id))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("service")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.cli", "serve", "--port", "0"],
            cwd=home,
            env=inherited | {"SFUMATO_HOME": str(home), "SFUMATO_WARM_KERNELS": "false", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (home / "url").exists():
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < deadline, (home / "log").read_text()
            time.sleep(0.05)
        database = Database(f"sqlite:///{home / 'sfumato.db'}", pool_size=2)
        yield Live((home / "url").read_text().strip(), (home / "admin.key").read_text().strip(), database)
        database.close()
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def client(live: Live) -> Iterator[Client]:
    with Client(live.url, live.key) as client:
        yield client


@pytest.fixture(scope="module")
def network() -> Iterator[httpx.BaseTransport]:
    """One pool of connections for all devices: what a device is given it does not close."""
    with httpx.HTTPTransport() as transport:
        yield transport


@pytest.fixture
def dataset(client: Client) -> Dataset:
    return client.create_dataset("people", FEATURES, epsilon=8, min_reports=1)


def open_round(client: Client, dataset: Dataset, *, epsilon: float = 1, target: int = 1000) -> Round:
    return client.open_round(dataset.id, GridEncoding((4, 4)), epsilon=epsilon, target_reports=target)


class TestADevice:
    def test_its_one_report_is_the_one_in_the_log(self, live: Live, client: Client, dataset: Dataset) -> None:
        opened = open_round(client, dataset)
        store = MemoryStore()
        key = client.create_key("app", ["device"], dataset_id=dataset.id)
        assert key.secret is not None
        with Device(live.url, key.secret, dataset.id, cap=1, store=store, features=FEATURES) as device:
            receipt = device.report(RECORD)
            assert (receipt.outcome, receipt.rounds[0].epsilon) == (Outcome.SENT, 1.0)
            assert device.report([7.0, 0.0]).outcome is Outcome.ALREADY_ANSWERED
            assert device.pending() == ()
        packed = live.log(opened.id)
        assert len(packed) == 20 + mechanisms.value_bytes(opened.spec.mechanism)
        assert packed[:16].hex() == store.read(dataset.id).memos[opened.id].report_id
        assert packed[16:20] == bytes(4)
        assert mechanisms.is_value(opened.spec.mechanism, packed[20:])
        assert client.get_round(opened.id).n_received == 1

    @pytest.mark.slow
    @pytest.mark.ci
    def test_answers_that_are_lost_leave_one_report_however_often_it_is_sent(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport, tmp_path: Path
    ) -> None:
        opened = open_round(client, dataset)
        losing = LosingTransport(network, n_lost=2)
        device = Device(live.url, live.key, dataset.id, cap=1, store=tmp_path / "device.json", transport=losing)
        assert device.report(RECORD).outcome is Outcome.SENT
        assert losing.n_lost == 0
        packed = np.frombuffer(live.log(opened.id), np.uint8).reshape(3, -1)
        assert len({row.tobytes() for row in packed}) == 1
        client.close_round(opened.id)
        assert _tallied(client, opened.id).n_reports == 1

    def test_it_asks_again_only_for_what_changed(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport
    ) -> None:
        watching = LosingTransport(network, n_lost=0)
        device = Device(live.url, live.key, dataset.id, cap=8, store=MemoryStore(), transport=watching)
        empty = device.report(RECORD)
        assert empty.outcome is Outcome.NO_OPEN_ROUND
        assert empty.retry_after_seconds is not None
        assert empty.retry_after_seconds > 0
        assert device.report(RECORD).retry_after_seconds == empty.retry_after_seconds
        open_round(client, dataset)
        assert device.report(RECORD).outcome is Outcome.SENT
        assert [status for method, status in watching.seen if method == "GET"] == [200, 304, 200]

    def test_its_cap_holds_against_the_service(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport
    ) -> None:
        opened = open_round(client, dataset, epsilon=2.5)
        device = Device(live.url, live.key, dataset.id, cap=2, store=MemoryStore(), transport=network)
        with pytest.raises(CapExceeded):
            device.report(RECORD)
        assert live.log(opened.id) == b""

    def test_draws_decide_who_answers(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport
    ) -> None:
        opened = client.open_round(
            dataset.id, GridEncoding((4, 4)), epsilon=1, target_reports=1000, draw=Draw.between(0, 0.5)
        )
        outcomes = [
            Device(live.url, live.key, dataset.id, cap=1, store=MemoryStore(), transport=network).report(RECORD).outcome
            for _ in range(60)
        ]
        assert set(outcomes) == {Outcome.SENT, Outcome.NOT_DRAWN}
        assert client.get_round(opened.id).n_received == outcomes.count(Outcome.SENT)

    def test_a_round_that_closed_meanwhile_is_told_as_such(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport, tmp_path: Path
    ) -> None:
        opened = open_round(client, dataset)

        class Closing(httpx.BaseTransport):
            def handle_request(self, request: httpx.Request) -> httpx.Response:
                if request.method == "POST":
                    client.close_round(opened.id)
                return network.handle_request(request)

        device = Device(live.url, live.key, dataset.id, cap=1, store=tmp_path / "d.json", transport=Closing())
        assert device.report(RECORD).outcome is Outcome.TOO_LATE
        assert FileStore(tmp_path / "d.json").read(dataset.id).memos[opened.id].state == "closed"
        assert device.spent == 1.0

    def test_a_dataset_of_nobody_is_not_found(self, live: Live, network: httpx.BaseTransport) -> None:
        device = Device(live.url, live.key, "ds_" + "0" * 26, cap=1, store=MemoryStore(), transport=network)
        with pytest.raises(ApiProblem, match="not_found"):
            device.report(RECORD)


class LosingTransport(httpx.BaseTransport):
    """The network, that loses the first answers to POST on their way back."""

    def __init__(self, network: httpx.BaseTransport, n_lost: int) -> None:
        self._network = network
        self.n_lost = n_lost
        self.seen: list[tuple[str, int]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._network.handle_request(request)
        self.seen.append((request.method, response.status_code))
        if request.method == "POST" and self.n_lost > 0:
            self.n_lost -= 1
            response.close()
            raise httpx.ReadTimeout("lost")
        return response


def _tallied(client: Client, round_id: str) -> Round:
    deadline = time.monotonic() + START_SECONDS
    while (found := client.get_round(round_id)).state != "tallied":
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


class TestAnAnalyst:
    def test_from_a_dataset_to_clusters_and_back_through_the_ledger(self, client: Client, dataset: Dataset) -> None:
        generator = np.random.default_rng(2)
        records = np.concatenate([generator.normal(centre, 0.4, (10_000, 2)) for centre in ((2, -2), (6, 2))])
        job = client.submit_job(dataset.id, ShiftedGrid(epsilon=4, clusters=2), target_reports=len(records))
        waiting = job
        deadline = time.monotonic() + START_SECONDS
        while waiting.progress.open_round_id is None:
            assert time.monotonic() < deadline, waiting
            waiting = client.get_job(job.id)
        round_id = waiting.progress.open_round_id
        spec = client.get_round(round_id).spec
        assert spec.features == FEATURES
        assert client.send_reports(round_id, *perturb_records(spec, records)) == len(records)
        seen: list[str] = []
        done = client.wait_for_job(job.id, timeout_seconds=240, on_progress=lambda job: seen.append(job.state))
        assert (done.state, done.error, seen[-1]) == ("succeeded", None, "succeeded")

        result = client.result(job.id)
        assert result.epsilon == pytest.approx(4, abs=1e-6)
        assert [each.n_reports for each in result.rounds] == [len(records)]
        labels = result.model.assign(records)
        assert min((labels[:10_000] == labels[0]).mean(), (labels[10_000:] == labels[-1]).mean()) > 0.99
        assert labels[0] != labels[-1]
        assert client.assign(job.id, records[:50]).tolist() == labels[:50].tolist()
        assert client.plot_svg(job.id).lstrip().startswith("<")
        assert client.plot_png(job.id).startswith(b"\x89PNG")

        budget = client.budget(dataset.id)
        verified = client.verify_ledger(dataset.id)
        assert verified.ok
        assert verified.head == budget.head
        assert [entry.kind for entry in client.ledger(dataset.id)][:3] == ["grant", "reserve", "post"]
        assert (budget.balance.reserved_nano, budget.balance.granted_nano) == (0, 8 * NANO)
        client.grant(dataset.id, 1)
        assert client.verify_ledger(dataset.id, noted=[verified.head]).ok
        assert not client.verify_ledger(dataset.id, noted=[Head(1, "0" * 64)]).ok

    def test_earlier_rounds_serve_a_job_at_no_further_cost(self, client: Client, dataset: Dataset) -> None:
        opened = open_round(client, dataset, epsilon=2, target=4000)
        records = np.random.default_rng(1).uniform([0, -4], [3, -1], (4000, 2))
        client.send_reports(opened.id, *perturb_records(opened.spec, records))
        before = client.budget(dataset.id).balance
        job = client.submit_job(dataset.id, UniformGrid(epsilon=2, cells=4), round_ids=[opened.id])
        done = client.wait_for_job(job.id, timeout_seconds=240)
        assert (done.state, done.error) == ("succeeded", None)
        assert client.budget(dataset.id).balance == before
        assert job.id in [each.id for each in client.jobs(dataset.id)]

    def test_reports_that_cannot_be_are_refused_whole(self, live: Live, client: Client, dataset: Dataset) -> None:
        opened = open_round(client, dataset)
        ids, slots, values = perturb_records(opened.spec, np.tile(RECORD, (10, 1)))
        slots[7] = 1
        with pytest.raises(ReportMalformed) as raised:
            client.send_reports(opened.id, ids, slots, values)
        assert raised.value.index == 7
        assert live.log(opened.id) == b""

    def test_datasets_rounds_and_keys_are_kept_in_order(self, client: Client, dataset: Dataset) -> None:
        assert client.get_dataset(dataset.id) == dataset
        assert client.update_dataset(dataset.id, name="others").name == "others"
        opened = [open_round(client, dataset, epsilon=0.5) for _ in range(3)]
        assert [each.id for each in client.rounds(dataset.id)] == [each.id for each in opened]
        key = client.create_key("ledger", ["ledger"], dataset_id=dataset.id)
        assert [each.secret for each in client.list_keys() if each.id == key.id] == [None]
        client.revoke_key(key.id)
        client.delete_dataset(dataset.id)
        assert dataset.id not in [each.id for each in client.datasets()]
        assert client.verify_ledger(dataset.id).ok

    def test_what_is_not_granted_is_not_spent(self, client: Client, dataset: Dataset) -> None:
        with pytest.raises(ApiProblem) as raised:
            client.submit_job(dataset.id, ShiftedGrid(epsilon=8.000000001), target_reports=10)
        assert raised.value.code == "budget_exhausted"
        assert client.budget(dataset.id).remaining_nano == 8 * NANO

    def test_a_job_can_be_cancelled_and_gives_back_what_it_held(self, client: Client, dataset: Dataset) -> None:
        job = client.submit_job(dataset.id, ShiftedGrid(epsilon=3), target_reports=1000)
        client.cancel_job(job.id)
        assert client.wait_for_job(job.id, timeout_seconds=240).state == "canceled"
        assert client.budget(dataset.id).balance.reserved_nano == 0


class TestAnAnalystWhoAwaits:
    def test_from_a_dataset_to_clusters_beside_other_work(self, live: Live) -> None:
        records = np.repeat([[2.0, -2.0], [6.0, 2.0]], 2000, axis=0)

        async def one(client: AsyncClient, name: str) -> tuple[str, int, bool]:
            dataset = await client.create_dataset(name, FEATURES, epsilon=4, min_reports=1)
            opened = await client.open_round(dataset.id, GridEncoding((4, 4)), epsilon=4, target_reports=4000)
            await client.send_reports(opened.id, *perturb_records(opened.spec, records))
            algorithm = UniformGrid(epsilon=4, clusters=2, cells=4)
            job = await client.submit_job(dataset.id, algorithm, round_ids=[opened.id])
            done = await job.wait(timeout_seconds=240)
            model = (await done.result()).model
            assert [each.id async for each in client.jobs(dataset.id)] == [job.id]
            return done.state, model.n_clusters, (await client.verify_ledger(dataset.id)).ok

        async def main() -> list[tuple[str, int, bool]]:
            async with AsyncClient(live.url, live.key) as client:
                return await asyncio.gather(*(one(client, name) for name in ("one", "two", "three")))

        assert asyncio.run(main()) == [("succeeded", 2, True)] * 3

    def test_reads_administration(self, live: Live) -> None:
        async def main() -> tuple[list[str], int | None]:
            async with AsyncClient(live.url, live.key) as client:
                key = await client.create_key("seen", ["jobs"])
                await client.revoke_key(key.id)
                acts = [each.act async for each in client.audit_events() if each.subject_id == key.id]
                return acts, (await client.limits()).datasets.used

        acts, n_datasets = asyncio.run(main())
        assert acts == ["key.created", "key.revoked"]
        assert n_datasets is not None

    def test_changes_only_what_is_as_it_was_read(self, client: Client, dataset: Dataset) -> None:
        read = client.get_dataset(dataset.id)
        assert read.etag
        assert client.update_dataset(dataset.id, name="first", if_match=read.etag).name == "first"
        with pytest.raises(ApiProblem) as raised:
            client.update_dataset(dataset.id, name="second", if_match=read.etag)
        assert raised.value.code == "precondition_failed"
        assert client.get_dataset(dataset.id).name == "first"

    def test_a_dry_run_leaves_no_trace(self, live: Live, client: Client, dataset: Dataset) -> None:
        opened = open_round(client, dataset)
        store = MemoryStore()
        with Device(live.url, live.key, dataset.id, cap=1, store=store) as device:
            (prospect,) = device.dry_run(RECORD).rounds
            assert (prospect.would, prospect.epsilon) == ("send", 1.0)
            assert live.log(opened.id) == b""
            assert store.read(dataset.id).memos == {}
            assert device.report(RECORD).outcome is Outcome.SENT
