"""Uploads of records under SIGKILL: an upload is stored completely and once, or not at all."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import select

from models import encryption
from models.records import records
from models.tables.datasets import RecordSegment
from tests.faults.service_under_test import PATIENCE_SECONDS, ServiceUnderTest, few_and_many_kills, service

FEATURES = [{"name": "x", "lower": 0, "upper": 1}, {"name": "y", "lower": -5, "upper": 5}]
N_RECORDS = 5_000  # records per upload
N_PIECES = 10
N_CURATORS = 2
KEY = bytes(range(32))


class UploadingCurator(threading.Thread):
    """A curator that uploads in pieces and repeats each upload with its key until it is acknowledged."""

    def __init__(self, running: ServiceUnderTest, dataset_id: str, number: int) -> None:
        super().__init__()
        self._running, self._path, self._number = (
            running,
            f"/v1/datasets/{dataset_id}/records?allow_duplicates=true",
            number,
        )
        lines = [b"%.6f,%.6f\n" % (i / N_RECORDS, number) for i in range(N_RECORDS)]
        step = N_RECORDS // N_PIECES
        self._pieces = [b"x,y\n"] + [b"".join(lines[at : at + step]) for at in range(0, N_RECORDS, step)]
        self.must_stop = threading.Event()
        self.n_stored = 0
        self.n_resent = 0
        self.refusal = ""

    def _body(self) -> Iterator[bytes]:
        for piece in self._pieces:
            yield piece
            time.sleep(0.005)  # many kills interrupt an upload

    def run(self) -> None:
        with self._running.client(self._running.secret) as http:
            while not (self.must_stop.is_set() or self.refusal):
                headers = {"Content-Type": "text/csv", "Idempotency-Key": f"{self._number}-{self.n_stored}"}
                with suppress(httpx.TransportError):
                    response = http.post(self._path, content=self._body(), headers=headers)
                    if response.status_code == 201:
                        self.n_stored += 1
                        continue
                    if response.status_code != 503:
                        self.refusal = response.text
                self.n_resent += 1
                time.sleep(0.02)


@few_and_many_kills("sqlite")
def test_every_upload_is_stored_completely_and_once(database_url: str, tmp_path: Path, n_kills: int) -> None:
    (tmp_path / encryption.KEY_FILE).write_text(encryption.encode_key(KEY))
    chance = np.random.default_rng(n_kills)
    with service(database_url, tmp_path, n_workers=0) as running:
        made = running.call("POST", "/v1/datasets", name="t", trust="central", features=FEATURES, epsilon=1)
        curators = [UploadingCurator(running, made["id"], number) for number in range(N_CURATORS)]
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
                assert set(half_way.values()) <= {N_RECORDS}  # read from the database while no gateway runs
                running.start()
        finally:
            for curator in curators:
                curator.must_stop.set()
            for curator in curators:
                curator.join()

        assert [curator.refusal for curator in curators] == [""] * N_CURATORS
        assert sum(curator.n_resent for curator in curators) >= n_kills  # kills interrupted uploads
        n_acknowledged = sum(curator.n_stored for curator in curators)
        assert n_acknowledged >= 3 * n_kills
        counts = running.call("GET", f"/v1/datasets/{made['id']}/records")
        assert (
            n_acknowledged <= counts["n_uploads"] <= n_acknowledged + N_CURATORS
        )  # each curator may have one stored upload without acknowledgement
        assert counts["n_records"] == N_RECORDS * counts["n_uploads"]
        with running.database.reading() as session:
            points, _ = records.load(session, made["id"], encryption.Keyring((KEY,)))
    records_per_curator = np.bincount(points[:, 1])
    assert (records_per_curator % N_RECORDS == 0).all()  # each curator has only complete uploads
    assert np.count_nonzero(records_per_curator) == len(curators)


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
