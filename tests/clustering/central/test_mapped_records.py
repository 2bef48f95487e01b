"""Records after a public map: a selection of columns, in the curator and in the digests of its queries."""

import json

import numpy as np
import pytest

from clustering.central.cells import WholeBox
from clustering.central.curator import Curator
from clustering.central.mapped_records import MappedRecords, Selection
from clustering.central.queries import CellCounts, MemoryJournal, Records, compute_digest, count_records
from clustering.central.run import run
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.specs import LATTICE, Feature, PrivateKmeans

POINTS = np.random.default_rng(5).integers(0, LATTICE, (2_000, 12)).astype(np.int32)
CHOSEN = Selection(np.array([1, 4, 7, 8, 11]))


def curator(points: np.ndarray, selection: Selection | None, params: PrivateKmeans) -> Curator:
    budget = parse_epsilon(params.epsilon), parse_delta(params.delta)
    entropy = SeededEntropy(3)
    return Curator(Records(points, 2), budget[0], MemoryJournal(), entropy, budget[1], selection=selection)


@pytest.mark.parametrize(
    "params",
    [
        PrivateKmeans(4.0, 3),
        PrivateKmeans(8.0, 3, delta=1e-6),
        PrivateKmeans(32.0, 2, bounds="private"),
        PrivateKmeans(32.0, 2, delta=1e-3, bounds="private"),
    ],
    ids=["pure", "block", "private bounds", "private bounds in a block"],
)
def test_a_job_over_selected_columns_is_one_over_a_dataset_of_these_columns(params: PrivateKmeans) -> None:
    features = tuple(Feature(f"x{place}", 0.0, 1.0) for place in CHOSEN.positions)
    wide, narrow = curator(POINTS, CHOSEN, params), curator(CHOSEN.apply(POINTS), None, params)
    assert json.dumps(run(params, features, wide).to_wire()) == json.dumps(run(params, features, narrow).to_wire())
    assert [each.digest for each in wide.odometer] != [each.digest for each in narrow.odometer]


def test_the_digest_of_a_query_without_a_selection_has_no_part_for_it() -> None:
    params = PrivateKmeans(1.0, 2)
    whole, chosen = curator(POINTS, None, params), curator(POINTS, CHOSEN, params)
    whole.counts(WholeBox(), 1000)
    chosen.counts(WholeBox(), 1000)
    assert whole.odometer[0].digest == compute_digest("counts", 2, WholeBox())
    assert chosen.odometer[0].digest == compute_digest("counts", 2, CHOSEN, WholeBox())
    other = curator(POINTS, Selection(np.array([1, 4, 7, 8, 10])), params)
    other.counts(WholeBox(), 1000)
    assert other.odometer[0].digest != chosen.odometer[0].digest


def test_sums_over_selected_columns_equal_those_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clustering.central.cells.BLOCK_VALUES", 64)
    records = MappedRecords(Records(POINTS, 3), CHOSEN)
    assert records.points.tolist() == POINTS[:, [1, 4, 7, 8, 11]].tolist()
    assert (records.n_features, records.max_per_user) == (5, 3)
    assert records.total(count_records)[0].tolist() == [2_000]
    assert records.total(CellCounts(WholeBox()))[0].tolist() == [2_000]
