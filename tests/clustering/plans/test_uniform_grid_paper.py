"""`uniform_grid` with `variant="paper"`: two rounds that add up, Theorem 1, dense cells as printed."""

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.plan import Collected, Tally, drive
from clustering.plans.uniform_grid import uniform_grid
from clustering.plans.uniform_grid_paper import Share, granularity, joined
from clustering.simulate import simulate
from sfumato.accounting import DRAW_SPAN, cost
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import epsilon_nano
from sfumato.sizing import MAX_PRINTED_CELLS, most_printed_cells, spending
from sfumato.specs import Draw, Feature, GridEncoding, GrrMechanism, RoundSpec, ShiftedGridEncoding, UniformGrid

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def counted(spec, counts):
    counts = np.asarray(counts, dtype=np.int64).reshape(1, -1)
    return Collected(spec, Tally(counts, counts.sum(axis=1)))


def exactly(spec):
    return RoundSpec(spec.features, spec.encoding, GrrMechanism(spec.encoding.n_symbols, DRAW_SPAN), spec.draw)


def model_of(last_counts, cells=4, clusters=None):
    """The model of a coarse round of 100 people in one cell, and then of these counts, nobody perturbed."""
    plan = uniform_grid(UniformGrid(epsilon=1, cells=cells, clusters=clusters, variant="paper"), XY, 100)
    coarse = np.zeros(256)
    coarse[0] = 100

    def answer(spec):
        return counted(exactly(spec), coarse if spec.encoding.cells == (16, 16) else last_counts)

    return drive(plan, answer)


class TestRounds:
    def test_are_two_for_every_draw_through_randomised_response_and_add_up_to_the_epsilon(self):
        asked = []
        plan = uniform_grid(UniformGrid(epsilon=2, variant="paper"), XY, 1000)

        def answer(spec):
            asked.append(spec)
            return counted(spec, np.full(spec.encoding.n_symbols, 10))

        drive(plan, answer)
        assert [spec.mechanism.type for spec in asked] == ["grr", "grr"]
        assert [spec.draw for spec in asked] == [Draw(), Draw()]
        paid = [epsilon_nano(spec.mechanism) for spec in asked]
        assert all(1e9 - 10 <= nano <= 1e9 for nano in paid)
        assert cost(((spec.draw.lo, spec.draw.hi), nano) for spec, nano in zip(asked, paid, strict=True)) <= 2e9

    def test_of_the_grid_has_cells_of_the_side_theorem_1_gives(self):
        plan = uniform_grid(UniformGrid(epsilon=2, variant="paper"), XY, 1000)
        first = next(plan)
        counts = np.zeros(256)
        counts[:64] = 100
        second = plan.send(counted(exactly(first), counts))
        m = granularity(Share(6400, 0.25), 10**9, 2)
        assert second.encoding == GridEncoding((int(np.ceil(1 / m)),) * 2)

    def test_too_small_an_epsilon_to_be_halved_is_refused(self):
        with pytest.raises(InvalidSpec, match="too small"):
            next(uniform_grid(UniformGrid(epsilon=1e-6, variant="paper"), XY, 1000))
        assert spending(2_001, 2) == [1_000, 1_000]

    def test_no_reports_in_either_round_are_too_few(self):
        with pytest.raises(TooFewReports):
            simulate(UniformGrid(epsilon=1, variant="paper"), np.empty((0, 2)), seed=1)
        with pytest.raises(TooFewReports):
            model_of(np.zeros(16))

    @pytest.mark.parametrize("epsilon", [0.001, 32])
    @pytest.mark.parametrize("d", [1, 2, 3, 8])
    def test_grids_stay_within_their_bounds(self, d, epsilon):
        features = tuple(Feature(f"x{i}", 0, 1) for i in range(d))
        plan = uniform_grid(UniformGrid(epsilon=epsilon, variant="paper"), features, 1000)
        first = next(plan)
        counts = np.zeros(first.encoding.n_symbols)
        counts[0] = 10**7
        second = plan.send(counted(first, counts))
        assert 2 <= second.encoding.cells[0] <= most_printed_cells(d)
        assert second.encoding.n_symbols <= MAX_PRINTED_CELLS

    def test_more_cells_than_may_be_are_refused(self):
        with pytest.raises(InvalidSpec, match="65536"):
            model_of(np.zeros(16), cells=257)

    def test_of_another_encoding_are_refused(self):
        plan = uniform_grid(UniformGrid(epsilon=1, variant="paper"), XY, 100)
        next(plan)
        encoding = ShiftedGridEncoding(2, 3, 2)
        other = RoundSpec(XY, encoding, GrrMechanism(16, 2**63))
        tally = Tally.empty(other)
        tally.reports[:] = 1
        with pytest.raises(UnfitRound):
            plan.send(Collected(other, tally))


class TestClusters:
    def test_are_dense_cells_that_touch_at_faces_and_the_rest_is_in_none(self):
        model = model_of([9, 9, 0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0])
        assert model.label_map.tolist() == [[0, 0, 2, 2], [2, 2, 1, 2], [2, 2, 1, 2], [2, 2, 2, 2]]
        assert model.diagnostics["unclustered"] == 2
        assert "Cluster 2 is none" in model.warnings[1]

    def test_of_most_mass_are_kept_where_their_number_is_given(self):
        model = model_of([3, 0, 0, 9, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0], clusters=2)
        assert model.label_map[0].tolist() == [2, 2, 2, 0]
        assert model.label_map[2, 0] == 1

    def test_that_are_missing_are_said(self):
        model = model_of([5] * 16, clusters=3)
        assert model.n_clusters == 1
        assert "No cell is dense" in model.warnings[1]
        assert "3 clusters were asked for" in model.warnings[-1]

    def test_no_more_than_256_are_kept(self):
        counts = np.zeros((64, 64), dtype=int)
        counts[::3, ::3] = 50
        model = model_of(counts, cells=64)
        assert model.n_clusters == 257
        assert "the 256 of most mass" in model.warnings[-1]

    def test_joined_numbers_regions_in_order(self):
        pairs = np.array([[0, 1], [1, 2], [2, 3]])
        assert joined(np.array([True, True, False, True]), pairs).tolist() == [0, 0, -1, 1]
        assert joined(np.zeros(4, dtype=bool), pairs).tolist() == [-1] * 4
