"""Consistent shares of values in clusters from noisy tables, with their errors.

Each table has noisy numbers of records per cluster. Their weighted mean is the least-squares estimate of one number for
all tables. The totals are not forced to the sizes of the clustering job: those are of another map and other noise.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Noise(NamedTuple):
    """The noise of the cells of released tables.

    Attributes
    ----------
    variance : float
        Mean variance of a cell.
    laplace_scale : float
        0 for Gaussian noise.
    cells : tuple of ndarray of shape (K, V)
        Variance of each cell of each table, if they differ.
    n_drawn : int
        Number of attributes of which each person reports one; 1 if each person counts in all tables.
    """

    variance: float
    laplace_scale: float = 0.0
    cells: tuple[Floats, ...] = ()
    n_drawn: int = 1

    def of(self, place: int, shape: tuple[int, ...]) -> Floats:
        """Return the variance of each cell of a table of this shape."""
        return self.cells[place] if self.cells else np.full(shape, self.variance)

    def of_draw(self, shares: Floats, n: "float | Floats") -> Floats:
        """Return the variance of shares among n people, because only one of `n_drawn` reports on an attribute."""
        return (self.n_drawn - 1) * shares * (1 - shares) / n


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


def make_consistent(noisy: list[NDArray[np.int64]] | list[Floats], noise: Noise) -> ConsistentTables:
    """Return consistent tables from noisy ones with independent noise in each cell.

    If each person reports one of m attributes, the row sums of a table have the draw's variance, too. Each person is in
    one of the tables, so that m times the mean of the tables has none; weights w leave n p (1 - p) (m sum w^2 - 1).
    """
    widths = np.array([table.shape[1] for table in noisy])
    sums = np.array([table.sum(axis=1) for table in noisy], dtype=np.float64)
    coin = _coin(sums.mean(axis=0)) if noise.n_drawn > 1 else 0.0
    weights = 1 / (widths * noise.variance + (noise.n_drawn - 1) * coin)
    weights /= weights.sum()
    numbers = (weights[:, None] * sums).sum(axis=0)
    number_variance = float((weights**2 * widths).sum() * noise.variance)
    number_variance += coin * max(noise.n_drawn * float((weights**2).sum()) - 1, 0.0)
    adjusted = [
        table - ((row_sums - numbers) / table.shape[1])[:, None] for table, row_sums in zip(noisy, sums, strict=True)
    ]
    shares = [
        np.array([_project(row, max(number, 1.0)) for row, number in zip(table, numbers, strict=True)])
        for table in adjusted
    ]
    return ConsistentTables(numbers, number_variance, adjusted, shares)


def _coin(numbers: Floats) -> float:
    """Return the largest n p (1 - p) of the numbers of people."""
    total = max(float(numbers.sum()), 1.0)
    shares = np.clip(numbers / total, 0.0, 1.0)
    return total * float((shares * (1 - shares)).max())


def _project(row: Floats, total: float) -> Floats:
    """Return the nearest vector of shares to the counts of a row divided by their total (projection to a simplex)."""
    counts = row / total
    descending = np.sort(counts)[::-1]
    excess = np.cumsum(descending) - 1.0
    last = np.nonzero(descending - excess / np.arange(1, len(row) + 1) > 0)[0][-1]
    projected: Floats = np.maximum(counts - excess[last] / (last + 1), 0.0)
    return projected


def share_variances(found: ConsistentTables, place: int, noise: Noise) -> Floats:
    """Return the noise variance of each share of a table: (K, V).

    For p = T / n: [s^2 (1 - 1/V) + var(n) (1/V - p)^2] / n^2, and that of the draw of an attribute.
    """
    table, numbers = found.tables[place], np.maximum(found.numbers, 1.0)[:, None]
    n_values = table.shape[1]
    shares = table / numbers
    spread = noise.of(place, table.shape) * (1 - 1 / n_values) + found.number_variance * (1 / n_values - shares) ** 2
    result: Floats = spread / numbers**2 + noise.of_draw(np.clip(shares, 0.0, 1.0), numbers)
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
