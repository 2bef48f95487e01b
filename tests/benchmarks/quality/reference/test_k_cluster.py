"""kCluster: perturbed bit vectors."""

import numpy as np
import pytest

from benchmarks.quality.reference.k_cluster import LATTICE, KCluster, _diameter, bit_vectors, k_cluster
from clustering.metrics import adjusted_rand_index
from clustering.simulate import SeededEntropy
from sfumato.privacy.accounting import NANO
from tests.benchmarks.quality.reference.blind import blinded
from tests.benchmarks.quality.reference.blobs import blobs


class TestPrivacy:
    @pytest.mark.parametrize(
        ("params", "n_features"),
        [(KCluster(1.0, 2), 2), (KCluster(4.0, 2, anchors=16, window=0.1), 1), (KCluster(0.5, 2, 3, 0.6), 4)],
    )
    def test_the_bits_in_which_any_two_values_differ_cost_at_most_epsilon(self, params, n_features):
        vectors = bit_vectors(params, n_features, SeededEntropy(7))
        rng = np.random.default_rng(1)
        points = np.concatenate([rng.random((2_000, n_features)), rng.integers(0, 2, (50, n_features))])
        bits = vectors.of(points).astype(np.int64)
        differing = bits.sum(axis=1)[:, None] + bits.sum(axis=1)[None, :] - 2 * bits @ bits.T
        most = sum(_diameter(of_feature) for of_feature in vectors.table)
        assert differing.max() <= most
        spent = most * vectors.bit.mechanism.epsilon_nano()
        assert 0.99 * params.epsilon * NANO <= spent <= params.epsilon * NANO

    def test_the_widest_pair_is_found_in_one_feature(self):
        vectors = bit_vectors(KCluster(1.0, 2), 1, SeededEntropy(3))
        every = vectors.of(((np.arange(LATTICE) + 0.5) / LATTICE)[:, None])
        widest = max(int((bits ^ every).sum(axis=1).max()) for bits in every)
        assert sum(_diameter(of_feature) for of_feature in vectors.table) == widest

    def test_nothing_but_perturbed_bits_makes_the_centres(self, monkeypatch):
        used = blinded(monkeypatch)
        models = [k_cluster(KCluster(1.0, 3), blobs(300, 3, seed)[0], seed=1) for seed in (1, 2)]
        assert models[0].centres.tolist() == models[1].centres.tolist()
        assert set(used) == {models[0].vectors.bit.mechanism}

    def test_without_the_blindfold_records_do_make_them(self):
        models = [k_cluster(KCluster(1.0, 3), blobs(300, 3, seed)[0], seed=1) for seed in (1, 2)]
        assert models[0].centres.tolist() != models[1].centres.tolist()


class TestBitVectors:
    def test_near_values_share_bits_and_far_ones_do_not(self):
        vectors = bit_vectors(KCluster(1.0, 2, anchors=64, window=0.15), 1, SeededEntropy(2))
        bits = vectors.of(np.array([[0.5], [0.52], [0.6], [0.95]]))
        distances = (bits ^ bits[0]).sum(axis=1)
        assert distances[0] == 0
        assert 0 < distances[1] < distances[2] < distances[3]

    def test_anchors_owe_nothing_to_the_records(self):
        models = [k_cluster(KCluster(1.0, 2), blobs(100, 2, seed)[0], seed=5) for seed in (1, 2)]
        assert (models[0].vectors.table == models[1].vectors.table).all()


class TestQuality:
    def test_finds_easy_blobs(self):
        points, labels = blobs(30_000, 2)
        scores = [
            adjusted_rand_index(k_cluster(KCluster(16.0, 2), points, seed=s).assign(points), labels) for s in range(4)
        ]
        assert np.mean(scores) > 0.8

    def test_unperturbed_finds_more(self):
        points, labels = blobs(5_000, 3)
        models = [k_cluster(KCluster(1.0, 3), points, seed=s, perturb=False) for s in range(4)]
        assert np.mean([adjusted_rand_index(model.assign(points), labels) for model in models]) > 0.8
        assert models[0].n_clusters == 3


class TestInput:
    def test_what_cannot_be_split_is_refused(self):
        with pytest.raises(ValueError, match="too small"):
            k_cluster(KCluster(0.000002, 2), np.zeros((5, 2)), seed=1)
        with pytest.raises(ValueError, match="points"):
            k_cluster(KCluster(1.0, 2), np.zeros((0, 2)), seed=1)

    def test_equal_points_and_one_cluster_are_no_error(self):
        model = k_cluster(KCluster(1.0, 1), np.full((50, 2), 0.5), seed=1)
        assert model.assign(np.array([[0.5, 0.5]])).tolist() == [0]
        assert np.isfinite(k_cluster(KCluster(1.0, 4), np.full((3, 2), 0.5), seed=1).centres).all()
