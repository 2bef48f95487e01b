"""Agreement of label maps: between a map and the maps of refits, for each number of clusters.

A map that other noise, half of the data or another length scale would change is not worth much. Every figure is
post-processing of released densities and counts, and costs no privacy budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from clustering.density.bump_fit import BumpFit
from clustering.density.excess_mass import Bump, BumpTree

MAX_REFITS = 6  # synthetic rounds
_WORK = 1 << 14  # cells of all synthetic rounds together; larger grids get fewer, at least two

LEAST_EXCESS = 0.003  # least E of the first bump that is left out, for the gap
MAX_GAP = 2.0


@dataclass(frozen=True)
class Agreement:
    """Mean agreement of a label map with other maps of the same number of clusters, as adjusted Rand indices.

    Attributes
    ----------
    stability : float
        With the maps of synthetic data from the released density.
    halves : float
        With the maps of the two halves of the data.
    between_halves : float
        Of the maps of the two halves with each other.
    scales : float
        With the maps at the two other length scales.
    gap : float
        ln(E_K / E_{K+1}) of the last bump that is a cluster and the first that is not, at most 2.
    """

    stability: float
    halves: float
    between_halves: float
    scales: float
    gap: float

    @property
    def mean(self) -> float:
        """Return A, the mean of stability, halves and scales."""
        return (self.stability + self.halves + self.scales) / 3

    @property
    def mean_of_four(self) -> float:
        """Return the mean of all four."""
        return (self.stability + self.halves + self.between_halves + self.scales) / 4

    @property
    def least(self) -> float:
        """Return the least of stability, halves and scales."""
        return min(self.stability, self.halves, self.scales)


NO_AGREEMENT = Agreement(0.0, 0.0, 0.0, 0.0, 0.0)  # one cluster agrees with everything, so its agreement is no evidence


@dataclass(frozen=True)
class Selection:
    """The bumps of a density that may be clusters, by descending E. The last component is always the first.

    Attributes
    ----------
    least_excess, least_contrast : float
        Least E and least E/S of the others.
    """

    least_excess: float = 0.0
    least_contrast: float = 0.0

    def of(self, found: Sequence[Bump]) -> list[Bump]:
        """Return the selected bumps of a result of `bumps`."""
        return [found[0], *(bump for bump in found[1:] if bump.excess >= self.least(bump))]

    def least(self, bump: Bump) -> float:
        """Return the least E of a bump of this mass."""
        return max(self.least_excess, self.least_contrast * bump.mass)


class Divisions:
    """The label maps of one density: the K first bumps for each K."""

    def __init__(self, tree: BumpTree, ranked: Sequence[Bump]) -> None:
        self._tree, self._ranked = tree, ranked
        self._labels: dict[int, NDArray[np.int64]] = {}

    @classmethod
    def of(cls, density: NDArray[np.float64], selection: Selection, circles: Sequence[int] = ()) -> "Divisions":
        """Return the divisions of a density; `circles` are the axes of periodic features."""
        tree = BumpTree(density, circles)
        return cls(tree, selection.of(tree.bumps()))

    def labels(self, clusters: int) -> NDArray[np.int64]:
        """Return the map of so many clusters, or of all selected bumps if they are fewer."""
        clusters = min(clusters, len(self._ranked))
        if clusters not in self._labels:
            self._labels[clusters] = self._tree.regions(self._ranked[:clusters]).labels
        return self._labels[clusters]


class Comparison:
    """The maps of a fit and of its refits.

    Parameters
    ----------
    fit : BumpFit
    selection : Selection
    """

    def __init__(self, fit: BumpFit, selection: Selection) -> None:
        self._fit, self._selection = fit, selection
        self.ranked = selection.of(fit.all_bumps)
        self._own = Divisions(fit.tree, self.ranked)

    def agreement(self, clusters: int) -> Agreement:
        """Return the agreement of the maps of so many clusters. One cluster has none."""
        if clusters < 2:
            return NO_AGREEMENT
        own = self._own.labels(clusters)

        def mean(others: Sequence[Divisions]) -> float:
            return float(np.mean([self._index(own, other.labels(clusters)) for other in others]))

        return Agreement(
            mean(self.redrawn),
            mean(self._halves),
            self._index(self._halves[0].labels(clusters), self._halves[1].labels(clusters)),
            mean(self._scales),
            self.gap(clusters),
        )

    def labels(self, clusters: int) -> NDArray[np.int64]:
        """Return the own map of so many clusters."""
        return self._own.labels(clusters)

    @property
    def density(self) -> NDArray[np.float64]:
        """Return the density of the fit."""
        return self._fit.density

    @property
    def with_other_noise(self) -> list[Divisions]:
        """Return the divisions of synthetic data and of the halves."""
        return [*self.redrawn, *self._halves]

    def gap(self, clusters: int) -> float:
        """Return ln(E_K / E_{K+1}), from 0 to 2. An excess is at least .003, also that of a missing bump."""
        own, following = (
            self.ranked[place].excess if place < len(self.ranked) else 0.0 for place in (clusters - 1, clusters)
        )
        return min(log(max(own, LEAST_EXCESS) / max(following, LEAST_EXCESS)), MAX_GAP)

    @cached_property
    def redrawn(self) -> list[Divisions]:
        """Return the divisions of synthetic data."""
        density = self._fit.density
        n_refits = min(MAX_REFITS, max(2, _WORK // density.size))
        return [self._divide(self._fit.redraw(density, throw).density) for throw in range(n_refits)]

    @cached_property
    def _halves(self) -> list[Divisions]:
        return [self._divide(density) for density in self._fit.halve()]

    @cached_property
    def _scales(self) -> list[Divisions]:
        return [Divisions(other.tree, self._selection.of(other.all_bumps)) for other in self._fit.other_scales]

    def _divide(self, density: NDArray[np.float64]) -> Divisions:
        return Divisions.of(density, self._selection, self._fit.fitted.circles)

    def _index(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
        return adjusted_rand(one, other, self._fit.density)


def adjusted_rand(one: NDArray[np.int64], other: NDArray[np.int64], density: NDArray[np.float64]) -> float:
    """Return the adjusted Rand index of two label maps for people distributed by a density.

    With t_ij the mass of label i in one map and j in the other, and e = sum t_i.² sum t_.j²:
        R = (sum t_ij² - e) / (½ (sum t_i.² + sum t_.j²) - e).
    This is the index of infinitely many people. Two maps of one cluster have R = 1.

    Parameters
    ----------
    one, other : ndarray of the density's shape, int64
        Labels from 0.
    density : ndarray
        Sums to one.
    """
    n_other = int(other.max()) + 1
    pairs = np.bincount(one.ravel() * n_other + other.ravel(), weights=density.ravel())
    cells = np.zeros((int(one.max()) + 1) * n_other)
    cells[: len(pairs)] = pairs
    table = cells.reshape(-1, n_other)
    rows, columns = (table.sum(1) ** 2).sum(), (table.sum(0) ** 2).sum()
    expected, most = rows * columns, (rows + columns) / 2
    if most - expected < 1e-9 * most:
        return 1.0
    return float(((table**2).sum() - expected) / (most - expected))
