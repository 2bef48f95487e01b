"""Particles that move with their centroids: towards what devices say, by no more than it is worth."""

import numpy as np
import pytest

from clustering.broadcast_centroids import Heard
from clustering.particle_rounds import (
    FIRST_DOUBT,
    MASS_DOUBT,
    MOST_STEP,
    begun,
    begun_from_fit,
    cells_of,
    misfit,
    moved,
)
from clustering.particles import Cloud
from tests import naive_phase

CENTRES = np.array([[0.3, 0.3, 0.5], [0.7, 0.4, 0.5]])
SPREAD = 0.06


def cloud(n=4000, seed=1, centres=CENTRES, shares=(0.6, 0.4)):
    rng = np.random.default_rng(seed)
    owners = rng.choice(len(centres), n, p=shares)
    points = (centres[owners] + rng.normal(0, SPREAD, (n, centres.shape[1]))).clip(0, 1)
    return Cloud(points, np.full(n, 1 / n))


def said(standing, off=0.0, masses=None, error=1e-9, n_reports=1000):
    """What devices say whose centres lie `off` from the particles', in normal cells."""
    cells = cells_of(standing.cloud, standing.centres)
    masses = cells.shares if masses is None else np.array(masses)
    leans = (cells.leans + off * cells.slopes) * masses[:, None]
    k, d = standing.centres.shape
    return Heard(standing.centres, masses, np.full(k, error), leans, np.full((k, d), error), n_reports)


class TestCells:
    def test_are_what_their_twin_makes_of_particles(self):
        rng = np.random.default_rng(2)
        points, weights = rng.random((60, 2)), rng.random(60)
        centres = rng.random((4, 2))
        cells = cells_of(Cloud(points, weights / weights.sum()), centres)
        labels, shares, spreads, leans, slopes = naive_phase.particle_cells(points, weights / weights.sum(), centres)
        assert cells.labels.tolist() == labels
        assert cells.shares == pytest.approx(shares)
        assert cells.spreads == pytest.approx(np.array(spreads))
        assert cells.leans == pytest.approx(np.array(leans))
        assert cells.slopes == pytest.approx(np.array(slopes))

    def test_of_normal_clusters_lean_by_eight_tenths_for_a_step_of_a_spread(self):
        cells = cells_of(cloud(40_000), CENTRES)
        assert cells.spreads == pytest.approx(np.full((2, 3), SPREAD), rel=0.03)
        assert cells.slopes * cells.spreads == pytest.approx(np.full((2, 3), 0.77), abs=0.06)

    def test_without_particles_have_a_little_mass_and_stay_finite(self):
        cells = cells_of(cloud(), np.vstack([CENTRES, CENTRES[:1]]))
        assert cells.shares[2] > 0
        assert all(np.isfinite(part).all() for part in cells)


class TestARound:
    @pytest.mark.parametrize("off", [-0.04, 0.0, 0.01, 0.05])
    def test_moves_centres_to_where_people_are(self, off):
        before = begun(cloud(), CENTRES)
        after = moved(before, said(before, off))
        assert after.centres - before.centres == pytest.approx(np.full((2, 3), off), abs=0.004)
        assert after.errors.max() < 1e-6
        assert after.doubts.max() < before.doubts.min()

    def test_moves_masses_to_those_of_the_people(self):
        before = begun(cloud(), CENTRES)
        after = moved(before, said(before, masses=[0.3, 0.7]))
        assert cells_of(after.cloud, after.centres).shares == pytest.approx([0.3, 0.7], abs=0.01)

    def test_moves_nothing_much_where_noise_is_all_there_is(self):
        before = begun(cloud(), CENTRES)
        after = moved(before, said(before, 0.05, masses=[0.3, 0.7], error=100.0))
        assert after.centres == pytest.approx(before.centres, abs=1e-4)
        assert after.errors == pytest.approx(before.errors, rel=0.01)

    def test_moves_no_further_than_a_spread_and_a_half(self):
        before = begun(cloud(), CENTRES)
        after = moved(before, said(before, 10.0))
        assert np.abs(after.centres - before.centres).max() < (MOST_STEP + 0.1) * before.errors.max() / FIRST_DOUBT

    def test_of_nobody_changes_nothing(self):
        before = begun(cloud(), CENTRES)
        k, d = CENTRES.shape
        nothing = Heard(before.centres, np.zeros(k), np.full(k, np.inf), np.zeros((k, d)), np.full((k, d), np.inf), 0)
        after = moved(before, nothing)
        assert after.centres == pytest.approx(before.centres, abs=1e-9)
        assert after.cloud.weights == pytest.approx(before.cloud.weights)
        assert after.errors == pytest.approx(before.errors)
        assert after.share_errors == pytest.approx(before.share_errors)

    def test_weighs_what_is_known_against_what_is_heard_by_their_variances(self):
        """A fit's centre of error e and a round's of error e land in the middle, with e over the root of two."""
        error = 0.001
        before = begun_from_fit(cloud(200_000), CENTRES, np.full((2, 3), error), np.full(2, 0.01))
        cells = cells_of(before.cloud, before.centres)
        heard = said(before, 0.0008)
        heard = heard._replace(lean_errors=error * cells.slopes * heard.masses[:, None])
        after = moved(before, heard)
        assert after.centres - before.centres == pytest.approx(np.full((2, 3), 0.0004), abs=5e-5)
        assert after.errors == pytest.approx(np.full((2, 3), error / np.sqrt(2)), rel=0.03)

    def test_is_the_same_to_the_last_bit_when_done_again(self):
        before = begun(cloud(), CENTRES)
        heard = said(before, 0.02, error=0.1)
        first, again = moved(before, heard), moved(before, heard)
        assert all((a == b).all() for a, b in zip(first[1:-1], again[1:-1], strict=True))
        assert (first.cloud.points == again.cloud.points).all()


