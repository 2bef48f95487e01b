"""The demo of the trust model `shuffled`: devices report through a shuffler process, beside a local dataset.

The service and the shuffler have a folder and a process each. Single devices run the SDK. The other devices belong to
an app backend, which names a sender in each request; their processes perturb, seal and send as devices do. The local
dataset has a cost of its own.
"""

import http.client
import json
import multiprocessing
import os
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
from numpy.typing import NDArray

from demo.scenario import JOB_SECONDS, ROUND_SECONDS, DemoError, DemoResult, Scene
from demo.service import LocalService
from devservers.fleet import Member, make_environment, run, start
from devservers.loopback import NO_TLS
from devservers.servers import free_port
from sfumato.api.client import Client
from sfumato.api.resources import Shuffler
from sfumato.api.submitted_jobs import SubmittedJob
from sfumato.device.bulk import perturb_records
from sfumato.device.outcomes import Outcome
from sfumato.device.sealing import (
    OUTER_BYTES,
    OUTER_KEY_HEADER,
    SIGNATURE_HEADER,
    seal,
    sealed_length,
    verify_round,
    wrap,
)
from sfumato.device.shuffled import ShuffledDevice
from sfumato.device.store import MemoryStore
from sfumato.forecast.releases import local_epsilon_for
from sfumato.privacy.accounting import ATTO, NANO, parse_epsilon
from sfumato.specs import round_spec_from_wire

HONEST_SHARE = 0.8
DELTA = 1e-6
REPORTS_PER_TASK = 2_000
CONNECTIONS = 16  # concurrent requests of a process; the shuffler commits their reports together
SHUFFLER_SECONDS = 30.0
RELEASE_SECONDS = 5  # longest delay of the release, which is minutes in production
_BACKEND = "the app of the demo"


@dataclass(frozen=True)
class ShuffledOutcome:
    """The results of both datasets, and what the parties saw.

    Attributes
    ----------
    shuffled, local : DemoResult
    local_epsilon : float
        Cost of each sealed report for an observer of the shuffler and the service together.
    epsilon, delta : float
        Cost of the release towards the service.
    sealed_bytes : int
        Length of each sealed report, with its outer layer.
    n_before : int
        Number of reports that the service showed before the release.
    sealing_seconds : float
        CPU time in which the devices perturbed, sealed and wrapped their reports, without those of single devices.
    sending_seconds : float
        Time from the first report to the last.
    """

    shuffled: DemoResult
    local: DemoResult
    local_epsilon: float
    epsilon: float
    delta: float
    sealed_bytes: int
    n_before: int
    sealing_seconds: float
    sending_seconds: float


@dataclass(frozen=True)
class Part:
    """Devices that one process runs, and the round as the shuffler published it."""

    url: str
    key: str
    round_id: str
    document: bytes
    outer_key: bytes  # key of the shuffler for the outer layer of each report
    first: int  # number of the first device, which names its sender
    records: NDArray[np.float64]


def choose_local_epsilon(scene: Scene, epsilon: float) -> float:
    """Return the largest local epsilon with which a release of all devices costs `epsilon`."""
    n_devices = len(scene.records)
    nano = local_epsilon_for(
        scene.algorithm,
        parse_epsilon(epsilon),
        n_features=len(scene.features),
        expected_reports=n_devices,
        min_batch=n_devices,
        honest_share=Fraction(str(HONEST_SHARE)),
        delta_atto=round(DELTA * ATTO),
    )
    return nano / NANO


def play_shuffled(scene: Scene, local_scene: Scene, n_processes: int) -> ShuffledOutcome:
    """Run both datasets and return their results.

    `scene.algorithm.epsilon` is the cost towards the service. `local_scene` has the same devices and the job over local
    reports.

    Raises
    ------
    DemoError
        A job did not succeed, or a device could not report.
    ProcessFailed
        The service or the shuffler ended.
    SfumatoError
        A request was rejected.
    """
    with ExitStack() as opened:
        service = opened.enter_context(LocalService())
        transport = opened.enter_context(service.open_transport())
        client = opened.enter_context(Client(service.url, service.key, transport=transport))
        home = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sfumato-demo-shuffler-")))
        return _play(scene, local_scene, client, service.url, home, n_processes)


