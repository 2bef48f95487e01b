"""What must hold once everything has settled: nothing lost, nothing doubled, nothing overspent, one result a job."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import undefer

from clustering.plan import Collected, Tally, drive, read_answers
from clustering.registry import start
from clustering.tally import Counting
from models import ledger, record, report, result
from models.answer import Answer
from models.db import canonical_json
from models.job import Job
from models.report import HEADER_BYTES, ID_BYTES
from models.result import Result
from models.round import Round, RoundState
from models.sealing import Keyring
from sfumato.accounting import cost
from sfumato.specs import LATTICE, Feature, RoundSpec, local_algorithm_from_wire
from tests.faults.clients import CANARY, FEATURES, RECORD_SPAN, Crowd, Submitted
from tests.faults.world import MASTER_KEY, World

QUIET_SECONDS = 240.0
READ_AGAIN = 20  # of the oldest results, and of the newest
NEVER_LOGGED = ("request_failed", "job_crashed", "task_crashed", "Traceback (most recent call last)")


@dataclass
class Findings:
    """What was counted, and all that must not be."""

    lost: int = 0
    doubled: int = 0
    overspent: int = 0
    wrong: list[str] = field(default_factory=list)
    n_reports: int = 0
    n_in_doubt: int = 0  # sent, never acknowledged
    n_rounds: int = 0
    n_jobs: int = 0
    n_results: int = 0
    n_records: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.overspent or self.wrong)

    def add(self, other: "Findings") -> None:
        """Take another's into this one."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Oracle:
    """Judges waves of one world; remembers every result, since it must read the same for ever."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._results: dict[str, str] = {}  # job -> SHA-256 of its result
        self._n_log_bytes = 0

    def judge(self, crowd: Crowd) -> Findings:
        """What is to be said of a wave whose clients have ended and whose processes all run."""
        found = Findings(wrong=list(crowd.line.wrong))
        self._await_quiet(crowd, found)
        for devices in crowd.devices:
            for asked in devices.rounds:
                self._check_buckets(asked, found)
        local = [job for analyst in crowd.analysts for job in analyst.jobs]
        for job in local + crowd.central.jobs:
            self._check_job(job, found, is_local=job in local)
        datasets = {job.dataset_id for job in local + crowd.central.jobs} | {d.dataset_id for d in crowd.devices}
        for dataset_id in sorted(datasets - {""}):
            self._check_ledger(dataset_id, found)
        for analyst in (*crowd.analysts, crowd.central):
            self._check_number(analyst.datasets, [job.id for job in analyst.jobs], found)
        self._check_records(crowd, found)
        self._check_results(crowd, found)
        self._check_log(crowd, found)
        return found

    def _await_quiet(self, crowd: Crowd, found: Findings) -> None:
        """Close what devices left open; wait until every round is counted and every job over."""
        for devices in crowd.devices:
            for asked in devices.rounds:
                self._call("POST", f"/v1/rounds/{asked.id}/close")
        ids = [asked.id for devices in crowd.devices for asked in devices.rounds]
        jobs = [job.id for analyst in (*crowd.analysts, crowd.central) for job in analyst.jobs]

        def busy() -> int:
            with self._world.database.reading() as session:
                of_ours = (Round.id.in_(ids) | Round.job_id.in_(jobs)) & Round.state.in_(["open", "closed"])
                n_rounds = session.scalar(select(func.count()).select_from(Round).where(of_ours))
                unfinished = Job.id.in_(jobs) & Job.finished_at.is_(None)
                n_jobs = session.scalar(select(func.count()).select_from(Job).where(unfinished))
            return (n_rounds or 0) + (n_jobs or 0)

        deadline = time.monotonic() + QUIET_SECONDS
        while (left := _patiently(busy)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            found.wrong.append(f"{left} rounds or jobs did not come to an end within {QUIET_SECONDS:g} s")

    def _call(self, method: str, path: str) -> Any:
        import httpx

        headers = {"Authorization": f"Bearer {self._world.secret}", "Connection": "close"}
        url = f"http://{self._world.door.host}:{self._world.door.port}{path}"

        def answered() -> Any:
            answer = httpx.request(method, url, headers=headers, timeout=30, trust_env=False)
            return answer if answer.status_code < 500 else None

        return _patiently(answered)

    # ---- reports ----

    def _check_buckets(self, asked: Any, found: Findings) -> None:
        """A bucket holds one report: 2 is a replay, 0 a loss."""
        with self._world.database.reading() as session:
            stored = session.get_one(Round, asked.id, options=[undefer(Round.tally)])
        found.n_rounds += 1
        if stored.state != RoundState.TALLIED or stored.tally is None:
            found.wrong.append(f"{asked.id} ended {stored.state}")
            return
        counts = Tally.from_bytes(stored.tally).counts[0]
        acknowledged = np.zeros(len(counts), dtype=bool)
        acknowledged[sorted(asked.acknowledged)] = True
        sent = np.zeros(len(counts), dtype=bool)
        sent[sorted(asked.sent)] = True
        lost, doubled = int((counts[acknowledged] < 1).sum()), int((counts > 1).sum())
        found.lost += lost
        found.doubled += doubled
        if counts[~sent].any():
            found.wrong.append(f"{asked.id} counts reports that nobody sent")
        if stored.n_reports != counts.sum():
            found.wrong.append(f"{asked.id} says {stored.n_reports} reports and counts {counts.sum()}")
        found.n_reports += len(asked.acknowledged)
        found.n_in_doubt += int((sent & ~acknowledged).sum())

    # ---- jobs ----

    def _check_job(self, job: Submitted, found: Findings, *, is_local: bool) -> None:
        with self._world.database.reading() as session:
            stored = session.get(Job, job.id)
            n_results = session.scalar(select(func.count()).select_from(Result).where(Result.job_id == job.id)) or 0
            n_answers = session.scalar(select(func.count()).select_from(Answer).where(Answer.job_id == job.id)) or 0
            held = ledger.reserved_for(session, job.dataset_id, job.id)
            document = result.get(session, job.id).document if n_results else None
        found.n_jobs += 1
        found.n_results += n_results
        if stored is None:
            found.lost += 1
            found.wrong.append(f"{job.id} was acknowledged and is gone")
            return
        states = {"succeeded", "canceled"} if job.is_cancelled else {"succeeded"}
        if stored.state not in states:
            found.wrong.append(f"{job.id} ended {stored.state} ({stored.error_code}: {stored.error_detail})")
        if job.state and job.state != stored.state:
            found.wrong.append(f"{job.id} was told to be {job.state} and is {stored.state}")
        if n_results != (stored.state == "succeeded"):
            found.wrong.append(f"{job.id} is {stored.state} and has {n_results} results")
        if n_answers or any(held):
            found.wrong.append(f"{job.id} is over and left {n_answers} answers, {held} reserved")
        if is_local:
            self._check_local(job, stored, document, found)
        elif document is not None:
            self._check_charges(stored, document, found)

    def _check_local(self, job: Submitted, stored: Job, document: Any, found: Findings) -> None:
        """Its tallies are those of what was sent, each once; its model is the plan's over them."""
        with self._world.database.reading() as session:
            query = select(Round).where(Round.job_id == job.id).order_by(Round.index)
            own = list(session.scalars(query.options(undefer(Round.tally))))
            logs = {each.id: b"".join(packed for _, packed in report.batches(session, each.id)) for each in own}
        for each in own:
            acknowledged, sent = job.acknowledged.get(each.id, set()), job.sent.get(each.id, set())
            width = len(next(iter(sent))) if sent else 1
            kept = {logs[each.id][at : at + width] for at in range(0, len(logs[each.id]), width)}
            found.lost += len(acknowledged - kept)
            found.n_reports += len(acknowledged)
            found.n_in_doubt += len(sent - acknowledged)
            if kept - sent:
                found.wrong.append(f"{each.id} keeps reports that nobody sent")
            if each.tally is None:
                continue
            if each.n_reports != len(kept):
                found.doubled += max(0, (each.n_reports or 0) - len(kept))
                found.lost += max(0, len(kept) - (each.n_reports or 0))
            if read_answers(each.spec, each.tally) != _counted(each.spec, sorted(kept)):
                found.wrong.append(f"{each.id} has not the tally of its reports")
        price = cost(((each.spec.draw.lo, each.spec.draw.hi), each.epsilon_nano) for each in own)
        self._check_posted(stored, price, found)
        if document is not None:
            if document["epsilon_nano"] != price:
                found.wrong.append(f"{job.id} says it cost {document['epsilon_nano']}, its rounds cost {price}")
            if canonical_json(document["model"]) != canonical_json(_model_of(stored, own)):
                found.wrong.append(f"{job.id} has not the model of its tallies")

    def _check_charges(self, stored: Job, document: Any, found: Findings) -> None:
        """What a central job says it asked is what it was charged."""
        prices = [asked["epsilon_nano"] for asked in document["odometer"]]
        self._check_posted(stored, sum(prices), found)
        if document["epsilon_nano"] != sum(prices):
            found.wrong.append(f"{stored.id} says it cost {document['epsilon_nano']}, its questions cost {sum(prices)}")

    def _check_posted(self, stored: Job, price: int, found: Findings) -> None:
        with self._world.database.reading() as session:
            entries = ledger.page(session, stored.dataset_id, after_seq=0, limit=100_000)
        posted = sum(
            entry.epsilon_nano
            for entry in entries
            if entry.kind == ledger.Kind.POST and (entry.reservation == stored.id or stored.id in entry.reference)
        )
        if posted != price:
            found.overspent += posted > price
            found.wrong.append(f"{stored.id} cost {price} and was posted {posted}")

    def _check_number(self, dataset_ids: list[str], job_ids: list[str], found: Findings) -> None:
        """A submission that was sent again made no second job."""
        with self._world.database.reading() as session:
            stored = set(session.scalars(select(Job.id).where(Job.dataset_id.in_(dataset_ids))))
        more = stored - set(job_ids)
        if len(more) > 1:  # the last one may have been made, and its analyst gone before it was told
            found.doubled += len(more) - 1
            found.wrong.append(f"{len(more)} jobs that no analyst was told of")

    def _check_ledger(self, dataset_id: str, found: Findings) -> None:
        with self._world.database.reading() as session:
            verified = ledger.verify(session, dataset_id)
            balance = ledger.balance(session, dataset_id)
        if not verified.ok:
            found.wrong.append(f"the ledger of {dataset_id} does not hold: {verified}")
        if balance.posted_nano + balance.reserved_nano > balance.granted_nano:
            found.overspent += 1

    # ---- records ----

    def _check_records(self, crowd: Crowd, found: Findings) -> None:
        """Each record is a cell of its own: the whole of an upload once, or nothing of it."""
        curator = crowd.curator
        if not any(upload.is_acknowledged for upload in curator.uploads):
            return
        with self._world.database.reading() as session:
            points, _ = record.load(session, curator.dataset_id, Keyring((MASTER_KEY,)))
        counts = np.bincount(points[:, 0] // (LATTICE // RECORD_SPAN), minlength=RECORD_SPAN)
        known = 0
        for upload in curator.uploads:
            of_it = counts[upload.first : upload.first + upload.n_records]
            known += int(of_it.sum())
            found.doubled += int((of_it > 1).sum())
            if upload.is_acknowledged:
                found.lost += int((of_it < 1).sum())
                found.n_records += upload.n_records
            elif of_it.any() and not of_it.all():
                found.wrong.append(f"half an upload is stored, from record {upload.first}")
        if known != len(points):
            found.wrong.append("records are stored that nobody uploaded")

    # ---- what is told ----

    def _check_results(self, crowd: Crowd, found: Findings) -> None:
        """A result reads the same for ever, whoever asks how often."""
        for analyst in (*crowd.analysts, crowd.central):
            for job in analyst.jobs:
                if job.state == "succeeded":
                    self._results[job.id] = self._digest(job.id)
        known = list(self._results.items())
        for job_id, digest in known[:READ_AGAIN] + known[-READ_AGAIN:]:
            if self._digest(job_id) != digest:
                found.wrong.append(f"the result of {job_id} does not read as before")

    def _digest(self, job_id: str) -> str:
        return hashlib.sha256(self._call("GET", f"/v1/jobs/{job_id}/result").content).hexdigest()

    def _check_log(self, crowd: Crowd, found: Findings) -> None:
        text = self._world.text()[self._n_log_bytes :]
        self._n_log_bytes += len(text)
        for word in NEVER_LOGGED:
            for line in [line for line in text.splitlines() if word in line][:3]:
                found.wrong.append(f"logged: {line[:600]}")
        some = [packed for d in crowd.devices for asked in d.rounds[:2] for packed in list(asked.sent.values())[:50]]
        ids = [packed[:ID_BYTES].hex() for packed in some]
        numbers = [f"{upload.first}.5,0.25" for upload in crowd.curator.uploads]
        if any(secret in text for secret in (self._world.secret, CANARY, *ids, *numbers)):
            found.wrong.append("something private was logged")


def _patiently(ask: Callable[[], Any]) -> Any:
    """What it says, as soon as everything answers again."""
    deadline = time.monotonic() + QUIET_SECONDS
    while True:
        try:
            said = ask()
        except Exception:
            said = None
        if said is not None:
            return said
        if time.monotonic() > deadline:
            raise TimeoutError("the service does not come back")
        time.sleep(0.2)


def _counted(spec: RoundSpec, reports: list[bytes]) -> Any:
    counting = Counting(spec)
    if reports:
        records = np.frombuffer(b"".join(reports), dtype=np.uint8).reshape(len(reports), -1)
        slots = np.ascontiguousarray(records[:, ID_BYTES:HEADER_BYTES]).view("<u4")[:, 0].astype(np.int64)
        counting.add(slots, np.ascontiguousarray(records[:, HEADER_BYTES:]))
    return counting.result()


def _model_of(stored: Job, own: list[Round]) -> dict[str, Any]:
    """What the job's plan comes to in this process, over the same tallies."""
    answers = iter(own)

    def collect(_wanted: RoundSpec) -> Collected:
        answered = next(answers)
        return Collected(answered.spec, read_answers(answered.spec, answered.tally or b""))

    features = tuple(Feature(f["name"], float(f["lower"]), float(f["upper"])) for f in FEATURES)
    wire = json.loads(canonical_json(stored.algorithm))
    model = drive(start(local_algorithm_from_wire(wire), features, stored.target_reports), collect)
    return dict(model.to_wire())
