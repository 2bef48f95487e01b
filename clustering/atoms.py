"""Normal atoms of three shapes, fitted to a characteristic function by weighted least squares."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.characteristic import Characteristic
from clustering.kernels.characteristic import jacobian, residuals

# Levenberg-Marquardt, as in `clustering.phase_model`.
FIRST_DAMPING, EASED, HARDENED, LEAST_DAMPING, MOST_DAMPING = 1e-2, 5.0, 6.0, 1e-6, 1e6
RIDGE = 1e-7  # of the largest curvature
CENTRE_STEP, SHARE_STEP = 0.1, 0.15
SPREAD_STEP = 0.35  # of the atom's width


class Shape(NamedTuple):
    """How an atom's spreads fill the lower triangular root A of its covariance A A^T."""

    name: str
    rows: NDArray[np.int64]  # (E,), entry e of A stands here
    columns: NDArray[np.int64]  # (E,)
    numbers: NDArray[np.int64]  # (E,), and is this one of the spreads

    @property
    def n_spreads(self) -> int:
        return int(self.numbers.max()) + 1

    @property
    def on_diagonal(self) -> NDArray[np.bool_]:
        """Which spreads stand on the diagonal: shape (T,)."""
        found = np.zeros(self.n_spreads, dtype=np.bool_)
        found[self.numbers[self.rows == self.columns]] = True
        return found


def round_shape(n_features: int) -> Shape:
    """As wide in every direction: one spread."""
    places = np.arange(n_features)
    return Shape("round", places, places, np.zeros(n_features, dtype=np.int64))


def diagonal_shape(n_features: int) -> Shape:
    """A width along each axis."""
    places = np.arange(n_features)
    return Shape("diagonal", places, places, places)


def full_shape(n_features: int) -> Shape:
    """Any covariance: d (d + 1) / 2 spreads, row by row."""
    rows, columns = (places.astype(np.int64) for places in np.tril_indices(n_features))
    return Shape("full", rows, columns, np.arange(len(rows)))


class Atoms(NamedTuple):
    """A mixture of normal atoms of one shape."""

    centres: NDArray[np.float64]  # (C, d)
    shares: NDArray[np.float64]  # (C,)
    spreads: NDArray[np.float64]  # (C, T)

    def roots(self, shape: Shape) -> NDArray[np.float64]:
        """A of each atom: shape (C, d, d)."""
        n_atoms, n_features = self.centres.shape
        filled = np.zeros((n_atoms, n_features, n_features))
        filled[:, shape.rows, shape.columns] = self.spreads[:, shape.numbers]
        return filled


class Rules(NamedTuple):
    """What atoms may be, and what is thought of their spreads beforehand."""

    lower: NDArray[np.float64]  # (d,), of centres
    upper: NDArray[np.float64]  # (d,)
    least_share: float
    least_width: float
    most_width: float
    usual_width: float  # ln width is normal around its logarithm
    stiffness: float  # one over the variance of that
    off_stiffness: float  # likewise of entries off the diagonal, normal around 0, in units of their row's width


class Polished(NamedTuple):
    """Where a fit ended."""

    atoms: Atoms
    loss: float  # weighted squared residual, without what is thought beforehand


def loss_of(seen: Characteristic, shape: Shape, atoms: Atoms) -> float:
    """sum over frequencies of weight |seen - expected|^2; half the degrees of freedom where atoms are right.

    So it is minus the logarithm of the likelihood, noise being normal in the complex plane.
    """
    residual = np.empty(2 * len(seen.values))
    return float(residuals(seen.omegas, seen.values, np.sqrt(seen.weights), *shape[1:], *atoms, residual))


def left_over(seen: Characteristic, shape: Shape, atoms: Atoms) -> NDArray[np.complex128]:
    """What the atoms leave of the values: shape (F,)."""
    n_frequencies = len(seen.values)
    residual = np.empty(2 * n_frequencies)
    residuals(seen.omegas, seen.values, np.ones(n_frequencies), *shape[1:], *atoms, residual)
    return residual[:n_frequencies] + 1j * residual[n_frequencies:]


