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
from sfumato.specs import (
    LATTICE,
    TURN,
    CentroidSignEncoding,
    Encoding,
    Feature,
    HalfspaceCodeEncoding,
    LatticeEncoding,
    NearestCentroidEncoding,
    PhaseEncoding,
    ProjectedGridEncoding,
    ShiftedGridEncoding,
    Symbol,
    TreeGridEncoding,
)

_CHUNK_POINTS = 1 << 15  # projected at once: their weights are looked up one by one, 64 of 8 bytes each


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


def project(weights: Sequence[int], point: Sequence[float]) -> int:
    """The sum of weight times coordinate, coordinates as places 0 .. LATTICE-1: below 2**40 in size."""
    return sum(weight * cell(coordinate, LATTICE) for weight, coordinate in zip(weights, point, strict=True))


def project_many(weights: NDArray[np.int64], points: NDArray[np.float64]) -> NDArray[np.int64]:
    """What `project` does, for points of shape (n, d) and as many weights: int64 of shape (n,)."""
    return np.asarray(np.einsum("nd,nd->n", weights, cells(points, [LATTICE] * points.shape[1])), dtype=np.int64)


def _projected_symbol(encoding: ProjectedGridEncoding, point: Sequence[float], slot: int) -> int:
    projection, shift = divmod(slot, encoding.shifts)
    along = project(encoding.weights[projection], point) - encoding.lowers[projection]
    span = encoding.spans[projection]
    fine = min(max(along, 0), span) * encoding.fine_cells // span  # at most 2**52: exact in a double too
    return (min(fine, encoding.fine_cells - 1) + shift) // encoding.shifts


def _projected_symbols(
    encoding: ProjectedGridEncoding, points: NDArray[np.float64], slots: NDArray[np.int64]
) -> NDArray[np.int64]:
    weights = np.asarray(encoding.weights, dtype=np.int64)
    lowers, spans = (np.asarray(ends, dtype=np.int64) for ends in (encoding.lowers, encoding.spans))
    index = np.empty(len(points), dtype=np.int64)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = slice(begin, begin + _CHUNK_POINTS)
        projections, shifts = np.divmod(slots[part], encoding.shifts)
        along = project_many(weights[projections], points[part]) - lowers[projections]
        span = spans[projections]
        fine = np.clip(along, 0, span) * encoding.fine_cells // span
        index[part] = (np.minimum(fine, encoding.fine_cells - 1) + shifts) // encoding.shifts
    return index


def _code(encoding: HalfspaceCodeEncoding, point: Sequence[float]) -> int:
    cuts = zip(encoding.weights, encoding.thresholds, strict=True)
    return sum((project(weights, point) >= threshold) << bit for bit, (weights, threshold) in enumerate(cuts))


def _codes(encoding: HalfspaceCodeEncoding, points: NDArray[np.float64]) -> NDArray[np.int64]:
    index = np.zeros(len(points), dtype=np.int64)
    for bit, (weights, threshold) in enumerate(zip(encoding.weights, encoding.thresholds, strict=True)):
        row = np.broadcast_to(np.asarray(weights, dtype=np.int64), points.shape)
        index |= (project_many(row, points) >= threshold).astype(np.int64) << bit
    return index


def _phase(encoding: PhaseEncoding, point: Sequence[float], slot: int) -> int:
    return project(encoding.weights[slot], point) % TURN * encoding.phases // TURN  # below 2**40


