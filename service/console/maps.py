"""Maps of a result as a browser draws them: cells, borders, centres and coasts of two features, as plain numbers."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.problems import NotFound
from sfumato import geography
from sfumato.cluster_model import ClusterModel
from sfumato.drawing import PLANE_REACH, seats_of
from sfumato.shading import colour, is_adaptive, plane_cells, planes
from sfumato.specs import Feature

MAX_SIDE = 128  # cells a side that a browser is sent: finer than a screen tells apart, and light to send

Json = dict[str, Any]
Plane = tuple[int, int]


def plane_of(model: ClusterModel, across: str, up: str) -> Plane | None:
    """The pair of features that was asked for, by their places; the first worth drawing where none was.

    None where there is nothing to map; raises NotFound where there are no such features.
    """
    drawn = planes(model)
    if not drawn:
        return None
    if not across and not up:
        return drawn[0]
    places = [int(text) if text.isascii() and text.isdigit() and len(text) < 4 else -1 for text in (across, up)]
    if places[0] == places[1] or not all(0 <= place < len(model.features) for place in places):
        raise NotFound("a map is of two different features of the result")
    return places[0], places[1]


def map_of(model: ClusterModel, plane: Plane, *, colours: Sequence[str] | None = None, peak: float = 0.0) -> Json:
    """What the browser draws.

    Parameters
    ----------
    model : ClusterModel
    plane : (across, up)
        Places of features.
    colours : sequence of str, optional
        Of the clusters, in their order.
    peak : float
        The darkest tone stands for at least so much: maps side by side have one scale.
    """
    across, up = (model.features[axis] for axis in plane)
    on_globe = geography.is_map(across, up)
    bar = geography.scale(across, up) if on_globe else None
    return {
        "across": _axis(across),
        "up": _axis(up),
        "cells": _cells(model, plane, peak),
        "colours": list(colours or [colour(cluster)[1] for cluster in range(model.n_clusters)]),
        "centres": _centres(model, plane),
        "ratio": _ratio(across, up) if on_globe else None,
        "coasts": [line.round(1).ravel().tolist() for line in geography.coastline(across, up)] if on_globe else [],
        "meridians": geography.graticule(across.lower, across.upper, 6) if on_globe else [],
        "parallels": geography.graticule(up.lower, up.upper, 6) if on_globe else [],
        "scale": None if bar is None else {"degrees": bar.degrees, "text": bar.text},
    }


def _ratio(across: Feature, up: Feature) -> float:
    """Width over height of a map that is true at its middle latitude."""
    shrunk = math.cos(math.radians(geography.middle_latitude(up)))
    return (across.upper - across.lower) / (up.upper - up.lower) * shrunk


def peak_of(model: ClusterModel, plane: Plane) -> float:
    """The darkest tone of a map: of how many times the even density, as a logarithm."""
    cells = _reduced(model, plane)
    return 0.0 if cells is None or cells[1] is None else _peak(cells[1])


def _peak(density: NDArray[np.float64]) -> float:
    mean = float(density.mean())
    return math.log1p(float(density.max()) / mean) if mean > 0 else 0.0


def _axis(feature: Feature) -> Json:
    return {"name": feature.name, "unit": feature.unit, "lower": feature.lower, "upper": feature.upper}


def _cells(model: ClusterModel, plane: Plane, peak: float) -> Json | None:
    cells = _reduced(model, plane)
    if cells is None:
        return None
    labels, density, reach = cells
    columns, rows = labels.shape
    return {
        "columns": columns,
        "rows": rows,
        "reach": reach,  # of the map, each way: blocks of cells may stand over its edge
        "labels": _packed(labels.T.astype("<u2")),  # row by row, from below
        "density": None if density is None else _packed(density.T.astype("<f4")),
        "mean": 0.0 if density is None else float(density.mean()),
        "peak": 0.0 if density is None else max(peak, _peak(density)),
        "adaptive": density is not None and is_adaptive(density),
    }


def _packed(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _reduced(
    model: ClusterModel, plane: Plane
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None, tuple[float, float]] | None:
    """The plane's cells, in blocks where they are finer than a screen needs: people are added, the densest names it."""
    cells = plane_cells(model, plane)
    if cells is None:
        return None
    labels, density = cells
    blocks = tuple(-(-size // MAX_SIDE) for size in labels.shape)
    if blocks == (1, 1):
        return labels, density, (1.0, 1.0)
    sizes = tuple(-(-size // block) for size, block in zip(labels.shape, blocks, strict=True))
    beyond = [(0, n * block - size) for n, block, size in zip(sizes, blocks, labels.shape, strict=True)]

    def split(values: NDArray[Any], **how: Any) -> NDArray[Any]:
        padded = np.pad(values, beyond, **how)
        apart = padded.reshape(sizes[0], blocks[0], sizes[1], blocks[1]).swapaxes(1, 2)
        return np.asarray(apart.reshape(sizes[0], sizes[1], -1))

    weights = np.ones(labels.shape) if density is None else density
    heaviest = split(weights, constant_values=-1.0).argmax(axis=2)
    named = np.take_along_axis(split(labels, mode="edge"), heaviest[..., None], axis=2)[..., 0]
    added = None if density is None else split(density).sum(axis=2)
    reach = tuple(n * block / size for n, block, size in zip(sizes, blocks, labels.shape, strict=True))
    return named, added, (reach[0], reach[1])


def _centres(model: ClusterModel, plane: Plane) -> list[Json]:
    """Where each cluster's number stands, its centre, and how far that may be off with 95 % confidence."""
    if model.centroids is None or not model.n_clusters:
        return []
    apart, seats = seats_of(model, model.centroids)
    found = []
    for cluster in range(model.n_clusters):
        reach = None
        if model.centroid_errors is not None:
            errors = model.centroid_errors[cluster, list(plane)]
            reach = (PLANE_REACH * errors).tolist() if np.isfinite(errors).all() else None
        found.append(
            {
                "seat": seats[cluster, list(plane)].tolist(),
                "centre": model.centroids[cluster, list(plane)].tolist(),
                "apart": bool(apart[cluster]),
                "reach": reach,
            }
        )
    return found
