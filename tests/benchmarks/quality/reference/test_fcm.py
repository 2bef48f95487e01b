"""The comparators of Zhang et al. 2025: right on what can be found, and noisy by the mechanism's own noise."""

import numpy as np
import pytest

from benchmarks.quality.reference import fcm
from benchmarks.quality.reference.ldp_kmeans import nearest
from clustering.metrics import adjusted_rand_index
from clustering.simulate import SeededEntropy

CENTRES = np.array([[0.2, 0.3], [0.75, 0.2], [0.5, 0.8]])


@pytest.fixture(scope="module")
def blobs():
    generator = np.random.default_rng(4)
    labels = generator.integers(0, 3, 6000)
    return np.clip(CENTRES[labels] + generator.normal(0, 0.05, (6000, 2)), 0, 1), labels


def off(found):
    return max(np.abs(found - centre).max(axis=1).min() for centre in CENTRES)


def agreement(found, blobs):
    return adjusted_rand_index(blobs[1], nearest(blobs[0], found))


class TestOnExactRecords:
    @pytest.mark.parametrize("method", [fcm.fcm, fcm.k_means])
    def test_clear_clusters_are_found(self, method, blobs):
        found = method(blobs[0], 3, 1)
        assert off(found) < 0.02
        assert agreement(found, blobs) > 0.97
        assert method(blobs[0], 3, 1).tolist() == found.tolist()

    def test_k_means_is_a_fixed_point_no_worse_than_the_truth(self, blobs):
        found = fcm.k_means(blobs[0], 3, 1)
        labels = nearest(blobs[0], found)
        means = np.stack([blobs[0][labels == k].mean(axis=0) for k in range(3)])
        assert found == pytest.approx(means, abs=2 * fcm.TOLERANCE)
        assert fcm._inertia(blobs[0], found) <= fcm._inertia(blobs[0], CENTRES)

    def test_plus_plus_starts_apart(self, blobs):
        starts = [fcm._plus_plus(blobs[0], 3, SeededEntropy(seed)) for seed in range(40)]
        apart = [len(set(nearest(start, CENTRES).tolist())) == 3 for start in starts]
        uniform = [len(set(nearest(blobs[0][seed * 3 : seed * 3 + 3], CENTRES).tolist())) == 3 for seed in range(40)]
        assert sum(apart) > sum(uniform) + 10


class TestOnNoisyReports:
    @pytest.mark.parametrize("method", [fcm.priv_km, fcm.priv_pro])
    def test_much_epsilon_finds_what_is_there(self, method, blobs):
        assert agreement(method(blobs[0], 3, 24, 2), blobs) > 0.9

    def test_noise_on_distances_alone_hides_the_clusters(self, blobs, monkeypatch):
        """Even at epsilon 32: C distances a round, each of the whole range."""
        noisy = fcm.priv_dis(blobs[0], 3, 32, 2, rounds=10)
        assert ((noisy >= 0) & (noisy <= 1)).all()
        assert off(noisy) > 0.2
        monkeypatch.setattr(fcm, "_laplace", lambda shape, scale, entropy: np.zeros(shape))
        assert off(fcm.priv_dis(blobs[0], 3, 32, 2, rounds=10)) < 0.1

    @pytest.mark.parametrize("method", [fcm.priv_km, fcm.priv_pro])
    def test_less_epsilon_is_worse_and_centres_stay_in_the_box(self, method, blobs):
        much, little = (np.mean([off(method(blobs[0], 3, e, s)) for s in range(3)]) for e in (32, 0.5))
        assert little > 1.3 * much
        found = method(blobs[0], 3, 0.5, 1)
        assert ((found >= 0) & (found <= 1)).all()

    def test_knowing_the_noise_is_worth_much(self, blobs):
        found = fcm.noise_em(blobs[0], 3, 8, 2)
        assert off(found.centres) < 0.05
        assert off(found.centres) < off(fcm.priv_km(blobs[0], 3, 8, 2)) / 2

    def test_vectors_cost_what_they_should(self, blobs):
        sent = fcm.send_vectors(blobs[0], 1.5, SeededEntropy(0))
        assert sent.mechanism.epsilon_nano() == 1_500_000_000
        noise = sent.points - blobs[0]
        assert np.abs(noise).mean() == pytest.approx(2 / 1.5, rel=0.05)

    def test_distances_have_the_noise_they_say(self):
        drawn = fcm._laplace((200_000,), 3.0, SeededEntropy(1))
        assert drawn.mean() == pytest.approx(0, abs=0.05)
        assert np.abs(drawn).mean() == pytest.approx(3, rel=0.02)
