"""Test the blur, the prior, the fit and its errors against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dctn, idctn

from clustering.density.deconvolution import (
    Model,
    NoisyCounts,
    SmoothedField,
    blur,
    curvature_at,
    deconvolve,
    fit_log_density,
    prior_deviations,
)
from tests import naive


class TestBlur:
    @pytest.mark.parametrize("shape", [(7,), (3, 4, 3)])
    @pytest.mark.parametrize("shifts", [1, 4])
    @pytest.mark.parametrize("circles", [(), (0,)])
    def test_is_a_product_of_triangles(self, shape, shifts, circles):
        sizes = [2 * n_cells if axis in circles else n_cells for axis, n_cells in enumerate(shape)]
        density = np.random.default_rng(3).random(sizes)
        assert blur(density, shifts, circles) == pytest.approx(naive.blur(density, shifts, circles))


class TestPrior:
    @pytest.mark.parametrize("shape", [(40,), (32, 32), (8, 8, 8)])
    def test_mean_deviation_is_the_amplitude(self, shape):
        assert np.sqrt((prior_deviations(shape, 0.06, 2.5) ** 2).mean()) == pytest.approx(2.5)

    @pytest.mark.parametrize("n_cells", [9, 32])
    def test_of_a_circle_has_waves_of_whole_turns(self, n_cells):
        deviations = prior_deviations((n_cells,), 0.06, 1.0, (0,))
        model = Model((n_cells,), 0.0, 1.0, (0,))  # with ℓ = 0, every coefficient has the same deviation
        waves = np.stack([model.log_density(row) for row in np.eye(n_cells)])
        assert waves @ waves.T == pytest.approx(np.eye(n_cells), abs=1e-12)
        turned = np.fft.fft(np.roll(waves, 2, axis=1), axis=1)
        assert np.abs(turned) == pytest.approx(np.abs(np.fft.fft(waves, axis=1)), abs=1e-9)
        highest = np.abs(np.fft.rfft(waves, axis=1)).argmax(axis=1)
        assert highest.tolist() == [(row + 1) // 2 for row in range(n_cells)]
        assert deviations == pytest.approx(deviations[0] * np.exp(-((np.pi * highest * 0.06) ** 2)))

    def test_correlation_follows_the_length_scale(self):
        # far from the ends, the correlation is exp(-r²/2ℓ²)
        deviations = prior_deviations((200,), 0.06, 1.0)
        basis = idctn(np.diag(deviations), axes=(0,), norm="ortho")
        covariance = basis @ basis.T
        assert covariance[100, 112] / covariance[100, 100] == pytest.approx(np.exp(-0.5), abs=1e-3)


def deconvolve_field(observed, precision=1e4, shifts=3):
    return deconvolve(observed, shifts=shifts, precision=precision, length_scale=0.1, amplitude=2.0)


class TestDeconvolve:
    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 2**32), precision=st.floats(1e-9, 1e9), noise=st.floats(0, 100))
    def test_gives_a_density_for_any_field(self, seed, precision, noise):
        observed = np.random.default_rng(seed).normal(0, 1, (12, 12)) * noise
        density = deconvolve_field(observed, precision).density
        assert np.isfinite(density).all()
        assert (density >= 0).all()
        assert density.sum() == pytest.approx(1)

    def test_recovers_a_smooth_density_from_its_blur(self):
        x = (np.arange(30) + 0.5) / 30
        truth = np.exp(-0.5 * ((x[:, None] - 0.3) / 0.15) ** 2 - 0.5 * ((x[None] - 0.6) / 0.2) ** 2)
        truth /= truth.sum()
        assert np.abs(deconvolve_field(blur(truth, 3), 1e7).density - truth).sum() < 0.03

    def test_is_flat_without_information(self):
        density = deconvolve_field(np.random.default_rng(4).normal(0, 1, (10, 10)), 1e-12).density
        assert density == pytest.approx(np.full((10, 10), 0.01))

    def test_is_the_minimum_of_its_loss(self):
        rng = np.random.default_rng(5)
        truth = rng.random((9, 9)) ** 4
        observed = blur(truth / truth.sum(), 3) + rng.normal(0, 0.01, (9, 9))
        density = deconvolve_field(observed, 500).density
        deviations = prior_deviations((9, 9), 0.1, 2.0)

        def loss(g):
            g = g.reshape(9, 9)
            f = np.exp(g) / np.exp(g).sum()
            u = dctn(g - g.mean(), norm="ortho") / np.maximum(deviations, 1e-3 * deviations.max())
            u[0, 0] = 0
            return 500 * (f * (0.5 * blur(f, 3) - observed)).sum() + 0.5 * (u**2).sum()

        g = np.log(density)
        best = loss(g)
        smooth = [np.cos(np.pi * j * (np.arange(9) + 0.5) / 9) for j in range(3)]
        for i in range(3):
            for j in range(3):
                for step in (0.02, -0.02):
                    assert loss(g + step * np.outer(smooth[i], smooth[j])) >= best - 1e-9


class TestStandardError:
    def test_equals_the_deviation_of_refits(self):
        """The noise of each refit has the covariance T / precision."""
        rng = np.random.default_rng(6)
        cells, shifts, precision = 16, 2, 3e5
        x = (np.arange(cells) + 0.5) / cells
        truth = np.exp(-0.5 * ((x - 0.35) / 0.1) ** 2) + 0.6 * np.exp(-0.5 * ((x - 0.75) / 0.08) ** 2) + 0.2
        truth /= truth.sum()
        kernel = np.stack([blur(row, shifts) for row in np.eye(cells)])
        root = np.linalg.cholesky(kernel + 1e-9 * np.eye(cells))
        weights = (x > 0.55).astype(float)

        def refit():
            noisy = blur(truth, shifts) + root @ rng.standard_normal(cells) / np.sqrt(precision)
            return (weights * deconvolve_field(noisy, precision, shifts).density).sum()

        sums = np.array([refit() for _ in range(120)])
        predicted = deconvolve_field(blur(truth, shifts), precision, shifts).standard_error(weights)
        assert 0.8 < sums.std() / predicted < 1.2  # 120 refits give a deviation to 6.5 %

    def test_of_the_whole_is_zero(self):
        fit = deconvolve_field(np.random.default_rng(7).random((8, 8)))
        assert fit.standard_error(np.ones((8, 8))) == pytest.approx(0, abs=1e-9)

    def test_decreases_with_the_root_of_the_precision(self):
        observed = blur(np.full((8, 8), 1 / 64), 3)
        weights = np.arange(64).reshape(8, 8) / 64
        errors = [deconvolve_field(observed, precision).standard_error(weights) for precision in (1e5, 4e5, 16e5)]
        assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
        assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


class TestConvergence:
    """The fit of narrow groups, which takes hundreds of steps by L-BFGS."""

    @pytest.fixture
    def field(self):
        x = (np.arange(24) + 0.5) / 24
        bumps = [np.exp(-((x[:, None] - a) ** 2 + (x[None] - b) ** 2) / 0.002) for a, b in ((0.2, 0.3), (0.7, 0.8))]
        truth = bumps[0] + 0.3 * bumps[1]
        return blur(truth / truth.sum(), 3)

    def test_reaches_the_loss_of_many_steps_of_lbfgs(self, field):
        how = {"shifts": 3, "precision": 1e6, "length_scale": 0.05, "amplitude": 3.0}
        fitted, few, many = (deconvolve(field, **how, steps=steps) for steps in (None, 60, 3000))
        assert (fitted.converged, few.converged) == (True, False)
        assert fitted.steps < 60
        assert fitted.loss <= many.loss + 1e-3
        assert few.loss > many.loss + 1
        assert np.abs(fitted.density - many.density).sum() < 0.01


class TestCurvature:
    def test_with_the_gradient_has_the_second_derivatives(self):
        rng = np.random.default_rng(5)
        model = Model((6, 8), 0.2, 1.5, (1,))
        likelihood = SmoothedField(blur(rng.dirichlet(np.ones(48)).reshape(6, 8), 2, (1,)), 2, 300.0, (1,))
        u, change = rng.normal(size=(2, model.deviations.size))

        def slope(place):
            f = model.density(place)
            return model.pull(f, likelihood.loss(f)[1]) + place

        f = model.density(u)
        expected = (slope(u + 1e-5 * change) - slope(u - 1e-5 * change)) / 2e-5
        assert curvature_at(model, likelihood, f, likelihood.loss(f)[1])(change) == pytest.approx(expected, rel=1e-5)
        fisher = curvature_at(model, likelihood, f)(change)
        assert fisher != pytest.approx(expected, rel=1e-2)
        assert change @ fisher >= change @ change


class TestStart:
    def test_a_warm_start_needs_fewer_steps(self):
        observed = blur(np.random.default_rng(8).dirichlet(np.ones(144)).reshape(12, 12), 3)
        how = {"shifts": 3, "precision": 1e3, "length_scale": 0.1, "amplitude": 2.0, "steps": 300}
        cold = deconvolve(observed, **how)
        warm = deconvolve(observed, **how, start=cold.density)
        assert warm.steps < cold.steps / 4
        assert warm.density == pytest.approx(cold.density, abs=1e-4)
        other = deconvolve(observed, **how | {"length_scale": 0.15}, start=cold.density)
        assert other.density == pytest.approx(deconvolve(observed, **how | {"length_scale": 0.15}).density, abs=1e-4)

    def test_a_refit_needs_fewer_steps_and_ends_near_the_minimum(self):
        shares = np.zeros((24, 24))
        shares[5:9, 4:8], shares[14:20, 13:19] = 2.0, 1.0
        observed = blur(shares / shares.sum(), 3) + np.random.default_rng(8).normal(0, 0.02, (24, 24))
        how = {"shifts": 3, "precision": 2500.0, "length_scale": 0.05, "amplitude": 2.0, "steps": 300}
        fit, refit = deconvolve(observed, **how), deconvolve(observed, **how, is_refit=True)
        assert fit.converged
        assert refit.converged
        assert refit.steps < 0.8 * fit.steps
        assert 0 < refit.loss - fit.loss < 0.05
        assert np.abs(refit.density - fit.density).sum() / 2 < 0.01


class TestNoisyCounts:
    """Counts of 4,000 records in 24 cells, with noise of variance 18."""

    TOTAL, VARIANCE = 4_000, 18.0
    DENSITY = np.linspace(0, 1, 24) / 12

    def draw(self, rng):
        records = rng.multinomial(self.TOTAL, self.DENSITY)
        return records + np.rint(rng.laplace(scale=np.sqrt(self.VARIANCE / 2), size=24)).astype(np.int64)

    def test_the_gradient_is_the_slope_of_the_loss(self):
        likelihood = NoisyCounts(self.draw(np.random.default_rng(1)), self.VARIANCE, self.TOTAL)
        f = np.random.default_rng(2).dirichlet(np.ones(24))
        _, slope = likelihood.loss(f)
        steps = 1e-6 * np.eye(24)
        differences = [(likelihood.loss(f + step)[0] - likelihood.loss(f - step)[0]) / 2e-6 for step in steps]
        assert slope == pytest.approx(np.array(differences), rel=1e-4, abs=1e-2)

    def test_the_information_is_the_covariance_of_the_gradient(self):
        rng = np.random.default_rng(3)
        slopes = np.array(
            [NoisyCounts(self.draw(rng), self.VARIANCE, self.TOTAL).loss(self.DENSITY)[1] for _ in range(3_000)]
        )
        information = NoisyCounts(self.draw(rng), self.VARIANCE, self.TOTAL).information(self.DENSITY, np.ones(24))
        # Each of the 24 variances is known to 6 %, because the noise has heavy tails. Their mean is known to 1 %.
        assert (slopes.var(axis=0) / information).mean() == pytest.approx(1, abs=0.05)
        assert slopes.mean(axis=0) == pytest.approx(0, abs=6 * np.sqrt(information.max() / 3_000))

    def test_without_noise_it_is_the_likelihood_of_a_multinomial_sample(self):
        counts, f = np.array([5, 0, 12, 3]), np.array([0.2, 0.1, 0.6, 0.1])
        other = np.array([0.25, 0.25, 0.25, 0.25])
        gain = NoisyCounts(counts, 0.0, 20).loss(other)[0] - NoisyCounts(counts, 0.0, 20).loss(f)[0]
        assert gain == pytest.approx((counts * np.log(f / other)).sum(), abs=1e-6)

    @pytest.mark.parametrize("counts", [np.zeros(36), np.full(36, -(1 << 60)), np.arange(36) * (1 << 50)])
    @pytest.mark.parametrize("variance", [0.0, 1e30])
    def test_gives_a_density_for_any_counts(self, counts, variance):
        likelihood = NoisyCounts(counts.astype(np.int64).reshape(6, 6), variance, 1.0)
        density = fit_log_density(likelihood, (6, 6), length_scale=0.1, amplitude=2.0).density
        assert np.isfinite(density).all()
        assert (density >= 0).all()
        assert density.sum() == pytest.approx(1)
