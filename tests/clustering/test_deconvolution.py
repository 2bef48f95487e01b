"""The blur, the prior, the fit and its errors, against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dctn, idctn

from clustering.deconvolution import blur, deconvolve, prior_deviations
from tests import naive


class TestBlur:
    @pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 3)])
    @pytest.mark.parametrize("shifts", [1, 2, 4])
    def test_is_a_product_of_triangles(self, shape, shifts):
        density = np.random.default_rng(3).random(shape)
        assert blur(density, shifts) == pytest.approx(naive.blur(density, shifts))


class TestPrior:
    @pytest.mark.parametrize("shape", [(40,), (32, 32), (8, 8, 8)])
    def test_cells_vary_by_the_amplitude_on_average(self, shape):
        assert np.sqrt((prior_deviations(shape, 0.06, 2.5) ** 2).mean()) == pytest.approx(2.5)

    def test_neighbours_a_length_scale_apart_correlate(self):
        # away from the ends the cosines make the correlation exp(-r²/2ℓ²)
        deviations = prior_deviations((200,), 0.06, 1.0)
        basis = idctn(np.diag(deviations), axes=(0,), norm="ortho")
        covariance = basis @ basis.T
        assert covariance[100, 112] / covariance[100, 100] == pytest.approx(np.exp(-0.5), abs=1e-3)


def fitted(observed, precision=1e4, shifts=3):
    return deconvolve(observed, shifts=shifts, precision=precision, length_scale=0.1, amplitude=2.0)


class TestDeconvolve:
    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 2**32), precision=st.floats(1e-9, 1e9), noise=st.floats(0, 100))
    def test_always_gives_a_density(self, seed, precision, noise):
        observed = np.random.default_rng(seed).normal(0, 1, (12, 12)) * noise
        density = fitted(observed, precision).density
        assert np.isfinite(density).all()
        assert (density >= 0).all()
        assert density.sum() == pytest.approx(1)

    def test_recovers_a_smooth_density_from_its_blur(self):
        x = (np.arange(30) + 0.5) / 30
        truth = np.exp(-0.5 * ((x[:, None] - 0.3) / 0.15) ** 2 - 0.5 * ((x[None] - 0.6) / 0.2) ** 2)
        truth /= truth.sum()
        assert np.abs(fitted(blur(truth, 3), 1e7).density - truth).sum() < 0.03

    def test_without_information_is_flat(self):
        density = fitted(np.random.default_rng(4).normal(0, 1, (10, 10)), 1e-12).density
        assert density == pytest.approx(np.full((10, 10), 0.01))

    def test_is_the_minimum_of_its_loss(self):
        rng = np.random.default_rng(5)
        truth = rng.random((9, 9)) ** 4
        observed = blur(truth / truth.sum(), 3) + rng.normal(0, 0.01, (9, 9))
        density = fitted(observed, 500).density
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
    def test_is_how_far_noise_of_the_field_moves_a_sum(self):
        """Refit under fresh noise of covariance T / precision: linear theory must hold."""
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
            return (weights * fitted(noisy, precision, shifts).density).sum()

        sums = np.array([refit() for _ in range(200)])
        predicted = fitted(blur(truth, shifts), precision, shifts).standard_error(weights)
        assert 0.85 < sums.std() / predicted < 1.15  # the spread of 200 is known to 5 %

    def test_of_the_whole_is_nil(self):
        fit = fitted(np.random.default_rng(7).random((8, 8)))
        assert fit.standard_error(np.ones((8, 8))) == pytest.approx(0, abs=1e-9)

    def test_shrinks_as_the_field_is_known_better(self):
        observed = blur(np.full((8, 8), 1 / 64), 3)
        weights = np.arange(64).reshape(8, 8) / 64
        errors = [fitted(observed, precision).standard_error(weights) for precision in (1e5, 4e5, 16e5)]
        assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
        assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


class TestEvidence:
    @staticmethod
    def rippled(waves):
        """A field that is known well, of a density of so many waves."""
        x = (np.arange(40) + 0.5) / 40
        truth = np.exp(1.5 * np.cos(2 * np.pi * waves * x))
        return blur(truth / truth.sum(), 2)

    def evidence(self, observed, length_scale):
        fit = deconvolve(observed, shifts=2, precision=1e5, length_scale=length_scale, amplitude=2.0, steps=300)
        return fit.log_evidence

    @pytest.mark.parametrize(("waves", "better", "worse"), [(1, 0.2, 0.02), (8, 0.02, 0.2)])
    def test_is_for_the_prior_as_smooth_as_the_density(self, waves, better, worse):
        observed = self.rippled(waves)
        assert self.evidence(observed, better) > self.evidence(observed, worse) + 5

    def test_is_laplaces_integral(self):
        fit = deconvolve(self.rippled(2), shifts=2, precision=1e4, length_scale=0.1, amplitude=2.0, steps=300)
        n = fit._model.deviations.size
        hessian = np.stack([fit._times_hessian(row) for row in np.eye(n)])
        exact = -fit.loss - 0.5 * np.linalg.slogdet(hessian)[1]
        assert fit.log_evidence == pytest.approx(exact, abs=0.1 * np.linalg.slogdet(hessian)[1])


class TestStart:
    def test_at_a_fit_ends_there_again_in_fewer_steps(self):
        observed = blur(np.random.default_rng(8).dirichlet(np.ones(144)).reshape(12, 12), 3)
        how = {"shifts": 3, "precision": 1e3, "length_scale": 0.1, "amplitude": 2.0, "steps": 300}
        cold = deconvolve(observed, **how)
        warm = deconvolve(observed, **how, start=cold)
        assert warm.steps < cold.steps / 4
        assert warm.density == pytest.approx(cold.density, abs=1e-4)
