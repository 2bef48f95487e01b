"""The service under SIGKILL: acknowledged reports count once, jobs have one result, and charges are correct."""

import base64
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from sqlalchemy import func, select

from clustering.rounds.counting import count
from clustering.rounds.tally import Tally
from models.collection import report_log
from models.collection.report_log import HEADER_BYTES, ID_BYTES
from models.database.types import canonical_json
from models.jobs import jobs
from models.ledger import ledger
from models.tables.jobs import Result
from models.tables.rounds import Round
from sfumato.privacy.accounting import NANO
from sfumato.specs import RoundSpec, round_spec_from_wire
from tests.faults.service_under_test import ServiceUnderTest, few_and_many_kills, service, wait_until
from tests.workers.collection import packed_reports

FEATURES = [{"name": "x", "lower": 0, "upper": 1}, {"name": "y", "lower": -5, "upper": 5}]
ALGORITHM = {"type": "shifted_grid", "epsilon": 2, "clusters": 3}
N_REPORTS = 2000  # reports per round of a job


def make_dataset(running: ServiceUnderTest) -> str:
    made = running.call(
        "POST", "/v1/datasets", name="t", trust="local", features=FEATURES, epsilon=32, min_reports=1, keep_reports=True
    )
    return str(made["id"])


def assert_ledger(running: ServiceUnderTest, dataset_id: str, charged_nano: int) -> None:
    """Assert that no reservation is left, that the charges are as expected, and that the chain is valid."""
    budget = running.call("GET", f"/v1/datasets/{dataset_id}/budget")
    assert (budget["charged_nano"], budget["reserved_nano"]) == (charged_nano, 0)
    with running.database.reading() as session:
        assert ledger.verify(session, dataset_id).ok


class ReportSender(threading.Thread):
    """Devices that send reports one after another and repeat identical bytes until they are acknowledged."""

    def __init__(self, running: ServiceUnderTest, round_id: str, spec: RoundSpec, seed: int) -> None:
        super().__init__()
        self._running, self._path, self._spec, self._seed = running, f"/v1/rounds/{round_id}/reports", spec, seed
        self._width = HEADER_BYTES + spec.mechanism.value_bytes
        self.sent: dict[bytes, bytes] = {}  # report id -> packed report
        self.acknowledged: set[bytes] = set()
        self.n_resent = 0
        self.has_to_end = threading.Event()
        self.refusal = ""

    def run(self) -> None:
        chance = np.random.default_rng(self._seed)
        with self._running.client(self._running.secret) as http:
            for nth in range(1_000_000):
                packed = packed_reports(self._spec, int(chance.choice([1, 1, 1, 7, 60])), self._seed * 1_000_000 + nth)
                reports = [packed[at : at + self._width] for at in range(0, len(packed), self._width)]
                self.sent |= {each[:ID_BYTES]: each for each in reports}
                if self.has_to_end.is_set() or not self._post(http, reports):
                    return

    def _post(self, http: httpx.Client, reports: list[bytes]) -> bool:
        kind, body = _as_json(reports[0]) if len(reports) == 1 else ("application/octet-stream", b"".join(reports))
        while True:
            with suppress(httpx.TransportError):
                answer = http.post(self._path, content=body, headers={"Content-Type": kind})
                if answer.status_code == 202:
                    self.acknowledged |= {each[:ID_BYTES] for each in reports}
                    return True
                if answer.status_code != 503:
                    self.refusal = answer.text
                    return False
            if self.has_to_end.is_set():
                return False  # the report may or may not be stored
            self.n_resent += 1
            time.sleep(0.01)


def _as_json(packed: bytes) -> tuple[str, bytes]:
    report_id, slot, value = packed[:ID_BYTES], packed[ID_BYTES:HEADER_BYTES], packed[HEADER_BYTES:]
    fields = {
        "report_id": report_id.hex(),
        "slot": int.from_bytes(slot, "little"),
        "value": base64.b64encode(value).decode(),
    }
    return "application/json", json.dumps(fields).encode()


