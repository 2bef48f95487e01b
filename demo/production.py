"""The demo as in production: PostgreSQL, Redis, two gateways, two workers, and one of each killed on the way.

What is killed must not be missed: the job goes on with the second worker, the devices with
the second gateway, and no report is lost or counts twice. Afterwards the same job is done
again by an embedded twin, in SQLite, without any accident, over the tally that was stored:
its clusters must be the same to the last bit, and its ledger must have the same entries.
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

from demo.errors import ServiceFailed
from demo.fleet import Fleet, Member
from demo.story import Ending, Scene
from models import dataset as datasets
from models import job as jobs
from models import round as rounds
from models import tenant
from models.dataset import Trust
from models.db import SECOND, Database, migrate
from models.ledger import LedgerEntry, page
from models.result import get as get_result
from models.round import Round
from sfumato.accounting import parse_epsilon
from sfumato.specs import to_wire

N_GATEWAYS = N_WORKERS = 2
LEASE_SECONDS = 2.0  # 20 by default: how long a job waits before another worker takes it from one that is dead
LOOK_SECONDS = 0.005  # for the claim whose worker is to be killed

Amounts = list[tuple[str, int]]  # kinds of ledger entries, and nano-epsilon


@dataclass(frozen=True)
class Accident:
    """Something that was killed."""

    at_seconds: float  # since the fleet was ready
    what: str
    where: str  # in the story


@dataclass(frozen=True)
class Stored:
    """What the fleet's database holds of the job in the end."""

    tallies: tuple[tuple[bytes, int], ...]  # of each round, with the reports it counts
    fences: tuple[int, ...]  # of each claim, as the workers' logs have them


class EitherGateway(httpx.BaseTransport):
    """Requests go to the gateways in turn, and past those where nobody listens.

    A request that broke off is not sent again here: whether it may be is the SDK's business,
    which sends the same bytes again, and then it is the next gateway's turn.
    """

    def __init__(self, urls: list[str]) -> None:
        self._urls = [httpx.URL(url) for url in urls]
        self._turns = itertools.count()
        self._network = httpx.HTTPTransport()
        self.n_broken = 0
        self.n_elsewhere = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        turn = next(self._turns)
        for n_tried in range(len(self._urls)):
            url = self._urls[(turn + n_tried) % len(self._urls)]
            try:
                return self._network.handle_request(_sent_to(request, url))
            except httpx.ConnectError:
                self.n_elsewhere += 1
                if n_tried == len(self._urls) - 1:
                    raise
            except httpx.TransportError:
                self.n_broken += 1
                raise
        raise AssertionError("there is at least one gateway")

    def close(self) -> None:
        """Give the connections back."""
        self._network.close()


def _sent_to(request: httpx.Request, url: httpx.URL) -> httpx.Request:
    target = request.url.copy_with(scheme=url.scheme, host=url.host, port=url.port)
    headers = request.headers.copy()
    headers["Host"] = url.netloc.decode()
    return httpx.Request(request.method, target, headers=headers, stream=request.stream, extensions=request.extensions)


class Production:
    """A `Stage` with accidents.

    Parameters
    ----------
    lose_gateway_after : int
        Reports, after which the first gateway is killed.
    """

    url: str
    key: str

    def __init__(self, lose_gateway_after: int) -> None:
        self._lose_gateway_after = lose_gateway_after
        self.accidents: list[Accident] = []
        self.networks: list[EitherGateway] = []
        self.stored: Stored | None = None
        self._claims: set[int] = set()
        self._watching: threading.Thread | None = None
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="sfumato-demo-")
        settings = {
            "SFUMATO_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
            "SFUMATO_WARM_KERNELS": "false",  # this one job is to be waited for, and needs few
        }
        sizes = {"n_gateways": N_GATEWAYS, "n_workers": N_WORKERS}
        try:
            self._fleet = Fleet(Path(self._directory.name), durable=True, settings=settings, **sizes).__enter__()
        except BaseException:
            self._directory.cleanup()
            raise
        self._workers = list(self._fleet.workers)  # the dead among them: their logs tell of their claims
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
        """See `Stage`: nothing has ended but what was killed."""
        self._fleet.check()

    def network(self) -> EitherGateway:
        """See `Stage`."""
        self.networks.append(EitherGateway(self._fleet.urls))
        return self.networks[-1]

    def reported(self, n_reports: int) -> None:
        """See `Stage`; after so many reports a gateway is killed, whatever it is doing."""
        if n_reports >= self._lose_gateway_after and len(self._fleet.gateways) == N_GATEWAYS:
            self._lose(self._fleet.gateways[0], f"after {n_reports:,} reports, with others under way")

    def submitted(self, job_id: str) -> None:
        """See `Stage`; its round is open, so the next claim is the one that computes."""
        self._watching = threading.Thread(target=self._lose_worker, args=(job_id,), name="accident", daemon=True)
        self._watching.start()

    def ended(self, job_id: str) -> None:
        """See `Stage`; reads what the twin needs."""
        fences = tuple(sorted(fence for worker in self._workers for fence in _claims(worker, job_id)))
        database = Database(self._fleet.database_url, pool_size=2)
        try:
            with database.reading() as session:
                found = [
                    session.get_one(Round, each.id, options=[undefer(Round.tally)])
                    for each in rounds.of_job(session, job_id)
                ]
                tallies = tuple((each.tally or b"", each.n_reports or 0) for each in found)
        finally:
            database.close()
        self.stored = Stored(tallies, fences)

    def _lose_worker(self, job_id: str) -> None:
        """Kill whoever claims the job next, supervisor and, by the kernel, child."""
        earlier = {fence for worker in self._workers for fence in _claims(worker, job_id)}
        while not self._stop.wait(LOOK_SECONDS):
            for worker in self._workers:
                if fences := _claims(worker, job_id) - earlier:
                    self._lose(worker, f"computing, with the job's claim number {min(fences)}")
                    return

    def _lose(self, member: Member, where: str) -> None:
        self._fleet.lose(member)
        self.accidents.append(Accident(time.monotonic() - self._began, member.name, where))


