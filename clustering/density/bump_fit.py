"""Fitted densities with their bumps, and the refits that show how far a label map depends on the noise."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clustering.density.deconvolution import MORE_STEPS, STEPS, Deconvolution
from clustering.density.excess_mass import Bump, BumpTree, above_saddle

LENGTH_SCALES = (0.06, 0.04, 0.03)  # ℓ of the fits that are compared
FINE_SCALES = (0.04, 0.03, 0.02)  # the same for the finest ℓ and a given number of clusters

LONG_FIT_CELLS = 96**2  # up to so many cells, a fit runs to convergence
_REFIT_STEPS = 80  # maximum steps of a refit
_FEW_STEPS = 20  # the same for a larger grid


@dataclass(frozen=True)
class BumpFit(ABC):
    """A fitted density. A subclass fits other data and other priors in the same way.

    Refits are post-processing: they start from released densities, tallies and noisy counts, so they cost no
    privacy budget. Their random numbers have a public seed, so equal data give equal results.

    Attributes
    ----------
    fitted : Deconvolution
    length_scale : float
        ℓ of the prior.
    """

    fitted: Deconvolution
    length_scale: float

    @property
    @abstractmethod
    def clusters(self) -> int | None:
        """Return the requested number of clusters, or None to count them."""

    @property
    @abstractmethod
    def selects_scale(self) -> bool:
        """Return whether ℓ may be selected for a given number of clusters."""

    @abstractmethod
    def redraw(self, density: NDArray[np.float64], throw: int) -> Deconvolution:
        """Return the fit to synthetic data from `density`, with the noise of this fit's data."""

    @abstractmethod
    def halve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the densities fitted to two halves of the data, which are made from the counts alone."""

    @abstractmethod
    def at_scale(self, length_scale: float) -> Self:
        """Return the fit to the same data under another ℓ."""

    @property
    def density(self) -> NDArray[np.float64]:
        """Return the density over the cells, which sums to one."""
        return self.fitted.density

    @cached_property
    def tree(self) -> BumpTree:
        """Return the tree of the bumps."""
        return BumpTree(self.density, self.fitted.circles)

    @cached_property
    def all_bumps(self) -> list[Bump]:
        """Return all bumps, the last component first."""
        return self.tree.bumps()

    @cached_property
    def other_scales(self) -> tuple[Self, Self]:
        """Return the fits under two other ℓ: the others of the compared ones, or 1.5 ℓ and .75 ℓ."""
        is_fine = self.clusters is not None and self.length_scale == LENGTH_SCALES[-1]
        others = [scale for scale in (FINE_SCALES if is_fine else LENGTH_SCALES) if scale != self.length_scale]
        if len(others) != 2:
            others = [1.5 * self.length_scale, 0.75 * self.length_scale]
        return self.at_scale(others[0]), self.at_scale(others[1])

    def excess_error(self, bump: Bump) -> float:
        """Return the standard error of E due to noise, for fixed cells of the bump and its saddle."""
        if bump.saddle is None:
            return 0.0
        if bump not in self._errors:
            self._errors[bump] = self.fitted.standard_error(above_saddle(self.density, bump, self.fitted.circles))
        return self._errors[bump]

    @cached_property
    def _errors(self) -> dict[Bump, float]:
        """Return the cache of `excess_error`."""
        return {}


class Search(NamedTuple):
    """Settings of the search for a minimum; see `fit_log_density`."""

    steps: int
    start: NDArray[np.float64] | None = None
    is_refit: bool = False


def choose_search(n_cells: int, former: NDArray[np.float64] | None = None) -> Search:
    """Return how to fit so many cells, after a former fit if there is one.

    A large grid has few steps and starts from the former density. A small one starts from the flat density: noise
    moves the valleys of a density, and from the former ones a refit needs up to twice as many steps.
    """
    if n_cells <= LONG_FIT_CELLS:
        return Search(MORE_STEPS) if former is None else Search(_REFIT_STEPS, is_refit=True)
    return Search(STEPS) if former is None else Search(_FEW_STEPS, former)
