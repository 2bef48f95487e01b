"""Pictures of a cluster model: density, cluster borders and centres, as SVG or PNG.

Everything drawn comes from the released model and from public geometry, so a picture costs
no privacy. Matplotlib is needed (the extra `plot`) and is loaded by the first picture.
Equal arguments give equal bytes.
"""

import io
import math
import re
import textwrap
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.cluster_model import ClusterModel
from sfumato.encodings import scale_many, unscale_many
from sfumato.shading import borders, colour, plane_cells, shaded
from sfumato.specs import Feature

if TYPE_CHECKING:  # loaded inside the functions: a device never pays for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _FAINT_INK = "#222222", "#666666"
_MAX_PAIRED_FEATURES = 4
_MAX_LEGEND_ENTRIES = 24
_MAX_SMALL_PRINT_LINES = 8
_MAX_BORDER_LINES = 20_000
_NOT_IN_XML = re.compile("[^\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")

_LOCK = threading.RLock()  # matplotlib's settings are the process's; pictures are drawn one at a time


class Options(TypedDict, total=False):
    """What `svg` and `png` take like `figure`."""

    title: str
    caption: str | None
    names: Sequence[str]
    outlines: Sequence[ArrayLike]


def share(model: ClusterModel, cluster: int) -> str:
    """A cluster's share of people with its standard error, such as '31.2 ± 0.1 %'."""
    size, error = 100 * model.sizes[cluster], 100 * model.size_errors[cluster]
    if not math.isfinite(error):
        return f"{size:.1f} %"
    decimals = 1 if error >= 0.05 else 2
    return f"{size:.{decimals}f} ± {error:.{decimals}f} %"


def describe(model: ClusterModel, *, epsilon: float | None = None, n_reports: int | None = None) -> str:
    """The usual caption: how many clusters, at what cost to a person, from how many reports.

    `n_reports` is taken from the model's diagnostics where it is left out.
    """
    n_reports = model.diagnostics.get("n_reports") if n_reports is None else n_reports
    parts = ["1 cluster" if model.n_clusters == 1 else f"{model.n_clusters} clusters"]
    if epsilon is not None:
        parts.append(f"ε = {epsilon:g} per person")
    if n_reports is not None:
        parts.append(f"{n_reports:,} reports")
    return " · ".join(parts)


def figure(
    model: ClusterModel,
    *,
    title: str = "",
    caption: str | None = None,
    names: Sequence[str] = (),
    outlines: Sequence[ArrayLike] = (),
) -> "Figure":
    """Draw a model; the numbers are the labels `ClusterModel.assign` gives.

    One feature: the density as a line over coloured segments. Two: a map, longitude and
    latitude in their true proportion at the middle latitude. More: a map of each pair of
    features (the four the centres differ in most), each cell coloured by the cluster that
    has most people there. Codes: their sizes as bars.

    Parameters
    ----------
    model : ClusterModel
    title : str
        Above the picture.
    caption : str, optional
        Below the title; `describe(model)` where left out.
    names : sequence of str, optional
        What the legend calls the clusters, in their order.
    outlines : sequence of array-like of shape (n, 2)
        Public lines, such as coasts, drawn over a map of two features, in their order and units.

    Returns
    -------
    matplotlib.figure.Figure
        Eight inches wide, not registered with pyplot.
    """
    with _settings():
        from matplotlib.figure import Figure

        entries = _legend_entries(model, names)
        small_print = _small_print(model)
        panels = _planes(model)
        aspect = _aspect(model.features, panels[0]) if panels else 2.4
        columns = min(len(panels), 3) or 1
        rows = math.ceil(len(panels) / columns) or 1
        beside = columns == 1 and aspect < 1.6  # a narrow picture leaves room for the legend on its right
        width, left, right, gap = 8.0, 0.8, 2.4 if beside else 0.2, 0.78
        panel_width = (width - left - right - gap * (columns - 1)) / columns
        panel_height = panel_width / aspect
        top = 0.72 if title else 0.46
        legend_columns = 1 if beside else _legend_columns(entries)
        legend_height = 0.19 * (math.ceil(len(entries) / legend_columns) + 1)
        bottom = 0.5 + (0 if beside else legend_height) + 0.145 * len(small_print) + 0.05
        body = rows * panel_height + (rows - 1) * gap
        if beside:
            body = max(body, legend_height)
        height = top + body + bottom
        drawn = Figure(figsize=(width, height), facecolor="white")
        for place, panel in enumerate(panels or [None]):
            row, column = divmod(place, columns)
            x = left + column * (panel_width + gap)
            y = height - top - (row + 1) * panel_height - row * gap
            axes = drawn.add_axes((x / width, y / height, panel_width / width, panel_height / height))
            if model.encoding is not None:
                _draw_sizes(axes, model)
            elif panel is None:
                _draw_line(axes, model)
            else:
                _draw_map(axes, model, panel, outlines if len(model.features) == 2 else ())
        _write_heading(drawn, title, describe(model) if caption is None else caption, left)
        corner = (width - right + 0.12, height - top + 0.05) if beside else (left, height - top - body - 0.46)
        _write_legend(drawn, entries, legend_columns, corner, bool(panels) and model.density is not None)
        for line, text in enumerate(small_print):
            y = 0.1 + 0.145 * (len(small_print) - 1 - line)
            drawn.text(left / width, y / height, text, size=7, color=_FAINT_INK, va="bottom")
        return drawn


