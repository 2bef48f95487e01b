"""ARI against epsilon: one panel a set, one line a method, the best ceiling above them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from benchmarks.quality.methods import METHODS
from benchmarks.quality.rows import Summary
from benchmarks.quality.style import FAINT_INK, INK, LINE, Stroke, heading, save, settings, strokes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"given": "Quality by privacy: number of clusters given", "auto": "Quality by privacy: number found"}
CAPTION = "Adjusted Rand index against ε per person; mean over seeds, shaded: ± one standard deviation"
EXACT, BEST = "exact grid", "best without privacy, tuned on the truth"
MAX_COLUMNS = 4
PANEL_WIDTH, PANEL_HEIGHT, GAP_X, GAP_Y = 1.85, 1.5, 0.22, 0.5
LEFT, RIGHT, BOTTOM = 0.5, 0.12, 0.5
LEGEND_COLUMNS, LEGEND_LINE = 4, 0.17


def write(folder: Path, summaries: Sequence[Summary]) -> list[Path]:
    """Write ari-given and ari-auto, each as SVG and PNG, where there is anything to draw.

    Returns
    -------
    list of Path
        Without endings.
    """
    written = []
    for way, title in TITLES.items():
        private = [s for s in summaries if s.k == way and s.ari is not None and METHODS[s.method].kind != "ceiling"]
        if private:
            with settings():
                save(figure(summaries, way, title), folder / f"ari-{way}")
            written.append(folder / f"ari-{way}")
    return written


def figure(summaries: Sequence[Summary], way: str, title: str) -> Figure:
    """The picture of one way of telling K; at least one private method has a row."""
    drawn = [s for s in summaries if s.k in (way, "tuned") and s.ari is not None]
    private = [s for s in drawn if METHODS[s.method].kind != "ceiling"]
    panels = list(dict.fromkeys((s.set, s.n, s.mark) for s in private))
    styles = {name: stroke for name, stroke in strokes().items() if any(s.method == name for s in private)}
    entries = len(styles) + 2
    top = 0.66 + LEGEND_LINE * math.ceil(entries / LEGEND_COLUMNS) + 0.22
    columns = min(MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(8.0, LEFT + columns * PANEL_WIDTH + (columns - 1) * GAP_X + RIGHT)
    height = top + rows * PANEL_HEIGHT + (rows - 1) * GAP_Y + BOTTOM
    picture = Figure(figsize=(width, height), facecolor="white")
    epsilons = sorted({s.epsilon for s in private if s.epsilon is not None})
    for place, (name, n, mark) in enumerate(panels):
        row, column = divmod(place, columns)
        x = LEFT + column * (PANEL_WIDTH + GAP_X)
        y = height - top - (row + 1) * PANEL_HEIGHT - row * GAP_Y
        axes = picture.add_axes((x / width, y / height, PANEL_WIDTH / width, PANEL_HEIGHT / height))
        _panel(axes, [s for s in drawn if (s.set, s.n) == (name, n)], styles)
        axes.set_title(f"{name}{mark} · {_count(n)}", size=8, loc="left", pad=3, color=INK)
        _frame(axes, epsilons, leftmost=column == 0, lowest=place + columns >= len(panels))
    heading(picture, title, CAPTION)
    _legend(picture, styles, (LEFT / width, 1 - 0.62 / height))
    return picture


def _panel(axes: "Axes", group: Sequence[Summary], styles: dict[str, Stroke]) -> None:
    ceilings = [s.ari for s in group if s.k == "tuned" and s.ari is not None]
    if ceilings:
        axes.axhline(max(ceilings), color=LINE, linewidth=3, alpha=0.45, zorder=1)
    exact = _points(group, EXACT)
    axes.plot(exact[0], exact[1], color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=2)
    for name, stroke in styles.items():
        epsilons, means, deviations = _points(group, name)
        axes.plot(
            epsilons,
            means,
            color=stroke.colour,
            linestyle=stroke.dashes,
            linewidth=stroke.width,
            marker=stroke.marker,
            markersize=2.6,
            zorder=stroke.order,
        )
        if METHODS[name].kind == "ours":
            low = [mean - sd for mean, sd in zip(means, deviations, strict=True)]
            high = [mean + sd for mean, sd in zip(means, deviations, strict=True)]
            axes.fill_between(epsilons, low, high, color=stroke.colour, alpha=0.13, linewidth=0, zorder=1)


def _points(group: Sequence[Summary], method: str) -> tuple[list[float], list[float], list[float]]:
    """Epsilons, means and standard deviations of a method's line."""
    of = sorted(
        (s.epsilon, s.ari, s.ari_sd or 0.0) for s in group if s.method == method and s.epsilon and s.ari is not None
    )
    return [e for e, _, _ in of], [mean for _, mean, _ in of], [sd for _, _, sd in of]


def _frame(axes: "Axes", epsilons: Sequence[float], *, leftmost: bool, lowest: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(epsilons[0] * 0.88, epsilons[-1] * 1.14)
    axes.set_ylim(-0.05, 1.05)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(epsilons), [f"{epsilon:g}" for epsilon in epsilons] if lowest else [""] * len(epsilons))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", ".5", "", "1"] if leftmost else [""] * 5)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=2.5, width=0.6, pad=2, labelsize=7.5)
    axes.spines[["top", "right"]].set_visible(False)
    if lowest:
        axes.set_xlabel("ε", size=8, labelpad=1)
    if leftmost:
        axes.set_ylabel("ARI", size=8, labelpad=2)


def _legend(picture: Figure, styles: dict[str, Stroke], corner: tuple[float, float]) -> None:
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
    handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (2, 2)), label=f"{EXACT} (no noise)"))
    handles.append(Line2D([], [], color=LINE, linewidth=3, alpha=0.45, label=BEST))
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


def _count(n: int) -> str:
    """15000 as 15k, 1000000 as 1M."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{letter}"
    return str(n)
