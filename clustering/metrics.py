"""How well two labellings of the same points agree; all from one contingency table.

Labels are any integers. Pair counts are exact Python integers, divided once at the end.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment


@dataclass(frozen=True)
class Contingency:
    """How many points have which pair of labels; only the pairs that occur.

    Attributes
    ----------
    first, second : ndarray of shape (n_pairs,), int64
        The pair, as places in the sorted distinct labels of each side.
    counts : ndarray of shape (n_pairs,), int64
    first_counts, second_counts : ndarray, int64
        Points of each label.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    counts: NDArray[np.int64]
    first_counts: NDArray[np.int64]
    second_counts: NDArray[np.int64]

    @property
    def n_points(self) -> int:
        return int(self.counts.sum())


def contingency(a: ArrayLike, b: ArrayLike) -> Contingency:
    """Count the pairs of labels of two labellings.

    Parameters
    ----------
    a, b : array-like of shape (n,), integers
        n at least 1.

    Raises
    ------
    ValueError
        Different lengths, no points, or labels that are not integers.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise ValueError("two labellings of the same points are needed, of at least one point")
    if a.dtype.kind not in "iu" or b.dtype.kind not in "iu":
        raise ValueError("labels are integers")
    _, first, first_counts = np.unique(a, return_inverse=True, return_counts=True)
    _, second, second_counts = np.unique(b, return_inverse=True, return_counts=True)
    pairs, counts = np.unique(first * len(second_counts) + second, return_counts=True)
    return Contingency(
        first=pairs // len(second_counts),
        second=pairs % len(second_counts),
        counts=counts,
        first_counts=first_counts,
        second_counts=second_counts,
    )


def adjusted_rand_index(a: ArrayLike, b: ArrayLike) -> float:
    """ARI: agreement on pairs of points beyond chance; 1 is equal up to names, 0 is chance.

    Hubert and Arabie 1985, eq. (5). Symmetric. Two labellings that leave nothing to chance
    (both of one cluster, or both of single points) score 1.
    """
    table = contingency(a, b)
    both, in_a, in_b = _pairs(table.counts), _pairs(table.first_counts), _pairs(table.second_counts)
    every = table.n_points * (table.n_points - 1) // 2
    # (both - in_a in_b / every) / ((in_a + in_b)/2 - in_a in_b / every), times 2 every
    spread = every * (in_a + in_b) - 2 * in_a * in_b
    return 1.0 if spread == 0 else 2 * (every * both - in_a * in_b) / spread


def fowlkes_mallows(a: ArrayLike, b: ArrayLike) -> float:
    """Geometric mean of pair precision and pair recall, in [0, 1]; symmetric.

    Fowlkes and Mallows 1983. 0 where a labelling has no pair at all.
    """
    table = contingency(a, b)
    both, in_a, in_b = _pairs(table.counts), _pairs(table.first_counts), _pairs(table.second_counts)
    return 0.0 if both == 0 else both / (sqrt(in_a) * sqrt(in_b))


def purity(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of points in their cluster's most frequent class, in (0, 1]; 1 is easy with many clusters."""
    table = contingency(truth, labels)
    most = np.zeros(len(table.second_counts), dtype=np.int64)
    np.maximum.at(most, table.second, table.counts)
    return int(most.sum()) / table.n_points


def accuracy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of points labelled right under the best one-to-one naming of clusters, in (0, 1].

    Clusters beyond the number of classes, or the reverse, count as wrong. Memory is
    (classes * clusters), the assignment by Crouse 2016 (scipy).
    """
    table = contingency(truth, labels)
    matrix = np.zeros((len(table.first_counts), len(table.second_counts)), dtype=np.int64)
    matrix[table.first, table.second] = table.counts
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    return int(matrix[rows, columns].sum()) / table.n_points


def _pairs(counts: NDArray[np.int64]) -> int:
    """Unordered pairs within groups of these sizes: sum n (n-1) / 2."""
    return int((counts * (counts - 1) // 2).sum())
