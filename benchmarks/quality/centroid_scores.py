"""How good centroids are: paper 004's F-measure and entropy, their distance from the true ones, and what they cost.

The paper (section 6.1.2) defines, of a class i and a cluster c that share n_ic people, the
precision P = n_ic / n_c, the recall R = n_ic / n_i and F_1 = 2 P R / (P + R); of the whole,
F = sum_i n_i F_1 / sum_i n_i and E = sum_c (n_c / n) e_c with e_c = -sum P log2 P. It does not
say which cluster a class is held against: here the one of the highest F_1, as in the work the
measure comes from (Larsen and Aone 1999); nor over what e_c sums: here over the classes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from clustering.metrics import contingency

Points = NDArray[np.float64]

_CHUNK_POINTS = 1 << 16


def f_measure(truth: ArrayLike, labels: ArrayLike) -> float:
    """F, in (0, 1]: 1 where every class is one cluster. One cluster over four even classes scores .4."""
    table = contingency(truth, labels)
    precision = table.counts / table.second_counts[table.second]
    recall = table.counts / table.first_counts[table.first]
    best = np.zeros(len(table.first_counts))
    np.maximum.at(best, table.first, 2 * precision * recall / (precision + recall))
    return float((table.first_counts * best).sum() / table.n_points)


def entropy(truth: ArrayLike, labels: ArrayLike) -> float:
    """E, in bits: 0 where every cluster holds one class; log2 of the classes where clusters tell nothing of them."""
    table = contingency(truth, labels)
    precision = table.counts / table.second_counts[table.second]
    return float((table.counts * -np.log2(precision)).sum() / table.n_points) + 0.0


def matched_rmse(centres: Points, true: Points) -> float:
    """Root of the mean squared error of a coordinate, under the best one-to-one naming (Hungarian).

    Parameters
    ----------
    centres, true : ndarray of shape (c, d) and (k, d)
        As many as the fewer are matched; the others do not count.
    """
    squares = ((centres[:, None] - true) ** 2).sum(axis=2)
    rows, columns = linear_sum_assignment(squares)
    return float(np.sqrt(squares[rows, columns].mean() / true.shape[1]))


def nearest(points: Points, centres: Points) -> NDArray[np.int64]:
    """The nearest centre of each point, the first of those that are equally near."""
    labels = np.empty(len(points), dtype=np.int64)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = points[begin : begin + _CHUNK_POINTS]
        labels[begin : begin + _CHUNK_POINTS] = ((part[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    return labels


def nicv(points: Points, centres: Points) -> float:
    """Normalised intra-cluster variance, (1/N) sum of min |x - c|^2."""
    return float(((points - centres[nearest(points, centres)]) ** 2).sum() / len(points))
