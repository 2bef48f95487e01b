"""Colours, images and border lines of a plotted cluster model, as arrays and without matplotlib."""

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.model.category_maps import CategoryMap
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.geography import is_map
from sfumato.records.encodings import differences, scale_many, unscale_many
from sfumato.specs import circles_of

# Okabe and Ito (2008), then Tol's muted wine, indigo and olive. People with any colour vision can distinguish them.
PALETTE = (
    ("blue", "#0072b2"),
    ("vermilion", "#d55e00"),
    ("green", "#009e73"),
    ("pink", "#cc79a7"),
    ("orange", "#e69f00"),
    ("sky blue", "#56b4e9"),
    ("wine", "#882255"),
    ("indigo", "#332288"),
    ("olive", "#999933"),
    ("yellow", "#f0e442"),
)

_MAX_PAIRED_FEATURES = 4
_NOT_IN_XML = re.compile("[^\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_FLAT_TONE = 0.3  # tone of a model without density
_DISPLAY_CELLS = 288  # approximate resolution along a grid's longer side, pixels


def colour(cluster: int) -> tuple[str, str]:
    """Return the name and hexadecimal value of a cluster's colour. Colours repeat after ten clusters."""
    return PALETTE[cluster % len(PALETTE)]


def to_xml_text(text: str) -> str:
    """Return text in which characters that XML forbids are replaced."""
    return _NOT_IN_XML.sub("\ufffd", text)


def spreads_of(model: ClusterModel) -> NDArray[np.float64] | None:
    """Return the variance of the centres in each feature, relative to its range, or None without centres.

    It is half of the mean squared difference of two centres, the shorter way round a circle.
    """
    if model.centroids is None:
        return None
    scaled = scale_many(model.features, model.centroids)
    spreads = np.asarray(scaled.var(axis=0))
    for place in circles_of(model.features):
        around = scaled[:, place]
        spreads[place] = (differences(around[:, None, None], around[:, None], (0,)) ** 2).mean() / 2
    return spreads


def shown_clusters(model: ClusterModel) -> NDArray[np.int64]:
    """Return the clusters that have cells in the label map, ascending; all without a label map.

    The map of one category has cells of its own clusters alone.
    """
    return np.arange(model.n_clusters) if model.label_map is None else np.unique(model.label_map)


def planes(model: ClusterModel) -> list[tuple[int, int]]:
    """Return the pairs (across, up) of features to map.

    The list is empty for a single feature and for no clusters.
    """
    if not model.n_clusters:
        return []
    n_features = len(model.features)
    chosen = list(range(n_features))
    spread = spreads_of(model)
    if n_features > _MAX_PAIRED_FEATURES and spread is not None:
        chosen = sorted(np.argsort(-spread, kind="stable")[:_MAX_PAIRED_FEATURES].tolist())
    elif n_features > _MAX_PAIRED_FEATURES:
        chosen = chosen[:_MAX_PAIRED_FEATURES]
    pairs = combinations(chosen, 2)
    return [(b, a) if is_map(model.features[b], model.features[a]) else (a, b) for a, b in pairs]


def plane_cells(
    model: ClusterModel, plane: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None] | None:
    """Return cluster and density of the cells of a plane (across, up), or None if there are no cells to fill.

    With more than two features, a cell of the plane belongs to the cluster with most people over it.

    Returns
    -------
    labels : ndarray of shape (cells across, cells up), int64
    density : ndarray of the same shape, float64, or None
    """
    if model.label_map is None:
        if len(model.features) != 2 or model.centroids is None:
            return None
        side = (np.arange(256) + 0.5) / 256
        points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
        labels = model.assign(unscale_many(model.features, points)).reshape(256, 256)
        return (labels if plane == (0, 1) else labels.T), None
    if len(model.features) == 2:
        density = model.density
        if plane == (0, 1):
            return model.label_map, density
        return model.label_map.T, None if density is None else density.T
    weights = np.ones(model.label_map.shape) if model.density is None else model.density
    index = np.indices(model.label_map.shape)
    columns, rows = model.label_map.shape[plane[0]], model.label_map.shape[plane[1]]
    flat = (model.label_map * columns + index[plane[0]]) * rows + index[plane[1]]
    totals = np.bincount(flat.ravel(), weights=weights.ravel(), minlength=model.n_clusters * columns * rows)
    masses = totals.reshape(model.n_clusters, columns, rows)
    return masses.argmax(axis=0), None if model.density is None else masses.sum(axis=0)


def is_adaptive(density: NDArray[np.float64]) -> bool:
    """Return whether most occupied neighbouring cells have equal density.

    Such a density comes from cells of different sizes that were split into the finest cells.
    """
    same = pairs = 0
    for first, second in ((density[1:], density[:-1]), (density[:, 1:], density[:, :-1])):
        occupied = (first > 0) & (second > 0)
        same += int((occupied & (first == second)).sum())
        pairs += int(occupied.sum())
    return pairs > 0 and 2 * same > pairs


def borders(labels: NDArray[Any], circles: Sequence[int] = ()) -> NDArray[np.float64]:
    """Return the lines between cells of different clusters, in [0, 1]^2, one for each straight run.

    Along `circles`, the axes of periodic features, a border at the seam is at both ends.

    Returns
    -------
    ndarray of shape (n, 2 ends, 2), float64
    """
    upright, level = _across(labels, 0 in circles), _across(labels.T, 1 in circles)[:, :, ::-1]
    return np.asarray(np.concatenate([upright, level]) / labels.shape, dtype=np.float64)


def _across(labels: NDArray[Any], is_circle: bool) -> NDArray[np.int64]:
    """Return the runs of edges across the first axis, on a circle also those of the seam, at both ends."""
    inner = _runs(labels[1:] != labels[:-1])
    if not is_circle:
        return inner
    seam = _runs(labels[:1] != labels[-1:]) - np.array([1, 0])
    return np.concatenate([seam, inner, seam + np.array([len(labels), 0])])


def _runs(edges: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return each run of edges behind column x, from y to y', as ((x + 1, y), (x + 1, y'))."""
    steps = np.diff(np.pad(edges, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    x, begin = np.nonzero(steps == 1)
    _, end = np.nonzero(steps == -1)  # same order as `begin`, because runs do not nest
    return np.stack([np.stack([x + 1, begin], axis=-1), np.stack([x + 1, end], axis=-1)], axis=1)


class Scale(NamedTuple):
    """The scale of the tones of one or more maps.

    Attributes
    ----------
    mean : float
        Mean density of a cell.
    peak : float
        log(1 + density / mean) of the densest cell, which has the darkest tone; 0 without people.
    """

    mean: float
    peak: float


def scale_of(densities: Sequence[NDArray[np.float64]]) -> Scale:
    """Return the scale of maps with the same cells. Equal densities have equal tones in all of them."""
    mean = float(np.mean(densities))
    return Scale(mean, float(np.log1p(np.max(densities) / mean)) if mean > 0 else 0.0)


def common_scale(maps: Sequence[CategoryMap], plane: tuple[int, int]) -> Scale | None:
    """Return the scale of a plane (across, up) in the maps of all categories, or None without a density."""
    cells = [plane_cells(each.model, plane) for each in maps]
    densities = [each[1] for each in cells if each is not None and each[1] is not None]
    return scale_of(densities) if densities else None


def tones(density: NDArray[np.float64], scale: Scale | None = None) -> NDArray[np.float64]:
    """Return the darkness of each cell, in [0, 1].

    It is proportional to log(1 + density / mean density). The logarithm keeps sparse cells
    visible beside a dense city. The default scale is that of the map alone.
    """
    mean, peak = scale or scale_of([density])
    return np.asarray(np.log1p(density / mean) / peak if peak > 0 else density, dtype=np.float64)


def shade(
    labels: NDArray[np.int64],
    density: NDArray[np.float64] | None,
    *,
    smooth: bool = True,
    circles: Sequence[int] = (),
    scale: Scale | None = None,
) -> NDArray[np.float64]:
    """Return an RGB image of shape (across, up, 3): hue by cluster, darker with more people.

    With `smooth`, the tone is interpolated between cell centres for appearance only, along `circles` over the seam.
    Maps with one `scale` can be compared by their tones.
    """
    factor = max(1, round(_DISPLAY_CELLS / max(labels.shape)))
    hues = np.array([_rgb(colour(cluster)[1]) for cluster in range(int(labels.max()) + 1)])
    hue = hues[labels.repeat(factor, axis=0).repeat(factor, axis=1)]
    if density is None:
        tone = np.full(hue.shape[:2], _FLAT_TONE)
    else:
        tone = tones(density, scale)
        if smooth:
            for axis in (0, 1):
                tone = _interpolate(tone, factor, axis, wraps=axis in circles)
            tone = tone / (tone.max() or 1.0) if scale is None else tone
        else:
            tone = tone.repeat(factor, axis=0).repeat(factor, axis=1)
    tone = tone[..., None]
    light = 1 + (hue - 1) * np.minimum(tone / 0.62, 1)  # from white to the hue
    return np.asarray(
        light * (1 - 0.55 * np.clip((tone - 0.62) / 0.38, 0, 1)), dtype=np.float64
    )  # from the hue to its shade


def _interpolate(values: NDArray[np.float64], factor: int, axis: int, *, wraps: bool) -> NDArray[np.float64]:
    """Return values interpolated linearly between cell centres, `factor` times as fine along one axis."""
    n_cells = values.shape[axis]
    at = (np.arange(n_cells * factor) + 0.5) / factor - 0.5
    at = at % n_cells if wraps else np.clip(at, 0, n_cells - 1)
    low = at.astype(np.int64)
    high = (low + 1) % n_cells if wraps else np.minimum(low + 1, n_cells - 1)
    part = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
    return np.asarray(values.take(low, axis) * (1 - part) + values.take(high, axis) * part, dtype=np.float64)


def _rgb(hexadecimal: str) -> list[float]:
    return [int(hexadecimal[place : place + 2], 16) / 255 for place in (1, 3, 5)]
