"""Distances of scaled points to centres, and the nearest centre of each point."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.records.encodings import differences

_BLOCK_NUMBERS = 1 << 22
_WIDE = 16  # features from which products of matrices find the nearest centroid


def squared_distances(
    points: NDArray[np.float64], centres: NDArray[np.float64], circles: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Return the squared distance of each point to each centre: (n, k). Needs the memory of n k + n d numbers.

    `circles` are the indices of periodic features, where a distance is that of the shorter way.
    """
    found, away = np.empty((len(points), len(centres))), np.empty_like(points)
    for index, centre in enumerate(centres):
        differences(points, centre, circles, out=away)
        np.einsum("ij,ij->i", away, away, out=found[:, index])
    return found


def nearest_centres(
    points: NDArray[np.float64], centres: NDArray[np.float64], circles: Sequence[int]
) -> NDArray[np.int64]:
    """Return the index of the nearest centre of each point.

    Products of matrices are ten times as fast with many features. They round differently, so with few features, where
    values are often round numbers, two centres at the same distance of a point need the exact squares.
    """
    if circles or points.shape[1] < _WIDE:
        away = squared_distances(points, centres, circles)
    else:
        middle = centres.mean(axis=0)
        centred = centres - middle
        away = (centred**2).sum(axis=1) - 2 * ((points - middle) @ centred.T)
    return np.asarray(away.argmin(axis=1), dtype=np.int64)


def point_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices of at most 65,536 points and `_BLOCK_NUMBERS` numbers, to bound memory."""
    step = max(1, min(65536, _BLOCK_NUMBERS // shape[1]))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)