def _claims(worker: Member, job_id: str) -> set[int]:
    return {line["fence"] for line in worker.said("job_claimed") if line["job_id"] == job_id}


@dataclass(frozen=True)
class Proof:
    """What came of the accidents, beside the twin."""

    accidents: tuple[Accident, ...]
    n_claims: int
    n_broken: int  # requests that got no answer, and were sent again
    same_clusters: bool
    same_ledger: bool
    n_reports: int
    n_devices: int

    @property
    def complaints(self) -> list[str]:
        """Why this is not the promise kept; nothing, where it is."""
        killed = [accident.what.split("-")[0] for accident in self.accidents]
        checks = {
            "not one gateway and one worker were killed": sorted(killed) == ["gateway", "worker"],
            "the worker had done its work before it was killed": self.n_claims == 3,
            f"{self.n_devices} devices reported and {self.n_reports} reports count": self.n_reports == self.n_devices,
            "the clusters are not those of the embedded twin": self.same_clusters,
            "the ledger is not that of the embedded twin": self.same_ledger,
        }
        return [complaint for complaint, holds in checks.items() if not holds]

    def to_wire(self) -> dict[str, Any]:
        """For result.json."""
        return {
            "gateways": N_GATEWAYS,
            "workers": N_WORKERS,
            "killed": [{"what": a.what, "where": a.where} for a in self.accidents],
            "claims": self.n_claims,
            "broken_requests": self.n_broken,
            "same_clusters": self.same_clusters,
            "same_ledger": self.same_ledger,
            "complaints": self.complaints,
        }


def prove(scene: Scene, ending: Ending, stage: Production) -> Proof:
    """Do the job again by an embedded twin, and compare.

    Raises
    ------
    ServiceFailed
        The job never ended on this stage.
    """
    if stage.stored is None:
        raise ServiceFailed("the fleet kept nothing of the job")
    with tempfile.TemporaryDirectory(prefix="sfumato-demo-") as home:
        model, ledger = twin(Path(home), scene, stage.stored.tallies)
    return Proof(
        accidents=tuple(stage.accidents),
        n_claims=len(stage.stored.fences),
        n_broken=sum(network.n_broken for network in stage.networks),
        same_clusters=model == ending.model.to_wire(),
        same_ledger=ledger == [(entry.kind, entry.epsilon_nano) for entry in ending.ledger],
        n_reports=ending.n_reports,
        n_devices=len(scene.records),
    )


def twin(home: Path, scene: Scene, tallies: tuple[tuple[bytes, int], ...]) -> tuple[dict[str, Any], Amounts]:
    """The scene's job in a fresh SQLite database, its rounds answered by these tallies.

    Returns
    -------
    dict, list
        The model as it is published, and the ledger's kinds and amounts.
    """
    url = f"sqlite:///{home / 'twin.db'}"
    migrate(url)
    database = Database(url, pool_size=2)
    try:
        job_id, caller = _submitted(database, scene)
        for tally, n_reports in tallies:
            _run(database, job_id)
            with database.transaction() as session:
                asked = rounds.of_job(session, job_id)[-1]
                rounds.close(session, caller, asked.id, now=database.clock())
                rounds.store_tally(session, asked.id, tally, n_reports, now=database.clock())
        _run(database, job_id)
        with database.reading() as session:
            document = get_result(session, job_id).document
            dataset_id = session.get_one(jobs.Job, job_id).dataset_id
            entries: list[LedgerEntry] = page(session, dataset_id, after_seq=0, limit=1000)
            return document["model"], [(entry.kind, entry.epsilon_nano) for entry in entries]
    finally:
        database.close()


def _submitted(database: Database, scene: Scene) -> tuple[str, tenant.Caller]:
    epsilon_nano = parse_epsilon(scene.algorithm.epsilon)
    with database.transaction() as session:
        now = database.clock()
        caller = tenant.operator(tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now).id)
        dataset = datasets.create(
            session, caller,
            name=scene.name, trust=Trust.LOCAL, features=scene.features, epsilon_nano=epsilon_nano,
            min_reports=100, keep_reports=False, max_datasets=1, now=now,
        )  # fmt: skip
        collect = rounds.Collect(target_reports=len(scene.records), min_reports=0, seconds=604_800)
        job = jobs.submit(
            session, caller, dataset,
            algorithm=to_wire(scene.algorithm), epsilon_nano=epsilon_nano, collect=collect, max_active_jobs=1, now=now,
        )  # fmt: skip
        return job.id, caller


def _run(database: Database, job_id: str) -> None:
    """One claim, as a worker's child does it."""
    from workers import runner  # loads numba, which only this needs

    with database.transaction() as session:
        held = jobs.claim(session, now=database.clock(), lease_microseconds=600 * SECOND, max_attempts=5)
    if held is None or held.job_id != job_id:
        raise ServiceFailed("the twin's job could not be claimed")
    runner.run(database, held)
