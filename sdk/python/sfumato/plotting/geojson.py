"""GeoJSON of the clusters of places on Earth (RFC 7946): their regions and their centres."""

import math
from collections.abc import Iterator
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.category_maps import CategoryMap, category_maps
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.geography import errors_in_km, is_map, turn, turns_of
from sfumato.plotting.shading import plane_cells, shown_clusters
from sfumato.records.encodings import edges_of
from sfumato.specs import Feature

MEDIA_TYPE = "application/geo+json"

_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # east, north, west, south: each is the left turn of the one before
_STARTS = ((0, 0), (1, 0), (1, 1), (0, 1))  # corner of a cell where its edge of this direction starts

Corner = tuple[int, int]
Position = list[float]  # longitude, latitude
Polygon = list[list[Position]]  # exterior ring, then holes


def places_of(model: ClusterModel) -> tuple[int, int] | None:
    """Return the indices of longitude and latitude, or None if the features are no places."""
    pairs = permutations(range(len(model.features)), 2)
    return next((pair for pair in pairs if is_map(model.features[pair[0]], model.features[pair[1]])), None)


def to_geojson(model: ClusterModel) -> dict[str, Any]:
    """Return regions and centres of clusters as a GeoJSON feature collection (RFC 7946).

    A label map has a `MultiPolygon` per cluster with `"kind": "region"`: the union of its cells, with counterclockwise
    exteriors and clockwise holes. Every model with centroids has a `Point` per cluster with `"kind": "centre"`. With
    more than two features, a cell of the map belongs to the cluster with most people over it. If an attribute formed
    the clusters of the map, regions of different categories overlap, and `category` is a property of each of them.

    Longitudes are in [-180, 180], and regions are cut at 180° (section 3.1.9). Properties are the cluster, its name,
    its size with standard error, the verdict, and for centres their values with standard errors. The document follows
    from the released model and costs nothing.

    Parameters
    ----------
    model : ClusterModel
        Two of its features must be longitude and latitude in degrees.

    Returns
    -------
    dict
        Plain JSON values. Errors that are not known are None.

    Raises
    ------
    InvalidSpec
        No two features are longitude and latitude in degrees.

    Examples
    --------
    >>> import numpy as np
    >>> from sfumato import ClusterModel, Feature
    >>> from sfumato.plotting.geojson import to_geojson
    >>> features = Feature("longitude", 170, 190), Feature("latitude", -20, 0)
    >>> model = ClusterModel("centroids", features, np.ones(1), np.zeros(1), centroids=np.array([[182.0, -18.0]]))
    >>> to_geojson(model)["features"][0]["geometry"]
    {'type': 'Point', 'coordinates': [-178.0, -18.0]}
    """
    plane = places_of(model)
    if plane is None:
        raise InvalidSpec(
            "this result has no places: a GeoJSON document needs the features longitude and latitude in degrees"
        )
    across, up = (model.features[axis] for axis in plane)
    west, east = _ends(across)
    return {
        "type": "FeatureCollection",
        "bbox": [west, up.lower, east, up.upper],
        "verdict": model.verdict.value,
        "verdict_reason": model.verdict_reason,
        "warnings": list(model.warnings),
        "features": [
            *(each for part in category_maps(model) for each in _regions(part, plane)),
            *(each for part in category_maps(model) for each in _centres(part, plane)),
        ],
    }


def _regions(part: CategoryMap, plane: tuple[int, int]) -> Iterator[dict[str, Any]]:
    model = part.model
    cells = None if model.label_map is None else plane_cells(model, plane)
    if cells is None:
        return
    labels, _ = cells
    across, up = (model.features[axis] for axis in plane)
    parallels = edges_of(up, labels.shape[1])
    pieces = _pieces(across, labels)
    for cluster in range(model.n_clusters):
        parts = [part for piece, meridians in pieces for part in _polygons(piece == cluster, meridians, parallels)]
        if parts:
            yield _feature(part, cluster, "region", {"type": "MultiPolygon", "coordinates": parts})


def _centres(part: CategoryMap, plane: tuple[int, int]) -> Iterator[dict[str, Any]]:
    model = part.model
    if model.centroids is None:
        return
    names = [feature.name for feature in model.features]
    unknown = np.full(model.centroids.shape, np.nan)
    errors = unknown if model.centroid_errors is None else model.centroid_errors
    in_km = errors_in_km(model.centroids[:, list(plane)], errors[:, list(plane)])
    for cluster in shown_clusters(model).tolist():
        centre, error = model.centroids[cluster], errors[cluster]
        longitude, latitude = centre[list(plane)].tolist()
        values = {
            "centre": dict(zip(names, map(_known, centre), strict=True)),
            "centre_errors": dict(zip(names, map(_known, error), strict=True)),
            "error_km": _known(in_km[cluster]),
        }
        point = {"type": "Point", "coordinates": [turn(longitude), latitude]}
        yield _feature(part, cluster, "centre", point, values)


def _feature(
    part: CategoryMap, cluster: int, kind: str, geometry: dict[str, Any], values: dict[str, Any] | None = None
) -> dict[str, Any]:
    model = part.model
    category = {} if part.category is None else {"category": {part.attribute: part.category}}
    properties = {
        "kind": kind,
        "cluster": cluster,
        "name": model.names[cluster] if model.names else "",
        "size": _known(model.sizes[cluster]),
        "size_error": _known(model.size_errors[cluster]),
        "verdict": model.verdict.value,
    }
    return {
        "type": "Feature",
        "id": f"{kind}-{cluster}",
        "geometry": geometry,
        "properties": properties | category | (values or {}),
    }


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# ---- longitudes ----


