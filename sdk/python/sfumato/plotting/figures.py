"""Plots of a cluster model as a matplotlib figure, SVG or PNG: density, cluster borders and centres.

A plot uses only the released model and public geometry, so it costs no privacy budget. It needs
matplotlib (the extra `plot`), which the first plot loads. Equal arguments give equal bytes.
"""

import io
import math
import textwrap
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack, cast

from numpy.typing import ArrayLike

from sfumato.errors import InvalidSpec
from sfumato.model.category_maps import CategoryMap, category_maps
from sfumato.model.cluster_model import ClusterModel
from sfumato.plotting.drawing import (
    CONFIDENCE,
    FAINT_INK,
    INK,
    aspect,
    draw_line,
    draw_map,
    draw_sizes,
    heights_of,
    shows_ellipses,
)
from sfumato.plotting.shading import colour, common_scale, planes, to_xml_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LEGEND_ENTRIES = 24
_MAX_SMALL_PRINT_LINES = 8


class HasModel(Protocol):
    """A result of a job, by its model."""

    @property
    def model(self) -> ClusterModel:
        """Return the released model."""


_LOCK = threading.RLock()  # matplotlib's settings are global, so one thread draws at a time


class Options(TypedDict, total=False):
    """The options that `svg` and `png` pass on to `plot`."""

    title: str
    caption: str | None
    names: Sequence[str]
    outlines: Sequence[ArrayLike] | None


def share(model: ClusterModel, cluster: int) -> str:
    """Return a cluster's share of people with its standard error, such as '31.2 ± 0.1 %'."""
    return format_share(float(model.sizes[cluster]), float(model.size_errors[cluster]))


def format_share(size: float, error: float) -> str:
    """Return a share in [0, 1] with its standard error, such as '31.2 ± 0.1 %'."""
    size, error = 100 * size, 100 * error
    if not math.isfinite(error):
        return f"{size:.1f} %"
    decimals = 1 if error >= 0.05 else 2
    return f"{size:.{decimals}f} ± {error:.{decimals}f} %"


def describe(model: ClusterModel, *, epsilon: float | None = None, n_reports: int | None = None) -> str:
    """Return the default caption: number of clusters, cost, number of reports, share outside, verdict.

    The default of `n_reports` is the number in the model's diagnostics. The cost of reports is that of an installation,
    since a person with two devices spends twice; without reports it is that of a person.
    """
    n_reports = model.diagnostics.get("n_reports") if n_reports is None else n_reports
    parts = ["1 cluster" if model.n_clusters == 1 else f"{model.n_clusters} clusters"]
    if epsilon is not None:
        parts.append(f"ε = {epsilon:g} per {'person' if n_reports is None else 'installation'}")
    if n_reports is not None:
        parts.append(f"{n_reports:,} reports")
    if model.outside_share is not None:
        parts.append(f"outside: {format_share(model.outside_share, model.outside_share_error or 0.0)}")
    parts.append(f"verdict: {model.verdict.value}")
    return " · ".join(parts)


