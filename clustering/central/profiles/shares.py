"""Consistent shares of values in clusters from noisy tables, with their errors.

Each table has noisy numbers of records per cluster. Their weighted mean is the least-squares estimate of one number for
all tables. The totals are not forced to the sizes of the clustering job: those are of another map and other noise.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ConsistentTables:
    """Noisy tables with equal numbers of records per cluster.

    Attributes
    ----------
    numbers : ndarray of shape (K,)
        Number of records in each cluster.
    number_variance : float
        Variance of its noise.
    tables : list of ndarray of shape (K, V)
        Unbiased counts with these row sums. They may be negative.
    shares : list of ndarray of shape (K, V)
        Shares within each cluster, non-negative, each row with sum 1.
    """

    numbers: Floats
    number_variance: float
    tables: list[Floats]
    shares: list[Floats]


def make_consistent(noisy: list[NDArray[np.int64]], variance: float) -> ConsistentTables:
    """Return consistent tables from noisy ones with independent noise of this variance in each cell."""
    weights = np.array([1 / (table.shape[1] * variance) for table in noisy])
    sums = np.array([table.sum(axis=1) for table in noisy], dtype=np.float64)
    numbers = (weights[:, None] * sums).sum(axis=0) / weights.sum()
    adjusted = [
        table - ((row_sums - numbers) / table.shape[1])[:, None] for table, row_sums in zip(noisy, sums, strict=True)
    ]
    shares = [
        np.array([_project(row, max(number, 1.0)) for row, number in zip(table, numbers, strict=True)])
        for table in adjusted
    ]
    return ConsistentTables(numbers, 1 / float(weights.sum()), adjusted, shares)


def _project(row: Floats, total: float) -> Floats:
    """Return the nearest vector of shares to the counts of a row divided by their total (projection to a simplex)."""
    counts = row / total
    descending = np.sort(counts)[::-1]
    excess = np.cumsum(descending) - 1.0
    last = np.nonzero(descending - excess / np.arange(1, len(row) + 1) > 0)[0][-1]
    projected: Floats = np.maximum(counts - excess[last] / (last + 1), 0.0)
    return projected


def share_variances(found: ConsistentTables, place: int, variance: float) -> Floats:
    """Return the noise variance of each share of a table: (K, V).

    For p = T / n: [s^2 (1 - 1/V) + var(n) (1/V - p)^2] / n^2.
    """
    table, numbers = found.tables[place], np.maximum(found.numbers, 1.0)[:, None]
    n_values = table.shape[1]
    shares = table / numbers
    noise = variance * (1 - 1 / n_values) + found.number_variance * (1 / n_values - shares) ** 2
    result: Floats = noise / numbers**2
    return result


def association(found: ConsistentTables, place: int, variance: float) -> tuple[float, float]:
    """Return half of the L1 distance between the joint shares and those of no association, and a standard error.

    It is the score of an attribute divided by the number of records, from a released table. The noise adds about the
    error, so that it is an upper estimate.
    """
    shares, numbers = found.shares[place], np.maximum(found.numbers, 1.0)
    sizes = numbers / numbers.sum()
    overall = sizes @ shares
    value = 0.5 * float((sizes[:, None] * np.abs(shares - overall)).sum())
    error = 0.5 * sqrt(shares.size * variance) / float(numbers.sum())
    return value, error
