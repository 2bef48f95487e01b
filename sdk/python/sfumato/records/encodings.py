"""Conversion of a record to a symbol: scaling by the public bounds, then the encoding.

The encoding is deterministic and public. Privacy comes from the mechanism alone. The slot, which is the
public part of a report, is independent of the record.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import floor, prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.records.inputs import Records, to_record, to_values
from sfumato.records.places import latitudes_of, sine, sines
from sfumato.specs import (
    LATTICE,
    TURN,
    CentroidSignEncoding,
    Encoding,
    Feature,
    LatticeEncoding,
    NearestCentroidEncoding,
    PhaseEncoding,
    ProfileEncoding,
    ShiftedGridEncoding,
    Symbol,
    TreeGridEncoding,
    circles_of,
)

NORM_TOLERANCE = 1e-3  # see `clip_norms`
_MOST_TURNS = 2.0**52  # doubles beyond it have no fraction
_CHUNK_POINTS = 1 << 15  # points per block; each needs up to 64 weights of 8 bytes


def scale(features: Sequence[Feature], record: Records) -> list[float]:
    """Return a record scaled to [0, 1] per feature. Raise the errors of `to_record`.

    A value beyond the bounds is clipped to them. On a circle it is moved by whole periods, and `upper` becomes 0. A
    value more than 2**52 periods away becomes 0. A latitude of a place is scaled by its sine.
    """
    pairs = zip(features, to_record(features, record), strict=True)
    return [_turn(feature, value) if feature.periodic else _clip(feature, value) for feature, value in pairs]


def _clip(feature: Feature, value: float) -> float:
    if feature.coordinate == "latitude":
        low, high = sine(feature.lower), sine(feature.upper)
        return (min(max(sine(value), low), high) - low) / (high - low)
    return (min(max(value, feature.lower), feature.upper) - feature.lower) / (feature.upper - feature.lower)


def _turn(feature: Feature, value: float) -> float:
    turns = min(max((value - feature.lower) / (feature.upper - feature.lower), -_MOST_TURNS), _MOST_TURNS)
    return turns - floor(turns)


def scale_many(features: Sequence[Feature], records: Records) -> NDArray[np.float64]:
    """Return records of shape (n, d) scaled as by `scale`. Raise the errors of `to_values`."""
    values = to_values(features, records)
    low, high = _ends(features)
    latitudes = _latitudes(features)
    on_scale = values.copy() if latitudes else values
    for place in latitudes:
        on_scale[:, place] = sines(values[:, place])
    scaled: NDArray[np.float64] = np.clip(on_scale, low, high)
    scaled -= low
    scaled /= high - low
    for place in circles_of(features):
        with np.errstate(over="ignore"):
            turns = (values[:, place] - low[place]) / (high[place] - low[place])
        turns = np.clip(turns, -_MOST_TURNS, _MOST_TURNS)
        scaled[:, place] = turns - np.floor(turns)
    return scaled


def _latitudes(features: Sequence[Feature]) -> list[int]:
    return [place for place, feature in enumerate(features) if feature.coordinate == "latitude"]


def _ends(features: Sequence[Feature]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and upper bounds on the scale of each feature: the sine of a latitude, otherwise the value."""
    low = np.array([feature.lower for feature in features])
    high = np.array([feature.upper for feature in features])
    for place in _latitudes(features):
        low[place], high[place] = sine(low[place]), sine(high[place])
    return low, high


