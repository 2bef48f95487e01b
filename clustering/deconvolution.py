"""From a blurred field back to a density, and how far noise moves what is read off it.

The density is the most probable cause of the field under a smooth prior on its logarithm
(STATISTICS 3.2, step 3); around it the fit is linearised, which gives the standard error of
any sum over its cells, and the evidence for the prior.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, dctn, idctn
from scipy.linalg import eigh_tridiagonal
from scipy.ndimage import correlate1d
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

# From so many features on, axes are short and lines many: products with small matrices are faster than
# transforms and filters (32 cells a feature, of three: blur .14 ms for .47, a transform .14 for .23; in
# two features they are not).
_BY_PRODUCTS = 3

_NEGLIGIBLE = 1e-3  # prior standard deviations below this share of the largest are dropped
_ERROR_TOLERANCE = 0.05  # of the linear solve behind a standard error; leaves it within 5 %
_ERROR_STEPS = 200

# Of the log determinant: random signs to multiply with, and how often. The signs come of a public
# seed: they are post-processing, and a result follows from its tallies alone.
_PROBES, _PROBE_STEPS, _PROBE_SEED = 4, 24, 1

# From the flat density, the steps that are left out would fit the finest ripples. STEPS is for who
# has no time for more; in two features a fit is let run to its end, or nearly.
STEPS = 60
MORE_STEPS = 300


def along_axes(values: NDArray[np.float64], matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Each axis times its matrix, of shape (n, n)."""
    shape = values.shape
    for n_cells, matrix in zip(shape, matrices, strict=True):  # the first axis becomes the last, once round
        values = np.dot(values.reshape(n_cells, -1).T, matrix.T)
    return values.reshape(shape)


@lru_cache(maxsize=8)
def _triangles(n_cells: int, shifts: int) -> NDArray[np.float64]:
    places = np.arange(n_cells)
    return np.asarray((1 - np.abs(places[:, None] - places) / shifts).clip(0), dtype=np.float64)


@lru_cache(maxsize=8)
def _cosines(n_cells: int) -> NDArray[np.float64]:
    """The orthonormal DCT as a matrix."""
    return np.asarray(dct(np.eye(n_cells), axis=0, norm="ortho"), dtype=np.float64)


def blur(density: NDArray[np.float64], shifts: int) -> NDArray[np.float64]:
    """T * f, T(Δ) = prod (1 - |Δ_i|/w)+: the mass of a coarse cell about each fine cell, averaged over shifts."""
    if density.ndim >= _BY_PRODUCTS:
        return along_axes(density, [_triangles(n_cells, shifts) for n_cells in density.shape])
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
        self._active = np.flatnonzero(deviations > _NEGLIGIBLE * deviations.max())
        self.deviations = deviations.ravel()[self._active]
        self._bases = [_cosines(n_cells) for n_cells in shape] if len(shape) >= _BY_PRODUCTS else None

    def log_density(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """g, up to a constant: linear in u."""
        coefficients = np.zeros(self.shape)
        coefficients.put(self._active, self.deviations * u)
        if self._bases is not None:
            return along_axes(coefficients, [basis.T for basis in self._bases])
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
        found = dctn(slope_g, norm="ortho") if self._bases is None else along_axes(slope_g, self._bases)
        return np.asarray(found.ravel().take(self._active) * self.deviations, dtype=np.float64)


@dataclass(frozen=True)
class Deconvolved:
    """A density of sum one, how its fit went, and what noise does to it."""

    density: NDArray[np.float64]
    steps: int
    converged: bool
    loss: float
    _u: NDArray[np.float64]
    _model: _Model
    _shifts: int
    _precision: float

    def _times_hessian(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """H u, with H = 1 + precision Jᵀ T J and J the Jacobian of f in u."""
        f, model = self.density, self._model
        return u + self._precision * model.pull(f, blur(model.push(f, u), self._shifts))

    @cached_property
    def log_evidence(self) -> float:
        """log p(field | prior), but for a constant that depends on the field and the precision alone.

        Laplace's approximation at the fit, -loss - ½ log det H; the determinant by Lanczos
        quadrature (Ubaru, Chen and Saad 2017), good to a few units. It means something only
        where the fit was let run to its end.
        """
        n = self._model.deviations.size
        signs = np.random.default_rng(_PROBE_SEED).integers(0, 2, (_PROBES, n)) * 2.0 - 1
        log_determinant: float = n * float(np.mean([self._log_quadrature(probe / sqrt(n)) for probe in signs]))
        return -self.loss - 0.5 * log_determinant

    def _log_quadrature(self, probe: NDArray[np.float64]) -> float:
        """probeᵀ log(H) probe for a probe of length one, by Lanczos steps, each kept at right angles to all before."""
        basis, diagonal, beside = [probe], [], []
        for _ in range(min(_PROBE_STEPS, probe.size)):
            following = self._times_hessian(basis[-1])
            diagonal.append(float(following @ basis[-1]))
            for vector in basis:
                following -= (vector @ following) * vector
            length = float(np.linalg.norm(following))
            if length < 1e-9 * abs(diagonal[-1]):
                break
            beside.append(length)
            basis.append(following / length)
        values, vectors = eigh_tridiagonal(diagonal, beside[: len(diagonal) - 1])
        # no eigenvalue of H is below one but by rounding
        logs: NDArray[np.float64] = np.log(values.clip(1))
        return float((vectors[0] ** 2 * logs).sum())

    def standard_error(self, weights: NDArray[np.float64]) -> float:
        """Standard error of sum(weights * density) from the noise of the field.

        With J the Jacobian of f in u, H = 1 + precision Jᵀ T J, and b = Jᵀ weights, the sum
        moves by bᵀ H⁻¹ Jᵀ (precision times the field's noise), whose variance is
        bᵀ H⁻¹ (H - 1) H⁻¹ b, the field's noise having covariance T / precision. What the
        prior hides (its bias) is not in it.
        """
        b = self._model.pull(self.density, weights)
        hessian = LinearOperator((b.size, b.size), matvec=self._times_hessian, dtype=np.float64)
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
    start: Deconvolved | None = None,
) -> Deconvolved:
    """The most probable density behind a field.

    f = softmax(g), g = IDCT(sqrt(S) u); minimises, by steps of L-BFGS,
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
    start : Deconvolved, optional
        Where to begin: a fit over as many cells under the same prior. By default the flat density.
    """
    model = _Model(observed.shape, length_scale, amplitude)

    def loss(u: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        f = model.density(u)
        blurred = blur(f, shifts)
        value = precision * (f * (0.5 * blurred - observed)).sum() + 0.5 * (u @ u)
        return float(value), model.pull(f, precision * (blurred - observed)) + u

    fit = minimize(
        loss,
        np.zeros(model.deviations.size) if start is None else start._u,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps},
    )
    return Deconvolved(
        model.density(fit.x), int(fit.nit), bool(fit.success), float(fit.fun), fit.x, model, shifts, precision
    )
