"""Test estimates from signed bits: unbiased masses and imbalances with the reported errors."""

import numpy as np
import pytest
from scipy.stats import chi2

from clustering.centroids.centroid_statistics import estimate_round_statistics, to_lattice, walsh_signs
from clustering.errors import UnfitRound
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.specs import CentroidSignEncoding, GridEncoding, GrrMechanism, NearestCentroidEncoding, RoundSpec
from tests.clustering.local_plans import Devices, features, mixture

CENTRES = np.array([[0.3, 0.3], [0.7, 0.4], [0.5, 0.8]])
XY = features(2)


def people(n):
    return mixture(n, np.add(CENTRES, [0.02, -0.03]), [0.5, 0.3, 0.2])[0]


def truth(points, places):
    nearest = ((points[:, None] - places) ** 2).sum(axis=2).argmin(axis=1)
    sides = np.sign(points - places[nearest])
    masses = np.bincount(nearest, minlength=len(places)) / len(points)
    return masses, np.array([sides[nearest == c].sum(axis=0) for c in range(len(places))]) / len(points)


def collect_round(encoding, points, seed=1, mechanism=None):
    return Devices(points, seed)(RoundSpec(XY, encoding, mechanism or design("auto", encoding.n_symbols, NANO)))


ENCODING = CentroidSignEncoding(to_lattice(CENTRES))


class TestSigns:
    def test_matrix_has_orthogonal_columns(self):
        signs = walsh_signs(8, 5)
        assert (signs.T @ signs == 8 * np.eye(5)).all()
        assert set(signs.ravel()) == {-1.0, 1.0}


class TestEstimates:
    def test_are_unbiased_with_the_reported_errors(self):
        points = people(6000)
        masses, true_imbalances = truth(points, CENTRES)
        deviates = []
        for seed in range(60):
            statistics = estimate_round_statistics(collect_round(ENCODING, points, seed), 3)
            deviates += [
                ((statistics.masses - masses) / statistics.mass_errors),
                ((statistics.imbalances - true_imbalances) / statistics.imbalance_errors).ravel(),
            ]
        deviates = np.concatenate(deviates)
        squares = (deviates**2).sum()
        assert 2 * min(chi2.cdf(squares, deviates.size), chi2.sf(squares, deviates.size)) > 1e-6
        assert abs(deviates.mean()) < 5 / np.sqrt(deviates.size)
        assert chi2.cdf(squares * 0.49, deviates.size) < 1e-6  # detects a deviation of 30 %

    def test_equal_the_truth_without_noise(self):
        points = people(40_000)
        masses, true_imbalances = truth(points, CENTRES)
        statistics = estimate_round_statistics(collect_round(ENCODING, points, mechanism=GrrMechanism(2, DRAW_SPAN)), 3)
        assert statistics.masses == pytest.approx(masses, abs=0.03)
        assert statistics.imbalances == pytest.approx(true_imbalances, abs=0.03)
        assert statistics.n_reports == 40_000
        assert np.abs(statistics.places - CENTRES).max() < 1e-5

    def test_reads_nearest_centroid_rounds(self):
        points = people(40_000)
        masses, true_imbalances = truth(points, CENTRES)
        statistics = estimate_round_statistics(collect_round(NearestCentroidEncoding(to_lattice(CENTRES)), points), 3)
        assert (np.abs(statistics.masses - masses) < 5 * statistics.mass_errors).all()
        assert (np.abs(statistics.imbalances - true_imbalances) < 5 * statistics.imbalance_errors).all()


class TestFewReports:
    def test_errors_are_infinite_without_reports(self):
        spec = RoundSpec(XY, ENCODING, design("auto", 2, NANO))
        statistics = estimate_round_statistics(Collected(spec, Tally.empty(spec)), 3)
        assert np.isinf(statistics.imbalance_errors).all()
        assert np.isinf(statistics.mass_errors).all()
        assert (statistics.imbalances == 0).all()

    def test_error_is_infinite_for_a_feature_without_reports(self):
        points = people(30_000)
        collected = collect_round(ENCODING, points)
        collected.tally.counts[4:8] = 0
        collected.tally.reports[4:8] = 0
        statistics = estimate_round_statistics(collected, 3)
        assert np.isinf(statistics.imbalance_errors[:, 1]).all()
        assert np.isfinite(statistics.imbalance_errors[:, 0]).all()
        assert np.isfinite(statistics.imbalances).all()


class TestAnotherRound:
    def test_rejects_another_number_of_centroids(self):
        with pytest.raises(UnfitRound, match="number of centroids"):
            estimate_round_statistics(collect_round(ENCODING, people(10)), 4)

    def test_rejects_rounds_without_centroids(self):
        spec = RoundSpec(XY, GridEncoding((2, 2)), design("grr", 4, NANO))
        with pytest.raises(UnfitRound):
            estimate_round_statistics(Collected(spec, Tally.empty(spec)), 3)
