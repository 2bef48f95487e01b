"""One step of a series: the map, the ids, and the events of a new window, from all tallies so far.

    pool the windows → fit the density → continue the map with its ids → read the channels → alarm
    two windows after an alarm: describe the change; the map afterwards is a new start if the clusters changed

A step depends on the stored memory and on tallies alone, so it can be repeated after a crash.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from clustering.density.bump_fit import BumpFit
from clustering.series.alarm import BASELINE, HORIZON, LEAST_CHANGE, evidence
from clustering.series.channels import variances
from clustering.series.description import STRUCTURAL, Description, Kind, describe
from clustering.series.identities import NamedMap, continue_map, resolve_map
from clustering.series.observed import Window, pool_windows
from clustering.series.pooling import forgetting_weights
from sfumato.specs import SeriesAlgorithm

WAIT = 2  # windows from an alarm to its description
LEAST_AFTER = 3  # measured windows after a change that a description needs
SETTLED_REPORTS = 10_000  # effective reports of a pool with ids that are no longer provisional
SETTLED_WINDOWS = 4  # the same, in windows

Prefix = Literal["clu", "evt"]


@dataclass(frozen=True)
class Alarm:
    """An alarm that is not described yet."""

    event: str  # id of the event
    window: int  # window of the alarm
    change: int  # most probable first window after the change


@dataclass(frozen=True)
class Memory:
    """State that a step needs besides tallies and the map of the window before.

    Attributes
    ----------
    pool_from : int
        Earlier windows have no weight in the pool.
    baseline_from : int
        Earlier windows do not enter the test.
    test_from : int
        First window that may begin a change.
    alarm : Alarm or None
    """

    pool_from: int = 0
    baseline_from: int = 0
    test_from: int = 0
    alarm: Alarm | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def memory_from_wire(wire: Mapping[str, Any]) -> Memory:
    """Return the memory that `Memory.to_wire` wrote."""
    alarm = wire["alarm"]
    return Memory(**{**wire, "alarm": None if alarm is None else Alarm(**alarm)})


@dataclass(frozen=True)
class Event:
    """A change that raised an alarm.

    Attributes
    ----------
    id : str
    window : int
        Window of the alarm.
    change, first, last : int
        Most probable first window after the change, and its interval with 90 % of the probability.
    evidence : float
        M, at least 20.
    """

    id: str
    window: int
    change: int
    first: int
    last: int
    evidence: float


@dataclass(frozen=True, eq=False)
class Step:
    """The outcome of a step.

    Attributes
    ----------
    memory : Memory
    pooled : Window
    fit : BumpFit
        Of the pool.
    map : NamedMap
    weights : dict of int to float
        Weight of each pooled window.
    parents : dict of str to str or None
        New ids with their parents.
    event : Event or None
        A new event.
    described : tuple of (str, Description), or None
        Id of an earlier event, and what changed.
    is_provisional : bool
        Whether the pool is still too small for lasting ids.
    """

    memory: Memory
    pooled: Window
    fit: BumpFit
    map: NamedMap
    weights: Mapping[int, float]
    parents: Mapping[str, str | None]
    event: Event | None
    described: tuple[str, Description] | None
    is_provisional: bool

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of the event that was described now."""
        return () if self.described is None else self.described[1].kinds


def begin_revision(
    windows: Mapping[int, Window], now: int, first: int, memory: Memory, earlier: NamedMap
) -> tuple[Memory, NamedMap]:
    """Return the memory and the map with which the first measured window of a revision is followed.

    The test starts again with this revision. An alarm that is not described stays without kinds. If the encoding or the
    mechanism changed, the pool starts again as well, and the map is moved to the new grid with its ids.

    Parameters
    ----------
    windows : mapping of int to Window
        The measured windows up to this one.
    now : int
        Number of this window.
    first : int
        First window of the revision.
    memory, earlier : Memory, NamedMap
        From the last step.
    """
    before = [windows[index].kind for index in windows if index < first]
    is_same = bool(before) and before[-1] == windows[now].kind
    pool_from = memory.pool_from if is_same else first
    return Memory(pool_from, first, first), earlier.on_grid(windows[now].encoding.fine_cells)