def _play(
    scene: Scene, local_scene: Scene, client: Client, service_url: str, home: Path, n_processes: int
) -> ShuffledOutcome:
    port = free_port()
    url, environment = f"http://127.0.0.1:{port}", make_environment(home, url=service_url)
    public_key = run(home, "shuffler", "public-key", environment=environment)
    algorithm = replace(scene.algorithm, epsilon=choose_local_epsilon(scene, scene.algorithm.epsilon))
    dataset = client.create_dataset(
        scene.name,
        scene.features,
        epsilon=algorithm.epsilon,
        trust="shuffled",
        shuffled=(scene.algorithm.epsilon, DELTA),
        shuffler=Shuffler("the shuffler of the demo", url, public_key),
    )
    key = client.create_key("the shuffler", ["device"], dataset_id=dataset.id).secret or ""
    job = client.submit_job(
        dataset.id,
        algorithm,
        target_reports=len(scene.records),
        min_batch=len(scene.records),
        honest_share=HONEST_SHARE,
        shuffled_delta=DELTA,
        allow_insufficient=True,
    )
    round_id = job.wait_for_round(timeout_seconds=ROUND_SECONDS).id
    adding = ("shuffler", "add-sender", _BACKEND, "--backend", "--dataset", dataset.id)
    backend_key = run(home, *adding, environment=environment)
    with _shuffler(home, port, environment | {"SFUMATO_KEY": key}) as shuffler:
        began = time.monotonic()
        document, outer_key = _fetch_round(url, backend_key, dataset.id, round_id, public_key)
        _report_once(scene, home, url, dataset.id, public_key, algorithm.epsilon, environment)
        n_before = client.get_round(round_id).n_received
        part = Part(url, backend_key, round_id, document, outer_key, 0, scene.records)
        sealing_seconds = _send_all(part, n_processes)
        sending_seconds = time.monotonic() - began
        result = _finish(client, dataset.id, job)
        shuffler.check()
    found = client.get_round(round_id)
    return ShuffledOutcome(
        shuffled=result,
        local=_play_local(local_scene, client),
        local_epsilon=found.epsilon,
        epsilon=found.shuffled_epsilon or 0.0,
        delta=found.shuffled_delta or 0.0,
        sealed_bytes=sealed_length(found.spec.mechanism.value_bytes) + OUTER_BYTES,
        n_before=n_before,
        sealing_seconds=sealing_seconds,
        sending_seconds=sending_seconds,
    )


@contextmanager
def _shuffler(home: Path, port: int, environment: dict[str, str]) -> Iterator[Member]:
    arguments = ("run", "--host", "127.0.0.1", "--port", str(port), "--release-seconds", str(RELEASE_SECONDS))
    member = start(home, "the shuffler", *arguments, environment=environment, module="shuffler")

    def is_ready() -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, verify=NO_TLS)
            return answer.status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    try:
        member.wait_until(is_ready, "was not ready")
        yield member
    finally:
        member.stop()


def _fetch_round(url: str, key: str, dataset_id: str, round_id: str, public_key: str) -> tuple[bytes, bytes]:
    """Return the round and its outer key as the shuffler publishes them. Raise DemoError without its signature."""
    with httpx.Client(
        headers={"Authorization": f"Bearer {key}"}, timeout=SHUFFLER_SECONDS, trust_env=False, verify=NO_TLS
    ) as client:
        client.get(f"{url}/v1/datasets/{dataset_id}/rounds").raise_for_status()
        answer = client.get(f"{url}/v1/rounds/{round_id}").raise_for_status()
    signature, outer_key = (b64decode(answer.headers[name]) for name in (SIGNATURE_HEADER, OUTER_KEY_HEADER))
    if not verify_round(round_id, answer.content, outer_key, signature, b64decode(public_key)):
        raise DemoError("the shuffler's signature of the round is not valid")
    return answer.content, outer_key


