"""Distributed work: aggregation and k-means steps on two Dask workers, against one process with one thread."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from distributed import LocalCluster

from benchmarks.speed.harness.measurement import (
    Disagreement,
    Measurement,
    Setting,
    agree,
    race,
)
from benchmarks.speed.harness.report_log import closing_database, new_caller, new_dataset, report_log, spec_of
from clustering.central.cells import NearestCells
from clustering.central.queries import CellSums, RecordSource
from models.database.engine import Database
from models.database.schema import migrate
from models.encryption import Keyring, encode_key, new_secret
from models.records import record_keys, records
from models.tables.datasets import Trust
from runtime.process import WORKER_KEPT_BYTES, keep_freed_memory
from sfumato.specs import LATTICE, Feature
from workers.aggregation import aggregate
from workers.aggregation.aggregate import Aggregation, aggregate_round
from workers.central_job import open_records
from workers.distributed import distribute
from workers.distributed.dask_client import Scheduler

N_WORKERS = 2
N_REPORTS, N_RECORDS, QUICK = 100_000_000, 100_000_000, 1_000_000
N_CELLS = 1000  # cells of the histogram
N_CLUSTERS, N_FEATURES = 8, 2
UPLOAD_RECORDS = 1 << 20
BAR = 1.2
MOST_TURNS = 2  # a turn takes a minute

ONE = "the same code in one process, one thread"
TWO = "the same code in one process, two threads"


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield the aggregation of a histogram, and k-means steps on records."""
    setting.progress("  scale: folds")
    yield from _folds(setting)
    setting.progress("  scale: k-means steps")
    yield _steps(setting)


@contextmanager
def two_workers(url: str, records_key: str = "") -> Iterator[Scheduler]:
    """Run two Dask workers of one thread each on this machine, with the database in their environment."""
    own = {"SFUMATO_DATABASE_URL": url, "SFUMATO_RECORDS_KEY": records_key}
    with (
        patch.dict(os.environ, own),
        LocalCluster(
            n_workers=N_WORKERS,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            worker_dashboard_address=None,
            memory_limit=0,
        ) as cluster,
    ):
        scheduler = Scheduler(cluster.scheduler_address)
        try:
            yield scheduler
        finally:
            scheduler.close()


def _folds(setting: Setting) -> Iterator[Measurement]:
    keep_freed_memory(WORKER_KEPT_BYTES)  # the setting of a worker
    n_reports = QUICK if setting.quick else N_REPORTS
    with (
        report_log(spec_of("grr", N_CELLS), n_reports) as log,
        two_workers(str(log.database.engine.url)) as scheduler,
        patch.object(distribute, "MIN_REPORTS", 1),
    ):
        found: list[Aggregation | None] = [distribute.aggregate_on_workers(log.closed, scheduler)]  # compile kernels
        for n_threads, reference, bar in ((1, ONE, BAR), (2, TWO, None)):
            with patch.object(aggregate, "count_threads", lambda n_threads=n_threads: n_threads):
                yield race(
                    f"fold of {n_reports:,} grr, {N_CELLS} cells, {N_WORKERS} Dask workers, {n_threads} here",
                    reference,
                    lambda: found.append(distribute.aggregate_on_workers(log.closed, scheduler)),
                    lambda: found.append(aggregate_round(log.database, log.closed)),
                    min(MOST_TURNS, setting.turns),
                    bar=None if setting.quick else bar,
                    note="equal to the last bit; each worker reads the whole log and counts the ids of its part",
                )
        first = found[0]
        if first is None or any(each != first for each in found) or first.tally.n_reports != n_reports:
            raise Disagreement("two workers and one process fold to different tallies")


def _steps(setting: Setting) -> Measurement:
    n_records = QUICK if setting.quick else N_RECORDS
    key = new_secret()
    with TemporaryDirectory(prefix="sfumato-speed-") as folder:
        url = f"sqlite:///{Path(folder) / 'sfumato.db'}"
        migrate(url)
        with closing_database(url) as database:
            dataset_id = _create_dataset(database, Keyring((key,)), n_records)
            with (
                two_workers(url, encode_key(key)) as scheduler,
                open_records(database, dataset_id, Keyring((key,)), None) as here,
                open_records(database, dataset_id, Keyring((key,)), scheduler) as there,
            ):
                if not isinstance(there, distribute.DistributedRecords):
                    raise Disagreement("the records were not spread")
                agree("k-means steps", _centres_after_steps(there), _centres_after_steps(here))
                ours, theirs = partial(_centres_after_steps, there), partial(_centres_after_steps, here)
                name = f"3 k-means steps, {n_records:,} records, {N_FEATURES} features, k = {N_CLUSTERS}"
                note = "equal to the last bit; records are in memory already, sums without noise"
                bar = None if setting.quick else BAR
                return race(f"{name}, {N_WORKERS} Dask workers", ONE, ours, theirs, setting.turns, bar=bar, note=note)


def _centres_after_steps(records_source: RecordSource) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the centroids after three steps from the diagonal, with the sums of the curator."""
    diagonal = np.linspace(0.1, 0.9, N_CLUSTERS) * LATTICE
    centres = np.repeat(diagonal[:, None], N_FEATURES, axis=1).astype(np.int64)
    radii = np.full(N_CLUSTERS, N_FEATURES * LATTICE, dtype=np.int64)
    for _ in range(3):
        sums, counts, _ = records_source.total(CellSums(NearestCells(centres), centres, radii))
        centres = centres + sums // np.maximum(counts, 1)[:, None]
    return centres


def _create_dataset(database: Database, keyring: Keyring, n_records: int) -> str:
    """Create a central dataset that repeats the records of one upload; return its id."""
    now = database.clock()
    features = [Feature(f"x{j}", 0.0, 1.0) for j in range(N_FEATURES)]
    with database.transaction() as session:
        dataset_id = new_dataset(session, new_caller(session, now), features, now, trust=Trust.CENTRAL).id
    points = (np.random.default_rng(0).beta(2, 5, size=(UPLOAD_RECORDS, N_FEATURES)) * LATTICE).astype(np.int32)
    for begin in range(0, n_records, UPLOAD_RECORDS):
        with database.transaction() as session:
            upload = records.Upload(record_keys.open_or_create(session, dataset_id, keyring), N_FEATURES)
            n = min(UPLOAD_RECORDS, n_records - begin)
            for start in range(0, n, UPLOAD_RECORDS // 4):
                upload.add(points[start : min(n, start + UPLOAD_RECORDS // 4)], None, 0)
            records.append(session, upload, max_records=n_records, allow_duplicates=True)
    return dataset_id
