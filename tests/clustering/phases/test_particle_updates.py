"""Test the updates of particles by rounds about centroids: predictions, weights, limits and the misfit."""

import numpy as np
import pytest

from clustering.centroids.centroid_statistics import CentroidStatistics
from clustering.phases.particles import (
    FIRST_ERROR,
    FIRST_MASS_ERROR,
    MOST_STEP,
    Cloud,
    initial_state,
    initial_state_from_fit,
    misfit,
    predict_cells,
    update_state,
)
from tests import naive_phase

CENTRES = np.array([[0.3, 0.3, 0.5], [0.7, 0.4, 0.5]])
SPREAD = 0.06


def cloud(n=4000, seed=1, centres=CENTRES, shares=(0.6, 0.4)):
    rng = np.random.default_rng(seed)
    owners = rng.choice(len(centres), n, p=shares)
    points = (centres[owners] + rng.normal(0, SPREAD, (n, centres.shape[1]))).clip(0, 1)
    return Cloud(points, np.full(n, 1 / n))


def statistics_at(state, off=0.0, masses=None, error=1e-9, n_reports=1000):
    """Return the statistics of devices with centres at distance `off` from the particles."""
    cells = predict_cells(state.cloud, state.centres)
    masses = cells.shares if masses is None else np.array(masses)
    imbalances = (cells.imbalances + off * cells.slopes) * masses[:, None]
    k, d = state.centres.shape
    return CentroidStatistics(state.centres, masses, np.full(k, error), imbalances, np.full((k, d), error), n_reports)


class TestCells:
    def test_equal_their_plain_twin(self):
        rng = np.random.default_rng(2)
        points, weights = rng.random((60, 2)), rng.random(60)
        centres = rng.random((4, 2))
        cells = predict_cells(Cloud(points, weights / weights.sum()), centres)
        labels, shares, spreads, imbalances, slopes = naive_phase.particle_cells(
            points, weights / weights.sum(), centres
        )
        assert cells.labels.tolist() == labels
        assert cells.shares == pytest.approx(shares)
        assert cells.spreads == pytest.approx(np.array(spreads))
        assert cells.imbalances == pytest.approx(np.array(imbalances))
        assert cells.slopes == pytest.approx(np.array(slopes))

    def test_a_normal_cluster_has_a_slope_of_eight_tenths_per_spread(self):
        cells = predict_cells(cloud(40_000), CENTRES)
        assert cells.spreads == pytest.approx(np.full((2, 3), SPREAD), rel=0.03)
        assert cells.slopes * cells.spreads == pytest.approx(np.full((2, 3), 0.77), abs=0.06)

    def test_without_particles_are_finite(self):
        cells = predict_cells(cloud(), np.vstack([CENTRES, CENTRES[:1]]))
        assert cells.shares[2] > 0
        assert all(np.isfinite(part).all() for part in cells)


class TestUpdate:
    @pytest.mark.parametrize("off", [-0.04, 0.01])
    def test_moves_centres_to_the_people(self, off):
        before = initial_state(cloud(), CENTRES)
        after = update_state(before, statistics_at(before, off))
        assert after.centres - before.centres == pytest.approx(np.full((2, 3), off), abs=0.004)
        assert after.errors.max() < 1e-6
        assert after.centre_variances.max() < before.centre_variances.min()

    def test_moves_masses_to_the_shares(self):
        before = initial_state(cloud(), CENTRES)
        after = update_state(before, statistics_at(before, masses=[0.3, 0.7]))
        assert predict_cells(after.cloud, after.centres).shares == pytest.approx([0.3, 0.7], abs=0.01)

    def test_hardly_moves_under_heavy_noise(self):
        before = initial_state(cloud(), CENTRES)
        after = update_state(before, statistics_at(before, 0.05, masses=[0.3, 0.7], error=100.0))
        assert after.centres == pytest.approx(before.centres, abs=1e-4)
        assert after.errors == pytest.approx(before.errors, rel=0.01)

    def test_limits_a_step(self):
        before = initial_state(cloud(), CENTRES)
        after = update_state(before, statistics_at(before, 10.0))
        assert np.abs(after.centres - before.centres).max() < (MOST_STEP + 0.1) * before.errors.max() / FIRST_ERROR

    def test_changes_nothing_without_reports(self):
        before = initial_state(cloud(), CENTRES)
        k, d = CENTRES.shape
        nothing = CentroidStatistics(
            before.centres, np.zeros(k), np.full(k, np.inf), np.zeros((k, d)), np.full((k, d), np.inf), 0
        )
        after = update_state(before, nothing)
        assert after.centres == pytest.approx(before.centres, abs=1e-9)
        assert after.cloud.weights == pytest.approx(before.cloud.weights)
        assert after.errors == pytest.approx(before.errors)
        assert after.share_errors == pytest.approx(before.share_errors)

    def test_weighs_the_state_and_the_round_by_their_variances(self):
        """Equal errors e move the centre half the way and give the error e/sqrt(2)."""
        error = 0.001
        before = initial_state_from_fit(cloud(200_000), CENTRES, np.full((2, 3), error), np.full(2, 0.01))
        cells = predict_cells(before.cloud, before.centres)
        statistics = statistics_at(before, 0.0008)
        statistics = statistics._replace(imbalance_errors=error * cells.slopes * statistics.masses[:, None])
        after = update_state(before, statistics)
        assert after.centres - before.centres == pytest.approx(np.full((2, 3), 0.0004), abs=5e-5)
        assert after.errors == pytest.approx(np.full((2, 3), error / np.sqrt(2)), rel=0.03)


