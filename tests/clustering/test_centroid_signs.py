"""Signed bits about centroids, read back: masses and leans, unbiased, with the errors they say."""

import numpy as np
import pytest
from scipy.stats import chi2

from clustering.broadcast_centroids import to_lattice
from clustering.centroid_signs import hear_about, walsh_signs
from clustering.errors import UnfitRound
from clustering.plan import Collected, Tally
from clustering.simulate import SeededEntropy, collect
from sfumato.accounting import DRAW_SPAN, NANO
from sfumato.mechanisms import design
from sfumato.specs import CentroidSignEncoding, Feature, GridEncoding, GrrMechanism, NearestCentroidEncoding, RoundSpec

CENTRES = np.array([[0.3, 0.3], [0.7, 0.4], [0.5, 0.8]])
XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def people(n, seed=1):
    rng = np.random.default_rng(seed)
    owners = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return (CENTRES[owners] + [0.02, -0.03] + rng.normal(0, 0.06, (n, 2))).clip(0, 1)


def truth(points, places):
    nearest = ((points[:, None] - places) ** 2).sum(axis=2).argmin(axis=1)
    sides = np.sign(points - places[nearest])
    masses = np.bincount(nearest, minlength=len(places)) / len(points)
    return masses, np.array([sides[nearest == c].sum(axis=0) for c in range(len(places))]) / len(points)


def answered(encoding, points, seed=1, mechanism=None):
    spec = RoundSpec(XY, encoding, mechanism or design("auto", encoding.n_symbols, NANO))
    entropy = SeededEntropy(seed)
    return collect(spec, points, entropy, entropy.words(len(points)))


ENCODING = CentroidSignEncoding(to_lattice(CENTRES))


class TestSigns:
    def test_of_the_matrix_have_orthogonal_columns(self):
        signs = walsh_signs(8, 5)
        assert (signs.T @ signs == 8 * np.eye(5)).all()
        assert set(signs.ravel()) == {-1.0, 1.0}


class TestEstimates:
    def test_are_right_on_average_and_as_far_off_as_they_say(self):
        points = people(6000)
        masses, leans = truth(points, CENTRES)
        deviates = []
        for seed in range(60):
            heard = hear_about(answered(ENCODING, points, seed), 3)
            deviates += [
                ((heard.masses - masses) / heard.mass_errors),
                ((heard.leans - leans) / heard.lean_errors).ravel(),
            ]
        deviates = np.concatenate(deviates)
        squares = (deviates**2).sum()
        assert 2 * min(chi2.cdf(squares, deviates.size), chi2.sf(squares, deviates.size)) > 1e-6
        assert abs(deviates.mean()) < 5 / np.sqrt(deviates.size)
        assert chi2.cdf(squares * 0.49, deviates.size) < 1e-6  # 30 % off would be seen

    def test_without_noise_are_those_of_the_people(self):
        points = people(40_000)
        masses, leans = truth(points, CENTRES)
        heard = hear_about(answered(ENCODING, points, mechanism=GrrMechanism(2, DRAW_SPAN)), 3)
        assert heard.masses == pytest.approx(masses, abs=0.03)
        assert heard.leans == pytest.approx(leans, abs=0.03)
        assert heard.n_reports == 40_000
        assert np.abs(heard.places - CENTRES).max() < 1e-5

    def test_of_sides_are_read_as_well(self):
        points = people(40_000)
        masses, leans = truth(points, CENTRES)
        heard = hear_about(answered(NearestCentroidEncoding(to_lattice(CENTRES)), points), 3)
        assert (np.abs(heard.masses - masses) < 5 * heard.mass_errors).all()
        assert (np.abs(heard.leans - leans) < 5 * heard.lean_errors).all()


class TestTooLittle:
    def test_nobody_leaves_estimates_of_infinite_error(self):
        spec = RoundSpec(XY, ENCODING, design("auto", 2, NANO))
        heard = hear_about(Collected(spec, Tally.empty(spec)), 3)
        assert np.isinf(heard.lean_errors).all()
        assert np.isinf(heard.mass_errors).all()
        assert (heard.leans == 0).all()

    def test_a_feature_nobody_answered_about_is_not_known_and_the_others_are(self):
        points = people(30_000)
        collected = answered(ENCODING, points)
        collected.tally.counts[4:8] = 0
        collected.tally.reports[4:8] = 0
        heard = hear_about(collected, 3)
        assert np.isinf(heard.lean_errors[:, 1]).all()
        assert np.isfinite(heard.lean_errors[:, 0]).all()
        assert np.isfinite(heard.leans).all()


class TestAnotherRound:
    def test_over_other_centroids_is_refused(self):
        with pytest.raises(UnfitRound, match="another number"):
            hear_about(answered(ENCODING, people(10)), 4)

    def test_over_no_centroids_is_refused(self):
        spec = RoundSpec(XY, GridEncoding((2, 2)), design("grr", 4, NANO))
        with pytest.raises(UnfitRound):
            hear_about(Collected(spec, Tally.empty(spec)), 3)