class TestTheBeginning:
    def test_of_a_cloud_trusts_its_centres_little(self):
        standing = begun(cloud(), CENTRES + 0.02)
        assert standing.centres == pytest.approx(CENTRES, abs=0.01)
        assert standing.doubts == pytest.approx(np.full(2, FIRST_DOUBT**2))
        assert standing.mass_doubts == pytest.approx(np.full(2, MASS_DOUBT**2))

    def test_of_a_fit_is_never_less_sure_than_that(self):
        standing = begun_from_fit(cloud(), CENTRES, np.full((2, 3), 5.0), np.full(2, 5.0))
        assert standing.doubts == pytest.approx(np.full(2, FIRST_DOUBT**2))
        assert standing.mass_doubts == pytest.approx(np.full(2, MASS_DOUBT**2))


class TestOddClouds:
    def test_all_in_one_place_stay_finite(self):
        one = Cloud(np.full((50, 2), 0.4), np.full(50, 0.02))
        before = begun(one, np.full((3, 2), 0.4))
        after = moved(before, said(before, 0.01, error=0.05))
        assert all(np.isfinite(part).all() for part in (*after.cloud, *after[1:-1]))
        assert after.cloud.weights.sum() == pytest.approx(1)

    def test_in_the_corner_stay_in_the_box(self):
        corner = Cloud(np.abs(np.random.default_rng(3).normal(0, 0.02, (500, 2))), np.full(500, 0.002))
        before = begun(corner, np.zeros((1, 2)))
        after = moved(before, said(before, -0.5))
        assert (after.cloud.points >= 0).all()
        assert (after.centres >= 0).all()


class TestMisfit:
    def test_is_about_one_where_particles_are_right(self):
        before = begun_from_fit(cloud(), CENTRES, np.full((2, 3), 0.004), np.full(2, 0.01))
        cells = cells_of(before.cloud, before.centres)
        rng = np.random.default_rng(5)
        found = []
        for _ in range(200):
            heard = said(before, 0.0, error=0.03)
            off = rng.normal(0, 0.004, (2, 3)) * cells.slopes * heard.masses[:, None]
            found.append(misfit(before, heard._replace(leans=heard.leans + off + rng.normal(0, 0.03, (2, 3)))))
        assert np.mean(found) == pytest.approx(1, abs=0.15)

    def test_is_large_where_people_lie_on_both_sides_of_a_centre_and_none_near_it(self):
        """Two values of a feature: its mean is no median, and no particle would lean so."""
        before = begun_from_fit(cloud(), CENTRES, np.full((2, 3), 0.004), np.full(2, 0.01))
        heard = said(before, 0.0, error=0.03)
        leans = heard.leans.copy()
        leans[:, 0] += 0.4 * heard.masses
        assert misfit(before, heard._replace(leans=leans)) > 4

    def test_is_nothing_where_nobody_answered(self):
        before = begun(cloud(), CENTRES)
        heard = said(before)._replace(lean_errors=np.full((2, 3), np.inf))
        assert misfit(before, heard) == 0
