"""Test fuzzy c-means: the kernel against its definition, and a non-increasing objective."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.centroids.fuzzy_cmeans import KINDS, ROUNDING, Rule, block_sums, fuzzy_c_means
from clustering.kernels.fuzzy import fuzzy_step
from sfumato.specs import Distance
from tests import naive

DISTANCES = get_args(Distance)


def drawn(shape, seed, scale=1.0):
    return scale * np.random.default_rng(seed).standard_cauchy(shape)


def run_step(points, centres, distance, m, sigma, rounding):
    sums, masses, shares = np.empty_like(centres), np.empty_like(centres), np.empty(len(centres))
    objective = fuzzy_step(points, centres, KINDS[distance], m, sigma, rounding, sums, masses, shares)
    return objective, sums / masses, shares


class TestAStep:
    @pytest.mark.parametrize("distance", DISTANCES)
    @pytest.mark.parametrize(
        ("n_features", "m", "sigma", "rounding"), [(1, 2.0, 0.5, 1e-6), (2, 1.3, 1.0, 0.05), (5, 4.0, 0.2, 1e-3)]
    )
    def test_equals_the_definition(self, distance, n_features, m, sigma, rounding):
        points, centres = drawn((12, n_features), 1), drawn((3, n_features), 2, 0.3)
        centres[0] = points[0] + 1e-3  # near the rounding
        objective, means, shares = run_step(points, centres, distance, m, sigma, rounding)
        expected = naive.fuzzy_step(points, centres, distance, m, sigma, rounding)
        assert objective == pytest.approx(expected[0], rel=1e-7)
        assert means == pytest.approx(expected[1], rel=1e-9, abs=1e-12)
        assert shares == pytest.approx(expected[2], rel=1e-6)

    @pytest.mark.parametrize("distance", DISTANCES)
    def test_point_at_a_centre_belongs_to_it(self, distance):
        points = np.array([[0.25, 0.5], [0.75, 0.5]])
        objective, means, shares = run_step(points, points.copy(), distance, 2.0, 0.1, 1e-7)
        assert objective < 1e-20
        assert shares == pytest.approx([1, 1])
        assert means == pytest.approx(points, abs=1e-6)

    @pytest.mark.parametrize("distance", ["laplace", "gaussian", "mixed"])
    @pytest.mark.parametrize("n_features", [1, 2, 7])
    def test_distance_is_the_negative_log_density_at_the_optimal_spread(self, distance, n_features):
        """The optimum is over σ >= σ0. The constant makes the distance 0 at the centre."""
        sigma, d = 0.3, n_features
        lengths = np.array([1e-3, 0.1, 0.29, 0.5, 1.0, 3.0, 20.0])
        spreads = np.geomspace(sigma, 100, 400_001)
        powers = {"laplace": (0, 1), "gaussian": (0.5, 0), "mixed": (0.5, 1)}[distance]
        for length in lengths:
            best = (d * np.log(spreads) + powers[0] * (length / spreads) ** 2 + powers[1] * length / spreads).min()
            points, centres = np.zeros((1, d)), np.zeros((1, d))
            points[0, 0] = length
            objective, _, _ = run_step(points, centres, distance, 2.0, sigma, 1e-12)
            assert objective == pytest.approx(best - d * np.log(sigma), abs=1e-6)


class TestPointsAreTakenInBlocks:
    @pytest.mark.parametrize("distance", DISTANCES)
    def test_stale_block_entries_are_not_counted(self, distance):
        """The last entries of a block keep points of the previous block."""
        points, centres = drawn((200, 2), 3), drawn((3, 2), 4)
        whole = block_sums(points, centres, Rule(distance, 2.0, 0.5))
        parts = [block_sums(part, centres, Rule(distance, 2.0, 0.5)) for part in (points[:128], points[128:])]
        assert whole == pytest.approx(parts[0] + parts[1], rel=1e-12)

    @pytest.mark.parametrize("distance", DISTANCES)
    @pytest.mark.parametrize("m", [1.05, 2.0, 3.0])
    def test_equal_points_have_even_memberships(self, distance, m):
        """Constant features and more centres than distinct points cause no division by zero."""
        points, centres = np.full((140, 3), 0.25), np.full((5, 3), 0.25)
        objective, means, shares = run_step(points, centres, distance, m, 0.1, 1e-7)
        assert 0 <= objective < 1e-20
        assert shares == pytest.approx([28] * 5)
        assert means == pytest.approx(centres, rel=1e-14)

    @pytest.mark.parametrize("distance", DISTANCES)
    def test_more_centres_than_points_stay_finite(self, distance):
        points = np.array([[0.1, 0.2], [0.9, 0.8]])
        start = np.random.default_rng(7).random((9, 2))
        fit = fuzzy_c_means(points, start, Rule(distance, 2.0, 0.3), max_iterations=50, tolerance=1e-9)
        assert np.isfinite(fit.centres).all()
        assert fit.shares.sum() == pytest.approx(1)

    def test_distant_points_have_even_memberships(self):
        """The squares are just below overflow."""
        points, centres = np.full((3, 2), 1e150), np.array([[0.0, 0.0], [1.0, 1.0]])
        _, means, shares = run_step(points, centres, "mixed", 2.0, 1.0, 1e-6)
        assert shares == pytest.approx([1.5, 1.5])
        assert means == pytest.approx(np.full((2, 2), 1e150))


class TestTheFit:
    @settings(deadline=None, max_examples=80)
    @given(
        distance=st.sampled_from(DISTANCES),
        m=st.sampled_from([1.05, 1.2, 1.5, 2.0, 2.5, 8.0]),
        sigma=st.sampled_from([1e-4, 0.06, 1.0, 50.0]),
        n_features=st.integers(1, 6),
        clusters=st.integers(1, 5),
        seed=st.integers(0, 10_000),
        scale=st.sampled_from([1e-3, 1.0, 30.0]),
        stretch=st.sampled_from([0.5, 1.0, 1.3, 1.95]),
    )
    def test_objective_never_increases(self, distance, m, sigma, n_features, clusters, seed, scale, stretch):
        points = drawn((60, n_features), seed, scale)
        points[:20] = points[0]  # coincident reports
        start = np.random.default_rng(seed + 1).random((clusters, n_features))
        start[-1] = points[0]
        rule = Rule(distance, m, sigma)
        fit = fuzzy_c_means(points, start, rule, max_iterations=60, tolerance=0.0, stretch=stretch)
        js = np.array(fit.objectives)
        assert np.isfinite(js).all()
        assert np.isfinite(fit.centres).all()
        assert (np.diff(js) <= 1e-9 * np.abs(js[:-1])).all()
        assert fit.shares.sum() == pytest.approx(1)

    def test_longer_steps_reach_the_same_optimum_sooner(self):
        centres = np.array([[0.3, 0.3], [0.7, 0.7]])
        rng = np.random.default_rng(4)
        points = centres[rng.integers(0, 2, 2000)] + rng.laplace(0, 0.25, (2000, 2))
        short, long = (
            fuzzy_c_means(points, centres, Rule("mixed", 2.0, 0.4), max_iterations=500, tolerance=1e-6, stretch=step)
            for step in (1.0, 1.3)
        )
        assert short.converged
        assert long.converged
        assert len(long.objectives) < 0.9 * len(short.objectives)
        assert long.centres == pytest.approx(short.centres, abs=1e-4)

    def test_overshooting_step_increases_the_objective(self):
        """Twice the step of the Gaussian distance overshoots, so the test above has power."""
        points = drawn((60, 2), 5)
        start = np.array([[0.1, 0.2], [0.8, 0.9]])
        centres, js = start, []
        for _ in range(30):
            objective, means, _ = run_step(points, centres, "euclidean", 2.0, 1.0, 1e-6)
            js.append(objective)
            centres = centres + 2.5 * (means - centres)
        assert (np.diff(js) > 0).any()

    @pytest.mark.parametrize("distance", DISTANCES)
    def test_finds_clear_clusters(self, distance):
        centres = np.array([[0.2, 0.2, 0.3], [0.8, 0.3, 0.7], [0.3, 0.9, 0.5]])
        noise = np.random.default_rng(3).normal(0, 0.02, (600, 3))
        points = centres[np.arange(600) % 3] + noise
        start = centres + 0.1
        fit = fuzzy_c_means(points, start, Rule(distance, 2.0, 0.02), max_iterations=200, tolerance=1e-7)
        assert fit.converged
        assert fit.centres == pytest.approx(centres, abs=0.02)
        assert fit.shares == pytest.approx([1 / 3] * 3, abs=0.02)

    def test_starts_are_unchanged_and_fits_repeatable(self):
        points, start = drawn((50, 2), 1), np.random.default_rng(2).random((3, 2))
        kept = start.copy()
        fits = [fuzzy_c_means(points, start, Rule("mixed"), max_iterations=9, tolerance=0.0) for _ in range(2)]
        assert start.tolist() == kept.tolist()
        assert fits[0].centres.tolist() == fits[1].centres.tolist()
        assert len(fits[0].objectives) == 9
        assert not fits[0].converged

    def test_rounding_is_far_below_the_spread(self):
        points, start = drawn((50, 2), 1), np.random.default_rng(2).random((3, 2))
        fit = fuzzy_c_means(points, start, Rule("laplace", 2.0, 0.5), max_iterations=1, tolerance=0.0)
        objective, means, _ = run_step(points, start, "laplace", 2.0, 0.5, ROUNDING * 0.5)
        assert fit.objectives == (objective,)
        assert fit.centres == pytest.approx(means, rel=1e-14)


class TestBlocks:
    def test_blocks_are_summed_in_order(self, monkeypatch):
        monkeypatch.setattr("clustering.centroids.fuzzy_cmeans.BLOCK_POINTS", 7)
        points = np.random.default_rng(3).normal(size=(50, 2))
        rule, start = Rule("mixed", 2.0, 0.5), points[:3].copy()
        numbers = []

        def elsewhere(centres, given):
            numbers.append(len(centres))
            parts = [block_sums(points[begin:end], centres, given) for begin, end in ((0, 21), (21, 42), (42, 50))]
            return np.concatenate(parts)

        here = fuzzy_c_means(points, start, rule, max_iterations=20, tolerance=0.0)
        there = fuzzy_c_means(points, start, rule, max_iterations=20, tolerance=0.0, passes=elsewhere)
        assert (here.centres == there.centres).all()
        assert here.objectives == there.objectives
        assert numbers == [3] * len(here.objectives)

    def test_blocks_add_up_to_one_pass(self, monkeypatch):
        points = np.random.default_rng(4).normal(size=(50, 2))
        whole = block_sums(points, points[:3].copy(), Rule("laplace", 1.7, 0.5))
        monkeypatch.setattr("clustering.centroids.fuzzy_cmeans.BLOCK_POINTS", 7)
        blocks = block_sums(points, points[:3].copy(), Rule("laplace", 1.7, 0.5))
        assert (len(whole), len(blocks)) == (1, 8)
        assert np.allclose(blocks.sum(axis=0), whole[0], rtol=1e-12)
