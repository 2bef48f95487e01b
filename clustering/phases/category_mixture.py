"""Clusters with category shares, fitted to the phases of waves with characters by weighted least squares.

Within a cluster, places are round normal, and places and categories are independent. The characteristic function at a
wave of frequency omega and characters a is then

    phi(omega, a) = sum_k pi_k e^(i omega.mu_k - |omega|^2 s_k^2 / 2) prod_j sum_v theta_kjv e^(2 pi i a_j v / m_j).

Characters are a basis of all functions of the categories. So waves with several attributes determine how categories
occur together, and separate clusters that have one place. Shares are softmaxes of free numbers, with a weak normal
prior, because the sum of those numbers has no effect. Widths have the prior of `mixture_fit.Alike`.
"""

from collections.abc import Sequence
from math import pi
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.phases.gaussian_components import characteristic_of, clear_harmonics
from clustering.phases.mixture_fit import (
    DAMPING_DECREASE,
    DAMPING_INCREASE,
    FIRST_DAMPING,
    LEAST_DAMPING,
    LOG_WIDTH_VARIANCE,
    MOST_DAMPING,
    PLACE_VARIANCE,
    RIDGE,
    SHARE_VARIANCE,
    SMALL_DECREASE,
    STEPS,
    Alike,
    Limits,
    Mixture,
    Sketch,
)

CENTRE_STEP, LOG_STEP = 0.1, 1.0  # largest step of a coordinate, and of the logarithm of a width or share
LOG_SHARE_VARIANCE = 9.0  # prior variance of the logarithm of a share
LEAST_LOG = -30.0  # least logarithm of a share, before its scale


class CategoryWaves(NamedTuple):
    """Estimated values of the characteristic function of places and categories."""

    omegas: NDArray[np.float64]  # (F, d), radians across the box
    characters: NDArray[np.int64]  # (F, J)
    categories: tuple[int, ...]  # m_j, number of categories of each attribute
    values: NDArray[np.complex128]  # (F,), unbiased
    weights: NDArray[np.float64]  # (F,), about one over the variance E|noise|^2 of a value
    n_first: int  # number of first harmonics, which come first
    turns: tuple[NDArray[np.complex128], ...]  # (F, m_j) for each attribute, e^(2 pi i a v / m)

    @classmethod
    def of(
        cls,
        omegas: NDArray[np.float64],
        characters: NDArray[np.int64],
        categories: tuple[int, ...],
        values: NDArray[np.complex128],
        weights: NDArray[np.float64],
        n_first: int,
    ) -> "CategoryWaves":
        """Return the values with the turns of their categories."""
        turns = (
            np.exp(2j * pi * (np.outer(character, np.arange(m)) % m) / m)
            for character, m in zip(characters.T, categories, strict=True)
        )
        return cls(omegas, characters, categories, values, weights, n_first, tuple(turns))

    @property
    def n_features(self) -> int:
        """Return the number of numeric features d."""
        return int(self.omegas.shape[1])

    @property
    def firsts(self) -> "CategoryWaves":
        """Return the first harmonics."""
        n = self.n_first
        return CategoryWaves(
            self.omegas[:n],
            self.characters[:n],
            self.categories,
            self.values[:n],
            self.weights[:n],
            n,
            tuple(turn[:n] for turn in self.turns),
        )


class CategoryMixture(NamedTuple):
    """A mixture of round normal clusters with category shares."""

    places: Mixture
    shares: tuple[NDArray[np.float64], ...]  # (C, m_j) for each attribute, rows of sum one

    def take(self, kept: NDArray[np.int64]) -> "CategoryMixture":
        """Return the mixture of some clusters, in their order."""
        return CategoryMixture(self.places.take(kept), tuple(part[kept] for part in self.shares))


