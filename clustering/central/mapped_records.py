"""Records as a curator reads them after a public map of each record: selected columns, or narrower bounds.

A mapped record depends on that record and the public map alone, so a sum over mapped records has the sensitivity that
it has over records.
"""

from dataclasses import dataclass
from operator import add
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import iterate_blocks
from clustering.central.queries import RecordSource, RecordSum


class RecordMap(Protocol):
    """A public function of single records."""

    @property
    def n_features(self) -> int:
        """Return the number of features of a mapped record."""

    def apply(self, points: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the mapped records of a block of records: (n, n_features)."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The columns that a job uses. It is public: it follows from the request alone.

    Parameters
    ----------
    positions : ndarray of shape (d,), int64
        Positions of the columns in a record, ascending.
    """

    positions: NDArray[np.int64]

    @property
    def n_features(self) -> int:
        """Return the number of selected columns."""
        return len(self.positions)

    def apply(self, points: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the selected columns of a block of records: (n, d)."""
        return np.ascontiguousarray(points[:, self.positions])


@dataclass(frozen=True, eq=False)
class MappedSum:
    """A sum over mapped records. It maps one block at a time."""

    mapping: RecordMap
    record_sum: RecordSum

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        totals: tuple[NDArray[np.int64], ...] = ()
        for block in iterate_blocks(*points.shape):
            parts = self.record_sum(self.mapping.apply(points[block]))
            totals = tuple(map(add, totals, parts)) if totals else parts
        return totals


class MappedRecords(NamedTuple):
    """Mapped records as a curator reads them."""

    source: RecordSource
    mapping: RecordMap

    @property
    def points(self) -> NDArray[np.int32]:
        """Return all mapped records in this process."""
        return self.mapping.apply(self.source.points)

    @property
    def max_per_user(self) -> int:
        """Return the public maximum number of records of one user."""
        return self.source.max_per_user

    @property
    def n_features(self) -> int:
        """Return the number of features of a mapped record."""
        return self.mapping.n_features

    def total(self, record_sum: RecordSum) -> tuple[NDArray[np.int64], ...]:
        """Return the sums over all mapped records."""
        return self.source.total(MappedSum(self.mapping, record_sum))
