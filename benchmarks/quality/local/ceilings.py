"""Ceilings without privacy: methods of scikit-learn and exact CLIQUE, tuned on the true labels over a small grid.

The methods of scikit-learn are fitted on at most 10,000 points; each further point gets the label of its nearest
fitted point. Of all settings, the one with the highest ARI wins. In practice there are no true labels to tune on.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from scipy.spatial import KDTree
from sklearn.cluster import DBSCAN, HDBSCAN, KMeans

from benchmarks.quality.data import Labels, Points
from benchmarks.quality.reference.clique import Clique, clique
from clustering.metrics import adjusted_rand_index

MAX_POINTS = 10_000
NEIGHBOURS = (10, 40, 100)
RADII = (0.7, 1.0, 1.4, 2.0, 2.8)  # multiples of the median distance to the last of these neighbours
MIN_SIZES = (0.003, 0.01, 0.03)  # smallest cluster of HDBSCAN, as a share of the points
INTERVALS = (10, 20, 40)

Tune = Callable[[Points, Labels, int, int], Labels]  # (points, truth, clusters, seed) to the labels that score best


def k_means(points: Points, truth: Labels, clusters: int, seed: int) -> Labels:
    """Return the labels of k-means with the true K and five starts; nothing is tuned."""
    few, _ = _subsample(points, truth, seed)
    fitted = KMeans(clusters, n_init=5, random_state=seed).fit(few)
    return np.asarray(fitted.predict(points), dtype=np.int64)


def dbscan(points: Points, truth: Labels, _clusters: int, seed: int) -> Labels:
    """Return the labels of DBSCAN with tuned neighbours and radius."""
    few, labels = _subsample(points, truth, seed)

    def fits() -> Iterator[Labels]:
        for neighbours in NEIGHBOURS:
            distances = np.asarray(KDTree(few).query(few, k=[min(neighbours + 1, len(few))])[0])
            reach = max(float(np.median(distances)), 1e-9)
            for radius in RADII:
                yield DBSCAN(eps=reach * radius, min_samples=neighbours).fit_predict(few)

    return _extended(few, _best(fits(), labels), points)


def hdbscan(points: Points, truth: Labels, _clusters: int, seed: int) -> Labels:
    """Return the labels of HDBSCAN with ten neighbours and a tuned smallest cluster."""
    few, labels = _subsample(points, truth, seed)
    sizes = sorted({max(5, round(share * len(few))) for share in MIN_SIZES})
    neighbours = min(NEIGHBOURS[0], len(few))
    fits = (HDBSCAN(min_cluster_size=size, min_samples=neighbours, copy=True).fit_predict(few) for size in sizes)
    return _extended(few, _best(fits, labels), points)


def exact_clique(points: Points, truth: Labels, clusters: int, seed: int) -> Labels:
    """Return the labels of CLIQUE on exact counts (Zhang et al. 2023) with tuned intervals, and with K given or not."""
    fits = (
        clique(Clique(1.0, k, intervals), points, seed=seed, perturb=False).assign(points)
        for intervals in INTERVALS
        for k in (clusters, None)
    )
    return _best(fits, truth)


def _subsample(points: Points, truth: Labels, seed: int) -> tuple[Points, Labels]:
    if len(points) <= MAX_POINTS:
        return points, truth
    chosen = np.random.default_rng(seed).choice(len(points), MAX_POINTS, replace=False)
    return points[chosen], truth[chosen]


def _best(fits: Iterable[Labels], truth: Labels) -> Labels:
    """Return the labels with the highest ARI over the points that have a true label."""
    scored = truth > 0

    def agreement(labels: Labels) -> float:
        return adjusted_rand_index(labels[scored], truth[scored])

    return max(fits, key=agreement)


def _extended(few: Points, labels: Labels, points: Points) -> Labels:
    """Label every point as its nearest fitted point that is in a cluster."""
    inside = labels >= 0
    if not inside.any():
        return np.zeros(len(points), dtype=np.int64)
    _, nearest = KDTree(few[inside]).query(points)
    return np.asarray(labels[inside][nearest], dtype=np.int64)
