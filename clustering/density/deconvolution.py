"""MAP fit of a density to a smoothed field or to noisy counts, and the standard errors of its sums.

The density is the most probable one under a smooth prior on its logarithm.
A linearisation of the fit gives the standard error of any sum over its cells.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

from clustering.density.newton import minimise, solve
from clustering.density.quasi_newton import descend
from clustering.kernels.descent import add_triangles

_LEAST_MEAN = 1e-9  # least mean of a count, for its logarithm
_NEGLIGIBLE = 1e-3  # prior standard deviations below this share of the largest are dropped
_ERROR_TOLERANCE = 0.05  # relative tolerance of the linear solve; keeps a standard error within 5 %
_ERROR_STEPS = 200

_LEAST_START = 1e-9  # least density of a start, relative to the mean, for its logarithm
_MOST_START = 6.0  # greatest coefficient of a start, in standard deviations of the prior

# A fit ends with two steps that each reduce its loss by less than this share.
_TOLERANCE, _REFIT_TOLERANCE = 2.220446049250313e-09, 1e-6

# L-BFGS steps from the flat density. Later steps fit only the finest ripples. STEPS bounds the
# time of large grids; in two features, MORE_STEPS lets a fit of counts converge.
STEPS = 60
MORE_STEPS = 1000


def along_axes(values: NDArray[np.float64], matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Multiply each axis of length n by its matrix of shape (m, n)."""
    for matrix in matrices:  # rotate the axes, so that each is first once
        values = np.dot(values.reshape(matrix.shape[1], -1).T, matrix.T)
    return values.reshape([len(matrix) for matrix in matrices])


