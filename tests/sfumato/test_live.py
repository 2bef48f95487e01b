"""Devices and clients against a real service with its own process and database."""

import asyncio
import doctest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from models.collection import report_log
from models.database.engine import Database
from sfumato.api.client import AsyncClient, Client
from sfumato.api.resources import Dataset, Round
from sfumato.device.bulk import perturb_records
from sfumato.device.device import Device
from sfumato.device.outcomes import Outcome
from sfumato.device.store import FileStore, MemoryStore
from sfumato.errors import ApiProblem, CapExceeded, ReportMalformed
from sfumato.privacy.accounting import NANO
from sfumato.privacy.ledger import Head
from sfumato.specs import Feature, GridEncoding, Participation, ShiftedGrid, UniformGrid
from tests.service.processes import running, until
from tests.sfumato.test_doctests import EXAMPLES_WITH_SERVICE, run_example

FEATURES = (Feature("x", 0, 8, "km"), Feature("y", -4, 4))
RECORD = [1.5, 3.5]


@dataclass(frozen=True)
class Live:
    """A running service and its database."""

    url: str
    key: str
    database: Database

    def log(self, round_id: str) -> bytes:
        """Return all packed reports of a round, as stored."""
        with self.database.reading() as session:
            return b"".join(packed for _, packed in report_log.batches(session, round_id))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("service") / "home"
    with running(home, "serve", "--port", "0", SFUMATO_SOURCE_LIMIT="none") as service:
        url = service.url()
        database = Database(f"sqlite:///{home / 'sfumato.db'}", pool_size=2)
        yield Live(url, (home / "admin.key").read_text().strip(), database)
        database.close()


@pytest.fixture
def client(live: Live) -> Iterator[Client]:
    with Client(live.url, live.key) as client:
        yield client


@pytest.fixture(scope="module")
def network() -> Iterator[httpx.BaseTransport]:
    """Return one pool of connections for all devices. A device does not close its transport."""
    with httpx.HTTPTransport() as transport:
        yield transport


@pytest.fixture
def dataset(client: Client) -> Dataset:
    return client.create_dataset("people", FEATURES, epsilon=8, min_reports=1)


def open_round(client: Client, dataset: Dataset, *, epsilon: float = 1, target: int = 1000) -> Round:
    return client.open_round(dataset.id, GridEncoding((4, 4)), epsilon=epsilon, target_reports=target)


