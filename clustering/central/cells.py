"""Partitions of the box that a curator counts records in: public, disjoint, evaluated by the curator alone.

What a partition is made of is public: parameters, and answers that were paid for. Records are
lattice places, whole numbers 0 .. 2^20-1 a feature, so that a cell's border is exact.
"""

from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.partitions import descend_pairs, hash_places
from clustering.kernels.residuals import nearest_centres
from sfumato.specs import LATTICE


class Cells(Protocol):
    """Disjoint cells: a record lies in one of them, or in none."""

    @property
    def n_cells(self) -> int: ...

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """The cell of each record, 0 .. n_cells-1, or -1; ndarray of shape (n,). For the curator alone."""


@dataclass(frozen=True, slots=True)
class GridCells:
    """A plain grid over the box, numbered row-major.

    Parameters
    ----------
    shape : tuple of int
        Cells of each feature.
    """

    shape: tuple[int, ...]

    @property
    def n_cells(self) -> int:
        return prod(self.shape)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        places = np.zeros(len(points), dtype=np.int64)
        for column, n in zip(points.T, self.shape, strict=True):
            places = places * n + column.astype(np.int64) * n // LATTICE
        return places


@dataclass(frozen=True, eq=False)
class NearestCells:
    """The records nearest to each of k centres, of equally near ones the first.

    Parameters
    ----------
    centres : ndarray of shape (k, d), int64
        Lattice places.
    """

    centres: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        return len(self.centres)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        labels = np.empty(len(points), dtype=np.int64)
        nearest_centres(points, self.centres, labels)
        return labels


@dataclass(frozen=True, eq=False)
class PairCells:
    """Everybody parted in two by the nearer of two centres, each half again, and so on: the leaves of that tree.

    Parameters
    ----------
    centres : ndarray of shape (m, d), int64
        Lattice places of each node; node 0 is everybody.
    first : ndarray of shape (m,), int64
        The first node of a node's pair, which the second follows; -1 for a leaf.
    leaves : ndarray of shape (n_cells,), int64
        Which leaves are cells, in this order; records of others lie in none.
    """

    centres: NDArray[np.int64]
    first: NDArray[np.int64]
    leaves: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        return len(self.leaves)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        numbers = np.full(len(self.first), -1, dtype=np.int64)
        numbers[self.leaves] = np.arange(len(self.leaves))
        cells = np.empty(len(points), dtype=np.int64)
        descend_pairs(points, self.centres, self.first, numbers, cells)
        return cells


@dataclass(frozen=True, slots=True)
class HashedCells:
    """Every place of the lattice in one of n cells, as if drawn at random: disjoint random subsets of records.

    Where a record lies depends on itself and the public seed alone. (By the order of records
    instead, one more at the head would move all others to another subset.) Equal records share
    a cell.

    Parameters
    ----------
    n_cells : int
    seed : int
        Public.
    """

    n_cells: int
    seed: int

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        cells = np.empty(len(points), dtype=np.int64)
        hash_places(points, np.uint64(self.seed), self.n_cells, cells)
        return cells


def to_places(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """Points of [0, 1]^d as lattice places, int64 of the same shape; what lies outside goes to the border."""
    return np.clip(np.floor(points * LATTICE), 0, LATTICE - 1).astype(np.int64)


def from_places(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """The middle of each lattice place, in [0, 1]."""
    return (places + 0.5) / LATTICE