def svg(model: ClusterModel, **options: Unpack[Options]) -> str:
    """The picture `figure` draws, with its options, as an SVG document whose text is text."""
    with _settings():
        metadata = {"Date": None, "Creator": "sfumato", "Title": _plain(options.get("title", ""))}
        document = io.StringIO()
        figure(model, **options).savefig(document, format="svg", metadata=metadata)
        return document.getvalue()


def png(model: ClusterModel, *, dots_per_inch: int = 150, **options: Unpack[Options]) -> bytes:
    """The picture `figure` draws, with its options, as a PNG file's bytes, 8 * dots_per_inch pixels wide."""
    with _settings():
        image = io.BytesIO()
        figure(model, **options).savefig(image, format="png", dpi=dots_per_inch, metadata={"Software": None})
        return image.getvalue()


@contextmanager
def _settings() -> Iterator[None]:
    """Matplotlib's settings for our pictures, held by one thread at a time."""
    import matplotlib

    ours: dict[Any, Any] = {
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # the first comes with matplotlib
        "font.size": 8.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "sfumato",
        "text.parse_math": False,  # a name is a name, with or without dollar signs
        "text.color": _INK,
        "axes.edgecolor": "#999999",
        "axes.labelcolor": _INK,
        "axes.linewidth": 0.7,
        "xtick.color": "#999999",
        "ytick.color": "#999999",
        "xtick.labelcolor": _FAINT_INK,
        "ytick.labelcolor": _FAINT_INK,
    }
    with _LOCK, matplotlib.rc_context(ours), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box, or the viewer's own font
        yield


# ---- what is written ----


def _plain(text: str) -> str:
    """Text that an XML document may hold."""
    return _NOT_IN_XML.sub("\ufffd", text)


def _axis_label(feature: Feature) -> str:
    return _plain(f"{feature.name} ({feature.unit})" if feature.unit else feature.name)


def _legend_entries(model: ClusterModel, names: Sequence[str]) -> list[tuple[str | None, str]]:
    """(colour, text) of each line of the legend."""
    entries: list[tuple[str | None, str]] = []
    for cluster in range(min(model.n_clusters, _MAX_LEGEND_ENTRIES)):
        name = f"{names[cluster]}, " if cluster < len(names) and names[cluster] else ""
        entries.append((colour(cluster)[1], _plain(f"{cluster}  {name}{share(model, cluster)}")))
    if model.n_clusters > _MAX_LEGEND_ENTRIES:
        entries.append((None, f"and {model.n_clusters - _MAX_LEGEND_ENTRIES} more"))
    return entries


def _legend_columns(entries: Sequence[tuple[str | None, str]]) -> int:
    longest = max(len(text) for _, text in entries)
    return max(1, min(4, len(entries), int(7.2 / (0.067 * longest + 0.36))))


def _small_print(model: ClusterModel) -> list[str]:
    lines = [line for warning in model.warnings for line in textwrap.wrap(_plain(warning), 132)]
    if len(lines) > _MAX_SMALL_PRINT_LINES:
        lines = [*lines[: _MAX_SMALL_PRINT_LINES - 1], "More warnings stand in the result."]
    return lines


