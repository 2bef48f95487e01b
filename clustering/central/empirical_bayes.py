"""What noisy counts of cells were likely to be: posterior means under a prior that the counts themselves choose.

The prior of a cell: empty with chance pi, else of heavy tail, Lomax with index 3, about what
is expected of it. pi is the one of a few under which all the noisy counts together are
likeliest. Made of noisy counts alone, so it costs nothing.
"""

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.posterior import posterior_means

EMPTY = (0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)  # tried for pi

CLEAR_SCALES = 30.0  # a count of so many scales of its noise is taken as it is: no prior moves it by a third of one
LEAST_SCALE = 1e-3  # of noise, in records
LEAST_EXPECTED = 1e-6  # records

_INDEX = 3.0  # of the tail: P(count > t) falls as t^-3
_N_PLACES, _N_TAIL_PLACES = 80, 24
_TAIL = 1e-7  # the last place is exceeded with this chance


def posterior(
    counts: NDArray[np.float64], scales: NDArray[np.float64], expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Posterior means of counts whose noise is Laplace.

    Parameters
    ----------
    counts : ndarray of shape (n,)
        Noisy; n at least 1.
    scales : ndarray of shape (n,)
        Of the noise.
    expected : ndarray of shape (n,)
        What is expected of each before it is seen.

    Returns
    -------
    ndarray of shape (n,), float64
        None negative.
    """
    scales, expected = np.maximum(scales, LEAST_SCALE), np.maximum(expected, LEAST_EXPECTED)
    best, likeliest = np.empty(len(counts)), -np.inf
    for empty in EMPTY:
        means = np.empty(len(counts))
        likelihood = posterior_means(counts, scales, expected, empty, _PLACES, _CHANCES, means)
        if likelihood > likeliest:
            best, likeliest = means, likelihood
    return np.where(counts > CLEAR_SCALES * scales, counts, best)


def _lomax() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places and chances of a Lomax distribution of mean one: middles of equal chances, then a tail."""
    body = (np.arange(_N_PLACES - 1) + 0.5) / _N_PLACES
    last = 1 - 0.25 / _N_PLACES
    levels = np.concatenate([body, [last], 1 - np.geomspace(0.25 / _N_PLACES, _TAIL, _N_TAIL_PLACES)])
    places = (_INDEX - 1) * ((1 - levels) ** (-1 / _INDEX) - 1)
    return places, np.diff(np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]]))


_PLACES, _CHANCES = _lomax()
