"""CLIQUE under local differential privacy."""

import numpy as np
import pytest

from benchmarks.quality.reference.clique import MAX_UNITS, Clique, clique, dense_units, rounds
from clustering.metrics import adjusted_rand_index
from sfumato.privacy.accounting import NANO, cost
from tests.benchmarks.quality.reference.blind import blinded
from tests.benchmarks.quality.reference.blobs import blobs


class TestPrivacy:
    @pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
    @pytest.mark.parametrize("n_features", [1, 2, 5])
    def test_a_device_spends_epsilon_and_no_more(self, epsilon, n_features):
        asked = rounds(Clique(epsilon), n_features)
        spent = cost(
            [((spec.participation.lo, spec.participation.hi), spec.mechanism.epsilon_nano()) for spec in asked]
        )
        assert 0.999 * epsilon * NANO <= spent <= epsilon * NANO

    def test_nothing_but_perturbed_symbols_makes_the_model(self, monkeypatch):
        used = blinded(monkeypatch)
        models = [clique(Clique(1.0, 2), blobs(500, 3, seed)[0], seed=1) for seed in (1, 2)]
        assert (models[0].label_map == models[1].label_map).all()
        assert models[0].sizes.tolist() == models[1].sizes.tolist()
        assert used == [spec.mechanism for spec in rounds(Clique(1.0, 2), 2)] * 2

    def test_without_the_blindfold_records_do_make_it(self):
        models = [clique(Clique(1.0, 2), blobs(500, 3, seed)[0], seed=1) for seed in (1, 2)]
        assert models[0].sizes.tolist() != models[1].sizes.tolist()


class TestQuality:
    @pytest.mark.parametrize("clusters", [3, None])
    def test_finds_easy_blobs(self, clusters):
        points, labels = blobs(60_000, 3)
        model = clique(Clique(4.0, clusters), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) > 0.9
        assert model.n_clusters == 3

    def test_finds_blobs_in_three_features(self):
        points, labels = blobs(60_000, 3, n_features=3)
        assert adjusted_rand_index(clique(Clique(4.0, 3), points, seed=1).assign(points), labels) > 0.9

    def test_on_exact_counts_owes_nothing_to_the_seed(self):
        points, labels = blobs(3_000, 3)
        models = [clique(Clique(1.0, 3), points, seed=seed, perturb=False) for seed in (1, 2)]
        assert (models[0].label_map == models[1].label_map).all()
        assert adjusted_rand_index(models[0].assign(points), labels) > 0.95


class TestDenseUnits:
    def test_a_unit_falls_with_its_projection(self):
        shares = np.full((4, 4), 0.01)
        shares[0, 0] = 0.3
        shares[3, 3] = 0.2
        shares[3, :3] = -0.06  # noise: the row sums to .02
        assert dense_units(shares, 1 / 16).nonzero()[0].tolist() == [0]
        assert dense_units(shares, 0.015)[3, 3]

    def test_exact_counts_are_never_pruned(self):
        shares = np.random.default_rng(1).dirichlet(np.ones(64)).reshape(4, 4, 4)
        assert (dense_units(shares, 1 / 64) == (shares > 1 / 64)).all()


class TestInput:
    def test_a_grid_stays_small_enough(self):
        for d in range(1, 9):
            assert rounds(Clique(1.0, intervals=40), d)[0].encoding.n_symbols <= MAX_UNITS

    def test_too_many_features_and_no_points_are_refused(self):
        with pytest.raises(ValueError, match="features"):
            clique(Clique(1.0), np.zeros((5, 9)), seed=1)
        with pytest.raises(ValueError, match="points"):
            clique(Clique(1.0), np.zeros((0, 2)), seed=1)

    def test_more_clusters_than_dense_regions_are_no_error(self):
        points, _ = blobs(2_000, 2)
        assert 1 <= clique(Clique(2.0, 50), points, seed=1).n_clusters <= 50