def _write_heading(drawn: "Figure", title: str, caption: str, left: float) -> None:
    width, height = drawn.get_size_inches()
    if title:
        shown = textwrap.shorten(_plain(title), 80, placeholder=" …")
        drawn.text(left / width, 1 - 0.17 / height, shown, size=12, weight="bold", va="top")
    text = textwrap.shorten(_plain(caption), 120, placeholder=" …")
    drawn.text(left / width, 1 - (0.43 if title else 0.17) / height, text, size=9, color=_FAINT_INK, va="top")


def _write_legend(
    drawn: "Figure",
    entries: Sequence[tuple[str | None, str]],
    columns: int,
    corner: tuple[float, float],
    shaded: bool,
) -> None:
    """`corner` is the legend's upper left, in inches from the figure's lower left."""
    from matplotlib.patches import Patch

    width, height = drawn.get_size_inches()
    legend = drawn.legend(
        handles=[Patch(facecolor=shade or "none", label=text) for shade, text in entries],
        title="Share of people ± standard error" + (";  darker: more people" if shaded and columns > 1 else ""),
        loc="upper left",
        bbox_to_anchor=(corner[0] / width, corner[1] / height),
        ncols=columns,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=1.2,
        columnspacing=1.6,
        alignment="left",
    )
    legend.get_title().set_color(_FAINT_INK)


# ---- what is drawn ----


def _planes(model: ClusterModel) -> list[tuple[int, int]]:
    """The pairs (across, up) of features to map; none for a single feature, nor for codes, which have no places."""
    if model.encoding is not None:
        return []
    names = [feature.name.lower() for feature in model.features]
    if len(names) == 2:
        swapped = names[0].startswith("lat") and names[1].startswith("lon")
        return [(1, 0)] if swapped else [(0, 1)]
    chosen = range(len(names))
    if len(names) > _MAX_PAIRED_FEATURES and model.centroids is not None:
        ranges = np.array([feature.upper - feature.lower for feature in model.features])
        spread = (model.centroids / ranges).var(axis=0)
        chosen = sorted(np.argsort(-spread, kind="stable")[:_MAX_PAIRED_FEATURES].tolist())  # type: ignore[assignment]
    return list(combinations(chosen, 2))


def _is_map(features: Sequence[Feature], plane: tuple[int, int]) -> bool:
    across, up = (features[axis].name.lower() for axis in plane)
    return across in ("longitude", "lon", "lng", "long") and up in ("latitude", "lat")


def _aspect(features: Sequence[Feature], plane: tuple[int, int]) -> float:
    """Width over height of a plane's panel."""
    across, up = (features[axis] for axis in plane)
    ratio = (across.upper - across.lower) / (up.upper - up.lower)
    if _is_map(features, plane):
        middle = math.radians((up.lower + up.upper) / 2)
        return float(np.clip(ratio * math.cos(middle), 0.5, 4.0))
    return float(np.clip(ratio, 0.75, 2.5)) if across.unit == up.unit and len(features) == 2 else 1.2


def _draw_map(axes: "Axes", model: ClusterModel, plane: tuple[int, int], outlines: Sequence[ArrayLike]) -> None:
    from matplotlib.collections import LineCollection

    across, up = (model.features[axis] for axis in plane)
    cells = plane_cells(model, plane)
    if cells is not None:
        labels, density = cells
        axes.imshow(
            shaded(labels, density).swapaxes(0, 1),
            extent=(across.lower, across.upper, up.lower, up.upper),
            origin="lower",
            aspect="auto",
            interpolation="none",
        )
        lines = borders(labels)
        if len(lines) <= _MAX_BORDER_LINES:  # more would cover the map
            edges = list(unscale_many((across, up), lines.reshape(-1, 2)).reshape(-1, 2, 2))
            axes.add_collection(LineCollection(edges, colors="white", linewidths=1.6, capstyle="projecting"))
            axes.add_collection(LineCollection(edges, colors="#444444", linewidths=0.7, capstyle="projecting"))
    if outlines:
        coasts = [np.asarray(line, dtype=np.float64)[:, list(plane)] for line in outlines]
        axes.add_collection(LineCollection(coasts, colors="#555555", linewidths=0.35))
    if model.centroids is not None:
        apart, seats = _seats(model, model.centroids)
        axes.plot(*model.centroids[apart][:, list(plane)].T, "+", ms=6, mew=1.2, color=_INK, zorder=3)
        _draw_numbers(axes, seats[:, list(plane)])
    axes.set_xlim(across.lower, across.upper)
    axes.set_ylim(up.lower, up.upper)
    axes.set_xlabel(_axis_label(across))
    axes.set_ylabel(_axis_label(up))
    if _is_map(model.features, plane):
        axes.xaxis.set_major_formatter(lambda degrees, _: _degrees(degrees, "W", "E"))
        axes.yaxis.set_major_formatter(lambda degrees, _: _degrees(degrees, "S", "N"))
        axes.locator_params(axis="x", nbins=8 if _aspect(model.features, plane) > 1.6 else 6)
    axes.tick_params(length=3, width=0.7)


