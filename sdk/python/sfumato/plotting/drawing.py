"""Panels of a plot, drawn by matplotlib: a map of two features, a line over one feature, or bars of sizes."""

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.model import geography
from sfumato.model.cluster_model import ClusterModel
from sfumato.plotting.shading import (
    Scale,
    borders,
    colour,
    is_adaptive,
    plane_cells,
    shade,
    shown_clusters,
    to_xml_text,
)
from sfumato.records.encodings import edges_of, flatten, scale_many, unscale_many
from sfumato.records.places import sines
from sfumato.specs import Feature, circles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT_INK = "#222222", "#666666"
CONFIDENCE = 0.95
# Quantiles of a normal error in one and in two independent coordinates, in standard errors, at this confidence.
LINE_REACH, PLANE_REACH = 1.959964, math.sqrt(-2 * math.log(1 - CONFIDENCE))

_MAX_BORDER_LINES = 20_000
_MARGIN = 0.03  # space left of the scale bar, as a share of the map's width


def axis_label(feature: Feature) -> str:
    """Return the axis label of a feature."""
    return to_xml_text(f"{feature.name} ({feature.unit})" if feature.unit else feature.name)


def aspect(features: Sequence[Feature], plane: tuple[int, int]) -> float:
    """Return width / height of a plane's panel."""
    across, up = (features[axis] for axis in plane)
    ratio = (across.upper - across.lower) / (up.upper - up.lower)
    if geography.is_place(across, up):  # lengths are true at the middle latitude
        (south, north), middle = sines(np.array([up.lower, up.upper])), math.radians(geography.middle_latitude(up))
        ratio = math.radians(across.period) * math.cos(middle) ** 2 / (north - south)
        return float(np.clip(ratio, 0.5, 4.0))
    if geography.is_map(across, up):
        return float(np.clip(ratio * math.cos(math.radians(geography.middle_latitude(up))), 0.5, 4.0))
    return float(np.clip(ratio, 0.75, 2.5)) if across.unit == up.unit and len(features) == 2 else 1.2


def draw_map(
    axes: "Axes",
    model: ClusterModel,
    plane: tuple[int, int],
    outlines: Sequence[ArrayLike] | None = None,
    scale: Scale | None = None,
) -> None:
    """Draw two features: density, borders, coasts, centres and their error ellipses.

    The default scale of the tones is that of this map alone.
    """
    from matplotlib.collections import LineCollection

    across, up = (model.features[axis] for axis in plane)
    on_globe = geography.is_map(across, up)
    cells = plane_cells(model, plane)
    if cells is not None:
        _draw_cells(axes, *cells, (across, up), scale)
    if outlines is None:
        coasts = geography.coastline(across, up) if on_globe else []
    else:
        coasts = [np.asarray(line, dtype=np.float64)[:, list(plane)] for line in outlines]
    coasts = [np.column_stack([line[:, 0], flatten(up, line[:, 1])]) for line in coasts]
    if coasts:
        axes.add_collection(LineCollection(coasts, colors="#555555", linewidths=0.35))
    if model.centroids is not None:
        outside, label_at = label_points(model, model.centroids)
        own = shown_clusters(model)
        axes.plot(
            *_on_plane(model.centroids[own[outside[own]]], model, plane).T, "+", ms=6, mew=1.2, color=INK, zorder=3
        )
        _draw_ellipses(axes, model, plane)
        _draw_numbers(axes, own, _on_plane(label_at[own], model, plane))
    axes.set_xlim(across.lower, across.upper)
    axes.set_ylim(up.lower, up.upper)
    axes.set_xlabel(axis_label(across))
    axes.set_ylabel(axis_label(up))
    axes.tick_params(length=3, width=0.7)
    if on_globe:
        _draw_graticule(axes, across, up)


def _on_plane(values: NDArray[np.float64], model: ClusterModel, plane: tuple[int, int]) -> NDArray[np.float64]:
    """Return values of all features as places on the plot of two of them: (n, 2)."""
    return np.column_stack([flatten(model.features[axis], values[:, axis]) for axis in plane])


def _edges_on_plane(lines: NDArray[np.float64], features: tuple[Feature, Feature]) -> list[NDArray[np.float64]]:
    lower, ranges = np.array([(each.lower, each.period) for each in features]).T
    return list(lower + lines * ranges)


