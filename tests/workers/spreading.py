"""Rounds, records and sums for the tests with Dask workers."""

import time

import numpy as np

from clustering.central.cells import GridCells, HashedCells, NearestCells
from clustering.central.queries import CellCounts, CellMoments, CellSquares, CellSums, count_records
from models.database.engine import Database
from models.tables.rounds import Round
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE, Feature, GridEncoding, LatticeEncoding, RoundSpec, design_for
from tests.workers.archive import Archive
from tests.workers.collection import Collection
from tests.workers.dask_cluster import DaskCluster
from workers.aggregation.aggregate import Aggregation, aggregate_round
from workers.distributed import distribute
from workers.distributed.dask_client import Scheduler, SchedulerUnavailable

X = (Feature("x", 0.0, 10.0),)
N_REPORTS = 3000

WORKS = [
    count_records,
    CellCounts(GridCells((4, 4))),
    CellSums(HashedCells(5, 7), np.full((5, 2), LATTICE // 2, dtype=np.int64), np.full(5, LATTICE, dtype=np.int64)),
    CellMoments(
        NearestCells(np.array([[1, 2], [LATTICE // 2, LATTICE - 1]])),
        np.full((2, 2), LATTICE // 3, dtype=np.int64),
        np.full(2, LATTICE // 9, dtype=np.int64),
        "products",
    ),
    CellSquares(GridCells((2, 1)), np.full((2, 2), LATTICE // 3, dtype=np.int64), 20),
]


def connected(cluster: DaskCluster) -> Scheduler:
    """Return a scheduler after all its workers have connected."""
    scheduler, deadline = Scheduler(cluster.address), time.monotonic() + 120
    while True:
        try:
            if scheduler.count_workers() == len(cluster.workers):
                return scheduler
        except SchedulerUnavailable:
            pass
        assert time.monotonic() < deadline, cluster.logged()
        time.sleep(0.05)


def answered_round(collection: Collection, kind: str) -> Round:
    """Return a full round with repeated ids, far from their first occurrence."""
    encoding = LatticeEncoding(1, 50) if kind == "discrete_laplace" else GridEncoding((30,))
    spec = RoundSpec(X, encoding, design_for(encoding, kind, NANO))
    collection.open_alone(spec, target_reports=2 * N_REPORTS)
    asked = collection.get_open_round()
    collection.answer(asked, N_REPORTS, batches=40)
    collection.answer(asked, N_REPORTS // 2, batches=7)  # the first half once more, byte by byte
    collection.answer(asked, N_REPORTS // 2, batches=7, seed=5)
    collection.close(asked.id)  # the repeated reports do not fill it
    with collection.database.reading() as session:
        return session.get_one(Round, asked.id)


def aggregate_with(database: Database, closed: Round, scheduler: Scheduler | None) -> Aggregation:
    """Aggregate on the scheduler's workers if possible, else locally."""
    distributed = None if scheduler is None else distribute.aggregate_round(closed, scheduler)
    return distributed or aggregate_round(database, closed)


def a_crowd(database: Database) -> Archive:
    """Return a dataset with several uploads. Some users exceed the maximum number of records."""
    made = Archive.create(database, max_per_user=3, n_records=0)
    for seed in range(5):
        made.add(400, users=[f"user {seed * i % 300}".encode() for i in range(400)], seed=seed)
    return made


def assert_same(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    """Assert that the integers and their types are equal."""
    assert [array.tolist() for array in found] == [array.tolist() for array in expected]
    assert {array.dtype for array in found} == {np.dtype(np.int64)}
