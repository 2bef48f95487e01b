"""Every central algorithm, its worker gone after any of its answers: the model is the one its kept answers give."""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from clustering.central import run as central_run
from clustering.central.curator import Curator
from clustering.central.queries import Journal, Query, Records
from models.database.engine import Database
from models.database.types import canonical_json
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import parse_epsilon
from sfumato.specs import CENTRAL_ALGORITHMS, Feature, central_algorithm_from_wire, to_wire
from tests.workers.archive import KEYRING, Archive
from tests.workers.driving import LEASE, must_claim
from tests.workers.toy_central import Crash
from workers.job_runner import ClaimOutcome, run
from workers.kernels.warmup import small_parameters

FEATURES = (Feature("x", 0.0, 10.0), Feature("y", -1.0, 1.0))  # the archive's


@dataclass
class Witness:
    """A job's journal that lists the query answers and ends the job after a number of them."""

    journal: Journal
    told: dict[int, NDArray[np.int64]]
    drawn: list[int]
    last: int

    def charge(self, index: int, question: Query) -> NDArray[np.int64] | None:
        before = self.journal.charge(index, question)
        if before is not None:
            assert index not in self.told or np.array_equal(before, self.told[index])
            self.told[index] = before
        return before

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        self.drawn.append(index)
        self.journal.keep(index, answer)
        self.told[index] = answer
        if index == self.last:
            raise Crash


@dataclass
class Watched:
    """Runs an algorithm before the eyes of a witness."""

    told: dict[int, NDArray[np.int64]]
    drawn: list[int]
    last: int = 1_000_000

    def __call__(self, params, features, curator: Curator) -> ClusterModel:
        curator._journal = Witness(curator._journal, self.told, self.drawn, self.last)
        return central_run.run(params, features, curator)


class Told:
    """A journal that has every answer, and entropy for nothing."""

    def __init__(self, told: dict[int, NDArray[np.int64]]) -> None:
        self._told = told

    def charge(self, index: int, question: Query) -> NDArray[np.int64]:
        assert len(self._told[index]) == question.n_values
        return self._told[index]

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        raise AssertionError("nothing is drawn")

    def words(self, n: int) -> NDArray[np.uint64]:
        raise AssertionError("nothing is drawn")


@pytest.mark.parametrize("tag", sorted(CENTRAL_ALGORITHMS))
def test_a_crash_after_an_answer_changes_neither_the_price_nor_the_model(database: Database, tag: str) -> None:
    params = replace(small_parameters(tag), epsilon=1.0)
    archive = Archive.create(database)
    job_id = archive.submit(algorithm=to_wire(params), epsilon_nano=parse_epsilon(params.epsilon))
    told: dict[int, NDArray[np.int64]] = {}
    drawn: list[int] = []
    for attempt, last in enumerate((0, 1, 1_000_000)):
        if archive.job(job_id).is_final:  # with given cells, an algorithm has a single query
            break
        held = must_claim(database, later=2 * attempt * LEASE)
        with suppress(Crash):
            assert (
                run(database, held, run_central=Watched(told, drawn, last), keyring=lambda: KEYRING)
                is ClaimOutcome.SUCCEEDED
            )
    archive.check(job_id)
    document = archive.document(job_id)
    assert drawn == list(range(len(document["odometer"])))
    nobody = Told(told)
    curator = Curator(Records(np.zeros((0, 2), dtype=np.int32)), parse_epsilon(params.epsilon), nobody, nobody)
    again = central_run.run(central_algorithm_from_wire(to_wire(params)), FEATURES, curator)
    assert canonical_json(document["model"]) == canonical_json(again.to_wire())
