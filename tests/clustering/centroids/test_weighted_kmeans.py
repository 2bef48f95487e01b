"""Test weighted k-means: the step against its plain twin, initial centres and repeatability."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.centroids import weighted_kmeans as module
from clustering.centroids.weighted_kmeans import TRIALS, choose_seeds, lloyd, swap_centres, weighted_kmeans
from clustering.kernels.kmeans import fill_blocks, find_nearer, measure_inertia, sum_weighted, weighted_lloyd_step
from clustering.kernels.nearest import BLOCK
from clustering.random import PublicWords
from tests import naive

numbers = st.floats(0, 1, width=32)


def step(points, weights, centres):
    labels, sums, masses = np.empty(len(points), dtype=np.int64), np.empty_like(centres), np.empty(len(centres))
    weighted_lloyd_step(points, weights, centres, labels, sums, masses)
    return labels, sums, masses, measure_inertia(points, weights, centres, labels)


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
    def test_blocks_do_not_change_bits(self, n, d):
        rng = np.random.default_rng([n, d])
        points, weights, centres = rng.normal(size=(n, d)), rng.random(n), rng.normal(size=(6, d))
        centres[4] = centres[2]  # the first of two equally near centres
        labels, sums, masses, inertia = step(points, weights, centres)
        plain = naive.weighted_lloyd_step(points.tolist(), weights.tolist(), centres.tolist())
        assert (labels.tolist(), sums.tolist(), masses.tolist(), inertia) == plain
        assert 4 not in labels


class TestSeeds:
    @pytest.mark.parametrize("n", [3, 128, 300])
    @pytest.mark.parametrize("d", [*range(1, 10), 16, 17, 25, 31, 32, 64])
    def test_distances_equal_numpy_bit_for_bit(self, n, d):
        rng = np.random.default_rng([n, d])
        points, before = rng.normal(size=(n, d)), 3 * d * rng.random(n)
        after, tried = np.empty((3, n)), np.array([0, n - 1, 1])
        blocks = np.full((-(-n // BLOCK), d, BLOCK), np.nan)  # entries after the last point are ignored
        fill_blocks(points, blocks)
        find_nearer(blocks, points[tried], before, after)
        for place, found in zip(tried, after, strict=True):
            assert found.tolist() == naive.nearest_distances(points, place, before).tolist()

    @pytest.mark.parametrize("n", [1, 3, 4, 5, 130])
    def test_sums_weighted_distances(self, n):
        rng = np.random.default_rng(n)
        weights, distances, sums = rng.random(n), rng.random((3, n)), np.empty(3)
        sum_weighted(weights, distances, sums)
        assert sums == pytest.approx([float((weights * row).sum()) for row in distances], rel=1e-14)

    @settings(deadline=None)
    @given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 12), st.integers(1, 9))
    def test_equal_those_of_the_plain_twin(self, seed, n, d, k):
        rng = np.random.default_rng(seed)
        points, weights = rng.integers(0, 4, (n, d)) / 4, rng.integers(0, 3, n).astype(float)
        weights[n // 2] = 1.0
        found = choose_seeds(points, weights, k, PublicWords(seed))
        assert found.tolist() == naive.choose_seeds(points, weights, k, PublicWords(seed), TRIALS).tolist()


class TestLloyd:
    @pytest.mark.parametrize("max_steps", [1, 3, 50])
    def test_labels_and_inertia_match_the_final_centres(self, monkeypatch, max_steps):
        """Both after convergence and after the last step."""
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
    def test_centres_without_points_do_not_move(self, d):
        points = np.tile(np.linspace(0.25, 0.75, d), (5, 1))
        centres = np.concatenate([points[:1], np.ones((8, d))])
        found = lloyd(points, np.ones(5), centres)
        assert found.centres.tolist() == centres.tolist()
        assert found.masses.tolist() == [5.0] + [0.0] * 8
        assert found.inertia == 0

    def test_zero_weights_move_no_centre(self):
        points = np.random.default_rng(9).random((200, 9))
        found = lloyd(points, np.zeros(200), points[:3].copy())
        assert found.centres.tolist() == points[:3].tolist()
        assert not found.masses.any()


class TestWeightedKmeans:
    def test_finds_the_best_partition(self):
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

    def test_weight_counts_as_repeated_points(self):
        rng = np.random.default_rng(2)
        points, weights = rng.random((40, 2)), rng.integers(1, 5, 40)
        weighed = weighted_kmeans(points, weights.astype(float), 4, PublicWords(3))
        repeated = weighted_kmeans(np.repeat(points, weights, axis=0), np.ones(weights.sum()), 4, PublicWords(3))
        assert weighed.inertia == pytest.approx(repeated.inertia, rel=1e-6)

    def test_points_without_weight_are_ignored(self):
        points = np.array([[0.1], [0.2], [0.8], [0.9], [0.5], [0.0], [1.0]])
        weights = np.array([1, 1, 1, 1, 0, 0, 0.0])
        found = weighted_kmeans(points, weights, 2, PublicWords(0))
        assert np.sort(found.centres[:, 0]) == pytest.approx([0.15, 0.85])
        assert found.masses.tolist() == [2, 2]

    def test_fewer_distinct_points_give_fewer_centres(self):
        found = weighted_kmeans(np.full((5, 3), 0.25), np.ones(5), 4, PublicWords(0))
        assert found.centres.tolist() == [[0.25] * 3]
        assert found.inertia == 0

    def test_seed_determines_the_centres(self):
        rng = np.random.default_rng(4)
        points, weights = rng.random((400, 2)), rng.random(400)
        runs = [weighted_kmeans(points, weights, 20, PublicWords(seed)).centres for seed in (1, 1, 2)]
        assert (runs[0] == runs[1]).all()
        assert not np.array_equal(runs[0], runs[2])

    def test_swaps_repair_a_local_optimum(self):
        rng = np.random.default_rng(6)
        places = np.stack(np.divmod(np.arange(25), 5), axis=1) / 5.0
        points, weights = np.repeat(places, 20, axis=0) + rng.normal(0, 0.01, (500, 2)), np.ones(500)
        stuck = lloyd(points, weights, points[:25].copy())  # all starts in two clusters
        found = swap_centres(points, weights, stuck, PublicWords(0), 60)
        best = lloyd(points, weights, places).inertia
        assert stuck.inertia > 20 * best
        assert found.inertia == pytest.approx(best, rel=1e-6)
        assert weighted_kmeans(points, weights, 25, PublicWords(0), 1, 60).inertia == found.inertia

    @pytest.mark.parametrize("k", [2, 3])
    def test_swaps_stop_without_a_place_for_a_centre(self, k):
        points = np.repeat(np.eye(3), 4, axis=0)
        fit = weighted_kmeans(points, np.ones(12), k, PublicWords(0), 1, 5)
        assert (fit.inertia == 0) == (k == 3)

    def test_large_problems_have_fewer_starts(self, monkeypatch):
        monkeypatch.setattr(module, "WORK", 3 * 100 * 2)
        points = np.random.default_rng(5).random((100, 2))
        assert weighted_kmeans(points, np.ones(100), 2, PublicWords(0)).restarts == 3
        assert weighted_kmeans(points, np.ones(100), 50, PublicWords(0)).restarts == 1
