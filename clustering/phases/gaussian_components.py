"""Gaussian components fitted to a noisy characteristic function by weighted least squares."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.phases import jacobian, residuals
from clustering.phases.mixture_fit import Sketch

CLEAR = 0.1  # least |c_q|^2 / |c_1|^2 of a harmonic that is used
MOST_HARMONICS = 8
MOST_FREQUENCIES = 4096  # bounds the work of a fit: four harmonics with 1024 waves


class Characteristic(NamedTuple):
    """The population's E e^(i omega . x), estimated at some frequencies."""

    omegas: NDArray[np.float64]  # (F, d), radians across the box
    values: NDArray[np.complex128]  # (F,), unbiased
    weights: NDArray[np.float64]  # (F,), about one over the variance E|noise|^2 of a value


def characteristic_of(sketch: Sketch) -> Characteristic:
    """Return the characteristic function at every wave of a sketch and its clear harmonics.

    Harmonic q of a wave's phases, sum over y of n_jy e^(2 pi i q y / L) / n_j, has the mean
    conj(c_q) phi(q omega_j). Each report adds one point of the unit circle, so the variance of
    phi is at most 1 / (n_j |c_q|^2).
    Harmonics of a wave are orthogonal over uniform phases, hence nearly uncorrelated. The
    harmonic q = L/2 is omitted, because it determines only the real part.
    """
    read = clear_harmonics(sketch)
    n_reports = sketch.counts.sum(axis=1)
    strengths = np.abs(sketch.harmonics) ** 2
    values = [
        (sketch.counts @ (sketch.cosines[q - 1] + 1j * sketch.sines[q - 1]))
        / n_reports
        / np.conj(sketch.harmonics[q - 1])
        for q in read
    ]
    return Characteristic(
        np.concatenate([q * sketch.omegas for q in read]),
        np.concatenate(values),
        np.concatenate([n_reports * strengths[q - 1] for q in read]),
    )


