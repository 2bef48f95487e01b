"""Weighted k-means from a public seed. On noisy cells it is post-processing and costs nothing.

Initial centres are those of greedy k-means++ (Arthur and Vassilvitskii 2007, section 5): each is the best
of a few draws with probability proportional to weight times squared distance from the earlier ones.
Draws use raw PCG64 words, so equal seeds give equal centres in every version of numpy.

Swaps then repair the best fit (Fränti 2018, "Efficiency of random swap clustering"): the centre that the
others replace at the least cost moves to a point that is drawn like a seed, and Lloyd steps follow. The
change stays if it reduces the inertia.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.kmeans import (
    accumulate,
    fill_blocks,
    find_nearer,
    measure_inertia,
    sum_weighted,
    weighted_lloyd_step,
)
from clustering.kernels.nearest import BLOCK
from clustering.random import PublicWords

TRIALS = 3  # candidates for each initial centre
RESTARTS = 10
SWAPS = 50  # swaps for cells of a grid or a count tree
SPARED = 6  # after a swap that failed, the next cheapest of this many centres is moved
MAX_STEPS = 50  # Lloyd steps per start
WORK = 1 << 24  # maximum of points times centres times restarts; takes a few seconds
SWAP_WORK = 1 << 27  # maximum of points times centres times swaps


class WeightedFit(NamedTuple):
    """The result of the best start."""

    centres: NDArray[np.float64]  # (k, d)
    labels: NDArray[np.int64]  # (n,), nearest centre
    masses: NDArray[np.float64]  # (k,), weight of each centre's points
    inertia: float  # weighted sum of squared distances
    restarts: int


def weighted_kmeans(
    points: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_clusters: int,
    words: PublicWords,
    restarts: int = RESTARTS,
    swaps: int = 0,
) -> WeightedFit:
    """Run weighted k-means from several starts, then repair the fit with the least inertia by swaps.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        n at least 1.
    weights : ndarray of shape (n,)
        Non-negative, at least one positive.
    n_clusters : int
        K. If fewer distinct points have positive weight, there are as many centres as such points.
    words : PublicWords
        Source of the starts.
    restarts : int
        Maximum number of starts; `WORK` can limit it further.
    swaps : int
        Maximum number of swaps that are tried; `SWAP_WORK` can limit it further. They pay if the weights
        have little noise.

    Returns
    -------
    WeightedFit
    """
    points = np.ascontiguousarray(points, dtype=np.float64)
    work = len(points) * n_clusters
    restarts, swaps = max(1, min(restarts, WORK // work)), min(swaps, SWAP_WORK // work)
    fits = [lloyd(points, weights, choose_seeds(points, weights, n_clusters, words), restarts) for _ in range(restarts)]
    best = min(fits, key=lambda fit: fit.inertia)  # the first of equal fits
    return swap_centres(points, weights, best, words, swaps)


def swap_centres(
    points: NDArray[np.float64], weights: NDArray[np.float64], fit: WeightedFit, words: PublicWords, swaps: int
) -> WeightedFit:
    """Try swaps one after another and return the fit after those that reduce the inertia."""
    n_failed, ends = 0, np.empty(len(points))
    for _ in range(swaps if len(fit.centres) > 2 else 0):
        squares = ((fit.centres[:, None] - fit.centres[None]) ** 2).sum(axis=2)
        np.fill_diagonal(squares, np.inf)
        masses = np.maximum(fit.masses, np.finfo(np.float64).tiny)
        costs = (masses[:, None] / (masses[:, None] + masses[None]) * masses[None] * squares).min(axis=1)
        distances = ((points - fit.centres[fit.labels]) ** 2).sum(axis=1)
        drawn = _draw(weights, distances, words.uniform(1), ends)
        if not drawn:  # no point is at a distance from its centre
            break
        centres = fit.centres.copy()
        centres[np.argsort(costs, kind="stable")[n_failed % min(SPARED, len(centres))]] = points[drawn[0]]
        tried = lloyd(points, weights, centres, fit.restarts)
        fit, n_failed = (tried, 0) if tried.inertia < fit.inertia else (fit, n_failed + 1)
    return fit


def choose_seeds(
    points: NDArray[np.float64], weights: NDArray[np.float64], n_clusters: int, words: PublicWords
) -> NDArray[np.float64]:
    """Choose initial centres by greedy k-means++. The parameters are those of `weighted_kmeans`.

    Returns
    -------
    ndarray of shape (k, d)
        Points. There are fewer than `n_clusters` if no weight is left at a distance from them.
    """
    blocks = np.zeros((-(-len(points) // BLOCK), points.shape[1], BLOCK))
    fill_blocks(points, blocks)
    left = np.empty(TRIALS)
    nearer, distances, ends = np.empty((TRIALS, len(points))), np.ones(len(points)), np.empty(len(points))
    chosen = _draw(weights, distances, words.uniform(1), ends)
    distances[:] = np.inf
    find_nearer(blocks, points[chosen], distances.copy(), distances[None])
    while len(chosen) < n_clusters:
        tried = _draw(weights, distances, words.uniform(TRIALS), ends)
        if not tried:  # every point with weight is chosen
            break
        find_nearer(blocks, points[tried], distances, nearer)
        sum_weighted(weights, nearer, left)
        best = int(left.argmin())  # the first of equal candidates
        chosen.append(tried[best])
        distances[:] = nearer[best]
    return points[chosen]


def _draw(
    weights: NDArray[np.float64],
    distances: NDArray[np.float64],
    uniform: NDArray[np.float64],
    ends: NDArray[np.float64],
) -> list[int]:
    """Draw indices in proportion to weight times distance. Return none if all products are 0. `ends` is scratch."""
    last = accumulate(weights, distances, ends)
    places = np.searchsorted(ends, uniform * ends[-1], side="right")
    return [] if last < 0 else [int(place) for place in np.minimum(places, last)]


def lloyd(
    points: NDArray[np.float64], weights: NDArray[np.float64], centres: NDArray[np.float64], restarts: int = 1
) -> WeightedFit:
    """Run Lloyd steps from given centres until no label changes. A centre without weight does not move.

    Parameters
    ----------
    points : ndarray of shape (n, d), float64, row-major
    weights : ndarray of shape (n,)
    centres : ndarray of shape (k, d)
    restarts : int
        Number of starts, recorded in the fit.
    """
    labels = np.full(len(points), -1, dtype=np.int64)
    sums, masses = np.empty_like(centres), np.empty(len(centres))
    for _ in range(MAX_STEPS):
        before = labels.copy()
        weighted_lloyd_step(points, weights, centres, labels, sums, masses)
        if (labels == before).all():
            break
        centres = np.divide(sums, masses[:, None], out=centres.copy(), where=masses[:, None] > 0)
    else:  # after the last step, update labels to the final centres
        weighted_lloyd_step(points, weights, centres, labels, sums, masses)
    inertia = float(measure_inertia(points, weights, centres, labels))
    return WeightedFit(centres, labels, masses.copy(), inertia, restarts)
