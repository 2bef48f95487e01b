"""From a record to a symbol: scaling by public bounds, then the encoding's cell.

Encoding is deterministic and public; privacy comes from the mechanism alone. The slot
(the public part of a report) is drawn independently of the record.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InvalidPoint
from sfumato.specs import Encoding, Feature, ShiftedGridEncoding, TreeGridEncoding


def scale(features: Sequence[Feature], record: Sequence[float]) -> list[float]:
    """One record in its own units, clipped to the bounds and scaled to [0, 1] per feature.

    Raises
    ------
    InvalidPoint
        Another number of features, or a value that is not finite.
    """
    if len(record) != len(features):
        raise InvalidPoint(f"a record has {len(features)} features")
    point = []
    for feature, raw in zip(features, record, strict=True):
        try:
            value = float(raw)
        except (TypeError, ValueError, OverflowError):
            value = math.nan  # the cause would quote the value
        if not math.isfinite(value):
            raise InvalidPoint(f"{feature.name} is not finite")
        point.append((min(max(value, feature.lower), feature.upper) - feature.lower) / (feature.upper - feature.lower))
    return point


def scale_many(features: Sequence[Feature], records: ArrayLike) -> NDArray[np.float64]:
    """What `scale` does, for an array of shape (n, d)."""
    try:
        values = np.asarray(records, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # whose message would quote a value
        raise InvalidPoint(f"records are numbers in shape (n, {len(features)})") from None
    if values.ndim != 2 or values.shape[1] != len(features):
        raise InvalidPoint(f"records have shape (n, {len(features)})")
    if not np.isfinite(values).all():
        raise InvalidPoint("a record has a value that is not finite")
    lower = np.array([feature.lower for feature in features])
    upper = np.array([feature.upper for feature in features])
    scaled: NDArray[np.float64] = (np.clip(values, lower, upper) - lower) / (upper - lower)
    return scaled


def unscale_many(features: Sequence[Feature], points: ArrayLike) -> NDArray[np.float64]:
    """Points of [0, 1]^d, shape (n, d), back in the features' own units."""
    lower = np.array([feature.lower for feature in features])
    upper = np.array([feature.upper for feature in features])
    values: NDArray[np.float64] = lower + np.asarray(points, dtype=np.float64) * (upper - lower)
    return values


def cell(coordinate: float, n_cells: int) -> int:
    """The cell of a coordinate in [0, 1], 0 .. n_cells-1."""
    return min(int(coordinate * n_cells), n_cells - 1)


def cells(points: NDArray[np.float64], n_cells: Sequence[int]) -> NDArray[np.int64]:
    """The cells of points of shape (n, d): int64 of the same shape."""
    per_feature = np.asarray(n_cells, dtype=np.int64)
    return np.minimum((points * per_feature).astype(np.int64), per_feature - 1)


def shift_of(encoding: ShiftedGridEncoding, slot: int) -> tuple[int, ...]:
    """The shift of a slot, per feature, each in 0 .. shifts-1."""
    return tuple(slot // encoding.shifts**place % encoding.shifts for place in reversed(range(encoding.n_features)))


@lru_cache(maxsize=16)
def tree_starts(encoding: TreeGridEncoding) -> tuple[int, ...]:
    """Each cell's first finest box, counted along the walk; ascending, from 0."""
    depth = encoding.depth
    sizes = [1 << (depth - level) * encoding.n_features for level in encoding.levels]
    return tuple(accumulate(sizes[:-1], initial=0))


def z_place(index: Sequence[int], depth: int) -> int:
    """The place along the walk of a finest box: its index's bits in turn, the first feature's first."""
    place = 0
    for bit in reversed(range(depth)):
        for part in index:
            place = place << 1 | (part >> bit & 1)
    return place


def z_places(indices: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """What `z_place` does, for indices of shape (n, d): int64 of shape (n,)."""
    places = np.zeros(len(indices), dtype=np.int64)
    for bit in reversed(range(depth)):
        for feature in range(indices.shape[1]):
            places = places << 1 | (indices[:, feature] >> bit & 1)
    return places


def symbol(encoding: Encoding, point: Sequence[float], slot: int) -> int:
    """The symbol of a point of [0, 1]^d under a slot, 0 .. n_symbols-1."""
    index = 0
    if isinstance(encoding, TreeGridEncoding):
        finest = [cell(coordinate, 1 << encoding.depth) for coordinate in point]
        return bisect_right(tree_starts(encoding), z_place(finest, encoding.depth)) - 1
    if isinstance(encoding, ShiftedGridEncoding):
        for coordinate, shift in zip(point, shift_of(encoding, slot), strict=True):
            coarse = (cell(coordinate, encoding.fine_cells) + shift) // encoding.shifts
            index = index * (encoding.cells + 1) + coarse
        return index
    for coordinate, n_cells in zip(point, encoding.cells, strict=True):
        index = index * n_cells + cell(coordinate, n_cells)
    return index


def symbols(encoding: Encoding, points: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """What `symbol` does, for points of shape (n, d) in [0, 1] and slots of shape (n,)."""
    if isinstance(encoding, TreeGridEncoding):
        finest = cells(points, [1 << encoding.depth] * encoding.n_features)
        starts = np.asarray(tree_starts(encoding), dtype=np.int64)
        return np.searchsorted(starts, z_places(finest, encoding.depth), side="right") - 1
    if isinstance(encoding, ShiftedGridEncoding):
        places = encoding.shifts ** np.arange(encoding.n_features - 1, -1, -1, dtype=np.int64)
        shifts = slots[:, None] // places % encoding.shifts
        fine = cells(points, [encoding.fine_cells] * encoding.n_features)
        parts = (fine + shifts) // encoding.shifts
        base = [encoding.cells + 1] * encoding.n_features
    else:
        parts, base = cells(points, encoding.cells), list(encoding.cells)
    index = np.zeros(len(points), dtype=np.int64)
    for feature, n_cells in enumerate(base):
        index = index * n_cells + parts[:, feature]
    return index
