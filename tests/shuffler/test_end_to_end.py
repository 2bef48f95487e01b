"""A shuffled job with real processes: gateway, worker, shuffler and devices. Each server process is killed once."""

import base64
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from devservers.fleet import Member, create_schema, make_environment, run, start
from devservers.loopback import NO_TLS
from devservers.servers import free_port
from sfumato import Client, Feature, FileStore, ShuffledDevice
from sfumato.api.resources import Shuffler
from sfumato.device.outcomes import Outcome
from sfumato.errors import Unreachable
from sfumato.privacy.accounting import NANO
from sfumato.specs import UniformGrid
from shuffler.queue import Queue, Sender
from tests.service.processes import ROOT, until

pytestmark = pytest.mark.slow

N_DEVICES = 24
N_BEFORE_THE_KILL = 10
FEATURES = [Feature("east", 0, 1), Feature("north", 0, 1)]


class Parties:
    """The processes of the service and of the shuffler, each with a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.service, self.shuffler = home / "service", home / "shuffler"
        self.service.mkdir()
        self.shuffler.mkdir()
        self._ports = {"gateway": free_port(), "shuffler": free_port()}
        self.service_url = f"http://127.0.0.1:{self._ports['gateway']}"
        self.shuffler_url = f"http://127.0.0.1:{self._ports['shuffler']}"
        self._paths = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "sdk" / "python")))}
        self._environment = self._paths | make_environment(
            self.service,
            lease_seconds="2",
            warm_kernels="false",
            records_key=base64.b64encode(secrets.token_bytes(32)).decode(),
        )
        self.admin_key = create_schema(self.service, self._environment)
        self._members: list[Member] = []

    def start_gateway(self) -> Member:
        gateway = self._start(self.service, "gateway", self._environment, "service.cli")
        gateway.wait_for_gateway()
        return gateway

    def start_worker(self, module: str = "workers") -> Member:
        name = f"worker-{len(self._members)}"
        self._members.append(start(self.service, name, environment=self._environment, module=module))
        return self._members[-1]

    def start_shuffler(self, key: str) -> Member:
        environment = self._paths | make_environment(self.shuffler, url=self.service_url, key=key)
        shuffler = self._start(self.shuffler, "shuffler", environment, "shuffler")
        shuffler.wait_until(lambda: self.read_metrics() != "", "does not answer")
        return shuffler

    def _start(self, home: Path, name: str, environment: dict[str, str], module: str) -> Member:
        command = ("run", "--release-seconds", "1") if name == "shuffler" else (name,)
        arguments = (*command, "--host", "127.0.0.1", "--port", str(self._ports[name]))
        name = f"{name}-{len(self._members)}"
        self._members.append(start(home, name, *arguments, environment=environment, module=module))
        return self._members[-1]

    def public_key(self) -> str:
        """Return the public key of the shuffler, which this creates."""
        return run(self.shuffler, "shuffler", "public-key", environment=self._paths | make_environment(self.shuffler))

    def verify_ledger(self, dataset_id: str) -> str:
        """Return the output of `sfumato ledger verify` beside the database. It fails if a figure is wrong."""
        return run(self.service, "ledger", "verify", dataset_id, environment=self._environment)

    def read_metrics(self) -> str:
        """Return the metrics of the shuffler, or nothing if it does not answer."""
        try:
            return httpx.get(f"{self.shuffler_url}/metrics", verify=NO_TLS).text
        except httpx.TransportError:
            return ""

    def stop(self) -> None:
        for member in reversed(self._members):
            member.stop()


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    found = Parties(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def add_devices(parties: Parties, dataset_id: str, public_key: str, stack: ExitStack) -> list[ShuffledDevice]:
    """Return devices with a key and a file each."""
    with closing(Queue(parties.shuffler / ".sfumato-shuffler" / "shuffler.db")) as queue:
        keys = [queue.add_sender(Sender(f"phone-{number}", dataset_id, False)) for number in range(N_DEVICES)]
    options = {"shuffler_key": public_key, "min_honest_batch": 10, "cap": 4, "retry_seconds": 0}
    return [
        stack.enter_context(
            ShuffledDevice(
                parties.shuffler_url,
                str(key),
                dataset_id,
                store=FileStore(parties.shuffler.parent / f"{number}.json"),
                **options,
            )
        )
        for number, key in enumerate(keys)
    ]


def report(devices: Sequence[ShuffledDevice], first: int = 0) -> list[Outcome]:
    """Let devices report one after the other."""
    return [device.report((number % 3 / 3, 0.5)).outcome for number, device in enumerate(devices, first)]


def test_kills_lose_and_double_no_report(parties: Parties) -> None:
    with ExitStack() as stack:
        gateway = parties.start_gateway()
        client = stack.enter_context(Client(parties.service_url, parties.admin_key))
        public_key = parties.public_key()
        dataset = client.create_dataset(
            "Lunch",
            FEATURES,
            epsilon=8,
            trust="shuffled",
            min_reports=2,
            shuffled=(8, 1e-3),
            shuffler=Shuffler("Example Foundation", parties.shuffler_url, public_key),
        )
        device_key = client.create_key("shuffler", ["device"], dataset_id=dataset.id).secret
        devices = add_devices(parties, dataset.id, public_key, stack)
        shuffler = parties.start_shuffler(str(device_key))
        worker = parties.start_worker("tests.shuffler.dying_worker")
        job = client.submit_job(
            dataset.id,
            UniformGrid(epsilon=4.0, clusters=2),
            target_reports=N_DEVICES,
            min_batch=N_DEVICES // 2,
            honest_share=1.0,
            allow_insufficient=True,
        )
        round_id = job.wait_for_round(timeout_seconds=180).id

        assert report(devices[:N_BEFORE_THE_KILL]) == [Outcome.SENT] * N_BEFORE_THE_KILL
        shuffler.kill()
        late = devices[N_BEFORE_THE_KILL]
        with pytest.raises(Unreachable):
            late.report((0.5, 0.5))
        shuffler = parties.start_shuffler(str(device_key))
        sent_again = report(devices[: N_BEFORE_THE_KILL + 1])
        assert sent_again == [Outcome.ALREADY_ANSWERED] * N_BEFORE_THE_KILL + [Outcome.SENT]
        assert client.get_round(round_id).n_received == 0

        gateway.kill()
        rest = devices[N_BEFORE_THE_KILL + 1 :]
        assert report(rest, N_BEFORE_THE_KILL + 1) == [Outcome.SENT] * len(rest)
        until(lambda: 'rounds{state="released"} 1' in parties.read_metrics())
        shuffler.kill()  # the batch waits in its database
        parties.start_gateway()
        parties.start_shuffler(str(device_key))

        assert worker.process.wait(180) == -9  # the batch was open, and its tally was not stored
        assert client.get_round(round_id).n_received == N_DEVICES
        parties.start_worker()
        assert client.wait_for_job(job.id, timeout_seconds=180).state == "succeeded"

        found = client.get_round(round_id)
        assert (found.state, found.n_received, found.n_reports) == ("tallied", N_DEVICES, N_DEVICES)
        assert len(list(client.rounds(dataset.id))) == 1
        budget = client.budget(dataset.id)
        assert budget.balance.charged_nano == round(found.epsilon * NANO) == round(devices[0].spent * NANO)
        assert budget.balance.charged_shuffled_nano == round((found.shuffled_epsilon or 0) * NANO) > 0
        assert "released_reports_total 24" in parties.read_metrics()
        assert dataset.id in parties.verify_ledger(dataset.id)
        assert client.verify_ledger(dataset.id).ok