def tally_of(spec: RoundSpec, reports: list[bytes]) -> Tally:
    """The tally of these reports, each counted once."""
    records = np.frombuffer(b"".join(reports), dtype=np.uint8).reshape(len(reports), -1)
    slots = np.ascontiguousarray(records[:, ID_BYTES:HEADER_BYTES]).view("<u4")[:, 0].astype(np.int64)
    return count(spec, slots, np.ascontiguousarray(records[:, HEADER_BYTES:]))


class TestDuringIngest:
    @few_and_many_kills("sqlite")
    def test_every_acknowledged_report_counts_exactly_once(
        self, database_url: str, tmp_path: Path, n_kills: int
    ) -> None:
        chance = np.random.default_rng(n_kills)
        with service(database_url, tmp_path) as running:
            dataset_id = make_dataset(running)
            opened = running.call(
                "POST",
                f"/v1/datasets/{dataset_id}/rounds",
                encoding={"type": "shifted_grid", "n_features": 2, "cells": 6, "shifts": 3},
                epsilon=2,
                target_reports=10**9,
            )
            spec = round_spec_from_wire(opened["spec"])
            senders = [ReportSender(running, opened["id"], spec, seed) for seed in range(3)]
            for sender in senders:
                sender.start()
            try:
                self.kill_gateways(running, senders, n_kills, chance)
            finally:
                for sender in senders:
                    sender.has_to_end.set()
                for sender in senders:
                    sender.join()
            running.start()
            assert [sender.refusal for sender in senders] == ["", "", ""]
            assert sum(sender.n_resent for sender in senders) >= n_kills
            running.call("POST", f"/v1/rounds/{opened['id']}/close")
            self.check_tally(running, senders, spec, opened["id"])
            self.check_result(running, dataset_id, opened)

    def kill_gateways(
        self, running: ServiceUnderTest, senders: list[ReportSender], n_kills: int, chance: np.random.Generator
    ) -> None:
        """SIGKILL in the middle of the stream, each time after some more reports were acknowledged."""
        for nth in range(n_kills):
            enough = sum(len(sender.acknowledged) for sender in senders) + int(chance.integers(1, 300))
            wait_until(lambda enough=enough: sum(len(sender.acknowledged) for sender in senders) >= enough)
            time.sleep(chance.uniform(0, 0.03))
            if nth == n_kills - 1:  # requests that are interrupted now stay without a response
                for sender in senders:
                    sender.has_to_end.set()
            running.kill_gateway()
            if nth < n_kills - 1:
                running.start()

    def check_tally(
        self, running: ServiceUnderTest, senders: list[ReportSender], spec: RoundSpec, round_id: str
    ) -> None:
        def tallied() -> Any:
            return running.call("GET", f"/v1/rounds/{round_id}")["state"] == "tallied"

        wait_until(tallied)
        sent = {report_id: packed for sender in senders for report_id, packed in sender.sent.items()}
        acknowledged = set().union(*(sender.acknowledged for sender in senders))
        with running.database.reading() as session:
            log = b"".join(packed for _, packed in report_log.batches(session, round_id))
            stored = session.get_one(Round, round_id)
            tally = Tally.from_bytes(stored.tally or b"")
        width = HEADER_BYTES + spec.mechanism.value_bytes
        kept = [log[at : at + width] for at in range(0, len(log), width)]
        distinct = {each[:ID_BYTES] for each in kept}
        assert acknowledged <= distinct <= set(sent)
        assert all(sent[each[:ID_BYTES]] == each for each in kept)
        assert stored.n_reports == tally.n_reports == len(distinct)
        assert tally == tally_of(spec, [sent[report_id] for report_id in distinct])

    def check_result(self, running: ServiceUnderTest, dataset_id: str, opened: dict[str, Any]) -> None:
        job = running.call("POST", "/v1/jobs", dataset_id=dataset_id, algorithm=ALGORITHM, round_ids=[opened["id"]])
        wait_until(lambda: running.call("GET", f"/v1/jobs/{job['id']}?wait=5")["state"] == "succeeded")
        assert_ledger(running, dataset_id, round(opened["epsilon"] * NANO))


