"""One picture a group: how far each row is from its reference, and from its bar, on a logarithmic scale."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.quality.style import FAINT_INK, INK, LINE, heading, save, settings
from benchmarks.speed.row import Row
from sfumato.shading import PALETTE

TITLE = "Speed: {group}"
CAPTION = "ratio to the reference, a vertical stroke at its bar; right of 1 ours is better (of a limit: the share)"
WIDTH, ROW_HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 8.2, 0.3, 0.75, 0.45, 4.4, 0.55
LEAST, MOST = 1e-3, 1e4  # what is beyond is drawn at the edge
_REACHED, _SHORT, _TOLD = PALETTE[0][1], PALETTE[1][1], LINE


def write(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write speed-GROUP as SVG and PNG for each group there are rows of; which, without endings."""
    written = []
    with settings():
        for group in dict.fromkeys(row.group for row in rows):
            written.append(folder / f"speed-{group}")
            save(figure(group, [row for row in rows if row.group == group]), written[-1])
    return written


def figure(group: str, rows: Sequence[Row]) -> Figure:
    """A group's picture, a bar for each row from above."""
    height = TOP + BOTTOM + ROW_HEIGHT * len(rows)
    drawn = Figure(figsize=(WIDTH, height))
    heading(drawn, TITLE.format(group=group), CAPTION)
    axes = drawn.add_axes(
        (LEFT / WIDTH, BOTTOM / height, (WIDTH - LEFT - RIGHT) / WIDTH, ROW_HEIGHT * len(rows) / height)
    )
    for place, row in enumerate(rows):
        ratio, low, high = (_held(value) for value in (row.ratio, row.low, row.high))
        colour = _TOLD if row.bar is None else _REACHED if row.is_met else _SHORT
        axes.barh(place, math.log10(ratio), height=0.55, color=colour, alpha=0.8)
        axes.plot([math.log10(low), math.log10(high)], [place, place], color=INK, linewidth=0.9)
        if row.bar is not None:
            axes.plot([math.log10(_held(row.bar))] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=1.4)
        axes.annotate(
            f"{row.ratio:.3g}", (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=7, color=INK
        )
    ends = [0.0] + [math.log10(_held(v)) for r in rows for v in (r.low, r.high, r.ratio, r.bar or 1.0)]
    axes.set_xlim(min(ends) - 0.08, max(ends) + 0.08)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda power, _place: f"{10**power:.3g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", length=0, labelcolor=FAINT_INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return drawn


def _held(ratio: float) -> float:
    return min(max(ratio, LEAST), MOST)


def _label(row: Row) -> str:
    return f"{row.name} · {row.reference}"
