"""Central jobs with a delta, on both databases: a block is paid once, before anything is drawn, whatever happens."""

from dataclasses import dataclass

import numpy as np
import pytest

from clustering.central.cells import GridCells
from clustering.curator import Curator
from models import job as jobs
from models.db import Database
from models.job import JobState
from models.ledger import Balance
from sfumato.accounting import NANO
from sfumato.cluster_model import ClusterModel
from tests.workers.archive import GRANTED, KEYRING, Archive
from tests.workers.driving import LEASE, must_claim
from tests.workers.toy_central import Crash, StoppingCells
from workers.runner import Outcome, run

MICRO = 10**12  # of delta, in atto-delta
POSTED = [(NANO // 4, 0), (NANO // 2, MICRO), (0, 0), (0, 0)]  # a count, a block, two questions within it


@dataclass
class Block:
    """An algorithm with a block; it ends where its question number `at` is charged and not drawn."""

    at: int = -1
    delta_atto: int = MICRO

    def __call__(self, params: object, features: tuple, curator: Curator) -> ClusterModel:
        def stop(index: int) -> None:
            if index == self.at:
                raise Crash

        grid = GridCells((2, 2))
        answers = [curator.counts(StoppingCells(grid, lambda: stop(0)), NANO // 4).tolist()]
        block = curator.concentrated(NANO // 2, self.delta_atto)
        stop(1)  # paid for, and nothing asked of it
        share = block.left_pico // 2
        answers += [block.counts(StoppingCells(grid, lambda i=i: stop(i)), share).tolist() for i in (2, 3)]
        centroids = np.array([[(f.lower + f.upper) / 2 for f in features]])
        ones = np.ones(1)
        return ClusterModel("centroids", features, ones, 0 * ones, centroids, diagnostics={"answers": answers})


@pytest.fixture
def archive(database: Database) -> Archive:
    """A central dataset with records and a delta."""
    return Archive.create(database, delta_atto=5 * MICRO)


def work(archive: Archive, toy: Block, *, later: int = 0) -> Outcome:
    held = must_claim(archive.database, later=later)
    return run(archive.database, held, run_central=toy, keyring=lambda: KEYRING)


def posted(archive: Archive, job_id: str) -> list[tuple[int, int]]:
    epsilons = [epsilon for _, epsilon in archive.posts(job_id)]
    return list(zip(epsilons, archive.posted_deltas(job_id), strict=True))


class TestABlock:
    def test_is_charged_once_for_all_that_is_asked_of_it(self, archive: Archive) -> None:
        job_id = archive.submit(delta_atto=2 * MICRO)
        assert archive.balance() == Balance(GRANTED, NANO, 0, 5 * MICRO, 2 * MICRO, 0)
        assert work(archive, Block()) is Outcome.SUCCEEDED
        assert posted(archive, job_id) == POSTED
        assert archive.balance() == Balance(GRANTED, 0, 3 * NANO // 4, 5 * MICRO, 0, MICRO)
        archive.check(job_id)

    @pytest.mark.parametrize("at", range(4))
    def test_survives_a_crash_anywhere_at_no_further_cost(self, archive: Archive, at: int) -> None:
        job_id = archive.submit(delta_atto=2 * MICRO)
        with pytest.raises(Crash):
            work(archive, Block(at=at))
        assert posted(archive, job_id) == POSTED[: at + 1]
        kept = [each.index for each in archive.answers(job_id) if each.packed is not None]
        assert kept == list(range(at + (at == 1)))  # a block has nothing to draw
        assert work(archive, Block(), later=2 * LEASE) is Outcome.SUCCEEDED
        assert posted(archive, job_id) == POSTED
        assert archive.balance() == Balance(GRANTED, 0, 3 * NANO // 4, 5 * MICRO, 0, MICRO)
        archive.check(job_id)

    def test_beyond_the_jobs_delta_is_not_charged_and_nothing_is_drawn_for_it(self, archive: Archive) -> None:
        job_id = archive.submit(delta_atto=2 * MICRO)
        assert work(archive, Block(delta_atto=2 * MICRO + 1)) is Outcome.FAILED
        assert archive.job(job_id).error_code == "budget_exhausted"
        assert posted(archive, job_id) == POSTED[:1]
        assert archive.balance() == Balance(GRANTED, 0, NANO // 4, 5 * MICRO, 0, 0)

    @pytest.mark.parametrize(("at", "spent"), [(0, (NANO // 4, 0)), (1, (3 * NANO // 4, MICRO))])
    def test_of_a_job_that_is_cancelled_after_a_crash_stays_paid(
        self, archive: Archive, at: int, spent: tuple[int, int]
    ) -> None:
        job_id = archive.submit(delta_atto=2 * MICRO)
        with pytest.raises(Crash):
            work(archive, Block(at=at))
        archive.cancel(job_id)
        with archive.database.transaction() as session:
            now = archive.database.clock() + 2 * LEASE
            assert jobs.claim(session, now=now, lease_microseconds=LEASE, max_attempts=5) is None
        assert archive.job(job_id).state == JobState.CANCELED
        assert archive.balance() == Balance(GRANTED, 0, spent[0], 5 * MICRO, 0, spent[1])
