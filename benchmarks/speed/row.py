"""One line of the table: ours and its reference, timed in turn in one run."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np


class Missing(Exception):
    """Something a row is measured with is not on this machine.

    Parameters
    ----------
    what : str
        A sentence without its full stop.
    command : str
        What puts it there.
    """

    def __init__(self, what: str, command: str) -> None:
        super().__init__(f"{what}: `{command}` puts it there")


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes
    ----------
    group : str
        The module it was measured by: `ingest`, `fold`, `kernels`, ...
    name : str
        What is measured; with the group it tells rows apart.
    reference : str
        What it is held to, with its version: a peer, or a limit of the machine.
    unit : str
        Of `ours` and `theirs`: "s", "reports/s", "MB".
    ours, theirs : float
        Medians over the turns.
    ratio : float
        Above 1 ours is better; where the reference is a limit, the share of it that is reached.
        The median of the turns' own ratios.
    low, high : float
        The quartiles of the turns' ratios.
    bar : float or None
        What the ratio is to reach; None where it is only told.
    turns : int
        How often both were measured.
    note : str
        What else must be known to read it.
    """

    group: str
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
        """Whether the bar is reached; what has none always is."""
        return self.bar is None or self.ratio >= self.bar


@dataclass(frozen=True)
class Setting:
    """What all rows of a run share.

    Attributes
    ----------
    quick : bool
        A tenth of the work or less: the whole table in minutes, for CI.
    turns : int
        How often ours and the reference are measured in turn.
    progress : callable
        Takes a line for whoever waits.
    folder : Path or None
        Where a group may write more than its rows.
    """

    quick: bool
    turns: int
    progress: Callable[[str], None]
    folder: Path | None = None


class Group(Protocol):
    """What a module of rows holds; the first line of its docstring is its help."""

    __doc__: str | None

    def rows(self, setting: Setting) -> Iterator[Row]: ...


def in_turns(ours: Callable[[], float], theirs: Callable[[], float], turns: int) -> tuple[list[float], list[float]]:
    """Both measured one after the other, `turns` times; who is first changes from turn to turn."""
    both: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            both[which].append((ours, theirs)[which]())
    return both


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes, with the collector's work done before."""
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(
    group: str,
    name: str,
    reference: str,
    measured: tuple[list[float], list[float]],
    *,
    unit: str = "s",
    more_is_better: bool = False,
    bar: float | None = None,
    note: str = "",
) -> Row:
    """The row of what `in_turns` measured."""
    ours, theirs = measured
    ratios = [a / b if more_is_better else b / a for a, b in zip(ours, theirs, strict=True)]
    low, high = np.quantile(ratios, [0.25, 0.75])
    return Row(
        group,
        name,
        reference,
        unit,
        median(ours),
        median(theirs),
        median(ratios),
        float(low),
        float(high),
        bar,
        len(ratios),
        note,
    )
