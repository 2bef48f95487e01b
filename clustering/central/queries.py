"""Queries to the curator: their records, costs, journal entries and exact answers before noise."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from clustering.central.cells import Cells, iterate_blocks
from clustering.kernels.residuals import (
    add_clipped_squares,
    add_counts,
    add_l1_residuals,
    add_residuals,
    add_squares,
    sort_residuals,
)
from sfumato.errors import InvalidSpec
from sfumato.specs import LATTICE

Exact = Callable[[], NDArray[np.int64]]  # computes an answer without noise; the curator calls it after the charge
Second = Literal["products", "squares"]  # second moment of residuals
Weight = int | Fraction

DIGEST_LENGTH = 32  # hexadecimal digits

RADIUS_PARTS = 1 << 20  # parts of a radius in which residuals of a concentrated block are added
PRODUCT_PARTS = 1 << 15  # parts of a radius in which they are multiplied; sums of squares fit into 64 bits
EXACT_RECORDS = 1 << 23  # records of which doubles add up products exactly: 2^53 / PRODUCT_PARTS^2


class RecordSum(Protocol):
    """A function of records with integer results that add up over parts of the records.

    It holds public values only and can be sent to another process.
    """

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        """Return the sums over these records. The shapes do not depend on the records."""


class Records(NamedTuple):
    """Records in memory. Only a curator holds one.

    `points` has shape (n, d), int32: lattice places in 0 .. 2^20-1, clipped to the public bounds.
    No user has more than `max_per_user` of them.
    """

    points: NDArray[np.int32]
    max_per_user: int = 1

    @property
    def is_local(self) -> bool:
        """Return True: the records are in this process."""
        return True

    @property
    def n_features(self) -> int:
        """Return the number of features d."""
        return int(self.points.shape[1])

    def total(self, record_sum: RecordSum) -> tuple[NDArray[np.int64], ...]:
        """Return the sums over all records."""
        return record_sum(self.points)


class RecordSource(Protocol):
    """Records as the curator reads them: `Records`, or records distributed over processes."""

    @property
    def is_local(self) -> bool:
        """Return whether sums are computed in this process."""

    @property
    def points(self) -> NDArray[np.int32]:
        """Return all records in this process. `halving_tree` needs them."""

    @property
    def max_per_user(self) -> int: ...

    @property
    def n_features(self) -> int: ...

    def total(self, record_sum: RecordSum) -> tuple[NDArray[np.int64], ...]: ...


@dataclass(frozen=True, slots=True)
class Query:
    """One charged query.

    Attributes
    ----------
    description : str
        Kind of the query, as the odometer shows it.
    epsilon_nano : int
        Cost in nano-epsilon.
    n_values : int
        Number of values in the answer. A tree counts as one, a concentrated block as none.
    digest : str
        Digest of the query's public inputs, such as cells, centres and radii. A job that runs again
        after a crash gets a stored answer only if the digests are equal.
    delta_atto : int
        Cost in atto-delta. Only concentrated blocks cost delta.
    rho_pico : int
        Share of the concentrated block in pico-rho. The block was charged before, so the query
        itself costs no epsilon and no delta.
    """

    description: str
    epsilon_nano: int
    n_values: int
    digest: str
    delta_atto: int = 0
    rho_pico: int = 0

    @property
    def entry(self) -> dict[str, Any]:
        """Return the entry of the published odometer."""
        names = ("description", "epsilon_nano", "delta_atto", "rho_pico", "n_values")
        return {name: getattr(self, name) for name in names}


class Journal(Protocol):
    """Storage of charges and answers. An interrupted job runs again without paying twice."""

    def charge(self, index: int, query: Query) -> NDArray[np.int64] | None:
        """Charge query number `index` once. Return its stored answer if it has one.

        An implementation raises if the budget does not cover the query. The curator then draws no
        noise.
        """

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        """Store the answer before the curator returns it."""


class MemoryJournal:
    """A journal for one uninterrupted run, for simulations and tests."""

    def __init__(self) -> None:
        self.charges: dict[int, Query] = {}

    def charge(self, index: int, query: Query) -> NDArray[np.int64] | None:
        """Record the query. Return None, because no answer is stored."""
        self.charges[index] = query
        return None

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        """Do nothing."""


class Sums(NamedTuple):
    """Noisy sums per cell; see `Curator.sums`."""

    residuals: NDArray[np.int64]  # (k, d), lattice units
    counts: NDArray[np.int64]  # (k,)
    sizes: NDArray[np.int64] | None  # (k,), lattice units: sum of the norms of the clipped residuals


class Shares(NamedTuple):
    """Cost of each part of a `sums` query, in nano-epsilon. `sizes` = 0 omits the sizes."""

    residuals: int
    counts: int
    sizes: int = 0


def split(cost: int, *weights: Weight) -> tuple[int, ...]:
    """Split a cost in proportion to weights. The parts add up to the cost exactly.

    An algorithm splits its whole cost before its first query, from public numbers only. An epsilon
    that is too small is therefore rejected before any noise is drawn.

    Parameters
    ----------
    cost : int
        Nano-epsilon or pico-rho.
    *weights : int or Fraction
        Positive and exact, because rounding of floats could differ between machines.

    Returns
    -------
    tuple of int
        One part for each weight, at least 1 each, within 1 of its exact proportion.

    Raises
    ------
    InvalidSpec
        A part would be less than 1.
    """
    total = sum(weights)
    ends = [0]
    so_far: Weight = 0
    for weight in weights:
        so_far += weight
        ends.append(int(cost * so_far // total))
    parts = tuple(high - low for low, high in pairwise(ends))
    if min(parts) < 1:
        raise InvalidSpec(f"an epsilon of {cost} nano is too small for {len(parts)} queries: increase epsilon")
    return parts


class ExactSums(NamedTuple):
    """The parts of a sum over records before noise, computed separately."""

    residuals: Exact  # (k d,)
    counts: Exact  # (k,)
    sizes: Exact  # (k,), or second moments


def count_records(points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
    """Return the number of records as one array of shape (1,)."""
    return (np.array([len(points)], dtype=np.int64),)


@dataclass(frozen=True, eq=False)
class CellCounts:
    """The number of records in each cell: one array of shape (n_cells,)."""

    cells: Cells

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        return (_count_labels(self.cells.index(points), self.cells.n_cells),)


@dataclass(frozen=True, eq=False)
class CellSums:
    """Sums of clipped residuals (k, d), record counts (k,) and sums of residual norms (k,), in one pass."""

    cells: Cells
    centres: NDArray[np.int64]
    radii: NDArray[np.int64]

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        labels = self.cells.index(points)
        sums, sizes = np.zeros(self.centres.shape, dtype=np.int64), np.zeros(len(self.centres), dtype=np.int64)
        add_l1_residuals(points, labels, self.centres, self.radii, sums, sizes)
        return sums, _count_labels(labels, len(self.centres)), sizes


@dataclass(frozen=True, eq=False)
class CellMoments:
    """Sums of residuals clipped in L2 (k, d), record counts (k,) and sums of a second moment, in one pass.

    Residuals are in parts of their cell's radius; see `ConcentratedBlock.moments`. The products of a
    cell are an upper triangle by rows, (k, d (d + 1) / 2). The squares are (k,).
    """

    cells: Cells
    centres: NDArray[np.int64]
    radii: NDArray[np.int64]
    second: Second

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        k, d = self.centres.shape
        labels = self.cells.index(points)
        sums = np.zeros((k, d), dtype=np.int64)
        add_residuals(points, labels, self.centres, self.radii, float(RADIUS_PARTS), sums)
        if self.second == "squares":
            seconds = np.zeros(k, dtype=np.int64)
            add_clipped_squares(points, labels, self.centres, self.radii, float(PRODUCT_PARTS**2), seconds)
        else:
            seconds = self._multiply(points, labels)
        return sums, _count_labels(labels, k), seconds

    def _multiply(self, points: NDArray[np.int32], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the products by matrix products of doubles, which are exact: they add up to at most 2^53."""
        k, d = self.centres.shape
        first, second = np.triu_indices(d)
        totals = np.zeros((k, len(first)), dtype=np.int64)
        for begin in range(0, len(points), EXACT_RECORDS):
            part = slice(begin, begin + EXACT_RECORDS)
            for c, triangle in enumerate(self._add_products(points[part], labels[part])):
                totals[c] += triangle[first, second].astype(np.int64)
        return totals

    def _add_products(self, points: NDArray[np.int32], labels: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """Return the upper triangles of the products of each cell, added up in place."""
        k, d = self.centres.shape
        triangles = [np.zeros((d, d), order="F") for _ in range(k)]
        for block in iterate_blocks(*points.shape):
            counts = _count_labels(labels[block], k)
            ends, rows = np.cumsum(counts) - counts, np.empty((int(counts.sum()), d))
            sort_residuals(points[block], labels[block], self.centres, self.radii, float(PRODUCT_PARTS), ends, rows)
            for c in np.flatnonzero(counts):
                own = rows[ends[c] - counts[c] : ends[c]]
                triangles[c] = dsyrk(1.0, own.T, beta=1.0, c=triangles[c], overwrite_c=True)
        return triangles


@dataclass(frozen=True, eq=False)
class CellSquares:
    """Sums of squared distances from the centre of each cell: one array of shape (k,).

    The lowest `shift` bits of each square are dropped.
    """

    cells: Cells
    centres: NDArray[np.int64]
    shift: int

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        squares = np.zeros(len(self.centres), dtype=np.int64)
        add_squares(points, self.cells.index(points), self.centres, self.shift, squares)
        return (squares,)


def check_centres(
    cells: Cells, centres: NDArray[np.int64], n_features: int, limit: int | None = None
) -> tuple[int, int]:
    """Return the shape (k, d) of the centres.

    Projected centres lie in -limit .. limit instead of the box.

    Raises
    ------
    ValueError
        The number of centres differs from that of the cells, or a centre lies outside the box. One
        record could then change a sum by more than its declared sensitivity.
    """
    if centres.shape != (cells.n_cells, n_features):
        raise ValueError(f"centres must have shape {(cells.n_cells, n_features)}, got {centres.shape}")
    low, high = (0, LATTICE - 1) if limit is None else (-limit, limit)
    if centres.size and not low <= centres.min() <= centres.max() <= high:
        raise ValueError(f"centres must be lattice places in {low}..{high}")
    return cells.n_cells, n_features


def exact_counts(records: RecordSource, cells: Cells) -> Exact:
    """Return a function that counts the records in each cell."""
    return lambda: records.total(CellCounts(cells))[0]


def exact_sums(records: RecordSource, record_sum: RecordSum) -> ExactSums:
    """Return functions for the three parts of a `CellSums` or `CellMoments`. The first call computes all of them."""
    memo: list[tuple[NDArray[np.int64], ...]] = []

    def exact(part: int) -> NDArray[np.int64]:
        if not memo:
            memo.append(records.total(record_sum))
        return memo[0][part].ravel()

    return ExactSums(lambda: exact(0), lambda: exact(1), lambda: exact(2))


def _count_labels(labels: NDArray[np.int64], n_cells: int) -> NDArray[np.int64]:
    counts = np.zeros(n_cells, dtype=np.int64)
    add_counts(labels, counts)
    return counts


def compute_digest(*parts: Any) -> str:
    """Return a digest of public values: numbers, texts, arrays, and tuples, lists and dataclasses of these.

    For a dataclass it covers the fields that take part in comparison. Two queries are the same if
    their digests are equal.

    Raises
    ------
    TypeError
        A part has another type.
    """
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()[:DIGEST_LENGTH]


def _feed(digest: Any, part: Any) -> None:
    """Add a part with its type and length as a prefix, so that different part lists never give the same bytes."""
    if isinstance(part, np.ndarray):
        digest.update(f"array {part.dtype.str} {part.shape};".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    elif is_dataclass(part):
        compared = [field.name for field in fields(part) if field.compare]
        digest.update(f"{type(part).__name__} {len(compared)};".encode())
        for name in compared:
            _feed(digest, getattr(part, name))
    elif isinstance(part, tuple | list):
        digest.update(f"items {len(part)};".encode())
        for item in part:
            _feed(digest, item)
    elif isinstance(part, int | float | str | None):
        text = repr(part).encode()
        digest.update(f"{type(part).__name__} {len(text)};".encode() + text)
    else:
        raise TypeError(f"a query cannot depend on a {type(part).__name__}")
