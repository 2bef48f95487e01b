"""Partitions of the box into disjoint cells, in which a curator counts records.

A partition is defined by public values only: parameters and earlier query answers. Records are
lattice places, integers in 0 .. 2^20-1 per feature, so that cell borders are exact. Only the curator
calls `index`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.cells import descend_pairs, hash_places
from clustering.kernels.residuals import find_shells, nearest_centres
from sfumato.records.encodings import clip_norms
from sfumato.records.mixed import step_of
from sfumato.sizing.required_reports import planned_features
from sfumato.specs import LATTICE
from sfumato.specs.attributes import Categorical

BLOCK_VALUES = 1 << 18  # coordinates of a block of records in a pass with matrix products
GAP_BINS = 6  # bins between two centres; the last one is beyond the nearer centre


class Cells(Protocol):
    """Disjoint cells. A record lies in at most one of them."""

    @property
    def n_cells(self) -> int: ...

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record, 0 .. n_cells-1, or -1 for none: ndarray of shape (n,)."""


@dataclass(frozen=True, slots=True)
class GridCells:
    """A regular grid over the box, numbered in row-major order.

    Parameters
    ----------
    shape : tuple of int
        Number of cells along each feature.
    """

    shape: tuple[int, ...]

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return prod(self.shape)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        places = np.zeros(len(points), dtype=np.int64)
        for column, n in zip(points.T, self.shape, strict=True):
            places = places * n + column.astype(np.int64) * n // LATTICE
        return places


@dataclass(frozen=True, eq=False)
class NearestCells:
    """Voronoi cells of k centres. A record at equal distances belongs to the first centre.

    Parameters
    ----------
    centres : ndarray of shape (k, d), int64
        Lattice places.
    """

    centres: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.centres)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        labels = np.empty(len(points), dtype=np.int64)
        nearest_centres(points, self.centres.astype(np.float64), labels)
        return labels


@dataclass(frozen=True, eq=False)
class NearestAlongCircles:
    """Cells of the nearest of k centres, where the distance along a periodic feature is that of the shorter way.

    A record at equal distances belongs to the first centre.

    Parameters
    ----------
    centres : ndarray of shape (k, d), int64
        Lattice places.
    circles : tuple of int
        Indices of the periodic features.
    """

    centres: NDArray[np.int64]
    circles: tuple[int, ...]

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.centres)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        labels = np.empty(len(points), dtype=np.int64)
        for block in iterate_blocks(len(points), self.centres.size):
            away = np.abs(points[block, None].astype(np.int64) - self.centres)
            for place in self.circles:
                away[..., place] = np.minimum(away[..., place], LATTICE - away[..., place])
            labels[block] = (away**2).sum(axis=2).argmin(axis=1)
        return labels


