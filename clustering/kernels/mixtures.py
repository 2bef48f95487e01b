"""The E-step of a mixture under known noise, and posterior means of counts under Laplace noise."""

from math import exp, log

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def sum_responsibilities(
    places: NDArray[np.int32],  # IN (n, d), each 0..steps
    log_chances: NDArray[np.float64],  # IN (c, d, steps + 1), log probability of a reported place given the cluster
    firsts: NDArray[np.float64],  # IN (c, d, steps + 1), mean of the true coordinate given cluster and place
    seconds: NDArray[np.float64],  # IN (c, d, steps + 1), mean of its square
    log_shares: NDArray[np.float64],  # IN (c,)
    masses: NDArray[np.float64],  # OUT (c,), sums of the responsibilities r
    first_sums: NDArray[np.float64],  # OUT (c, d), sums of r times the first moment
    second_sums: NDArray[np.float64],  # OUT (c, d), sums of r times the second moment
) -> float:
    """Sum the responsibilities and moments over all reports, and return the log likelihood."""
    n, d = places.shape
    n_clusters = log_shares.shape[0]
    scores = np.empty(n_clusters)
    masses[:], first_sums[:], second_sums[:] = 0.0, 0.0, 0.0
    likelihood = 0.0
    for i in range(n):
        most = -np.inf
        for c in range(n_clusters):
            scores[c] = log_shares[c]
            for j in range(d):
                scores[c] += log_chances[c, j, places[i, j]]
            most = max(most, scores[c])
        total = 0.0
        for c in range(n_clusters):
            scores[c] = exp(scores[c] - most)
            total += scores[c]
        likelihood += most + log(total)
        for c in range(n_clusters):
            share = scores[c] / total
            masses[c] += share
            for j in range(d):
                first_sums[c, j] += share * firsts[c, j, places[i, j]]
                second_sums[c, j] += share * seconds[c, j, places[i, j]]
    return likelihood


@njit(cache=True, nogil=True)
def posterior_means(
    counts: NDArray[np.float64],  # IN (n,), noisy
    scales: NDArray[np.float64],  # IN (n,), positive, Laplace noise scales
    expected: NDArray[np.float64],  # IN (n,), positive, prior means
    empty: float,  # IN, in [0, 1), prior probability of zero
    places: NDArray[np.float64],  # IN (m,), support of the prior, mean 1
    chances: NDArray[np.float64],  # IN (m,), probabilities, sum 1
    means: NDArray[np.float64],  # OUT (n,)
) -> float:
    """Compute posterior means and return the log likelihood, without the noise's normalisation constant.

    The prior has probability `empty` at 0; the rest is distributed over places * expected / (1 - empty).
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
