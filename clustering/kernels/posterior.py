"""Posterior means of counts under Laplace noise, by sums over a few places of a prior."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def posterior_means(
    counts: NDArray[np.float64],  # IN (n,), noisy
    scales: NDArray[np.float64],  # IN (n,), positive: of the Laplace noise
    expected: NDArray[np.float64],  # IN (n,), positive: prior means
    empty: float,  # IN, in [0, 1), prior chance of zero
    places: NDArray[np.float64],  # IN (m,), of the prior of mean one
    chances: NDArray[np.float64],  # IN (m,), of sum one
    means: NDArray[np.float64],  # OUT (n,)
) -> float:
    """Means under `empty` at zero and the rest spread by places * expected/(1-empty); returns the log likelihood.

    (Less what the noise's normalisation adds, which no prior changes.)
    """
    total = 0.0
    for i in range(counts.shape[0]):
        factor = expected[i] / (1.0 - empty)
        least = abs(counts[i]) / scales[i] if empty > 0.0 else np.inf
        for m in range(places.shape[0]):
            least = min(least, abs(counts[i] - factor * places[m]) / scales[i])
        weight = empty * np.exp(least - abs(counts[i]) / scales[i])
        moment = 0.0
        for m in range(places.shape[0]):
            part = chances[m] * (1.0 - empty) * np.exp(least - abs(counts[i] - factor * places[m]) / scales[i])
            weight += part
            moment += part * factor * places[m]
        means[i] = moment / weight
        total += np.log(weight) - least
    return total
