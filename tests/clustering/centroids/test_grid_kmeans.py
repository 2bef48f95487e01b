"""Test `grid_kmeans`: the grid's size, the selected cells and the model."""

from math import ceil

import numpy as np
import pytest

from clustering.centroids.grid_kmeans import select_cells
from clustering.registry import start
from clustering.rounds.plan import drive
from clustering.simulate import simulate
from sfumato.mechanisms import design
from sfumato.sizing.centroids import MAX_KMEANS_CELLS as MAX_CELLS
from sfumato.sizing.centroids import grid_kmeans_cells
from sfumato.specs import GridEncoding, GridKmeans, Participation, RoundSpec
from tests.clustering.local_plans import Devices, features, mixture

CENTRES = np.array([[0.2, 0.3], [0.7, 0.2], [0.4, 0.8], [0.8, 0.75]])
SHARES = [0.4, 0.3, 0.2, 0.1]


def blobs(n):
    return mixture(n, CENTRES, SHARES, width=0.05, seed=0)


class TestTheRound:
    def test_one_round_for_all_devices_at_the_full_epsilon(self):
        spec = next(start(GridKmeans(epsilon=1, clusters=4), features(2), 100_000))
        assert spec.encoding == GridEncoding((11, 11))
        assert spec.participation == Participation()
        assert 0.999e9 < spec.mechanism.epsilon_nano() <= 10**9
        spec = next(start(GridKmeans(epsilon=1, clusters=4, cells=7), features(3), 100_000))
        assert spec.encoding == GridEncoding((7, 7, 7))


class TestChooseCells:
    @pytest.mark.parametrize("d", [1, 2, 3, 4])
    def test_weighs_width_against_noise(self, d):
        n, clusters = 10**7, 5
        v = 4 * np.e / (np.e - 1) ** 2
        balanced = (n / (v * d * clusters ** (1 - 2 / d))) ** (1 / (d + 2))
        assert grid_kmeans_cells(d, n, 10**9, clusters) == round(balanced)

    def test_grows_with_reports_and_epsilon(self):
        by_reports = [grid_kmeans_cells(2, n, 10**9, 4) for n in (10**4, 10**5, 10**6)]
        by_epsilon = [grid_kmeans_cells(2, 10**5, nano, 4) for nano in (5 * 10**8, 10**9, 2 * 10**9, 4 * 10**9)]
        assert by_reports == sorted(set(by_reports))
        assert by_epsilon == sorted(set(by_epsilon))

    @pytest.mark.parametrize("d", [1, 2, 3, 4])
    @pytest.mark.parametrize("clusters", [1, 256])
    @pytest.mark.parametrize("epsilon_nano", [1000, 32 * 10**9])
    @pytest.mark.parametrize("n_reports", [1, 10**9])
    def test_has_room_for_the_clusters_and_a_limit(self, d, clusters, epsilon_nano, n_reports):
        cells = grid_kmeans_cells(d, n_reports, epsilon_nano, clusters)
        assert 2 <= cells <= 1024
        assert cells**d <= MAX_CELLS
        assert cells >= min(ceil(round((8 * clusters) ** (1 / d), 6)), 1024)


class TestKeep:
    MIDDLES = (np.indices((10, 10)).reshape(2, -1).T + 0.5) / 10

    def estimates(self, heavy, light):
        """Return estimates: five cells far above a deviation of .01, twenty at 2.5 deviations."""
        out = np.full(100, -0.001)
        out[:5], out[5:25] = heavy, light
        return out

    def test_uses_the_first_threshold_if_it_covers_most(self):
        kept = select_cells(self.MIDDLES, self.estimates(0.15, 0.025), 0.01, clusters=2)
        assert kept.places.tolist() == list(range(5))
        assert (kept.threshold, kept.n_standing, kept.n_tied) == (3.0, 5, 100)
        assert kept.points[0].tolist() == [0.05, 0.05]

    def test_uses_the_second_threshold_otherwise(self):
        kept = select_cells(self.MIDDLES, self.estimates(0.1, 0.025), 0.01, clusters=2)
        assert kept.places.tolist() == list(range(25))
        assert (kept.threshold, kept.n_standing) == (2.0, 5)

    @pytest.mark.parametrize(("clusters", "heavy"), [(2, 0.02), (20, 0.15)])
    def test_projects_all_cells_otherwise(self, clusters, heavy):
        kept = select_cells(self.MIDDLES, self.estimates(heavy, 0.025), 0.01, clusters)
        assert kept.threshold == 0
        assert kept.estimates.sum() == pytest.approx(1)
        assert kept.n_tied == len(kept.places)


class TestModel:
    def test_four_blobs_are_found_with_their_sizes_and_errors(self):
        points, labels = blobs(100_000)
        model = simulate(GridKmeans(epsilon=2, clusters=4), points, seed=1)
        assert model.type == "centroids"
        assert (model.assign(points) == labels).mean() > 0.99
        means = np.stack([points[labels == c].mean(axis=0) for c in range(4)])
        assert (np.abs(model.centroids - means) < 5 * model.centroid_errors).all()
        assert np.abs(model.centroids - means).max() < 0.015
        assert (model.centroid_errors < 0.02).all()
        assert (np.abs(model.sizes - SHARES) < 5 * model.size_errors).all()
        assert model.warnings == ()
        facts = model.diagnostics
        assert facts["low_confidence"] is False
        assert facts["cells"] == [16, 16]
        assert facts["inertia"] == pytest.approx(((points - means[labels]) ** 2).sum(axis=1).mean(), rel=0.15)

    def test_equals_kmeans_of_the_cells_without_noise(self):
        points, labels = blobs(50_000)
        model = simulate(GridKmeans(epsilon=2, clusters=4), points, seed=1, perturb=False)
        means = np.stack([points[labels == c].mean(axis=0) for c in range(4)])
        assert np.abs(model.centroids - means).max() < 0.005
        assert model.diagnostics["n_eff"] is None

    def test_single_cluster_is_the_mean(self):
        points, _ = blobs(100_000)
        model = simulate(GridKmeans(epsilon=4, clusters=1), points, seed=1)
        assert model.sizes.tolist() == [1.0]
        assert np.abs(model.centroids[0] - points.mean(axis=0)).max() < 0.02

    def test_seed_selects_the_starts(self):
        points = np.random.default_rng(0).random((20_000, 2))
        one, same, other = (simulate(GridKmeans(1, 12, seed=s), points, seed=1).centroids for s in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_uses_the_published_round(self):
        points, _ = blobs(50_000)
        spec = RoundSpec(features(2), GridEncoding((9, 14)), design("oue", 126, 3 * 10**9))
        collected = Devices(points)(spec)
        model = drive(start(GridKmeans(epsilon=0.5, clusters=4), features(2), 10), lambda _: collected)
        assert model.diagnostics["cells"] == [9, 14]
        assert np.abs(model.centroids - CENTRES).max() < 0.05
