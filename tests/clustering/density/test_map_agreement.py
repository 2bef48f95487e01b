"""Test the agreement of label maps: the index, the selection of bumps, the gap, and given numbers of clusters."""

from math import log

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from clustering.density.excess_mass import bumps
from clustering.density.map_agreement import NO_AGREEMENT, Comparison, Selection, adjusted_rand
from clustering.density.map_division import agreement_table, divide
from sfumato.model.precision import Verdict
from tests.clustering.density.test_cluster_count import Fit, ridge
from tests.clustering.density.test_excess_mass import THREE, round_bumps


class TestAdjustedRand:
    def test_is_the_index_of_many_people(self):
        rng = np.random.default_rng(1)
        people = rng.multinomial(300_000, rng.dirichlet(np.ones(60)))
        one, other = rng.integers(0, 4, 60), rng.integers(0, 5, 60)
        other[:30] = one[:30]
        expected = adjusted_rand_score(np.repeat(one, people), np.repeat(other, people))
        assert adjusted_rand(one, other, people / people.sum()) == pytest.approx(expected, abs=1e-4)
        assert expected > 0.1

    def test_of_equal_maps_is_one_and_of_one_cluster_zero(self):
        labels = np.arange(16).reshape(4, 4) // 6
        even = np.full((4, 4), 1 / 16)
        assert adjusted_rand(labels, np.array([2, 0, 1])[labels], even) == pytest.approx(1)
        assert adjusted_rand(labels, np.zeros((4, 4), dtype=np.int64), even) == pytest.approx(0)
        assert adjusted_rand(np.zeros((4, 4), dtype=np.int64), np.zeros((4, 4), dtype=np.int64), even) == 1


class TestComparison:
    def test_selects_bumps_by_excess_and_contrast(self):
        whole, second, third = bumps(THREE)
        assert Selection(least_excess=(second.excess + third.excess) / 2).of([whole, second, third]) == [whole, second]
        assert Selection(least_contrast=1.01).of([whole, second, third]) == [whole]

    def test_the_gap_is_the_ratio_to_the_next_bump(self):
        _, second, third = bumps(THREE)
        comparison = Comparison(Fit(THREE), Selection())
        assert comparison.gap(2) == pytest.approx(log(second.excess / third.excess))
        assert comparison.gap(3) == 2
        assert comparison.gap(4) == 0

    def test_one_cluster_has_no_agreement(self):
        assert Comparison(Fit(THREE), Selection()).agreement(1) == NO_AGREEMENT
        assert Comparison(Fit(THREE), Selection()).agreement(3).mean == pytest.approx(1)


class TestGivenNumber:
    TWO = round_bumps((0.2, 0.2, 0.5), (0.8, 0.2, 0.3))

    def test_a_map_that_comes_out_again_is_reliable(self):
        division = divide(Fit(THREE, clusters=3))
        assert len(division.cut.bumps) == 3
        assert division.expected_error == pytest.approx(0)
        assert division.verdict(low_confidence=False) is Verdict.RELIABLE
        assert division.verdict(low_confidence=True) is Verdict.UNCERTAIN
        facts = division.diagnostics()
        assert division.expected_agreement().value > 0.85
        assert facts["cluster_interval"] is None

    def test_halves_that_differ_make_it_uncertain(self):
        division = divide(Fit(THREE, halves=(THREE, self.TWO), clusters=3))
        assert division.agreement.between_halves < 0.9 < division.agreement.mean
        assert division.verdict(low_confidence=False) is Verdict.UNCERTAIN

    def test_other_maps_everywhere_make_it_doubtful(self):
        one = round_bumps((0.5, 0.5, 1.0))
        division = divide(Fit(THREE, [one], (one, one), [one, one], clusters=3))
        assert division.verdict(low_confidence=False) is Verdict.DOUBTFUL
        assert division.expected_error > 0.3

    def test_one_requested_cluster_is_doubtful(self):
        assert divide(Fit(THREE, clusters=1)).verdict(low_confidence=False) is Verdict.DOUBTFUL

    def test_more_clusters_than_bumps_are_not_invented(self):
        assert len(divide(Fit(THREE, clusters=9)).cut.bumps) == 3

    def test_another_scale_needs_a_clearer_gap(self):
        fit = Fit(THREE, scales=[self.TWO, THREE], clusters=2, selects=True)
        assert divide(fit).fit.length_scale == 0.04
        assert divide(Fit(THREE, scales=[self.TWO, THREE], clusters=2)).fit.length_scale == 0.06
        assert divide(Fit(THREE, scales=[self.TWO, THREE], clusters=3, selects=True)).fit.length_scale == 0.06

    @pytest.mark.parametrize(("height", "scale"), [(0.19, 0.06), (0.12, 0.04)])
    def test_a_gap_that_is_little_clearer_selects_no_other_scale(self, height, scale):
        """The gap of the other density is greater by ln(.2 / .19) = .05, or by ln(.2 / .12) = .51."""
        even, uneven = (ridge(0, 1, 0, 0.2, 0, third, 0) for third in (0.2, height))
        fit = Fit(even, scales=[uneven, even], clusters=2, selects=True)
        assert divide(fit).fit.length_scale == scale

    def test_missing_clusters_select_a_scale_that_has_them(self):
        fit = Fit(self.TWO, scales=[THREE, self.TWO], clusters=3, selects=True)
        assert divide(fit).fit.length_scale == 0.04

    def test_fewer_clusters_than_requested_are_doubtful(self):
        division = divide(Fit(THREE, clusters=9))
        assert division.verdict(low_confidence=False) is Verdict.DOUBTFUL
        assert division.reason().endswith("Only 3 of 9 requested clusters were found.")
        assert divide(Fit(THREE, clusters=3)).verdict(low_confidence=False) is Verdict.RELIABLE


def test_the_calibration_covers_every_estimate_and_widens_downwards():
    table = agreement_table()
    assert table.below[-1] > 1
    assert list(table.below) == sorted(table.below)
    assert all(low <= 0 <= high for low, high in zip(table.lower, table.upper, strict=True))
    clear = table.estimate(Comparison(Fit(THREE), Selection()).agreement(3))
    assert 0.85 < clear.value <= 1
    assert clear.lower < clear.value <= clear.upper <= 1
    none = table.estimate(NO_AGREEMENT)
    assert none.lower == none.value == 0
    assert none.upper - none.lower > clear.upper - clear.lower
