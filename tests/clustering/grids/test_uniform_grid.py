"""Test `uniform_grid`: the size of its grid, and its dense regions."""

import numpy as np
import pytest

from clustering.grids.uniform_grid import fit, uniform_grid
from clustering.metrics import adjusted_rand_index
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Tally
from clustering.simulate import simulate
from sfumato.mechanisms import design
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.sizing.grids import uniform_grid_cells
from sfumato.sizing.rounds import DENSE_SHARE, Z, reports_to_tell
from sfumato.specs import GridEncoding, GrrMechanism, Participation, RoundSpec, UniformGrid
from tests.clustering.local_plans import features, mixture

XY = features(2)


def exact(cells, counts, clusters=None):
    """Return the model of unperturbed counts."""
    encoding = GridEncoding(cells)
    spec = RoundSpec(XY, encoding, GrrMechanism(encoding.n_symbols, DRAW_SPAN))
    counts = np.asarray(counts, dtype=np.int64).reshape(1, -1)
    return fit(UniformGrid(epsilon=1, clusters=clusters), Collected(spec, Tally(counts, counts.sum(axis=1))))


class TestRound:
    def test_uses_the_full_epsilon_for_all_devices(self):
        spec = next(uniform_grid(UniformGrid(epsilon=2, cells=7), XY, 1000))
        assert spec.encoding == GridEncoding((7, 7))
        assert spec.participation == Participation()
        assert 2e9 - 10 <= spec.mechanism.epsilon_nano() <= 2e9

    @pytest.mark.parametrize("n_features", [1, 2, 8])
    @pytest.mark.parametrize("n_reports", [10, 10**6])
    @pytest.mark.parametrize("epsilon", [0.5, 4])
    def test_the_grid_is_the_finest_with_significant_dense_cells(self, n_features, n_reports, epsilon):
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

    def test_the_required_reports_determine_the_grid(self):
        cells = uniform_grid_cells(2, 15_000, 10**9)
        finer, as_is = (
            reports_to_tell(k, decoder(design("auto", k, 10**9)).zero_variance) for k in ((cells + 1) ** 2, cells**2)
        )
        assert as_is <= 15_000 < finer


class TestRegions:
    def test_join_at_faces_only(self):
        model = exact((4, 4), [9, 9, 0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0])
        assert model.n_clusters == 2
        assert model.label_map[0, 0] == model.label_map[0, 1] != model.label_map[1, 2] == model.label_map[2, 2]

    def test_other_cells_join_the_nearest(self):
        model = exact((1, 8), [50, 0, 0, 0, 0, 0, 0, 40])
        assert model.label_map.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]

    def test_the_largest_are_kept(self):
        counts = [50, 0, 20, 0, 40, 0, 0, 0]
        assert exact((1, 8), counts).n_clusters == 3
        model = exact((1, 8), counts, clusters=2)
        assert model.n_clusters == 2
        assert model.label_map[0, [0, 4]].tolist() == [0, 1]

    def test_cells_below_the_mean_are_not_dense(self):
        model = exact((1, 4), [40, 10, 10, 40])
        assert model.diagnostics["dense_cells"] == 2
        assert model.n_clusters == 2

    def test_no_dense_cell_gives_one_cluster_and_a_warning(self):
        model = exact((2, 2), [5, 5, 5, 5])
        assert model.n_clusters == 1
        assert model.diagnostics["low_confidence"] is True
        assert "No cell is distinguishable" in model.warnings[0]

    def test_at_most_256_are_kept(self):
        model = exact((2, 601), [50, 0] * 601)
        assert model.n_clusters == 256
        assert "256 of most mass" in model.warnings[0]

    def test_sizes_are_shares_of_the_people(self):
        model = exact((1, 8), [50, 0, 0, 0, 0, 0, 0, 40])
        assert model.sizes == pytest.approx([5 / 9, 4 / 9])
        assert model.size_errors == pytest.approx([np.sqrt(20 / 81 / 90)] * 2)

    def test_are_found_under_noise(self):
        centres = np.array([[0.2, 0.2], [0.5, 0.8], [0.8, 0.3]])
        points, labels = mixture(100_000, centres, width=0.05)
        model = simulate(UniformGrid(epsilon=2, clusters=3), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
        assert model.warnings == ()
        assert model.centroids[np.argsort(model.centroids[:, 0])] == pytest.approx(centres, abs=0.05)
