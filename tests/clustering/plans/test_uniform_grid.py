"""`uniform_grid`: the size of its grid, and its dense regions."""

import numpy as np
import pytest

from clustering.decoders import decoder
from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, Tally
from clustering.plans.uniform_grid import fit, uniform_grid
from clustering.simulate import simulate
from sfumato.accounting import DRAW_SPAN
from sfumato.mechanisms import design, epsilon_nano
from sfumato.sizing import DENSE_SHARE, Z, reports_to_tell, uniform_grid_cells
from sfumato.specs import Draw, Feature, GridEncoding, GrrMechanism, RoundSpec, UniformGrid

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def exact(cells, counts, clusters=None):
    """The model of counts that nobody perturbed."""
    encoding = GridEncoding(cells)
    spec = RoundSpec(XY, encoding, GrrMechanism(encoding.n_symbols, DRAW_SPAN))
    counts = np.asarray(counts, dtype=np.int64).reshape(1, -1)
    return fit(UniformGrid(epsilon=1, clusters=clusters), Collected(spec, Tally(counts, counts.sum(axis=1))))


class TestRound:
    def test_is_one_at_the_full_epsilon_for_every_draw(self):
        spec = next(uniform_grid(UniformGrid(epsilon=2, cells=7), XY, 1000))
        assert spec.encoding == GridEncoding((7, 7))
        assert spec.draw == Draw()
        assert 2e9 - 10 <= epsilon_nano(spec.mechanism) <= 2e9

    @pytest.mark.parametrize("n_features", [1, 2, 3, 8])
    @pytest.mark.parametrize("n_reports", [10, 15_000, 10**6])
    @pytest.mark.parametrize("epsilon", [0.5, 4])
    def test_grid_is_the_finest_whose_dense_cells_stand_out(self, n_features, n_reports, epsilon):
        nano = int(epsilon * 1e9)
        cells = uniform_grid_cells(n_features, n_reports, nano)

        def dense_cell_in_errors(cells):
            k = cells**n_features
            dense = min(1, 1 / (DENSE_SHARE * k))
            v = decoder(design("auto", k, nano)).zero_variance
            return dense / np.sqrt((v + dense) / n_reports)

        assert cells == 2 or dense_cell_in_errors(cells) >= Z * (1 - 1e-9)
        if (cells + 1) ** n_features <= 1 << 20 and cells < 1024:
            assert dense_cell_in_errors(cells + 1) < Z

    def test_reports_needed_are_those_the_grid_was_sized_by(self):
        cells = uniform_grid_cells(2, 15_000, 10**9)
        finer, as_is = (
            reports_to_tell(k, decoder(design("auto", k, 10**9)).zero_variance) for k in ((cells + 1) ** 2, cells**2)
        )
        assert as_is <= 15_000 < finer


class TestRegions:
    def test_join_at_faces_and_not_at_corners(self):
        model = exact((4, 4), [9, 9, 0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0])
        assert model.n_clusters == 2
        assert model.label_map[0, 0] == model.label_map[0, 1] != model.label_map[1, 2] == model.label_map[2, 2]

    def test_the_rest_goes_to_the_nearest(self):
        model = exact((1, 8), [50, 0, 0, 0, 0, 0, 0, 40])
        assert model.label_map.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]

    def test_only_the_most_massive_are_kept(self):
        counts = [50, 0, 20, 0, 40, 0, 0, 0]
        assert exact((1, 8), counts).n_clusters == 3
        model = exact((1, 8), counts, clusters=2)
        assert model.n_clusters == 2
        assert model.label_map[0, [0, 4]].tolist() == [0, 1]

    def test_cells_below_the_mean_are_not_dense(self):
        model = exact((1, 4), [40, 10, 10, 40])
        assert model.diagnostics["dense_cells"] == 2
        assert model.n_clusters == 2

    def test_no_dense_cell_makes_one_cluster_and_is_said(self):
        model = exact((2, 2), [5, 5, 5, 5])
        assert model.n_clusters == 1
        assert model.diagnostics["low_confidence"] is True
        assert "No cell stands out" in model.warnings[0]

    def test_no_more_than_256_are_kept(self):
        model = exact((2, 601), [50, 0] * 601)
        assert model.n_clusters == 256
        assert "256 of most mass" in model.warnings[0]

    def test_sizes_are_shares_of_the_people(self):
        model = exact((1, 8), [50, 0, 0, 0, 0, 0, 0, 40])
        assert model.sizes == pytest.approx([5 / 9, 4 / 9])
        assert model.size_errors == pytest.approx([np.sqrt(20 / 81 / 90)] * 2)


class TestUnderNoise:
    def test_blobs_are_found(self):
        rng = np.random.default_rng(1)
        labels = rng.integers(0, 3, 100_000)
        centres = np.array([[0.2, 0.2], [0.5, 0.8], [0.8, 0.3]])
        points = (centres[labels] + rng.normal(0, 0.05, (100_000, 2))).clip(0, 1)
        model = simulate(UniformGrid(epsilon=2, clusters=3), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
        assert model.warnings == ()
        assert model.centroids[np.argsort(model.centroids[:, 0])] == pytest.approx(centres, abs=0.05)

    def test_grids_of_unequal_sides_are_gone_on_from(self):
        model = exact((2, 3), [9, 0, 0, 0, 0, 9])
        assert model.label_map.shape == (2, 3)
        assert model.density.shape == (2, 3)
