"""The bumps of a density by their excess of mass, and the regions of those that are kept (STATISTICS 3.2, step 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import generate_binary_structure, label

from clustering.kernels.excess_mass import grow_components
from clustering.label_regions import by_mass

_NO_EXCESS = 1e-9  # rounding error; less than one person in a thousand million

Cell = tuple[int, ...]


@dataclass(frozen=True)
class Bump:
    """A component of the cells above some level, at the level where it met a greater one.

    Attributes
    ----------
    peak : tuple of int
        The cell it grew from; its name.
    saddle : tuple of int or None
        The cell at which it met; None for the one that met no other.
    excess : float
        E = S - C * (density of the saddle), in (0, 1]: the mass that would have to go for
        the bump to vanish. 1 where it met no other.
    mass : float
        S, its mass at that moment.
    """

    peak: Cell
    saddle: Cell | None
    excess: float
    mass: float

    @property
    def height(self) -> float:
        """E/√S: of two bumps of equal excess, the one with fewer people in it stands out more.

        The S people of a bump, if the E that stand above its saddle were chance, would vary
        by √S.
        """
        return self.excess / sqrt(self.mass)


@dataclass(frozen=True)
class Regions:
    """A grid cut into the regions of bumps.

    Attributes
    ----------
    labels : ndarray of the density's shape, int64
        0 .. n-1, by descending mass.
    bumps : tuple of n Bump
        Of each region, at its first contact with another region.
    """

    labels: NDArray[np.int64]
    bumps: tuple[Bump, ...]


def bumps(density: NDArray[np.float64]) -> list[Bump]:
    """All bumps by descending E; the first is the whole, which met no other.

    Parameters
    ----------
    density : ndarray
        Non-negative, of sum one.
    """
    tree = _Tree(density, ())
    (peaks,) = np.nonzero((tree.saddle >= 0) & (tree.excess > _NO_EXCESS))
    ordered = peaks[np.argsort(-tree.excess[peaks], kind="stable")]
    survivor = tree.parent[tree.inside[0]]  # every cell ended in it
    return [tree.bump(int(peak)) for peak in (survivor, *ordered)]


def regions(density: NDArray[np.float64], kept: Sequence[Bump]) -> Regions:
    """The region of every kept bump: each cell goes up to the bump it is joined to at the highest level.

    Parameters
    ----------
    density : ndarray
    kept : sequence of Bump
        Of this density; with the one that met no other.
    """
    tree = _Tree(density, [bump.peak for bump in kept])
    peaks, labels = np.unique(tree.parent[tree.inside], return_inverse=True)
    labels, order = by_mass(labels.reshape(density.shape), density)
    return Regions(labels, tuple(tree.bump(int(peak)) for peak in peaks[order]))


def above_saddle(density: NDArray[np.float64], bump: Bump) -> NDArray[np.float64]:
    """Weights whose sum with the density is the bump's excess: 1 on its cells, less as much at the saddle.

    Where more than two met at one saddle, the bump that ended there last had taken up
    others; they are left out, and the sum is below the excess.
    """
    if bump.saddle is None:
        return np.ones(density.shape)
    components, _ = label(
        density > density[bump.saddle], structure=generate_binary_structure(density.ndim, density.ndim)
    )
    weights = (components == components[bump.peak]).astype(np.float64)
    weights[bump.saddle] -= weights.sum()
    return np.asarray(weights, dtype=np.float64)


class _Tree:
    """The kernel's arrays over a density padded by one cell."""

    def __init__(self, density: NDArray[np.float64], kept_peaks: Sequence[Cell]) -> None:
        padded = np.pad(density, 1)
        flat = padded.ravel()
        self.shape = padded.shape
        self.inside = np.flatnonzero(np.pad(np.ones(density.shape, dtype=np.bool_), 1))
        strides = np.array([int(np.prod(self.shape[axis + 1 :])) for axis in range(density.ndim)], dtype=np.int64)
        steps = np.array([step for step in product((-1, 0, 1), repeat=density.ndim) if any(step)], dtype=np.int64)
        kept = np.zeros(flat.size, dtype=np.bool_)
        for peak in kept_peaks:
            kept[np.ravel_multi_index([c + 1 for c in peak], self.shape)] = True
        self.parent = np.full(flat.size, -1, dtype=np.int64)
        self.saddle = np.full(flat.size, -1, dtype=np.int64)
        self.excess, self.mass = np.zeros(flat.size), np.zeros(flat.size)
        order = self.inside[np.argsort(-flat[self.inside], kind="stable")]
        grow_components(flat, order, steps @ strides, kept, self.parent, self.saddle, self.excess, self.mass)

    def bump(self, peak: int) -> Bump:
        if self.saddle[peak] < 0:
            return Bump(self._cell(peak), None, 1.0, 1.0)
        return Bump(
            self._cell(peak), self._cell(int(self.saddle[peak])), float(self.excess[peak]), float(self.mass[peak])
        )

    def _cell(self, index: int) -> Cell:
        return tuple(int(c) - 1 for c in np.unravel_index(index, self.shape))
