"""How the benchmark's pictures look: like the product's own (`sfumato.plot`), as SVG and PNG."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.quality.methods import TABLE, AnyMethod
from sfumato.shading import PALETTE

INK, FAINT_INK, LINE = "#222222", "#666666", "#999999"
DOTS_PER_INCH = 150


@dataclass(frozen=True)
class Stroke:
    """How a method's line is drawn."""

    colour: str
    dashes: Any  # matplotlib's line style
    width: float
    marker: str
    order: int


def strokes() -> dict[str, Stroke]:
    """Every private method's line: a plan and its form as printed share a colour, the latter dashed."""
    found: dict[str, Stroke] = {}
    colours: dict[str, str] = {}
    for method in TABLE:
        if method.kind != "ceiling":
            colour = colours.setdefault(method.module, PALETTE[len(colours) % len(PALETTE)][1])
            found[method.name] = _stroke(method, colour)
    return found


def _stroke(method: AnyMethod, colour: str) -> Stroke:
    if method.kind == "ours":
        return Stroke(colour, "solid", 1.9, "o", 4)
    if method.kind == "paper":
        return Stroke(colour, (0, (4, 2)), 1.1, "s", 3)
    return Stroke(colour, (0, (1, 1.4)), 1.3, "^", 2)


@contextmanager
def settings() -> Iterator[None]:
    """Matplotlib's settings for these pictures: text stays text, equal figures give equal bytes."""
    ours: dict[Any, Any] = {
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
        "font.size": 8,
        "svg.fonttype": "none",
        "svg.hashsalt": "sfumato",
        "text.parse_math": False,
        "text.color": INK,
        "axes.edgecolor": LINE,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.7,
        "xtick.color": LINE,
        "ytick.color": LINE,
        "xtick.labelcolor": FAINT_INK,
        "ytick.labelcolor": FAINT_INK,
    }
    with matplotlib.rc_context(ours):
        yield


def heading(figure: Figure, title: str, caption: str) -> None:
    """Write the title and the line below it, at the upper left."""
    width, height = figure.get_size_inches()
    figure.text(0.12 / width, 1 - 0.14 / height, title, size=12, weight="bold", va="top")
    figure.text(0.12 / width, 1 - 0.4 / height, caption, size=8.5, color=FAINT_INK, va="top")


def save(figure: Figure, path: Path) -> None:
    """Write `path`.svg and `path`.png."""
    document = io.BytesIO()
    metadata = {"Date": None, "Creator": "sfumato"}
    figure.savefig(document, format="svg", dpi=DOTS_PER_INCH, metadata=metadata)
    path.with_suffix(".svg").write_bytes(document.getvalue())
    figure.savefig(path.with_suffix(".png"), format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
