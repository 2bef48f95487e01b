"""Axes of growing work: measured points, fitted exponents as rows, and growth.csv."""

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
from scipy.stats import linregress

from benchmarks.speed.harness.measurement import Measurement, seconds

Work = Callable[[], object]

ENOUGH_SECONDS = 2.0  # a point that takes longer is measured once
POINTS = "growth.csv"
LEAST_EXPONENT = 0.01  # smallest divisor of a ratio, for work that does not grow
MEASURES = {"time": "seconds", "memory": "peak_bytes", "database": "database_bytes"}


@dataclass(frozen=True)
class Axis:
    """Work that grows with a size.

    Attributes
    ----------
    name : str
    unit : str
        Unit of the sizes.
    sizes : tuple of int
        Ascending.
    bar : float or None
        Largest exponent allowed.
    why : str
        Reason for the exponent.
    prepare : callable, optional
        (size) to the work of this size. Only the work is timed. A database is measured while it grows, without it.
    """

    name: str
    unit: str
    sizes: tuple[int, ...]
    bar: float | None
    why: str
    prepare: Callable[[int], Work] | None = None


@dataclass(frozen=True)
class Point:
    """Time and memory of one size.

    Attributes
    ----------
    axis : str
    size : int
    seconds : float
        Median of the turns.
    peak_bytes : int
        Peak of the memory that Python and numpy allocate; 0 if it was not measured.
    database_bytes : int
        Size of the database; 0 if there is none.
    """

    axis: str
    size: int
    seconds: float
    peak_bytes: int = 0
    database_bytes: int = 0


def measure(axis: Axis, turns: int) -> list[Point]:
    """Measure every size in ascending order, after one run that compiles kernels and measures memory."""
    assert axis.prepare is not None
    points = []
    for size in axis.sizes:
        work = axis.prepare(size)
        tracemalloc.start()
        work()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        first = seconds(work)
        more = turns - 1 if first < ENOUGH_SECONDS else 0
        points.append(Point(axis.name, size, median([first, *(seconds(work) for _ in range(more))]), peak))
    return points


def fit_exponent(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fit the exponent b of y = a x^b by least squares of the logarithms; return b and its standard error.

    Raises
    ------
    ValueError
        Fewer than two sizes, or a value that is not positive.
    """
    if len(set(x)) < 2 or min(*x, *y) <= 0:
        raise ValueError("an exponent needs two sizes at least, and positive values")
    fitted = linregress(np.log(x), np.log(y))
    return float(fitted.slope), float(np.nan_to_num(fitted.stderr))  # NaN if all values are equal


def rows_of(axis: Axis, points: Sequence[Point]) -> Iterator[Measurement]:
    """Yield the exponents of the time of an axis, and of its memory and database size if they were measured."""
    sizes = [point.size for point in points]
    note = f"{axis.why}; {sizes[0]:,} to {sizes[-1]:,} {axis.unit}"
    for what, column in MEASURES.items():
        values = [getattr(point, column) for point in points]
        if not all(values):
            continue
        bar = axis.bar if what == "time" else None
        allowed = 1.0 if bar is None else bar
        exponent, error = fit_exponent(sizes, values)
        ratio, low, high = (allowed / max(at, LEAST_EXPONENT) for at in (exponent, exponent + error, exponent - error))
        has_bar = None if bar is None else 1.0
        name, reference = f"{what}: {axis.name}", f"exponent {allowed:g}"
        yield Measurement(name, reference, "", exponent, allowed, ratio, low, high, has_bar, len(sizes), note)


def write(folder: Path, points: Sequence[Point]) -> None:
    """Write growth.csv."""
    pd.DataFrame(points).to_csv(folder / POINTS, index=False, float_format="%.6g", lineterminator="\n")