def follow(
    params: SeriesAlgorithm,
    windows: Mapping[int, Window],
    now: int,
    memory: Memory,
    earlier: NamedMap | None,
    new_id: Callable[[Prefix], str],
    *,
    season: int = 1,
    least: float = LEAST_CHANGE,
) -> Step:
    """Return the step of a window.

    Parameters
    ----------
    params : ShiftedGrid or DensityMap
        Number of clusters, and prior of the fit.
    windows : mapping of int to Window
        The measured windows up to this one, with people inside the bounds alone.
    now : int
        Number of this window, which is measured.
    memory : Memory
        From the last step; the default one at first.
    earlier : NamedMap or None
        Map of the last step.
    new_id : callable
        Returns an unused id of a cluster (`clu`) or an event (`evt`).
    season : int
        Windows of a season.
    least : float
        Least change of a share that matters.
    """
    alarm, description = memory.alarm, None
    if alarm is not None and earlier is not None:
        description = _describe(params, windows, now, memory, alarm, earlier, new_id)
        if description is not None:
            is_new_map = STRUCTURAL & {each.kind for each in description.kinds}
            memory = replace(memory, alarm=None, pool_from=alarm.change if is_new_map else memory.pool_from)
    weights = forgetting_weights(sorted(windows), first=memory.pool_from, now=now)
    pooled = pool_windows([windows[index] for index in weights], list(weights.values()))
    fit = pooled.fit(params)
    parents: dict[str, str | None] = {}
    if alarm is None or earlier is None:
        continued = continue_map(fit, earlier, lambda: new_id("clu"), params.clusters)
        found, parents = continued.map, continued.parents
    elif description is None:
        found = earlier  # the map waits until the change is described
    else:
        found, parents = description.map, description.parents
    event = None
    if alarm is None:
        memory, event = _test(windows, now, memory, new_id, season, least)
    return Step(
        memory=memory,
        pooled=pooled,
        fit=fit,
        map=found,
        weights=weights,
        parents=parents,
        event=event,
        described=None if alarm is None or description is None else (alarm.event, description),
        is_provisional=pooled.n_eff < SETTLED_REPORTS and len(weights) < SETTLED_WINDOWS,
    )


def _test(
    windows: Mapping[int, Window],
    now: int,
    memory: Memory,
    new_id: Callable[[Prefix], str],
    season: int,
    least: float,
) -> tuple[Memory, Event | None]:
    """Return the memory after the test of this window, and an event if it is an alarm.

    After an alarm the test starts again with the next window, because those before were selected. After `HORIZON`
    windows without an alarm it starts again too, with the last `BASELINE` windows as a baseline.
    """
    if now >= memory.test_from + HORIZON:
        memory = replace(memory, baseline_from=max(memory.baseline_from, now - BASELINE), test_from=now)
    indices = [index for index in sorted(windows) if memory.baseline_from <= index <= now]
    readings = [windows[index].reading for index in indices]
    values = np.array([each.values for each in readings])
    found = evidence(indices, values, variances(readings), test_from=memory.test_from, season=season, least=least)
    if found is None or not found.is_alarm:
        return memory, None
    event = Event(new_id("evt"), now, found.change, found.first, found.last, found.value)
    alarm = Alarm(event.id, now, found.change)
    return replace(memory, baseline_from=now + 1, test_from=now + 1, alarm=alarm), event


def _describe(
    params: SeriesAlgorithm,
    windows: Mapping[int, Window],
    now: int,
    memory: Memory,
    alarm: Alarm,
    earlier: NamedMap,
    new_id: Callable[[Prefix], str],
) -> Description | None:
    """Return what changed, once enough windows have passed; None before."""
    before = [windows[index] for index in sorted(windows) if memory.pool_from <= index < alarm.change]
    after = [windows[index] for index in sorted(windows) if alarm.change <= index <= now]
    if now < alarm.window + WAIT or len(after) < LEAST_AFTER:
        return None
    fit = pool_windows(before).fit(params)
    kept = resolve_map(fit, earlier, params.clusters)
    return describe(before, after, kept, earlier, fit.density, params.clusters, lambda: new_id("clu"))