@lru_cache(maxsize=8)
def _waves(n_cells: int, is_circle: bool) -> NDArray[np.float64]:
    """Return an orthonormal basis as rows of ascending frequency: cosines (DCT), or sines and cosines of a circle."""
    if not is_circle:
        return np.asarray(dct(np.eye(n_cells), axis=0, norm="ortho"), dtype=np.float64)
    angles = np.outer((np.arange(n_cells) + 1) // 2, 2 * np.pi * (np.arange(n_cells) + 0.5) / n_cells)
    is_sine = np.arange(n_cells) % 2 == 0
    is_sine[0] = False
    if n_cells % 2 == 0:
        is_sine[-1] = True  # the highest wave has its zeros at the borders of the cells
    waves = np.where(is_sine[:, None], np.sin(angles), np.cos(angles))
    return np.asarray(waves / np.linalg.norm(waves, axis=1, keepdims=True), dtype=np.float64)


def _half_turns(n_cells: int, is_circle: bool) -> NDArray[np.int64]:
    """Return the frequency of each row of `_waves`, in half turns across the range."""
    rows = np.arange(n_cells)
    return (rows + 1) // 2 * 2 if is_circle else rows


def blur(
    density: NDArray[np.float64], shifts: int, circles: Sequence[int] = (), *, has_categories: bool = False
) -> NDArray[np.float64]:
    """Return T * f, T(Δ) = prod (1 - |Δ_i|/w)+: the coarse-cell mass around each fine cell, averaged over shifts.

    `circles` are the axes of periodic features, where Δ is the shorter way. With `has_categories`, the last axis lists
    categories, which have no neighbours.
    """
    shape, values = density.shape, np.ascontiguousarray(density, dtype=np.float64)
    for axis in range(density.ndim - has_categories):
        sums = np.empty(shape)
        blocks, stride = prod(shape[:axis]), prod(shape[axis + 1 :])
        add_triangles(values.reshape(blocks, -1), stride, shifts, axis in circles, sums.reshape(blocks, -1))
        values = sums
    return values


def prior_deviations(
    shape: tuple[int, ...],
    length_scale: float,
    amplitude: float,
    circles: Sequence[int] = (),
    *,
    has_categories: bool = False,
) -> NDArray[np.float64]:
    """Return sqrt(S), the prior's standard deviation of each coefficient of the log density g.

    S ∝ exp(-½ (π j ℓ)²) per axis for a wave of j half turns, scaled so that a cell's sd(g) averages
    `amplitude`. The waves are cosines, and sines and cosines of whole turns along `circles`. With `has_categories`, the
    last axis lists categories, and the log densities of different categories are independent.
    """
    spectrum = np.ones(shape)
    for axis, n_cells in enumerate(shape[: len(shape) - has_categories]):
        along = np.exp(-0.5 * (np.pi * _half_turns(n_cells, axis in circles) * length_scale) ** 2)
        spectrum *= along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.asarray(amplitude * np.sqrt(spectrum * spectrum.size / spectrum.sum()), dtype=np.float64)


class Model:
    """The density f = softmax(g), g = IDCT(sqrt(S) u), for the coefficients with a non-negligible prior.

    Along `circles`, the basis is that of the discrete Fourier transform.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        length_scale: float,
        amplitude: float,
        circles: Sequence[int] = (),
        *,
        has_categories: bool = False,
    ) -> None:
        deviations = prior_deviations(shape, length_scale, amplitude, circles, has_categories=has_categories)
        active = np.nonzero(deviations > _NEGLIGIBLE * deviations.max())
        self.deviations = deviations[active]
        self.circles = tuple(circles)
        self._bases = [
            _waves(n, axis in circles)[: max(j) + 1] for axis, (n, j) in enumerate(zip(shape, active, strict=True))
        ]
        self._box = tuple(len(basis) for basis in self._bases)
        self._active = np.ravel_multi_index(active, self._box)

    def log_density(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return g up to a constant; it is linear in u."""
        coefficients = np.zeros(self._box)
        coefficients.put(self._active, self.deviations * u)
        return along_axes(coefficients, [basis.T for basis in self._bases])

    def coefficients(self, density: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return u of the nearest density of the model, at most six standard deviations of the prior."""
        g = np.log(np.maximum(density, _LEAST_START / density.size))
        u = self._transform(g - g.mean()) / self.deviations
        return np.asarray(u.clip(-_MOST_START, _MOST_START), dtype=np.float64)

    def density(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        g = self.log_density(u)
        weights = np.exp(g - g.max())
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    def pull(self, f: NDArray[np.float64], slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the transposed Jacobian of f in u at f, times slope, a gradient in f."""
        return self._transform(f * (slope - np.vdot(f, slope))) * self.deviations

    def curvatures(self, likelihood: "Likelihood", f: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return about the diagonal of H = 1 + Jᵀ I J at f; a smoothed field counts as if T kept every wave."""
        weights = f**2 * likelihood.information(f, np.ones(f.shape))
        squares = along_axes(weights, [basis**2 for basis in self._bases]).take(self._active)
        return np.asarray(1 + self.deviations**2 * squares, dtype=np.float64)

    def _transform(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the active coefficients of values over the cells."""
        return along_axes(values, self._bases).take(self._active)


class Likelihood(Protocol):
    """The negative log likelihood of a density, up to a constant."""

    @property
    def precision(self) -> float:
        """Return the effective number of records: those with the same information if they were exact."""

    def loss(self, f: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the value at f and its gradient in f."""

    def information(self, f: NDArray[np.float64], change: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Fisher information at f, the covariance of the gradient, times a change of f."""


@dataclass(frozen=True, eq=False)
class SmoothedField:
    """The likelihood precision * (½ f·Tf - f·F) of a field F with noise of covariance T / precision.

    Attributes
    ----------
    observed : ndarray of shape (fine_cells,) * n_features, then categories
        F, including negative values; one to three features.
    shifts : int
        w, the half width of T.
    precision : float
        N / (v + .02).
    circles : tuple of int
        Axes of periodic features.
    has_categories : bool
        Whether the last axis lists categories.
    """

    observed: NDArray[np.float64]
    shifts: int
    precision: float
    circles: tuple[int, ...] = ()
    has_categories: bool = False

    def loss(self, f: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the value at f and its gradient."""
        blurred = blur(f, self.shifts, self.circles, has_categories=self.has_categories)
        apart = blurred - self.observed
        value = self.precision * (np.vdot(f, apart) - 0.5 * np.vdot(f, blurred))
        apart *= self.precision
        return float(value), apart

    def information(self, f: NDArray[np.float64], change: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002
        """Return precision * T * change."""
        return self.precision * blur(change, self.shifts, self.circles, has_categories=self.has_categories)


class NoisyCounts:
    """The likelihood of counts of records with noise, each count being independent of the others.

    A count has mean N f and variance N f + s², the sampling of the records and the noise. Its sum with
    s² has equal mean and variance, so it is treated as a Poisson variable:
        loss = sum of μ - t log μ,  μ = N f + s²,  t = max(count + s², 0).
    This is exact without noise, and normal with variance s² in empty cells under strong noise.

    Parameters
    ----------
    counts : ndarray of int64
        One noisy count for each cell; one to three features.
    variance : float
        s², the noise variance of a count.
    total : float
        N, positive.

    Attributes
    ----------
    precision : float
        N² / (N + s² cells).
    """

    def __init__(self, counts: NDArray[np.int64], variance: float, total: float) -> None:
        self._shifted = np.maximum(counts + variance, 0.0)
        self._variance = max(variance, _LEAST_MEAN)
        self._total = total
        self.precision = total**2 / (total + variance * counts.size)

    def loss(self, f: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the value at f and its gradient."""
        means = self._total * f + self._variance
        return float((means - self._shifted * np.log(means)).sum()), self._total * (1 - self._shifted / means)

    def information(self, f: NDArray[np.float64], change: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return N² / μ * change."""
        return np.asarray(self._total**2 / (self._total * f + self._variance) * change, dtype=np.float64)


@dataclass(frozen=True)
class Deconvolution:
    """A fitted density.

    Attributes
    ----------
    density : ndarray of shape (fine_cells,) * n_features, float64
        Non-negative, sums to one.
    steps : int
        Steps of the optimizer.
    converged : bool
    loss : float
        Minimum of the objective of `deconvolve`.
    """

    density: NDArray[np.float64]
    steps: int
    converged: bool
    loss: float
    _model: Model
    _likelihood: Likelihood

    @property
    def circles(self) -> tuple[int, ...]:
        """Return the axes of periodic features."""
        return self._model.circles

    @property
    def precision(self) -> float:
        """Return the effective number of records."""
        return self._likelihood.precision

    def excess_loss(self, density: NDArray[np.float64]) -> float:
        """Return how much less likely the observations are under another density, as a difference of logarithms."""
        return self._likelihood.loss(density)[0] - self._likelihood.loss(self.density)[0]

    def standard_error(self, weights: NDArray[np.float64]) -> float:
        """Return the standard error of sum(weights * density) due to the noise of the observations.

        Let J be the Jacobian of f in u, H = 1 + Jᵀ I J, and b = Jᵀ weights. The sum changes by bᵀ H⁻¹ Jᵀ
        times the noise of the likelihood's gradient. That noise has covariance I, so the variance is
        bᵀ H⁻¹ (H - 1) H⁻¹ b. The bias of the prior is excluded.

        Parameters
        ----------
        weights : ndarray of the density's shape
        """
        b = self._model.pull(self.density, weights)
        x = solve(curvature_at(self._model, self._likelihood, self.density), b, _ERROR_TOLERANCE, _ERROR_STEPS).place
        return sqrt(max(float(b @ x - x @ x), 0.0))


def curvature_at(
    model: Model, likelihood: Likelihood, f: NDArray[np.float64], slope: NDArray[np.float64] | None = None
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the product with H = 1 + Jᵀ I J, with I the Fisher information and J the Jacobian of f in u.

    With `slope`, the gradient of the loss in f, H also contains the second derivatives of f in u. For a `SmoothedField`
    it is then the matrix of second derivatives of the objective.
    """
    centred = None if slope is None else slope - np.vdot(f, slope)

    def product(u: NDArray[np.float64]) -> NDArray[np.float64]:
        g = model.log_density(u)
        g -= np.vdot(f, g)
        change = likelihood.information(f, f * g)
        if centred is not None:
            change += g * centred
        return u + model.pull(f, change)

    return product


def fit_log_density(
    likelihood: Likelihood,
    shape: tuple[int, ...],
    *,
    length_scale: float,
    amplitude: float,
    circles: Sequence[int] = (),
    has_categories: bool = False,
    steps: int | None = STEPS,
    start: NDArray[np.float64] | None = None,
    is_refit: bool = False,
) -> Deconvolution:
    """Return the most probable density under a likelihood.

    Minimise, with f = softmax(g) and g = IDCT(sqrt(S) u),
        loss(f) + ½ |u|².
    A refit scales u by the curvature of the loss and ends earlier. Unless it takes all steps, its density is within
    .002 of the minimum (total variation), where noise moves it by .07 to .3.

    Parameters
    ----------
    likelihood : Likelihood
    shape : tuple of int
        Cells along each feature; one to three features.
    length_scale, amplitude : float
        ℓ and A of the prior.
    circles : sequence of int
        Axes of periodic features.
    has_categories : bool
        Whether the last axis lists categories.
    steps : int or None
        Maximum number of L-BFGS steps. None fits to convergence, by Newton steps. They are faster for a
        `SmoothedField` and slower for `NoisyCounts`.
    start : ndarray of this shape, optional
        Initial density. The default is the flat one.
    is_refit : bool
        Whether the fit follows another one of the same round, or of the data that this one simulates.

    Returns
    -------
    Deconvolution
    """
    model = Model(shape, length_scale, amplitude, circles, has_categories=has_categories)
    first = np.zeros(model.deviations.size) if start is None else model.coefficients(start)
    scales = np.sqrt(model.curvatures(likelihood, model.density(first))) if is_refit else np.ones(first.size)

    def loss(v: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        u = v / scales
        f = model.density(u)
        value, slope = likelihood.loss(f)
        return float(value + 0.5 * (u @ u)), (model.pull(f, slope) + u) / scales

    def curvature(u: NDArray[np.float64], is_exact: bool) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        f = model.density(u)
        return curvature_at(model, likelihood, f, likelihood.loss(f)[1] if is_exact else None)

    if steps is None:
        found = minimise(loss, curvature, first)
        return Deconvolution(model.density(found.place), found.steps, found.converged, found.value, model, likelihood)
    end = descend(loss, first * scales, steps, _REFIT_TOLERANCE if is_refit else _TOLERANCE)
    return Deconvolution(model.density(end.place / scales), end.steps, end.converged, end.value, model, likelihood)


def deconvolve(
    observed: NDArray[np.float64],
    *,
    shifts: int,
    precision: float,
    length_scale: float,
    amplitude: float,
    circles: tuple[int, ...] = (),
    has_categories: bool = False,
    steps: int | None = STEPS,
    start: NDArray[np.float64] | None = None,
    is_refit: bool = False,
) -> Deconvolution:
    """Return the most probable density for a `SmoothedField`; see `fit_log_density`."""
    likelihood = SmoothedField(observed, shifts, precision, circles, has_categories)
    return fit_log_density(
        likelihood,
        observed.shape,
        length_scale=length_scale,
        amplitude=amplitude,
        circles=circles,
        has_categories=has_categories,
        steps=steps,
        start=start,
        is_refit=is_refit,
    )
