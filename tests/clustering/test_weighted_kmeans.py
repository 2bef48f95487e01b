"""Weighted k-means: the step against its plain twin, seeds that are draws, and starts that are repeatable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering import weighted_kmeans as module
from clustering.kernels.weighted_lloyd import BLOCK, into_blocks, nearer_of, weigh, weighted_lloyd_step
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import TRIALS, lloyd, seeds, weighted_kmeans
from tests import naive

numbers = st.floats(0, 1, width=32)


def step(points, weights, centres):
    labels, sums, masses = np.empty(len(points), dtype=np.int64), np.empty_like(centres), np.empty(len(centres))
    inertia = weighted_lloyd_step(points, weights, centres, labels, sums, masses)
    return labels, sums, masses, inertia


class TestStep:
    @settings(deadline=None)
    @given(st.data(), st.integers(1, 12), st.integers(1, 5), st.integers(1, 4))
    def test_is_what_its_plain_twin_says(self, data, n, k, d):
        points, centres = (data.draw(arrays(np.float64, (m, d), elements=numbers)) for m in (n, k))
        weights = data.draw(arrays(np.float64, n, elements=numbers))
        labels, sums, masses, inertia = step(points, weights, centres)
        plain = naive.weighted_lloyd_step(points.tolist(), weights.tolist(), centres.tolist())
        assert labels.tolist() == plain[0]
        assert sums.tolist() == plain[1]
        assert masses.tolist() == plain[2]
        assert inertia == plain[3]

    @pytest.mark.parametrize("n", [1, 63, 64, 65, 129, 700])
    @pytest.mark.parametrize("d", [1, 3, 4, 5, 9, 23])
    def test_blocks_and_their_ends_change_no_bit(self, n, d):
        rng = np.random.default_rng([n, d])
        points, weights, centres = rng.normal(size=(n, d)), rng.random(n), rng.normal(size=(6, d))
        centres[4] = centres[2]  # of two that are equally near the first is taken
        labels, sums, masses, inertia = step(points, weights, centres)
        plain = naive.weighted_lloyd_step(points.tolist(), weights.tolist(), centres.tolist())
        assert (labels.tolist(), sums.tolist(), masses.tolist(), inertia) == plain
        assert 4 not in labels


class TestSeeds:
    @pytest.mark.parametrize("n", [3, 128, 300])
    @pytest.mark.parametrize("d", [*range(1, 26), 31, 32, 40, 64])
    def test_are_as_near_as_numpy_says_to_the_last_bit(self, n, d):
        rng = np.random.default_rng([n, d])
        points, before = rng.normal(size=(n, d)), 3 * d * rng.random(n)
        after, tried = np.empty((3, n)), np.array([0, n - 1, 1])
        blocks = np.full((-(-n // BLOCK), d, BLOCK), np.nan)  # what lies behind the last point counts for nothing
        into_blocks(points, blocks)
        nearer_of(blocks, points[tried], before, after)
        for place, found in zip(tried, after, strict=True):
            assert found.tolist() == naive.nearer_of(points, place, before).tolist()

    @pytest.mark.parametrize("n", [1, 3, 4, 5, 130])
    def test_what_each_leaves_is_weighed(self, n):
        rng = np.random.default_rng(n)
        weights, distances, sums = rng.random(n), rng.random((3, n)), np.empty(3)
        weigh(weights, distances, sums)
        assert sums == pytest.approx([float((weights * row).sum()) for row in distances], rel=1e-14)

    @settings(deadline=None)
    @given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 12), st.integers(1, 9))
    def test_are_those_of_the_plain_twin(self, seed, n, d, k):
        rng = np.random.default_rng(seed)
        points, weights = rng.integers(0, 4, (n, d)) / 4, rng.integers(0, 3, n).astype(float)
        weights[n // 2] = 1.0
        found = seeds(points, weights, k, PublicWords(seed))
        assert found.tolist() == naive.seeds(points, weights, k, PublicWords(seed), TRIALS).tolist()


class TestLloyd:
    @pytest.mark.parametrize("max_steps", [1, 3, 50])
    def test_what_it_tells_is_of_the_centres_it_returns(self, monkeypatch, max_steps):
        """Whether it came to rest or ran out of steps."""
        monkeypatch.setattr(module, "MAX_STEPS", max_steps)
        rng = np.random.default_rng(8)
        points, weights = rng.random((300, 3)), rng.random(300)
        found = lloyd(points, weights, points[:7].copy())
        labels, sums, masses, inertia = step(points, weights, found.centres)
        assert found.labels.tolist() == labels.tolist()
        assert (found.masses.tolist(), found.inertia) == (masses.tolist(), inertia)
        has_come_to_rest = np.array_equal(sums / masses[:, None], found.centres)
        assert has_come_to_rest == (max_steps == 50)

    @pytest.mark.parametrize("d", [2, 8, 17])
    def test_constant_features_and_more_centres_than_points_leave_centres_where_they_were(self, d):
        points = np.tile(np.linspace(0.25, 0.75, d), (5, 1))
        centres = np.concatenate([points[:1], np.ones((8, d))])
        found = lloyd(points, np.ones(5), centres)
        assert found.centres.tolist() == centres.tolist()
        assert found.masses.tolist() == [5.0] + [0.0] * 8
        assert found.inertia == 0

    def test_points_that_weigh_nothing_at_all_move_no_centre(self):
        points = np.random.default_rng(9).random((200, 9))
        found = lloyd(points, np.zeros(200), points[:3].copy())
        assert found.centres.tolist() == points[:3].tolist()
        assert (found.masses == 0).all()
        assert found.inertia == 0


class TestWeightedKmeans:
    def test_finds_the_best_of_all_partitions_of_a_few_points(self):
        rng = np.random.default_rng(1)
        points, weights = np.repeat(rng.random((3, 2)), [2, 3, 3], axis=0) + 0.1 * rng.random((8, 2)), rng.random(8)
        found = weighted_kmeans(points, weights, 3, PublicWords(0))
        best = np.inf
        for code in range(3**8):
            labels = code // 3 ** np.arange(8) % 3
            inertia = 0.0
            for c in range(3):
                own = labels == c
                if own.any():
                    centre = weights[own] @ points[own] / weights[own].sum()
                    inertia += weights[own] @ ((points[own] - centre) ** 2).sum(axis=1)
            best = min(best, inertia)
        assert found.inertia == pytest.approx(best, rel=1e-9)
        assert found.restarts == module.RESTARTS

    def test_a_weight_counts_as_so_many_points(self):
        rng = np.random.default_rng(2)
        points, weights = rng.random((40, 2)), rng.integers(1, 5, 40)
        weighed = weighted_kmeans(points, weights.astype(float), 4, PublicWords(3))
        repeated = weighted_kmeans(np.repeat(points, weights, axis=0), np.ones(weights.sum()), 4, PublicWords(3))
        assert weighed.inertia == pytest.approx(repeated.inertia, rel=1e-6)

    def test_points_without_weight_change_nothing_and_are_never_seeds(self):
        points = np.array([[0.1], [0.2], [0.8], [0.9], [0.5], [0.0], [1.0]])
        weights = np.array([1, 1, 1, 1, 0, 0, 0.0])
        found = weighted_kmeans(points, weights, 2, PublicWords(0))
        assert np.sort(found.centres[:, 0]) == pytest.approx([0.15, 0.85])
        assert found.masses.tolist() == [2, 2]

    def test_fewer_distinct_points_than_clusters_make_fewer_centres(self):
        found = weighted_kmeans(np.full((5, 3), 0.25), np.ones(5), 4, PublicWords(0))
        assert found.centres.tolist() == [[0.25] * 3]
        assert found.inertia == 0

    def test_equal_seeds_give_equal_centres_and_others_other_starts(self):
        rng = np.random.default_rng(4)
        points, weights = rng.random((400, 2)), rng.random(400)
        runs = [weighted_kmeans(points, weights, 20, PublicWords(seed)).centres for seed in (1, 1, 2)]
        assert (runs[0] == runs[1]).all()
        assert not np.array_equal(runs[0], runs[2])

    def test_much_work_makes_for_fewer_starts(self, monkeypatch):
        monkeypatch.setattr(module, "WORK", 3 * 100 * 2)
        points = np.random.default_rng(5).random((100, 2))
        assert weighted_kmeans(points, np.ones(100), 2, PublicWords(0)).restarts == 3
        assert weighted_kmeans(points, np.ones(100), 50, PublicWords(0)).restarts == 1
