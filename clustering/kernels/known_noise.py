"""The E-step of a mixture of round clusters seen through known noise, by tables over the lattice."""

from math import exp, log

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def responsibilities(
    places: NDArray[np.int32],  # IN (n, d), each 0..steps
    log_chances: NDArray[np.float64],  # IN (c, d, steps + 1), of a report's place given the cluster
    firsts: NDArray[np.float64],  # IN (c, d, steps + 1), mean of what was held given cluster and place
    seconds: NDArray[np.float64],  # IN (c, d, steps + 1), mean of its square
    log_shares: NDArray[np.float64],  # IN (c,)
    masses: NDArray[np.float64],  # OUT (c,): of the responsibilities r
    first_sums: NDArray[np.float64],  # OUT (c, d): of r times the first moment
    second_sums: NDArray[np.float64],  # OUT (c, d): of r times the second
) -> float:
    """Sum what the next step needs; returns the log likelihood."""
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