class TestInitialState:
    def test_of_a_cloud_has_large_errors(self):
        state = initial_state(cloud(), CENTRES + 0.02)
        assert state.centres == pytest.approx(CENTRES, abs=0.01)
        assert state.centre_variances == pytest.approx(np.full(2, FIRST_ERROR**2))
        assert state.mass_variances == pytest.approx(np.full(2, FIRST_MASS_ERROR**2))

    def test_of_a_fit_has_no_larger_errors(self):
        state = initial_state_from_fit(cloud(), CENTRES, np.full((2, 3), 5.0), np.full(2, 5.0))
        assert state.centre_variances == pytest.approx(np.full(2, FIRST_ERROR**2))
        assert state.mass_variances == pytest.approx(np.full(2, FIRST_MASS_ERROR**2))


class TestOddClouds:
    def test_one_place_gives_finite_values(self):
        one = Cloud(np.full((50, 2), 0.4), np.full(50, 0.02))
        before = initial_state(one, np.full((3, 2), 0.4))
        after = update_state(before, statistics_at(before, 0.01, error=0.05))
        assert all(np.isfinite(part).all() for part in (*after.cloud, *after[1:-1]))
        assert after.cloud.weights.sum() == pytest.approx(1)

    def test_particles_stay_in_the_box(self):
        corner = Cloud(np.abs(np.random.default_rng(3).normal(0, 0.02, (500, 2))), np.full(500, 0.002))
        before = initial_state(corner, np.zeros((1, 2)))
        after = update_state(before, statistics_at(before, -0.5))
        assert (after.cloud.points >= 0).all()
        assert (after.centres >= 0).all()


class TestMisfit:
    def test_is_about_one_for_correct_particles(self):
        before = initial_state_from_fit(cloud(), CENTRES, np.full((2, 3), 0.004), np.full(2, 0.01))
        cells = predict_cells(before.cloud, before.centres)
        rng = np.random.default_rng(5)
        found = []
        for _ in range(200):
            statistics = statistics_at(before, 0.0, error=0.03)
            off = rng.normal(0, 0.004, (2, 3)) * cells.slopes * statistics.masses[:, None]
            found.append(
                misfit(
                    before, statistics._replace(imbalances=statistics.imbalances + off + rng.normal(0, 0.03, (2, 3)))
                )
            )
        assert np.mean(found) == pytest.approx(1, abs=0.15)

    def test_is_large_if_no_people_are_near_a_centre(self):
        """A feature with two values only has a mean that is not its median."""
        before = initial_state_from_fit(cloud(), CENTRES, np.full((2, 3), 0.004), np.full(2, 0.01))
        statistics = statistics_at(before, 0.0, error=0.03)
        imbalances = statistics.imbalances.copy()
        imbalances[:, 0] += 0.4 * statistics.masses
        assert misfit(before, statistics._replace(imbalances=imbalances)) > 4

    def test_is_zero_without_reports(self):
        before = initial_state(cloud(), CENTRES)
        statistics = statistics_at(before)._replace(imbalance_errors=np.full((2, 3), np.inf))
        assert misfit(before, statistics) == 0
