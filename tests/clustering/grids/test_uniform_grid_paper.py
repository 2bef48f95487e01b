"""Test `uniform_grid` with `variant="paper"`: its two rounds, their cost, theorem 1 and the printed dense cells."""

import numpy as np
import pytest

from clustering.errors import TooFewReports
from clustering.grids.uniform_grid import uniform_grid
from clustering.grids.uniform_grid_paper import DenseShare, granularity, join_dense_cells
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.sizing.grids import MAX_PRINTED_CELLS, most_printed_cells
from sfumato.sizing.rounds import spending
from sfumato.specs import (
    GridEncoding,
    GrrMechanism,
    Participation,
    RoundSpec,
    UniformGrid,
)
from tests.clustering.local_plans import features, price, run

XY = features(2)


def counted(spec, counts):
    counts = np.asarray(counts, dtype=np.int64).reshape(1, -1)
    return Collected(spec, Tally(counts, counts.sum(axis=1)))


def exactly(spec):
    return RoundSpec(spec.features, spec.encoding, GrrMechanism(spec.encoding.n_symbols, DRAW_SPAN), spec.participation)


def model_of(last_counts, cells=4, clusters=None):
    """Return the model of unperturbed rounds: 100 people in one coarse cell, then these counts."""
    plan = uniform_grid(UniformGrid(epsilon=1, cells=cells, clusters=clusters, variant="paper"), XY, 100)
    coarse = np.zeros(256)
    coarse[0] = 100

    def answer(spec):
        return counted(exactly(spec), coarse if spec.encoding.cells == (16, 16) else last_counts)

    return drive(plan, answer)


class TestRounds:
    def test_two_rounds_of_randomised_response_cost_the_epsilon(self):
        _, devices = run(UniformGrid(epsilon=2, variant="paper"), np.random.default_rng(1).random((1000, 2)))
        assert [spec.mechanism.type for spec in devices.specs] == ["grr", "grr"]
        assert devices.participations == [Participation(), Participation()]
        assert all(1e9 - 10 <= spec.mechanism.epsilon_nano() <= 1e9 for spec in devices.specs)
        assert price(devices.specs) <= 2e9

    def test_the_second_grid_has_the_granularity_of_theorem_1(self):
        plan = uniform_grid(UniformGrid(epsilon=2, variant="paper"), XY, 1000)
        first = next(plan)
        counts = np.zeros(256)
        counts[:64] = 100
        second = plan.send(counted(exactly(first), counts))
        m = granularity(DenseShare(6400, 0.25), 10**9, 2)
        assert second.encoding == GridEncoding((int(np.ceil(1 / m)),) * 2)

    def test_refuses_an_epsilon_too_small_for_two_rounds(self):
        with pytest.raises(InvalidSpec, match="too small"):
            next(uniform_grid(UniformGrid(epsilon=1e-6, variant="paper"), XY, 1000))
        assert spending(2_001, 2) == [1_000, 1_000]

    def test_refuses_a_second_round_without_reports(self):
        with pytest.raises(TooFewReports):
            model_of(np.zeros(16))

    @pytest.mark.parametrize("epsilon", [0.001, 32])
    @pytest.mark.parametrize("d", [1, 3, 8])
    def test_grids_stay_within_their_bounds(self, d, epsilon):
        plan = uniform_grid(UniformGrid(epsilon=epsilon, variant="paper"), features(d), 1000)
        first = next(plan)
        counts = np.zeros(first.encoding.n_symbols)
        counts[0] = 10**7
        second = plan.send(counted(first, counts))
        assert 2 <= second.encoding.cells[0] <= most_printed_cells(d)
        assert second.encoding.n_symbols <= MAX_PRINTED_CELLS

    def test_refuses_too_many_cells(self):
        with pytest.raises(InvalidSpec, match="65536"):
            model_of(np.zeros(16), cells=257)


class TestClusters:
    def test_are_dense_cells_that_share_faces_and_other_cells_are_unclustered(self):
        model = model_of([9, 9, 0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0])
        assert model.label_map.tolist() == [[0, 0, 2, 2], [2, 2, 1, 2], [2, 2, 1, 2], [2, 2, 2, 2]]
        assert model.diagnostics["unclustered"] == 2
        assert "Cluster 2 contains the cells" in model.warnings[1]

    def test_the_largest_are_kept_if_their_number_is_given(self):
        model = model_of([3, 0, 0, 9, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0], clusters=2)
        assert model.label_map[0].tolist() == [2, 2, 2, 0]
        assert model.label_map[2, 0] == 1

    def test_a_warning_names_missing_clusters(self):
        model = model_of([5] * 16, clusters=3)
        assert model.n_clusters == 1
        assert "No cell is dense" in model.warnings[1]
        assert "3 clusters were requested" in model.warnings[-1]

    def test_at_most_256_are_kept(self):
        counts = np.zeros((64, 64), dtype=int)
        counts[::3, ::3] = 50
        model = model_of(counts, cells=64)
        assert model.n_clusters == 257
        assert "the 256 of most mass" in model.warnings[-1]

    def test_regions_have_consecutive_numbers(self):
        pairs = np.array([[0, 1], [1, 2], [2, 3]])
        assert join_dense_cells(np.array([True, True, False, True]), pairs).tolist() == [0, 0, -1, 1]
        assert join_dense_cells(np.zeros(4, dtype=bool), pairs).tolist() == [-1] * 4
