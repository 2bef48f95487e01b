"""Data of a map that the browser draws: cells, borders, centres and coasts for two features."""

import base64
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.console.forms import Json
from service.console.ratings import find_doubts
from service.http.problems import NotFound
from sfumato.model import geography
from sfumato.model.category_maps import category_maps
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.separation import separation
from sfumato.plotting.drawing import PLANE_REACH, aspect, label_points
from sfumato.plotting.shading import (
    colour,
    is_adaptive,
    plane_cells,
    planes,
    scale_of,
    shown_clusters,
    spreads_of,
)
from sfumato.specs import MAX_FEATURES, Feature

MAX_SIDE = 128  # cells per side sent to the browser: finer than a screen can show, and small to transfer

Plane = tuple[int, int]


def plane_of(model: ClusterModel, across: str, up: str) -> Plane | None:
    """Return the indices of the two requested features, or of the default pair if none is requested.

    The default is the pair of features in which the centres differ most. Return None if the model has nothing to map.
    Raise NotFound for invalid features.
    """
    drawn = planes(model)
    if not drawn:
        return None
    if not across and not up:
        spreads = spreads_of(model)
        return drawn[0] if spreads is None else max(drawn, key=lambda pair: spreads[pair[0]] + spreads[pair[1]])
    places = [int(text) if text.isascii() and text.isdigit() and len(text) < 5 else -1 for text in (across, up)]
    if places[0] == places[1] or not all(0 <= place < len(model.features) for place in places):
        raise NotFound("choose two different features of the result")
    return places[0], places[1]


def layers_of(models: Sequence[ClusterModel], plane: Plane) -> list[str]:
    """Return the layers that a map of one of the models has: controls of other layers would have no effect."""
    layers = set()
    for model in models:
        cells = plane_cells(model, plane)
        layers |= set() if cells is None else {"borders", "density"}
        layers |= set() if model.centroids is None else {"centres"}
        errors = None if model.centroids is None else model.centroid_errors
        layers |= {"ellipses"} if errors is not None and np.isfinite(errors).all(axis=1).any() else set()
    return sorted(layers)


def shown_features(model: ClusterModel) -> dict[int, str]:
    """Return names of features by index: all of up to 64, otherwise those in which the centres differ most.

    The axes of a label map are always among them, before its categories, so that tables state where its clusters are.
    """
    shown: Iterable[int] = range(len(model.features))
    if len(model.features) > MAX_FEATURES:
        drawn = range(0 if model.label_map is None else model.n_numeric)
        shown = sorted({*drawn, *(axis for plane in planes(model) for axis in plane)})
    return {axis: model.features[axis].name for axis in shown}


def map_of(
    model: ClusterModel,
    plane: Plane,
    *,
    category: int = 0,
    colours: Sequence[str] | None = None,
    peak: float = 0.0,
) -> Json:
    """Return the data of a map.

    The maps of the categories of a result have one scale of tones. Clusters of different categories may be at one
    place, so the result decides which ones are doubtful.

    Parameters
    ----------
    model : ClusterModel
        The whole result.
    plane : (across, up)
        Indices of the numeric features.
    category : int
        Index of the category in `category_maps`.
    colours : sequence of str, optional
        Colours of the clusters.
    peak : float
        Minimum density of the darkest tone, so that two results can share one scale.
    """
    shown = category_maps(model)[category].model
    across, up = (shown.features[axis] for axis in plane)
    on_globe = geography.is_map(across, up)
    bar = geography.scale(across, up) if on_globe else None
    return {
        "across": _axis(across),
        "up": _axis(up),
        "cells": _cells(model, plane, category, peak),
        "colours": list(colours or [colour(cluster)[1] for cluster in range(model.n_clusters)]),
        "centres": _centres(shown, plane),
        "doubtful": [bool(doubt) for doubt in find_doubts(model, separation(model))],
        "ratio": aspect(shown.features, plane),
        "coasts": [line.round(1).ravel().tolist() for line in geography.coastline(across, up)] if on_globe else [],
        "meridians": geography.graticule(across.lower, across.upper, 6) if on_globe else [],
        "parallels": geography.graticule(up.lower, up.upper, 6) if on_globe else [],
        "scale": None if bar is None else {"degrees": bar.degrees, "text": bar.text},
    }


def peak_of(model: ClusterModel, plane: Plane) -> float:
    """Return the logarithm of the largest density, relative to the mean density. The darkest tone shows this value."""
    cells = _merge_cells(model, plane)
    return 0.0 if cells is None or cells[1] is None else scale_of([cells[1]]).peak


def finite_or_none(value: float) -> float | None:
    """Return a number that JSON can contain, or None."""
    return value if math.isfinite(value) else None


def _axis(feature: Feature) -> Json:
    return {
        "name": feature.name,
        "unit": feature.unit,
        "lower": feature.lower,
        "upper": feature.upper,
        "periodic": feature.periodic,
        "sines": feature.coordinate == "latitude",
        "turns": feature.coordinate == "longitude",
    }


def _cells(model: ClusterModel, plane: Plane, category: int, peak: float) -> Json | None:
    found = [cells for each in category_maps(model) if (cells := _merge_cells(each.model, plane)) is not None]
    if not found:
        return None
    labels, density, reach = found[category]
    scale = scale_of([cells[1] for cells in found if cells[1] is not None] or [np.zeros(1)])
    columns, rows = labels.shape
    return {
        "columns": columns,
        "rows": rows,
        "reach": reach,  # share of the map in each direction: blocks of cells can extend beyond its edge
        "labels": _encode_array(labels.T.astype("<u2")),  # row by row, starting at the bottom
        "density": None if density is None else _encode_array(density.T.astype("<f4")),
        "mean": scale.mean,
        "peak": 0.0 if density is None else max(peak, scale.peak),
        "adaptive": density is not None and is_adaptive(density),
    }


def _encode_array(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _merge_cells(
    model: ClusterModel, plane: Plane
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None, tuple[float, float]] | None:
    """Return the cells of the plane, merged into blocks if there are too many.

    A block has the sum of the densities and the label of its densest cell.
    """
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
    """Return for each shown cluster the position of its number, its centre, and its 95 % confidence ellipse."""
    if model.centroids is None or not model.n_clusters:
        return []
    apart, seats = label_points(model, model.centroids)
    found = []
    for cluster in shown_clusters(model).tolist():
        reach = None
        if model.centroid_errors is not None:
            errors = model.centroid_errors[cluster, list(plane)]
            reach = (PLANE_REACH * errors).tolist() if np.isfinite(errors).all() else None
        found.append(
            {
                "cluster": cluster,
                "seat": seats[cluster, list(plane)].tolist(),
                "centre": model.centroids[cluster, list(plane)].tolist(),
                "apart": bool(apart[cluster]),
                "reach": reach,
            }
        )
    return found