def plot(
    model: ClusterModel | HasModel,
    ax: "Axes | None" = None,
    *,
    title: str = "",
    caption: str | None = None,
    names: Sequence[str] = (),
    outlines: Sequence[ArrayLike] | None = None,
) -> "Figure":
    """Plot a cluster model. The numbers are the labels that `ClusterModel.assign` returns.

    One feature gives a line of the density over coloured segments. Two features give a map.
    Longitude and latitude have their true proportion at the middle latitude, with coasts,
    graticule and scale. More features give a map for each pair of the four features in which the
    centres differ most; each cell has the colour of the cluster with most people there. Ellipses
    contain the centres with 95 % confidence, as far as the noise is concerned. If an attribute formed the
    clusters of a label map, each of its categories has a map, and all maps have one scale of tones.

    Parameters
    ----------
    model : ClusterModel or Result
    ax : matplotlib.axes.Axes, optional
        Axes for the first panel alone, without caption and legend. The default is a new figure.
    title : str
        Heading of the plot.
    caption : str, optional
        Line below the title. The default is `describe(model)`.
    names : sequence of str, optional
        Names of the clusters in the legend, in the order of the clusters. The default is those of the model.
    outlines : sequence of array-like of shape (n, 2)
        Public lines on a map of two features, in the features' order and units. The default is
        the coastlines if the features are longitude and latitude in degrees.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of `ax`, or a new one that is eight inches wide and not registered with pyplot.

    Raises
    ------
    InvalidSpec
        `model` is neither a model nor a result.
    """
    if not isinstance(model, ClusterModel):
        if not hasattr(model, "model"):
            raise InvalidSpec("plot needs a model or a result: for a job, give job.result()")
        model = model.model
    maps = category_maps(model)
    over = maps[0].model.features
    no_plane: list[tuple[int, int] | None] = [None]
    panels = [(each, plane) for each in maps for plane in planes(each.model) or no_plane]
    outlines = outlines if len(over) == 2 else None
    first = panels[0][1]
    if ax is not None:
        with settings():
            _draw_panel(ax, maps[0].model, first, outlines, maps)
            ax.set_title(to_xml_text(title))
            return cast("Figure", ax.get_figure(root=True))
    with settings():
        from matplotlib.figure import Figure

        entries = _legend_entries(model, names or model.names)
        small_print = _small_print(model)
        columns = min(len(panels), 3)
        ratio = aspect(over, first) if first else 2.4 / columns
        rows = math.ceil(len(panels) / columns)
        legend_at_right = columns == 1 and ratio < 1.6  # a narrow plot has room for the legend on its right
        width, left, right, gap = 8.0, 0.8, 2.4 if legend_at_right else 0.2, 0.78
        gap += 0.2 if len(maps) > 1 else 0.0  # the heading of a panel
        panel_width = (width - left - right - gap * (columns - 1)) / columns
        panel_height = panel_width / ratio
        top = (0.72 if title else 0.46) + (0.2 if len(maps) > 1 else 0.0)
        legend_columns = 1 if legend_at_right else _legend_columns(entries)
        legend_height = 0.19 * (math.ceil(len(entries) / legend_columns) + 1)
        bottom = 0.5 + (0 if legend_at_right else legend_height) + 0.145 * len(small_print) + 0.05
        body = rows * panel_height + (rows - 1) * gap
        if legend_at_right:
            body = max(body, legend_height)
        height = top + body + bottom
        figure = Figure(figsize=(width, height), facecolor="white")
        for place, (panel, plane) in enumerate(panels):
            row, column = divmod(place, columns)
            x = left + column * (panel_width + gap)
            y = height - top - (row + 1) * panel_height - row * gap
            axes = figure.add_axes((x / width, y / height, panel_width / width, panel_height / height))
            _draw_panel(axes, panel.model, plane, outlines, maps)
            if panel.category is not None:
                axes.set_title(to_xml_text(f"{panel.attribute} = {panel.category}"), size=9)
        _write_heading(figure, title, describe(model) if caption is None else caption, left)
        corner = (width - right + 0.12, height - top + 0.05) if legend_at_right else (left, height - top - body - 0.46)
        _write_legend(figure, entries, legend_columns, corner, first is not None and model.density is not None)
        for line, text in enumerate(small_print):
            y = 0.1 + 0.145 * (len(small_print) - 1 - line)
            figure.text(left / width, y / height, text, size=7, color=FAINT_INK, va="bottom")
        return figure


def _draw_panel(
    axes: "Axes",
    model: ClusterModel,
    plane: tuple[int, int] | None,
    outlines: Sequence[ArrayLike] | None,
    maps: Sequence[CategoryMap] = (),
) -> None:
    """Draw a model. With several `maps`, the scale is that of all of them."""
    are_several = len(maps) > 1
    if not model.n_clusters:
        draw_sizes(axes, model)
    elif plane is None:
        draw_line(axes, model, max(heights_of(each.model).max() for each in maps) if are_several else 0.0)
    else:
        draw_map(axes, model, plane, outlines, common_scale(maps, plane) if are_several else None)


class Panel(NamedTuple):
    """A model of a figure with several: its heading, its number of reports, and the names of its clusters."""

    model: ClusterModel
    title: str
    n_reports: int | None = None
    names: Sequence[str] = ()


def plot_beside(panels: Sequence[Panel], *, title: str = "") -> "Figure":
    """Plot models of the same features side by side, each with its own caption and legend.

    The figure is six inches wide for each model. Raise InvalidSpec if an attribute formed the clusters of a label map.
    """
    if any(len(category_maps(panel.model)) > 1 for panel in panels):
        raise InvalidSpec("clusters that an attribute formed have several maps: plot each result alone")
    with settings():
        from matplotlib.figure import Figure

        plane = planes(panels[0].model)
        high = 5.0 / (aspect(panels[0].model.features, plane[0]) if plane else 2.4)
        legends = [_legend_entries(each.model, each.names or each.model.names) for each in panels]
        low = 0.7 + 0.19 * (1 + max(math.ceil(len(each) / 2) for each in legends))  # axis labels and the legend
        width, height = 6.0 * len(panels), low + high + 0.85
        figure = Figure(figsize=(width, height), facecolor="white")
        figure.text(0.7 / width, 1 - 0.15 / height, to_xml_text(title), size=13, weight="bold", va="top")
        for place, (panel, entries) in enumerate(zip(panels, legends, strict=True)):
            left = 0.7 + 6.0 * place
            axes = figure.add_axes((left / width, low / height, 5.0 / width, high / height))
            _draw_panel(axes, panel.model, next(iter(planes(panel.model)), None), None)
            axes.set_title(f"{to_xml_text(panel.title)}\n{describe(panel.model, n_reports=panel.n_reports)}")
            _write_legend(figure, entries, 2, (left, low - 0.5), shaded=panel.model.density is not None)
        return figure