def _report_once(
    scene: Scene, home: Path, url: str, dataset_id: str, public_key: str, cap: float, environment: dict[str, str]
) -> None:
    """Report with the first device as an app does with the SDK."""
    key = run(home, "shuffler", "add-sender", "the first device", "--dataset", dataset_id, environment=environment)
    with ShuffledDevice(
        url,
        key,
        dataset_id,
        shuffler_key=public_key,
        min_honest_batch=1,
        cap=cap,
        store=MemoryStore(),
        features=scene.features,
    ) as device:
        if (outcome := device.report(scene.records[0].tolist()).outcome) is not Outcome.SENT:
            raise DemoError(f"a device was to report once, and its report was {outcome.value}")


def _send_all(devices: Part, n_processes: int) -> float:
    """Report with all devices but the first. Return the CPU time of perturbing and sealing."""
    starts = range(1, len(devices.records), REPORTS_PER_TASK)
    parts = [replace(devices, first=at, records=devices.records[at : at + REPORTS_PER_TASK]) for at in starts]
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool:
        return sum(pool.imap_unordered(send_part, parts))


def send_part(part: Part) -> float:
    """Perturb, seal and send the reports of some devices. Return the CPU time of perturbing and sealing."""
    began = time.process_time()
    sealed = _seal_part(part)
    seconds = time.process_time() - began
    numbers = range(part.first, part.first + len(sealed))
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        lanes = [
            pool.submit(_send_lane, part, [*zip(numbers, sealed, strict=True)][lane::CONNECTIONS])
            for lane in range(CONNECTIONS)
        ]
        for lane in lanes:
            lane.result()
    return seconds


def _seal_part(part: Part) -> list[bytes]:
    members = json.loads(part.document)
    reports = perturb_records(round_spec_from_wire(members["spec"]), part.records)
    public_key = b64decode(members["hpke_public_key"])
    sealed = (
        seal(os.urandom(16), int(slot), value.tobytes(), part.round_id, part.document, public_key)
        for slot, value in zip(reports.slots, reports.values, strict=True)
    )
    return [wrap(each, part.round_id, part.outer_key) for each in sealed]


def _send_lane(part: Part, reports: Sequence[tuple[int, bytes]]) -> None:
    connection = http.client.HTTPConnection(urlsplit(part.url).netloc, timeout=SHUFFLER_SECONDS)
    for number, sealed in reports:
        headers = {"Authorization": f"Bearer {part.key}", "Sfumato-Sender": f"person {number}"}
        connection.request("POST", f"/v1/rounds/{part.round_id}/sealed", sealed, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != httpx.codes.ACCEPTED:
            raise DemoError(f"the shuffler answered {answer.status}: {text.decode(errors='replace')[:200]}")
    connection.close()


def _play_local(scene: Scene, client: Client) -> DemoResult:
    """Report with the same devices to a local dataset."""
    dataset = client.create_dataset(f"{scene.name}, local", scene.features, epsilon=scene.algorithm.epsilon)
    job = client.submit_job(dataset.id, scene.algorithm, target_reports=len(scene.records), allow_insufficient=True)
    job.send_as_devices(scene.records, timeout_seconds=JOB_SECONDS)
    return _finish(client, dataset.id, job)


def _finish(client: Client, dataset_id: str, job: SubmittedJob) -> DemoResult:
    done = client.wait_for_job(job.id, timeout_seconds=JOB_SECONDS)
    if done.state != "succeeded":
        reason = "" if done.error is None else f": {done.error.detail or done.error.code}"
        raise DemoError(f"the job {done.state}{reason}")
    return DemoResult(
        result=client.result(job.id),
        ledger=tuple(client.ledger(dataset_id, oldest_first=True)),
        budget=client.budget(dataset_id),
        verification=client.verify_ledger(dataset_id),
    )
