"""The scenario of the demo: devices report to a service, and an analyst reads the clusters that it releases."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from sfumato.api.budgets import Budget
from sfumato.api.client import Client
from sfumato.api.resources import Job, Result
from sfumato.device.bulk import perturb_records
from sfumato.device.device import Device
from sfumato.device.outcomes import Outcome as ReportOutcome
from sfumato.device.store import MemoryStore
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.ledger import LedgerEntry, Verification
from sfumato.specs import Feature, ShiftedGrid


class DemoError(Exception):
    """The demo failed. The message is a sentence for the person at the terminal."""


class ServiceFailed(DemoError):
    """The demo's service did not start, or ended. The message ends with the last lines of its log."""


class DemoService(ABC):
    """A service that runs while its context is open. The thread that enters the context must stay alive.

    Attributes
    ----------
    url, key : str
        Address of the service, and an admin key.
    """

    url: str
    key: str

    @abstractmethod
    def __enter__(self) -> Self:
        """Start the service."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the service."""

    @abstractmethod
    def check(self) -> None:
        """Raise an error if the service has ended."""

    def open_transport(self) -> httpx.BaseTransport:
        """Return a new HTTP transport to the service, without a proxy. The caller closes it."""
        return httpx.HTTPTransport(trust_env=False)

    def on_reports(self, n_reports: int) -> None:  # noqa: B027 - a hook
        """Handle that `n_reports` reports in all have been acknowledged."""

    def on_submitted(self, job_id: str) -> None:  # noqa: B027 - a hook
        """Handle that the job has been submitted and its round is open."""

    def on_succeeded(self, job_id: str) -> None:  # noqa: B027 - a hook
        """Handle that the job succeeded. The service stops soon after."""


DEVICE_THREADS = 8  # devices that report concurrently
BATCH_RECORDS = 20_000  # records per batch
ROUND_SECONDS = 120.0  # timeout for the job to open its round; the worker may have to compile kernels
JOB_SECONDS = 300.0
POLL_SECONDS = 0.05


class Step(StrEnum):
    """The steps of the demo, as shown to the person."""

    START = "Starting the service"
    OPEN = "Opening the round"
    SINGLES = "Single devices report"
    BATCHES = "Batches of devices report"
    COMPUTE = "Aggregating and computing"
    VERIFY = "Checking the ledger"


class ProgressListener(Protocol):
    """Receives the progress of each step."""

    def begin(self, step: Step, total: int | None) -> None:
        """Start a step. `total` is None if its length is unknown."""

    def advance(self, step: Step, by: int) -> None:
        """Add to the progress of a step."""

    def end(self, step: Step) -> None:
        """End a step."""


@dataclass(frozen=True)
class Scene:
    """The devices with their records, and the algorithm of the job."""

    name: str
    features: tuple[Feature, ...]
    records: NDArray[np.float64]  # shape (n, n_features), one row per device
    algorithm: ShiftedGrid
    singles: int  # devices that report individually; the others report in batches


@dataclass(frozen=True)
class DemoResult:
    """The released result of the job, with the budget and ledger of its dataset."""

    result: Result
    ledger: tuple[LedgerEntry, ...]
    budget: Budget
    verification: Verification

    @property
    def model(self) -> ClusterModel:
        """Return the released clusters."""
        return self.result.model

    @property
    def n_reports(self) -> int:
        """Return the number of reports in all rounds."""
        return sum(asked.n_reports for asked in self.result.rounds)


def play(scene: Scene, progress: ProgressListener, service: DemoService) -> DemoResult:
    """Start the service, report with all devices, and return the released result.

    Raises
    ------
    ServiceFailed
        The service did not start, or ended too early.
    DemoError
        The job did not succeed, or a device could not report.
    SfumatoError
        The service rejected a request or did not respond.
    """
    with ExitStack() as opened:
        with _step(progress, Step.START, None):
            opened.enter_context(service)
        transport = opened.enter_context(service.open_transport())
        client = opened.enter_context(Client(service.url, service.key, transport=transport))
        try:
            return _play(scene, progress, service, client)
        except Exception:
            service.check()  # the log of the service explains more than a broken connection
            raise