class TestDevice:
    def test_stores_exactly_one_report(self, live: Live, client: Client, dataset: Dataset) -> None:
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
        assert len(packed) == 20 + opened.spec.mechanism.value_bytes
        assert packed[:16].hex() == store.read(dataset.id).memos[opened.id].report_id
        assert packed[16:20] == bytes(4)
        assert opened.spec.mechanism.is_value(packed[20:])
        assert client.get_round(opened.id).n_received == 1

    @pytest.mark.slow
    def test_lost_responses_leave_one_report(
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
        assert until(lambda: client.get_round(opened.id).n_reports) == 1

    def test_fetches_open_rounds_only_if_they_changed(
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
        assert [status for method, status in watching.responses if method == "GET"] == [200, 304, 200]

    def test_enforces_its_cap_against_the_service(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport
    ) -> None:
        opened = open_round(client, dataset, epsilon=2.5)
        device = Device(live.url, live.key, dataset.id, cap=2, store=MemoryStore(), transport=network)
        with pytest.raises(CapExceeded):
            device.report(RECORD)
        assert live.log(opened.id) == b""

    def test_reports_only_if_its_draw_lies_inside(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport
    ) -> None:
        opened = client.open_round(
            dataset.id,
            GridEncoding((4, 4)),
            epsilon=1,
            target_reports=1000,
            participation=Participation.between(0, 0.5),
        )
        outcomes = [
            Device(live.url, live.key, dataset.id, cap=1, store=MemoryStore(), transport=network).report(RECORD).outcome
            for _ in range(60)
        ]
        assert set(outcomes) == {Outcome.SENT, Outcome.NOT_SELECTED}
        assert client.get_round(opened.id).n_received == outcomes.count(Outcome.SENT)

    def test_a_report_to_a_closed_round_is_too_late(
        self, live: Live, client: Client, dataset: Dataset, network: httpx.BaseTransport, tmp_path: Path
    ) -> None:
        opened = open_round(client, dataset)

        class Closing(httpx.BaseTransport):
            def handle_request(self, request: httpx.Request) -> httpx.Response:
                if request.method == "POST":
                    client.close_round(opened.id, allow_empty=True)
                return network.handle_request(request)

        device = Device(live.url, live.key, dataset.id, cap=1, store=tmp_path / "d.json", transport=Closing())
        assert device.report(RECORD).outcome is Outcome.TOO_LATE
        assert FileStore(tmp_path / "d.json").read(dataset.id).memos[opened.id].state == "closed"
        assert device.spent == 1.0

    def test_an_unknown_dataset_is_not_found(self, live: Live, network: httpx.BaseTransport) -> None:
        device = Device(live.url, live.key, "ds_" + "0" * 26, cap=1, store=MemoryStore(), transport=network)
        with pytest.raises(ApiProblem, match="not_found"):
            device.report(RECORD)


class LosingTransport(httpx.BaseTransport):
    """A transport that loses the first responses to POST."""

    def __init__(self, network: httpx.BaseTransport, n_lost: int) -> None:
        self._network = network
        self.n_lost = n_lost
        self.responses: list[tuple[str, int]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._network.handle_request(request)
        self.responses.append((request.method, response.status_code))
        if request.method == "POST" and self.n_lost > 0:
            self.n_lost -= 1
            response.close()
            raise httpx.ReadTimeout("lost")
        return response


class TestAnalyst:
    def test_gets_clusters_and_verifies_the_ledger(self, client: Client, dataset: Dataset) -> None:
        generator = np.random.default_rng(2)
        records = np.concatenate([generator.normal(centre, 0.4, (5000, 2)) for centre in ((2, -2), (6, 2))])
        algorithm = ShiftedGrid(epsilon=4, clusters=2, cells=8, shifts=2)
        job = client.submit_job(dataset.id, algorithm, target_reports=len(records))
        round_id = until(lambda: client.get_job(job.id).progress.open_round_id)
        spec = client.get_round(round_id).spec
        assert spec.features == FEATURES
        assert client.send_reports(round_id, *perturb_records(spec, records)) == len(records)
        states: list[str] = []
        done = client.wait_for_job(job.id, timeout_seconds=240, on_progress=lambda job: states.append(job.state))
        assert (done.state, done.error, states[-1]) == ("succeeded", None, "succeeded")

        result = client.result(job.id)
        assert result.epsilon == pytest.approx(4, abs=1e-6)
        assert [each.n_reports for each in result.rounds] == [len(records)]
        labels = result.model.assign(records)
        assert min((labels[:5000] == labels[0]).mean(), (labels[5000:] == labels[-1]).mean()) > 0.99
        assert labels[0] != labels[-1]
        assert client.assign(job.id, records[:50]).tolist() == labels[:50].tolist()
        assert client.plot_svg(job.id).lstrip().startswith("<")
        assert client.plot_png(job.id).startswith(b"\x89PNG")

        budget = client.budget(dataset.id)
        verified = client.verify_ledger(dataset.id)
        assert verified.ok
        assert verified.head == budget.head
        assert [entry.kind for entry in client.ledger(dataset.id, oldest_first=True)][:3] == [
            "grant",
            "reserve",
            "charge",
        ]
        assert (budget.balance.reserved_nano, budget.balance.granted_nano) == (0, 8 * NANO)
        client.grant(dataset.id, 1)
        assert client.verify_ledger(dataset.id, noted=[verified.head]).ok
        assert not client.verify_ledger(dataset.id, noted=[Head(1, "0" * 64)]).ok

    def test_a_malformed_report_rejects_the_whole_batch(self, live: Live, client: Client, dataset: Dataset) -> None:
        opened = open_round(client, dataset)
        ids, slots, values = perturb_records(opened.spec, np.tile(RECORD, (10, 1)))
        slots[7] = 1
        with pytest.raises(ReportMalformed) as raised:
            client.send_reports(opened.id, ids, slots, values)
        assert raised.value.index == 7
        assert live.log(opened.id) == b""

    def test_administers_datasets_rounds_and_keys(self, client: Client, dataset: Dataset) -> None:
        assert client.get_dataset(dataset.id) == dataset
        assert client.update_dataset(dataset.id, name="others").name == "others"
        opened = [open_round(client, dataset, epsilon=0.5) for _ in range(3)]
        assert [each.id for each in client.rounds(dataset.id)] == [each.id for each in opened[::-1]]
        key = client.create_key("ledger", ["ledger"], dataset_id=dataset.id)
        assert [each.secret for each in client.list_keys() if each.id == key.id] == [None]
        client.revoke_key(key.id)
        client.delete_dataset(dataset.id)
        assert dataset.id not in [each.id for each in client.datasets()]
        assert client.verify_ledger(dataset.id).ok

    def test_a_job_beyond_the_budget_reserves_nothing(self, client: Client, dataset: Dataset) -> None:
        with pytest.raises(ApiProblem) as raised:
            client.submit_job(dataset.id, ShiftedGrid(epsilon=8.000000001), target_reports=10)
        assert raised.value.code == "budget_exhausted"
        assert client.budget(dataset.id).remaining_nano == 8 * NANO

    def test_a_cancelled_job_releases_its_reservation(self, client: Client, dataset: Dataset) -> None:
        job = client.submit_job(dataset.id, ShiftedGrid(epsilon=3), target_reports=1000)
        client.cancel_job(job.id)
        assert client.wait_for_job(job.id, timeout_seconds=240).state == "canceled"
        assert client.budget(dataset.id).balance.reserved_nano == 0

    def test_awaits_jobs_over_earlier_rounds_at_no_further_cost(self, live: Live) -> None:
        records = np.repeat([[2.0, -2.0], [6.0, 2.0]], 2000, axis=0)

        async def run_job(client: AsyncClient, name: str) -> None:
            dataset = await client.create_dataset(name, FEATURES, epsilon=4, min_reports=1)
            opened = await client.open_round(dataset.id, GridEncoding((4, 4)), epsilon=4, target_reports=4000)
            await client.send_reports(opened.id, *perturb_records(opened.spec, records))
            before = (await client.budget(dataset.id)).balance
            algorithm = UniformGrid(epsilon=4, clusters=2, cells=4)
            job = await client.submit_job(dataset.id, algorithm, round_ids=[opened.id])
            done = await job.wait(timeout_seconds=240)
            assert (done.state, done.error) == ("succeeded", None)
            assert (await done.result()).model.n_clusters == 2
            assert [each.id async for each in client.jobs(dataset.id)] == [job.id]
            assert (await client.verify_ledger(dataset.id)).ok
            assert (await client.budget(dataset.id)).balance == before

        async def main() -> None:
            async with AsyncClient(live.url, live.key) as client:
                await asyncio.gather(*(run_job(client, name) for name in ("one", "two")))
                key = await client.create_key("seen", ["jobs"])
                await client.revoke_key(key.id)
                acts = [each.act async for each in client.audit_events(object_id=key.id, oldest_first=True)]
                assert acts == ["key.created", "key.revoked"]
                assert (await client.limits()).datasets.used is not None

        asyncio.run(main())

    def test_updates_only_an_unchanged_dataset(self, client: Client, dataset: Dataset) -> None:
        read = client.get_dataset(dataset.id)
        assert read.etag
        assert client.update_dataset(dataset.id, name="first", if_match=read.etag).name == "first"
        with pytest.raises(ApiProblem) as raised:
            client.update_dataset(dataset.id, name="second", if_match=read.etag)
        assert raised.value.code == "precondition_failed"
        assert client.get_dataset(dataset.id).name == "first"

    def test_a_dry_run_sends_and_stores_nothing(self, live: Live, client: Client, dataset: Dataset) -> None:
        opened = open_round(client, dataset)
        store = MemoryStore()
        with Device(live.url, live.key, dataset.id, cap=1, store=store) as device:
            (prospect,) = device.dry_run(RECORD).rounds
            assert (prospect.would, prospect.epsilon) == ("send", 1.0)
            assert live.log(opened.id) == b""
            assert store.read(dataset.id).memos == {}
            assert device.report(RECORD).outcome is Outcome.SENT


class TestExamples:
    @pytest.mark.parametrize("example", EXAMPLES_WITH_SERVICE, ids=lambda example: example.name)
    def test_docstrings_are_true_of_the_service(self, example: doctest.DocTest, live: Live, client: Client) -> None:
        dataset = client.create_dataset("Lunch", [Feature("east", 0, 10), Feature("north", 0, 10)], epsilon=2)
        client.open_round(dataset.id, GridEncoding((8, 8)), epsilon=1, target_reports=1000)
        example.globs.update(url=live.url, key=live.key, dataset_id=dataset.id)
        assert run_example(example) == ""