def _phases(encoding: PhaseEncoding, points: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    weights = np.asarray(encoding.weights, dtype=np.int64)
    index = np.empty(len(points), dtype=np.int64)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = slice(begin, begin + _CHUNK_POINTS)
        index[part] = project_many(weights[slots[part]], points[part]) % TURN * encoding.phases // TURN
    return index


def lattice_place(coordinate: float, steps: int) -> int:
    """The lattice point nearest to a coordinate in [0, 1], 0 .. steps."""
    return int(coordinate * steps + 0.5)


def lattice_places(points: NDArray[np.float64], steps: int) -> NDArray[np.int64]:
    """What `lattice_place` does, for points of shape (n, d): int64 of the same shape."""
    return (points * steps + 0.5).astype(np.int64)


Centroids = tuple[tuple[int, ...], ...]


def _nearest(centroids: Centroids, point: Sequence[float], feature: int) -> tuple[int, bool]:
    """The centroid, and whether the point lies above it in the feature; beyond the last one, it does."""
    places = [cell(coordinate, LATTICE) for coordinate in point]
    distances = [sum((x - p) ** 2 for x, p in zip(places, row, strict=True)) for row in centroids]
    nearest = distances.index(min(distances))
    return nearest, feature == len(places) or places[feature] > centroids[nearest][feature]


def _nearest_many(
    centroids: Centroids, points: NDArray[np.float64], features: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """In doubles, which hold every term and every partial sum exactly: integers below 2**48."""
    over = np.asarray(centroids, dtype=np.float64)
    n_features = over.shape[1]
    own = (over**2).sum(axis=1)
    nearest, above = np.empty(len(points), dtype=np.int64), np.empty(len(points), dtype=np.bool_)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = slice(begin, begin + _CHUNK_POINTS)
        places = cells(points[part], [LATTICE] * n_features).astype(np.float64)
        nearest[part] = (own - 2 * places @ over.T).argmin(axis=1)  # less the point's own square
        looked_at = np.minimum(features[part], n_features - 1)
        on_side = np.take_along_axis(places, looked_at[:, None], axis=1)[:, 0] > over[nearest[part], looked_at]
        above[part] = on_side | (features[part] == n_features)
    return nearest, above


def _signed(encoding: CentroidSignEncoding, point: Sequence[float], slot: int) -> int:
    feature, row = divmod(slot, encoding.n_rows)
    nearest, above = _nearest(encoding.centroids, point, feature)
    return ((row & nearest).bit_count() + above) % 2


def _signed_many(
    encoding: CentroidSignEncoding, points: NDArray[np.float64], slots: NDArray[np.int64]
) -> NDArray[np.int64]:
    features, rows = np.divmod(slots, encoding.n_rows)
    nearest, above = _nearest_many(encoding.centroids, points, features)
    return np.asarray((np.bitwise_count(rows & nearest) + above) % 2, dtype=np.int64)


def symbol(encoding: Encoding, point: Sequence[float], slot: int) -> Symbol:
    """The symbol of a point of [0, 1]^d under a slot, 0 .. n_symbols-1; of a lattice, its vector."""
    index = 0
    if isinstance(encoding, LatticeEncoding):
        return tuple(lattice_place(coordinate, encoding.steps) for coordinate in point)
    if isinstance(encoding, ProjectedGridEncoding):
        return _projected_symbol(encoding, point, slot)
    if isinstance(encoding, HalfspaceCodeEncoding):
        return _code(encoding, point)
    if isinstance(encoding, PhaseEncoding):
        return _phase(encoding, point, slot)
    if isinstance(encoding, NearestCentroidEncoding):
        nearest, above = _nearest(encoding.centroids, point, slot)
        return 2 * nearest + above
    if isinstance(encoding, CentroidSignEncoding):
        return _signed(encoding, point, slot)
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
    """What `symbol` does, for points of shape (n, d) in [0, 1] and slots of shape (n,).

    Returns
    -------
    ndarray of shape (n,), of a lattice (n, d); int64
    """
    if isinstance(encoding, LatticeEncoding):
        return lattice_places(points, encoding.steps)
    if isinstance(encoding, ProjectedGridEncoding):
        return _projected_symbols(encoding, points, slots)
    if isinstance(encoding, HalfspaceCodeEncoding):
        return _codes(encoding, points)
    if isinstance(encoding, PhaseEncoding):
        return _phases(encoding, points, slots)
    if isinstance(encoding, NearestCentroidEncoding):
        nearest, above = _nearest_many(encoding.centroids, points, slots)
        return 2 * nearest + above
    if isinstance(encoding, CentroidSignEncoding):
        return _signed_many(encoding, points, slots)
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
