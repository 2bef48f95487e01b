"""A thousand Kotlin devices in eight processes against one service: each report is stored once, and the caps hold."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest

from audit.conformance.implementation import Implementation
from models.collection import report_log
from sfumato.api.client import Client
from sfumato.api.resources import Round
from sfumato.specs import Feature, GridEncoding
from tests.sdks.conftest import serving
from tests.sdks.packages import ROOT, run
from tests.service.api import Api

pytestmark = [pytest.mark.slow, pytest.mark.release]

N_DEVICES, N_PROCESSES = 1000, 8
CAP = 2.5
CONFORMANCE, EXAMPLE = "sfumato.device.ConformanceKt", "sfumato.device.example.ExampleKt"
REPORT_BYTES = 21  # 16 of the id, 4 of the slot, 1 of the value


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the device and its programs. Return the command that starts a program by its name."""
    module = tmp_path_factory.mktemp("kotlin") / "device"
    copytree(ROOT / "sdk" / "kotlin" / "device", module, ignore=ignore_patterns("target"))
    run("mvn", "--batch-mode", "--no-transfer-progress", "-DskipTests", "package", cwd=module)
    target = module / "target"
    classes = f"{target}/classes:{target}/test-classes:{target}/lib/*"
    return ["java", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", classes]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("service") / "home") as api:
        yield api


class Fleet:
    """The devices, each with its own store, spread over the processes."""

    def __init__(self, program: list[str], api: Api, home: Path, client: Client) -> None:
        self.program, self.api, self.home, self.client = [*program, CONFORMANCE], api, home, client
        self.dataset = client.create_dataset("Lunch", [Feature("east", 0, 8)], epsilon=8, min_reports=1)
        self.key = client.create_key("app", ["device"], dataset_id=self.dataset.id).secret

    def open(self, epsilon: float) -> Round:
        """Open a round."""
        return self.client.open_round(
            self.dataset.id, GridEncoding((4,)), mechanism="grr", epsilon=epsilon, target_reports=2 * N_DEVICES
        )

    def send(self, device: Implementation, number: int) -> int:
        """Let a device report, without waiting for its answer."""
        service = {"url": str(self.api.http.base_url).rstrip("/"), "key": self.key, "dataset_id": self.dataset.id}
        store = str(self.home / f"{number}.json")
        return device.send("report", **service, cap=str(CAP), store=store, record=[number % 8], retry_seconds=60)

    def report(self, *, kills: bool = False) -> list[dict[str, Any]]:
        """Let each device report. Return the answers. With `kills`, each process is killed twice during a report."""

        def run_process(process: int) -> list[dict[str, Any]]:
            numbers = range(process, N_DEVICES, N_PROCESSES)
            killed = {numbers[40], numbers[80]} if kills else set()
            answers, device = [], Implementation(self.program)
            for number in numbers:
                if number in killed:
                    self.send(device, number)
                    time.sleep(number % 10 / 200)  # a report takes about as long
                    device.kill()
                    device = Implementation(self.program)
                answers.append(device.receive(self.send(device, number)))
            device.kill()
            return answers

        with ThreadPoolExecutor(N_PROCESSES) as threads:
            return [answer for answers in threads.map(run_process, range(N_PROCESSES)) for answer in answers]

    def tally(self, round_: Round) -> int | None:
        """Close a round. Return the number of reports that its tally counts."""
        self.client.close_round(round_.id)
        deadline = time.monotonic() + 120
        while (counted := self.client.get_round(round_.id).n_reports) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return counted

    def stored(self, round_: Round) -> list[bytes]:
        """Return the stored reports. A device without a receipt sends its report again, so it may be there twice."""
        with self.api.database.reading() as session:
            log = b"".join(packed for _, packed in report_log.batches(session, round_.id))
        return [log[at : at + REPORT_BYTES] for at in range(0, len(log), REPORT_BYTES)]


def check_once(stored: list[bytes], *, n_kills: int) -> set[bytes]:
    """Check that each device has one report, which is there twice only after a kill. Return the ids."""
    ids = {report[:16] for report in stored}
    assert len(ids) == len(set(stored)) == N_DEVICES
    assert max(Counter(stored).values()) <= 2
    assert len(stored) <= N_DEVICES + n_kills
    return ids


def test_reports_are_stored_once_and_caps_are_kept(program: list[str], api: Api, tmp_path: Path) -> None:
    with Client(str(api.http.base_url), api.secret) as client:
        fleet = Fleet(program, api, tmp_path, client)
        n_kills = 2 * N_PROCESSES

        first = fleet.open(epsilon=1)
        began = time.monotonic()
        assert outcomes(fleet.report(kills=True)) <= {"sent", "already_answered"}
        print(f"{N_DEVICES} devices, {n_kills} kills: {time.monotonic() - began:.1f} s")
        assert outcomes(fleet.report()) == {"already_answered"}
        ids = check_once(fleet.stored(first), n_kills=n_kills)
        assert fleet.tally(first) == N_DEVICES

        costly = fleet.open(epsilon=2)
        refused = fleet.report()
        assert {answer["error"] for answer in refused} == {"cap_exceeded"}
        assert {round(answer["spent"], 6) for answer in refused} == {1.0}
        assert fleet.stored(costly) == []
        client.close_round(costly.id, allow_empty=True)

        last = fleet.open(epsilon=1.5)
        answers = fleet.report(kills=True)
        assert outcomes(answers) <= {"sent", "already_answered"}
        assert {round(answer["result"]["spent"], 6) for answer in answers} == {CAP}
        assert check_once(fleet.stored(last), n_kills=n_kills).isdisjoint(ids)
        assert fleet.tally(last) == N_DEVICES


def outcomes(answers: list[dict[str, Any]]) -> set[str]:
    return {answer["result"]["outcome"] for answer in answers}


def test_the_example_sends_a_first_report(program: list[str], api: Api, tmp_path: Path) -> None:
    with Client(str(api.http.base_url), api.secret) as client:
        features = [Feature("east", 0, 10), Feature("north", 0, 10)]
        dataset = client.create_dataset("Example", features, epsilon=2, min_reports=1)
        client.open_round(dataset.id, GridEncoding((8, 8)), epsilon=1, target_reports=1000)
        service = (str(api.http.base_url).rstrip("/"), api.secret, dataset.id)
        for outcome in ("SENT", "ALREADY_ANSWERED"):
            assert run(*program, EXAMPLE, *service, tmp_path, cwd=tmp_path) == f"{outcome}\n"
