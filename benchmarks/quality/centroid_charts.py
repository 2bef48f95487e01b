"""Pictures of the centroids' results: RMSE against epsilon with the information bound, and NICV over k-means'."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.quality.centroid_methods import K_MEANS, METHODS, ONE_CENTRE, TABLE
from benchmarks.quality.centroid_rows import CentroidSummary
from benchmarks.quality.style import FAINT_INK, INK, LINE, Stroke, heading, save, settings
from sfumato.shading import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RMSE_TITLE, NICV_TITLE = "Centroids by privacy: clear blobs", "Centroids by privacy: spread left in the clusters"
RMSE_CAPTION = (
    "RMSE of a coordinate, a share of its range, against ε per person; mean over seeds, shaded: ± one deviation"
)
NICV_CAPTION = "NICV over that of the non-private k-means, against ε per person; mean over seeds"
BOUND = "information bound: no unbiased private estimate is below"
PANEL_WIDTH, PANEL_HEIGHT, GAP_X, GAP_Y = 1.75, 1.6, 0.45, 0.5
LEFT, RIGHT, BOTTOM = 0.6, 0.12, 0.5
MAX_COLUMNS, LEGEND_COLUMNS, LEGEND_LINE = 4, 4, 0.17
MOST_NICV = 30.0  # what is above is drawn at the edge
_SHOWN = ("ours", "comparator")
_LESS = ("auto",)  # stands for another


def write(folder: Path, summaries: Sequence[CentroidSummary]) -> list[Path]:
    """Write centroids-rmse and centroids-nicv, each as SVG and PNG, where there is anything to draw.

    Returns
    -------
    list of Path
        Without endings.
    """
    private = _of_lines([s for s in summaries if s.method in strokes() and s.rmse is not None])
    known = [s for s in private if s.bound is not None]
    written = []
    with settings():
        if known:
            written.append(folder / "centroids-rmse")
            save(_figure(known, RMSE_TITLE, RMSE_CAPTION, _rmse_panel, BOUND), written[-1])
        if private:
            written.append(folder / "centroids-nicv")
            ones = [s for s in summaries if s.method == ONE_CENTRE]

            def panel(axes: "Axes", group: Sequence[CentroidSummary]) -> None:
                _nicv_panel(axes, group, [s for s in ones if (s.set, s.n) == (group[0].set, group[0].n)])

            save(_figure(private, NICV_TITLE, NICV_CAPTION, panel, "one centre at the mean"), written[-1])
    return written


def _of_lines(summaries: Sequence[CentroidSummary]) -> list[CentroidSummary]:
    """Those of sets that were run at two epsilons or more: one alone makes no line."""
    epsilons: dict[tuple[str, int], set[float | None]] = {}
    for s in summaries:
        epsilons.setdefault((s.set, s.n), set()).add(s.epsilon)
    return [s for s in summaries if len(epsilons[s.set, s.n]) > 1]


def strokes() -> dict[str, Stroke]:
    """The line of every private method that is drawn."""
    shown = [method for method in TABLE if method.kind in _SHOWN and method.name not in _LESS]
    found = {}
    for place, method in enumerate(shown):
        colour = PALETTE[place % len(PALETTE)][1]
        ours = method.kind == "ours"
        found[method.name] = Stroke(
            colour, "solid" if ours else (0, (1, 1.4)), 1.7 if ours else 1.2, "o" if ours else "^", 4 if ours else 3
        )
    return found


def _figure(
    summaries: Sequence[CentroidSummary],
    title: str,
    caption: str,
    draw: Callable[["Axes", Sequence[CentroidSummary]], None],
    reference: str,
) -> Figure:
    panels = list(dict.fromkeys((s.set, s.n, s.mark) for s in summaries))
    styles = {name: stroke for name, stroke in strokes().items() if any(s.method == name for s in summaries)}
    top = 0.66 + LEGEND_LINE * math.ceil((len(styles) + 1) / LEGEND_COLUMNS) + 0.22
    columns = min(MAX_COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    width = max(8.0, LEFT + columns * PANEL_WIDTH + (columns - 1) * GAP_X + RIGHT)
    height = top + lines * PANEL_HEIGHT + (lines - 1) * GAP_Y + BOTTOM
    picture = Figure(figsize=(width, height), facecolor="white")
    epsilons = sorted({s.epsilon for s in summaries if s.epsilon is not None})
    for place, (name, n, mark) in enumerate(panels):
        row, column = divmod(place, columns)
        x = LEFT + column * (PANEL_WIDTH + GAP_X)
        y = height - top - (row + 1) * PANEL_HEIGHT - row * GAP_Y
        axes = picture.add_axes((x / width, y / height, PANEL_WIDTH / width, PANEL_HEIGHT / height))
        draw(axes, [s for s in summaries if (s.set, s.n) == (name, n)])
        axes.set_title(f"{name}{mark} · {n:,}", size=8, loc="left", pad=3, color=INK)
        _frame(axes, epsilons, lowest=place + columns >= len(panels))
    heading(picture, title, caption)
    _legend(picture, styles, reference, (LEFT / width, 1 - 0.62 / height))
    return picture


def _rmse_panel(axes: "Axes", group: Sequence[CentroidSummary]) -> None:
    bounds = sorted({(s.epsilon, s.bound) for s in group if s.epsilon is not None and s.bound is not None})
    axes.plot([e for e, _ in bounds], [b for _, b in bounds], color=INK, linewidth=1.4, linestyle=(0, (5, 2)), zorder=5)
    for name, stroke in strokes().items():
        line = sorted((s.epsilon or 0.0, s.rmse or 0.0, s.rmse_sd or 0.0) for s in group if s.method == name)
        _line(axes, [e for e, _, _ in line], [mean for _, mean, _ in line], stroke)
        if METHODS[name].kind == "ours" and line:
            low = [max(mean - deviation, mean / 10) for _, mean, deviation in line]
            high = [mean + deviation for _, mean, deviation in line]
            axes.fill_between(
                [e for e, _, _ in line], low, high, color=stroke.colour, alpha=0.13, linewidth=0, zorder=1
            )
    axes.set_ylim(3e-4, 0.6)


def _nicv_panel(axes: "Axes", group: Sequence[CentroidSummary], ones: Sequence[CentroidSummary]) -> None:
    for one in ones:
        axes.axhline(min(one.nicv_ratio or 1.0, MOST_NICV), color=LINE, linewidth=3, alpha=0.45, zorder=1)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=2)
    for name, stroke in strokes().items():
        line = sorted((s.epsilon or 0.0, min(s.nicv_ratio or 0.0, MOST_NICV)) for s in group if s.method == name)
        _line(axes, [e for e, _ in line], [ratio for _, ratio in line], stroke)
    axes.set_ylim(0.93, MOST_NICV)


def _line(axes: "Axes", epsilons: Sequence[float], values: Sequence[float], stroke: Stroke) -> None:
    axes.plot(
        epsilons,
        values,
        color=stroke.colour,
        linestyle=stroke.dashes,
        linewidth=stroke.width,
        marker=stroke.marker,
        markersize=2.6,
        zorder=stroke.order,
    )


def _frame(axes: "Axes", epsilons: Sequence[float], *, lowest: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(epsilons[0] * 0.88, epsilons[-1] * 1.14)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(epsilons), [f"{epsilon:g}" for epsilon in epsilons] if lowest else [""] * len(epsilons))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=2.5, width=0.6, pad=2, labelsize=7.5)
    axes.tick_params(which="minor", length=1.5, width=0.4)
    axes.spines[["top", "right"]].set_visible(False)
    if lowest:
        axes.set_xlabel("ε", size=8, labelpad=1)


def _legend(picture: Figure, styles: dict[str, Stroke], reference: str, corner: tuple[float, float]) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=stroke.colour,
            linestyle=stroke.dashes,
            linewidth=stroke.width,
            marker=stroke.marker,
            markersize=3,
            label=name,
        )
        for name, stroke in styles.items()
    ]
    if reference == BOUND:
        handles.append(Line2D([], [], color=INK, linewidth=1.4, linestyle=(0, (5, 2)), label=BOUND))
    else:
        handles.append(Line2D([], [], color=LINE, linewidth=3, alpha=0.45, label=reference))
        handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (2, 2)), label=f"{K_MEANS}, not private"))
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=corner,
        ncols=LEGEND_COLUMNS,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=2.6,
        columnspacing=1.4,
        labelspacing=0.25,
        fontsize=7.5,
        labelcolor=FAINT_INK,
    )