def clear_harmonics(sketch: Sketch) -> list[int]:
    """Return the harmonics of a sketch that are clear, ascending."""
    n_waves, n_phases = sketch.counts.shape
    strengths = np.abs(sketch.harmonics) ** 2
    most = max(1, min(MOST_HARMONICS, MOST_FREQUENCIES // max(n_waves, 1)))
    return [q for q in range(1, most + 1) if 2 * q < n_phases and strengths[q - 1] >= CLEAR * strengths[0]]


# Levenberg-Marquardt constants, with the meaning of `clustering.phases.mixture_fit`.
FIRST_DAMPING, DAMPING_DECREASE, DAMPING_INCREASE, LEAST_DAMPING, MOST_DAMPING = 1e-2, 5.0, 6.0, 1e-6, 1e6
RIDGE = 1e-7  # share of the largest curvature that is added
CENTRE_STEP, SHARE_STEP = 0.1, 0.15
SPREAD_STEP = 0.35  # share of the component's width


class CovarianceShape(NamedTuple):
    """Positions of a component's spreads in the lower triangular root A of its covariance A A^T."""

    name: str
    rows: NDArray[np.int64]  # (E,), row of entry e of A
    columns: NDArray[np.int64]  # (E,), column of entry e
    numbers: NDArray[np.int64]  # (E,), index of the spread at entry e

    @property
    def n_spreads(self) -> int:
        """Return the number of spreads T of a component."""
        return int(self.numbers.max()) + 1

    @property
    def on_diagonal(self) -> NDArray[np.bool_]:
        """Return whether each spread is on the diagonal: shape (T,)."""
        found = np.zeros(self.n_spreads, dtype=np.bool_)
        found[self.numbers[self.rows == self.columns]] = True
        return found


def round_shape(n_features: int) -> CovarianceShape:
    """Return the isotropic shape, with one spread."""
    places = np.arange(n_features)
    return CovarianceShape("round", places, places, np.zeros(n_features, dtype=np.int64))


def diagonal_shape(n_features: int) -> CovarianceShape:
    """Return the shape with one width per axis."""
    places = np.arange(n_features)
    return CovarianceShape("diagonal", places, places, places)


def full_shape(n_features: int) -> CovarianceShape:
    """Return the shape of any covariance, with d (d + 1) / 2 spreads, row by row."""
    rows, columns = (places.astype(np.int64) for places in np.tril_indices(n_features))
    return CovarianceShape("full", rows, columns, np.arange(len(rows)))


class Components(NamedTuple):
    """Gaussian components of one shape, a mixture."""

    centres: NDArray[np.float64]  # (C, d)
    shares: NDArray[np.float64]  # (C,)
    spreads: NDArray[np.float64]  # (C, T)

    def roots(self, shape: CovarianceShape) -> NDArray[np.float64]:
        """Return A of each component: shape (C, d, d)."""
        n_components, n_features = self.centres.shape
        filled = np.zeros((n_components, n_features, n_features))
        filled[:, shape.rows, shape.columns] = self.spreads[:, shape.numbers]
        return filled


class Constraints(NamedTuple):
    """Bounds of components, and the prior of their spreads."""

    lower: NDArray[np.float64]  # (d,), of centres
    upper: NDArray[np.float64]  # (d,)
    least_share: float
    least_width: float
    most_width: float
    usual_width: float  # mean of the normal prior on ln width is its logarithm
    stiffness: float  # inverse variance of the prior on ln width
    off_stiffness: float  # inverse variance of off-diagonal entries (mean 0), in units of their row's width


class ComponentFit(NamedTuple):
    """Result of a fit."""

    components: Components
    loss: float  # weighted squared residual, without the prior


def characteristic_residual(
    seen: Characteristic, shape: CovarianceShape, components: Components
) -> NDArray[np.complex128]:
    """Return the observed values minus those of the components: shape (F,)."""
    n_frequencies = len(seen.values)
    residual = np.empty(2 * n_frequencies)
    residuals(seen.omegas, seen.values, np.ones(n_frequencies), *shape[1:], *components, residual)
    return residual[:n_frequencies] + 1j * residual[n_frequencies:]


def fit_components(
    seen: Characteristic,
    shape: CovarianceShape,
    start: Components,
    rules: Constraints,
    n_steps: int,
    small_decrease: float,
    whole: bool = True,
) -> ComponentFit:
    """Fit components by Levenberg-Marquardt.

    Parameters
    ----------
    seen : Characteristic
    shape : CovarianceShape
    start : Components
    rules : Constraints
    n_steps : int
        Maximum number of steps.
    small_decrease : float
        Decrease of the loss at which the fit stops.
    whole : bool
        Whether the components are the whole mixture: their shares sum to one, and the prior on
        spreads applies. Otherwise they are a part of it.

    Returns
    -------
    ComponentFit
    """
    roots = np.sqrt(seen.weights)
    residual, tried_residual = np.empty((2, 2 * len(roots)))
    slopes = np.empty((len(residual), len(start.shares) * (start.centres.shape[1] + 1 + shape.n_spreads)))
    prior = _Prior(shape, rules, whole)
    components = start
    loss = residuals(seen.omegas, seen.values, roots, *shape[1:], *components, residual)
    best, damping, is_new = loss + prior.value(components), FIRST_DAMPING, True
    matrix = gradient = np.empty(0)
    for _ in range(n_steps):
        if is_new:
            jacobian(seen.omegas, roots, *shape[1:], *components, slopes)
            matrix, gradient = slopes.T @ slopes, slopes.T @ residual
            prior.add(components, matrix, gradient)
        trial = _step(components, shape, matrix, gradient, damping, rules, whole)
        tried_loss = residuals(seen.omegas, seen.values, roots, *shape[1:], *trial, tried_residual)
        tried = tried_loss + prior.value(trial)
        is_new = tried < best
        if is_new:
            decrease, components, loss, best = best - tried, trial, tried_loss, tried
            residual, tried_residual = tried_residual, residual
            damping = max(damping / DAMPING_DECREASE, LEAST_DAMPING)
            if decrease < small_decrease:
                break
        else:
            damping = max(damping * DAMPING_INCREASE, 1e-3)
            if damping > MOST_DAMPING:
                break
    return ComponentFit(components, float(loss))


def _step(
    components: Components,
    shape: CovarianceShape,
    matrix: NDArray[np.float64],
    gradient: NDArray[np.float64],
    damping: float,
    rules: Constraints,
    whole: bool,
) -> Components:
    """Return the components after one damped step, clipped to the constraints."""
    n_components, n_features = components.centres.shape
    diagonal = matrix.diagonal()
    damped = matrix + np.diag(damping * diagonal + RIDGE * diagonal.max() + 1e-9)
    if whole:  # keep the sum of shares
        summed = np.zeros((n_components, len(gradient) // n_components))
        summed[:, n_features] = 1.0
        free, along = np.linalg.solve(damped, np.column_stack([gradient, summed.ravel()])).T
        move = free - along * (summed.ravel() @ free) / (summed.ravel() @ along)
    else:
        move = np.linalg.solve(damped, gradient)
    steps = move.reshape(n_components, -1)
    centres = components.centres + np.clip(steps[:, :n_features], -CENTRE_STEP, CENTRE_STEP)
    shares = np.clip(components.shares + np.clip(steps[:, n_features], -SHARE_STEP, SHARE_STEP), rules.least_share, 1.0)
    on_diagonal = shape.on_diagonal
    widths = np.sqrt((components.spreads[:, on_diagonal] ** 2).mean(axis=1, keepdims=True))
    spreads = components.spreads + np.clip(steps[:, n_features + 1 :], -SPREAD_STEP * widths, SPREAD_STEP * widths)
    spreads[:, on_diagonal] = np.clip(spreads[:, on_diagonal], rules.least_width, rules.most_width)
    return Components(
        np.clip(centres, rules.lower, rules.upper), shares / shares.sum() if whole else shares, np.asarray(spreads)
    )


class _Prior:
    """The prior of spreads, as terms of the loss, its gradient and its curvature."""

    def __init__(self, shape: CovarianceShape, rules: Constraints, counts: bool) -> None:
        self._shape, self._rules, self._counts = shape, rules, counts
        self._on = shape.on_diagonal
        self._rows = shape.rows[~self._on[shape.numbers]]  # rows of the off-diagonal entries

    def value(self, components: Components) -> float:
        if not self._counts:
            return 0.0
        widths = components.spreads[:, self._on]
        off = self._off(components)
        far = np.log(widths / self._rules.usual_width)
        return float(0.5 * self._rules.stiffness * (far**2).sum() + 0.5 * self._rules.off_stiffness * (off**2).sum())

    def add(self, components: Components, matrix: NDArray[np.float64], gradient: NDArray[np.float64]) -> None:
        """Add the prior to the normal equations, which contain half the curvature and minus half the gradient."""
        if not self._counts:
            return
        n_components, n_features = components.centres.shape
        widths = components.spreads[:, self._on]
        pull, curve = np.zeros_like(components.spreads), np.zeros_like(components.spreads)
        pull[:, self._on] = self._rules.stiffness * np.log(widths / self._rules.usual_width) / widths
        curve[:, self._on] = self._rules.stiffness / widths**2
        if self._rows.size:
            pull[:, ~self._on] = self._rules.off_stiffness * self._off(components) / widths[:, self._rows]
            curve[:, ~self._on] = self._rules.off_stiffness / widths[:, self._rows] ** 2
        n_numbers = n_features + 1 + components.spreads.shape[1]
        at = (np.arange(n_components)[:, None] * n_numbers + np.arange(n_features + 1, n_numbers)).ravel()
        gradient[at] -= 0.5 * pull.ravel()
        matrix[at, at] += 0.5 * curve.ravel()

    def _off(self, components: Components) -> NDArray[np.float64]:
        """Return the off-diagonal entries in units of their row's width."""
        if not self._rows.size:
            return np.zeros(0)
        return np.asarray(components.spreads[:, ~self._on] / components.spreads[:, self._on][:, self._rows])
