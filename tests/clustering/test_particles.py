"""Particles: evenly drawn from atoms, of the right moments, and clustered again."""

import numpy as np
import pytest
from scipy import stats

from clustering.atoms import Atoms, full_shape, round_shape
from clustering.particles import Cloud, centroids_of, drawn, spread_evenly
from clustering.phase_search import PublicWords

ATOMS = Atoms(
    np.array([[0.3, 0.6], [0.8, 0.2]]), np.array([0.7, 0.3]), np.array([[0.1, -0.04, 0.05], [0.05, 0.02, 0.08]])
)


class TestSpread:
    @pytest.mark.parametrize("n_features", [1, 3, 64])
    def test_is_even_far_beyond_chance_in_every_feature(self, n_features):
        points = spread_evenly(5000, n_features, PublicWords(1))
        assert points.shape == (5000, n_features)
        assert ((points >= 0) & (points < 1)).all()
        furthest = max(stats.kstest(column, "uniform").statistic for column in points.T)
        assert furthest < 0.004  # of random points 0.012 is usual

    def test_follows_from_the_words(self):
        one, same, other = (spread_evenly(9, 2, PublicWords(seed)) for seed in (1, 1, 2))
        assert (one == same).all()
        assert not np.isclose(one, other).any()

    def test_one_point_is_one(self):
        assert spread_evenly(1, 2, PublicWords(0)).shape == (1, 2)


class TestDrawn:
    def test_has_the_moments_of_the_mixture(self):
        shape = full_shape(2)
        points = drawn(shape, ATOMS, 20_000, PublicWords(3))
        roots = ATOMS.roots(shape)
        mean = ATOMS.shares @ ATOMS.centres
        apart = ATOMS.centres - mean
        covariance = np.einsum("c,cij->ij", ATOMS.shares, roots @ roots.transpose(0, 2, 1)) + np.einsum(
            "c,ci,cj->ij", ATOMS.shares, apart, apart
        )
        assert points.mean(axis=0) == pytest.approx(mean, abs=2e-4)  # of random ones 2e-3 is usual
        assert np.cov(points.T) == pytest.approx(covariance, abs=3e-4)

    def test_each_atom_has_its_share(self):
        apart = Atoms(np.array([[0.0], [0.5], [1.0]]), np.array([0.2, 0.5, 0.3]), np.full((3, 1), 0.02))
        points = drawn(round_shape(1), apart, 1000, PublicWords(0))
        assert np.histogram(points, [-1, 0.25, 0.75, 2])[0].tolist() == [200, 500, 300]

    def test_follows_from_the_words(self):
        one, same, other = (drawn(full_shape(2), ATOMS, 50, PublicWords(seed)) for seed in (1, 1, 2))
        assert (one == same).all()
        assert not np.isclose(one, other).any()

    def test_is_finite_at_the_ends_of_the_sequence(self):
        class Still(PublicWords):
            def uniform(self, *shape):
                return np.zeros(shape)

        assert np.isfinite(drawn(full_shape(2), ATOMS, 100, Still(0))).all()


class TestCentroids:
    def test_are_where_the_particles_crowd_by_weight(self):
        points = np.repeat(np.array([[0.1, 0.1], [0.9, 0.1], [0.5, 0.9], [0.5, 0.8]]), 50, axis=0)
        weights = np.repeat([1.0, 1.0, 3.0, 1.0], 50)
        found = centroids_of(Cloud(points, weights / weights.sum()), 3, PublicWords(1))
        assert np.array(sorted(found.tolist())) == pytest.approx(np.array([[0.1, 0.1], [0.5, 0.875], [0.9, 0.1]]))

    def test_are_as_many_as_asked_where_particles_are_fewer(self):
        cloud = Cloud(np.repeat([[0.2, 0.3]], 10, axis=0), np.full(10, 0.1))
        assert centroids_of(cloud, 3, PublicWords(0)) == pytest.approx(np.array([[0.2, 0.3]] * 3))
