"""What tests of folds and sums on Dask workers share: rounds, records and what is asked of them."""

import time

import numpy as np

from clustering.central.cells import GridCells, HashedCells, NearestCells
from clustering.questions import CellCounts, CellSquares, CellSums, number_of
from models.db import Database
from models.round import Round
from sfumato.accounting import NANO
from sfumato.mechanisms import design_for
from sfumato.specs import LATTICE, Feature, GridEncoding, LatticeEncoding, RoundSpec
from tests.workers.archive import Archive
from tests.workers.collection import Collection
from tests.workers.dask_cluster import DaskCluster
from workers.scheduler import Scheduler, SchedulerAway

X = (Feature("x", 0.0, 10.0),)
N_REPORTS = 3000

WORKS = [
    number_of,
    CellCounts(GridCells((4, 4))),
    CellSums(
        HashedCells(5, 7), np.full((5, 2), LATTICE // 2, dtype=np.int64), np.full(5, LATTICE, dtype=np.int64), "l1"
    ),
    CellSums(
        NearestCells(np.array([[1, 2], [LATTICE // 2, LATTICE - 1]])),
        np.full((2, 2), LATTICE // 3, dtype=np.int64),
        np.full(2, LATTICE // 9, dtype=np.int64),
        "l2",
    ),
    CellSquares(GridCells((2, 1)), np.full((2, 2), LATTICE // 3, dtype=np.int64), 20),
]


def connected(cluster: DaskCluster) -> Scheduler:
    """The way to a cluster, once all its workers are there."""
    scheduler, deadline = Scheduler(cluster.address), time.monotonic() + 120
    while True:
        try:
            if scheduler.n_workers() == len(cluster.workers):
                return scheduler
        except SchedulerAway:
            pass
        assert time.monotonic() < deadline, cluster.logged()
        time.sleep(0.05)


def answered_round(collection: Collection, kind: str) -> Round:
    """A full round in whose log ids come again, far from where they came first."""
    encoding = LatticeEncoding(1, 50) if kind == "discrete_laplace" else GridEncoding((30,))
    spec = RoundSpec(X, encoding, design_for(encoding, kind, NANO))
    collection.open_alone(spec, target_reports=2 * N_REPORTS)
    asked = collection.open_round()
    assert asked is not None
    collection.answer(asked, N_REPORTS, batches=40)
    collection.answer(asked, N_REPORTS // 2, batches=7)  # the first half once more, byte by byte
    collection.answer(asked, N_REPORTS // 2, batches=7, seed=5)
    with collection.database.reading() as session:
        return session.get_one(Round, asked.id)


def a_crowd(database: Database) -> Archive:
    """Records in several uploads; some of their users have too many."""
    made = Archive.create(database, max_per_user=3, n_records=0)
    for seed in range(5):
        made.add(400, users=[f"user {seed * i % 300}".encode() for i in range(400)], seed=seed)
    return made


def assert_same(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    """Equal whole numbers."""
    assert [array.tolist() for array in found] == [array.tolist() for array in expected]
    assert {array.dtype for array in found} == {np.dtype(np.int64)}
