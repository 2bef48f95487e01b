"""Test that products exclude no centre that the loop over the features selects."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering.kernels.kmeans import measure_inertia, weighted_lloyd_step
from clustering.kernels.nearest import LITTLE, label_block, prepare_search
from clustering.kernels.residuals import nearest_centres
from sfumato.specs import LATTICE
from tests import naive

D, K = 23, 7  # more than LITTLE, so that products are used
assert D * K > LITTLE


def label(points, centres):
    labels, sums, masses = np.empty(len(points), np.int64), np.empty_like(centres), np.empty(len(centres))
    weighted_lloyd_step(points, np.ones(len(points)), centres, labels, sums, masses)
    return labels.tolist()


def search_block(points, centres):
    search, labels = prepare_search(len(points), centres), np.empty(len(points), np.int64)
    assert len(search.rows) == len(points)
    label_block(points, 0, len(points), centres, search, labels)
    return search, labels


def draw_ties(rng, n, scale, offset):
    """Return points and centres at few distinct distances: places of a coarse lattice, moved by single ulps."""
    centres = rng.integers(-2, 3, size=(K, D)).astype(np.float64)
    middles = (centres[rng.integers(K, size=n)] + centres[rng.integers(K, size=n)]) / 2
    both = []
    for each in (middles, centres):
        moved = each * scale + offset
        to = rng.choice([-np.inf, np.inf], size=each.shape)
        both.append(np.where(rng.random(each.shape) < 0.1, np.nextafter(moved, to), moved))
    return both


class TestLabels:
    @given(st.integers(0, 2**32), st.integers(-160, 160), st.sampled_from([0.0, 1.0, -3e5, 1e12, 1e200]))
    def test_of_ties_are_those_of_the_plain_twin(self, seed, exponent, offset):
        points, centres = draw_ties(np.random.default_rng(seed), 40, 10.0**exponent, offset)
        assert label(points, centres) == naive.nearest_centres(points.tolist(), centres.tolist())

    @pytest.mark.parametrize("offset", [0.0, 1e3, 1e9])
    def test_need_the_loop_where_single_precision_selects_another_centre(self, offset):
        points, centres = draw_ties(np.random.default_rng(1), 256, 1 / 3, offset)
        search, labels = search_block(points, centres)
        assert (search.scores.argmax(axis=1) != labels).any()
        assert labels.tolist() == naive.nearest_centres(points.tolist(), centres.tolist())

    def test_are_the_first_of_equal_centres(self):
        rng = np.random.default_rng(2)
        centres = rng.normal(size=(K, D))
        centres[5] = centres[3]
        points = centres[rng.integers(K, size=70)] + 1e-3 * rng.normal(size=(70, D))
        labels = label(points, centres)
        assert labels == naive.nearest_centres(points.tolist(), centres.tolist())
        assert 3 in labels
        assert 5 not in labels
        assert label(points, np.repeat(centres[:1], K, axis=0)) == [0] * 70

    @pytest.mark.parametrize(
        ("place", "expected"), [(np.nextafter(1.0, 0.0), 2), (1.0, 2), (np.nextafter(1.0, 2.0), 4)]
    )
    def test_change_at_one_ulp(self, place, expected):
        centres = np.zeros((K, D))
        centres[:, 1] = 64.0
        centres[2, :2], centres[4, :2] = (0.0, 0.0), (2.0, 0.0)
        points = np.zeros((9, D))
        points[:, 0] = place
        assert label(points, centres) == [expected] * 9

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20, -1e200, 1e308])
    @pytest.mark.parametrize("place", ["points", "centres"])
    def test_of_values_beyond_single_precision_are_those_of_the_loop(self, bad, place):
        rng = np.random.default_rng(3)
        points, centres, weights = rng.normal(size=(50, D)), rng.normal(size=(K, D)), rng.random(50)
        {"points": points, "centres": centres}[place][[0, 2, 5], [1, 0, D - 1]] = bad
        labels, sums, masses = np.empty(50, np.int64), np.empty_like(centres), np.empty(K)
        with np.errstate(all="ignore"):
            weighted_lloyd_step(points, weights, centres, labels, sums, masses)
        assert labels.tolist() == naive.nearest_centres(points.tolist(), centres.tolist())

    def test_of_records_are_exact(self):
        rng = np.random.default_rng(4)
        ends = rng.integers(0, LATTICE // 2, size=(K, D)) * 2
        points = ((ends[rng.integers(K, size=300)] + ends[rng.integers(K, size=300)]) // 2).astype(np.int32)
        points[::3, 0] += rng.integers(-1, 2, size=100, dtype=np.int32)
        labels = np.empty(300, np.int64)
        nearest_centres(points, ends.astype(np.float64), labels)
        assert labels.tolist() == [naive.nearest_centre(ends.tolist(), point) for point in points.tolist()]

    def test_of_no_points_are_empty(self):
        assert label(np.empty((0, D)), np.ones((K, D))) == []


class TestScores:
    @given(st.integers(0, 2**32), st.integers(-8, 8), st.sampled_from([0.0, 1.0, 1e4]))
    def test_have_errors_of_less_than_half_of_the_bound(self, seed, exponent, offset):
        rng = np.random.default_rng(seed)
        scale = 10.0**exponent
        points, centres = (scale * (offset + rng.normal(size=(n, D))) for n in (4, K))
        search, _ = search_block(points, centres)
        best = search.scores.max(axis=1)
        middle = [Fraction(x) for x in search.middle.tolist()]
        for i, point in enumerate(points.tolist()):
            bound = (Fraction(float(best[i])) - Fraction(float(search.limits[i]))) / 2
            for c, centre in enumerate(centres.tolist()):
                pairs = [(Fraction(x) - m, Fraction(y) - m) for x, y, m in zip(point, centre, middle, strict=True)]
                score = sum(x * y - y * y / 2 for x, y in pairs)
                assert abs(score - Fraction(float(search.scores[i, c]))) < bound

    def test_decide_nearly_all_points_without_the_loop(self):
        rng = np.random.default_rng(5)
        centres = 100.0 + rng.normal(size=(20, 768))
        points = centres[rng.integers(20, size=30)] + rng.normal(size=(30, 768))
        search, _ = search_block(points, centres)
        assert ((search.scores >= search.limits[:, None]).sum(axis=1) == 1).all()


def test_inertia_counts_a_distance_that_is_no_number_as_infinite():
    points, centres, labels = np.array([[0.0], [np.nan]]), np.array([[2.0]]), np.zeros(2, np.int64)
    assert measure_inertia(points[:1], np.array([3.0]), centres, labels) == 12.0
    assert measure_inertia(points, np.array([3.0, 1.0]), centres, labels) == np.inf
