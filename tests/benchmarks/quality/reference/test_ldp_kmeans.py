"""LDPKmeans: rounds of broadcast centroids."""

import numpy as np
import pytest

from benchmarks.quality.reference.ldp_kmeans import LdpKMeans, ldp_kmeans, nearest, reports
from clustering.metrics import adjusted_rand_index
from sfumato.privacy.accounting import NANO
from tests.benchmarks.quality.reference.blind import blinded
from tests.benchmarks.quality.reference.blobs import blobs


class TestPrivacy:
    @pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
    @pytest.mark.parametrize("n_features", [1, 2, 23])
    def test_bits_and_assignments_add_up_to_epsilon(self, epsilon, n_features):
        params = LdpKMeans(epsilon, 4)
        sent = reports(params, n_features)
        spent = n_features * sum(bit.mechanism.epsilon_nano() for bit in sent.bits)
        spent += params.rounds * sent.assignment.mechanism.epsilon_nano()
        assert 0.999 * epsilon * NANO <= spent <= epsilon * NANO

    def test_a_device_sends_what_was_accounted_for(self, monkeypatch):
        used = blinded(monkeypatch)
        params = LdpKMeans(1.0, 3)
        ldp_kmeans(params, blobs(300, 3)[0], seed=1)
        sent = reports(params, 2)  # one call a bit, for all features at once; one a round
        assert used == [bit.mechanism for bit in sent.bits] + [sent.assignment.mechanism] * params.rounds

    def test_nothing_but_perturbed_symbols_makes_the_model(self, monkeypatch):
        blinded(monkeypatch)
        models = [ldp_kmeans(LdpKMeans(1.0, 3), blobs(300, 3, seed)[0], seed=1) for seed in (1, 2)]
        assert models[0].centroids.tolist() == models[1].centroids.tolist()
        assert models[0].sizes.tolist() == models[1].sizes.tolist()

    def test_without_the_blindfold_records_do_make_it(self):
        models = [ldp_kmeans(LdpKMeans(1.0, 3), blobs(300, 3, seed)[0], seed=1) for seed in (1, 2)]
        assert models[0].centroids.tolist() != models[1].centroids.tolist()


class TestQuality:
    def test_finds_easy_blobs(self):
        points, labels = blobs(60_000, 2)
        scores = [
            adjusted_rand_index(ldp_kmeans(LdpKMeans(8.0, 2), points, seed=s).assign(points), labels) for s in range(3)
        ]
        assert np.mean(scores) > 0.9

    def test_unperturbed_is_lloyds_k_means(self):
        points, labels = blobs(5_000, 2)
        model = ldp_kmeans(LdpKMeans(1.0, 2, rounds=8, bits=12), points, seed=3, perturb=False)
        means = np.array([points[labels == label].mean(axis=0) for label in (0, 1)])
        assert model.centroids[nearest(means, model.centroids)] == pytest.approx(means, abs=0.001)
        assert sorted(model.sizes) == pytest.approx(sorted(np.bincount(labels) / 5_000))

    def test_a_cluster_nobody_is_in_is_no_error(self):
        model = ldp_kmeans(LdpKMeans(2.0, 8), np.full((20_000, 2), 0.3), seed=1)
        assert np.isfinite(model.centroids).all()
        assert ((model.centroids >= 0) & (model.centroids <= 1)).all()
        assert model.sizes.sum() == pytest.approx(1)


class TestInput:
    def test_what_cannot_be_split_is_refused(self):
        with pytest.raises(ValueError, match="too small"):
            reports(LdpKMeans(0.00001, 2), 23)
        with pytest.raises(ValueError, match="at least 2"):
            reports(LdpKMeans(1.0, 1), 2)
        with pytest.raises(ValueError, match="points"):
            ldp_kmeans(LdpKMeans(1.0, 2), np.zeros((0, 2)), seed=1)
