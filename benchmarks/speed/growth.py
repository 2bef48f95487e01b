"""How time, memory and the database grow with the work: exponents fitted to points of one run, by least squares.

An exponent of 1 is linear growth. Rows have the exponent as `ours` and the one that is allowed as reference. Every
point stands in growth.csv, and in the pictures beside it.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.quality.style import FAINT_INK, INK, LINE, heading, save, settings
from benchmarks.speed import growth_kernels
from benchmarks.speed.growth_axis import Axis, Fitted, Point, fitted, measured
from benchmarks.speed.growth_database import databases
from benchmarks.speed.row import Row, Setting
from sfumato.shading import PALETTE

GROUP = "growth"
POINTS, CURVES = "growth.csv", "speed-growth-curves"
LEAST_EXPONENT = 0.01  # of the ratio's divisor: what does not grow at all is as good as this

_COLUMNS, _CELL_WIDTH, _CELL_HEIGHT = 3, 3.1, 2.1
_TIME, _MEMORY, _DATABASE = PALETTE[0][1], PALETTE[1][1], PALETTE[2][1]


def rows(setting: Setting) -> Iterator[Row]:
    """A row an axis and measure, and the plans of the hot queries."""
    points: list[Point] = []
    try:
        for axis in growth_kernels.axes(setting.quick):
            setting.progress(f"  growth: {axis.name}")
            found = measured(axis, setting.turns)
            points += found
            yield from of(axis, found)
        for database in databases(setting):
            for axis, found in database.grown():
                points += found
                yield from of(axis, found)
            yield database.plans()
    finally:
        if setting.folder is not None and points:
            write(setting.folder, points)


def of(axis: Axis, points: Sequence[Point]) -> Iterator[Row]:
    """The exponents of an axis' time, of its memory and of its database, where it has them."""
    x = [point.size for point in points]
    told = f"{axis.why}; {x[0]:,} to {x[-1]:,} {axis.unit}"
    yield _row(axis.name, "time", fitted(x, [point.seconds for point in points]), axis.bar, told)
    for what, values in (
        ("memory", [point.peak_bytes for point in points]),
        ("database", [point.database_bytes for point in points]),
    ):
        if all(values):
            yield _row(axis.name, what, fitted(x, values), None, told)


def _row(name: str, what: str, found: Fitted, bar: float | None, note: str) -> Row:
    allowed = 1.0 if bar is None else bar

    def ratio(exponent: float) -> float:
        return allowed / max(exponent, LEAST_EXPONENT)

    return Row(
        GROUP,
        f"{what}: {name}",
        f"exponent {allowed:g}",
        "",
        found.exponent,
        allowed,
        ratio(found.exponent),
        ratio(found.exponent + found.error),
        ratio(found.exponent - found.error),
        None if bar is None else 1.0,
        found.n_points,
        note,
    )


def write(folder: Path, points: Iterable[Point]) -> None:
    """growth.csv and the pictures."""
    points = list(points)
    with (folder / POINTS).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Point)])
        for point in points:
            writer.writerow([f"{v:.6g}" if isinstance(v, float) else "" if v is None else v for v in astuple(point)])
    with settings():
        save(picture(points), folder / CURVES)


@dataclass(frozen=True)
class _Curve:
    label: str
    colour: str
    x: list[int]
    y: list[float]


def picture(points: Sequence[Point]) -> Figure:
    """An axis a small picture, logarithmic both ways, each measure by its first point."""
    names = list(dict.fromkeys(point.axis for point in points))
    n_rows = -(-len(names) // _COLUMNS)
    width, height = _COLUMNS * _CELL_WIDTH, 0.8 + n_rows * _CELL_HEIGHT
    drawn = Figure(figsize=(width, height))
    heading(drawn, "Growth", "as a multiple of the first point, both ways logarithmic; grey is linear")
    for place, name in enumerate(names):
        row, column = divmod(place, _COLUMNS)
        bottom = 1 - (0.8 + (row + 1) * _CELL_HEIGHT - 0.5) / height
        axes = drawn.add_axes(((column + 0.16) / _COLUMNS, bottom, 0.76 / _COLUMNS, (_CELL_HEIGHT - 0.85) / height))
        own = [point for point in points if point.axis == name]
        x = [point.size for point in own]
        axes.loglog(x, [size / x[0] for size in x], color=LINE, linewidth=1.0)
        for curve in _curves(own):
            axes.loglog(
                curve.x, [value / curve.y[0] for value in curve.y], color=curve.colour, marker="o", markersize=2.5
            )
            axes.annotate(
                curve.label, (curve.x[-1], curve.y[-1] / curve.y[0]), fontsize=6, color=curve.colour, ha="right"
            )
        axes.set_title(name, fontsize=6.5, color=INK, loc="left")
        axes.tick_params(labelsize=6, labelcolor=FAINT_INK)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return drawn


def _curves(points: Sequence[Point]) -> list[_Curve]:
    x = [point.size for point in points]
    found = [_Curve("time", _TIME, x, [point.seconds for point in points])]
    for label, colour, values in (
        ("memory", _MEMORY, [point.peak_bytes for point in points]),
        ("database", _DATABASE, [point.database_bytes for point in points]),
    ):
        if all(values):
            found.append(_Curve(label, colour, x, [float(np.float64(value)) for value in values]))
    return found
