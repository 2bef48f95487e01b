"""Noisy vectors as a mixture of round clusters seen through Laplace noise that is known.

Nobody's coordinate lies outside [0, 1], and of a Laplace report beyond an end all that matters
is that it lies there: exp(-|y-x|/b) as a function of x in [0, 1] is the same up to a factor for
every y above 1. So reports are clipped to the lattice, which loses nothing, and a cluster's
chances are a table over its steps. Within a cluster, coordinates are independent and normal of
one spread for all clusters and features, cut off at the box.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.known_noise import responsibilities
from sfumato.specs import DiscreteLaplaceMechanism

HELD = 65  # places of [0, 1] that what is held is taken to lie on
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
        Of the reports, a constant left out that depends on them and the mechanism alone.
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
    moves: bool,
) -> NoisyMixture:
    """Expectation maximisation from given centres: shares, the spread and, if they move, the centres.

    Parameters
    ----------
    sample : ndarray of shape (n, d), int32
        Noisy vectors, in lattice units.
    mechanism : DiscreteLaplaceMechanism
        The noise; nothing that adds none is told from a twentieth of a step.
    centres : ndarray of shape (c, d)
        In [0, 1].
    iterations : int
        At least 1.
    moves : bool
        False keeps the centres where they are.
    """
    places = np.clip(sample, 0, mechanism.steps)
    noise = max(mechanism.scale_numerator / mechanism.scale_denominator, 0.05) / mechanism.steps
    reported, held = np.linspace(0, 1, mechanism.steps + 1), np.linspace(0, 1, HELD)
    through = np.exp(-np.abs(reported[:, None] - held) / noise)
    n_clusters, d = centres.shape
    mixture = NoisyMixture(centres, np.full(n_clusters, 1 / n_clusters), FIRST_SPREAD, -np.inf)
    masses, first_sums, second_sums = np.empty(n_clusters), np.empty((n_clusters, d)), np.empty((n_clusters, d))
    for _ in range(iterations):
        tables = _tables(mixture, through, held)
        likelihood = responsibilities(places, *tables, np.log(mixture.shares), masses, first_sums, second_sums)
        shares = np.maximum(masses / len(places), LEAST_SHARE)
        at = mixture.centres
        if moves:
            at = np.clip(first_sums / np.maximum(masses, _TINY)[:, None], 0.0, 1.0)
        square = (second_sums - 2 * at * first_sums + at**2 * masses[:, None]).sum() / (len(places) * d)
        mixture = NoisyMixture(at, shares / shares.sum(), max(float(square), LEAST_SPREAD**2) ** 0.5, likelihood)
    return mixture


def _tables(
    mixture: NoisyMixture, through: NDArray[np.float64], held: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """For each cluster, feature and place reported: log chance, and the held coordinate's two moments."""
    gaps = (held - mixture.centres[:, :, None]) / mixture.spread
    weights = np.exp(-0.5 * gaps**2)
    weights /= weights.sum(axis=2, keepdims=True)
    chances = weights @ through.T + _TINY
    firsts, seconds = (weights * held) @ through.T / chances, (weights * held**2) @ through.T / chances
    return np.log(chances), firsts, seconds
