"""The curator: the only door to records. It charges first, then answers with exact noise.

Neighbours differ by one record, present or absent; where a dataset names its users, by all
records of one, of which at most `max_per_user` are held. Every answer is of integers. Most have
discrete Laplace noise of the scale sensitivity * max_per_user / epsilon, and cost the epsilon they
were charged under pure differential privacy; those in a concentrated block have discrete Gaussian
noise, and the block costs (epsilon, delta). Epsilons add up, and so do deltas.

A question is asked in public terms: cells, centres and radii are made of parameters and of
earlier answers. What an algorithm makes of answers costs nothing.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells
from clustering.central.digest import digest_of
from clustering.concentrated_block import ConcentratedBlock
from clustering.errors import BudgetOverdrawn, DeltaOverdrawn
from clustering.halving_tree import grown
from clustering.noise import MAX_SCALE, LaplaceNoise, Noise, laplace_variance
from clustering.questions import (
    CellSquares,
    Exact,
    Held,
    Journal,
    MemoryJournal,
    Question,
    Records,
    Shares,
    Sums,
    Work,
    check_centres,
    exact_counts,
    exact_sums,
    number_of,
)
from sfumato.accounting import NANO
from sfumato.concentrated import rho_of
from sfumato.entropy import Entropy
from sfumato.errors import InvalidSpec
from sfumato.specs import LATTICE

__all__ = [
    "LARGEST",
    "SQUARE_BITS",
    "Curator",
    "Exact",
    "Held",
    "Journal",
    "MemoryJournal",
    "Question",
    "Records",
    "Shares",
    "Sums",
    "Work",
]

LARGEST = 1 << 60  # of an answer: what noise makes larger is clamped, after the noise
SQUARE_BITS = 20  # dropped of a squared distance in lattice units, so that a sum of them fits a word


class Curator:
    """The only door to records.

    Parameters
    ----------
    records : Held
    epsilon_nano : int
        What the answers may cost in all.
    journal : Journal
    entropy : Entropy
        The system's; seeded in simulations alone.
    delta_atto : int
        What they may cost beside: of concentrated blocks alone.
    """

    def __init__(
        self, records: Held, epsilon_nano: int, journal: Journal, entropy: Entropy, delta_atto: int = 0
    ) -> None:
        self._records = records
        self._budget = epsilon_nano
        self._delta_budget = delta_atto
        self._journal = journal
        self._entropy = entropy
        self._asked: list[Question] = []
        self._spent_nano = self._spent_delta_atto = 0

    @property
    def n_features(self) -> int:
        return self._records.n_features

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
        return self._spent_nano

    @property
    def left_nano(self) -> int:
        return self._budget - self.spent_nano

    @property
    def spent_delta_atto(self) -> int:
        return self._spent_delta_atto

    @property
    def left_delta_atto(self) -> int:
        return self._delta_budget - self.spent_delta_atto

    def variance(self, sensitivity: int, epsilon_nano: int) -> float:
        """Variance of the noise in an answer that one record changes by at most so much; public, and free."""
        return laplace_variance(self._scale(sensitivity, epsilon_nano))

    def deviation(self, epsilon_nano: int) -> float:
        """Standard deviation of noise on what one record changes by one, as if continuous; public, and free."""
        return float(2**0.5 * self.max_per_user * NANO / epsilon_nano)

    def count(self, epsilon_nano: int) -> int:
        """The number of records, noisy; may be negative. One record changes it by 1."""
        return int(self._answer("count", epsilon_nano, 1, (), lambda: self._records.total(number_of)[0])[0])

    def counts(self, cells: Cells, epsilon_nano: int) -> NDArray[np.int64]:
        """Noisy numbers of records in disjoint cells: ndarray of shape (n_cells,); some may be negative.

        One record is in one cell at most, so all counts together cost what one does.
        """
        return self._answer("counts", epsilon_nano, cells.n_cells, (cells,), exact_counts(self._records, cells))

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
        k, d = check_centres(cells, centres, self.n_features)
        radii = np.clip(radii, 1, d * LATTICE)
        exact = exact_sums(self._records, cells, centres, radii, "l1")
        about = (cells, centres, radii)
        residuals = self._answer("sums", shares.residuals, np.repeat(radii, d), about, exact.residuals)
        counts = self._answer("counts", shares.counts, k, (cells,), exact.counts)
        sizes = self._answer("sizes", shares.sizes, radii, about, exact.sizes) if shares.sizes else None
        return Sums(residuals.reshape(k, d), counts, sizes)

    def squares(self, cells: Cells, centres: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:
        """Noisy sums of squared distances from each cell's centre, in units of 2^20 squared lattice units.

        That is, in units of 2^-20 of a feature's squared range; one record changes one of them by
        at most d 2^20. (Sensitivity 4d on [-1, 1]^d: STATISTICS 5.1.)
        """
        k, d = check_centres(cells, centres, self.n_features)

        def exact() -> NDArray[np.int64]:
            return self._records.total(CellSquares(cells, centres, SQUARE_BITS))[0]

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

    def concentrated(self, epsilon_nano: int, delta_atto: int) -> ConcentratedBlock:
        """A block of questions answered with Gaussian noise, charged (epsilon, delta) as a whole, here and now.

        Its rho is the largest that (epsilon, delta) pays for; `sfumato.concentrated` says why. What
        is asked in it shows in the odometer at no further cost.

        Raises
        ------
        InvalidSpec
            Too little for any rho; nothing is charged.
        """
        rho_pico = rho_of(epsilon_nano, delta_atto)
        if rho_pico == 0:
            raise InvalidSpec("this epsilon and delta are too small for concentrated answers")
        digest = digest_of("concentrated block", self.max_per_user, rho_pico)
        if self._charged(Question("concentrated block", epsilon_nano, 0, digest, delta_atto)) is None:
            self._kept(np.empty(0, dtype=np.int64))  # no numbers: questions in it have those
        return ConcentratedBlock(rho_pico, self._records, self._release)

    def _answer(
        self,
        what: str,
        epsilon_nano: int,
        sensitivities: int | NDArray[np.int64],
        made_of: tuple[Any, ...],
        exact: Exact,
    ) -> NDArray[np.int64]:
        """Charge, then draw: the noisy answer, or the one that was drawn before for the same question.

        `sensitivities` is the number of values, each of sensitivity 1, or one sensitivity for each.
        """
        if isinstance(sensitivities, int):
            sensitivities = np.ones(sensitivities, dtype=np.int64)
        self._scale(int(sensitivities.max(initial=1)), epsilon_nano)  # one that cannot be drawn is not charged
        noise = LaplaceNoise(Fraction(self.max_per_user * NANO, epsilon_nano), sensitivities)
        digest = digest_of(what, self.max_per_user, *made_of)
        return self._release(Question(what, epsilon_nano, len(sensitivities), digest), exact, noise)

    def _release(self, question: Question, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        """The one way for noisy numbers: charge, look, add noise, write down, answer.

        Every answer but a tree's passes here, whether its noise is Laplace's or Gaussian.
        """
        answer = self._charged(question)
        if answer is None:
            noisy = exact() + noise.draw(self._entropy)
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
        if question.delta_atto > self.left_delta_atto:
            raise DeltaOverdrawn(asked_atto=question.delta_atto, left_atto=self.left_delta_atto)
        self._asked.append(question)
        self._spent_nano += question.epsilon_nano
        self._spent_delta_atto += question.delta_atto
        return self._journal.charge(len(self._asked) - 1, question)

    def _kept(self, answer: NDArray[np.int64]) -> NDArray[np.int64]:
        """Write down the answer to the question asked last."""
        self._journal.keep(len(self._asked) - 1, answer)
        return answer
