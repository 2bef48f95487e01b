"""Linear projections of records, exact in integers.

A projection is public: it follows from earlier query answers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, from_places, iterate_blocks

BASIS_BITS = 16  # a component of a basis vector is a multiple of 2^-16


@dataclass(frozen=True, eq=False)
class Projection:
    """Coordinates of records along some directions, in lattice units.

    Parameters
    ----------
    middle : ndarray of shape (d,), int64
        Lattice place that becomes the origin.
    basis : ndarray of shape (d, m), int64
        Directions as columns of norm about 2^16. Its sums of products with lattice places are below
        2^53, so matrix products of doubles are exact.
    """

    middle: NDArray[np.int64]
    basis: NDArray[np.int64]

    @property
    def n_features(self) -> int:
        """Return the number of coordinates m."""
        return int(self.basis.shape[1])

    def apply(self, points: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the coordinates of a block of records, rounded down: (n, m)."""
        basis = self.basis * 2.0**-BASIS_BITS
        along = points.astype(np.float64) @ basis
        along -= self.middle.astype(np.float64) @ basis
        return np.floor(along, out=along).astype(np.int32)

    def undo(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the points with these coordinates on the plane through the origin: (k, m) to (k, d), in [0, 1]^d.

        Coordinates are in feature ranges.
        """
        return np.asarray(from_places(self.middle) + centres @ (self.basis.T * 2.0**-BASIS_BITS), dtype=np.float64)


def make_projection(middle: NDArray[np.int64], directions: NDArray[np.float64]) -> Projection:
    """Return the projection along the columns of `directions`, which have norm 1."""
    return Projection(middle, np.rint(directions * (1 << BASIS_BITS)).astype(np.int64))


@dataclass(frozen=True, eq=False)
class ProjectedCells:
    """Cells of the projections of records, as cells of the records."""

    projection: Projection
    cells: Cells

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return self.cells.n_cells

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        labels = np.empty(len(points), dtype=np.int64)
        for block in iterate_blocks(*points.shape):
            labels[block] = self.cells.index(self.projection.apply(points[block]))
        return labels
