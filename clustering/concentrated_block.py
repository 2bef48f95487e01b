"""A concentrated block: questions answered with Gaussian noise, all of them paid for by one charge of (epsilon, delta).

The block has a rho, the largest that its charge pays for, and every question in it takes a whole
number of pico-rho. Rhos of questions that follow from earlier answers add up (Bun and Steinke 2016,
lemma 1.7), also where answers decide how much the next one takes, since their sum has a limit that
was fixed before (Feldman and Zrnic 2021, Renyi filters): whatever is asked satisfies what was charged.

Noise of variance s^2 / (2 rho) on a value that one record changes by s costs rho: on many values
it costs no more if their changes, each over its s, have a Euclidean norm of at most one (Canonne,
Kamath and Steinke 2020, theorem 14). A user's `max_per_user` records multiply that norm, so the
variance is that many times squared.
"""

from collections.abc import Callable
from fractions import Fraction
from math import isqrt, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells
from clustering.central.digest import digest_of
from clustering.errors import BlockOverdrawn
from clustering.noise import MAX_SIGMA, GaussianNoise, Noise
from clustering.questions import Exact, Held, Question, Shares, Sums, check_centres, exact_counts, exact_sums
from sfumato.concentrated import PICO
from sfumato.errors import InvalidSpec
from sfumato.specs import LATTICE

Release = Callable[[Question, Exact, Noise], NDArray[np.int64]]


class ConcentratedBlock:
    """Questions under zero-concentrated privacy; `Curator.concentrated` makes one, and charges for it.

    Parameters
    ----------
    rho_pico : int
        What its questions may take in all.
    records : Held
    release : callable
        The curator's: charges, which is nothing further, then answers.
    """

    def __init__(self, rho_pico: int, records: Held, release: Release) -> None:
        self._records = records
        self._release = release
        self._left = rho_pico

    @property
    def n_features(self) -> int:
        return self._records.n_features

    @property
    def left_pico(self) -> int:
        """What is left of rho, in pico-rho."""
        return self._left

    def deviation(self, rho_pico: int) -> float:
        """Standard deviation of the noise on what one record changes by one; public, and free."""
        return deviation_of(rho_pico, self._records.max_per_user)

    def counts(self, cells: Cells, rho_pico: int) -> NDArray[np.int64]:
        """Noisy numbers of records in disjoint cells; see `Curator.counts`."""
        ones = np.ones(cells.n_cells, dtype=np.int64)
        return self._answer("counts", rho_pico, ones, (cells,), exact_counts(self._records, cells))

    def sums(self, cells: Cells, centres: NDArray[np.int64], radii: NDArray[np.int64], shares: Shares) -> Sums:
        """Noisy sums of records about a centre for each cell, their counts and their sizes.

        As `Curator.sums`, in Euclidean norms: a record's residual is shrunk to the cell's radius
        in L2, and a size is the sum of such norms, each rounded up.

        Parameters
        ----------
        cells : Cells
        centres : ndarray of shape (n_cells, d), int64
            Lattice places.
        radii : ndarray of shape (n_cells,), int64
            R, lattice units, in 1 .. sqrt(d) 2^20.
        shares : Shares
            In pico-rho.
        """
        k, d = check_centres(cells, centres, self.n_features)
        radii = np.clip(radii, 1, widest(d))
        exact = exact_sums(self._records, cells, centres, radii, "l2")
        about = (cells, centres, radii)
        residuals = self._answer("sums", shares.residuals, np.repeat(radii, d), about, exact.residuals)
        counts = self._answer("counts", shares.counts, np.ones(k, dtype=np.int64), (cells,), exact.counts)
        sizes = self._answer("sizes", shares.sizes, radii, about, exact.sizes) if shares.sizes else None
        return Sums(residuals.reshape(k, d), counts, sizes)

    def _answer(
        self, what: str, rho_pico: int, sensitivities: NDArray[np.int64], made_of: tuple[Any, ...], exact: Exact
    ) -> NDArray[np.int64]:
        """Take rho out of the block, then draw: or give what was drawn before for the same question."""
        unit = unit_variance(rho_pico, self._records.max_per_user)
        if unit * int(sensitivities.max(initial=1)) ** 2 > MAX_SIGMA**2:  # what cannot be drawn is not charged
            raise InvalidSpec("this epsilon is too small for a question, with so many records a user may have")
        noise = GaussianNoise(unit, sensitivities)
        if rho_pico > self._left:
            raise BlockOverdrawn(asked_pico=rho_pico, left_pico=self._left)
        self._left -= rho_pico
        digest = digest_of(what, self._records.max_per_user, "rho", rho_pico, *made_of)
        return self._release(Question(what, 0, len(sensitivities), digest, rho_pico=rho_pico), exact, noise)


def unit_variance(rho_pico: int, max_per_user: int) -> Fraction:
    """The variance of noise on a value that one record changes by one, where that takes so much rho."""
    if rho_pico < 1:
        raise ValueError("a question in a block takes at least one pico-rho")
    return Fraction(max_per_user**2 * PICO, 2 * rho_pico)


def deviation_of(rho_pico: int, max_per_user: int) -> float:
    """The root of `unit_variance`, near."""
    return sqrt(unit_variance(rho_pico, max_per_user))


def widest(n_features: int) -> int:
    """No residual in the box is longer in L2, in lattice units."""
    return isqrt(n_features * LATTICE**2) + 1
