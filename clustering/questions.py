"""What is asked of a curator, what is written down of that, and what records say before noise is added."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells
from clustering.kernels.residuals import add_residuals, add_round_residuals, add_squares
from sfumato.specs import LATTICE

Exact = Callable[[], NDArray[np.int64]]  # computes what an answer would be without noise; called after the charge alone


class Work(Protocol):
    """Whole numbers that are sums over records: what parts of the records come to adds up to what all of them do.

    It is made of what is public alone, and is as good in another process.
    """

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        """Arrays of the same shapes, whatever records they are sums over."""


class Records(NamedTuple):
    """What a curator keeps. Nothing but a curator holds one.

    `points` are lattice places, int32 of shape (n, d), in 0 .. 2^20-1, clipped to the public
    bounds; no user has more than `max_per_user` of them.
    """

    points: NDArray[np.int32]
    max_per_user: int = 1

    @property
    def n_features(self) -> int:
        return int(self.points.shape[1])

    def total(self, work: Work) -> tuple[NDArray[np.int64], ...]:
        """What all records come to."""
        return work(self.points)


class Held(Protocol):
    """What a curator asks of records, wherever they are: `Records`, or those that lie in parts in other processes."""

    @property
    def points(self) -> NDArray[np.int32]:
        """All of them, here; a tree of halved cells is grown over them."""

    @property
    def max_per_user(self) -> int: ...

    @property
    def n_features(self) -> int: ...

    def total(self, work: Work) -> tuple[NDArray[np.int64], ...]: ...


@dataclass(frozen=True, slots=True)
class Question:
    """One charged question.

    Attributes
    ----------
    what : str
        What was asked, for the odometer.
    epsilon_nano : int
        What it costs.
    n_values : int
        Numbers in the answer; a tree counts as one, a block of questions as none.
    digest : str
        Of all it was made of, which is public: cells, centres, radii. A job that is run again
        after a crash is told an old answer to the same question alone.
    delta_atto : int
        What it costs beside epsilon; of a concentrated block alone.
    rho_pico : int
        What it takes of the concentrated block it is asked in, which was charged before; then it
        costs nothing further.
    """

    what: str
    epsilon_nano: int
    n_values: int
    digest: str
    delta_atto: int = 0
    rho_pico: int = 0


class Journal(Protocol):
    """Where charges and answers are written down, so that a job that was interrupted asks nothing twice."""

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        """Pay for question number `index`, once however often it is asked; the answer it had, where it had one.

        Raises where it cannot be paid for; then nothing is drawn.
        """

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        """Write an answer down before anybody acts on it."""


class MemoryJournal:
    """A journal for one run that is not interrupted: simulations and tests."""

    def __init__(self) -> None:
        self.charges: dict[int, Question] = {}

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        self.charges[index] = question
        return None

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        """Nothing: nobody asks again."""


class Sums(NamedTuple):
    """Noisy sums over cells; see `Curator.sums`."""

    residuals: NDArray[np.int64]  # (k, d), lattice units
    counts: NDArray[np.int64]  # (k,)
    sizes: NDArray[np.int64] | None  # (k,), lattice units: sum of the clipped residuals' norms


class Shares(NamedTuple):
    """How the cost of sums is divided; `sizes` 0 leaves them out.

    In nano-epsilon of a curator, in pico-rho of a concentrated block.
    """

    residuals: int
    counts: int
    sizes: int = 0


class ExactSums(NamedTuple):
    """What `Sums` are before noise, to be asked for one by one."""

    residuals: Exact  # (k d,)
    counts: Exact  # (k,)
    sizes: Exact  # (k,)


def number_of(points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
    """How many records there are: one array of shape (1,)."""
    return (np.array([len(points)], dtype=np.int64),)


Norm = Literal["l1", "l2"]  # in which residuals are clipped to a radius


@dataclass(frozen=True, eq=False)
class CellCounts:
    """How many records lie in each cell: one array of shape (n_cells,)."""

    cells: Cells

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        return (_tallied(self.cells.index(points), self.cells.n_cells),)


@dataclass(frozen=True, eq=False)
class CellSums:
    """Sums of clipped residuals (k, d), numbers of records (k,) and sums of the residuals' norms (k,), in one pass."""

    cells: Cells
    centres: NDArray[np.int64]
    radii: NDArray[np.int64]
    norm: Norm

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        labels = self.cells.index(points)
        sums, sizes = np.zeros(self.centres.shape, dtype=np.int64), np.zeros(len(self.centres), dtype=np.int64)
        add = add_residuals if self.norm == "l1" else add_round_residuals
        add(points, labels, self.centres, self.radii, sums, sizes)
        return sums, _tallied(labels, len(self.centres)), sizes


@dataclass(frozen=True, eq=False)
class CellSquares:
    """Sums of squared distances from each cell's centre, `shift` bits dropped of each: one array of shape (k,)."""

    cells: Cells
    centres: NDArray[np.int64]
    shift: int

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        squares = np.zeros(len(self.centres), dtype=np.int64)
        add_squares(points, self.cells.index(points), self.centres, self.shift, squares)
        return (squares,)


def check_centres(cells: Cells, centres: NDArray[np.int64], n_features: int) -> tuple[int, int]:
    """The centres' shape. Outside the box one record could weigh more than its sensitivity says."""
    if centres.shape != (cells.n_cells, n_features):
        raise ValueError("there is one centre for each cell")
    if centres.size and not 0 <= centres.min() <= centres.max() < LATTICE:
        raise ValueError("a centre is a lattice place")
    return cells.n_cells, n_features


def exact_counts(records: Held, cells: Cells) -> Exact:
    """Numbers of records in cells."""
    return lambda: records.total(CellCounts(cells))[0]


def exact_sums(
    records: Held, cells: Cells, centres: NDArray[np.int64], radii: NDArray[np.int64], norm: Norm
) -> ExactSums:
    """Sums, counts and sizes, found in one pass when the first of them is asked for."""
    memo: list[tuple[NDArray[np.int64], ...]] = []

    def exact(part: int) -> NDArray[np.int64]:
        if not memo:
            memo.append(records.total(CellSums(cells, centres, radii, norm)))
        return memo[0][part].ravel()

    return ExactSums(lambda: exact(0), lambda: exact(1), lambda: exact(2))


def _tallied(labels: NDArray[np.int64], n_cells: int) -> NDArray[np.int64]:
    return np.bincount(labels[labels >= 0], minlength=n_cells).astype(np.int64)
