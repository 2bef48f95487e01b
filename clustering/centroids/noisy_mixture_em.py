"""Expectation maximisation for a mixture of round clusters observed through known Laplace noise.

True coordinates lie in [0, 1]. For a report y above 1, exp(-|y-x|/b) as a function of x in [0, 1] is the
same up to a factor, so reports are clipped to the lattice without loss. The probabilities of a cluster's
reports are then a table over lattice steps. Within a cluster, coordinates are independent and normal,
truncated to the box, with one spread for all clusters and features.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.mixtures import sum_responsibilities
from sfumato.specs import DiscreteLaplaceMechanism

N_PLACES = 65  # grid of true coordinates in [0, 1]
LEAST_SPREAD = 0.02
LEAST_SHARE = 1e-3
FIRST_SPREAD = 0.1
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class NoisyMixture:
    """A mixture of round clusters.

    Attributes
    ----------
    centres : ndarray of shape (c, d)
        In [0, 1].
    shares : ndarray of shape (c,)
    spread : float
        Standard deviation of a coordinate within a cluster.
    log_likelihood : float
        Log likelihood of the reports, up to a constant that depends on them and the mechanism only.
    """

    centres: NDArray[np.float64]
    shares: NDArray[np.float64]
    spread: float
    log_likelihood: float


def fit_mixture(
    sample: NDArray[np.int32],
    mechanism: DiscreteLaplaceMechanism,
    centres: NDArray[np.float64],
    *,
    iterations: int,
    move_centres: bool,
) -> NoisyMixture:
    """Fit shares, the spread and optionally the centres, starting from given centres.

    Parameters
    ----------
    sample : ndarray of shape (n, d), int32
        Noisy vectors, in lattice units.
    mechanism : DiscreteLaplaceMechanism
        The noise. A scale below a twentieth of a lattice step is replaced by that.
    centres : ndarray of shape (c, d)
        In [0, 1].
    iterations : int
        At least 1.
    move_centres : bool
        Whether to update the centres.

    Returns
    -------
    NoisyMixture
    """
    places = np.clip(sample, 0, mechanism.steps)
    noise = max(mechanism.scale_numerator / mechanism.scale_denominator, 0.05) / mechanism.steps
    reported, coordinates = np.linspace(0, 1, mechanism.steps + 1), np.linspace(0, 1, N_PLACES)
    through = np.exp(-np.abs(reported[:, None] - coordinates) / noise)
    n_clusters, d = centres.shape
    mixture = NoisyMixture(centres, np.full(n_clusters, 1 / n_clusters), FIRST_SPREAD, -np.inf)
    masses, first_sums, second_sums = np.empty(n_clusters), np.empty((n_clusters, d)), np.empty((n_clusters, d))
    for _ in range(iterations):
        tables = _tables(mixture, through, coordinates)
        likelihood = sum_responsibilities(places, *tables, np.log(mixture.shares), masses, first_sums, second_sums)
        shares = np.maximum(masses / len(places), LEAST_SHARE)
        at = mixture.centres
        if move_centres:
            at = np.clip(first_sums / np.maximum(masses, _TINY)[:, None], 0.0, 1.0)
        square = (second_sums - 2 * at * first_sums + at**2 * masses[:, None]).sum() / (len(places) * d)
        mixture = NoisyMixture(at, shares / shares.sum(), max(float(square), LEAST_SPREAD**2) ** 0.5, likelihood)
    return mixture


def _tables(
    mixture: NoisyMixture, through: NDArray[np.float64], coordinates: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return, by cluster, feature and reported place, the log probability and two moments of the true coordinate."""
    gaps = (coordinates - mixture.centres[:, :, None]) / mixture.spread
    weights = np.exp(-0.5 * gaps**2)
    weights /= weights.sum(axis=2, keepdims=True)
    chances = weights @ through.T + _TINY
    firsts, seconds = (weights * coordinates) @ through.T / chances, (weights * coordinates**2) @ through.T / chances
    return np.log(chances), firsts, seconds
