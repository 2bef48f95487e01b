"""Narrower bounds within the declared ones: histograms of features, and the scale of records by the bounds.

Bounds are public: they follow from earlier query answers.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import iterate_blocks
from sfumato.specs import LATTICE, Feature


@dataclass(frozen=True, eq=False)
class Bounds:
    """An interval of lattice places along each feature.

    Parameters
    ----------
    lows : ndarray of shape (d,), int64
        First place.
    widths : ndarray of shape (d,), int64
        Number of places, at least 1.
    """

    lows: NDArray[np.int64]
    widths: NDArray[np.int64]

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        return len(self.lows)

    def keep_others(self, n_features: int) -> "Bounds":
        """Return the bounds with those of the lattice for further features, up to this number."""
        n_more = n_features - len(self.lows)
        lows = np.concatenate([self.lows, np.zeros(n_more, dtype=np.int64)])
        return Bounds(lows, np.concatenate([self.widths, np.full(n_more, LATTICE, dtype=np.int64)]))

    def apply(self, points: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the places of a block of records, scaled by the bounds and clipped to them: (n, d)."""
        scaled = points - (self.lows - 0.5)
        scaled *= LATTICE / self.widths
        np.clip(scaled, 0, LATTICE - 1, out=scaled)
        return scaled.astype(np.int32)

    def scale_features(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the features with these bounds in their units, within the declared ones.

        Features beyond the bounds keep theirs.
        """
        found, bounded = [], features[: len(self.lows)]
        for feature, low, width in zip(bounded, self.lows.tolist(), self.widths.tolist(), strict=True):
            step = (feature.upper - feature.lower) / LATTICE
            lower = feature.lower + low * step
            found.append(replace(feature, lower=lower, upper=min(lower + width * step, feature.upper)))
        return (*found, *features[len(self.lows) :])


@dataclass(frozen=True, eq=False)
class BoxShells:
    """Nested boxes around the middle of bounds of the first features, as disjoint cells.

    Parameters
    ----------
    bounds : Bounds
    factors : ndarray of shape (m,), float64
        Ascending sizes of boxes, in widths of the bounds. Cell i is the part of box i outside box i - 1.
        Records beyond the last box form cell m.
    """

    bounds: Bounds
    factors: NDArray[np.float64]

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.factors) + 1

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record."""
        shells = np.empty(len(points), dtype=np.int64)
        lows, widths = self.bounds.lows, self.bounds.widths
        for block in iterate_blocks(*points.shape):
            sizes = (np.abs(2 * (points[block, : len(lows)] - lows) + 1 - widths) / widths).max(axis=1)
            shells[block] = np.searchsorted(self.factors, sizes)
        return shells


@dataclass(frozen=True, eq=False)
class FeatureHistograms:
    """One histogram of each feature over equal bins of the bounds: one array of shape (d n_bins,).

    The bounds are those of the first d features. Records outside the bounds of a feature lie in none of its bins. One
    record changes at most d counts by 1.
    """

    bounds: Bounds
    n_bins: int

    @property
    def n_features(self) -> int:
        """Return the number of features d that have a histogram."""
        return len(self.bounds.lows)

    def __call__(self, points: NDArray[np.int32]) -> tuple[NDArray[np.int64], ...]:
        d = self.n_features
        starts = np.arange(d) * self.n_bins
        counts = np.zeros(d * self.n_bins, dtype=np.int64)
        for block in iterate_blocks(*points.shape):
            bins = (points[block, :d] - self.bounds.lows) * self.n_bins // self.bounds.widths
            inside = (bins >= 0) & (bins < self.n_bins)
            counts += np.bincount((bins + starts)[inside], minlength=len(counts))
        return (counts,)
