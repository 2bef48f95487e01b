"""The demo in production form: PostgreSQL, Redis, two gateways and two workers, of which one each is killed.

The second worker continues the job, and the second gateway serves the devices. No report is lost or counted twice.
Afterwards an embedded reference run, in SQLite and without kills, repeats the job over the stored tallies. Its clusters
must be equal to the last bit, and its ledger must have the same entries.
"""

import itertools
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from sqlalchemy.orm import undefer

from demo.scenario import DemoResult, DemoService, Scene, ServiceFailed
from devservers.fleet import Fleet, Member
from models import datasets
from models.collection import rounds
from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import SECOND
from models.identity import caller as caller_module
from models.identity import tenants
from models.jobs import claims, lifecycle
from models.jobs.jobs import get_result
from models.ledger import amounts
from models.ledger.ledger import page
from models.tables.datasets import Trust
from models.tables.jobs import Job
from models.tables.ledger import LedgerEntry
from models.tables.rounds import CollectionTarget, Round
from sfumato.specs import to_wire

N_GATEWAYS = N_WORKERS = 2
LEASE_SECONDS = 2.0  # shorter than the default of 20: time until another worker claims the job of a dead one
POLL_SECONDS = 0.005  # between searches for the claim of the worker to kill

Amounts = list[tuple[str, int]]  # kinds of ledger entries, and their nano-epsilon


@dataclass(frozen=True)
class Kill:
    """A killed process."""

    at_seconds: float  # since the fleet was ready
    what: str
    where: str  # moment in the scenario


@dataclass(frozen=True)
class StoredJob:
    """The job in the fleet's database, at its end."""

    tallies: tuple[tuple[bytes, int], ...]  # per round: tally, number of counted reports
    fences: tuple[int, ...]  # per claim, from the workers' logs


