"""What is possible without privacy: scikit-learn's methods, tuned on the truth over a small grid.

Each is fitted on at most 10,000 points and labels the rest by their nearest fitted point; the
setting whose labels of the fitted points have the highest ARI is taken. So these are
ceilings and no rivals: nobody has the truth to tune on.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree
from sklearn.cluster import DBSCAN, HDBSCAN, KMeans

from clustering.metrics import adjusted_rand_index
from clustering.reference.clique import Clique, clique

MAX_POINTS = 10_000
NEIGHBOURS = (10, 40, 100)
RADII = (0.7, 1.0, 1.4, 2.0, 2.8)  # times the median distance to the last of these neighbours
LEAST_SIZES = (0.003, 0.01, 0.03)  # of the points
INTERVALS = (10, 20, 40)

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


def k_means(points: Points, truth: Labels, clusters: int, seed: int) -> Labels:
    """k-means with the true K, five starts; nothing else is tuned."""
    few, _ = _subsample(points, truth, seed)
    fitted = KMeans(clusters, n_init=5, random_state=seed).fit(few)
    return np.asarray(fitted.predict(points), dtype=np.int64)


def dbscan(points: Points, truth: Labels, _clusters: int, seed: int) -> Labels:
    """DBSCAN, its neighbours and its radius tuned."""
    few, labels = _subsample(points, truth, seed)

    def fits() -> Iterator[Labels]:
        for neighbours in NEIGHBOURS:
            distances = np.asarray(KDTree(few).query(few, k=[min(neighbours + 1, len(few))])[0])
            reach = max(float(np.median(distances)), 1e-9)
            for radius in RADII:
                yield DBSCAN(eps=reach * radius, min_samples=neighbours).fit_predict(few)

    return _extended(few, _best(fits(), labels), points)


def hdbscan(points: Points, truth: Labels, _clusters: int, seed: int) -> Labels:
    """HDBSCAN of ten neighbours, its least cluster size tuned."""
    few, labels = _subsample(points, truth, seed)
    sizes = sorted({max(5, round(share * len(few))) for share in LEAST_SIZES})
    neighbours = min(NEIGHBOURS[0], len(few))
    fits = (HDBSCAN(min_cluster_size=size, min_samples=neighbours, copy=True).fit_predict(few) for size in sizes)
    return _extended(few, _best(fits, labels), points)


def exact_clique(points: Points, truth: Labels, clusters: int, seed: int) -> Labels:
    """CLIQUE on exact counts, as paper 000 has it; its intervals, and whether K is used, tuned."""
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
    """The labelling that agrees best with the truth, where there is one."""
    scored = truth > 0

    def agreement(labels: Labels) -> float:
        return adjusted_rand_index(labels[scored], truth[scored])

    return max(fits, key=agreement)


def _extended(few: Points, labels: Labels, points: Points) -> Labels:
    """Labels of all points: their nearest fitted point's, leaving out those that are in no cluster."""
    inside = labels >= 0
    if not inside.any():
        return np.zeros(len(points), dtype=np.int64)
    _, nearest = KDTree(few[inside]).query(points)
    return np.asarray(labels[inside][nearest], dtype=np.int64)
