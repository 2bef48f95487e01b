"""The curator: the only door to records. It charges first, then answers with exact noise.

Neighbours differ by one record, present or absent; where a dataset names its users, by all
records of one, of which at most `max_per_user` are held. Every answer is of integers, with
discrete Laplace noise of the scale sensitivity * max_per_user / epsilon, so that it costs the
epsilon it was charged under pure differential privacy, and answers add up.

A question is asked in public terms: cells, centres and radii are made of parameters and of
earlier answers. What an algorithm makes of answers costs nothing.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells
from clustering.central.digest import digest_of
from clustering.errors import BudgetOverdrawn
from clustering.halving_tree import grown
from clustering.kernels.residuals import add_residuals, add_squares
from clustering.noise import MAX_SCALE, discrete_laplace, laplace_variance
from sfumato.accounting import NANO
from sfumato.entropy import Entropy
from sfumato.errors import InvalidSpec
from sfumato.specs import LATTICE

LARGEST = 1 << 60  # of an answer: what noise makes larger is clamped, after the noise
SQUARE_BITS = 20  # dropped of a squared distance in lattice units, so that a sum of them fits a word


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
        Numbers in the answer; a tree counts as one.
    digest : str
        Of all it was made of, which is public: cells, centres, radii. A job that is run again
        after a crash is told an old answer to the same question alone.
    """

    what: str
    epsilon_nano: int
    n_values: int
    digest: str


class Journal(Protocol):
    """Where charges and answers are written down, so that a job that was interrupted asks nothing twice."""

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        """Pay for question number `index`, once however often it is asked; the answer it had, where it had one.

        Raises where it cannot be paid for; then nothing is drawn.
        """

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        """Write an answer down before anybody acts on it."""


class Sums(NamedTuple):
    """Noisy sums over cells; see `Curator.sums`."""

    residuals: NDArray[np.int64]  # (k, d), lattice units
    counts: NDArray[np.int64]  # (k,)
    sizes: NDArray[np.int64] | None  # (k,), lattice units: sum of the clipped residuals' L1 norms


class Shares(NamedTuple):
    """How the epsilon of `Curator.sums` is divided, in nano-epsilon; `sizes` 0 leaves them out."""

    residuals: int
    counts: int
    sizes: int = 0


