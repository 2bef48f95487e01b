"""From a blurred field back to a density, and how far noise moves what is read off it.

The density is the most probable cause of the field under a smooth prior on its logarithm
(STATISTICS 3.2, step 3); around it the fit is linearised, which gives the standard error of
any sum over its cells.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, idctn
from scipy.ndimage import correlate1d
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

_NEGLIGIBLE = 1e-3  # prior standard deviations below this share of the largest are dropped
_ERROR_TOLERANCE = 0.03  # of the linear solve behind a standard error; leaves it within 3 %
_ERROR_STEPS = 200

# Stopping early is a part of the prior: from the flat density, the steps that are left out would
# fit the finest ripples. Where a fit is let run to its end (300 to 1000 steps), shapes drawn as
# points come out better (smile, 150,000 at epsilon 4: ARI .46 to .99), but others worse
# (aggregation and chameleon, a million at epsilon 2: .99 to .88, .88 to .76; check-ins of New
# York at epsilon 2 against their exact counts: .95 to .64).
STEPS = 60
MORE_STEPS = 300


def blur(density: NDArray[np.float64], shifts: int) -> NDArray[np.float64]:
    """T * f, T(Δ) = prod (1 - |Δ_i|/w)+: the mass of a coarse cell about each fine cell, averaged over shifts."""
    triangle = 1 - np.abs(np.arange(1 - shifts, shifts)) / shifts
    for axis in range(density.ndim):
        density = correlate1d(density, triangle, axis=axis, mode="constant")
    return density


def prior_deviations(shape: tuple[int, ...], length_scale: float, amplitude: float) -> NDArray[np.float64]:
    """sqrt(S): the prior's standard deviation of each cosine coefficient of the log density g.

    S ∝ exp(-½ (π j ℓ)²) per axis for frequency j, scaled so that a cell's sd(g) averages
    `amplitude`.
    """
    spectrum = np.ones(shape)
    for axis, n_cells in enumerate(shape):
        along = np.exp(-0.5 * (np.pi * np.arange(n_cells) * length_scale) ** 2)
        spectrum *= along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.asarray(amplitude * np.sqrt(spectrum * spectrum.size / spectrum.sum()), dtype=np.float64)


class _Model:
    """f = softmax(g), g = IDCT(sqrt(S) u), over the coefficients the prior does not drop."""

    def __init__(self, shape: tuple[int, ...], length_scale: float, amplitude: float) -> None:
        deviations = prior_deviations(shape, length_scale, amplitude)
        self.shape = shape
        self.active = deviations > _NEGLIGIBLE * deviations.max()
        self.deviations = deviations[self.active]

    def log_density(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """g, up to a constant: linear in u."""
        coefficients = np.zeros(self.shape)
        coefficients[self.active] = self.deviations * u
        return np.asarray(idctn(coefficients, norm="ortho"), dtype=np.float64)

    def density(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        g = self.log_density(u)
        weights = np.exp(g - g.max())
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    def push(self, f: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
        """How f moves when u does: the Jacobian at f, times u."""
        g = self.log_density(u)
        return np.asarray(f * (g - (f * g).sum()), dtype=np.float64)

    def pull(self, f: NDArray[np.float64], slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gradient in u of what has this gradient in f: the transposed Jacobian, times slope."""
        slope_g = f * (slope - (f * slope).sum())
        return np.asarray(dctn(slope_g, norm="ortho")[self.active] * self.deviations, dtype=np.float64)


@dataclass(frozen=True)
class Deconvolved:
    """A density of sum one, how its fit went, and what noise does to it."""

    density: NDArray[np.float64]
    steps: int
    converged: bool
    _model: _Model
    _shifts: int
    _precision: float

    def standard_error(self, weights: NDArray[np.float64]) -> float:
        """Standard error of sum(weights * density) from the noise of the field.

        With J the Jacobian of f in u, H = 1 + precision Jᵀ T J, and b = Jᵀ weights, the sum
        moves by bᵀ H⁻¹ Jᵀ (precision times the field's noise), whose variance is
        bᵀ H⁻¹ (H - 1) H⁻¹ b, the field's noise having covariance T / precision. What the
        prior hides (its bias) is not in it.
        """
        f, model = self.density, self._model

        def times_hessian(u: NDArray[np.float64]) -> NDArray[np.float64]:
            return u + self._precision * model.pull(f, blur(model.push(f, u), self._shifts))

        b = model.pull(f, weights)
        hessian = LinearOperator((b.size, b.size), matvec=times_hessian, dtype=np.float64)
        x, _ = cg(hessian, b, rtol=_ERROR_TOLERANCE, maxiter=_ERROR_STEPS)
        return sqrt(max(float(b @ x - x @ x), 0.0))


def deconvolve(
    observed: NDArray[np.float64],
    *,
    shifts: int,
    precision: float,
    length_scale: float,
    amplitude: float,
    steps: int = STEPS,
) -> Deconvolved:
    """The most probable density behind a field.

    f = softmax(g), g = IDCT(sqrt(S) u); minimises, by steps of L-BFGS from the flat density,
        precision * (½ f·Tf - f·F) + ½ |u|².

    Parameters
    ----------
    observed : ndarray of shape (fine_cells,) * n_features
        F, negative values included; one to three features.
    shifts : int
        w, the half width of T.
    precision : float
        N / (v + .02).
    length_scale, amplitude : float
        ℓ and A of the prior.
    steps : int
        At most so many.
    """
    model = _Model(observed.shape, length_scale, amplitude)

    def loss(u: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        f = model.density(u)
        blurred = blur(f, shifts)
        value = precision * (f * (0.5 * blurred - observed)).sum() + 0.5 * (u @ u)
        return float(value), model.pull(f, precision * (blurred - observed)) + u

    fit = minimize(
        loss,
        np.zeros(model.deviations.size),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps},
    )
    return Deconvolved(model.density(fit.x), int(fit.nit), bool(fit.success), model, shifts, precision)