def polish(
    seen: Characteristic,
    shape: Shape,
    start: Atoms,
    rules: Rules,
    n_steps: int,
    small_decrease: float,
    whole: bool = True,
) -> Polished:
    """Levenberg-Marquardt from a start.

    Parameters
    ----------
    whole : bool
        The atoms are all there is: their shares sum to one, and what is thought of spreads
        beforehand counts. Otherwise they are part of what is seen.
    """
    roots = np.sqrt(seen.weights)
    residual, tried_residual = np.empty((2, 2 * len(roots)))
    slopes = np.empty((len(residual), len(start.shares) * (start.centres.shape[1] + 1 + shape.n_spreads)))
    prior = _Prior(shape, rules, whole)
    atoms = start
    loss = residuals(seen.omegas, seen.values, roots, *shape[1:], *atoms, residual)
    best, damping, is_new = loss + prior.value(atoms), FIRST_DAMPING, True
    matrix = gradient = np.empty(0)
    for _ in range(n_steps):
        if is_new:
            jacobian(seen.omegas, roots, *shape[1:], *atoms, slopes)
            matrix, gradient = slopes.T @ slopes, slopes.T @ residual
            prior.add(atoms, matrix, gradient)
        moved = _moved(atoms, shape, matrix, gradient, damping, rules, whole)
        tried_loss = residuals(seen.omegas, seen.values, roots, *shape[1:], *moved, tried_residual)
        tried = tried_loss + prior.value(moved)
        is_new = tried < best
        if is_new:
            decrease, atoms, loss, best = best - tried, moved, tried_loss, tried
            residual, tried_residual = tried_residual, residual
            damping = max(damping / EASED, LEAST_DAMPING)
            if decrease < small_decrease:
                break
        else:
            damping = max(damping * HARDENED, 1e-3)
            if damping > MOST_DAMPING:
                break
    return Polished(atoms, float(loss))


def _moved(
    atoms: Atoms,
    shape: Shape,
    matrix: NDArray[np.float64],
    gradient: NDArray[np.float64],
    damping: float,
    rules: Rules,
    whole: bool,
) -> Atoms:
    """One damped step, cut and kept within the rules."""
    n_atoms, n_features = atoms.centres.shape
    diagonal = matrix.diagonal()
    damped = matrix + np.diag(damping * diagonal + RIDGE * diagonal.max() + 1e-9)
    if whole:  # shares go on summing to one
        summed = np.zeros((n_atoms, len(gradient) // n_atoms))
        summed[:, n_features] = 1.0
        free, along = np.linalg.solve(damped, np.column_stack([gradient, summed.ravel()])).T
        move = free - along * (summed.ravel() @ free) / (summed.ravel() @ along)
    else:
        move = np.linalg.solve(damped, gradient)
    steps = move.reshape(n_atoms, -1)
    centres = atoms.centres + np.clip(steps[:, :n_features], -CENTRE_STEP, CENTRE_STEP)
    shares = np.clip(atoms.shares + np.clip(steps[:, n_features], -SHARE_STEP, SHARE_STEP), rules.least_share, 1.0)
    on_diagonal = shape.on_diagonal
    widths = np.sqrt((atoms.spreads[:, on_diagonal] ** 2).mean(axis=1, keepdims=True))
    spreads = atoms.spreads + np.clip(steps[:, n_features + 1 :], -SPREAD_STEP * widths, SPREAD_STEP * widths)
    spreads[:, on_diagonal] = np.clip(spreads[:, on_diagonal], rules.least_width, rules.most_width)
    return Atoms(
        np.clip(centres, rules.lower, rules.upper), shares / shares.sum() if whole else shares, np.asarray(spreads)
    )


class _Prior:
    """What is thought of spreads beforehand, as terms of the loss, its gradient and its curvature."""

    def __init__(self, shape: Shape, rules: Rules, counts: bool) -> None:
        self._shape, self._rules, self._counts = shape, rules, counts
        self._on = shape.on_diagonal
        self._rows = shape.rows[~self._on[shape.numbers]]  # of the entries off the diagonal

    def value(self, atoms: Atoms) -> float:
        if not self._counts:
            return 0.0
        widths = atoms.spreads[:, self._on]
        off = self._off(atoms)
        far = np.log(widths / self._rules.usual_width)
        return float(0.5 * self._rules.stiffness * (far**2).sum() + 0.5 * self._rules.off_stiffness * (off**2).sum())

    def add(self, atoms: Atoms, matrix: NDArray[np.float64], gradient: NDArray[np.float64]) -> None:
        """To the normal equations, which hold half the loss's curvature and minus half its gradient."""
        if not self._counts:
            return
        n_atoms, n_features = atoms.centres.shape
        widths = atoms.spreads[:, self._on]
        pull, curve = np.zeros_like(atoms.spreads), np.zeros_like(atoms.spreads)
        pull[:, self._on] = self._rules.stiffness * np.log(widths / self._rules.usual_width) / widths
        curve[:, self._on] = self._rules.stiffness / widths**2
        if self._rows.size:
            pull[:, ~self._on] = self._rules.off_stiffness * self._off(atoms) / widths[:, self._rows]
            curve[:, ~self._on] = self._rules.off_stiffness / widths[:, self._rows] ** 2
        n_numbers = n_features + 1 + atoms.spreads.shape[1]
        at = (np.arange(n_atoms)[:, None] * n_numbers + np.arange(n_features + 1, n_numbers)).ravel()
        gradient[at] -= 0.5 * pull.ravel()
        matrix[at, at] += 0.5 * curve.ravel()

    def _off(self, atoms: Atoms) -> NDArray[np.float64]:
        """Entries off the diagonal, in units of their row's width."""
        if not self._rows.size:
            return np.zeros(0)
        return np.asarray(atoms.spreads[:, ~self._on] / atoms.spreads[:, self._on][:, self._rows])
