"""Periodic features as points on a circle, so that distances and means do not depend on its seam.

A circle has the length of the period, so that a short way is as long as along a plain feature.
"""

from dataclasses import dataclass
from math import pi

import numpy as np
from numpy.typing import NDArray

DIAMETER = 1 / pi  # in feature ranges
LARGEST_ERROR = 0.5  # periods; no two places on a circle are farther apart
_TINY = 1e-12


@dataclass(frozen=True)
class Circles:
    """The map from places along features to points that have two coordinates for each periodic feature.

    Parameters
    ----------
    n_along : int
        Number of features.
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

    def to_points(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the points of places along the features: (k, n_along) to (k, n_features), in feature ranges."""
        if not self.places:
            return along
        points = np.take(along, self.sources, axis=1)
        for first in self.firsts:
            points[:, first : first + 2] = _to_circle(points[:, first])
        return points

    def along(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the places along the features of points on or within the circles: (k, n_features) to (k, n_along).

        The place along a circle is the direction of the point from its middle.
        """
        if not self.places:
            return points
        found = np.delete(points, self.firsts + 1, axis=1)
        for place, first in zip(self.places, self.firsts, strict=True):
            found[:, place] = _turns(points[:, first : first + 2])
        return found

    def slopes(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the derivatives of the place of each centre along the features: (k, n_along, n_features).

        A point at the distance R from the middle of its circle, in radii, moves by 1/R of its way across its direction.
        A point in the middle has no direction; its derivatives are huge.
        """
        found = np.zeros((len(centres), self.n_along, self.n_features))
        found[:, self.sources, range(self.n_features)] = 1.0
        for place, first in zip(self.places, self.firsts, strict=True):
            away = centres[:, first : first + 2] - 0.5
            away[(away == 0).all(axis=1)] = _TINY
            squares = (away**2).sum(axis=1)
            found[:, place, first] = -away[:, 1] / squares * DIAMETER / 2
            found[:, place, first + 1] = away[:, 0] / squares * DIAMETER / 2
        return found

    def limit_errors(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return errors along the features, of which those along circles are at most half of a period."""
        limited = errors.copy()
        limited[:, self.places] = np.minimum(limited[:, self.places], LARGEST_ERROR)
        return limited


def _to_circle(turns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the points on the circle around the middle of the unit square: (n,) to (n, 2)."""
    angles = 2 * pi * turns
    return 0.5 + DIAMETER / 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _turns(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the directions of points from the middle of the unit square, in turns in [0, 1): (n, 2) to (n,)."""
    turns = np.arctan2(points[:, 1] - 0.5, points[:, 0] - 0.5) / (2 * pi)
    return np.asarray(turns - np.floor(turns), dtype=np.float64)
