"""Where the people of regions of cells are on average, and how a centre moves with what cells hold."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.decoders import Decoder
from clustering.label_regions import centres_of, region_totals


@dataclass(frozen=True)
class CellPlaces:
    """Regions of a grid, by the places of their cells.

    Attributes
    ----------
    labels : ndarray of shape (n_cells,), int64
    shares : ndarray of shape (n_cells,), float64
        Of all people.
    sizes : ndarray of shape (n,), float64
        Of the regions; at least as much as a person in a thousand million.
    centres, widths : ndarray of shape (n, n_features), float64
        Of the regions; the box is [0, 1] in each feature.
    weights : ndarray of shape (n_cells, n_features), float64
        (x - c) / S: how a cell's share moves its region's centre.
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
    def of(cls, labels: NDArray[np.int64], density: NDArray[np.float64]) -> "CellPlaces":
        """The places of a labelled grid: labels 0 .. n-1, density of sum one."""
        centres = centres_of(labels, density)
        sizes = np.maximum(region_totals(labels, density), 1e-9)
        sides = 1 / np.array(labels.shape)
        flat = labels.ravel()
        weights, widths = np.empty((flat.size, labels.ndim)), np.empty(centres.shape)
        for axis in range(labels.ndim):
            along = (np.arange(labels.shape[axis]) + 0.5) * sides[axis]
            along = along.reshape([-1 if a == axis else 1 for a in range(labels.ndim)])
            middles = np.broadcast_to(along, labels.shape).ravel()
            weights[:, axis] = (middles - centres[flat, axis]) / sizes[flat]
            low, high = np.ones(len(sizes)), np.zeros(len(sizes))
            np.minimum.at(low, flat, middles)
            np.maximum.at(high, flat, middles)
            widths[:, axis] = high - low + sides[axis]
        return cls(flat, density.ravel(), sizes, centres, widths, weights, sides)

    def errors(
        self, variances: NDArray[np.float64], n_reports: int, boxes: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Standard errors of the centres: what the mechanism does, and what everything else does.

        Parameters
        ----------
        variances : ndarray of shape (n, n_features)
            By the mechanism.
        n_reports : int
        boxes : ndarray of shape (n_cells,), int64, optional
            Of how many cells of this grid the one consists that was asked about: cubes.

        Returns
        -------
        ndarray of shape (n, n_features), float64
            sqrt(variance + sampling + places within cells), at most the region's width. Within
            a cell the people's mean is anywhere with equal chance, which is more than a smooth
            density has it off the middle.
        """
        n, d = self.centres.shape
        side = np.ones(len(self.labels)) if boxes is None else boxes ** (1 / d)
        errors = np.empty((n, d))
        for axis in range(d):
            sampling = np.bincount(self.labels, weights=self.shares * self.weights[:, axis] ** 2, minlength=n)
            # a cube's share lies in its boxes: as many equal terms, but one place
            part = (self.shares / self.sizes[self.labels] * side * self.cell[axis]) ** 2 * side**d / 12
            inside = np.bincount(self.labels, weights=part, minlength=n)
            errors[:, axis] = np.sqrt(variances[:, axis] + sampling / n_reports + inside)
        return np.minimum(errors, self.widths)


def cell_centre_errors(
    labels: NDArray[np.int64],
    cell_map: NDArray[np.int64],
    estimates: NDArray[np.float64],
    shares: NDArray[np.float64],
    reading: Decoder,
    n_reports: int,
) -> NDArray[np.float64]:
    """Standard errors of the centres of regions of cells that were asked about in one round.

    Parameters
    ----------
    labels : ndarray of shape (n_cells,), int64
    cell_map : ndarray of shape (boxes,) * n_features, int64
        The cell of each finest box.
    estimates, shares : ndarray of shape (n_cells,), float64
        As they are, and as published; where they differ, that counts as an error of the centre.
    reading : Decoder
    n_reports : int

    Returns
    -------
    ndarray of shape (n, n_features), float64
        In [0, 1], as the box is.
    """
    flat = cell_map.ravel()
    boxes = np.bincount(flat)
    places = CellPlaces.of(labels[cell_map], (shares / boxes)[cell_map])
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
