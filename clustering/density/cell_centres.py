"""Centres of regions of grid cells, and their standard errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.density.label_map import centres_of, region_totals
from clustering.rounds.decoders import Decoder

_LEAST_SHARE = 1e-9


@dataclass(frozen=True)
class RegionGeometry:
    """Centres and widths of the regions of a labelled grid.

    Attributes
    ----------
    labels : ndarray of shape (n_cells,), int64
        Region of each cell.
    shares : ndarray of shape (n_cells,), float64
        Share of the population in each cell.
    sizes : ndarray of shape (n,), float64
        Share of the population in each region, at least 1e-9.
    centres, widths : ndarray of shape (n, n_features), float64
        Centre and extent of each region; the box is [0, 1] in each feature. Along a circle, the extent is that of the
        shortest arc.
    weights : ndarray of shape (n_cells, n_features), float64
        (x - c) / S, the derivative of a region's centre with respect to a cell's share. For the circular mean it is
        sin 2π(x - c) / (2π S R), with the mean resultant length R.
    cell : ndarray of shape (n_features,), float64
        Sides of a cell.
    """

    labels: NDArray[np.int64]
    shares: NDArray[np.float64]
    sizes: NDArray[np.float64]
    centres: NDArray[np.float64]
    widths: NDArray[np.float64]
    weights: NDArray[np.float64]
    cell: NDArray[np.float64]

    @classmethod
    def of(
        cls, labels: NDArray[np.int64], density: NDArray[np.float64], circles: Sequence[int] = ()
    ) -> "RegionGeometry":
        """Return the geometry of a grid with labels 0 .. n-1 and a density that sums to one.

        `circles` are the axes of periodic features.
        """
        centres = centres_of(labels, density, circles)
        sizes = np.maximum(region_totals(labels, density), _LEAST_SHARE)
        sides = 1 / np.array(labels.shape)
        flat = labels.ravel()
        weights, widths = np.empty((flat.size, labels.ndim)), np.empty(centres.shape)
        for axis in range(labels.ndim):
            along = (np.arange(labels.shape[axis]) + 0.5) * sides[axis]
            along = along.reshape([-1 if a == axis else 1 for a in range(labels.ndim)])
            middles = np.broadcast_to(along, labels.shape).ravel()
            if axis in circles:
                angles = 2 * np.pi * (middles - centres[flat, axis])
                lengths = region_totals(labels, density * np.cos(angles).reshape(labels.shape))  # S R
                weights[:, axis] = np.sin(angles) / (2 * np.pi * np.maximum(lengths, _LEAST_SHARE)[flat])
                widths[:, axis] = [_arc(middles[flat == region], sides[axis]) for region in range(len(sizes))]
                continue
            weights[:, axis] = (middles - centres[flat, axis]) / sizes[flat]
            low, high = np.ones(len(sizes)), np.zeros(len(sizes))
            np.minimum.at(low, flat, middles)
            np.maximum.at(high, flat, middles)
            widths[:, axis] = high - low + sides[axis]
        return cls(flat, density.ravel(), sizes, centres, widths, weights, sides)

    def errors(
        self, variances: NDArray[np.float64], n_reports: int, boxes: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return standard errors of the centres.

        Parameters
        ----------
        variances : ndarray of shape (n, n_features)
            Variance from the mechanism.
        n_reports : int
        boxes : ndarray of shape (n_cells,), int64, optional
            Number of grid cells in the reported cell (a cube) that contains each cell.

        Returns
        -------
        ndarray of shape (n, n_features), float64
            sqrt(variance + sampling + position within cells), at most the region's width. The mean
            position within a cell is taken as uniform, which exceeds the offset of a smooth density.
        """
        n, d = self.centres.shape
        side = np.ones(len(self.labels)) if boxes is None else boxes ** (1 / d)
        errors = np.empty((n, d))
        for axis in range(d):
            sampling = np.bincount(self.labels, weights=self.shares * self.weights[:, axis] ** 2, minlength=n)
            # The boxes of a cube have equal terms, but one common position.
            part = (self.shares / self.sizes[self.labels] * side * self.cell[axis]) ** 2 * side**d / 12
            inside = np.bincount(self.labels, weights=part, minlength=n)
            errors[:, axis] = np.sqrt(variances[:, axis] + sampling / n_reports + inside)
        return np.minimum(errors, self.widths)


def _arc(middles: NDArray[np.float64], side: float) -> float:
    """Return the length of the shortest arc of a circle of length 1 that contains some cells of this side."""
    places = np.unique(middles)
    gaps = np.diff(places, append=places[0] + 1)
    return float(1 + side - gaps.max())


def cell_size_errors(
    labels: NDArray[np.int64], shares: NDArray[np.float64], reading: Decoder, n_reports: int
) -> NDArray[np.float64]:
    """Return standard errors of the sizes of regions, for cells reported in one round.

    They are the errors of sums of unbiased estimates.

    Parameters
    ----------
    labels : ndarray of shape (n_cells,), int64
    shares : ndarray of shape (n_cells,), float64
        Published shares of the cells.
    reading : Decoder
    n_reports : int

    Returns
    -------
    ndarray of shape (n,), float64
    """
    n_cells = np.bincount(labels)
    spreads = n_cells * (1 - n_cells / labels.size)
    return reading.standard_errors(spreads, n_cells, region_totals(labels, shares), n_reports)


def cell_centre_errors(
    labels: NDArray[np.int64],
    cell_map: NDArray[np.int64],
    estimates: NDArray[np.float64],
    shares: NDArray[np.float64],
    reading: Decoder,
    n_reports: int,
) -> NDArray[np.float64]:
    """Return standard errors of the centres of regions, for cells reported in one round.

    Parameters
    ----------
    labels : ndarray of shape (n_cells,), int64
    cell_map : ndarray of shape (boxes,) * n_features, int64
        Cell of each finest box.
    estimates, shares : ndarray of shape (n_cells,), float64
        Unbiased estimates and published shares. Their difference counts as an error of the centre.
    reading : Decoder
    n_reports : int

    Returns
    -------
    ndarray of shape (n, n_features), float64
        Errors in units of the box, [0, 1].
    """
    flat = cell_map.ravel()
    boxes = np.bincount(flat)
    places = RegionGeometry.of(labels[cell_map], (shares / boxes)[cell_map])
    n, d = places.centres.shape
    variances = np.empty((n, d))
    for axis in range(d):
        weights = np.bincount(flat, weights=places.weights[:, axis]) / boxes
        squares = np.bincount(labels, weights=weights**2, minlength=n)
        totals = np.bincount(labels, weights=weights, minlength=n)
        misfit = np.bincount(labels, weights=weights * (estimates - shares), minlength=n)
        spread = (squares - totals**2 / len(labels)).clip(0)
        variances[:, axis] = reading.spread_variance * spread / n_reports + misfit**2
    return places.errors(variances, n_reports, boxes[flat])
