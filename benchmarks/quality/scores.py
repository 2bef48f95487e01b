"""Scores of centroids: F-measure and entropy of Zhang et al. 2025, distance from the true centroids, NICV; and k-means.

For a class i and a cluster c that share n_ic people, the paper (section 6.1.2) defines the precision P = n_ic / n_c,
the recall R = n_ic / n_i and F_1 = 2 P R / (P + R). Over all people, F = sum_i n_i F_1 / sum_i n_i and E = sum_c (n_c
/ n) e_c with e_c = -sum P log2 P. The paper leaves open which cluster a class is compared with. Here it is the one
with the highest F_1, as where the measure was introduced (Larsen and Aone 1999). e_c sums over the classes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans

from clustering.metrics import contingency

Points = NDArray[np.float64]

_CHUNK_POINTS = 1 << 16


def f_measure(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return F in (0, 1]: 1 if every class is one cluster, .4 for one cluster over four equal classes."""
    table = contingency(truth, labels)
    precision = table.counts / table.second_counts[table.second]
    recall = table.counts / table.first_counts[table.first]
    best = np.zeros(len(table.first_counts))
    np.maximum.at(best, table.first, 2 * precision * recall / (precision + recall))
    return float((table.first_counts * best).sum() / table.n_points)


def entropy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return E in bits: 0 if every cluster has one class, log2 of the classes if clusters carry no information."""
    table = contingency(truth, labels)
    precision = table.counts / table.second_counts[table.second]
    return float((table.counts * -np.log2(precision)).sum() / table.n_points) + 0.0


def matched_rmse(centres: Points, true: Points) -> float:
    """Return the root mean squared error of a coordinate under the best one-to-one matching (Hungarian).

    Parameters
    ----------
    centres, true : ndarray of shape (c, d) and (k, d)
        Surplus centroids on one side are ignored.
    """
    squares = ((centres[:, None] - true) ** 2).sum(axis=2)
    rows, columns = linear_sum_assignment(squares)
    return float(np.sqrt(squares[rows, columns].mean() / true.shape[1]))


def nearest(points: Points, centres: Points) -> NDArray[np.int64]:
    """Return the nearest centroid of each point, the first of equally near ones."""
    labels = np.empty(len(points), dtype=np.int64)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = points[begin : begin + _CHUNK_POINTS]
        labels[begin : begin + _CHUNK_POINTS] = ((part[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    return labels


def nicv(points: Points, centres: Points) -> float:
    """Return the normalised intra-cluster variance, (1/N) sum of min |x - c|^2."""
    return float(((points - centres[nearest(points, centres)]) ** 2).sum() / len(points))


def best_k_means(points: Points, few: Points, clusters: int, n_starts: int, seed: int) -> Points:
    """Return centroids of k-means on all points, from the best of several greedy starts on a few of them."""
    best = KMeans(clusters, n_init=n_starts, random_state=seed).fit(few).cluster_centers_
    return np.asarray(KMeans(clusters, init=best, n_init=1).fit(points).cluster_centers_, dtype=np.float64)