class AlternatingTransport(httpx.BaseTransport):
    """Sends requests to the gateways in turn, and skips gateways that do not listen.

    An interrupted request is not sent again here. The SDK decides whether to retry; the retry goes to the next gateway.
    """

    def __init__(self, urls: list[str]) -> None:
        self._urls = [httpx.URL(url) for url in urls]
        self._turns = itertools.count()
        self._network = httpx.HTTPTransport(trust_env=False)
        self.n_broken = 0
        self.n_elsewhere = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the next gateway that listens."""
        turn = next(self._turns)
        for n_tried in range(len(self._urls)):
            url = self._urls[(turn + n_tried) % len(self._urls)]
            try:
                return self._network.handle_request(_address_to(request, url))
            except httpx.ConnectError:
                self.n_elsewhere += 1
                if n_tried == len(self._urls) - 1:
                    raise
            except httpx.TransportError:
                self.n_broken += 1
                raise
        raise AssertionError("there is at least one gateway")

    def close(self) -> None:
        """Close the connections."""
        self._network.close()


def _address_to(request: httpx.Request, url: httpx.URL) -> httpx.Request:
    target = request.url.copy_with(scheme=url.scheme, host=url.host, port=url.port)
    headers = request.headers.copy()
    headers["Host"] = url.netloc.decode()
    return httpx.Request(request.method, target, headers=headers, stream=request.stream, extensions=request.extensions)


class Production(DemoService):
    """A `DemoService` that kills one gateway and one worker.

    Parameters
    ----------
    kill_gateway_after : int
        Number of reports after which the first gateway is killed.
    """

    def __init__(self, kill_gateway_after: int) -> None:
        self._kill_gateway_after = kill_gateway_after
        self.kills: list[Kill] = []
        self.transports: list[AlternatingTransport] = []
        self.stored: StoredJob | None = None
        self._claims: set[int] = set()
        self._watching: threading.Thread | None = None
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="sfumato-demo-")
        settings = {
            "SFUMATO_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
            "SFUMATO_WARM_KERNELS": "false",  # the single job needs few kernels
        }
        sizes = {"n_gateways": N_GATEWAYS, "n_workers": N_WORKERS}
        try:
            self._fleet = Fleet(Path(self._directory.name), durable=True, settings=settings, **sizes).__enter__()
        except BaseException:
            self._directory.cleanup()
            raise
        self._workers = list(self._fleet.workers)  # includes the killed one, because its log contains its claims
        self._began = time.monotonic()
        self.url, self.key = self._fleet.urls[0], self._fleet.key
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._watching is not None:
            self._watching.join()
        try:
            self._fleet.__exit__(kind, error, traceback)
        finally:
            self._directory.cleanup()

    def check(self) -> None:
        """Raise an error if a process has ended that was not killed."""
        self._fleet.check()

    def open_transport(self) -> AlternatingTransport:
        """Return a new transport that alternates between the gateways."""
        self.transports.append(AlternatingTransport(self._fleet.urls))
        return self.transports[-1]

    def on_reports(self, n_reports: int) -> None:
        """Kill the first gateway once enough reports have been acknowledged."""
        if n_reports >= self._kill_gateway_after and len(self._fleet.gateways) == N_GATEWAYS:
            self._kill(self._fleet.gateways[0], f"after {n_reports:,} reports, with others under way")

    def on_submitted(self, job_id: str) -> None:
        """Start a thread that kills the worker with the next claim, which computes the result."""
        self._watching = threading.Thread(target=self._kill_worker, args=(job_id,), name="kill-worker", daemon=True)
        self._watching.start()

    def on_succeeded(self, job_id: str) -> None:
        """Read the stored tallies and claims for the reference run."""
        fences = tuple(sorted(fence for worker in self._workers for fence in _claims(worker, job_id)))
        database = Database(self._fleet.database_url)
        try:
            with database.reading() as session:
                found = [
                    session.get_one(Round, each.id, options=[undefer(Round.tally)])
                    for each in rounds.list_for_job(session, job_id)
                ]
                tallies = tuple((each.tally or b"", each.n_reports or 0) for each in found)
        finally:
            database.close()
        self.stored = StoredJob(tallies, fences)

    def _kill_worker(self, job_id: str) -> None:
        """Kill the worker that claims the job next. The kernel then kills its job process."""
        earlier = {fence for worker in self._workers for fence in _claims(worker, job_id)}
        while not self._stop.wait(POLL_SECONDS):
            for worker in self._workers:
                if fences := _claims(worker, job_id) - earlier:
                    self._kill(worker, f"computing, with the job's claim number {min(fences)}")
                    return

    def _kill(self, member: Member, where: str) -> None:
        self._fleet.kill_member(member)
        self.kills.append(Kill(time.monotonic() - self._began, member.name, where))


def _claims(worker: Member, job_id: str) -> set[int]:
    return {line["fence"] for line in worker.log_events("job_claimed") if line["job_id"] == job_id}


@dataclass(frozen=True)
class Comparison:
    """The result of the run with kills, compared with the reference run."""

    kills: tuple[Kill, ...]
    n_claims: int
    n_broken: int  # interrupted requests, which were sent again
    same_clusters: bool
    same_ledger: bool
    n_reports: int
    n_devices: int

    @property
    def complaints(self) -> list[str]:
        """Return the differences from the expected result; empty if there are none."""
        killed = [kill.what.split("-")[0] for kill in self.kills]
        checks = {
            "the killed processes are not one gateway and one worker": sorted(killed) == ["gateway", "worker"],
            # Claims: one opens the round, one is killed, one continues. A slow machine may lose another lease.
            "the worker finished its work before it was killed": self.n_claims >= 3,
            f"{self.n_devices} devices reported and {self.n_reports} reports count": self.n_reports == self.n_devices,
            "the clusters differ from those of the embedded reference run": self.same_clusters,
            "the ledger differs from that of the embedded reference run": self.same_ledger,
        }
        return [complaint for complaint, holds in checks.items() if not holds]

    def to_wire(self) -> dict[str, Any]:
        """Return the form in result.json."""
        return {
            "gateways": N_GATEWAYS,
            "workers": N_WORKERS,
            "killed": [{"what": a.what, "where": a.where} for a in self.kills],
            "claims": self.n_claims,
            "broken_requests": self.n_broken,
            "same_clusters": self.same_clusters,
            "same_ledger": self.same_ledger,
            "complaints": self.complaints,
        }


def compare(scene: Scene, outcome: DemoResult, service: Production) -> Comparison:
    """Repeat the job in an embedded reference run, and compare the results.

    Raises
    ------
    ServiceFailed
        The job did not succeed in the fleet.
    """
    if service.stored is None:
        raise ServiceFailed("the job did not succeed in the fleet")
    with tempfile.TemporaryDirectory(prefix="sfumato-demo-") as home:
        model, ledger = run_reference(Path(home), scene, service.stored.tallies)
    return Comparison(
        kills=tuple(service.kills),
        n_claims=len(service.stored.fences),
        n_broken=sum(transport.n_broken for transport in service.transports),
        same_clusters=model == outcome.model.to_wire(),
        same_ledger=ledger == [(entry.kind, entry.epsilon_nano) for entry in outcome.ledger],
        n_reports=outcome.n_reports,
        n_devices=len(scene.records),
    )


def run_reference(home: Path, scene: Scene, tallies: tuple[tuple[bytes, int], ...]) -> tuple[dict[str, Any], Amounts]:
    """Run the scene's job in a new SQLite database, with these tallies as its rounds.

    Returns
    -------
    dict, list
        The published model, and the kinds and amounts of the ledger entries.
    """
    url = f"sqlite:///{home / 'reference.db'}"
    migrate(url)
    database = Database(url)
    try:
        job_id, caller = _submit(database, scene)
        for tally, n_reports in tallies:
            _run(database, job_id)
            with database.transaction() as session:
                asked = rounds.list_for_job(session, job_id)[-1]
                rounds.close(session, caller, asked.id, now=database.clock())
                rounds.store_tally(session, asked.id, tally, n_reports, now=database.clock())
        _run(database, job_id)
        with database.reading() as session:
            document = get_result(session, job_id).document
            dataset_id = session.get_one(Job, job_id).dataset_id
            entries: list[LedgerEntry] = page(session, dataset_id, after_seq=0, limit=1000)
            return document["model"], [(entry.kind, entry.epsilon_nano) for entry in entries]
    finally:
        database.close()


def _submit(database: Database, scene: Scene) -> tuple[str, caller_module.Caller]:
    epsilon_nano = scene.algorithm.epsilon_nano
    with database.transaction() as session:
        now = database.clock()
        caller = caller_module.operator(tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=now).id)
        dataset = datasets.create(
            session, caller,
            name=scene.name, trust=Trust.LOCAL, features=scene.features, epsilon_nano=epsilon_nano,
            min_reports=100, keep_reports=False, max_datasets=1, now=now,
        )  # fmt: skip
        collect = CollectionTarget(target_reports=len(scene.records), min_reports=0, seconds=604_800)
        job = lifecycle.submit(
            session, caller, dataset,
            lifecycle.NewJob(to_wire(scene.algorithm), amounts.Amounts(epsilon_nano), collect),
            max_active_jobs=1, now=now,
        )  # fmt: skip
        return job.id, caller


def _run(database: Database, job_id: str) -> None:
    """Execute one claim, as a job process does."""
    from workers import job_runner  # loads numba, which only this function needs

    with database.transaction() as session:
        claim = claims.claim(session, now=database.clock(), lease_microseconds=600 * SECOND, max_attempts=5)
    if claim is None or claim.job_id != job_id:
        raise ServiceFailed("the job of the reference run could not be claimed")
    job_runner.run(database, claim)
