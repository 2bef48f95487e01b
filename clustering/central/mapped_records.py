"""Records as a curator reads them after a public map of each record: selected columns, categories, narrower bounds.

A mapped record depends on that record and the public map alone, so a sum over mapped records has the sensitivity that
it has over records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import add
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import CategoryBlock, iterate_blocks
from clustering.central.queries import RecordSource, RecordSum
from sfumato.specs import Feature
from sfumato.specs.attributes import Attribute, clustering_attributes

NARROWER = 8  # least number of columns of a record for each column of a mapped record that is kept


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
        Positions of the numeric columns in a record, ascending.
    codes : ndarray of shape (m,), int64
        Positions of the columns with codes of categories, ascending.
    blocks : tuple of CategoryBlock
        One for each of these. Its categories become features after the numeric ones.
    """

    positions: NDArray[np.int64]
    codes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    blocks: tuple[CategoryBlock, ...] = ()

    @property
    def n_features(self) -> int:
        """Return the number of selected columns, with one for each category."""
        return len(self.positions) + sum(block.n_categories for block in self.blocks)

    def apply(self, points: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the selected columns of a block of records, and the places of the categories: (n, d)."""
        numbers = points[:, self.positions]
        if not self.blocks:
            return np.ascontiguousarray(numbers)
        parts = [numbers]
        for code, block in zip(self.codes, self.blocks, strict=True):
            parts.append(block.places[points[:, code]])
        return np.concatenate(parts, axis=1, dtype=np.int32)


def select_columns(
    features: Sequence[Feature], attributes: Sequence[Attribute], names: Sequence[str] | None = None
) -> Selection:
    """Return the columns of records that a job uses: the named ones, or all features and clustering attributes.

    Parameters
    ----------
    features, attributes : sequences
        Those of a dataset. A record has the features, then the codes of all attributes.
    names : sequence of str, optional
        Names among the features and the attributes that form clusters.
    """
    chosen = clustering_attributes(attributes)
    wanted = {each.name for each in features} | {each.name for each in chosen} if names is None else set(names)
    positions = [place for place, each in enumerate(features) if each.name in wanted]
    codes = [len(features) + place for place, each in enumerate(attributes) if each in chosen and each.name in wanted]
    blocks = tuple(CategoryBlock(each) for each in chosen if each.name in wanted)
    return Selection(np.array(positions, dtype=np.int64), np.array(codes, dtype=np.int64), blocks)


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


@dataclass(frozen=True, eq=False)
class MappedRecords:
    """Mapped records as a curator reads them.

    Each query maps them again, so that memory holds one copy of wide records. Local records that a map makes much
    narrower are kept, because every query of a block reads them.
    """

    source: RecordSource
    mapping: RecordMap

    @property
    def is_local(self) -> bool:
        """Return whether the records are in this process."""
        return self.source.is_local

    @property
    def points(self) -> NDArray[np.int32]:
        """Return all mapped records in this process."""
        return self._kept if self._keeps else self._map_all()

    @property
    def _keeps(self) -> bool:
        return self.is_local and NARROWER * self.n_features <= self.source.n_features

    @cached_property
    def _kept(self) -> NDArray[np.int32]:
        return self._map_all()

    def _map_all(self) -> NDArray[np.int32]:
        points = self.source.points
        mapped = np.empty((len(points), self.n_features), dtype=np.int32)
        for block in iterate_blocks(*points.shape):
            mapped[block] = self.mapping.apply(points[block])
        return mapped

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
        if self._keeps:
            return record_sum(self._kept)
        return self.source.total(MappedSum(self.mapping, record_sum))
