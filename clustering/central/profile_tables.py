"""Counts of records by cluster and value: one table of each attribute.

A table of attribute j has the cells (c, v): records of cluster c with value v. One record adds 1 to one cell of each
table, so that all tables together change by m in L1 and by sqrt(m) in L2, for m attributes.

Scores measure the association of an attribute with the clusters:

    s_j = 1/2 sum_c sum_v |T_j[c, v] - pi_c sum_c' T_j[c', v]|

with public shares pi of the clusters. One record with cluster c and value v changes column v of T - pi 1'T alone, by
e_c - pi. So s_j changes by at most (1 - pi_c)/2 + sum_{c' != c} pi_c' / 2 = 1 - pi_c <= 1, for all clusters together.
With shares that are computed from the records, the bound would be 2.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, iterate_blocks
from clustering.central.mapped_records import Selection
from clustering.central.narrowing import Bounds
from sfumato.specs import LATTICE

SHARE_BITS = 20  # public shares are multiples of 2^-20
SCORE_UNITS = 2 << SHARE_BITS  # scores are in units of 2^-21, and a record changes a score by at most this number


@dataclass(frozen=True, eq=False)
class MapCells:
    """The regions of a label map as cells.

    Parameters
    ----------
    shape : tuple of int
        Number of map cells along each feature.
    labels : ndarray of shape (product of the shape,), int64
        Cluster of each map cell, row-major.
    n_cells : int
        Number of clusters.
    """

    shape: tuple[int, ...]
    labels: NDArray[np.int64]
    n_cells: int

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cluster of each record."""
        places = np.zeros(len(points), dtype=np.int64)
        for column, n in zip(points.T, self.shape, strict=True):
            places = places * n + column.astype(np.int64) * n // LATTICE
        return self.labels[places]


@dataclass(frozen=True, eq=False)
class Labelling:
    """The released clusters as a function of whole records.

    Parameters
    ----------
    selection : Selection
        The features of the clusters among the columns of a record.
    bounds : Bounds or None
        Bounds of the clusters that are narrower than those of the dataset.
    cells : Cells
        One cell for each cluster.
    """

    selection: Selection
    bounds: Bounds | None
    cells: Cells

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cluster of each record of a block."""
        selected = self.selection.apply(points)
        return self.cells.index(selected if self.bounds is None else self.bounds.apply(selected))


@dataclass(frozen=True, slots=True)
class Column:
    """An attribute among the columns of a record.

    Parameters
    ----------
    position : int
    n_values : int
        Number of categories, or of equal bins of a feature.
    is_feature : bool
        Whether the column has lattice places, which are counted in equal bins; otherwise it has codes.
    """

    position: int
    n_values: int
    is_feature: bool


@dataclass(frozen=True, eq=False)
class ProfileTables:
    """The tables of some attributes, as one flat array: by attribute, then by cluster, then by value."""

    labelling: Labelling
    columns: tuple[Column, ...]

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters K."""
        return self.labelling.cells.n_cells

    @property
    def n_values(self) -> int:
        """Return the number of counts in all tables."""
        return self.n_clusters * sum(column.n_values for column in self.columns)

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        k, counts = self.n_clusters, np.zeros(self.n_values, dtype=np.int64)
        for block in iterate_blocks(*points.shape):
            rows = points[block]
            labels, start = self.labelling.index(rows), 0
            for column in self.columns:
                codes = rows[:, column.position].astype(np.int64)
                if column.is_feature:
                    codes = codes * column.n_values // LATTICE
                cells = k * column.n_values
                found = np.bincount(labels * column.n_values + codes, minlength=cells)
                counts[start : start + cells] += found
                start += cells
        return (counts,)

    def split(self, flat: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the table of each attribute: shape (K, n_values)."""
        ends = np.cumsum([self.n_clusters * column.n_values for column in self.columns])[:-1]
        parts = np.split(flat, ends)
        return [part.reshape(self.n_clusters, -1) for part in parts]


def public_shares(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the released sizes of clusters as multiples of 2^-20 that add up to 1: (K,)."""
    whole = 1 << SHARE_BITS
    kept = np.maximum(sizes, 0.0)
    total = kept.sum()
    ends = np.rint(np.cumsum(kept / total if total > 0 else np.full(len(sizes), 1 / len(sizes))) * whole)
    ends[-1] = whole
    return np.diff(np.concatenate([[0.0], np.clip(ends, 0, whole)])).astype(np.int64)


def exact_scores(tables: list[NDArray[np.int64]], shares: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the score of each attribute in units of 2^-21, for public shares as multiples of 2^-20."""
    whole = np.int64(1 << SHARE_BITS)
    return np.array(
        [np.abs(whole * table - shares[:, None] * table.sum(axis=0)).sum() for table in tables], dtype=np.int64
    )


def check_shares(tables: ProfileTables, shares: NDArray[np.int64]) -> None:
    """Raise ValueError unless there is a share for each cluster and they add up to 1.

    Otherwise a record could change a score by more than its declared sensitivity.
    """
    if shares.shape != (tables.n_clusters,) or shares.min() < 0 or int(shares.sum()) != 1 << SHARE_BITS:
        raise ValueError("the public shares of the clusters must be multiples of 2^-20 that add up to 1")