def _draw_cells(
    axes: "Axes",
    labels: NDArray[np.int64],
    density: NDArray[np.float64] | None,
    features: tuple[Feature, Feature],
    scale: Scale | None,
) -> None:
    from matplotlib.collections import LineCollection

    across, up = features
    blocks = density is not None and is_adaptive(density)
    axes.imshow(
        shade(labels, density, smooth=not blocks, circles=circles_of(features), scale=scale).swapaxes(0, 1),
        extent=(across.lower, across.upper, up.lower, up.upper),
        origin="lower",
        aspect="auto",
        interpolation="none",
    )
    if blocks and density is not None and len(lines := borders(density)) <= _MAX_BORDER_LINES:
        edges = _edges_on_plane(lines, features)
        axes.add_collection(LineCollection(edges, colors="#888888", linewidths=0.25, alpha=0.6))
    lines = borders(labels, circles_of(features))
    if len(lines) <= _MAX_BORDER_LINES:  # more would cover the map
        edges = _edges_on_plane(lines, features)
        axes.add_collection(LineCollection(edges, colors="white", linewidths=1.6, capstyle="projecting"))
        axes.add_collection(LineCollection(edges, colors="#444444", linewidths=0.7, capstyle="projecting"))


def _draw_graticule(axes: "Axes", across: Feature, up: Feature) -> None:
    meridians = geography.graticule(across.lower, across.upper, 6)
    parallels = geography.graticule(up.lower, up.upper, 6)
    axes.set_xticks(meridians, [geography.meridian(value) for value in meridians])
    axes.set_yticks(flatten(up, np.array(parallels)).tolist(), [geography.parallel(value) for value in parallels])
    axes.grid(color="#888888", linewidth=0.35, linestyle=(0, (1, 3)))
    bar = geography.scale(across, up)
    if bar is not None:
        left = across.lower + _MARGIN * (across.upper - across.lower)
        height = up.lower + 2 * _MARGIN * (up.upper - up.lower)
        ends = ([left, left + bar.degrees], [height, height])
        axes.plot(*ends, color="white", linewidth=4, solid_capstyle="butt", zorder=6)
        axes.plot(*ends, "|-", color=INK, linewidth=1.2, ms=5, zorder=7)
        under = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
        place = (left, height + 0.6 * _MARGIN * (up.upper - up.lower))
        axes.text(*place, bar.text, size=6.5, color=INK, va="bottom", zorder=7, bbox=under)


def shows_ellipses(model: ClusterModel) -> bool:
    """Return whether the plot shows error ellipses of the centres."""
    return (
        model.centroids is not None
        and model.centroid_errors is not None
        and bool(np.isfinite(model.centroid_errors).any())
    )


def _draw_ellipses(axes: "Axes", model: ClusterModel, plane: tuple[int, int]) -> None:
    """Draw the ellipse that contains each centre with 95 % confidence, as far as the noise is concerned."""
    from matplotlib.patches import Ellipse
    from matplotlib.patheffects import AbstractPathEffect, withStroke

    halo: list[AbstractPathEffect] = [withStroke(linewidth=2.2, foreground="white")]
    if model.centroids is None or model.centroid_errors is None:
        return
    turns = list(product(*(_turns(model.features[axis]) for axis in plane)))
    own = shown_clusters(model)
    places, errors = model.centroids[own], model.centroid_errors[own]
    low, high = (_on_plane(places + side * PLANE_REACH * errors, model, plane) for side in (-1, 1))
    centres = _on_plane(places, model, plane)
    for centre, (across, up) in zip(centres, high - low, strict=True):
        if np.isfinite((*centre, across, up)).all():
            for turn in turns:
                place = (centre[0] + turn[0], centre[1] + turn[1])
                ellipse = Ellipse(place, across, up, facecolor="none", edgecolor=INK, linewidth=0.9, zorder=3)
                ellipse.set_path_effects(halo)
                axes.add_patch(ellipse)


def _turns(feature: Feature) -> tuple[float, ...]:
    """Return the distances at which a shape over the seam of a circle is drawn again."""
    return (-feature.period, 0.0, feature.period) if feature.periodic else (0.0,)


