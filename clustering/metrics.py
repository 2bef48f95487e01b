"""Agreement between two labellings of the same points, computed from one contingency table.

Labels are arbitrary integers. Pair counts are exact Python integers and are divided once, at the end.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.matching import match


@dataclass(frozen=True)
class Contingency:
    """A sparse contingency table: the label pairs that occur and the number of points of each.

    Attributes
    ----------
    first, second : ndarray of shape (n_pairs,), int64
        Indices of the pair's labels in the sorted distinct labels of each labelling.
    counts : ndarray of shape (n_pairs,), int64
        Number of points of each pair, at least 1.
    first_counts, second_counts : ndarray, int64
        Number of points of each label.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    counts: NDArray[np.int64]
    first_counts: NDArray[np.int64]
    second_counts: NDArray[np.int64]

    @property
    def n_points(self) -> int:
        """Return the number of points."""
        return int(self.counts.sum())


def contingency(a: ArrayLike, b: ArrayLike) -> Contingency:
    """Count the label pairs of two labellings.

    Parameters
    ----------
    a, b : array-like of shape (n,), integers
        Labels of the same n points, n at least 1.

    Returns
    -------
    Contingency

    Raises
    ------
    ValueError
        The lengths differ, there are no points, or the labels are not integers.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise ValueError("labels must be two one-dimensional arrays of the same length, at least 1")
    if a.dtype.kind not in "iu" or b.dtype.kind not in "iu":
        raise ValueError("labels must have an integer dtype")
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
    """Return the adjusted Rand index: agreement on pairs of points, corrected for chance.

    1 means equal up to renaming, 0 is the expected value of random labels. The index is symmetric
    (Hubert and Arabie 1985, eq. (5)). If both labellings have one cluster, or both have only
    single points, the chance correction is 0/0 and the index is 1.

    Parameters
    ----------
    a, b : array-like of shape (n,), integers

    Raises
    ------
    ValueError
        See `contingency`.
    """
    table = contingency(a, b)
    both, in_a, in_b = _pairs(table.counts), _pairs(table.first_counts), _pairs(table.second_counts)
    every = table.n_points * (table.n_points - 1) // 2
    # (both - in_a in_b / every) / ((in_a + in_b)/2 - in_a in_b / every), times 2 every
    spread = every * (in_a + in_b) - 2 * in_a * in_b
    return 1.0 if spread == 0 else 2 * (every * both - in_a * in_b) / spread


def fowlkes_mallows(a: ArrayLike, b: ArrayLike) -> float:
    """Return the geometric mean of pair precision and pair recall, in [0, 1].

    The index is symmetric (Fowlkes and Mallows 1983). It is 0 if a labelling puts no two points together.
    """
    table = contingency(a, b)
    both, in_a, in_b = _pairs(table.counts), _pairs(table.first_counts), _pairs(table.second_counts)
    return 0.0 if both == 0 else both / (sqrt(in_a) * sqrt(in_b))


def purity(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of points in the most frequent class of their cluster, in (0, 1].

    Many small clusters reach 1 trivially.
    """
    table = contingency(truth, labels)
    most = np.zeros(len(table.second_counts), dtype=np.int64)
    np.maximum.at(most, table.second, table.counts)
    return int(most.sum()) / table.n_points


def accuracy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of correct labels under the best one-to-one match of clusters to classes, in (0, 1].

    Points of unmatched clusters or classes count as wrong. Memory is proportional to
    classes * clusters.
    """
    table = contingency(truth, labels)
    matrix = np.zeros((len(table.first_counts), len(table.second_counts)), dtype=np.int64)
    matrix[table.first, table.second] = table.counts
    return int(sum(matrix[pair] for pair in match(matrix))) / table.n_points


def _pairs(counts: NDArray[np.int64]) -> int:
    """Return the number of unordered pairs within groups of these sizes, sum n (n-1) / 2."""
    return int((counts * (counts - 1) // 2).sum())