def _play(scene: Scene, progress: ProgressListener, service: DemoService, client: Client) -> DemoResult:
    with _step(progress, Step.OPEN, None):
        dataset = client.create_dataset(scene.name, scene.features, epsilon=scene.algorithm.epsilon)
        key = client.create_key("the demo's devices", ["device"], dataset_id=dataset.id)
        submitted = client.submit_job(dataset.id, scene.algorithm, target_reports=len(scene.records))
        round_id = _open_round(client, service, submitted.id)
        service.on_submitted(submitted.id)
    if key.secret is None:
        raise DemoError("the service made a key without a secret")
    with _step(progress, Step.SINGLES, scene.singles):
        _send_singles(scene, progress, service, key.secret, dataset.id)
    with _step(progress, Step.BATCHES, len(scene.records) - scene.singles):
        _send_batches(scene, progress, service, client, round_id)
    with _step(progress, Step.COMPUTE, None):
        if client.get_round(round_id).state == "open":
            client.close_round(round_id, allow_empty=True)
        job = client.wait_for_job(submitted.id, timeout_seconds=JOB_SECONDS)
        if job.state != "succeeded":
            raise DemoError(_why(job))
        result = client.result(job.id)
    with _step(progress, Step.VERIFY, None):
        service.on_succeeded(job.id)
        return DemoResult(
            result=result,
            ledger=tuple(client.ledger(dataset.id, oldest_first=True)),
            budget=client.budget(dataset.id),
            verification=client.verify_ledger(dataset.id),
        )


@contextmanager
def _step(progress: ProgressListener, step: Step, total: int | None) -> Iterator[None]:
    progress.begin(step, total)
    yield
    progress.end(step)


def _open_round(client: Client, service: DemoService, job_id: str) -> str:
    deadline = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < deadline:
        service.check()
        job = client.get_job(job_id)
        if job.progress.open_round_id is not None:
            return job.progress.open_round_id
        if job.is_final:
            raise DemoError(_why(job))
        time.sleep(POLL_SECONDS)
    raise DemoError(f"the job opened no round within {ROUND_SECONDS:g} s")


def _why(job: Job) -> str:
    reason = "" if job.error is None else f" ({job.error.code}): {job.error.detail or 'no further detail'}"
    return f"the job {job.state}{reason}"


def _send_singles(scene: Scene, progress: ProgressListener, service: DemoService, key: str, dataset_id: str) -> None:
    """Report individually with the first devices: each fetches the round, decides, perturbs, stores and sends."""
    with service.open_transport() as transport:  # shared, to limit the number of connections

        def report(record: list[float]) -> ReportOutcome:
            with Device(
                service.url,
                key,
                dataset_id,
                cap=scene.algorithm.epsilon,
                store=MemoryStore(),
                features=scene.features,
                transport=transport,
            ) as device:
                return device.report(record).outcome

        pool = ThreadPoolExecutor(DEVICE_THREADS, thread_name_prefix="device")
        try:
            sent = [pool.submit(report, record) for record in scene.records[: scene.singles].tolist()]
            for n_reports, answer in enumerate(as_completed(sent), start=1):
                if (outcome := answer.result()) is not ReportOutcome.SENT:
                    raise DemoError(f"a device was to report once, and its report was {outcome.value}")
                progress.advance(Step.SINGLES, 1)
                service.on_reports(n_reports)
        finally:
            pool.shutdown(cancel_futures=True)


def _send_batches(
    scene: Scene, progress: ProgressListener, service: DemoService, client: Client, round_id: str
) -> None:
    """Report in batches with all other devices: perturb with the system's entropy, as a device does."""
    spec = client.get_round(round_id).spec
    for begin in range(scene.singles, len(scene.records), BATCH_RECORDS):
        records = scene.records[begin : begin + BATCH_RECORDS]
        client.send_reports(round_id, *perturb_records(spec, records))
        progress.advance(Step.BATCHES, len(records))
        service.on_reports(begin + len(records))