def label_points(model: ClusterModel, centres: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which centres lie outside their own cluster, such as a ring's, and the place of each number.

    A number is at its centre, or in the densest cell of the cluster if the centre lies outside.
    """
    outside = model.assign(centres) != np.arange(model.n_clusters)
    label_at = unscale_many(model.features, scale_many(model.features, centres))  # clipped to the bounds
    if model.label_map is not None and model.density is not None:
        for cluster in np.flatnonzero(outside):
            densest = np.where(model.label_map == cluster, model.density, -1.0).argmax()
            cell = np.unravel_index(densest, model.label_map.shape)
            label_at[cluster] = unscale_many(model.features, (np.array(cell) + 0.5) / model.label_map.shape)
    return outside, label_at


def _draw_numbers(axes: "Axes", clusters: NDArray[np.int64], label_at: NDArray[np.float64]) -> None:
    # The largest cluster lies on top.
    for cluster, (x, y) in reversed(list(zip(clusters.tolist(), label_at.tolist(), strict=True))):
        edge = colour(cluster)[1]
        axes.plot([x], [y], "o", ms=11, mfc="white", mec=edge, mew=1.8, clip_on=False, zorder=4)
        axes.text(x, y, str(cluster), size=7, weight="bold", ha="center", va="center_baseline", zorder=5)


def heights_of(model: ClusterModel) -> NDArray[np.float64]:
    """Return the density of one feature in each cell, in people's share per unit; an even one if it is not known."""
    (feature,) = model.features
    n_cells = 1 if model.label_map is None else len(model.label_map)
    cells = np.full(n_cells, 1 / n_cells) if model.density is None else model.density
    return np.asarray(cells / np.diff(edges_of(feature, n_cells)))


def draw_line(axes: "Axes", model: ClusterModel, top: float = 0.0) -> None:
    """Draw one feature: its density, each segment in its cluster's colour. The axis reaches at least `top`."""
    (feature,) = model.features
    if model.label_map is None:
        top = 1.0
    else:
        heights, edges = heights_of(model), edges_of(feature, len(model.label_map))
        top = max(top, float(heights.max())) or 1.0
        for cluster in shown_clusters(model).tolist():
            inside = np.where(model.label_map == cluster, heights, 0.0)
            axes.stairs(inside, edges, fill=True, color=colour(cluster)[1], alpha=0.65, linewidth=0)
        axes.stairs(heights, edges, color=INK, linewidth=0.9)
    if model.centroids is not None:
        own = shown_clusters(model)
        centres = model.centroids[own, 0]
        axes.vlines(centres, 0, top * 1.09, colors=FAINT_INK, linewidths=0.7, linestyles="dotted")
        label_at = np.column_stack([centres, np.full(len(own), top * 1.09)])
        if model.centroid_errors is not None:
            reach = LINE_REACH * np.nan_to_num(model.centroid_errors[own, 0], posinf=0.0)
            x, y = label_at.T
            for turn in _turns(feature):
                axes.errorbar(
                    x + turn, y, xerr=reach, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2, clip_on=feature.periodic
                )
        _draw_numbers(axes, own, label_at)
    axes.set_xlim(feature.lower, feature.upper)
    axes.set_ylim(0, top * 1.18)
    axes.set_xlabel(axis_label(feature))
    axes.set_ylabel("density (share of people per unit)" if model.label_map is not None else "")
    axes.tick_params(length=3, width=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def draw_sizes(axes: "Axes", model: ClusterModel) -> None:
    """Draw the shares of people as bars with their standard errors."""
    from matplotlib.ticker import MaxNLocator

    if not model.n_clusters:
        axes.text(0.5, 0.5, "No cluster stands out from the noise.", transform=axes.transAxes, ha="center", size=10)
        axes.set_axis_off()
        return
    axes.bar(
        np.arange(model.n_clusters),
        100 * model.sizes,
        yerr=100 * np.nan_to_num(model.size_errors),
        color=[colour(cluster)[1] for cluster in range(model.n_clusters)],
        error_kw={"ecolor": INK, "elinewidth": 0.9},
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(-0.6, model.n_clusters - 0.4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cluster")
    axes.set_ylabel("share of people (%)")
    axes.tick_params(length=3, width=0.7)
    axes.spines[["top", "right"]].set_visible(False)
