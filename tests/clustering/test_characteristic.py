"""The characteristic function read out of a sketch: its mean, its noise, and which harmonics are read."""

import numpy as np
import pytest

from clustering.characteristic import MOST_FREQUENCIES, characteristic_of
from clustering.phase_model import sketch_of
from clustering.phase_waves import waves_for
from clustering.plan import Tally
from clustering.simulate import SeededEntropy, collect
from sfumato.mechanisms import design
from sfumato.specs import Feature, PhaseEncoding, RoundSpec


def sketched(points, epsilon, n_waves=128, seed=1, lengths=None):
    n_features = points.shape[1]
    nano = round(epsilon * 1e9)
    encoding = waves_for(n_features, None, n_waves, nano, seed, lengths)
    features = tuple(Feature(f"x{i}", 0, 1) for i in range(n_features))
    spec = RoundSpec(features, encoding, design("window", encoding.phases, nano))
    entropy = SeededEntropy(seed)
    return sketch_of(encoding, spec.mechanism, collect(spec, points, entropy, entropy.words(len(points))).tally)


class TestValues:
    @pytest.mark.parametrize("epsilon", [1.0, 4.0, 9.0])
    def test_are_those_of_the_people_up_to_the_noise_their_weights_say(self, epsilon):
        points = np.random.default_rng(1).beta(2, 3, (100_000, 3))
        seen = characteristic_of(sketched(points, epsilon, lengths=(1.0, 12.0)))
        part = points[:20_000]
        true = np.array([np.exp(1j * part @ omega).mean() for omega in seen.omegas])
        noise = np.abs(seen.values - true) ** 2 * seen.weights
        # at most one, less where the people's own phases agree; 1 / 5 of it is the part's being a sample
        assert 0.7 < noise.mean() < 1.35
        assert np.median(noise) == pytest.approx(np.log(2), rel=0.25)  # as of a normal number in the plane

    def test_harmonics_stand_at_multiples_of_their_waves(self):
        sketch = sketched(np.random.default_rng(2).random((5000, 2)), 4.0)
        seen = characteristic_of(sketch)
        n_read = len(seen.values) // len(sketch.omegas)
        assert n_read > 2
        assert seen.omegas == pytest.approx(np.concatenate([q * sketch.omegas for q in range(1, n_read + 1)]))


class TestHarmonics:
    @pytest.mark.parametrize(("epsilon", "n_read"), [(0.5, 1), (1.0, 2), (4.0, 5)])
    def test_are_read_while_they_are_clear(self, epsilon, n_read):
        sketch = sketched(np.random.default_rng(2).random((5000, 2)), epsilon)
        strengths = np.abs(sketch.harmonics) ** 2
        assert len(characteristic_of(sketch).values) == n_read * len(sketch.omegas)
        assert strengths[n_read - 1] >= 0.1 * strengths[0] > strengths[n_read]

    @pytest.mark.parametrize("n_phases", [4, 6, 8])
    def test_half_the_phases_is_none(self, n_phases):
        encoding = PhaseEncoding(((1024, 0), (0, 512)), n_phases)
        counts = np.arange(1, 2 * n_phases + 1).reshape(2, n_phases)
        given = sketch_of(encoding, design("window", n_phases, 32 * 10**9), Tally(counts, counts.sum(axis=1)))
        assert len(characteristic_of(given).values) // 2 == n_phases // 2 - 1

    def test_are_few_where_there_are_many_waves(self):
        points = np.random.default_rng(2).random((5000, 2))
        sketch = sketched(points, 32.0, n_waves=1000)
        assert len(characteristic_of(sketch).values) == 4 * len(sketch.omegas)
        assert 4 * len(sketch.omegas) <= MOST_FREQUENCIES < 5 * len(sketch.omegas)

    def test_of_no_report_are_none(self):
        encoding = PhaseEncoding(((1024, 0), (0, 512)), 8)
        given = sketch_of(
            encoding, design("window", 8, 10**9), Tally(np.zeros((2, 8), dtype=np.int64), np.zeros(2, dtype=np.int64))
        )
        seen = characteristic_of(given)
        assert seen.omegas.shape == (0, 2)
        assert seen.values.shape == seen.weights.shape == (0,)
