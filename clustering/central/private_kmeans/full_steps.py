"""Lloyd steps in a concentrated block in all features, and the final shrinkage of centres to their mean."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, from_places
from clustering.central.gaussian_block import ConcentratedBlock, Rho
from clustering.central.private_kmeans.private_lloyd import LEAST_OF_FORMER, trust_moves
from clustering.central.private_kmeans.repair import Clusters, Step, choose_radii, mix_variances

RADIUS = 1.25  # smallest radius in few features, in root mean square distances
NORM_DEVIATION = 0.7  # standard deviation of the norm of normal residuals, in root mean square distances over sqrt(d)
SPREAD_PRIOR = 0.5  # prior deviation of clusters' mean squares, in the mean square of all records
SPREAD_RANGE = (0.1, 6.0)  # limits of clusters' mean squares after a move, in their mean
LEAST_SPREAD = 0.02  # least mean of these, as a share of the mean square of all records before the move
SHRINKAGE = 0.4  # share of the remaining noise variance by which centres shrink to their mean
VOTES = 3  # iterations of the weights in `shrink_to_mean`

_TINY = 1e-12


def full_steps(block: ConcentratedBlock, start: Clusters, costs: Sequence[Rho], first: Cells | None = None) -> Step:
    """Run one Lloyd step for each cost, then shrink the centres to their mean.

    Privacy: each record is in one cluster, so a step costs the sum of its `Rho`.

    Parameters
    ----------
    block : ConcentratedBlock
    start : Clusters
        Its radii are not used.
    costs : sequence of Rho
        At least one.
    first : Cells, optional
        Clusters of records in the first step. By default, each record belongs to the nearest centre.

    Returns
    -------
    Step
    """
    d = block.n_features
    least = min(RADIUS, 1 + NORM_DEVIATION / sqrt(d))  # in many features residuals have nearly equal norms
    centres, _, masses, spreads = start._replace(centres=block.domain.confine(start.centres))
    variances = np.empty(0)
    for number, rho in enumerate(costs):
        sum_noise = block.moment_deviation(rho.sums)
        radii = np.minimum(choose_radii(spreads, sum_noise * sqrt(d), masses, least), 2 * block.domain.radius)
        places = block.to_places(centres)
        answer = block.moments(places, radii, rho, cells=None if number else first)
        held = np.maximum(answer.counts, np.maximum(LEAST_OF_FORMER * masses, 1.0))
        moves = answer.sums / held[:, None]
        noise = sum_noise * radii / held
        trust = trust_moves(moves, noise, held)
        centres = block.domain.confine(from_places(places) + moves * trust[:, None])
        variances = mix_variances(trust, noise**2, variances if number else noise**2)
        left = d * trust * noise**2
        square_noise = block.moment_deviation(rho.seconds) * radii**2 / held
        spreads = _estimate_spreads(answer.seconds, held, square_noise, (moves**2).sum(axis=1) - d * noise**2)
        spreads = np.sqrt(spreads**2 + left)
        masses = np.maximum(answer.counts, 1.0)
    centres = shrink_to_mean(centres, masses, left)
    count_variance = block.deviation(rho.counts) ** 2
    none = np.empty(0)
    return Step(Clusters(centres, radii, masses, spreads), variances, answer.counts, count_variance, none, none)


def _estimate_spreads(
    squares: NDArray[np.float64], held: NDArray[np.float64], noise: NDArray[np.float64], moved: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return root mean square distances after a move, from sums of squares before it.

    `noise` is the deviation of a mean square, and `moved` the squared distance of each move less its noise.
    """
    overall = max(float(squares.sum()), float(np.linalg.norm(noise * held)), _TINY) / float(held.sum())
    prior = (SPREAD_PRIOR * overall) ** 2
    means = (squares / held * prior + overall * noise**2) / (prior + noise**2) - np.maximum(moved, 0.0)
    mean = max(float((held * np.maximum(means, 0.0)).sum() / held.sum()), LEAST_SPREAD * overall)
    return np.sqrt(np.clip(means, SPREAD_RANGE[0] * mean, SPREAD_RANGE[1] * mean))


def shrink_to_mean(
    centres: NDArray[np.float64], masses: NDArray[np.float64], noise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shrink centres to their mean by their remaining noise.

    Moves are shrunk by their noise before. So the centres are as far apart as the true ones or less, and no noise is
    subtracted from their spread. It is a mean over clusters with weights that fall with the noise. In a plain mean, one
    near-empty cluster could outweigh all others and collapse the centres.

    Parameters
    ----------
    centres : ndarray of shape (k, d)
    masses : ndarray of shape (k,)
        Positive.
    noise : ndarray of shape (k,)
        Squared distance that noise moves each centre.
    """
    if len(centres) == 1:
        return centres
    mean = masses / masses.sum() @ centres
    squares, left = ((centres - mean) ** 2).sum(axis=1), SHRINKAGE * noise
    between = float(np.median(squares)) + _TINY
    for _ in range(VOTES):
        weights = masses / (between + left) ** 2
        between = float(weights @ squares / weights.sum()) + _TINY
    return np.asarray(mean + (centres - mean) * (between / (between + left))[:, None])
