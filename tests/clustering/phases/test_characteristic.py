"""Test the characteristic function of a sketch: its mean, its noise and its harmonics."""

import numpy as np
import pytest

from clustering.phases.gaussian_components import MOST_FREQUENCIES, characteristic_of
from clustering.phases.mixture_fit import sketch_of
from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from sfumato.specs import PhaseEncoding
from tests.clustering.phases.sketches import sketch_points


class TestValues:
    @pytest.mark.parametrize("epsilon", [1.0, 9.0])
    def test_equal_the_truth_within_the_noise_of_their_weights(self, epsilon):
        points = np.random.default_rng(1).beta(2, 3, (50_000, 3))
        seen = characteristic_of(sketch_points(points, epsilon, n_waves=128, lengths=(1.0, 12.0)))
        part = points[:10_000]
        true = np.array([np.exp(1j * part @ omega).mean() for omega in seen.omegas])
        noise = np.abs(seen.values - true) ** 2 * seen.weights
        # at most one, or less where the phases agree; the sample of 1 / 5 adds variance
        assert 0.7 < noise.mean() < 1.35
        assert np.median(noise) == pytest.approx(np.log(2), rel=0.25)  # median of a complex normal variable

    def test_frequencies_are_multiples_of_the_waves(self):
        sketch = sketch_points(np.random.default_rng(2).random((5000, 2)), n_waves=128)
        seen = characteristic_of(sketch)
        n_read = len(seen.values) // len(sketch.omegas)
        assert n_read > 2
        assert seen.omegas == pytest.approx(np.concatenate([q * sketch.omegas for q in range(1, n_read + 1)]))


class TestHarmonics:
    @pytest.mark.parametrize(("epsilon", "n_read"), [(0.5, 1), (1.0, 2), (4.0, 5)])
    def test_clear_ones_are_used(self, epsilon, n_read):
        sketch = sketch_points(np.random.default_rng(2).random((5000, 2)), epsilon, n_waves=128)
        strengths = np.abs(sketch.harmonics) ** 2
        assert len(characteristic_of(sketch).values) == n_read * len(sketch.omegas)
        assert strengths[n_read - 1] >= 0.1 * strengths[0] > strengths[n_read]

    @pytest.mark.parametrize("n_phases", [4, 6])
    def test_the_harmonic_of_half_the_phases_is_unused(self, n_phases):
        encoding = PhaseEncoding(((1024, 0), (0, 512)), n_phases)
        counts = np.arange(1, 2 * n_phases + 1).reshape(2, n_phases)
        given = sketch_of(encoding, design("window", n_phases, 32 * 10**9), Tally(counts, counts.sum(axis=1)))
        assert len(characteristic_of(given).values) // 2 == n_phases // 2 - 1

    def test_many_waves_have_few_harmonics(self):
        points = np.random.default_rng(2).random((5000, 2))
        sketch = sketch_points(points, 32.0, n_waves=1000)
        assert len(characteristic_of(sketch).values) == 4 * len(sketch.omegas)
        assert 4 * len(sketch.omegas) <= MOST_FREQUENCIES < 5 * len(sketch.omegas)

    def test_no_reports_give_no_values(self):
        encoding = PhaseEncoding(((1024, 0), (0, 512)), 8)
        given = sketch_of(
            encoding, design("window", 8, 10**9), Tally(np.zeros((2, 8), dtype=np.int64), np.zeros(2, dtype=np.int64))
        )
        seen = characteristic_of(given)
        assert seen.omegas.shape == (0, 2)
        assert seen.values.shape == seen.weights.shape == (0,)