@dataclass(frozen=True, eq=False)
class GapCells:
    """Bins between the two nearest centres of a record, for each pair of centres.

    The place t of a record between its nearest centre a and its second nearest b is (|x - b|^2 - |x - a|^2) divided by
    2 |a - b|^2: 0 at the border and 1/2 at a. Each pair has `GAP_BINS` bins of width 1/10. The last one also has all
    records beyond a.

    Parameters
    ----------
    centres : ndarray of shape (k, d), int64
        Lattice places, k at least 2.
    """

    centres: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        """Return the number of cells: `GAP_BINS` for each pair (a, b) with a < b, in row-major order."""
        k = len(self.centres)
        return k * (k - 1) // 2 * GAP_BINS

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        k = len(self.centres)
        found = np.empty(len(points), dtype=np.int64)
        centres = self.centres.astype(np.float64)  # products are integers below 2^53 for places of the box
        squares = (centres**2).sum(axis=1)
        gaps = np.maximum(((self.centres[:, None] - self.centres) ** 2).sum(axis=2), 1)
        for block in iterate_blocks(len(points), max(points.shape[1], k)):
            away = squares - 2 * (points[block].astype(np.float64) @ centres.T)
            rows = np.arange(len(away))
            nearest = away.argmin(axis=1)
            least = away[rows, nearest]
            away[rows, nearest] = np.inf
            second = away.argmin(axis=1)
            beyond = (away[rows, second] - least).astype(np.int64)
            bins = np.minimum(5 * beyond // gaps[nearest, second], GAP_BINS - 1)
            low, high = np.minimum(nearest, second), np.maximum(nearest, second)
            found[block] = (low * (2 * k - low - 1) // 2 + high - low - 1) * GAP_BINS + bins
        return found


@dataclass(frozen=True)
class CategoryBlock:
    """The categories of an attribute as features of the unit box. A record has the share 1 of one of them.

    Share s is at 1/2 + g (s - 1/V), so that the middle of the box is that of the categories; see
    `sfumato.records.mixed`.

    Parameters
    ----------
    attribute : Categorical
    """

    attribute: Categorical

    @property
    def n_categories(self) -> int:
        """Return V."""
        return len(self.attribute.categories)

    @property
    def step(self) -> float:
        """Return g: the distance along a feature between the shares 0 and 1."""
        return step_of(self.attribute)

    @property
    def places(self) -> NDArray[np.int32]:
        """Return the lattice places of the categories: (V, V), one row for each category."""
        shares = 0.5 + self.step * (np.eye(self.n_categories) - 1 / self.n_categories)
        return to_places(shares).astype(np.int32)

    @property
    def square(self) -> float:
        """Return the squared distance of each category from the middle of the box."""
        return self.step**2 * (1 - 1 / self.n_categories)

    def confine(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the nearest coordinates that are means of categories: (k, V)."""
        shares = (coordinates - 0.5) / self.step + 1 / self.n_categories
        descending = -np.sort(-shares, axis=1)
        constants = (np.cumsum(descending, axis=1) - 1) / np.arange(1, self.n_categories + 1)
        last = (descending > constants).sum(axis=1) - 1  # see `project_to_shares`
        shares = np.maximum(shares - np.take_along_axis(constants, last[:, None], axis=1), 0.0)
        return 0.5 + self.step * (shares - 1 / self.n_categories)


@dataclass(frozen=True, slots=True)
class WholeBox:
    """One cell with all records."""

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return 1

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        return np.zeros(len(points), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ShellCells:
    """Spherical shells around a centre.

    Parameters
    ----------
    centre : ndarray of shape (d,), int64
        Lattice place.
    radii : ndarray of shape (m,), int64
        Ascending, in lattice units. A record at a distance equal to a radius lies inside it. Records
        beyond the last radius form cell m.
    """

    centre: NDArray[np.int64]
    radii: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.radii) + 1

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        shells = np.empty(len(points), dtype=np.int64)
        find_shells(points, self.centre, self.radii**2, shells)
        return shells


@dataclass(frozen=True, eq=False)
class PairCells:
    """Leaves of a bisecting tree. Each inner node splits its records by the nearer of two centres.

    Parameters
    ----------
    centres : ndarray of shape (m, d), int64
        Lattice place of each node. Node 0, the root, contains all records.
    first : ndarray of shape (m,), int64
        Index of a node's first child; the second child follows it. -1 for a leaf.
    leaves : ndarray of shape (n_cells,), int64
        The leaves that are cells, in this order. Records of other leaves lie in no cell.
    """

    centres: NDArray[np.int64]
    first: NDArray[np.int64]
    leaves: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.leaves)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record, or -1."""
        numbers = np.full(len(self.first), -1, dtype=np.int64)
        numbers[self.leaves] = np.arange(len(self.leaves))
        cells = np.empty(len(points), dtype=np.int64)
        descend_pairs(points, self.centres, self.first, numbers, cells)
        return cells


@dataclass(frozen=True, slots=True)
class HashedCells:
    """Disjoint pseudo-random subsets of records, by a hash of each lattice place.

    The cell depends on the record and the public seed only. An assignment by record order would let
    one added record move all others. Equal records share a cell.

    Parameters
    ----------
    n_cells : int
    seed : int
        Public seed of the hash.
    """

    n_cells: int
    seed: int

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        cells = np.empty(len(points), dtype=np.int64)
        hash_places(points, np.uint64(self.seed), self.n_cells, cells)
        return cells


def iterate_blocks(n_records: int, n_features: int) -> Iterator[slice]:
    """Iterate over blocks of records with at most `BLOCK_VALUES` coordinates; over at least one block."""
    size = max(1, BLOCK_VALUES // n_features)
    for start in range(0, max(n_records, 1), size):
        yield slice(start, start + size)


def to_places(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert points in [0, 1]^d to lattice places, int64 of the same shape. Clip points outside to the border."""
    places = points * LATTICE
    np.floor(places, out=places)
    return np.clip(places, 0, LATTICE - 1, out=places).astype(np.int64)


@dataclass(frozen=True)
class Domain:
    """The public set of possible records in feature ranges: the unit box, or the L2 ball in it.

    The last features can be blocks of categories, of which a record has one. Queries clip every residual themselves, so
    no sensitivity depends on the domain.

    Parameters
    ----------
    n_features : int
    is_ball : bool
    blocks : tuple of CategoryBlock
    disks : tuple of int
        First of the two coordinates of each periodic feature, if records are points on circles.
    disk_radius : float
        Radius of these circles around the middle of the box.
    """

    n_features: int
    is_ball: bool = False
    blocks: tuple[CategoryBlock, ...] = ()
    disks: tuple[int, ...] = ()
    disk_radius: float = 0.0

    @property
    def n_numeric(self) -> int:
        """Return the number of features that are no category."""
        return self.n_features - sum(block.n_categories for block in self.blocks)

    @property
    def n_planned(self) -> int:
        """Return the number of features by which queries are planned; see `planned_features`."""
        return planned_features(self.n_numeric - len(self.disks), self.n_features - self.n_numeric)

    @property
    def radius(self) -> float:
        """Return the largest distance of a record from the middle of the box, half of the largest difference."""
        numeric = 0.25 if self.is_ball else (self.n_numeric - 2 * len(self.disks)) / 4
        return sqrt(numeric + len(self.disks) * self.disk_radius**2 + sum(block.square for block in self.blocks))

    def confine(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the nearest points of the domain: (k, d)."""
        if self.is_ball:
            return 0.5 + clip_norms(centres - 0.5, self.radius)[0]
        confined, start = np.clip(centres, 0.0, 1.0), self.n_numeric
        for first in self.disks:
            pair = slice(first, first + 2)
            confined[:, pair] = 0.5 + clip_norms(centres[:, pair] - 0.5, self.disk_radius)[0]
        for block in self.blocks:
            part = slice(start, start := start + block.n_categories)
            confined[:, part] = block.confine(centres[:, part])
        return confined


def from_places(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the middle of each lattice place, in [0, 1]."""
    return (places + 0.5) / LATTICE