class TestDuringJobs:
    @few_and_many_kills("postgresql")  # two workers may compete for a lost job
    def test_every_job_ends_with_the_same_result(
        self, database_url: str, database_kind: str, tmp_path: Path, n_kills: int
    ) -> None:
        n_workers = {"sqlite": 1, "postgresql": 2}[database_kind]
        chance = np.random.default_rng(100 + n_kills)
        with service(database_url, tmp_path, n_workers=n_workers) as running:
            dataset_ids = [make_dataset(running)]
            kinds = [self.kill_children, self.kill_children, self.kill_supervisor, self.kill_all]
            expected, _ = self.run_job(running, dataset_ids[0], lambda: None)
            repeated, seconds = self.run_job(running, dataset_ids[0], lambda: None)  # with warm workers
            assert repeated == expected
            for nth in range(n_kills):
                if nth % 10 == 8:  # a dataset's budget allows this number of jobs
                    dataset_ids.append(make_dataset(running))
                when = chance.uniform(0, 1.5 * seconds)
                how = kinds[int(chance.integers(len(kinds)))]

                def disturb(when: float = when, how: Callable[[ServiceUnderTest], None] = how) -> None:
                    time.sleep(when)
                    how(running)
                    running.start()

                assert self.run_job(running, dataset_ids[-1], disturb)[0] == expected
            with running.database.reading() as session:
                assert session.scalar(select(func.count()).select_from(Result)) == n_kills + 2
                prices = set(session.scalars(select(Round.epsilon_nano)))
                n_rounds = [
                    session.scalar(select(func.count()).where(Round.dataset_id == dataset_id))
                    for dataset_id in dataset_ids
                ]
            assert sum(n or 0 for n in n_rounds) == n_kills + 2
            (price,) = prices
            for dataset_id, n in zip(dataset_ids, n_rounds, strict=True):
                assert_ledger(running, dataset_id, (n or 0) * price)

    def run_job(self, running: ServiceUnderTest, dataset_id: str, disturb: Callable[[], None]) -> tuple[str, float]:
        """A job over the same 2000 reports every time; its model, and how long it took beside `disturb`."""
        disturbing = threading.Thread(target=disturb)
        began = time.monotonic()
        job = running.call(
            "POST", "/v1/jobs", dataset_id=dataset_id, algorithm=ALGORITHM, target_reports=N_REPORTS, min_reports=1
        )
        disturbing.start()
        try:
            (asked,) = wait_until(lambda: running.call("GET", f"/v1/datasets/{dataset_id}/round")["rounds"])
            packed = packed_reports(round_spec_from_wire(asked["spec"]), N_REPORTS, seed=1)
            self.post(running, asked["id"], packed)
            wait_until(lambda: running.call("GET", f"/v1/jobs/{job['id']}?wait=5")["finished_at"])
            seconds = time.monotonic() - began
        finally:
            disturbing.join()
        running.start()
        with running.database.reading() as session:
            document = jobs.get_result(session, job["id"]).document
        assert [r["n_reports"] for r in document["rounds"]] == [N_REPORTS]
        return canonical_json(document["model"]), seconds

    def post(self, running: ServiceUnderTest, round_id: str, packed: bytes) -> None:
        """Send until acknowledged; a round that a first try has filled already is closed for the second."""

        def stored() -> bool:
            with suppress(httpx.TransportError), running.client(running.secret) as http:
                headers = {"Content-Type": "application/octet-stream"}
                answer = http.post(f"/v1/rounds/{round_id}/reports", content=packed, headers=headers)
                return answer.status_code == 202 or answer.json()["code"] == "round_closed"
            return False

        wait_until(stored)

    def kill_children(self, running: ServiceUnderTest) -> None:
        """The computing processes."""
        for child in running.children():
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def kill_supervisor(self, running: ServiceUnderTest) -> None:
        """One supervisor with its child."""
        running.kill_supervisor()

    def kill_all(self, running: ServiceUnderTest) -> None:
        """Gateway, workers, children."""
        running.kill_workers()
        running.kill_gateway()
