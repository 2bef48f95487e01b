"""What the demo does: devices report to a real service, which turns their reports into clusters."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from demo.errors import DemoError
from demo.stage import Stage
from sfumato.bulk import perturb_records
from sfumato.client import Client
from sfumato.cluster_model import ClusterModel
from sfumato.device import Device, Outcome
from sfumato.ledger import LedgerEntry, Verification
from sfumato.resources import Budget, Job, Result
from sfumato.specs import Feature, ShiftedGrid
from sfumato.store import MemoryStore

DEVICE_THREADS = 8  # devices that speak to the service at once
BATCH_RECORDS = 20_000  # perturbed and sent at once
ROUND_SECONDS = 120.0  # until the job opens its round: on a first run the worker compiles its kernels before
JOB_SECONDS = 300.0
POLL_SECONDS = 0.05


class Step(StrEnum):
    """What happens one after the other, in the words a person reads."""

    START = "Starting the service"
    OPEN = "Opening the round"
    SINGLES = "Single devices report"
    BATCHES = "Batches of devices report"
    COMPUTE = "Folding and computing"
    VERIFY = "Checking the ledger"


class Watcher(Protocol):
    """Told how far each step is."""

    def begin(self, step: Step, total: int | None) -> None:
        """A step begins; None where nobody knows how long it is."""

    def advance(self, step: Step, by: int) -> None:
        """So many more are done."""

    def end(self, step: Step) -> None:
        """The step is over."""


@dataclass(frozen=True)
class Scene:
    """Who reports what, and what is asked."""

    name: str
    features: tuple[Feature, ...]
    records: NDArray[np.float64]  # one device's each, shape (n, n_features)
    algorithm: ShiftedGrid
    singles: int  # devices that report by themselves; the others come in batches


@dataclass(frozen=True)
class Ending:
    """What came of it."""

    result: Result
    ledger: tuple[LedgerEntry, ...]
    budget: Budget
    verification: Verification

    @property
    def model(self) -> ClusterModel:
        return self.result.model

    @property
    def n_reports(self) -> int:
        return sum(asked.n_reports for asked in self.result.rounds)


def play(scene: Scene, watcher: Watcher, stage: Stage) -> Ending:
    """Start the stage's service, let every device report to it, and read what it released.

    Raises
    ------
    ServiceFailed
        The service did not start, or ended in between.
    DemoError
        The job did not succeed, or a device did not get through.
    SfumatoError
        The service refused something, or did not answer.
    """
    with ExitStack() as opened:
        with _step(watcher, Step.START, None):
            opened.enter_context(stage)
        network = opened.enter_context(stage.network())
        client = opened.enter_context(Client(stage.url, stage.key, transport=network))
        try:
            return _play(scene, watcher, stage, client)
        except Exception:
            stage.check()  # its own last words explain more than a broken connection
            raise


def _play(scene: Scene, watcher: Watcher, stage: Stage, client: Client) -> Ending:
    with _step(watcher, Step.OPEN, None):
        dataset = client.create_dataset(scene.name, scene.features, epsilon=scene.algorithm.epsilon)
        key = client.create_key("the demo's devices", ["device"], dataset_id=dataset.id)
        submitted = client.submit_job(dataset.id, scene.algorithm, target_reports=len(scene.records))
        round_id = _open_round(client, stage, submitted.id)
        stage.submitted(submitted.id)
    if key.secret is None:
        raise DemoError("the service made a key without a secret")
    with _step(watcher, Step.SINGLES, scene.singles):
        _send_singles(scene, watcher, stage, key.secret, dataset.id)
    with _step(watcher, Step.BATCHES, len(scene.records) - scene.singles):
        _send_batches(scene, watcher, stage, client, round_id)
    with _step(watcher, Step.COMPUTE, None):
        if client.get_round(round_id).state == "open":
            client.close_round(round_id)
        job = client.wait_for_job(submitted.id, timeout_seconds=JOB_SECONDS)
        if job.state != "succeeded":
            raise DemoError(_why(job))
        result = client.result(job.id)
    with _step(watcher, Step.VERIFY, None):
        stage.ended(job.id)
        return Ending(
            result=result,
            ledger=tuple(client.ledger(dataset.id)),
            budget=client.budget(dataset.id),
            verification=client.verify_ledger(dataset.id),
        )


@contextmanager
def _step(watcher: Watcher, step: Step, total: int | None) -> Iterator[None]:
    watcher.begin(step, total)
    yield
    watcher.end(step)


def _open_round(client: Client, stage: Stage, job_id: str) -> str:
    deadline = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < deadline:
        stage.check()
        job = client.get_job(job_id)
        if job.progress.open_round_id is not None:
            return job.progress.open_round_id
        if job.is_final:
            raise DemoError(_why(job))
        time.sleep(POLL_SECONDS)
    raise DemoError(f"the job opened no round within {ROUND_SECONDS:g} s")


def _why(job: Job) -> str:
    reason = "" if job.error is None else f" ({job.error.code}): {job.error.detail or 'it says no more'}"
    return f"the job {job.state}{reason}"


def _send_singles(scene: Scene, watcher: Watcher, stage: Stage, key: str, dataset_id: str) -> None:
    """The first devices, each on its own: fetches the round, decides, perturbs, remembers, sends."""
    with stage.network() as network:  # one for all: a laptop has no 500 network cards

        def report(record: list[float]) -> Outcome:
            with Device(
                stage.url,
                key,
                dataset_id,
                cap=scene.algorithm.epsilon,
                store=MemoryStore(),
                features=scene.features,
                transport=network,
            ) as device:
                return device.report(record).outcome

        pool = ThreadPoolExecutor(DEVICE_THREADS, thread_name_prefix="device")
        try:
            sent = [pool.submit(report, record) for record in scene.records[: scene.singles].tolist()]
            for n_reports, answer in enumerate(as_completed(sent), start=1):
                if (outcome := answer.result()) is not Outcome.SENT:
                    raise DemoError(f"a device was to report once, and its report was {outcome.value}")
                watcher.advance(Step.SINGLES, 1)
                stage.reported(n_reports)
        finally:
            pool.shutdown(cancel_futures=True)


def _send_batches(scene: Scene, watcher: Watcher, stage: Stage, client: Client, round_id: str) -> None:
    """All other devices: perturbed here by the same integers and the system's entropy, sent together."""
    spec = client.get_round(round_id).spec
    for begin in range(scene.singles, len(scene.records), BATCH_RECORDS):
        records = scene.records[begin : begin + BATCH_RECORDS]
        client.send_reports(round_id, *perturb_records(spec, records))
        watcher.advance(Step.BATCHES, len(records))
        stage.reported(begin + len(records))