def differences(
    points: NDArray[np.float64],
    others: NDArray[np.float64],
    circles: Sequence[int] = (),
    out: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return points minus others, both scaled to [0, 1]; on a circle the shorter way, in [-1/2, 1/2].

    Parameters
    ----------
    points, others : ndarray of shapes that broadcast to (..., d)
    circles : sequence of int
        Indices of the periodic features.
    out : ndarray, optional
        Memory of the result.
    """
    apart = np.subtract(points, others, out=out)
    for place in circles:
        apart[..., place] -= np.rint(apart[..., place])
    return apart


def clip_norms(values: NDArray[np.float64], norm: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scale each vector that is longer than `norm` down to this length.

    Parameters
    ----------
    values : ndarray of shape (n, d)
        A vector that is not finite is returned unchanged.
    norm : float
        Positive.

    Returns
    -------
    values : ndarray of shape (n, d)
    is_outside : ndarray of shape (n,), bool
        Whether the vector was longer by more than `NORM_TOLERANCE`, the rounding of an embedding with 16 bits.
    """
    with np.errstate(all="ignore"):
        largest = np.abs(values).max(axis=1, keepdims=True)
        directions = values / largest  # squares of these neither overflow nor vanish
        lengths = np.sqrt((directions**2).sum(axis=1, keepdims=True))
        excess = lengths * (largest / norm)
        clipped = np.where(excess > 1, directions * (norm / lengths), values)
        return clipped, (excess > 1 + NORM_TOLERANCE)[:, 0]


def unscale_many(features: Sequence[Feature], points: ArrayLike) -> NDArray[np.float64]:
    """Return points of [0, 1]^d, shape (n, d), in the features' units."""
    low, high = _ends(features)
    values: NDArray[np.float64] = low + np.asarray(points, dtype=np.float64) * (high - low)
    for place in _latitudes(features):
        values[..., place] = latitudes_of(values[..., place])
    return values


def edges_of(feature: Feature, n_cells: int) -> NDArray[np.float64]:
    """Return the bounds of the cells of a feature in its unit, ascending: (n_cells + 1,)."""
    edges = np.linspace(*_ends([feature]), n_cells + 1)[:, 0]
    edges = latitudes_of(edges) if feature.coordinate == "latitude" else edges
    edges[[0, -1]] = feature.lower, feature.upper
    return np.asarray(edges, dtype=np.float64)


def flatten(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values on an axis that is linear in the scaled range, with the bounds of the feature.

    A latitude is moved so that areas of a map are as they are on Earth. Other values stay.
    """
    if feature.coordinate != "latitude":
        return values
    low, high = _ends([feature])
    shares = (sines(np.clip(values, -90.0, 90.0)) - low) / (high - low)
    return np.asarray(feature.lower + shares * feature.period, dtype=np.float64)


def unscale_errors(
    features: Sequence[Feature], values: NDArray[np.float64], errors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return standard errors in the features' units, from shares of the scaled ranges.

    Parameters
    ----------
    features : sequence of Feature
    values : ndarray of shape (n, d)
        The values that have the errors, in the features' units. The errors of a latitude depend on it.
    errors : ndarray of shape (n, d)
        In [0, 1]^d.
    """
    return errors * _slopes(features, values)


def scale_errors(
    features: Sequence[Feature], values: NDArray[np.float64], errors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return standard errors as shares of the scaled ranges; the inverse of `unscale_errors`."""
    return errors / _slopes(features, values)


def _slopes(features: Sequence[Feature], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the derivatives of values by their scaled coordinates: (n, d).

    Nearer to a pole than half a degree, a latitude has the slope at half a degree.
    """
    low, high = _ends(features)
    slopes = np.broadcast_to(high - low, np.shape(values)).copy()
    for place in _latitudes(features):
        cosines = np.maximum(np.cos(np.radians(values[:, place])), np.sin(np.radians(0.5)))
        slopes[:, place] = np.degrees(slopes[:, place] / cosines)
    return slopes


def cell(coordinate: float, n_cells: int) -> int:
    """Return the cell 0 .. n_cells-1 of a coordinate in [0, 1]."""
    return min(int(coordinate * n_cells), n_cells - 1)


def cells(points: NDArray[np.float64], n_cells: Sequence[int]) -> NDArray[np.int64]:
    """Return the cells of points of shape (n, d): int64 of the same shape."""
    per_feature = np.asarray(n_cells, dtype=np.int64)
    return np.minimum((points * per_feature).astype(np.int64), per_feature - 1)


def shift_of(encoding: ShiftedGridEncoding, slot: int) -> tuple[int, ...]:
    """Return the shift of a slot per feature, each in 0 .. shifts-1."""
    return tuple(slot // encoding.shifts**place % encoding.shifts for place in reversed(range(encoding.n_features)))


@lru_cache(maxsize=16)
def tree_starts(encoding: TreeGridEncoding) -> tuple[int, ...]:
    """Return the index of each cell's first finest box in Z-order, ascending from 0."""
    depth = encoding.depth
    sizes = [1 << (depth - level) * encoding.n_features for level in encoding.levels]
    return tuple(accumulate(sizes[:-1], initial=0))


def z_place(index: Sequence[int], depth: int) -> int:
    """Return a finest box's place in Z-order: the bits of its index interleaved, first feature first."""
    place = 0
    for bit in reversed(range(depth)):
        for part in index:
            place = place << 1 | (part >> bit & 1)
    return place


def z_places(indices: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Return the places in Z-order of indices of shape (n, d): int64 of shape (n,)."""
    places = np.zeros(len(indices), dtype=np.int64)
    for bit in reversed(range(depth)):
        for feature in range(indices.shape[1]):
            places = places << 1 | (indices[:, feature] >> bit & 1)
    return places


def project(weights: Sequence[int], point: Sequence[float]) -> int:
    """Return the sum of weight times coordinate, with coordinates 0 .. LATTICE-1. It is below 2**40."""
    return sum(weight * cell(coordinate, LATTICE) for weight, coordinate in zip(weights, point, strict=True))


def project_many(weights: NDArray[np.int64], points: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the projections of points of shape (n, d) on weights of that shape: int64 of shape (n,)."""
    return np.asarray(np.einsum("nd,nd->n", weights, cells(points, [LATTICE] * points.shape[1])), dtype=np.int64)


def _phase(encoding: PhaseEncoding, point: Sequence[float], slot: int, codes: Sequence[int]) -> int:
    total = project(encoding.weights[slot], point)
    if codes:
        parts = zip(encoding.characters[slot], codes, encoding.categories, strict=True)
        total += sum(character * code % m * TURN // m for character, code, m in parts)
    return total % TURN * encoding.phases // TURN  # below 2**40


def _phases(
    encoding: PhaseEncoding, points: NDArray[np.float64], slots: NDArray[np.int64], codes: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    weights, characters = (np.asarray(rows, dtype=np.int64) for rows in (encoding.weights, encoding.characters))
    m = np.array(encoding.categories, dtype=np.int64)
    index = np.empty(len(points), dtype=np.int64)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = slice(begin, begin + _CHUNK_POINTS)
        total = project_many(weights[slots[part]], points[part])
        if codes is not None:
            total += (characters[slots[part]] * codes[part] % m * TURN // m).sum(axis=1)
        index[part] = total % TURN * encoding.phases // TURN
    return index


def lattice_place(coordinate: float, steps: int) -> int:
    """Return the lattice point 0 .. steps nearest to a coordinate in [0, 1]."""
    return int(coordinate * steps + 0.5)


def lattice_places(points: NDArray[np.float64], steps: int) -> NDArray[np.int64]:
    """Return the nearest lattice points of points of shape (n, d): int64 of the same shape."""
    return (points * steps + 0.5).astype(np.int64)


Centroids = tuple[tuple[int, ...], ...]


def _nearest(centroids: Centroids, point: Sequence[float], feature: int) -> tuple[int, bool]:
    """Return the nearest centroid and whether the point lies above it; always true beyond the last feature."""
    places = [cell(coordinate, LATTICE) for coordinate in point]
    distances = [sum((x - p) ** 2 for x, p in zip(places, row, strict=True)) for row in centroids]
    nearest = distances.index(min(distances))
    return nearest, feature == len(places) or places[feature] > centroids[nearest][feature]


def _nearest_many(
    centroids: Centroids, points: NDArray[np.float64], features: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the same for many points. Doubles are exact, because all partial sums are integers below 2**48."""
    over = np.asarray(centroids, dtype=np.float64)
    n_features = over.shape[1]
    own = (over**2).sum(axis=1)
    nearest, above = np.empty(len(points), dtype=np.int64), np.empty(len(points), dtype=np.bool_)
    for begin in range(0, len(points), _CHUNK_POINTS):
        part = slice(begin, begin + _CHUNK_POINTS)
        places = cells(points[part], [LATTICE] * n_features).astype(np.float64)
        nearest[part] = (own - 2 * places @ over.T).argmin(axis=1)  # without the point's own square
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


def _cluster(encoding: ProfileEncoding, point: Sequence[float]) -> int:
    if encoding.centroids:
        return _nearest(encoding.centroids, point, encoding.n_features)[0]
    place = 0
    for coordinate, n_cells in zip(point, encoding.cells, strict=True):
        place = place * n_cells + cell(coordinate, n_cells)
    return encoding.labels[bisect_right(encoding.starts, place) - 1]


def _clusters(encoding: ProfileEncoding, points: NDArray[np.float64]) -> NDArray[np.int64]:
    if encoding.centroids:
        beyond = np.full(len(points), encoding.n_features, dtype=np.int64)
        return _nearest_many(encoding.centroids, points, beyond)[0]
    places = np.zeros(len(points), dtype=np.int64)
    for column, n_cells in zip(cells(points, encoding.cells).T, encoding.cells, strict=True):
        places = places * n_cells + column
    runs = np.searchsorted(np.asarray(encoding.starts, dtype=np.int64), places, side="right") - 1
    return np.asarray(encoding.labels, dtype=np.int64)[runs]


def symbol(encoding: Encoding, point: Sequence[float], slot: int, codes: Sequence[int] = ()) -> Symbol:
    """Return the symbol 0 .. n_symbols-1 of a point of [0, 1]^d under a slot, or the vector of a lattice.

    `codes` are the categories of the attributes of the encoding. Without them, each attribute has its first category.
    """
    index = 0
    if isinstance(encoding, LatticeEncoding):
        return tuple(lattice_place(coordinate, encoding.steps) for coordinate in point)
    if isinstance(encoding, PhaseEncoding):
        return _phase(encoding, point, slot, codes)
    if isinstance(encoding, NearestCentroidEncoding):
        nearest, above = _nearest(encoding.centroids, point, slot)
        return 2 * nearest + above
    if isinstance(encoding, CentroidSignEncoding):
        return _signed(encoding, point, slot)
    if isinstance(encoding, ProfileEncoding):
        return encoding.n_values * _cluster(encoding, point) + (codes[slot] if codes else 0)
    if isinstance(encoding, TreeGridEncoding):
        finest = [cell(coordinate, 1 << encoding.depth) for coordinate in point]
        return bisect_right(tree_starts(encoding), z_place(finest, encoding.depth)) - 1
    if isinstance(encoding, ShiftedGridEncoding):
        for coordinate, shift, n_coarse in zip(point, shift_of(encoding, slot), encoding.symbols_along, strict=True):
            coarse = (cell(coordinate, encoding.fine_cells) + shift) // encoding.shifts % n_coarse
            index = index * n_coarse + coarse
        return index * prod(encoding.categories) + (codes[0] if codes else 0)
    for coordinate, n_cells in zip(point, encoding.cells, strict=True):
        index = index * n_cells + cell(coordinate, n_cells)
    return index


def symbols(
    encoding: Encoding,
    points: NDArray[np.float64],
    slots: NDArray[np.int64],
    codes: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the symbols of points of shape (n, d) in [0, 1] under slots of shape (n,), as `symbol` does.

    Parameters
    ----------
    codes : ndarray of shape (n, n_attributes), optional
        The category of each attribute of the encoding.

    Returns
    -------
    ndarray of shape (n,), or (n, d) for a lattice; int64
    """
    codes = None if codes is None or not codes.shape[1] else codes
    if isinstance(encoding, LatticeEncoding):
        return lattice_places(points, encoding.steps)
    if isinstance(encoding, PhaseEncoding):
        return _phases(encoding, points, slots, codes)
    if isinstance(encoding, NearestCentroidEncoding):
        nearest, above = _nearest_many(encoding.centroids, points, slots)
        return 2 * nearest + above
    if isinstance(encoding, CentroidSignEncoding):
        return _signed_many(encoding, points, slots)
    if isinstance(encoding, ProfileEncoding):
        of_slots = 0 if codes is None else codes[np.arange(len(points)), slots]
        return encoding.n_values * _clusters(encoding, points) + of_slots
    if isinstance(encoding, TreeGridEncoding):
        finest = cells(points, [1 << encoding.depth] * encoding.n_features)
        starts = np.asarray(tree_starts(encoding), dtype=np.int64)
        return np.searchsorted(starts, z_places(finest, encoding.depth), side="right") - 1
    if isinstance(encoding, ShiftedGridEncoding):
        places = encoding.shifts ** np.arange(encoding.n_features - 1, -1, -1, dtype=np.int64)
        shifts = slots[:, None] // places % encoding.shifts
        fine = cells(points, [encoding.fine_cells] * encoding.n_features)
        base = list(encoding.symbols_along)
        parts = (fine + shifts) // encoding.shifts % np.asarray(base)
    else:
        parts, base = cells(points, encoding.cells), list(encoding.cells)
    index = np.zeros(len(points), dtype=np.int64)
    for feature, n_cells in enumerate(base):
        index = index * n_cells + parts[:, feature]
    if isinstance(encoding, ShiftedGridEncoding):
        index *= prod(encoding.categories)
    return index if codes is None else index + codes[:, 0]
