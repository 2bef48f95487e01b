"""Beyond one process: folds and k-means steps on two Dask workers, against one process with one thread."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from distributed import LocalCluster

from benchmarks.speed.agreement import Disagreement, agree
from benchmarks.speed.report_log import closing_database, report_log, spec_of
from benchmarks.speed.row import Row, Setting, compare, in_turns, seconds
from clustering.central.cells import NearestCells
from clustering.curator import Held
from clustering.questions import CellSums
from models import dataset as datasets
from models import record as records
from models import record_key, tenant
from models.dataset import Trust
from models.db import Database, migrate
from models.sealing import Keyring, new_secret, write_key
from models.tenant import Caller, Scope
from sfumato.accounting import NANO
from sfumato.specs import LATTICE, Feature
from workers import fold, spread
from workers.fold import Folded
from workers.process import keep_freed_memory
from workers.scheduler import Scheduler
from workers.spread import fold_round, held_records

GROUP = "scale"
N_WORKERS = 2
N_REPORTS, N_RECORDS, QUICK = 100_000_000, 100_000_000, 1_000_000
N_CELLS = 1000  # of the histogram
N_CLUSTERS, N_FEATURES = 8, 2
UPLOAD_RECORDS = 1 << 20
BAR = 1.2
MOST_TURNS = 2  # of a minute each

ONE = "the same code in one process, one thread"
TWO = "the same code in one process, one thread reads ahead"


def rows(setting: Setting) -> Iterator[Row]:
    """A histogram's fold, and k-means steps over records."""
    setting.progress("  scale: folds")
    yield from _folds(setting)
    setting.progress("  scale: k-means steps")
    yield _steps(setting)


@contextmanager
def two_workers(url: str, records_key: str = "") -> Iterator[Scheduler]:
    """Two Dask workers of one thread each, on this machine, that know a database by their own environment."""
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


def _folds(setting: Setting) -> Iterator[Row]:
    keep_freed_memory()  # as a worker does
    n_reports = QUICK if setting.quick else N_REPORTS
    with (
        report_log(spec_of("grr", N_CELLS), n_reports) as log,
        two_workers(str(log.database.engine.url)) as scheduler,
        patch.object(spread, "SPREAD_REPORTS", 1),
    ):
        found: list[Folded | None] = [spread.fold_spread(log.closed, scheduler)]  # compiled
        for n_threads, reference, bar in ((1, ONE, BAR), (2, TWO, None)):
            with patch.object(fold, "own_threads", lambda n_threads=n_threads: n_threads):
                measured = in_turns(
                    lambda: seconds(lambda: found.append(spread.fold_spread(log.closed, scheduler))),
                    lambda: seconds(lambda: found.append(fold_round(log.database, log.closed))),
                    min(MOST_TURNS, setting.turns),
                )
            yield compare(
                GROUP,
                f"fold of {n_reports:,} grr, {N_CELLS} cells, {N_WORKERS} Dask workers, {n_threads} here",
                reference,
                measured,
                bar=None if setting.quick else bar,
                note="equal to the last bit; each worker reads the whole log and counts the ids of its part",
            )
        first = found[0]
        if first is None or any(each != first for each in found) or first.tally.n_reports != n_reports:
            raise Disagreement("two workers and one process fold to different tallies")


def _steps(setting: Setting) -> Row:
    n_records = QUICK if setting.quick else N_RECORDS
    key = new_secret()
    with TemporaryDirectory(prefix="sfumato-speed-") as folder:
        url = f"sqlite:///{Path(folder) / 'sfumato.db'}"
        migrate(url)
        with closing_database(url) as database:
            dataset_id = _filled(database, Keyring((key,)), n_records)
            with (
                two_workers(url, write_key(key)) as scheduler,
                held_records(database, dataset_id, Keyring((key,)), None) as here,
                held_records(database, dataset_id, Keyring((key,)), scheduler) as there,
            ):
                if not isinstance(there, spread.SpreadRecords):
                    raise Disagreement("the records were not spread")
                agree("k-means steps", _stepped(there), _stepped(here))
                measured = in_turns(
                    lambda: seconds(lambda: _stepped(there)),
                    lambda: seconds(lambda: _stepped(here)),
                    setting.turns,
                )
    return compare(
        GROUP,
        f"3 k-means steps, {n_records:,} records, {N_FEATURES} features, k = {N_CLUSTERS}, {N_WORKERS} Dask workers",
        ONE,
        measured,
        bar=None if setting.quick else BAR,
        note="equal to the last bit; records are in memory already, sums without noise",
    )


def _stepped(held: Held) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Where three steps take centres of the diagonal, as the curator sums them up."""
    diagonal = np.linspace(0.1, 0.9, N_CLUSTERS) * LATTICE
    centres = np.repeat(diagonal[:, None], N_FEATURES, axis=1).astype(np.int64)
    radii = np.full(N_CLUSTERS, N_FEATURES * LATTICE, dtype=np.int64)
    for _ in range(3):
        sums, counts, _ = held.total(CellSums(NearestCells(centres), centres, radii, "l1"))
        centres = centres + sums // np.maximum(counts, 1)[:, None]
    return centres


def _filled(database: Database, keyring: Keyring, n_records: int) -> str:
    """A central dataset of so many records; those of one upload over and over."""
    now = database.clock()
    features = tuple(Feature(f"x{j}", 0.0, 1.0) for j in range(N_FEATURES))
    with database.transaction() as session:
        owner = tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now)
        key, _ = tenant.create_key(session, owner.id, name="speed", scopes=[Scope.ADMIN], now=now)
        caller = Caller(key.id, owner.id, frozenset(key.scopes), None, None)
        dataset_id = datasets.create(
            session,
            caller,
            name="speed",
            trust=Trust.CENTRAL,
            features=features,
            epsilon_nano=NANO,
            min_reports=1,
            keep_reports=False,
            max_datasets=1,
            now=now,
        ).id
    points = (np.random.default_rng(0).beta(2, 5, size=(UPLOAD_RECORDS, N_FEATURES)) * LATTICE).astype(np.int32)
    for begin in range(0, n_records, UPLOAD_RECORDS):
        with database.transaction() as session:
            upload = records.Upload(record_key.open_or_make(session, dataset_id, keyring), N_FEATURES)
            n = min(UPLOAD_RECORDS, n_records - begin)
            for start in range(0, n, UPLOAD_RECORDS // 4):
                upload.add(points[start : min(n, start + UPLOAD_RECORDS // 4)], None, 0)
            records.append(session, upload, max_records=n_records)
    return dataset_id