class CategoryFit(NamedTuple):
    """Result of a fit."""

    mixture: CategoryMixture
    nll: float  # weighted squared residual relative to uniform phases and categories, in nats, and the priors
    converged: bool

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters."""
        return len(self.mixture.places.shares)

    @property
    def diagnostics(self) -> dict[str, float | bool]:
        """Return the diagnostics of the fit that a model publishes."""
        return {"negative_log_likelihood": self.nll, "converged": self.converged}


class CategoryErrors(NamedTuple):
    """Standard errors of a mixture."""

    centres: NDArray[np.float64]  # (C, d)
    sizes: NDArray[np.float64]  # (C,)
    log_widths: NDArray[np.float64]  # (C,)
    shares: tuple[NDArray[np.float64], ...]  # (C, m_j) for each attribute


def category_waves(sketch: Sketch, characters: NDArray[np.int64], categories: Sequence[int]) -> CategoryWaves:
    """Return the values of each wave of a sketch and its clear harmonics.

    Harmonic q of a wave has the frequency q omega and the characters q a mod m.

    Parameters
    ----------
    sketch : Sketch
    characters : ndarray of shape (m, J)
        Of the waves of the sketch.
    categories : sequence of int
    """
    seen, read = characteristic_of(sketch), clear_harmonics(sketch)
    multiples = np.concatenate([q * characters for q in read]) % np.array(categories)
    return CategoryWaves.of(seen.omegas, multiples, tuple(categories), seen.values, seen.weights, len(characters))


def cluster_values(waves: CategoryWaves, mixture: CategoryMixture) -> NDArray[np.complex128]:
    """Return the characteristic function of each cluster's people: (F, C)."""
    found = _place_values(waves, mixture.places)
    for turn, shares in zip(waves.turns, mixture.shares, strict=True):
        found *= turn @ shares.T
    return found


def residual(waves: CategoryWaves, mixture: CategoryMixture) -> NDArray[np.complex128]:
    """Return the values without those of a mixture: (F,)."""
    return np.asarray(waves.values - cluster_values(waves, mixture) @ mixture.places.shares)


def _place_values(waves: CategoryWaves, places: Mixture) -> NDArray[np.complex128]:
    squared = (waves.omegas**2).sum(axis=1)
    return np.asarray(np.exp(1j * (waves.omegas @ places.centres.T) - np.outer(squared, places.widths**2) / 2))


class _Numbers(NamedTuple):
    """The free numbers of a mixture: a column for each cluster's centre, log width, log size and log shares."""

    centres: NDArray[np.float64]  # (C, d)
    log_widths: NDArray[np.float64]  # (C,)
    logs: NDArray[np.float64]  # (C, 1 + T), of sizes and of category shares, each with a mean of zero


def _numbers_of(mixture: CategoryMixture) -> _Numbers:
    sizes = _centred(mixture.places.shares[None])[0]
    parts = [_centred(part) for part in mixture.shares]
    return _Numbers(mixture.places.centres, np.log(mixture.places.widths), np.column_stack([sizes, *parts]))


def _centred(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    logs = np.maximum(np.log(np.maximum(shares, np.finfo(np.float64).tiny)), LEAST_LOG)
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))


