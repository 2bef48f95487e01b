"""Test particles: even samples of components, centroids, and their updates by rounds about centroids."""

import numpy as np
import pytest
from scipy import stats

from clustering.phases.gaussian_components import Components, full_shape, round_shape
from clustering.phases.particles import Cloud, centroids_of, sample_components, sobol_points
from clustering.random import PublicWords

COMPONENTS = Components(
    np.array([[0.3, 0.6], [0.8, 0.2]]), np.array([0.7, 0.3]), np.array([[0.1, -0.04, 0.05], [0.05, 0.02, 0.08]])
)


class TestSobolPoints:
    @pytest.mark.parametrize("n_features", [1, 64])
    def test_are_more_even_than_random_points(self, n_features):
        points = sobol_points(5000, n_features, PublicWords(1))
        assert points.shape == (5000, n_features)
        assert ((points >= 0) & (points < 1)).all()
        furthest = max(stats.kstest(column, "uniform").statistic for column in points.T)
        assert furthest < 0.004  # 0.012 is typical of random points

    def test_repeat_with_equal_seeds(self):
        one, same, other = (sobol_points(9, 2, PublicWords(seed)) for seed in (1, 1, 2))
        assert (one == same).all()
        assert not np.isclose(one, other).any()

    def test_may_be_one_point(self):
        assert sobol_points(1, 2, PublicWords(0)).shape == (1, 2)


class TestSampleComponents:
    def test_has_the_moments_of_the_mixture(self):
        shape = full_shape(2)
        points = sample_components(shape, COMPONENTS, 20_000, PublicWords(3))
        roots = COMPONENTS.roots(shape)
        mean = COMPONENTS.shares @ COMPONENTS.centres
        apart = COMPONENTS.centres - mean
        covariance = np.einsum("c,cij->ij", COMPONENTS.shares, roots @ roots.transpose(0, 2, 1)) + np.einsum(
            "c,ci,cj->ij", COMPONENTS.shares, apart, apart
        )
        assert points.mean(axis=0) == pytest.approx(mean, abs=2e-4)  # 2e-3 is typical of random points
        assert np.cov(points.T) == pytest.approx(covariance, abs=3e-4)

    def test_each_component_has_its_share(self):
        apart = Components(np.array([[0.0], [0.5], [1.0]]), np.array([0.2, 0.5, 0.3]), np.full((3, 1), 0.02))
        points = sample_components(round_shape(1), apart, 1000, PublicWords(0))
        assert np.histogram(points, [-1, 0.25, 0.75, 2])[0].tolist() == [200, 500, 300]

    def test_repeat_with_equal_seeds(self):
        one, same, other = (sample_components(full_shape(2), COMPONENTS, 50, PublicWords(seed)) for seed in (1, 1, 2))
        assert (one == same).all()
        assert not np.isclose(one, other).any()

    def test_is_finite_at_zero_words(self):
        class ZeroWords(PublicWords):
            def uniform(self, *shape):
                return np.zeros(shape)

        assert np.isfinite(sample_components(full_shape(2), COMPONENTS, 100, ZeroWords(0))).all()


class TestCentroids:
    def test_are_weighted_means(self):
        points = np.repeat(np.array([[0.1, 0.1], [0.9, 0.1], [0.5, 0.9], [0.5, 0.8]]), 50, axis=0)
        weights = np.repeat([1.0, 1.0, 3.0, 1.0], 50)
        found = centroids_of(Cloud(points, weights / weights.sum()), 3, PublicWords(1))
        assert np.array(sorted(found.tolist())) == pytest.approx(np.array([[0.1, 0.1], [0.5, 0.875], [0.9, 0.1]]))

    def test_may_be_more_than_the_places(self):
        cloud = Cloud(np.repeat([[0.2, 0.3]], 10, axis=0), np.full(10, 0.1))
        assert centroids_of(cloud, 3, PublicWords(0)) == pytest.approx(np.array([[0.2, 0.3]] * 3))
