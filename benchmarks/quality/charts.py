"""Charts of a measure against epsilon: one panel per data set, one line per method, and reference lines."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.output import FAINT_INK, INK, LINE, add_heading, chart_settings, save
from benchmarks.quality.runs import Method
from benchmarks.quality.tables import epsilons_of, sets_of
from sfumato.plotting.shading import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_COLUMNS, LEGEND_COLUMNS = 4, 4
LEFT = 0.07  # share of the width
WIDE, DASHED, DOTTED = (
    {"color": LINE, "linewidth": 3, "alpha": 0.45, "zorder": 1},
    {"color": INK, "linewidth": 1.4, "linestyle": (0, (5, 2)), "zorder": 5},
    {"color": INK, "linewidth": 0.8, "linestyle": (0, (2, 2)), "zorder": 2},
)


@dataclass(frozen=True)
class Reference:
    """A line that methods are compared with: from the rows of a panel to a level, or to levels by epsilon."""

    label: str
    style: Mapping[str, Any]  # keywords of matplotlib's line
    values: Callable[[pd.DataFrame], "float | pd.Series"]


@dataclass(frozen=True)
class Chart:
    """A chart of one measure."""

    file: str  # name without ending
    title: str
    caption: str
    measure: str
    limits: tuple[float, float]  # values above are drawn at the edge
    references: tuple[Reference, ...]
    is_log: bool = True
    has_bands: bool = True  # one standard deviation about the lines of our methods


def strokes(methods: Iterable[Method]) -> dict[str, dict[str, Any]]:
    """Return the line style of every private method; a paper's variant has the colour of the method of ours."""
    found: dict[str, dict[str, Any]] = {}
    colours: dict[str, str] = {}
    for method in methods:
        key = method.module if method.module not in colours or method.kind == "paper" else method.name
        colour = colours.setdefault(key, PALETTE[len(colours) % len(PALETTE)][1])
        styles = {"ours": ("solid", 1.9, "o", 4), "paper": ((0, (4, 2)), 1.1, "s", 3)}
        dashes, width, marker, order = styles.get(method.kind, ((0, (1, 1.4)), 1.3, "^", 2))
        found[method.name] = {
            "color": colour,
            "linestyle": dashes,
            "linewidth": width,
            "marker": marker,
            "zorder": order,
        }
    return found


def write(folder: Path, chart: Chart, summary: pd.DataFrame, methods: Sequence[Method]) -> None:
    """Write a chart of these methods as SVG and PNG, of the sets that were run at two epsilons or more."""
    epsilons = summary.groupby(["set", "n"]).epsilon.transform("nunique")
    summary = summary[(epsilons > 1) & summary[chart.measure].notna()]
    private = summary[summary.method.isin([method.name for method in methods])]
    if not private.empty:
        keys = private.set_index(["set", "n"]).index
        panels = summary[summary.set_index(["set", "n"]).index.isin(keys)]
        present = set(private.method)
        with chart_settings():
            save(figure(chart, panels, [method for method in methods if method.name in present]), folder / chart.file)


def figure(chart: Chart, summary: pd.DataFrame, methods: Sequence[Method]) -> Figure:
    """Draw a chart with a panel per data set."""
    panels, epsilons, lines = list(sets_of(summary)), epsilons_of(summary), strokes(methods)
    columns = min(MAX_COLUMNS, len(panels))
    n_rows = math.ceil(len(panels) / columns)
    top = 0.88 + 0.17 * math.ceil((len(lines) + len(chart.references)) / LEGEND_COLUMNS)
    width, height = max(8.0, 2.2 * columns), top + 2.1 * n_rows
    picture = Figure(figsize=(width, height), facecolor="white")
    spaces = {
        "left": LEFT,
        "right": 0.98,
        "bottom": 0.5 / height,
        "top": 1 - top / height,
        "hspace": 0.3,
        "wspace": 0.25,
    }
    grid = picture.subplots(n_rows, columns, squeeze=False, gridspec_kw=spaces)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for place, (axes, (name, n, group)) in enumerate(zip(grid.flat, panels, strict=False)):
        _draw_panel(axes, chart, group, methods, lines)
        axes.set_title(f"{name} · {n:,}", size=8, loc="left", pad=3, color=INK)
        _frame(axes, chart, epsilons, is_lowest=place + columns >= len(panels))
    add_heading(picture, chart.title, chart.caption)
    handles = [Line2D([], [], label=name, markersize=2.6, **style) for name, style in lines.items()]
    handles += [Line2D([], [], label=reference.label, **reference.style) for reference in chart.references]
    picture.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(LEFT, 1 - 0.62 / height), ncols=LEGEND_COLUMNS,
        frameon=False, borderpad=0, borderaxespad=0, handlelength=2.6, columnspacing=1.4, labelspacing=0.25,
        fontsize=7.5, labelcolor=FAINT_INK,
    )  # fmt: skip
    return picture


def _draw_panel(
    axes: "Axes", chart: Chart, group: pd.DataFrame, methods: Sequence[Method], lines: Mapping[str, Mapping[str, Any]]
) -> None:
    for reference in chart.references:
        values = reference.values(group)
        if isinstance(values, pd.Series):
            axes.plot(values.index, values, **reference.style)
        elif pd.notna(values):
            axes.axhline(min(values, chart.limits[1]), **reference.style)
    for method in methods:
        own = group[group.method == method.name].sort_values("epsilon")
        means = own[chart.measure].clip(upper=chart.limits[1])
        axes.plot(own.epsilon, means, markersize=2.6, **lines[method.name])
        if chart.has_bands and method.kind == "ours":
            deviations = own[f"{chart.measure}_sd"]
            lower = (means - deviations).clip(lower=means / 10 if chart.is_log else None)
            colour = lines[method.name]["color"]
            axes.fill_between(own.epsilon, lower, means + deviations, color=colour, alpha=0.13, linewidth=0, zorder=1)


def _frame(axes: "Axes", chart: Chart, epsilons: Sequence[float], *, is_lowest: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(epsilons[0] * 0.88, epsilons[-1] * 1.14)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(epsilons), [f"{epsilon:g}" if is_lowest else "" for epsilon in epsilons])
    if chart.is_log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(*chart.limits)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=2.5, width=0.6, pad=2, labelsize=7.5)
    axes.tick_params(which="minor", length=1.5, width=0.4)
    if is_lowest:
        axes.set_xlabel("ε", size=8, labelpad=1)


def level(method: str, measure: str) -> Callable[[pd.DataFrame], float]:
    """Return a function that finds the largest value of a measure of one method in a panel."""
    return lambda group: group[group.method == method][measure].max()


def curve(method: str | None, measure: str) -> Callable[[pd.DataFrame], "pd.Series"]:
    """Return a function that finds a measure by epsilon, of one method or of the first that has it."""
    return lambda group: (
        (group if method is None else group[group.method == method]).groupby("epsilon")[measure].first()
    )
