"""Uploads of records under SIGKILL: each is there whole and once, or not at all."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from models import record, sealing
from models.record import RecordSegment
from tests.faults.service_under_test import PATIENCE_SECONDS, ServiceUnderTest, service

FEATURES = [{"name": "x", "lower": 0, "upper": 1}, {"name": "y", "lower": -5, "upper": 5}]
N_RECORDS = 5_000  # of an upload
N_PIECES = 10
N_CURATORS = 2
KEY = bytes(range(32))


class Curator(threading.Thread):
    """Uploads one after another, piece by piece, each again under its key until it is told that it is stored."""

    def __init__(self, running: ServiceUnderTest, dataset_id: str, number: int) -> None:
        super().__init__()
        self._running, self._path, self._number = running, f"/v1/datasets/{dataset_id}/records", number
        lines = [b"%.6f,%.6f\n" % (i / N_RECORDS, number) for i in range(N_RECORDS)]
        step = N_RECORDS // N_PIECES
        self._pieces = [b"x,y\n"] + [b"".join(lines[at : at + step]) for at in range(0, N_RECORDS, step)]
        self.has_to_end = threading.Event()
        self.n_stored = 0
        self.n_resent = 0
        self.refusal = ""

    def _body(self) -> Iterator[bytes]:
        for piece in self._pieces:
            yield piece
            time.sleep(0.005)  # so that many kills find it half-way

    def run(self) -> None:
        with self._running.client(self._running.secret) as http:
            while not (self.has_to_end.is_set() or self.refusal):
                headers = {"Content-Type": "text/csv", "Idempotency-Key": f"{self._number}-{self.n_stored}"}
                with suppress(httpx.TransportError):
                    answer = http.post(self._path, content=self._body(), headers=headers)
                    if answer.status_code == 201:
                        self.n_stored += 1
                        continue
                    if answer.status_code != 503:
                        self.refusal = answer.text
                self.n_resent += 1
                time.sleep(0.02)


@pytest.mark.parametrize(
    "n_kills", [pytest.param(20, marks=[pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(2400)])]
)
def test_every_upload_is_stored_whole_and_once(database_url: str, tmp_path: Path, n_kills: int) -> None:
    (tmp_path / sealing.KEY_FILE).write_text(sealing.write_key(KEY))
    chance = np.random.default_rng(n_kills)
    with service(database_url, tmp_path, n_workers=0) as running:
        made = running.call("POST", "/v1/datasets", name="t", trust="central", features=FEATURES, epsilon=1)
        curators = [Curator(running, made["id"], number) for number in range(N_CURATORS)]
        for curator in curators:
            curator.start()
        try:
            for _ in range(n_kills):
                stored = sum(curator.n_stored for curator in curators)
                deadline = time.monotonic() + PATIENCE_SECONDS
                while sum(curator.n_stored for curator in curators) < stored + 3 and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(float(chance.uniform(0, 0.15)))
                running.kill_gateway()
                half_way = _uploads(running, made["id"])
                assert set(half_way.values()) <= {N_RECORDS}  # as it lies in the database, nobody serving
                running.start()
        finally:
            for curator in curators:
                curator.has_to_end.set()
            for curator in curators:
                curator.join()

        assert [curator.refusal for curator in curators] == [""] * N_CURATORS
        assert sum(curator.n_resent for curator in curators) >= n_kills  # kills did interrupt
        n_told = sum(curator.n_stored for curator in curators)
        assert n_told >= 3 * n_kills
        found = running.call("GET", f"/v1/datasets/{made['id']}/records")
        assert n_told <= found["n_uploads"] <= n_told + N_CURATORS  # one each that was stored and never acknowledged
        assert found["n_records"] == N_RECORDS * found["n_uploads"]
        with running.database.reading() as session:
            points, _ = record.load(session, made["id"], sealing.Keyring((KEY,)))
    of_each = np.bincount(points[:, 1])
    assert (of_each % N_RECORDS == 0).all()  # every curator's come in whole uploads
    assert np.count_nonzero(of_each) == len(curators)


def _uploads(running: ServiceUnderTest, dataset_id: str) -> dict[str, int]:
    """Records of each upload that is stored."""
    with running.database.reading() as session:
        rows = session.execute(
            select(RecordSegment.upload_id, RecordSegment.n_records).where(RecordSegment.dataset_id == dataset_id)
        ).all()
    totals: dict[str, int] = {}
    for upload_id, n_records in rows:
        totals[upload_id] = totals.get(upload_id, 0) + n_records
    return totals