def svg(model: ClusterModel, **options: Unpack[Options]) -> str:
    """Return the plot as an SVG document that keeps its text as text. The options are those of `plot`."""
    with settings():
        metadata = {"Date": None, "Creator": "sfumato", "Title": to_xml_text(options.get("title", ""))}
        document = io.StringIO()
        plot(model, **options).savefig(document, format="svg", metadata=metadata)
        return document.getvalue()


def png(model: ClusterModel, *, dots_per_inch: int = 150, **options: Unpack[Options]) -> bytes:
    """Return the plot as a PNG file, 8 * dots_per_inch pixels wide. The options are those of `plot`."""
    with settings():
        image = io.BytesIO()
        plot(model, **options).savefig(image, format="png", dpi=dots_per_inch, metadata={"Software": None})
        return image.getvalue()


@contextmanager
def settings() -> Iterator[None]:
    """Apply the plot's matplotlib settings while one thread draws."""
    import matplotlib

    settings: dict[Any, Any] = {
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # the first comes with matplotlib
        "font.size": 8.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "sfumato",
        "text.parse_math": False,  # show dollar signs in names as they are
        "text.color": INK,
        "axes.edgecolor": "#999999",
        "axes.labelcolor": INK,
        "axes.linewidth": 0.7,
        "xtick.color": "#999999",
        "ytick.color": "#999999",
        "xtick.labelcolor": FAINT_INK,
        "ytick.labelcolor": FAINT_INK,
    }
    with _LOCK, matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font"
        )  # the viewer shows a box or uses another font
        yield


# ---- text ----


def _legend_entries(model: ClusterModel, names: Sequence[str]) -> list[tuple[str | None, str]]:
    """Return (colour, text) of each line of the legend."""
    entries: list[tuple[str | None, str]] = []
    for cluster in range(min(model.n_clusters, _MAX_LEGEND_ENTRIES)):
        name = f"{names[cluster]}, " if cluster < len(names) and names[cluster] else ""
        entries.append((colour(cluster)[1], to_xml_text(f"{cluster}  {name}{share(model, cluster)}")))
    if model.n_clusters > _MAX_LEGEND_ENTRIES:
        entries.append((None, f"and {model.n_clusters - _MAX_LEGEND_ENTRIES} more"))
    return entries


def _legend_columns(entries: Sequence[tuple[str | None, str]]) -> int:
    longest = max((len(text) for _, text in entries), default=1)
    return max(1, min(4, len(entries), int(7.2 / (0.067 * longest + 0.36))))


def _small_print(model: ClusterModel) -> list[str]:
    lines = []
    if shows_ellipses(model):
        what = "Bars at" if len(category_maps(model)[0].model.features) == 1 else "Ellipses about"
        lines.append(f"{what} centres contain them with {CONFIDENCE:.0%} confidence, as far as the noise is concerned.")
    lines += [line for warning in model.warnings for line in textwrap.wrap(to_xml_text(warning), 132)]
    if len(lines) > _MAX_SMALL_PRINT_LINES:
        lines = [*lines[: _MAX_SMALL_PRINT_LINES - 1], "The result has more warnings."]
    return lines


def _write_heading(figure: "Figure", title: str, caption: str, left: float) -> None:
    width, height = figure.get_size_inches()
    if title:
        shown = textwrap.shorten(to_xml_text(title), 80, placeholder=" …")
        figure.text(left / width, 1 - 0.17 / height, shown, size=12, weight="bold", va="top")
    text = textwrap.shorten(to_xml_text(caption), 120, placeholder=" …")
    figure.text(left / width, 1 - (0.43 if title else 0.17) / height, text, size=9, color=FAINT_INK, va="top")


def _write_legend(
    figure: "Figure",
    entries: Sequence[tuple[str | None, str]],
    columns: int,
    corner: tuple[float, float],
    shaded: bool,
) -> None:
    """Draw the legend. `corner` is its upper left corner, in inches from the figure's lower left corner."""
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    legend = figure.legend(
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
