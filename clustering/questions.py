"""What is asked of a curator, what is written down of that, and what records say before noise is added."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells
from sfumato.specs import LATTICE

Exact = Callable[[], NDArray[np.int64]]  # computes what an answer would be without noise; called after the charge alone


class Records(NamedTuple):
    """What a curator keeps. Nothing but a curator holds one.

    `points` are lattice places, int32 of shape (n, d), in 0 .. 2^20-1, clipped to the public
    bounds; no user has more than `max_per_user` of them.
    """

    points: NDArray[np.int32]
    max_per_user: int = 1


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


# Adds clipped residuals of (points, labels, centres, radii) to sums and sizes, as those of `kernels.residuals` do.
AddResiduals = Callable[
    [
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
    ],
    None,
]


def check_centres(cells: Cells, centres: NDArray[np.int64], n_features: int) -> tuple[int, int]:
    """The centres' shape. Outside the box one record could weigh more than its sensitivity says."""
    if centres.shape != (cells.n_cells, n_features):
        raise ValueError("there is one centre for each cell")
    if centres.size and not 0 <= centres.min() <= centres.max() < LATTICE:
        raise ValueError("a centre is a lattice place")
    return cells.n_cells, n_features


def exact_counts(records: Records, cells: Cells) -> Exact:
    """Numbers of records in cells."""
    return lambda: _tallied(cells.index(records.points), cells.n_cells)


def exact_sums(
    records: Records, cells: Cells, centres: NDArray[np.int64], radii: NDArray[np.int64], add: AddResiduals
) -> ExactSums:
    """Sums, counts and sizes, found in one pass when the first of them is asked for."""
    memo: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []

    def exact(part: int) -> NDArray[np.int64]:
        if not memo:
            labels = cells.index(records.points)
            sums, sizes = np.zeros(centres.shape, dtype=np.int64), np.zeros(len(centres), dtype=np.int64)
            add(records.points, labels, centres, radii, sums, sizes)
            memo.append((sums.ravel(), _tallied(labels, len(centres)), sizes))
        return memo[0][part]

    return ExactSums(lambda: exact(0), lambda: exact(1), lambda: exact(2))


def _tallied(labels: NDArray[np.int64], n_cells: int) -> NDArray[np.int64]:
    return np.bincount(labels[labels >= 0], minlength=n_cells).astype(np.int64)