def _softmax(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    parts = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(parts / parts.sum(axis=1, keepdims=True))


def _mixture_of(numbers: _Numbers, categories: Sequence[int]) -> CategoryMixture:
    ends = 1 + np.cumsum(categories)
    sizes, *parts = np.split(numbers.logs, [1, *ends[:-1]], axis=1)
    places = Mixture(numbers.centres, _softmax(sizes.T)[0], np.exp(numbers.log_widths))
    return CategoryMixture(places, tuple(_softmax(part) for part in parts))


def objective(waves: CategoryWaves, mixture: CategoryMixture) -> float:
    """Return the weighted squared residual relative to uniform phases, plus the priors of shares and widths.

    The noise of a value is complex with E|noise|^2 = 1/weight, so a weighted square is a negative log likelihood.
    """
    left, logs = residual(waves, mixture), _numbers_of(mixture).logs
    squares = waves.weights @ (np.abs(left) ** 2 - np.abs(waves.values) ** 2)
    return float(squares + (logs**2).sum() / (2 * LOG_SHARE_VARIANCE)) + Alike.of(mixture.places.widths).value


def normal_equations(waves: CategoryWaves, mixture: CategoryMixture) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the gradient of `objective` (P,) and its information (P, P).

    P = C (d + 2 + T) for T categories in all: each cluster's centre, log width, log size and log shares.
    """
    roots = np.sqrt(2 * waves.weights)
    parts = slopes(waves, mixture) * roots[:, None], residual(waves, mixture) * roots
    rows, left = (np.concatenate([each.real, each.imag]) for each in parts)
    numbers, matrix, gradient = _numbers_of(mixture), rows.T @ rows, -(rows.T @ left)
    prior, pull = np.zeros((2, *_shape(waves, mixture)))
    prior[:, waves.n_features + 1 :] = 1 / LOG_SHARE_VARIANCE
    pull[:, waves.n_features + 1 :] = numbers.logs / LOG_SHARE_VARIANCE
    alike = Alike.of(mixture.places.widths)
    pull[:, waves.n_features] = alike.gradient
    matrix[np.diag_indices(len(matrix))] += prior.ravel()
    at = np.arange(waves.n_features, len(matrix), prior.shape[1])  # places of the log widths
    matrix[np.ix_(at, at)] += alike.information
    return gradient + pull.ravel(), matrix


def _shape(waves: CategoryWaves, mixture: CategoryMixture) -> tuple[int, int]:
    """Return the numbers of clusters and of parameters of each."""
    return len(mixture.places.shares), waves.n_features + 2 + sum(waves.categories)


def slopes(waves: CategoryWaves, mixture: CategoryMixture) -> NDArray[np.complex128]:
    """Return the derivatives of the expected values with respect to the parameters: (F, P)."""
    found, d = linear_slopes(waves, mixture), waves.n_features
    sizes = mixture.places.shares
    own = found[:, :, d + 1] * sizes
    found[:, :, d + 1] = own - sizes * own.sum(axis=1, keepdims=True)
    first = d + 2
    for shares in mixture.shares:
        part = found[:, :, first : first + shares.shape[1]]
        part -= (part * shares).sum(axis=2, keepdims=True)
        part *= shares
        first += shares.shape[1]
    return found.reshape(len(found), -1)


def linear_slopes(waves: CategoryWaves, mixture: CategoryMixture) -> NDArray[np.complex128]:
    """Return the derivatives with respect to centres, log widths, sizes and category shares: (F, C, d + 2 + T)."""
    places, (n_clusters, n_parameters), d = mixture.places, _shape(waves, mixture), waves.n_features
    means = [turn @ shares.T for turn, shares in zip(waves.turns, mixture.shares, strict=True)]  # (F, C) each
    alone = _place_values(waves, places)
    values = alone * np.prod(means, axis=0)
    found = np.empty((len(values), n_clusters, n_parameters), dtype=np.complex128)
    own = values * places.shares
    found[:, :, :d] = 1j * own[:, :, None] * waves.omegas[:, None, :]
    found[:, :, d] = -own * np.outer((waves.omegas**2).sum(axis=1), places.widths**2)
    found[:, :, d + 1] = values
    first = d + 2
    for place, turn in enumerate(waves.turns):
        others = alone * places.shares * np.prod(means[:place] + means[place + 1 :], axis=0)
        last = first + waves.categories[place]
        found[:, :, first:last] = others[:, :, None] * turn[:, None, :]
        first = last
    return found


def climb(waves: CategoryWaves, start: CategoryMixture, limits: Limits, n_steps: int = STEPS) -> CategoryFit:
    """Minimise `objective` by Levenberg-Marquardt.

    Parameters
    ----------
    waves : CategoryWaves
    start : CategoryMixture
    limits : Limits
    n_steps : int
        Maximum number of steps.
    """
    mixture, best = start, objective(waves, start)
    gradient, matrix = normal_equations(waves, mixture)
    damping = FIRST_DAMPING
    for _ in range(n_steps):
        trial = _step(waves, mixture, gradient, matrix, damping, limits)
        tried = objective(waves, trial)
        if tried < best:
            decrease, mixture, best = best - tried, trial, tried
            if decrease < SMALL_DECREASE:
                return CategoryFit(mixture, best, True)
            damping = max(damping / DAMPING_DECREASE, LEAST_DAMPING)
            gradient, matrix = normal_equations(waves, mixture)
        else:
            damping = max(damping * DAMPING_INCREASE, 1e-3)
            if damping > MOST_DAMPING:  # no step decreases the objective
                return CategoryFit(mixture, best, True)
    return CategoryFit(mixture, best, False)


def _step(
    waves: CategoryWaves,
    mixture: CategoryMixture,
    gradient: NDArray[np.float64],
    matrix: NDArray[np.float64],
    damping: float,
    limits: Limits,
) -> CategoryMixture:
    """Return the mixture after one damped step, clipped to the limits."""
    diagonal = matrix.diagonal()
    damped = matrix + np.diag(damping * diagonal + RIDGE * diagonal.max())
    move = np.linalg.solve(damped, gradient).reshape(_shape(waves, mixture))
    d, numbers = waves.n_features, _numbers_of(mixture)
    widths = numbers.log_widths - np.clip(move[:, d], -LOG_STEP, LOG_STEP)
    moved = _Numbers(
        limits.move(numbers.centres - np.clip(move[:, :d], -CENTRE_STEP, CENTRE_STEP)),
        np.clip(widths, np.log(limits.least_width), np.log(limits.most_width)),
        numbers.logs - np.clip(move[:, d + 1 :], -LOG_STEP, LOG_STEP),
    )
    return _mixture_of(moved, waves.categories)


def standard_errors(waves: CategoryWaves, mixture: CategoryMixture) -> CategoryErrors:
    """Return Cramer-Rao errors: from the inverse information, with prior information as in `mixture_fit`.

    The noise of a value is at most that of uniform phases, so the errors are rather too large, with a large epsilon
    by up to a third. Sizes, and the shares of an attribute in a cluster, have the sum one. They are parameters
    themselves, because the logarithm of a share near zero is not determined.
    """
    shape, d = _shape(waves, mixture), waves.n_features
    rows = linear_slopes(waves, mixture).reshape(len(waves.values), -1) * np.sqrt(2 * waves.weights)[:, None]
    before = np.full(shape, 1 / SHARE_VARIANCE)
    before[:, :d], before[:, d] = 1 / PLACE_VARIANCE, 1 / LOG_WIDTH_VARIANCE
    matrix = rows.real.T @ rows.real + rows.imag.T @ rows.imag + np.diag(before.ravel())
    covariance, sums = np.linalg.inv(matrix), _sums(shape, d, waves.categories)
    of_sums = covariance @ sums.T
    fixed = np.linalg.solve(sums @ of_sums, of_sums.T)
    variances = covariance.diagonal() - np.einsum("ij,ji->i", of_sums, fixed)
    errors = np.asarray(np.sqrt(np.maximum(variances, 0.0)), dtype=np.float64).reshape(shape)
    parts = np.split(errors[:, d + 2 :], np.cumsum(waves.categories)[:-1], axis=1)
    return CategoryErrors(errors[:, :d], errors[:, d + 1], errors[:, d], tuple(parts))


def _sums(shape: tuple[int, int], d: int, categories: Sequence[int]) -> NDArray[np.float64]:
    """Return the sums that are one, as rows over the parameters: of sizes, then of each cluster and attribute."""
    n_clusters, _ = shape
    rows = np.zeros((1 + n_clusters * len(categories), *shape))
    rows[0, :, d + 1] = 1.0
    ends = d + 2 + np.cumsum(categories)
    for cluster in range(n_clusters):
        for place, (m, end) in enumerate(zip(categories, ends, strict=True)):
            rows[1 + cluster * len(categories) + place, cluster, end - m : end] = 1.0
    return rows.reshape(len(rows), -1)