class Curator:
    """The only door to records.

    Parameters
    ----------
    records : Records
    epsilon_nano : int
        What the answers may cost in all.
    journal : Journal
    entropy : Entropy
        The system's; seeded in simulations alone.
    """

    def __init__(self, records: Records, epsilon_nano: int, journal: Journal, entropy: Entropy) -> None:
        self._records = records
        self._budget = epsilon_nano
        self._journal = journal
        self._entropy = entropy
        self._asked: list[Question] = []

    @property
    def n_features(self) -> int:
        return int(self._records.points.shape[1])

    @property
    def max_per_user(self) -> int:
        """Records one user may have, which is public: noise grows with it."""
        return self._records.max_per_user

    @property
    def odometer(self) -> tuple[Question, ...]:
        """Every question so far, in order."""
        return tuple(self._asked)

    @property
    def spent_nano(self) -> int:
        return sum(question.epsilon_nano for question in self._asked)

    @property
    def left_nano(self) -> int:
        return self._budget - self.spent_nano

    def variance(self, sensitivity: int, epsilon_nano: int) -> float:
        """Variance of the noise in an answer that one record changes by at most so much; public, and free."""
        return laplace_variance(self._scale(sensitivity, epsilon_nano))

    def count(self, epsilon_nano: int) -> int:
        """The number of records, noisy; may be negative. One record changes it by 1."""
        return int(self._answer("count", epsilon_nano, 1, (), lambda: np.array([len(self._records.points)]))[0])

    def counts(self, cells: Cells, epsilon_nano: int) -> NDArray[np.int64]:
        """Noisy numbers of records in disjoint cells: ndarray of shape (n_cells,); some may be negative.

        One record is in one cell at most, so all counts together cost what one does.
        """

        def exact() -> NDArray[np.int64]:
            return _tallied(cells.index(self._records.points), cells.n_cells)

        return self._answer("counts", epsilon_nano, cells.n_cells, (cells,), exact)

    def sums(self, cells: Cells, centres: NDArray[np.int64], radii: NDArray[np.int64], shares: Shares) -> Sums:
        """Noisy sums of records about a centre for each cell, their counts and their sizes.

        A record's residual from its cell's centre is shrunk to the cell's radius in L1, in whole
        lattice units: it changes one cell's sum by at most that radius in L1, its size by as much,
        its count by 1.

        Parameters
        ----------
        cells : Cells
        centres : ndarray of shape (n_cells, d), int64
            Lattice places.
        radii : ndarray of shape (n_cells,), int64
            R, lattice units, in 1 .. d 2^20.
        shares : Shares
            Each is charged before its part is drawn.
        """
        k, d = self._about(cells, centres)
        radii = np.clip(radii, 1, d * LATTICE)
        memo: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []

        def exact() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
            if not memo:
                labels = cells.index(self._records.points)
                sums, sizes = np.zeros((k, d), dtype=np.int64), np.zeros(k, dtype=np.int64)
                add_residuals(self._records.points, labels, centres, radii, sums, sizes)
                memo.append((sums, _tallied(labels, k), sizes))
            return memo[0]

        about = (cells, centres, radii)
        sums = self._answer("sums", shares.residuals, np.repeat(radii, d), about, lambda: exact()[0].ravel())
        counts = self._answer("counts", shares.counts, k, (cells,), lambda: exact()[1])
        sizes = None
        if shares.sizes:
            sizes = self._answer("sizes", shares.sizes, radii, about, lambda: exact()[2])
        return Sums(sums.reshape(k, d), counts, sizes)

    def squares(self, cells: Cells, centres: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:
        """Noisy sums of squared distances from each cell's centre, in units of 2^20 squared lattice units.

        That is, in units of 2^-20 of a feature's squared range; one record changes one of them by
        at most d 2^20. (Sensitivity 4d on [-1, 1]^d: STATISTICS 5.1.)
        """
        k, d = self._about(cells, centres)

        def exact() -> NDArray[np.int64]:
            squares = np.zeros(k, dtype=np.int64)
            points = self._records.points
            add_squares(points, cells.index(points), centres, SQUARE_BITS, squares)
            return squares

        return self._answer("squares", epsilon_nano, np.full(k, d * LATTICE), (cells, centres), exact)

    def halving_tree(self, epsilon_nano: int) -> NDArray[np.int64]:
        """Which nodes of a tree of halved cells are split: 1 or 0 for each, as `tree_of` reads them.

        The records of one user change the chance of no outcome by more than e^epsilon, whatever
        its depth: `clustering.halving_tree` says why. Counts of its cells are another question.
        """
        scale = self._scale(3, epsilon_nano)
        answer = self._charged(Question("halving tree", epsilon_nano, 1, digest_of(scale.numerator, scale.denominator)))
        if answer is None:
            answer = self._kept(grown(self._records.points, scale, self._entropy))
        return answer

    def _about(self, cells: Cells, centres: NDArray[np.int64]) -> tuple[int, int]:
        """The centres' shape. Outside the box one record could weigh more than its sensitivity says."""
        if centres.shape != (cells.n_cells, self.n_features):
            raise ValueError("there is one centre for each cell")
        if centres.size and not 0 <= centres.min() <= centres.max() < LATTICE:
            raise ValueError("a centre is a lattice place")
        return cells.n_cells, self.n_features

    def _answer(
        self,
        what: str,
        epsilon_nano: int,
        sensitivities: "int | NDArray[np.int64]",
        made_of: tuple[Any, ...],
        exact: "Exact",
    ) -> NDArray[np.int64]:
        """Charge, then draw: the noisy answer, or the one that was drawn before for the same question.

        `sensitivities` is the number of values, each of sensitivity 1, or one sensitivity for each.
        """
        if isinstance(sensitivities, int):
            sensitivities = np.ones(sensitivities, dtype=np.int64)
        self._scale(int(sensitivities.max()), epsilon_nano)  # one that cannot be drawn is not charged
        answer = self._charged(
            Question(what, epsilon_nano, len(sensitivities), digest_of(what, self.max_per_user, *made_of))
        )
        if answer is None:
            noisy = exact() + self._noise(sensitivities, epsilon_nano)
            answer = self._kept(np.asarray(np.clip(noisy, -LARGEST, LARGEST), dtype=np.int64))
        return answer

    def _scale(self, sensitivity: int, epsilon_nano: int) -> Fraction:
        """Of the noise that hides so large a change; raises InvalidSpec where no such noise is drawn."""
        if epsilon_nano < 1:
            raise ValueError("a question costs at least one nano-epsilon")
        scale = Fraction(sensitivity * self.max_per_user * NANO, epsilon_nano)
        if scale > MAX_SCALE:
            raise InvalidSpec("this epsilon is too small for a question, with so many records a user may have")
        return scale

    def _charged(self, question: Question) -> NDArray[np.int64] | None:
        """Charge for the next question: its answer, where it was drawn before."""
        if question.epsilon_nano > self.left_nano:
            raise BudgetOverdrawn(asked_nano=question.epsilon_nano, left_nano=self.left_nano)
        self._asked.append(question)
        return self._journal.charge(len(self._asked) - 1, question)

    def _kept(self, answer: NDArray[np.int64]) -> NDArray[np.int64]:
        """Write down the answer to the question asked last."""
        self._journal.keep(len(self._asked) - 1, answer)
        return answer

    def _noise(self, sensitivities: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:
        """Laplace noise of scale sensitivity * max_per_user / epsilon, drawn for equal ones together."""
        noise = np.empty(len(sensitivities), dtype=np.int64)
        for sensitivity in np.unique(sensitivities):
            scale = self._scale(int(sensitivity), epsilon_nano)
            (alike,) = np.nonzero(sensitivities == sensitivity)
            noise[alike] = discrete_laplace(scale, len(alike), self._entropy)
        return noise


class Exact(Protocol):
    """Computes what an answer would be without noise; called after the charge alone."""

    def __call__(self) -> NDArray[np.int64]: ...


class MemoryJournal:
    """A journal for one run that is not interrupted: simulations and tests."""

    def __init__(self) -> None:
        self.charges: dict[int, Question] = {}

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        self.charges[index] = question
        return None

    def keep(self, index: int, answer: NDArray[np.int64]) -> None:
        """Nothing: nobody asks again."""


def _tallied(labels: NDArray[np.int64], n_cells: int) -> NDArray[np.int64]:
    return np.bincount(labels[labels >= 0], minlength=n_cells).astype(np.int64)
