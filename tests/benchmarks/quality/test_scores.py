"""Scores of centroids, against figures computed by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import mutual_info_score

from benchmarks.quality.scores import entropy, f_measure, matched_rmse, nearest, nicv

RNG = np.random.default_rng(3)
TRUTH, LABELS = RNG.integers(1, 5, 400), RNG.integers(0, 3, 400)


class TestFMeasure:
    def test_by_hand(self) -> None:
        # Class 1: 4 people, 3 in cluster 0 (of 5), 1 in cluster 1 (of 3): best 2 (3/5)(3/4) / (3/5 + 3/4) = 2/3.
        # Class 2: 4 people, 2 in each: best of 2 (2/5)(2/4) / .9 = 4/9 and 2 (2/3)(2/4) / (7/6) = 4/7.
        truth, labels = [1, 1, 1, 1, 2, 2, 2, 2], [0, 0, 0, 1, 0, 0, 1, 1]
        assert f_measure(truth, labels) == pytest.approx((4 * 2 / 3 + 4 * 4 / 7) / 8)

    def test_extremes(self) -> None:
        truth = np.repeat([1, 2, 3, 4], 25)
        assert f_measure(truth, 9 - truth) == 1.0
        assert f_measure(truth, np.zeros(100, dtype=int)) == pytest.approx(0.4)  # P = 1/4, R = 1

    def test_large_classes_weigh_more(self) -> None:
        truth, labels = np.repeat([1, 2], [90, 10]), np.repeat([0, 1, 2], [90, 5, 5])
        assert f_measure(truth, labels) == pytest.approx(0.9 * 1 + 0.1 * 2 * 0.5 / 1.5)


class TestEntropy:
    def test_by_hand(self) -> None:
        # Cluster 0 holds 1 and 3 of its 4: .8113 bits; cluster 1 one class: 0.
        assert entropy([1, 2, 2, 2, 1, 1], [0, 0, 0, 0, 1, 1]) == pytest.approx(4 / 6 * 0.811278, abs=1e-6)

    def test_extremes(self) -> None:
        truth = np.repeat([1, 2, 3, 4], 25)
        assert str(entropy(truth, truth)) == "0.0"  # not "-0.0"
        assert entropy(truth, np.zeros(100, dtype=int)) == pytest.approx(2.0)

    def test_it_is_the_conditional_entropy_of_classes_given_clusters(self) -> None:
        shares = np.bincount(TRUTH)[1:] / len(TRUTH)
        of_classes = -(shares * np.log2(shares)).sum()
        left = of_classes - mutual_info_score(TRUTH, LABELS) / np.log(2)
        assert entropy(TRUTH, LABELS) == pytest.approx(left)


class TestCentres:
    def test_the_order_of_centroids_does_not_matter(self) -> None:
        true = RNG.random((5, 3))
        assert matched_rmse(true[::-1], true) == 0.0
        moved = true[[2, 0, 1, 4, 3]] + 0.01 * np.array([1, -1, 1])
        assert matched_rmse(moved, true) == pytest.approx(0.01)

    def test_every_true_centroid_has_a_match_of_its_own(self) -> None:
        # Both lie on the first true centroid, so one is matched with the second: distance 1 in one of two features.
        assert matched_rmse(np.zeros((2, 2)), np.array([[0.0, 0.0], [1.0, 0.0]])) == pytest.approx(np.sqrt(1 / 4))

    def test_surplus_centroids_do_not_count(self) -> None:
        true = np.array([[0.2, 0.2], [0.8, 0.8]])
        assert matched_rmse(np.vstack([true + 0.02, [[0.5, 0.5]]]), true) == pytest.approx(0.02)

    def test_nicv_is_the_inertia_per_point(self) -> None:
        points = RNG.random((70_000, 2))  # more than one chunk
        fitted = KMeans(3, n_init=1, random_state=0).fit(points)
        assert nicv(points, fitted.cluster_centers_) == pytest.approx(fitted.inertia_ / len(points))
        assert (nearest(points, fitted.cluster_centers_) == fitted.predict(points)).all()
