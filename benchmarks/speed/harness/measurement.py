"""Measurements: ours and its reference, compared for equal results and timed alternately in one run."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np


class Disagreement(AssertionError):
    """Two computations of one result differ by more than allowed."""


@dataclass(frozen=True)
class Measurement:
    """A comparison with a reference.

    Attributes
    ----------
    name : str
        What is measured; unique in the group.
    reference : str
        A peer with its version, or a limit of the machine.
    unit : str
        Unit of `ours` and `theirs`: "s", "reports/s", "MB".
    ours, theirs : float
        Medians over the turns.
    ratio : float
        Median of the ratios of all turns. Above 1 ours is better; against a limit it is the share reached.
    low, high : float
        Quartiles of the ratios of all turns.
    bar : float or None
        Target of the ratio; None if there is none.
    turns : int
        Number of times that both were measured.
    note : str
        Explanation for the reader of the table.
    """

    name: str
    reference: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    bar: float | None
    turns: int
    note: str = ""

    @property
    def is_met(self) -> bool:
        """Return whether the ratio reaches the bar, if there is one."""
        return self.bar is None or self.ratio >= self.bar


@dataclass(frozen=True)
class Setting:
    """Settings of a run.

    Attributes
    ----------
    quick : bool
        Whether to do a tenth of the work or less, for CI.
    turns : int
        Number of times that ours and the reference are measured.
    progress : callable
        Function that shows a line of progress.
    folder : Path or None
        Folder for further files of a group.
    """

    quick: bool
    turns: int
    progress: Callable[[str], None]
    folder: Path | None = None


class Group(Protocol):
    """The module of a group; the first line of its docstring is its help."""

    __doc__: str | None

    def rows(self, setting: Setting) -> Iterator[Measurement]:
        """Yield the measurements of the group."""


def alternate(ours: Callable[[], float], theirs: Callable[[], float], turns: int) -> tuple[list[float], list[float]]:
    """Measure both alternately, `turns` times; the first one changes from turn to turn."""
    both: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            both[which].append((ours, theirs)[which]())
    return both


def seconds(work: Callable[[], object]) -> float:
    """Return the time of a call, after a garbage collection."""
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(
    name: str,
    reference: str,
    measured: tuple[list[float], list[float]],
    *,
    unit: str = "s",
    more_is_better: bool = False,
    bar: float | None = None,
    note: str = "",
) -> Measurement:
    """Return the measurement of what `alternate` returned."""
    ours, theirs = measured
    ratios = [a / b if more_is_better else b / a for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = map(float, np.quantile(ratios, [0.25, 0.5, 0.75]))
    return Measurement(name, reference, unit, median(ours), median(theirs), middle, low, high, bar, len(ratios), note)


def race(
    name: str,
    reference: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    turns: int,
    *,
    bar: float | None = 1.0,
    note: str = "",
) -> Measurement:
    """Time two calls alternately and compare their times."""
    return compare(
        name, reference, alternate(lambda: seconds(ours), lambda: seconds(theirs), turns), bar=bar, note=note
    )


def agree(what: str, ours: Any, theirs: Any, within: float = 0.0) -> None:
    """Raise unless both results are equal within a share of the largest value of `theirs`.

    Parameters
    ----------
    what : str
        Name of the result, for the message.
    ours, theirs : array-like
        Results of equal shape.
    within : float
        Share; 0 requires equal bits.

    Raises
    ------
    Disagreement
    """
    left, right = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if left.shape != right.shape:
        raise Disagreement(f"{what}: shape {left.shape} here, {right.shape} there")
    scale = float(np.abs(right).max(initial=0.0))
    gap = float(np.abs(left - right).max(initial=0.0))
    if not gap <= within * scale:  # also true if a value is NaN
        raise Disagreement(f"{what}: off by {gap:.3g}, {within * scale:.3g} is allowed")


def near(what: str, estimates: Any, truth: Any, deviation: float, deviations: float = 7.0) -> None:
    """Raise if an estimate is more than a number of standard deviations of its noise away from the truth."""
    gap = float(np.abs(np.asarray(estimates) - np.asarray(truth)).max())
    if not gap <= deviations * deviation:
        raise Disagreement(f"{what}: off by {gap:.3g}, its noise has the standard deviation {deviation:.3g}")
