"""Test the expected loss ratio of centroids: its bounds, its order and its calibration."""

import numpy as np
import pytest

from clustering.centroids.expected_ratio import MAX_RATIO, expected_ratio
from clustering.simulate import simulate
from sfumato.specs import GridKmeans, LdpKmeans, PhaseSketch
from tests.clustering.local_plans import mixture

METHODS = ("phase_sketch", "grid_kmeans", "ldp_kmeans")
SHARES = np.array([0.6, 0.4])
CENTRES = np.array([[0.25, 0.3], [0.75, 0.7]])


@pytest.mark.parametrize("method", METHODS)
class TestExpectedRatio:
    @pytest.mark.parametrize("error", [0.0, 1e-300, 0.1, 1e200, np.inf, np.nan])
    @pytest.mark.parametrize("within", [0.0, 1e-300, 0.1, np.inf])
    @pytest.mark.parametrize("lack", [0.0, 1.0, 1e300, np.inf])
    def test_is_bounded(self, method, error, within, lack):
        found = expected_ratio(method, SHARES, np.full((2, 3), error), within, lack).loss
        assert 1 <= found.lower <= found.value <= found.upper <= MAX_RATIO

    def test_increases_with_noise_and_lack_of_reports(self, method):
        values = [
            expected_ratio(method, SHARES, np.full((2, 3), error), 0.05, lack).loss.value
            for error, lack in ((0.01, 0.5), (0.05, 0.5), (0.05, 5.0))
        ]
        assert values[0] < values[1] <= values[2]
        assert values[0] < values[2]


@pytest.mark.parametrize("algorithm", [PhaseSketch, GridKmeans, LdpKmeans])
class TestModels:
    def test_clear_clusters_are_reliable(self, algorithm):
        points, _ = mixture(60_000, CENTRES, SHARES)
        model = simulate(algorithm(epsilon=4, clusters=2), points, seed=1)
        inertia, least = (
            ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1).mean() for centres in (model.centroids, CENTRES)
        )
        assert model.verdict == ("doubtful" if algorithm is LdpKmeans else "reliable")
        assert inertia / least <= model.expected_loss.upper + 0.01

    def test_too_few_reports_are_doubtful(self, algorithm):
        model = simulate(algorithm(epsilon=0.5, clusters=8), np.random.default_rng(2).random((500, 2)), seed=2)
        assert model.verdict == "doubtful"
        assert model.expected_loss.value > 1.25
