"""Test the count of clusters: the unimodal density, the evidence against it, the score, and the reasons for one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering.density import cluster_count
from clustering.density.bump_fit import BumpFit
from clustering.density.cluster_count import (
    SELECTION,
    ClusterCount,
    count_clusters,
    evidence,
    is_explained_by_one_mode,
    unimodal,
)
from clustering.density.excess_mass import bumps
from clustering.density.map_agreement import NO_AGREEMENT, Agreement, Comparison
from clustering.density.map_division import CLEARLY_UNDIVIDED, MAY_DIVIDE, UNDIVIDED, MapDivision, divide
from sfumato.model.precision import Verdict
from tests import naive
from tests.clustering.density.test_excess_mass import SHAPES, THREE, densities, round_bumps


def ridge(*heights):
    """Return a density in one feature."""
    return np.array(heights, dtype=np.float64) / sum(heights)


class Fitted:
    """A density with a likelihood that falls by 1000 for each unit of mass that another density moves."""

    circles = ()

    def __init__(self, density, error=0.0):
        self.density, self.error = density, error
        self.steps, self.converged, self.precision = 1, True, 10_000

    def standard_error(self, _):
        return self.error

    def excess_loss(self, density):
        return 500 * np.abs(density - self.density).sum()


class Fit(BumpFit):
    """A fit with given refits. Without them, every refit has the same density."""

    def __init__(self, density, redrawn=None, halves=None, scales=None, clusters=None, *, error=0.0, selects=False):
        super().__init__(Fitted(density, error), 0.06)
        refits = {
            "redrawn": redrawn or [density],
            "half": halves or (density, density),
            "scaled": scales or [density] * 2,
            "clusters_given": clusters,
            "selects": selects,
            "requests": [],
        }
        self.__dict__.update(refits)

    @property
    def clusters(self):
        return self.clusters_given

    @property
    def selects_scale(self):
        return self.selects

    def redraw(self, density, throw):
        self.requests.append(density)
        return Fitted(self.redrawn[throw % len(self.redrawn)])

    def halve(self):
        return self.half

    def at_scale(self, length_scale):
        other = Fit(self.scaled[{0.04: 0, 0.03: 1}.get(length_scale, 0)], clusters=self.clusters)
        other.__dict__["length_scale"] = length_scale
        return other


def count(fit):
    return count_clusters(fit, Comparison(fit, SELECTION))


class TestOtherScales:
    @pytest.mark.parametrize(
        ("length_scale", "clusters", "expected"),
        [
            (0.06, None, (0.04, 0.03)),
            (0.04, 3, (0.06, 0.03)),
            (0.03, None, (0.06, 0.04)),
            (0.03, 3, (0.04, 0.02)),
            (0.02, 3, (0.03, 0.015)),
        ],
    )
    def test_are_finer_for_many_reports_and_a_given_number(self, length_scale, clusters, expected):
        fit = Fit(THREE, clusters=clusters)
        fit.__dict__["length_scale"] = length_scale
        assert [each.length_scale for each in fit.other_scales] == pytest.approx(expected)


class TestUnimodal:
    def test_lowers_other_bumps_to_their_saddle(self):
        assert unimodal(ridge(1, 5, 2, 4, 1, 3, 0)) == pytest.approx(ridge(1, 5, 2, 2, 1, 1, 0))
        assert unimodal(ridge(1, 2, 3, 2, 1)) == pytest.approx(ridge(1, 2, 3, 2, 1))

    def test_has_one_bump_for_any_density(self):
        density = np.random.default_rng(1).random((12, 9))
        assert len(bumps(density / density.sum())) > 1
        assert len(bumps(unimodal(density / density.sum()))) == 1


class TestEvidence:
    # the unimodal density is (1, 5, 2, 2, 1) / 11
    TWO = ridge(1, 5, 2, 4, 1)

    def test_is_the_loss_of_the_density_with_one_mode(self):
        moved = np.abs(self.TWO - unimodal(self.TWO)).sum() / 2
        assert evidence(Fitted(self.TWO)) == pytest.approx(1000 * moved)
        assert evidence(Fitted(unimodal(self.TWO))) == pytest.approx(0)

    def test_of_a_circle_connects_its_ends(self):
        over_the_seam = ridge(5, 2, 1, 1, 4)
        assert unimodal(over_the_seam).tolist() != over_the_seam.tolist()
        assert unimodal(over_the_seam, (0,)).tolist() == pytest.approx(over_the_seam.tolist())

    def test_is_compared_with_the_mean_in_refits_of_the_unimodal_density(self):
        one = ridge(1, 2, 1)
        drawn = [ridge(1, 9, 1, 9, 1), *[one] * 5]
        fit = Fit(self.TWO, redrawn=drawn)
        assert not is_explained_by_one_mode(fit)
        assert [list(each) for each in fit.requests] == [pytest.approx(list(unimodal(self.TWO)))] * 6
        assert is_explained_by_one_mode(Fit(self.TWO, redrawn=[drawn[0]]))

    def test_must_exceed_a_share_of_the_root_of_the_records(self):
        fit = Fit(self.TWO, redrawn=[ridge(1, 2, 1)])
        least = evidence(fit.fitted)
        fit.fitted.precision = (least / 0.14) ** 2 * 0.99
        assert not is_explained_by_one_mode(fit)
        fit.fitted.precision = (least / 0.14) ** 2 * 1.01
        assert is_explained_by_one_mode(fit)


class TestCount:
    def test_is_the_number_of_bumps_that_come_out_again(self, monkeypatch):
        monkeypatch.setattr(cluster_count, "is_explained_by_one_mode", lambda _: False)
        one_end, other_end = (round_bumps((0.2, 0.2, 0.5), (0.8, 0.2, 0.4), (x, 0.8, 0.1)) for x in (0.2, 0.8))
        assert count(Fit(one_end)).clusters == 3
        unstable = count(Fit(one_end, [one_end, other_end], (one_end, other_end), [other_end, other_end]))
        assert unstable.clusters == 2
        assert 0 < unstable.agreement.scales < unstable.agreement.halves < unstable.agreement.gap

    def test_has_an_interval_of_the_close_numbers(self, monkeypatch):
        monkeypatch.setattr(cluster_count, "is_explained_by_one_mode", lambda _: False)
        assert (count(Fit(THREE)).lower, count(Fit(THREE)).upper) == (2, 3)
        monkeypatch.setattr(cluster_count, "CLOSE_SCORE", 0.1)
        assert (count(Fit(THREE)).lower, count(Fit(THREE)).upper) == (3, 3)


class TestVerdict:
    def judge(self, agreement, upper=9):
        division = divide(Fit(THREE, clusters=3))
        given = agreement or division.agreement
        counted = replace(division, agreement=given, count=ClusterCount(3, 2, upper, given, None))
        return counted.expected_agreement().value, counted.verdict(low_confidence=False)

    @pytest.mark.parametrize(("upper", "verdict"), [(9, Verdict.RELIABLE), (10, Verdict.UNCERTAIN)])
    def test_an_open_number_is_not_reliable(self, upper, verdict):
        assert self.judge(None, upper)[1] is verdict

    @pytest.mark.parametrize(
        ("mass", "error", "verdict"),
        [
            (0.015, 0, Verdict.RELIABLE),
            (0.028, 0, Verdict.UNCERTAIN),
            (0.2, 0, Verdict.DOUBTFUL),
            (0.05, 0, Verdict.DOUBTFUL),
            (0.05, 0.03, Verdict.UNCERTAIN),
            (0.05, 0.04, Verdict.RELIABLE),
            (0.2, 0.11, Verdict.DOUBTFUL),
            (0.2, 0.15, Verdict.RELIABLE),
        ],
    )
    def test_a_bump_inside_a_cluster_limits_it(self, mass, error, verdict):
        places = ((0.2, 0.2, 0.5), (0.8, 0.8, 0.5 - mass), (0.8, 0.3, mass))
        division = divide(Fit(round_bumps(*places), clusters=2, error=error))
        count = ClusterCount(2, 2, 2, division.agreement, None, finer=division.agreement.mean - 0.1)
        counted = replace(division, count=count)
        assert counted.verdict(low_confidence=False) is verdict
        assert (
            (counted.undivided >= MAY_DIVIDE)
            == ("divide these clusters" in counted.reason())
            == (verdict != "reliable")
        )
        is_coarse = counted.clearly_undivided >= CLEARLY_UNDIVIDED or counted.undivided >= UNDIVIDED
        assert is_coarse == (verdict is Verdict.DOUBTFUL)
        assert counted.diagnostics()["undivided"] == counted.undivided
        assert division.undivided == division.clearly_undivided == 0  # the number was given
        elsewhere = replace(division, count=replace(count, finer=division.agreement.mean - 0.2))
        assert elsewhere.undivided == elsewhere.clearly_undivided == 0  # no finer division comes out again
        assert elsewhere.verdict(low_confidence=False) is Verdict.RELIABLE

    @given(densities(SHAPES), st.integers(1, 4), st.sampled_from([0.0, 0.006, 0.01, 0.02]))
    def test_adds_up_the_bumps_inside_clusters_as_the_plain_tree_does(self, density, clusters, error):
        fit = Fit(density, error=error)
        cut = fit.tree.regions(fit.all_bumps[:clusters])
        count = ClusterCount(clusters, 1, clusters, NO_AGREEMENT)
        counted = MapDivision(fit, cut, NO_AGREEMENT, count, 0.0, {})
        peaks = [bump.peak for bump in cut.bumps]
        _, ended = naive.grow_components(density)
        inside = [excess for peak, (_, excess, _) in ended.items() if peak not in peaks and excess >= 0.01]
        assert counted.undivided == pytest.approx(sum(e for e in inside if e >= 1.5 * error))
        assert counted.clearly_undivided == pytest.approx(sum(e for e in inside if e >= 2 * error))

    @pytest.mark.parametrize(("mean", "verdict"), [(0.6, Verdict.DOUBTFUL), (0.89, Verdict.UNCERTAIN)])
    def test_depends_on_the_expected_agreement(self, mean, verdict):
        expected, found = self.judge(Agreement(mean, mean, mean, mean, 2.0))
        assert (expected < 0.75) == (verdict is Verdict.DOUBTFUL)
        assert found is verdict


class TestOneCluster:
    ONE = round_bumps((0.5, 0.5, 1.0))

    def check(self, fit, reason, upper):
        found = count(fit)
        assert (found.clusters, found.lower, found.upper) == (1, 1, upper)
        assert found.agreement == NO_AGREEMENT
        assert reason in found.reason
        division = divide(fit)
        assert division.verdict(low_confidence=False) is Verdict.DOUBTFUL
        assert division.warnings() == (found.reason,)
        assert division.expected_agreement().value == 0

    def test_without_another_bump(self):
        self.check(Fit(self.ONE), "no bump of the density stands out", 1)

    def test_with_bumps_within_their_errors(self):
        self.check(Fit(THREE, error=0.5), "no bump of the density stands out", 1)

    def test_with_bumps_that_noise_makes(self):
        low, high = round_bumps((0.2, 0.2, 0.9), (0.8, 0.8, 0.1)), round_bumps((0.2, 0.2, 0.5), (0.8, 0.8, 0.5))
        self.check(Fit(low, redrawn=[high]), "a density with one mode explains the data", 2)
        assert count(Fit(low, redrawn=[self.ONE])).clusters == 2

    def test_with_a_division_that_refits_do_not_reproduce(self):
        # redrawn densities have their bumps elsewhere, and those of the density with one mode have none
        fit = Fit(THREE, redrawn=[self.ONE], halves=(self.ONE, self.ONE), scales=[self.ONE, self.ONE])
        self.check(fit, "refits with other noise reproduce no division", 3)
