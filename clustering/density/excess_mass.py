"""Bumps of a density by excess of mass, and the regions of selected bumps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import generate_binary_structure, label
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from clustering.density.label_map import rank_by_mass
from clustering.kernels.cells import grow_components, lower_to_peak

_NO_EXCESS = 1e-9  # bound on rounding error

Cell = tuple[int, ...]


@dataclass(frozen=True)
class Bump:
    """A component of the cells above a level, at the level where it meets a greater component.

    Attributes
    ----------
    peak : tuple of int
        Cell with the highest density, which identifies the bump.
    saddle : tuple of int or None
        Cell where it meets the greater component; None for the last component.
    excess : float
        E = S - C * (density of the saddle), in (0, 1]: the mass to remove for the bump to
        vanish. 1 for the last component.
    mass : float
        S, its mass at the saddle's level.
    """

    peak: Cell
    saddle: Cell | None
    excess: float
    mass: float

    @property
    def height(self) -> float:
        """Return E/√S. Of two bumps of equal excess, the one with less mass is more significant.

        The mass S of a bump varies by √S if the excess E above its saddle is due to chance.
        """
        return self.excess / sqrt(self.mass)


@dataclass(frozen=True)
class Regions:
    """A grid divided into the regions of bumps.

    Attributes
    ----------
    labels : ndarray of the density's shape, int64
        0 .. n-1, by descending mass.
    bumps : tuple of n Bump
        The bump of each region, at its first contact with another region.
    """

    labels: NDArray[np.int64]
    bumps: tuple[Bump, ...]


def bumps(density: NDArray[np.float64]) -> list[Bump]:
    """Return all bumps by descending E; see `BumpTree.bumps`."""
    return BumpTree(density).bumps()


def regions(density: NDArray[np.float64], kept: Sequence[Bump]) -> Regions:
    """Return the regions of selected bumps; see `BumpTree.regions`."""
    return BumpTree(density).regions(kept)


def above_saddle(density: NDArray[np.float64], bump: Bump, circles: Sequence[int] = ()) -> NDArray[np.float64]:
    """Return weights of the cells; the density summed with them is the bump's excess.

    `circles` are the axes of periodic features, where the first and the last cell are neighbours.

    The weight is 1 on the bump's cells, and minus their number at the saddle. If more than two
    bumps meet at one saddle, the last one includes others. The weights omit the others, so
    the sum is then below the excess.
    """
    if bump.saddle is None:
        return np.ones(density.shape)
    components = _components(density > density[bump.saddle], circles)
    weights = (components == components[bump.peak]).astype(np.float64)
    weights[bump.saddle] -= weights.sum()
    return np.asarray(weights, dtype=np.float64)


def _components(inside: NDArray[np.bool_], circles: Sequence[int]) -> NDArray[np.int64]:
    """Label the regions of cells that share a face, an edge or a corner 1, 2, ...; other cells are 0."""
    wrapped = np.pad(inside, [(0, 1) if axis in circles else (0, 0) for axis in range(inside.ndim)], mode="wrap")
    labels, n_labels = label(wrapped, structure=generate_binary_structure(inside.ndim, inside.ndim))
    own = labels[tuple(slice(n_cells) for n_cells in inside.shape)]
    if not circles:
        return np.asarray(own, dtype=np.int64)
    again = np.pad(own, [(0, after - n) for after, n in zip(wrapped.shape, inside.shape, strict=True)], mode="wrap")
    joined = coo_array((np.ones(again.size), (labels.ravel(), again.ravel())), shape=(n_labels + 1,) * 2)
    _, merged = connected_components(joined, directed=False)
    return np.asarray(np.where(inside, merged[own] + 1, 0), dtype=np.int64)


class BumpTree:
    """The excess-of-mass tree of a density.

    Parameters
    ----------
    density : ndarray
        Non-negative, sums to one.
    circles : sequence of int
        Axes of periodic features, where the first and the last cell are neighbours.
    """

    def __init__(self, density: NDArray[np.float64], circles: Sequence[int] = ()) -> None:
        self._density = density
        self._flat = np.pad(density, 1).ravel()
        self._shape = tuple(n_cells + 2 for n_cells in density.shape)
        self._inside = np.flatnonzero(np.pad(np.ones(density.shape, dtype=np.bool_), 1))
        self._same = _same_cells(density.shape, circles)
        strides = np.array([int(np.prod(self._shape[axis + 1 :])) for axis in range(density.ndim)], dtype=np.int64)
        steps = np.array([step for step in product((-1, 0, 1), repeat=density.ndim) if any(step)], dtype=np.int64)
        self._offsets = steps @ strides
        self._order = self._inside[np.argsort(-self._flat[self._inside], kind="stable")]

    def bumps(self) -> list[Bump]:
        """Return all bumps by descending E. The first is the last component, which covers the grid."""
        grown = self.grow(())
        (peaks,) = np.nonzero((grown.saddle >= 0) & (grown.excess > _NO_EXCESS))
        ordered = peaks[np.argsort(-grown.excess[peaks], kind="stable")]
        survivor = grown.parent[0]  # all cells end in the last component
        return [grown.bump(int(peak)) for peak in (survivor, *ordered)]

    def regions(self, kept: Sequence[Bump]) -> Regions:
        """Return the regions of selected bumps. Each cell joins the bump it connects to at the highest level.

        Parameters
        ----------
        kept : sequence of Bump
            Bumps of this density, including the last component.
        """
        grown = self.grow([bump.peak for bump in kept])
        peaks, labels = np.unique(grown.parent, return_inverse=True)
        labels, order = rank_by_mass(labels.reshape(self._density.shape), self._density)
        return Regions(labels, tuple(grown.bump(int(peak)) for peak in peaks[order]))

    def connect_to_peak(self) -> NDArray[np.float64]:
        """Return the highest level at which each cell connects to the cell of greatest density."""
        level = np.zeros(self._flat.size)
        level[self._order[0]] = self._flat[self._order[0]]
        lower_to_peak(self._flat, self._inside, self._offsets, self._same, level)
        return level[self._inside].reshape(self._density.shape)

    def grow(self, kept_peaks: Sequence[Cell]) -> "GrownTree":
        """Return the tree if the components of some peaks never merge with each other."""
        flat = self._flat
        kept = np.zeros(flat.size, dtype=np.bool_)
        for peak in kept_peaks:
            kept[np.ravel_multi_index([c + 1 for c in peak], self._shape)] = True
        parent, saddle = np.full(flat.size, -1, dtype=np.int64), np.full(flat.size, -1, dtype=np.int64)
        excess, mass = np.zeros(flat.size), np.zeros(flat.size)
        grow_components(flat, self._order, self._offsets, self._same, kept, parent, saddle, excess, mass)
        return GrownTree(self._shape, parent[self._inside], saddle, excess, mass)


def _same_cells(shape: tuple[int, ...], circles: Sequence[int]) -> NDArray[np.int64]:
    """Return the padded index of the cell that each padded index stands for: on a circle, that of the other end."""
    padded = tuple(n_cells + 2 for n_cells in shape)
    places = [np.arange(n_cells) for n_cells in padded]
    for axis in circles:
        places[axis] = (places[axis] - 1) % shape[axis] + 1
    return np.ravel_multi_index(np.meshgrid(*places, indexing="ij"), padded).ravel().astype(np.int64)


@dataclass(frozen=True, eq=False)
class GrownTree:
    """Kernel arrays of a density padded by one cell.

    Attributes
    ----------
    shape : tuple of int
        Shape of the padded density.
    parent : ndarray of shape (n_cells,), int64
        Padded index of the peak of each cell's component.
    saddle, excess, mass : ndarray of shape (n_padded,)
        By peak; see `clustering.kernels.cells.grow_components`.
    """

    shape: tuple[int, ...]
    parent: NDArray[np.int64]
    saddle: NDArray[np.int64]
    excess: NDArray[np.float64]
    mass: NDArray[np.float64]

    def bump(self, peak: int) -> Bump:
        """Return the bump of a peak, given by its padded index."""
        if self.saddle[peak] < 0:
            return Bump(self._cell(peak), None, 1.0, 1.0)
        return Bump(
            self._cell(peak), self._cell(int(self.saddle[peak])), float(self.excess[peak]), float(self.mass[peak])
        )

    def _cell(self, index: int) -> Cell:
        return tuple(int(c) - 1 for c in np.unravel_index(index, self.shape))
