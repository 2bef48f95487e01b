"""Test agreement metrics against counted pairs and scikit-learn."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from clustering.metrics import accuracy, adjusted_rand_index, contingency, fowlkes_mallows, purity
from tests import naive

LABELLINGS = st.integers(1, 25).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(-3, 4), min_size=n, max_size=n) for _ in range(2)))
)
METRICS = (accuracy, adjusted_rand_index, fowlkes_mallows, purity)


class TestPairMetrics:
    @given(LABELLINGS)
    def test_equal_counts_of_pairs(self, labellings):
        a, b = labellings
        both, in_a, in_b, every = naive.pair_counts(a, b)
        if in_a and in_b:
            assert fowlkes_mallows(a, b) == pytest.approx(both / sqrt(in_a * in_b))
        if every:
            chance = Fraction(in_a * in_b, every)
            best = Fraction(in_a + in_b, 2)
            expected = 1 if best == chance else (both - chance) / (best - chance)
            assert adjusted_rand_index(a, b) == pytest.approx(float(expected), abs=1e-15)

    @given(LABELLINGS)
    def test_equal_scikit_learn(self, labellings):
        a, b = labellings
        assert adjusted_rand_index(a, b) == pytest.approx(sklearn_metrics.adjusted_rand_score(a, b), abs=1e-12)
        assert fowlkes_mallows(a, b) == pytest.approx(sklearn_metrics.fowlkes_mallows_score(a, b), abs=1e-12)

    def test_are_exact_for_a_million_points(self):
        rng = np.random.default_rng(1)
        a, b = rng.integers(0, 5, 10**6), rng.integers(0, 7, 10**6)
        assert adjusted_rand_index(a, b) == pytest.approx(sklearn_metrics.adjusted_rand_score(a, b), abs=1e-12)
        assert abs(adjusted_rand_index(a, b)) < 1e-4
        assert adjusted_rand_index(a, -a) == 1.0


class TestMatching:
    @given(LABELLINGS)
    def test_purity_is_the_share_of_the_most_frequent_class(self, labellings):
        truth, labels = map(np.array, labellings)
        table = sklearn_metrics.cluster.contingency_matrix(truth, labels)
        assert purity(truth, labels) == pytest.approx(table.max(axis=0).sum() / len(truth))

    @given(LABELLINGS)
    def test_accuracy_lies_between_the_largest_pair_and_purity(self, labellings):
        truth, labels = labellings
        assert contingency(truth, labels).counts.max() / len(truth) <= accuracy(truth, labels) <= purity(truth, labels)

    def test_accuracy_matches_each_cluster_once(self):
        assert accuracy([0, 0, 0, 0, 1, 1], [7, 7, 8, 8, 9, 9]) == pytest.approx(4 / 6)
        assert accuracy([0, 0, 1, 1], [5, 5, -2, -2]) == 1.0
        assert purity([0, 0, 0, 0, 1, 1], [7, 7, 8, 8, 9, 9]) == 1.0


class TestInput:
    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize(("a", "b"), [([], []), ([0], [0, 1]), ([[0]], [[0]]), ([0.0], [0]), ([0], ["a"])])
    def test_rejects_invalid_labels(self, metric, a, b):
        with pytest.raises(ValueError, match="label"):
            metric(a, b)

    @pytest.mark.parametrize("metric", [accuracy, adjusted_rand_index, purity])
    def test_one_point_agrees(self, metric):
        assert metric([4], [2]) == 1.0