def _degrees(value: float, negative: str, positive: str) -> str:
    return f"{abs(value):g}°{negative if value < 0 else positive if value > 0 else ''}"


def _seats(model: ClusterModel, centres: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which centres lie outside their own cluster, as a ring's does, and where each number goes.

    A number sits at the centre, or in its cluster's densest cell where the centre lies outside.
    """
    apart = model.assign(centres) != np.arange(model.n_clusters)
    seats = unscale_many(model.features, scale_many(model.features, centres))  # clipped to the bounds
    if model.label_map is not None and model.density is not None:
        for cluster in np.flatnonzero(apart):
            densest = np.where(model.label_map == cluster, model.density, -1.0).argmax()
            cell = np.unravel_index(densest, model.label_map.shape)
            seats[cluster] = unscale_many(model.features, (np.array(cell) + 0.5) / model.label_map.shape)
    return apart, seats


def _draw_numbers(axes: "Axes", seats: NDArray[np.float64]) -> None:
    for cluster, (x, y) in reversed(list(enumerate(seats.tolist()))):  # the largest cluster lies on top
        edge = colour(cluster)[1]
        axes.plot([x], [y], "o", ms=11, mfc="white", mec=edge, mew=1.8, clip_on=False, zorder=4)
        axes.text(x, y, str(cluster), size=7, weight="bold", ha="center", va="center_baseline", zorder=5)


def _draw_line(axes: "Axes", model: ClusterModel) -> None:
    """One feature: density over its range, each segment in its cluster's colour."""
    (feature,) = model.features
    top = 1.0
    if model.label_map is not None:
        n_cells = len(model.label_map)
        cells = np.full(n_cells, 1 / n_cells) if model.density is None else model.density
        heights = cells * n_cells / (feature.upper - feature.lower)
        top = float(heights.max()) or 1.0
        edges = np.linspace(feature.lower, feature.upper, n_cells + 1)
        for cluster in range(model.n_clusters):
            inside = np.where(model.label_map == cluster, heights, 0.0)
            axes.stairs(inside, edges, fill=True, color=colour(cluster)[1], alpha=0.65, linewidth=0)
        axes.stairs(heights, edges, color=_INK, linewidth=0.9)
    if model.centroids is not None:
        axes.vlines(model.centroids[:, 0], 0, top * 1.09, colors=_FAINT_INK, linewidths=0.7, linestyles="dotted")
        _draw_numbers(axes, np.column_stack([model.centroids[:, 0], np.full(model.n_clusters, top * 1.09)]))
    axes.set_xlim(feature.lower, feature.upper)
    axes.set_ylim(0, top * 1.18)
    axes.set_xlabel(_axis_label(feature))
    axes.set_ylabel("density (share of people per unit)" if model.label_map is not None else "")
    axes.tick_params(length=3, width=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_sizes(axes: "Axes", model: ClusterModel) -> None:
    """Shares of people as bars, where there is no map to draw."""
    from matplotlib.ticker import MaxNLocator

    axes.bar(
        np.arange(model.n_clusters),
        100 * model.sizes,
        yerr=100 * np.nan_to_num(model.size_errors),
        color=[colour(cluster)[1] for cluster in range(model.n_clusters)],
        error_kw={"ecolor": _INK, "elinewidth": 0.9},
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(-0.6, model.n_clusters - 0.4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cluster")
    axes.set_ylabel("share of people (%)")
    axes.tick_params(length=3, width=0.7)
    axes.spines[["top", "right"]].set_visible(False)
