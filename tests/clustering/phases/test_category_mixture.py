"""Test the characteristic function of clusters with category shares, its derivatives and its fit."""

import numpy as np
import pytest

from clustering.phases.category_mixture import (
    category_waves,
    climb,
    cluster_values,
    normal_equations,
    objective,
    residual,
    slopes,
    standard_errors,
)
from clustering.phases.gaussian_components import clear_harmonics
from clustering.phases.waves import limits_for
from tests import naive_phase
from tests.clustering.phases.categories import mixture_of, waves_of
from tests.clustering.phases.sketches import sketch_points

TWO = mixture_of([[0.3, 0.4, 0.6], [0.7, 0.6, 0.3]], [0.6, 0.4], [[0, 1], [2, 0]], (3, 2))
SAME_PLACE = mixture_of([[0.4, 0.5, 0.6]] * 2, [0.6, 0.4], [[0, 1, 2], [2, 0, 1]], (3, 3, 3))


class TestValues:
    def test_are_those_of_the_definition(self):
        waves = waves_of(TWO, n_waves=20, noise=0)
        rows = zip(waves.omegas, waves.characters, strict=True)
        expected = [naive_phase.category_value(omega, row, (3, 2), TWO) for omega, row in rows]
        assert cluster_values(waves, TWO) @ TWO.places.shares == pytest.approx(np.array(expected), abs=1e-12)
        assert np.abs(residual(waves, TWO)).max() < 1e-12

    def test_slopes_are_central_differences(self):
        waves, by = waves_of(TWO, n_waves=20), 1e-6
        found = slopes(waves, TWO).reshape(20, 2, -1)
        assert found.shape[2] == 3 + 2 + 5
        for cluster in range(2):
            for parameter in range(found.shape[2]):
                sides = [
                    residual(waves, naive_phase.moved_category_mixture(TWO, cluster, parameter, sign * by))
                    for sign in (-1, 1)
                ]
                assert found[:, cluster, parameter] == pytest.approx((sides[0] - sides[1]) / (2 * by), abs=1e-7)

    def test_the_gradient_is_that_of_the_objective(self):
        waves, by = waves_of(TWO, n_waves=40), 1e-5
        gradient, matrix = normal_equations(waves, TWO)
        rows = gradient.reshape(2, -1)
        for cluster in range(2):
            for parameter in range(rows.shape[1]):
                sides = [
                    objective(waves, naive_phase.moved_category_mixture(TWO, cluster, parameter, sign * by))
                    for sign in (-1, 1)
                ]
                assert rows[cluster, parameter] == pytest.approx((sides[1] - sides[0]) / (2 * by), rel=1e-4, abs=1e-3)
        assert np.linalg.eigvalsh(matrix).min() > 0

    def test_a_harmonic_multiplies_frequency_and_characters(self):
        points = np.random.default_rng(0).random((500, 2))
        sketch = sketch_points(points, epsilon=4.0, n_waves=32)
        characters = np.arange(len(sketch.omegas))[:, None] % 5
        waves = category_waves(sketch, characters, (5,))
        read = clear_harmonics(sketch)
        assert len(read) > 1
        for place, q in enumerate(read):
            part = slice(place * len(characters), (place + 1) * len(characters))
            assert (waves.omegas[part] == q * sketch.omegas).all()
            assert (waves.characters[part] == q * characters % 5).all()
        assert (waves.firsts.characters == characters).all()


class TestFit:
    def test_finds_the_parameters_of_clear_clusters(self):
        waves = waves_of(TWO)
        start = TWO._replace(
            places=TWO.places._replace(centres=TWO.places.centres + 0.04, widths=np.full(2, 0.12)),
            shares=tuple(np.full(each.shape, 1 / each.shape[1]) for each in TWO.shares),
        )
        found = climb(waves, start, limits_for(3))
        assert found.converged
        assert found.nll <= objective(waves, TWO)
        assert found.mixture.places.centres == pytest.approx(TWO.places.centres, abs=0.02)
        assert found.mixture.places.shares == pytest.approx([0.6, 0.4], abs=0.05)
        for shares, true in zip(found.mixture.shares, TWO.shares, strict=True):
            assert shares == pytest.approx(true, abs=0.1)
            assert shares.sum(axis=1) == pytest.approx(1)

    def test_separates_clusters_with_one_place(self):
        """Waves with several attributes show how categories occur together."""
        waves = waves_of(SAME_PLACE, n_waves=600)
        start = SAME_PLACE._replace(shares=tuple(0.5 * each + 0.5 / 3 for each in SAME_PLACE.shares))
        found = climb(waves, start, limits_for(3)).mixture
        for shares, true in zip(found.shares, SAME_PLACE.shares, strict=True):
            assert shares == pytest.approx(true, abs=0.15)

    def test_errors_are_those_of_repeated_fits(self):
        """With 30 % less noise than stated, the deviations in standard errors would be .7."""
        deviations = []
        for seed in range(12):
            waves = waves_of(TWO, n_waves=200, seed=seed)
            found, errors = climb(waves, TWO, limits_for(3)).mixture, standard_errors(waves, TWO)
            pairs = [(found.places.centres - TWO.places.centres, errors.centres)]
            pairs += [(found.places.shares - TWO.places.shares, errors.sizes)]
            pairs += [(a - b, error) for a, b, error in zip(found.shares, TWO.shares, errors.shares, strict=True)]
            deviations += [(away / error).ravel() for away, error in pairs]
        assert 0.85 < np.sqrt(np.mean(np.concatenate(deviations) ** 2)) < 1.18

    def test_a_share_of_zero_has_an_error(self):
        """The logarithm of such a share is not determined, but the share is."""
        waves = waves_of(TWO)
        usual = standard_errors(waves, TWO).shares[0].max()
        bare = TWO._replace(shares=tuple(np.where(each < 0.5, 1e-9, 1.0) for each in TWO.shares))
        assert standard_errors(waves, bare).shares[0].min() > usual / 3

    def test_errors_of_shares_with_the_sum_one_are_consistent(self):
        """Two shares with the sum one have one error."""
        errors = standard_errors(waves_of(TWO), TWO)
        assert errors.shares[1][:, 0] == pytest.approx(errors.shares[1][:, 1])
        assert errors.sizes[0] == pytest.approx(errors.sizes[1])
