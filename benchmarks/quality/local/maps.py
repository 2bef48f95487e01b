"""Label maps: the points of the shapes in the colours of the clusters that each method finds."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.output import FAINT_INK, add_heading, chart_settings, save
from benchmarks.quality.data import DataSet, Labels, Sample
from benchmarks.quality.local.data import SHAPES, draw
from benchmarks.quality.local.methods import METHODS
from benchmarks.quality.runs import Run
from benchmarks.quality.tables import NONE, number
from clustering.matching import match
from clustering.metrics import adjusted_rand_index, contingency
from sfumato.errors import SfumatoError
from sfumato.plotting.shading import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Three shapes, as each method sees them"
MAX_DRAWN = 3_000  # points drawn per panel
COLUMNS = 8
NEUTRAL = "#cccccc"

Fit = Callable[[Run, DataSet], tuple[Labels, int, float]]


def write(folder: Path, fit: Fit, methods: Sequence[str], n: int, epsilon: float, seed: int) -> None:
    """Run these methods on the three shapes; write maps.svg and maps.png."""
    sets = [DataSet(name, n, clusters) for name, clusters in SHAPES.items()]
    samples = [draw(data, seed) for data in sets]
    maps: dict[str, list[Labels | None]] = {"truth": [sample.labels for sample in samples]}
    for name in methods:
        runs = [(Run(name, data.name, n, METHODS[name].k[0], epsilon, seed), data) for data in sets]
        maps[name] = [_labels(fit, run, data) for run, data in runs]
    caption = f"{n:,} reports, ε = {epsilon:g} per person, K given; the number is the adjusted Rand index, – a refusal"
    with chart_settings():
        save(figure(samples, maps, caption), folder / "maps")


def _labels(fit: Fit, run: Run, data: DataSet) -> Labels | None:
    try:
        return fit(run, data)[0]
    except (SfumatoError, ValueError):
        return None


def figure(samples: Sequence[Sample], maps: Mapping[str, Sequence[Labels | None]], caption: str) -> Figure:
    """Draw the maps: a column per method, a row per shape, in bands of eight columns."""
    columns = min(COLUMNS, len(maps))
    n_rows = math.ceil(len(maps) / columns) * len(samples)
    height = 0.9 + 1.1 * n_rows
    picture = Figure(figsize=(max(6.6, columns), height), facecolor="white")
    spaces = {"left": 0.02, "right": 0.98, "bottom": 0.02, "top": 1 - 0.9 / height, "wspace": 0.05, "hspace": 0.3}
    grid = picture.subplots(n_rows, columns, squeeze=False, gridspec_kw=spaces)
    for place, (name, labels_of_shapes) in enumerate(maps.items()):
        band, column = divmod(place, columns)
        rows = grid[band * len(samples) : (band + 1) * len(samples), column]
        rows[0].set_title(_short(name), size=6.8, pad=2)
        for axes, sample, labels in zip(rows, samples, labels_of_shapes, strict=True):
            _draw_map(axes, sample, labels, has_score=name != "truth")
    for axes in grid.flat:
        axes.set_visible(axes.has_data())
    add_heading(picture, TITLE, caption)
    return picture


def _draw_map(axes: "Axes", sample: Sample, labels: Labels | None, *, has_score: bool) -> None:
    few = slice(0, None, math.ceil(len(sample.points) / MAX_DRAWN))
    x, y = sample.points[few].T
    axes.scatter(x, y, s=1.1, c=matched(sample.labels, labels)[few].tolist(), linewidths=0, rasterized=True)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    axes.spines[:].set_color("#dddddd")
    if has_score:
        score = NONE if labels is None else number(adjusted_rand_index(sample.labels, labels), 2)
        corner: dict[str, Any] = {"ha": "right", "va": "bottom", "transform": axes.transAxes}
        axes.text(0.97, 0.03, score, size=6.5, color=FAINT_INK, **corner)


def matched(truth: Labels, labels: Labels | None) -> NDArray[np.str_]:
    """Return the colour of each point: that of the class which its cluster matches; grey without labels."""
    if labels is None:
        return np.full(len(truth), NEUTRAL)
    table = contingency(truth, labels)
    counts = np.zeros((len(table.first_counts), len(table.second_counts)), dtype=np.int64)
    counts[table.first, table.second] = table.counts
    colours = {cluster: of for of, cluster in match(counts)}
    n_matched = len(colours)
    for cluster in range(len(table.second_counts)):  # clusters without a class get the next colours
        colours.setdefault(cluster, len(table.first_counts) + len(colours) - n_matched)
    palette = np.array([PALETTE[colours[c] % len(PALETTE)][1] for c in range(len(table.second_counts))])
    return palette[np.unique(labels, return_inverse=True)[1]]


def _short(name: str) -> str:
    """Break a long name at its middle underscore, so that it fits over a panel."""
    if len(name) <= 14 or "_" not in name:
        return name
    cut = min((i for i, letter in enumerate(name) if letter == "_"), key=lambda i: abs(i - len(name) / 2))
    return f"{name[: cut + 1]}\n{name[cut + 1 :]}"
