"""Pictures of a cluster model: density, cluster borders and centres, as SVG or PNG.

Everything drawn comes from the released model and from public geometry, so a picture costs
no privacy. Matplotlib is needed (the extra `plot`) and is loaded by the first picture.
Equal arguments give equal bytes.
"""

import io
import math
import textwrap
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from numpy.typing import ArrayLike

from sfumato.cluster_model import ClusterModel
from sfumato.drawing import (
    CONFIDENCE,
    FAINT_INK,
    INK,
    aspect,
    draw_line,
    draw_map,
    draw_sizes,
    shows_ellipses,
)
from sfumato.shading import colour, planes, written

if TYPE_CHECKING:  # loaded inside the functions: a device never pays for it
    from matplotlib.figure import Figure

_MAX_LEGEND_ENTRIES = 24
_MAX_SMALL_PRINT_LINES = 8

_LOCK = threading.RLock()  # matplotlib's settings are the process's; pictures are drawn one at a time


class Options(TypedDict, total=False):
    """What `svg` and `png` take like `figure`."""

    title: str
    caption: str | None
    names: Sequence[str]
    outlines: Sequence[ArrayLike] | None


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
    outlines: Sequence[ArrayLike] | None = None,
) -> "Figure":
    """Draw a model; the numbers are the labels `ClusterModel.assign` gives.

    One feature: the density as a line over coloured segments. Two: a map, longitude and
    latitude in their true proportion at the middle latitude, with coasts, graticule and
    scale. More: a map of each pair of features (the four the centres differ in most), each
    cell coloured by the cluster that has most people there. Codes: their sizes as bars.
    Ellipses about centres hold them with 95 % confidence, as far as the noise goes.

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
        Public lines drawn over a map of two features, in their order and units. Left out, the
        world's coasts, where the features are longitude and latitude in degrees.

    Returns
    -------
    matplotlib.figure.Figure
        Eight inches wide, not registered with pyplot.
    """
    with _settings():
        from matplotlib.figure import Figure

        entries = _legend_entries(model, names)
        small_print = _small_print(model)
        panels = planes(model)
        ratio = aspect(model.features, panels[0]) if panels else 2.4
        columns = min(len(panels), 3) or 1
        rows = math.ceil(len(panels) / columns) or 1
        beside = columns == 1 and ratio < 1.6  # a narrow picture leaves room for the legend on its right
        width, left, right, gap = 8.0, 0.8, 2.4 if beside else 0.2, 0.78
        panel_width = (width - left - right - gap * (columns - 1)) / columns
        panel_height = panel_width / ratio
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
            if model.encoding is not None or not model.n_clusters:
                draw_sizes(axes, model)
            elif panel is None:
                draw_line(axes, model)
            else:
                draw_map(axes, model, panel, outlines if len(model.features) == 2 else None)
        _write_heading(drawn, title, describe(model) if caption is None else caption, left)
        corner = (width - right + 0.12, height - top + 0.05) if beside else (left, height - top - body - 0.46)
        _write_legend(drawn, entries, legend_columns, corner, bool(panels) and model.density is not None)
        for line, text in enumerate(small_print):
            y = 0.1 + 0.145 * (len(small_print) - 1 - line)
            drawn.text(left / width, y / height, text, size=7, color=FAINT_INK, va="bottom")
        return drawn


def svg(model: ClusterModel, **options: Unpack[Options]) -> str:
    """The picture `figure` draws, with its options, as an SVG document whose text is text."""
    with _settings():
        metadata = {"Date": None, "Creator": "sfumato", "Title": written(options.get("title", ""))}
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
        "text.color": INK,
        "axes.edgecolor": "#999999",
        "axes.labelcolor": INK,
        "axes.linewidth": 0.7,
        "xtick.color": "#999999",
        "ytick.color": "#999999",
        "xtick.labelcolor": FAINT_INK,
        "ytick.labelcolor": FAINT_INK,
    }
    with _LOCK, matplotlib.rc_context(ours), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box, or the viewer's own font
        yield


# ---- what is written ----


def _legend_entries(model: ClusterModel, names: Sequence[str]) -> list[tuple[str | None, str]]:
    """(colour, text) of each line of the legend."""
    entries: list[tuple[str | None, str]] = []
    for cluster in range(min(model.n_clusters, _MAX_LEGEND_ENTRIES)):
        name = f"{names[cluster]}, " if cluster < len(names) and names[cluster] else ""
        entries.append((colour(cluster)[1], written(f"{cluster}  {name}{share(model, cluster)}")))
    if model.n_clusters > _MAX_LEGEND_ENTRIES:
        entries.append((None, f"and {model.n_clusters - _MAX_LEGEND_ENTRIES} more"))
    return entries


def _legend_columns(entries: Sequence[tuple[str | None, str]]) -> int:
    longest = max((len(text) for _, text in entries), default=1)
    return max(1, min(4, len(entries), int(7.2 / (0.067 * longest + 0.36))))


def _small_print(model: ClusterModel) -> list[str]:
    lines = []
    if shows_ellipses(model) and model.encoding is None:
        what = "Bars at" if len(model.features) == 1 else "Ellipses about"
        lines.append(f"{what} centres hold them with {CONFIDENCE:.0%} confidence, as far as the noise goes.")
    lines += [line for warning in model.warnings for line in textwrap.wrap(written(warning), 132)]
    if len(lines) > _MAX_SMALL_PRINT_LINES:
        lines = [*lines[: _MAX_SMALL_PRINT_LINES - 1], "More warnings stand in the result."]
    return lines


def _write_heading(drawn: "Figure", title: str, caption: str, left: float) -> None:
    width, height = drawn.get_size_inches()
    if title:
        shown = textwrap.shorten(written(title), 80, placeholder=" …")
        drawn.text(left / width, 1 - 0.17 / height, shown, size=12, weight="bold", va="top")
    text = textwrap.shorten(written(caption), 120, placeholder=" …")
    drawn.text(left / width, 1 - (0.43 if title else 0.17) / height, text, size=9, color=FAINT_INK, va="top")


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
    legend.get_title().set_color(FAINT_INK)
