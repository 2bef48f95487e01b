"""Periodic features of records as points on a circle, so that distances and means do not depend on its seam.

A circle has the length of the period, so that a short way is as long as along a plain feature. A point depends on its
record and the public bounds alone. So one record changes a sum over points by its own term, which the query clips to a
public radius. The two coordinates of a circle are at most `DIAMETER` apart, and a plain feature 1.
"""

from dataclasses import dataclass, replace
from math import pi

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, from_places, iterate_blocks, to_places
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import scale_many, unscale_many
from sfumato.specs import Feature

DIAMETER = 1 / pi  # in feature ranges
LARGEST_ERROR = 0.5  # of a place on a circle, in periods
_TINY = 1e-12


@dataclass(frozen=True)
class Circles:
    """The map from records with periodic features to points that have two coordinates for each of these.

    Parameters
    ----------
    n_along : int
        Number of features of a record.
    places : tuple of int
        Indices of the periodic features, ascending. Without any, the map changes nothing.
    """

    n_along: int
    places: tuple[int, ...] = ()

    @property
    def n_features(self) -> int:
        """Return the number of coordinates of a point."""
        return self.n_along + len(self.places)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Return the first coordinate of each circle. The second one follows it."""
        return np.array(self.places, dtype=np.int64) + np.arange(len(self.places))

    @property
    def sources(self) -> NDArray[np.int64]:
        """Return the feature of each coordinate."""
        return np.repeat(np.arange(self.n_along), [1 + (place in self.places) for place in range(self.n_along)])

    def apply(self, points: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the points of a block of records, in lattice places: (n, n_features)."""
        found = points[:, self.sources]
        for first in self.firsts:
            found[:, first : first + 2] = to_places(_to_circle(from_places(found[:, first].astype(np.int64))))
        return found

    def to_points(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the points of places along the features: (k, n_along) to (k, n_features), in feature ranges."""
        points = along[:, self.sources]
        for first in self.firsts:
            points[:, first : first + 2] = _to_circle(points[:, first])
        return points

    def along(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the places along the features of points on or within the circles: (k, n_features) to (k, n_along).

        The place along a circle is the direction of the point from its middle.
        """
        found = np.delete(points, self.firsts + 1, axis=1)
        for place, first in zip(self.places, self.firsts, strict=True):
            found[:, place] = _turns(points[:, first : first + 2])
        return found

    def cells(self, cells: Cells) -> Cells:
        """Return cells of records as cells of their points."""
        return CellsAlong(self, cells) if self.places else cells

    def expand(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return a plain feature for each coordinate of a point."""
        pairs = [(features[source].lower, features[source].upper) for source in self.sources]
        return tuple(Feature(str(place), *bounds) for place, bounds in enumerate(pairs))

    def restore(self, model: ClusterModel, features: tuple[Feature, ...]) -> ClusterModel:
        """Return the model over the features of the records, from one over the coordinates. No privacy cost.

        The centre of a cluster is its circular mean: the direction of the mean of its points. A point at the distance
        R from the middle, in radii of the circle, moves by 1/R of the error across its direction.
        """
        if model.centroids is None or model.centroid_errors is None:
            return model
        ranges = np.array([each.period for each in features])
        centres = scale_many(model.features, model.centroids)
        scaled_errors = model.centroid_errors / ranges[self.sources]
        errors = np.delete(scaled_errors, self.firsts + 1, axis=1)
        for place, first in zip(self.places, self.firsts, strict=True):
            away = centres[:, first : first + 2] - 0.5
            lengths = np.maximum(np.hypot(*away.T), _TINY)
            across = np.hypot(scaled_errors[:, first] * away[:, 1], scaled_errors[:, first + 1] * away[:, 0]) / lengths
            errors[:, place] = np.minimum(across * DIAMETER / 2 / lengths, LARGEST_ERROR)
        centroids = unscale_many(features, self.along(centres))
        return replace(model, features=features, centroids=centroids, centroid_errors=errors * ranges)


@dataclass(frozen=True, eq=False)
class CellsAlong:
    """Cells of records as cells of their points on circles."""

    circles: Circles
    inner: Cells

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return self.inner.n_cells

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        labels = np.empty(len(points), dtype=np.int64)
        for block in iterate_blocks(*points.shape):
            along = self.circles.along(from_places(points[block].astype(np.int64)))
            labels[block] = self.inner.index(to_places(along).astype(np.int32))
        return labels


def _to_circle(turns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the points on the circle around the middle of the unit square: (n,) to (n, 2)."""
    angles = 2 * pi * turns
    return 0.5 + DIAMETER / 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _turns(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the directions of points from the middle of the unit square, in turns in [0, 1): (n, 2) to (n,)."""
    turns = np.arctan2(points[:, 1] - 0.5, points[:, 0] - 0.5) / (2 * pi)
    return np.asarray(turns - np.floor(turns), dtype=np.float64)
