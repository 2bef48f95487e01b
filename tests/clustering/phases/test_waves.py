"""Test the published waves: their lengths, directions, number and phases."""

import numpy as np
import pytest
from scipy import stats

from clustering.phases.mixture_fit import RADIANS
from clustering.phases.waves import limits_for, waves_for

NANO = 10**9


def omegas(encoding):
    return np.array(encoding.weights) * RADIANS


class TestWaves:
    @pytest.mark.parametrize(
        ("n_features", "clusters", "shortest"), [(1, 4, 45), (2, 11, 80), (3, 20, 30), (16, 4, 30)]
    )
    def test_lengths_are_even_in_logarithm(self, n_features, clusters, shortest):
        lengths = np.linalg.norm(omegas(waves_for(n_features, clusters, 512, NANO, 3)), axis=1)
        places = np.log(lengths / 4) / np.log(shortest / 4)
        assert places == pytest.approx((np.arange(512) + 0.5) / 512, abs=0.01)

    @pytest.mark.parametrize(("n_features", "reach"), [(2, (4.0, 40.0)), (8, (3.0, 20.0))])
    def test_lengths_have_the_given_limits(self, n_features, reach):
        waves = omegas(waves_for(n_features, 20, 512, NANO, 3, reach))
        places = np.log(np.linalg.norm(waves, axis=1) / reach[0]) / np.log(reach[1] / reach[0])
        assert places == pytest.approx((np.arange(512) + 0.5) / 512, abs=0.01)

    @pytest.mark.parametrize("n_features", [2, 3, 8])
    def test_directions_are_uniform(self, n_features):
        waves = omegas(waves_for(n_features, None, 1024, NANO, 4))
        directions = waves / np.linalg.norm(waves, axis=1, keepdims=True)
        along = directions @ np.eye(n_features)[0]  # (x + 1)/2 has a beta distribution with both parameters (d - 1)/2
        half = (n_features - 1) / 2
        assert stats.kstest((along + 1) / 2, stats.beta(half, half).cdf).pvalue > 1e-4
        assert np.abs(directions.mean(axis=0)).max() < 4 / np.sqrt(1024)
        assert np.cov(directions.T) == pytest.approx(np.eye(n_features) / n_features, abs=0.08)

    @pytest.mark.parametrize(
        ("n_features", "given", "n_waves"), [(2, None, 512), (15, None, 512), (16, None, 1024), (64, 32, 32)]
    )
    def test_their_number_is_given_or_follows_from_the_features(self, n_features, given, n_waves):
        encoding = waves_for(n_features, None, given, NANO, 0)
        assert (encoding.n_slots, encoding.n_features) == (n_waves, n_features)

    @pytest.mark.parametrize(("epsilon", "phases"), [(0.1, 16), (7.9, 16), (8, 64), (32, 64)])
    def test_high_epsilon_has_more_phases(self, epsilon, phases):
        assert waves_for(2, None, None, round(epsilon * NANO), 0).phases == phases

    def test_follow_from_the_seed(self):
        assert waves_for(3, None, 64, NANO, 5) == waves_for(3, None, 64, NANO, 5)
        assert waves_for(3, None, 64, NANO, 5) != waves_for(3, None, 64, NANO, 6)


class TestLimits:
    def test_are_lower_in_one_and_two_features(self):
        assert limits_for(1) == limits_for(2)
        assert limits_for(2).least_width < limits_for(3).least_width
        assert limits_for(3) == limits_for(64)
