"""k-means over weighted points, from a public seed: post-processing of noisy cells, so it costs nothing.

Seeds are those of greedy k-means++ (Arthur and Vassilvitskii 2007, section 5): each is drawn
by weight times squared distance from those before it, the best of a few such draws. Every
draw is made of raw words of PCG64, so equal seeds give equal centres with any version of numpy.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.weighted_lloyd import BLOCK, add_up, into_blocks, nearer_of, weigh, weighted_lloyd_step
from clustering.phase_search import PublicWords

TRIALS = 3  # draws for each seed, the best of which is taken
RESTARTS = 10
MAX_STEPS = 50  # of Lloyd, for each start
WORK = 1 << 24  # points times centres times restarts: a few seconds


class WeightedFit(NamedTuple):
    """Where the best start ended."""

    centres: NDArray[np.float64]  # (k, d)
    labels: NDArray[np.int64]  # (n,), the nearest centre
    masses: NDArray[np.float64]  # (k,), weight of each centre's points
    inertia: float  # weighted sum of squared distances
    restarts: int


def weighted_kmeans(
    points: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_clusters: int,
    words: PublicWords,
    restarts: int = RESTARTS,
) -> WeightedFit:
    """The centres of least weighted sum of squared distances over several starts.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        n at least 1.
    weights : ndarray of shape (n,)
        None negative, some positive.
    n_clusters : int
        K; where fewer distinct points have weight, there are as many centres as those.
    words : PublicWords
    restarts : int
        At most, as far as `WORK` goes.

    Returns
    -------
    WeightedFit
    """
    points = np.ascontiguousarray(points, dtype=np.float64)
    restarts = max(1, min(restarts, WORK // (len(points) * n_clusters)))
    fits = [lloyd(points, weights, seeds(points, weights, n_clusters, words), restarts) for _ in range(restarts)]
    return min(fits, key=lambda fit: fit.inertia)  # of equal ones the first


def seeds(
    points: NDArray[np.float64], weights: NDArray[np.float64], n_clusters: int, words: PublicWords
) -> NDArray[np.float64]:
    """Greedy k-means++: takes what `weighted_kmeans` takes, float64.

    Returns
    -------
    ndarray of shape (k, d)
        Points, each where much weight was far from those before it; fewer where no weight is left.
    """
    blocks = np.zeros((-(-len(points) // BLOCK), points.shape[1], BLOCK))
    into_blocks(points, blocks)
    left = np.empty(TRIALS)
    nearer, distances, ends = np.empty((TRIALS, len(points))), np.ones(len(points)), np.empty(len(points))
    chosen = _drawn(weights, distances, words.uniform(1), ends)
    distances[:] = np.inf
    nearer_of(blocks, points[chosen], distances.copy(), distances[None])
    while len(chosen) < n_clusters:
        tried = _drawn(weights, distances, words.uniform(TRIALS), ends)
        if not tried:  # every point with weight is a seed
            break
        nearer_of(blocks, points[tried], distances, nearer)
        weigh(weights, nearer, left)
        best = int(left.argmin())  # of equal ones the first
        chosen.append(tried[best])
        distances[:] = nearer[best]
    return points[chosen]


def _drawn(
    weights: NDArray[np.float64],
    distances: NDArray[np.float64],
    uniform: NDArray[np.float64],
    ends: NDArray[np.float64],
) -> list[int]:
    """Places drawn in proportion to weight times distance; none where that is zero everywhere. `ends` is room."""
    last = add_up(weights, distances, ends)
    places = np.searchsorted(ends, uniform * ends[-1], side="right")
    return [] if last < 0 else [int(place) for place in np.minimum(places, last)]


def lloyd(
    points: NDArray[np.float64], weights: NDArray[np.float64], centres: NDArray[np.float64], restarts: int = 1
) -> WeightedFit:
    """Step from given centres until no point changes its own; a centre without weight stays where it is.

    Parameters
    ----------
    points : ndarray of shape (n, d), float64, row-major
    weights : ndarray of shape (n,)
    centres : ndarray of shape (k, d)
    restarts : int
        How many starts there are, for the fit to say.
    """
    labels = np.full(len(points), -1, dtype=np.int64)
    sums, masses = np.empty_like(centres), np.empty(len(centres))
    for _ in range(MAX_STEPS):
        before = labels.copy()
        inertia = weighted_lloyd_step(points, weights, centres, labels, sums, masses)
        if (labels == before).all():
            break
        centres = np.divide(sums, masses[:, None], out=centres.copy(), where=masses[:, None] > 0)
    else:  # out of steps: labels and inertia are those of the places before
        inertia = weighted_lloyd_step(points, weights, centres, labels, sums, masses)
    return WeightedFit(centres, labels, masses.copy(), float(inertia), restarts)
