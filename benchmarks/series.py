"""Measure series: `python -m benchmarks.series ids` and other measures print what docs/series.md states.

`benchmarks.series_populations` draws the windows. Changes begin in window 6, the seventh one.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import count, pairwise

import numpy as np

from benchmarks.series_populations import (
    CHANGED,
    POPULATIONS,
    RECORDS,
    Population,
    agreement,
    count_records,
    density,
    draw,
    people,
    round_spec,
)
from clustering.central.algorithms.density_map import count_scale
from clustering.grids.density_fit import fit_density
from clustering.rounds.plan import Collected
from clustering.series.alarm import LEAST_CHANGE, evidence
from clustering.series.channels import Reading, variances
from clustering.series.follow import Memory, Step, follow
from clustering.series.identities import NamedMap
from clustering.series.observed import Counted, Measured, Window
from clustering.series.pooling import forgetting_weights, pool
from sfumato.forecast import forecast_series
from sfumato.forecast.series import CHANGES, CLUSTER_WIDTH, MOST_WINDOWS, QUIET, Delay
from sfumato.sizing.grids import series_cells
from sfumato.specs import DensityMap, SeriesAlgorithm, ShiftedGrid, ShiftedGridEncoding

SETTINGS = ((0.5, 20_000, 8), (0.5, 100_000, 16), (1.0, 20_000, 16), (1.0, 100_000, 16), (2.0, 20_000, 16))
STRONG = ((1.0, 100_000, 16), (2.0, 20_000, 16), (5.86, 20_000, 16))  # effective reports of 27,000 and more
NULLS = ((0.5, 20_000, 16), (0.5, 100_000, 16), (1.0, 100_000, 16), (2.0, 20_000, 16))
RATES = (0.01, 0.02, 0.1, 1.0)  # epsilon of a record over records
WIDTHS = (0.03, 0.045, 0.08)  # standard deviations of the clusters with a gain
KINDS = {"grows": "grown", "vanishes": "gone", "born": "born", "splits": "split", "moves": "moved"}


def run(
    population: Population, change: str, setting: tuple[float, int, int], n_windows: int, seed: int, season: int = 1
) -> list[Step]:
    """Return the steps of a series."""
    epsilon, n, cells = setting
    params, spec = ShiftedGrid(epsilon=epsilon, cells=cells), round_spec(epsilon, cells)
    rng = np.random.default_rng([seed, n, cells, int(10 * epsilon)])
    windows = (Measured(draw(population, change, window, spec, n, rng)) for window in range(n_windows))
    return list(_follow(params, windows, season))


def _follow(params: SeriesAlgorithm, observed: Iterable[Window], season: int = 1) -> Iterator[Step]:
    """Yield the steps of a series with these windows."""
    memory, earlier, numbers = Memory(), None, count()
    windows: dict[int, Window] = {}
    for window, each in enumerate(observed):
        windows[window] = each
        step = follow(params, windows, window, memory, earlier, lambda kind: f"{kind}_{next(numbers)}", season=season)
        memory, earlier = step.memory, step.map
        yield step


def false_alarms(n_series: int) -> None:
    """Print the share of series of 52 windows without a change that raise an alarm."""
    for epsilon, n, cells in NULLS:
        spec, hits = round_spec(epsilon, cells), 0
        for seed in range(n_series):
            population = POPULATIONS[seed % len(POPULATIONS)]
            rng = np.random.default_rng([seed, n, int(10 * epsilon)])
            windows = (Measured(draw(population, "none", window, spec, n, rng)) for window in range(52))
            hits += _first_alarm(windows) is not None
        print(f"epsilon {epsilon:g}, {n:,} reports: {hits} of {n_series} series with a false alarm", flush=True)


def _first_alarm(windows: Iterable[Window], quiet: int = 0, least: float = LEAST_CHANGE) -> int | None:
    """Return the first window with an alarm; None if there is none. The first quiet windows are not tested."""
    readings: list[Reading] = []
    for window, observed in enumerate(windows):
        readings.append(observed.reading)
        if window < quiet:
            continue
        values = np.array([each.values for each in readings])
        found = evidence(range(len(readings)), values, variances(readings), test_from=0, least=least)
        if found is not None and found.is_alarm:
            return window
    return None


def pooling(n_seeds: int) -> None:
    """Print the agreement of the map of window 11 with the truth: of one window, and pooled. K is given."""
    for epsilon, n, cells in SETTINGS:
        spec = round_spec(epsilon, cells)
        for change in ("none", "grows", "born", "moves", "splits"):
            found: list[tuple[float, float]] = []
            for population in POPULATIONS:
                k = len(population.parts(change, 11))
                for seed in range(n_seeds):
                    rng = np.random.default_rng([seed, n, int(10 * epsilon), len(change)])
                    windows = {t: draw(population, change, t, spec, n, rng) for t in range(12)}
                    weights = forgetting_weights(windows, first=0, now=11)
                    pooled = pool([windows[t] for t in weights], list(weights.values()))
                    found.append(
                        (
                            _map(windows[11], epsilon, k, population, change),
                            _map(pooled, epsilon, k, population, change),
                        )
                    )
            one, together = np.mean(found, axis=0)
            print(
                f"epsilon {epsilon:g}, {n:,} reports, {change}: one window {one:.3f}, pooled {together:.3f}", flush=True
            )


def _map(collected: Collected, epsilon: float, k: int, population: Population, change: str) -> float:
    encoding = collected.spec.encoding
    assert isinstance(encoding, ShiftedGridEncoding)
    fit = fit_density(ShiftedGrid(epsilon=epsilon, cells=encoding.cells), encoding, collected)
    return agreement(fit.tree.regions(fit.all_bumps[:k]).labels, population, change, 11)


def ids(n_seeds: int) -> None:
    """Print the share of windows with exactly the ids of the window before, if nothing changes."""
    for setting in SETTINGS:
        early: list[bool] = []
        late: list[bool] = []
        groups: list[bool] = []
        agreed: list[float] = []
        events = 0
        for population in POPULATIONS:
            for seed in range(n_seeds):
                steps = run(population, "none", setting, 12, seed)
                events += sum(step.event is not None for step in steps)
                agreed.append(agreement(steps[-1].map.labels, population, "none", 11))
                found = list(_compare_ids(steps, population))
                kept = [same and not moved for same, moved in found]
                early, late = early + kept[:3], late + kept[3:]
                groups += [moved for _, moved in found]
        print(
            f"epsilon {setting[0]:g}, {setting[1]:,} reports: kept in windows 1 to 3 {np.mean(early):.2f}, 4 to 11 "
            f"{np.mean(late):.2f}; another group {np.mean(groups):.3f}; agreement {np.mean(agreed):.2f}; "
            f"events {events}",
            flush=True,
        )


def _compare_ids(steps: list[Step], population: Population) -> Iterator[tuple[bool, bool]]:
    """Yield whether each window has the ids of the one before, and whether an id has another cluster."""
    for one, other in pairwise(steps):
        moved = any(_group(other.map, name, population) != group for name, group in _groups(one.map, population))
        yield set(one.map.ids) == set(other.map.ids), moved


def _groups(found: NamedMap, population: Population) -> Iterator[tuple[str, int]]:
    return ((name, _group(found, name, population)) for name in found.ids)


def _group(found: NamedMap, name: str, population: Population) -> int:
    """Return the cluster that most people with an id have; -1 without such people."""
    if name not in found.ids:
        return -1
    places, truth = people(population, "none", 0)
    cells = (places * len(found.labels)).astype(int)
    own = truth[found.labels[cells[:, 0], cells[:, 1]] == found.ids.index(name)]
    return int(np.bincount(own).argmax()) if len(own) else -1


def changes(n_seeds: int, n_windows: int = 30) -> None:
    """Print the window of the alarm, counted from 1, and the kinds that are named."""
    for setting in (*SETTINGS[1:4], *STRONG[1:]):
        for change, kind in KINDS.items():
            found = [
                _first_event(run(population, change, setting, n_windows, seed))
                for population in POPULATIONS
                for seed in range(n_seeds)
            ]
            print(f"epsilon {setting[0]:g}, {setting[1]:,} reports, {change}: {_summary(found, kind)}", flush=True)


def _summary(found: list[tuple[int | None, list[str], bool]], kind: str) -> str:
    """Return in words what `_first_event` found in series with a change of a kind."""
    alarms = [np.inf if alarm is None else alarm + 1 for alarm, _, _ in found]
    named = [kinds for _, kinds, _ in found if kinds]
    first = sum(kinds[0] == kind for kinds in named)
    others = sum(each != kind for kinds in named for each in kinds)
    return (
        f"alarm in window {np.median(alarms):g} (median), found {np.isfinite(alarms).mean():.2f}; right kind first "
        f"{first} of {len(named)}, other kinds {others}; no id lost without an event "
        f"{sum(kept for _, _, kept in found)} of {len(found)}"
    )


def _first_event(steps: list[Step]) -> tuple[int | None, list[str], bool]:
    """Return the window of the first alarm, its kinds, and whether no id was lost in a window without a description."""
    lost = any(set(one.map.ids) - set(other.map.ids) and other.described is None for one, other in pairwise(steps))
    alarms = [step.event.window for step in steps if step.event is not None]
    kinds = [[each.kind for each in step.kinds] for step in steps if step.described is not None]
    return next(iter(alarms), None), [str(each) for each in next(iter(kinds), [])], not lost


def moves(n_seeds: int) -> None:
    """Print the window of the alarm of a slow move, counted from 1, with the least change and without it."""
    for epsilon, n, cells in STRONG[:2]:
        spec, found = round_spec(epsilon, cells), dict[tuple[str, float], list[float]]()
        for population in POPULATIONS:
            for seed in range(n_seeds):
                rng = np.random.default_rng([seed, n, cells, int(10 * epsilon)])
                windows = [Measured(draw(population, "moves", window, spec, n, rng)) for window in range(30)]
                for least in (LEAST_CHANGE, 0.0):
                    alarm = _first_alarm(windows, least=least)
                    found.setdefault((population.name, least), []).append(np.inf if alarm is None else alarm + 1)
        for least in (LEAST_CHANGE, 0.0):
            medians = {name: float(np.median(each)) for (name, other), each in found.items() if other == least}
            every = [alarm for (_, other), each in found.items() if other == least for alarm in each]
            print(
                f"epsilon {epsilon:g}, {n:,} reports, least change {least:g}: median {np.median(every):g}, {medians}",
                flush=True,
            )


def delays(n_seeds: int) -> None:
    """Print how often the alarm of a gain of 10 points comes within a factor of its forecast, and in its interval."""
    found = [
        (setting, width, _delay(replace(population, born_width=width), "born", setting, seed))
        for setting in SETTINGS
        for width in WIDTHS
        for population in POPULATIONS
        for seed in range(n_seeds)
    ]
    for given in (None, CLUSTER_WIDTH):
        made = [(_forecast_delay(setting, given or width), actual) for setting, width, actual in found]
        within = [np.mean([_is_near(each.windows or np.inf, actual, k) for each, actual in made]) for k in (1.5, 2.0)]
        inside = [(each.earliest or np.inf) <= actual <= (each.latest or np.inf) for each, actual in made]
        print(
            f"forecast for {'the width' if given is None else f'the width {given:g}'}, {len(found)} series: within a "
            f"factor of 1.5 {within[0]:.2f}, of 2 {within[1]:.2f}, in the interval {np.mean(inside):.2f}",
            flush=True,
        )
    groups: dict[object, list[float]] = {}
    for setting, width, actual in found:
        groups.setdefault((setting, width), []).append(actual)
    best = sum(
        max(sum(_is_near(windows, actual, 1.5) for actual in group) for windows in (*range(1, MOST_WINDOWS), np.inf))
        for group in groups.values()
    )
    print(f"the best number of each setting and width in hindsight: within a factor of 1.5 {best / len(found):.2f}")


def _is_near(one: float, other: float, factor: float) -> bool:
    return one == other or 1 / factor <= one / other <= factor


@cache
def _forecast_delay(setting: tuple[float, int, int], width: float) -> Delay:
    epsilon, n, cells = setting
    algorithm = ShiftedGrid(epsilon=epsilon, cells=cells)
    made = forecast_series(algorithm, n_features=2, target_reports=n, cycle=1, cluster_width=width)
    (found,) = (each for each in made.delays if each.share == CHANGES[1])
    return found


def _delay(population: Population, change: str, setting: tuple[float, int, int], seed: int) -> float:
    """Return the windows from a change after `QUIET` quiet windows to its alarm; infinite after `MOST_WINDOWS`."""
    epsilon, n, cells = setting
    spec, rng = round_spec(epsilon, cells), np.random.default_rng([seed, n, cells, int(10 * epsilon), len(change)])
    windows = (
        Measured(draw(population, change, 0 if before > 0 else CHANGED - before, spec, n, rng))
        for before in range(QUIET, -MOST_WINDOWS, -1)
    )
    alarm = _first_alarm(windows, QUIET)
    return np.inf if alarm is None else alarm - QUIET + 1


def records(n_seeds: int) -> None:
    """Print the figures of series over records: maps and ids of 12 windows, false alarms, and events."""
    for rate in RATES:
        one: list[float] = []
        pooled: list[float] = []
        kept: list[bool] = []
        alarms = 0
        for population in POPULATIONS:
            for seed in range(n_seeds):
                params, windows = _record_windows(population, "none", rate, 52, seed)
                steps = list(_follow(params, windows[:12]))
                one.append(agreement(steps[0].map.labels, population, "none", 0))
                pooled.append(agreement(steps[-1].map.labels, population, "none", 11))
                kept += [same and not moved for same, moved in _compare_ids(steps[3:], population)]
                alarms += _first_alarm(windows) is not None
        print(
            f"epsilon per record {rate:g}: one window {np.mean(one):.2f}, pooled {np.mean(pooled):.2f}, ids kept in "
            f"windows 4 to 11 {np.mean(kept):.2f}, {alarms} of {len(one)} series of 52 windows with a false alarm",
            flush=True,
        )
        for change, kind in KINDS.items():
            found = [
                _first_event(list(_until_described(*_record_windows(population, change, rate, 30, seed + n_seeds))))
                for population in POPULATIONS
                for seed in range(n_seeds)
            ]
            print(f"epsilon per record {rate:g}, {change}: {_summary(found, kind)}", flush=True)


def _until_described(params: SeriesAlgorithm, windows: Iterable[Window]) -> Iterator[Step]:
    """Yield the steps of a series up to the first description of an event."""
    for step in _follow(params, windows):
        yield step
        if step.described is not None:
            return


def _record_windows(
    population: Population, change: str, rate: float, n_windows: int, seed: int
) -> tuple[DensityMap, list[Counted]]:
    """Return the algorithm and the windows of a series over records, with `rate` as the epsilon of a record."""
    params = DensityMap(epsilon=rate)
    params = replace(params, cells=series_cells(params, 2, RECORDS))
    rng, scale = np.random.default_rng([seed, int(1000 * rate)]), count_scale(params.epsilon_nano, 1)
    found = [density(population, change, window) for window in range(n_windows)]
    return params, [count_records(each, params.cells or 0, scale, rng) for each in found]


def seasons(n_seeds: int) -> None:
    """Print the number of seasonal series with an event, if the season is set."""
    for setting in ((1.0, 100_000, 16), (2.0, 20_000, 16)):
        hits = 0
        for population in POPULATIONS:
            for seed in range(n_seeds):
                hits += any(step.event for step in run(population, "season", setting, 14, seed, season=4))
        print(f"epsilon {setting[0]:g}, {setting[1]:,} reports: {hits} of {n_seeds * len(POPULATIONS)} seasonal series")


def main(arguments: list[str] | None = None) -> int:
    """Run one measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.series", description=__doc__)
    measures = {
        "false-alarms": false_alarms, "pooling": pooling, "ids": ids, "changes": changes, "seasons": seasons,
        "moves": moves, "delays": delays, "records": records,
    }  # fmt: skip
    parser.add_argument("measure", choices=measures, help="what to measure")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="series of each population, or of all")
    options = parser.parse_args(arguments)
    partial(measures[options.measure], options.seeds)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
