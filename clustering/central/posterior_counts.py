"""Posterior means of noisy counts under an empirical prior. They depend on query answers only, so they cost nothing.

A cell is empty with probability pi, else its count has a heavy-tailed Lomax distribution of index 3
around its expectation. pi is the candidate with the highest likelihood of all noisy counts together.
"""

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.mixtures import posterior_means

EMPTY = (0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)  # candidates for pi

CLEAR_SCALES = 30.0  # noise scales above which a count is unchanged; no prior moves it by a third of a scale
LEAST_SCALE = 1e-3  # minimum noise scale in records
LEAST_EXPECTED = 1e-6  # minimum expectation in records

_INDEX = 3.0  # tail index: P(count > t) decreases as t^-3
_N_PLACES, _N_TAIL_PLACES = 80, 24
_TAIL = 1e-7  # probability beyond the last place


def estimate_counts(
    counts: NDArray[np.float64], scales: NDArray[np.float64], expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return posterior means of counts with Laplace noise.

    Parameters
    ----------
    counts : ndarray of shape (n,)
        Noisy counts, n at least 1.
    scales : ndarray of shape (n,)
        Noise scales.
    expected : ndarray of shape (n,)
        Prior means.

    Returns
    -------
    ndarray of shape (n,), float64
        Non-negative.
    """
    scales, expected = np.maximum(scales, LEAST_SCALE), np.maximum(expected, LEAST_EXPECTED)
    best, highest = np.empty(len(counts)), -np.inf
    for empty in EMPTY:
        means = np.empty(len(counts))
        likelihood = posterior_means(counts, scales, expected, empty, _PLACES, _PROBABILITIES, means)
        if likelihood > highest:
            best, highest = means, likelihood
    return np.where(counts > CLEAR_SCALES * scales, counts, best)


def _lomax() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return places and probabilities that represent a Lomax distribution of mean 1: equal quantiles, then a tail."""
    body = (np.arange(_N_PLACES - 1) + 0.5) / _N_PLACES
    last = 1 - 0.25 / _N_PLACES
    levels = np.concatenate([body, [last], 1 - np.geomspace(0.25 / _N_PLACES, _TAIL, _N_TAIL_PLACES)])
    places = (_INDEX - 1) * ((1 - levels) ** (-1 / _INDEX) - 1)
    return places, np.diff(np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]]))


_PLACES, _PROBABILITIES = _lomax()
