"""Checks after a wave of faults: no data lost or duplicated, no budget overspent, one result per job."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import undefer

from clustering.registry import start
from clustering.rounds.counting import RoundAggregator
from clustering.rounds.law import checking_law
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally, read_aggregate
from devservers.loopback import NO_TLS
from models.collection import report_log
from models.collection.report_log import HEADER_BYTES, ID_BYTES
from models.database.types import canonical_json
from models.encryption import Keyring
from models.jobs import jobs
from models.ledger import ledger
from models.records import records as record
from models.tables.jobs import Job, QueryAnswer, Result
from models.tables.ledger import Kind
from models.tables.rounds import Round, RoundState
from sfumato.privacy.accounting import cost
from sfumato.specs import LATTICE, Feature, RoundSpec, local_algorithm_from_wire
from tests.faults.clients import CANARY, FEATURES, RECORD_SPAN, ClientGroup, SubmittedJob
from tests.faults.deployment import MASTER_KEY, Deployment

RETRY_SECONDS = 240.0  # time limit of one request of the oracle
N_REREAD = 20  # number of oldest and of newest results to read again
TRACEBACK_LINES = 60  # lines of the log that a finding states, because a traceback ends with its cause
NEVER_LOGGED = ("request_failed", "job_crashed", "task_crashed", "Traceback (most recent call last)")


@dataclass
class Findings:
    """Counts of a wave, and the faults that the oracle found."""

    lost: int = 0
    doubled: int = 0
    overspent: int = 0
    blocked: int = 0  # clients, rounds and jobs that did not end
    wrong: list[str] = field(default_factory=list)
    n_reports: int = 0
    n_in_doubt: int = 0  # reports without acknowledgement
    n_rounds: int = 0
    n_jobs: int = 0
    n_results: int = 0
    n_records: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.overspent or self.blocked or self.wrong)

    def add(self, other: "Findings") -> None:
        """Add the findings of another wave."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Oracle:
    """Checks waves of one deployment. It remembers every result, because results must never change."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._results: dict[str, str] = {}  # SHA-256 of each job's result
        self._n_log_bytes = 0

    def finish(self, clients: ClientGroup, deadline: float) -> Findings:
        """Let clients, rounds and jobs end, and count those that do not until a time (monotonic seconds)."""
        stuck = clients.finish(deadline)
        n_unfinished = self._await_completion(clients, deadline)
        wrong = [f"{', '.join(stuck)} did not finish"] if stuck else []
        wrong += [f"{n_unfinished} rounds or jobs did not end"] if n_unfinished else []
        return Findings(blocked=len(stuck) + n_unfinished, wrong=wrong + clients.context.wrong)

    def check(self, clients: ClientGroup, findings: Findings) -> None:
        """Check a wave after all its work has ended. All processes run."""
        for devices in clients.devices:
            for each_round in devices.rounds:
                self._check_buckets(each_round, findings)
        local = [job for analyst in clients.analysts for job in analyst.jobs]
        for job in local + clients.central.jobs:
            self._check_job(job, findings, is_local=job in local)
        datasets = {job.dataset_id for job in local + clients.central.jobs} | {d.dataset_id for d in clients.devices}
        for dataset_id in sorted(datasets - {""}):
            self._check_ledger(dataset_id, findings)
        for analyst in (*clients.analysts, clients.central):
            self._check_number(analyst.datasets, [job.id for job in analyst.jobs], findings)
        self._check_records(clients, findings)
        self._check_results(clients, findings)
        self._check_log(clients, findings)

    def _await_completion(self, clients: ClientGroup, deadline: float) -> int:
        """Close open rounds, and wait until every round has a tally and every job has ended.

        Return the number of rounds and jobs that did not end until a time.
        """
        for devices in clients.devices:
            for each_round in devices.rounds:
                self._call("POST", f"/v1/rounds/{each_round.id}/close?allow_empty=true")
        ids = [each_round.id for devices in clients.devices for each_round in devices.rounds]
        jobs = [job.id for analyst in (*clients.analysts, clients.central) for job in analyst.jobs]

        def count_unfinished() -> int:
            with self._deployment.database.reading() as session:
                is_own = (Round.id.in_(ids) | Round.job_id.in_(jobs)) & Round.state.in_(["open", "closed"])
                n_rounds = session.scalar(select(func.count()).select_from(Round).where(is_own))
                unfinished = Job.id.in_(jobs) & Job.finished_at.is_(None)
                n_jobs = session.scalar(select(func.count()).select_from(Job).where(unfinished))
            return (n_rounds or 0) + (n_jobs or 0)

        while (n_unfinished := int(_retry(count_unfinished))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return n_unfinished

    def _call(self, method: str, path: str) -> Any:
        import httpx

        headers = {"Authorization": f"Bearer {self._deployment.secret}", "Connection": "close"}
        url = f"http://{self._deployment.entry.host}:{self._deployment.entry.port}{path}"

        def try_request() -> Any:
            response = httpx.request(method, url, headers=headers, timeout=30, trust_env=False, verify=NO_TLS)
            return response if response.status_code < 500 else None

        return _retry(try_request)

    # ---- reports ----

    def _check_buckets(self, each_round: Any, findings: Findings) -> None:
        """Check that each bucket has one report: 2 is a duplicate, 0 a loss."""
        with self._deployment.database.reading() as session:
            stored = session.get_one(Round, each_round.id, options=[undefer(Round.tally)])
        findings.n_rounds += 1
        if stored.state != RoundState.TALLIED or stored.tally is None:
            findings.wrong.append(f"{each_round.id} ended {stored.state}")
            return
        counts = Tally.from_bytes(stored.tally).counts[0]
        acknowledged = np.zeros(len(counts), dtype=bool)
        acknowledged[sorted(each_round.acknowledged)] = True
        sent = np.zeros(len(counts), dtype=bool)
        sent[sorted(each_round.sent)] = True
        lost, doubled = int((counts[acknowledged] < 1).sum()), int((counts > 1).sum())
        findings.lost += lost
        findings.doubled += doubled
        if counts[~sent].any():
            findings.wrong.append(f"{each_round.id} counts unknown reports")
        if stored.n_reports != counts.sum():
            findings.wrong.append(f"{each_round.id} reports {stored.n_reports} and counts {counts.sum()}")
        findings.n_reports += len(each_round.acknowledged)
        findings.n_in_doubt += int((sent & ~acknowledged).sum())

    # ---- jobs ----

    def _check_job(self, job: SubmittedJob, findings: Findings, *, is_local: bool) -> None:
        with self._deployment.database.reading() as session:
            stored = session.get(Job, job.id)
            n_results = session.scalar(select(func.count()).select_from(Result).where(Result.job_id == job.id)) or 0
            n_answers = (
                session.scalar(select(func.count()).select_from(QueryAnswer).where(QueryAnswer.job_id == job.id)) or 0
            )
            reserved = ledger.reserved_for(session, job.dataset_id, job.id)
            document = jobs.get_result(session, job.id).document if n_results else None
        findings.n_jobs += 1
        findings.n_results += n_results
        if stored is None:
            findings.lost += 1
            findings.wrong.append(f"{job.id} was acknowledged and does not exist")
            return
        states = {"succeeded", "canceled"} if job.is_cancelled else {"succeeded"}
        if stored.state not in states:
            findings.wrong.append(f"{job.id} ended {stored.state} ({stored.error_code}: {stored.error_detail})")
        if job.state and job.state != stored.state:
            findings.wrong.append(f"{job.id} was reported as {job.state} and is {stored.state}")
        if n_results != (stored.state == "succeeded"):
            findings.wrong.append(f"{job.id} is {stored.state} and has {n_results} results")
        if n_answers or any(reserved):
            findings.wrong.append(f"{job.id} ended with {n_answers} answers, {reserved} reserved")
        if is_local:
            self._check_local(job, stored, document, findings)
        elif document is not None:
            self._check_charges(stored, document, findings)

    def _check_local(self, job: SubmittedJob, stored: Job, document: Any, findings: Findings) -> None:
        """Check that the tallies count each sent report once, and that the model is the plan's for these tallies."""
        with self._deployment.database.reading() as session:
            query = select(Round).where(Round.job_id == job.id).order_by(Round.index)
            rounds = list(session.scalars(query.options(undefer(Round.tally))))
            logs = {each.id: b"".join(packed for _, packed in report_log.batches(session, each.id)) for each in rounds}
        for each in rounds:
            acknowledged, sent = job.acknowledged.get(each.id, set()), job.sent.get(each.id, set())
            width = len(next(iter(sent))) if sent else 1
            logged = {logs[each.id][at : at + width] for at in range(0, len(logs[each.id]), width)}
            findings.lost += len(acknowledged - logged)
            findings.n_reports += len(acknowledged)
            findings.n_in_doubt += len(sent - acknowledged)
            if logged - sent:
                findings.wrong.append(f"{each.id} stores unknown reports")
            if each.tally is None:
                continue
            if each.n_reports != len(logged):
                findings.doubled += max(0, (each.n_reports or 0) - len(logged))
                findings.lost += max(0, len(logged) - (each.n_reports or 0))
            if read_aggregate(each.spec, each.tally) != _count_reports(each.spec, sorted(logged)):
                findings.wrong.append(f"{each.id} has another tally than its reports")
        cost_nano = cost(
            ((each.spec.participation.lo, each.spec.participation.hi), each.epsilon_nano) for each in rounds
        )
        self._check_charged(stored, cost_nano, findings)
        if document is not None:
            if document["epsilon_nano"] != cost_nano:
                findings.wrong.append(
                    f"{job.id} reports a cost of {document['epsilon_nano']}, its rounds cost {cost_nano}"
                )
            if canonical_json(document["model"]) != canonical_json(_compute_model(stored, rounds)):
                findings.wrong.append(f"{job.id} has another model than its tallies")

    def _check_charges(self, stored: Job, document: Any, findings: Findings) -> None:
        """Check that a job over records was charged the costs of its odometer."""
        costs = [each_round["epsilon_nano"] for each_round in document["odometer"]]
        self._check_charged(stored, sum(costs), findings)
        if document["epsilon_nano"] != sum(costs):
            findings.wrong.append(
                f"{stored.id} reports a cost of {document['epsilon_nano']}, its queries cost {sum(costs)}"
            )

    def _check_charged(self, stored: Job, cost_nano: int, findings: Findings) -> None:
        with self._deployment.database.reading() as session:
            entries = ledger.page(session, stored.dataset_id, after_seq=0, limit=100_000)
        charged = sum(
            entry.epsilon_nano
            for entry in entries
            if entry.kind == Kind.CHARGE and (entry.reservation == stored.id or stored.id in entry.reference)
        )
        if charged != cost_nano:
            findings.overspent += charged > cost_nano
            findings.wrong.append(f"{stored.id} cost {cost_nano} and was charged {charged}")

    def _check_number(self, dataset_ids: list[str], job_ids: list[str], findings: Findings) -> None:
        """Check that a repeated submission created no second job."""
        with self._deployment.database.reading() as session:
            stored = set(session.scalars(select(Job.id).where(Job.dataset_id.in_(dataset_ids))))
        unknown = stored - set(job_ids)
        if len(unknown) > 1:  # the last submission may have no response
            findings.doubled += len(unknown) - 1
            findings.wrong.append(f"{len(unknown)} jobs that no analyst knows")

    def _check_ledger(self, dataset_id: str, findings: Findings) -> None:
        with self._deployment.database.reading() as session:
            verified = ledger.verify(session, dataset_id)
            balance = ledger.balance(session, dataset_id)
        if not verified.ok:
            findings.wrong.append(f"the ledger of {dataset_id} is invalid: {verified}")
        if balance.is_over:
            findings.overspent += 1

    # ---- records ----

    def _check_records(self, clients: ClientGroup, findings: Findings) -> None:
        """Check that an upload is stored completely and once, or not at all. Each record has its own cell."""
        curator = clients.curator
        if not any(upload.is_acknowledged for upload in curator.uploads):
            return
        with self._deployment.database.reading() as session:
            points, _ = record.load(session, curator.dataset_id, Keyring((MASTER_KEY,)))
        counts = np.bincount(points[:, 0] // (LATTICE // RECORD_SPAN), minlength=RECORD_SPAN)
        known = 0
        for upload in curator.uploads:
            own_counts = counts[upload.first : upload.first + upload.n_records]
            known += int(own_counts.sum())
            findings.doubled += int((own_counts > 1).sum())
            if upload.is_acknowledged:
                findings.lost += int((own_counts < 1).sum())
                findings.n_records += upload.n_records
            elif own_counts.any() and not own_counts.all():
                findings.wrong.append(f"part of an upload is stored, from record {upload.first}")
        if known != len(points):
            findings.wrong.append("unknown records are stored")

    # ---- results and log ----

    def _check_results(self, clients: ClientGroup, findings: Findings) -> None:
        """Check that results never change."""
        for analyst in (*clients.analysts, clients.central):
            for job in analyst.jobs:
                if job.state == "succeeded":
                    self._results[job.id] = self._digest(job.id)
        known = list(self._results.items())
        for job_id, digest in known[:N_REREAD] + known[-N_REREAD:]:
            if self._digest(job_id) != digest:
                findings.wrong.append(f"the result of {job_id} has changed")

    def _digest(self, job_id: str) -> str:
        return hashlib.sha256(self._call("GET", f"/v1/jobs/{job_id}/result").content).hexdigest()

    def _check_log(self, clients: ClientGroup, findings: Findings) -> None:
        log = self._deployment.read_log()[self._n_log_bytes :]
        self._n_log_bytes += len(log)
        lines = log.splitlines()
        for word in NEVER_LOGGED:
            for at in [at for at, line in enumerate(lines) if word in line][:3]:
                findings.wrong.append("logged: " + "\n".join(lines[at : at + TRACEBACK_LINES]))
        reports = [
            packed
            for d in clients.devices
            for each_round in d.rounds[:2]
            for packed in list(each_round.sent.values())[:50]
        ]
        ids = [packed[:ID_BYTES].hex() for packed in reports]
        numbers = [f"{upload.first}.5,0.25" for upload in clients.curator.uploads]
        if any(secret in log for secret in (self._deployment.secret, CANARY, *ids, *numbers)):
            findings.wrong.append("the log contains private data")


def _retry(call: Callable[[], Any]) -> Any:
    """Return the first result of a function that succeeds."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            result = call()
        except Exception:
            result = None
        if result is not None:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError("the service does not respond")
        time.sleep(0.2)


def _count_reports(spec: RoundSpec, reports: list[bytes]) -> Any:
    counting = RoundAggregator(spec)
    if reports:
        records = np.frombuffer(b"".join(reports), dtype=np.uint8).reshape(len(reports), -1)
        slots = np.ascontiguousarray(records[:, ID_BYTES:HEADER_BYTES]).view("<u4")[:, 0].astype(np.int64)
        counting.add(slots, np.ascontiguousarray(records[:, HEADER_BYTES:]))
    return counting.result()


def _compute_model(stored: Job, rounds: list[Round]) -> dict[str, Any]:
    """Return the model of the job's plan on the same tallies, computed in this process."""
    answers = iter(rounds)

    def collect(_spec: RoundSpec) -> Collected:
        try_request = next(answers)
        return Collected(try_request.spec, read_aggregate(try_request.spec, try_request.tally or b""))

    features = tuple(Feature(f["name"], float(f["lower"]), float(f["upper"])) for f in FEATURES)
    wire = json.loads(canonical_json(stored.algorithm))
    plan = start(local_algorithm_from_wire(wire), features, stored.target_reports)
    model = drive(checking_law(counting_outside(plan, opens_counting=True)), collect)
    return dict(model.to_wire())
