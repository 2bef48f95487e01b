"""An axis along which work grows, the points that are measured on it, and the exponent that fits them."""

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.speed.row import seconds

Work = Callable[[], object]

ENOUGH_SECONDS = 2.0  # of a point: what takes longer is measured once


@dataclass(frozen=True)
class Axis:
    """What grows.

    Attributes
    ----------
    name : str
    unit : str
        Of the sizes.
    sizes : tuple of int
        Ascending.
    made : callable
        The work of a size; what it is done on is made beforehand, and not timed.
    bar : float or None
        The exponent that is allowed.
    why : str
        Where the exponent comes from.
    """

    name: str
    unit: str
    sizes: tuple[int, ...]
    made: Callable[[int], Work]
    bar: float | None
    why: str


@dataclass(frozen=True)
class Point:
    """What one size takes.

    Attributes
    ----------
    axis : str
    size : int
    seconds : float
        Median of the turns.
    peak_bytes : int
        Asked for at once, by Python and numpy; 0 where it was not looked at.
    database_bytes : int
        0 where there is none.
    """

    axis: str
    size: int
    seconds: float
    peak_bytes: int = 0
    database_bytes: int = 0


@dataclass(frozen=True)
class Fitted:
    """The exponent b of y = a x^b, and its standard error by the points' scatter."""

    exponent: float
    error: float
    n_points: int


def measured(axis: Axis, turns: int) -> list[Point]:
    """Every size, the smallest first; the work is done once beforehand, so that nothing is compiled on the clock."""
    points = []
    for size in axis.sizes:
        work = axis.made(size)
        tracemalloc.start()
        work()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        first = seconds(work)
        more = turns - 1 if first < ENOUGH_SECONDS else 0
        points.append(Point(axis.name, size, median([first, *(seconds(work) for _ in range(more))]), peak))
    return points


def fitted(x: Sequence[float], y: Sequence[float]) -> Fitted:
    """By least squares of the logarithms.

    Raises
    ------
    ValueError
        Fewer than two sizes, or something that is not positive.
    """
    if len(set(x)) < 2 or min(*x, *y) <= 0:
        raise ValueError("an exponent is fitted to two sizes at least, and to what is positive")
    at = np.log(np.asarray(x, dtype=np.float64))
    values = np.log(np.asarray(y, dtype=np.float64))
    at -= at.mean()
    spread = float(at @ at)
    exponent = float(at @ values) / spread
    residual = values - values.mean() - exponent * at
    freedom = len(x) - 2
    error = float(np.sqrt(residual @ residual / freedom / spread)) if freedom else 0.0
    return Fitted(exponent, error, len(x))