def _pieces(across: Feature, labels: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return the parts of a map between cuts at 180°, with the longitudes of their columns' edges in [-180, 180]."""
    pieces = []
    meridians = np.linspace(across.lower, across.upper, len(labels) + 1)
    cuts = [cut for cut in (-180.0, 180.0) if across.lower < cut < across.upper]
    ends = [across.lower, *cuts, across.upper]
    for west, east in pairwise(ends):
        inner = meridians[(meridians > west) & (meridians < east)]
        edges = np.concatenate([[west], inner, [east]])
        columns = np.searchsorted(meridians, (edges[:-1] + edges[1:]) / 2, side="right") - 1
        pieces.append((labels[columns], edges - 360 * turns_of((west + east) / 2)))
    if len(pieces) == 2 and across.upper - across.lower == 360:  # the ends of a whole turn meet inside of the map
        (last, eastern), (first, western) = pieces
        return [(np.concatenate([first, last]), np.concatenate([western, eastern[1:]]))]
    return pieces


def _ends(across: Feature) -> tuple[float, float]:
    """Return the western and eastern end of the bounds; west is greater than east across 180° (section 5.2)."""
    if across.upper - across.lower >= 360:
        return -180.0, 180.0
    turns = turns_of((across.lower + across.upper) / 2)
    return turn(across.lower - 360 * turns), turn(across.upper - 360 * turns)


# ---- regions of cells ----


def _polygons(
    inside: NDArray[np.bool_], meridians: NDArray[np.float64], parallels: NDArray[np.float64]
) -> list[Polygon]:
    """Return the union of cells as polygons that touch each other, and themselves, in single points at most."""
    rings = [ring for corners in _outlines(inside) for ring in _split(corners)]
    areas = [_area(ring) for ring in rings]
    exteriors = sorted((index for index, area in enumerate(areas) if area > 0), key=lambda index: areas[index])
    parts = {index: [rings[index]] for index in exteriors}
    for index, area in enumerate(areas):
        if area < 0:
            cell = _cell_at(rings[index])
            around = next(each for each in exteriors if _contains(rings[each], cell))
            parts[around].append(rings[index])
    return [
        [[[float(meridians[x]), float(parallels[y])] for x, y in (*ring, ring[0])] for ring in polygon]
        for _, polygon in sorted(parts.items())
    ]


def _outlines(inside: NDArray[np.bool_]) -> Iterator[list[Corner]]:
    """Yield the corners of each closed outline, with the cells at its left.

    Where two cells touch in a corner alone, the outline turns left. So it follows one cell, and each exterior belongs
    to cells that share edges.
    """
    padded = np.pad(inside, 1)
    edges: dict[tuple[int, int, int], None] = {}
    for way, (start_x, start_y) in enumerate(_STARTS):
        right_x, right_y = _STEPS[(way + 3) % 4]  # the cell at the right of the edge
        beside = padded[1 + right_x : padded.shape[0] - 1 + right_x, 1 + right_y : padded.shape[1] - 1 + right_y]
        for x, y in np.argwhere(inside & ~beside).tolist():
            edges[x + start_x, y + start_y, way] = None
    unvisited = dict(edges)
    while unvisited:
        edge = next(iter(unvisited))
        corners: list[Corner] = []
        while edge in unvisited:
            del unvisited[edge]
            x, y, way = edge
            x, y = x + _STEPS[way][0], y + _STEPS[way][1]
            edge = next(each for turn in (1, 0, 3) if (each := (x, y, (way + turn) % 4)) in edges)
            if edge[2] != way:
                corners.append((x, y))
        yield corners


def _split(corners: list[Corner]) -> Iterator[list[Corner]]:
    """Yield the simple rings of an outline that passes some corners twice."""
    ring: list[Corner] = []
    places: dict[Corner, int] = {}
    for corner in corners:
        if corner in places:
            place = places[corner]
            yield ring[place:]
            for each in ring[place:]:
                del places[each]
            del ring[place:]
        places[corner] = len(ring)
        ring.append(corner)
    yield ring


def _area(ring: list[Corner]) -> float:
    """Return the area in cells; it is negative for a clockwise ring, which is a hole."""
    following = (*ring[1:], ring[0])
    return sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in zip(ring, following, strict=True)) / 2


def _cell_at(ring: list[Corner]) -> tuple[float, float]:
    """Return the middle of the cell at the left of a ring's first edge, at its start."""
    (x, y), (next_x, next_y) = ring[:2]
    step_x, step_y = int(np.sign(next_x - x)), int(np.sign(next_y - y))
    return x + (step_x - step_y) / 2, y + (step_y + step_x) / 2


def _contains(ring: list[Corner], point: tuple[float, float]) -> bool:
    """Return whether a ring of horizontal and vertical edges contains the middle of a cell."""
    corners = np.array([*ring, ring[0]])
    x, low, high = corners[:-1, 0], corners[:-1, 1], corners[1:, 1]
    crossed = (x > point[0]) & (np.minimum(low, high) < point[1]) & (point[1] < np.maximum(low, high))
    return bool(crossed.sum() % 2)
