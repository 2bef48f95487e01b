"""What each method makes of the shapes: points in the colours of their clusters, in small multiples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.quality.data import SHAPES, DataSet, draw
from benchmarks.quality.measure import Task, labels_of
from benchmarks.quality.methods import METHODS, TunedMethod
from benchmarks.quality.rows import Run
from benchmarks.quality.style import FAINT_INK, heading, save, settings
from benchmarks.quality.tables import short
from clustering.metrics import adjusted_rand_index, contingency
from sfumato.errors import SfumatoError
from sfumato.shading import PALETTE

TITLE = "Three shapes, as each method sees them"
MAX_DRAWN = 3_000  # points of a panel
COLUMNS = 8
PANEL, GAP, LABEL = 0.95, 0.05, 0.3
NEUTRAL = "#cccccc"

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Panel:
    """One method on one shape."""

    points: NDArray[np.float64]
    truth: Labels
    labels: Labels | None  # None: refused


def write(folder: Path, methods: Sequence[str], n: int, epsilon: float, seed: int) -> Path:
    """Run these methods on the three shapes and write maps.svg and maps.png; the path without ending."""
    rows: dict[str, list[Panel]] = {"truth": []}
    for name, clusters in SHAPES.items():
        sample = draw(DataSet(name, n, clusters), seed)
        rows["truth"].append(Panel(sample.points, sample.labels, sample.labels))
        for method in methods:
            rows.setdefault(method, []).append(
                Panel(sample.points, sample.labels, _labels(method, name, n, epsilon, seed))
            )
    caption = f"{n:,} reports, ε = {epsilon:g} per person, K given; the number is the adjusted Rand index, – a refusal"
    with settings():
        save(figure(rows, caption), folder / "maps")
    return folder / "maps"


def _labels(method: str, shape: str, n: int, epsilon: float, seed: int) -> Labels | None:
    tuned = isinstance(METHODS[method], TunedMethod)
    run = Run(method, shape, n, None if tuned else epsilon, seed, "tuned" if tuned else "given")
    try:
        return labels_of(Task(run, DataSet(shape, n, SHAPES[shape])))
    except (SfumatoError, ValueError):
        return None


def figure(rows: dict[str, list[Panel]], caption: str) -> Figure:
    """Panels: a column a method, a line a shape, in bands of eight columns."""
    names = list(rows)
    columns = min(COLUMNS, len(names))
    bands = math.ceil(len(names) / columns)
    lines = len(rows[names[0]])
    band_height = LABEL + lines * (PANEL + GAP)
    width = max(6.6, 0.24 + columns * (PANEL + GAP))
    height = 0.7 + bands * band_height + 0.1
    picture = Figure(figsize=(width, height), facecolor="white")
    for place, name in enumerate(names):
        band, column = divmod(place, columns)
        x = 0.12 + column * (PANEL + GAP)
        y = height - 0.7 - band * band_height - LABEL
        picture.text((x + PANEL / 2) / width, (y + 0.06) / height, _short(name), size=6.8, ha="center", va="bottom")
        for line, panel in enumerate(rows[name]):
            low = y - (line + 1) * PANEL - line * GAP
            axes = picture.add_axes((x / width, low / height, PANEL / width, PANEL / height))
            colours = (
                np.full(len(panel.points), NEUTRAL) if panel.labels is None else matched(panel.truth, panel.labels)
            )
            few = slice(0, None, math.ceil(len(panel.points) / MAX_DRAWN))
            drawn = panel.points[few]
            axes.scatter(drawn[:, 0], drawn[:, 1], s=1.1, c=colours[few].tolist(), linewidths=0, rasterized=True)
            axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
            axes.spines[:].set_color("#dddddd")
            if name != "truth":
                axes.text(
                    0.97,
                    0.03,
                    _score(panel),
                    size=6.5,
                    color=FAINT_INK,
                    ha="right",
                    va="bottom",
                    transform=axes.transAxes,
                )
    heading(picture, TITLE, caption)
    return picture


def matched(truth: Labels, labels: Labels) -> NDArray[np.str_]:
    """A colour for each point: its cluster's, which is that of the class the cluster is matched with."""
    table = contingency(truth, labels)
    counts = np.zeros((len(table.first_counts), len(table.second_counts)), dtype=np.int64)
    counts[table.first, table.second] = table.counts
    classes, clusters = linear_sum_assignment(counts, maximize=True)
    colour_of = {int(cluster): int(of) for cluster, of in zip(clusters, classes, strict=True)}
    spare = len(table.first_counts)
    for cluster in range(len(table.second_counts)):
        if cluster not in colour_of:
            colour_of[cluster], spare = spare, spare + 1
    palette = np.array([PALETTE[colour_of[c] % len(PALETTE)][1] for c in range(len(table.second_counts))])
    return palette[np.unique(labels, return_inverse=True)[1]]


def _score(panel: Panel) -> str:
    return "–" if panel.labels is None else short(adjusted_rand_index(panel.truth, panel.labels))


def _short(name: str) -> str:
    """A name that fits over a panel: in two lines at its middle underscore."""
    if len(name) <= 14 or "_" not in name:
        return name
    cut = min((i for i, letter in enumerate(name) if letter == "_"), key=lambda i: abs(i - len(name) / 2))
    return f"{name[: cut + 1]}\n{name[cut + 1 :]}"
