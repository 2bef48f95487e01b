"""Test mixtures under known noise: tables against sums, and recovered parameters."""

import numpy as np
import pytest

from clustering.centroids.noisy_mixture_em import N_PLACES, NoisyMixture, _tables, fit_mixture
from clustering.kernels.mixtures import sum_responsibilities
from clustering.simulate import SeededEntropy
from sfumato.privacy.accounting import NANO
from sfumato.specs import DiscreteLaplaceMechanism
from tests import naive


def sent(points, epsilon, seed=0, steps=200):
    mechanism = DiscreteLaplaceMechanism.design(points.shape[1], steps, round(epsilon * NANO))
    values = mechanism.perturb_many(np.rint(points * steps).astype(np.int64), SeededEntropy(seed))
    return mechanism.vectors_of(values), mechanism


def two_blobs(n, spread=0.06, seed=1):
    centres = np.array([[0.3, 0.3], [0.7, 0.6]])
    points = centres[np.arange(n) % 2] + np.random.default_rng(seed).normal(0, spread, (n, 2))
    return np.clip(points, 0, 1), centres


class TestTheEStep:
    def test_equals_sums_over_true_coordinates(self):
        steps, noise = 20, 0.3
        coordinates = np.linspace(0, 1, N_PLACES)
        through = np.exp(-np.abs(np.linspace(0, 1, steps + 1)[:, None] - coordinates) / noise)
        mixture = NoisyMixture(np.array([[0.2, 0.9], [0.6, 0.1], [0.5, 0.5]]), np.array([0.5, 0.2, 0.3]), 0.1, 0.0)
        places = np.random.default_rng(0).integers(0, steps + 1, (25, 2)).astype(np.int32)
        masses, firsts, seconds = np.empty(3), np.empty((3, 2)), np.empty((3, 2))
        tables = _tables(mixture, through, coordinates)
        likelihood = sum_responsibilities(places, *tables, np.log(mixture.shares), masses, firsts, seconds)
        expected, memberships = naive.noisy_likelihood(
            places, mixture.centres, mixture.shares, mixture.spread, noise, steps, coordinates
        )
        assert likelihood == pytest.approx(expected, rel=1e-12)
        assert masses == pytest.approx(np.sum(memberships, axis=0))

    def test_report_beyond_the_box_equals_one_at_its_end(self):
        mechanism = DiscreteLaplaceMechanism(1, 10, 30, 1, 400)
        centres = np.array([[0.1], [0.8]])
        inside, beyond = np.array([[0], [10], [10]], np.int32), np.array([[-200], [10], [399]], np.int32)
        fits = [
            fit_mixture(sample, mechanism, centres, iterations=5, move_centres=False) for sample in (inside, beyond)
        ]
        assert fits[0].log_likelihood == fits[1].log_likelihood


class TestTheFit:
    def test_likelihood_never_decreases(self):
        points, centres = two_blobs(4000)
        sample, mechanism = sent(points, 8)
        scores = [
            fit_mixture(sample, mechanism, centres + 0.1, iterations=n, move_centres=True).log_likelihood
            for n in (1, 2, 5, 20)
        ]
        assert scores == sorted(scores)

    def test_recovers_clear_clusters_at_high_epsilon(self):
        points, centres = two_blobs(20_000)
        sample, mechanism = sent(points, 16)
        found = fit_mixture(sample, mechanism, np.array([[0.4, 0.4], [0.6, 0.5]]), iterations=200, move_centres=True)
        assert found.centres == pytest.approx(centres, abs=0.01)
        assert found.shares == pytest.approx([0.5, 0.5], abs=0.02)
        assert found.spread == pytest.approx(0.06, abs=0.01)

    def test_fixed_centres_do_not_move(self):
        points, centres = two_blobs(500)
        sample, mechanism = sent(points, 4)
        assert (
            fit_mixture(sample, mechanism, centres, iterations=9, move_centres=False).centres.tolist()
            == centres.tolist()
        )

    def test_accepts_zero_noise(self):
        points, centres = two_blobs(500)
        mechanism = DiscreteLaplaceMechanism(2, 100, 0, 1, 0)
        sample = np.rint(points * 100).astype(np.int32)
        found = fit_mixture(sample, mechanism, centres, iterations=20, move_centres=False)
        assert np.isfinite(found.log_likelihood)
        assert found.spread == pytest.approx(0.06, abs=0.01)
