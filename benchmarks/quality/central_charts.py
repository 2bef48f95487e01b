"""Picture of the central results: NICV over k-means' against epsilon, a panel a set."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.quality.central_methods import OURS, PAPERS, PEER, WITH_DELTA
from benchmarks.quality.central_rows import CentralSummary
from benchmarks.quality.style import FAINT_INK, INK, LINE, heading, save, settings
from sfumato.shading import PALETTE

TITLE = "Centroids of records by privacy"
CAPTION = "NICV over that of the best non-private k-means, against the ε a job spends; mean over seeds"
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT, TOP, BOTTOM = 4, 2.0, 1.75, 1.15, 0.45
MOST = 30.0  # what is above is drawn at the edge
PICTURE = "central-nicv"


def write(folder: Path, summaries: Sequence[CentralSummary]) -> list[Path]:
    """Write central-nicv as SVG and PNG, where there is anything to draw; returns paths without endings."""
    drawn = [s for s in summaries if s.nicv_ratio is not None and s.epsilon is not None]
    if not drawn:
        return []
    with settings():
        save(_figure(drawn, summaries), folder / PICTURE)
    return [folder / PICTURE]


def _figure(drawn: Sequence[CentralSummary], summaries: Sequence[CentralSummary]) -> Figure:
    names = list(dict.fromkeys(s.set for s in drawn))
    lines = math.ceil(len(names) / COLUMNS)
    width, height = COLUMNS * PANEL_WIDTH + 0.4, TOP + lines * PANEL_HEIGHT + BOTTOM
    picture = Figure(figsize=(width, height), facecolor="white")
    epsilons = sorted({s.epsilon for s in drawn if s.epsilon is not None})
    methods = [name for name in (OURS, *PAPERS, PEER, WITH_DELTA) if any(s.method == name for s in drawn)]
    handles: dict[str, Line2D] = {}
    for place, name in enumerate(names):
        row, column = divmod(place, COLUMNS)
        left = (0.45 + column * PANEL_WIDTH) / width
        below = 1 - (TOP + row * PANEL_HEIGHT + PANEL_HEIGHT - 0.45) / height
        axes = picture.add_axes((left, below, (PANEL_WIDTH - 0.4) / width, (PANEL_HEIGHT - 0.5) / height))
        group = [s for s in summaries if s.set == name]
        handles |= _panel(axes, group, methods, epsilons)
        axes.set_title(f"{name} · {group[0].n:,} · K {group[0].clusters}", size=7.5, loc="left", pad=3, color=INK)
    heading(picture, TITLE, CAPTION)
    corner = (0.12 / width, 1 - 0.6 / height)
    picture.legend(
        list(handles.values()), list(handles), loc="upper left", bbox_to_anchor=corner, ncols=4, frameon=False,
        borderpad=0, fontsize=7, labelcolor=FAINT_INK, handlelength=2.4, columnspacing=1.3, labelspacing=0.2,
    )  # fmt: skip
    return picture


def _panel(
    axes: Axes, group: Sequence[CentralSummary], methods: Sequence[str], epsilons: Sequence[float]
) -> dict[str, Line2D]:
    handles: dict[str, Line2D] = {}
    for one in (s for s in group if s.method == "one mean" and s.nicv_ratio is not None):
        handles["one mean, not private"] = axes.axhline(
            min(one.nicv_ratio or 1.0, MOST), color=LINE, linewidth=3, alpha=0.45, zorder=1
        )
    for place, method in enumerate(methods):
        points = sorted(
            (s.epsilon or 0.0, min(s.nicv_ratio, MOST)) for s in group if s.method == method and s.nicv_ratio
        )
        ours = method in (OURS, WITH_DELTA)
        (handles[method],) = axes.plot(
            [epsilon for epsilon, _ in points],
            [ratio for _, ratio in points],
            color=PALETTE[place % len(PALETTE)][1],
            linestyle="solid" if ours else (0, (1, 1.4)),
            linewidth=1.8 if ours else 1.1,
            marker="o" if ours else "^",
            markersize=2.8,
            zorder=4 if ours else 3,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(0.93, MOST)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(epsilons), [f"{epsilon:g}" for epsilon in epsilons])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(length=2.5, width=0.6, pad=2, labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    return handles
