"""Measure series: `python -m benchmarks.series ids` and other measures print what docs/series.md states.

Tallies are drawn in the normal approximation of the mechanism from a population of known density, so that no report is
made. Changes begin in window 6, the seventh one.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from clustering.central.algorithms.density_map import count_scale
from clustering.density.synthetic_rounds import perturb_counts, symbol_shares
from clustering.grids.density_fit import fit_density
from clustering.metrics import adjusted_rand_index
from clustering.rounds.plan import Collected
from clustering.series.alarm import evidence
from clustering.series.channels import Reading, variances
from clustering.series.follow import Memory, Step, follow
from clustering.series.identities import NamedMap
from clustering.series.observed import Counted, Measured
from clustering.series.pooling import forgetting_weights, pool
from sfumato.forecast import forecast_series
from sfumato.forecast.series import CHANGES, MOST_WINDOWS, QUIET
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import series_cells
from sfumato.specs import DensityMap, Feature, RoundSpec, ShiftedGrid, ShiftedGridEncoding

Density = NDArray[np.float64]
Blob = tuple[float, float, float, float]  # share, x, y, standard deviation

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
RESOLUTION = 192  # cells of a known density along each feature
CHANGED = 6  # first window after a change
PEOPLE = 6_000  # places at which maps are compared with the truth
SETTINGS = ((0.5, 20_000, 8), (0.5, 100_000, 16), (1.0, 20_000, 16), (1.0, 100_000, 16), (2.0, 20_000, 16))
STRONG = ((1.0, 100_000, 16), (2.0, 20_000, 16), (5.86, 20_000, 16))  # effective reports of 27,000 and more
NULLS = ((0.5, 20_000, 16), (0.5, 100_000, 16), (1.0, 100_000, 16), (2.0, 20_000, 16))
RATES = (0.01, 0.02, 0.1, 1.0)  # epsilon of a record over records
RECORDS = 20_000  # records of a window
KINDS = {"grows": "grown", "vanishes": "gone", "born": "born", "splits": "split", "moves": "moved"}


@dataclass(frozen=True)
class Population:
    """Round clusters, and arcs given as many small ones with one label."""

    name: str
    blobs: tuple[Blob, ...]
    arcs: tuple[tuple[float, float, float, float, int], ...] = ()  # share, x, y, radius, side
    born: tuple[float, float] = (0.5, 0.88)  # place of a new cluster

    def parts(self, change: str, window: int) -> list[tuple[float, list[Blob]]]:
        """Return the clusters of a window: their shares and their blobs."""
        after, arcs = window >= CHANGED, [list(_arc(*each)) for each in self.arcs]
        blobs, shares = [[each] for each in self.blobs], [each[0] for each in self.arcs]
        found = [(share, blob) for share, blob in zip(shares, arcs, strict=True)]
        found += [(blob[0][0], blob) for blob in blobs]
        if change in {"grows", "vanishes"}:
            last = {"grows": 0.15 if after else 0.05, "vanishes": 0.0 if after else found[-1][0]}[change]
            rest = sum(share for share, _ in found[:-1])
            found = [(share * (1 - last) / rest, each) for share, each in found[:-1]] + [(last, found[-1][1])]
        elif change == "born" and after:
            found = [(0.9 * share, each) for share, each in found] + [(0.1, [(0.1, *self.born, 0.045)])]
        elif change == "moves":
            (share, ((_, x, y, width),)), step = found[-2], 0.012 * window
            side = -1 if y > 0.5 else 1
            found[-2] = (share, [(share, x - 0.6 * step, y + 0.8 * side * step, width)])
        elif change == "splits" and after:
            place = len(self.arcs)
            share, ((_, x, y, width),) = found[place]
            far, narrow = 1.12 * width, 0.7 * width
            found[place] = (share / 2, [(share, x - far, y + far, narrow)])
            found.append((share / 2, [(share, x + far, y - far, narrow)]))
        elif change == "season":
            factors = 1 + 0.4 * np.sin(2 * np.pi * window / 4 + 2.4 * np.arange(len(found)))
            found = [(share * float(factor), each) for (share, each), factor in zip(found, factors, strict=True)]
        total = sum(share for share, _ in found)
        return [(share / total, each) for share, each in found if share > 0]


def _arc(share: float, x: float, y: float, radius: float, side: int) -> Iterator[Blob]:
    for angle in (np.arange(60) + 0.5) / 60 * np.pi:
        yield share / 60, x + radius * float(np.cos(angle)), y + side * radius * float(np.sin(angle)), 0.03


POPULATIONS = (
    Population(
        "five blobs",
        ((0.30, 0.25, 0.25, 0.07), (0.25, 0.72, 0.25, 0.06), (0.20, 0.30, 0.72, 0.06), (0.15, 0.75, 0.75, 0.05),
         (0.10, 0.52, 0.50, 0.04)),
    ),
    Population(
        "two moons and two blobs",
        ((0.25, 0.80, 0.80, 0.055), (0.15, 0.82, 0.18, 0.05)),
        ((0.30, 0.33, 0.42, 0.19, 1), (0.30, 0.52, 0.50, 0.19, -1)),
        (0.15, 0.85),
    ),
    Population(
        "eight blobs",
        ((0.20, 0.15, 0.20, 0.05), (0.18, 0.45, 0.15, 0.05), (0.15, 0.80, 0.18, 0.055), (0.12, 0.20, 0.55, 0.045),
         (0.10, 0.55, 0.48, 0.045), (0.10, 0.85, 0.55, 0.045), (0.08, 0.30, 0.85, 0.04), (0.07, 0.70, 0.85, 0.04)),
        (),
        (0.50, 0.70),
    ),
    Population(
        "four wide blobs",  # wide blobs near each other, of unequal density
        ((0.40, 0.28, 0.30, 0.08), (0.25, 0.68, 0.34, 0.06), (0.20, 0.62, 0.72, 0.07), (0.15, 0.25, 0.74, 0.05)),
        (),
        (0.90, 0.90),
    ),
)  # fmt: skip


@cache
def density(population: Population, change: str, window: int) -> Density:
    """Return the known density of a window."""
    middles = (np.arange(RESOLUTION) + 0.5) / RESOLUTION
    total = np.zeros((RESOLUTION, RESOLUTION))
    for share, blobs in population.parts(change, window):
        own = np.zeros_like(total)
        for weight, x, y, width in blobs:
            along = [np.exp(-0.5 * ((middles - place) / width) ** 2) for place in (x, y)]
            own += weight * np.multiply.outer(*along) / width**2
        total += share * own / own.sum()
    return np.asarray(total / total.sum())


@cache
def people(population: Population, change: str, window: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a sample of places with their clusters."""
    rng, places, labels = np.random.default_rng(9), [], []
    for label, (share, blobs) in enumerate(population.parts(change, window)):
        n = round(share * PEOPLE)
        chosen = np.array(blobs)[rng.integers(len(blobs), size=n)]
        places.append(rng.normal(chosen[:, 1:3], chosen[:, 3:]))
        labels.append(np.full(n, label))
    return np.concatenate(places).clip(0, 1 - 1e-9), np.concatenate(labels)


@cache
def round_spec(epsilon: float, cells: int) -> RoundSpec:
    """Return the round of a window."""
    (only,) = planned_rounds(ShiftedGrid(epsilon=epsilon, cells=cells), 2, 1000)
    return only.spec(FEATURES)


@cache
def _shares(population: Population, change: str, window: int, spec: RoundSpec) -> NDArray[np.float64]:
    return symbol_shares(spec.encoding, density(population, change, window))


def draw(
    population: Population, change: str, window: int, spec: RoundSpec, n: int, rng: np.random.Generator
) -> Collected:
    """Return the tally of a window with n reports."""
    shares = _shares(population, change, window % 4 if change == "season" else window, spec)
    reports = rng.multinomial(n, np.full(len(shares), 1 / len(shares))).astype(np.int64)
    counts = np.stack([rng.multinomial(each, share) for each, share in zip(reports, shares, strict=True)])
    noise = rng.standard_normal(counts.shape)
    return Collected(spec, perturb_counts(spec, counts.astype(np.int64), reports, noise))


def agreement(labels: NDArray[np.int64], population: Population, change: str, window: int) -> float:
    """Return the adjusted Rand index of a label map with the clusters of the people."""
    places, truth = people(population, change, window)
    cells = (places * len(labels)).astype(int)
    return adjusted_rand_index(labels[cells[:, 0], cells[:, 1]], truth)


def run(
    population: Population, change: str, setting: tuple[float, int, int], n_windows: int, seed: int, season: int = 1
) -> list[Step]:
    """Return the steps of a series."""
    epsilon, n, cells = setting
    params, spec = ShiftedGrid(epsilon=epsilon, cells=cells), round_spec(epsilon, cells)
    rng, numbers = np.random.default_rng([seed, n, cells, int(10 * epsilon)]), count()
    memory, earlier = Memory(), None
    windows: dict[int, Measured] = {}
    steps: list[Step] = []
    for window in range(n_windows):
        windows[window] = Measured(draw(population, change, window, spec, n, rng))
        step = follow(params, windows, window, memory, earlier, lambda kind: f"{kind}_{next(numbers)}", season=season)
        memory, earlier = step.memory, step.map
        steps.append(step)
    return steps


def false_alarms(n_series: int) -> None:
    """Print the share of series of 52 windows without a change that raise an alarm."""
    for epsilon, n, cells in NULLS:
        spec, hits = round_spec(epsilon, cells), 0
        for seed in range(n_series):
            population = POPULATIONS[seed % len(POPULATIONS)]
            rng = np.random.default_rng([seed, n, int(10 * epsilon)])
            hits += _alarms(draw(population, "none", window, spec, n, rng) for window in range(52))
        print(f"epsilon {epsilon:g}, {n:,} reports: {hits} of {n_series} series with a false alarm", flush=True)


def _alarms(windows: Iterator[Collected]) -> bool:
    readings: list[Reading] = []
    for collected in windows:
        readings.append(Measured(collected).reading)
        values = np.array([each.values for each in readings])
        found = evidence(range(len(readings)), values, variances(readings), test_from=0)
        if found is not None and found.is_alarm:
            return True
    return False


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
                for window, (one, other) in enumerate(pairwise(steps), 1):
                    same = set(one.map.ids) == set(other.map.ids)
                    moved = any(
                        _group(other.map, name, population) != group for name, group in _groups(one.map, population)
                    )
                    (early if window < 4 else late).append(same and not moved)
                    groups.append(moved)
        print(
            f"epsilon {setting[0]:g}, {setting[1]:,} reports: kept in windows 1 to 3 {np.mean(early):.2f}, 4 to 11 "
            f"{np.mean(late):.2f}; another group {np.mean(groups):.3f}; agreement {np.mean(agreed):.2f}; "
            f"events {events}",
            flush=True,
        )


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
            alarms: list[float] = []
            first = named = others = kept = 0
            for population in POPULATIONS:
                for seed in range(n_seeds):
                    alarm, kinds, is_kept = _first_event(run(population, change, setting, n_windows, seed))
                    alarms.append(np.inf if alarm is None else alarm + 1)
                    named += bool(kinds)
                    first += kinds[:1] == [kind]
                    others += sum(each != kind for each in kinds)
                    kept += is_kept
            print(
                f"epsilon {setting[0]:g}, {setting[1]:,} reports, {change}: alarm in window {np.median(alarms):g} "
                f"(median), found {np.isfinite(alarms).mean():.2f}; right kind first {first} of {named}, other kinds "
                f"{others}; no id lost without an event {kept} of {len(alarms)}",
                flush=True,
            )


def _first_event(steps: list[Step]) -> tuple[int | None, list[str], bool]:
    """Return the window of the first alarm, its kinds, and whether no id was lost in a window without a description."""
    lost = any(set(one.map.ids) - set(other.map.ids) and other.described is None for one, other in pairwise(steps))
    alarms = [step.event.window for step in steps if step.event is not None]
    kinds = [[each.kind for each in step.kinds] for step in steps if step.described is not None]
    return next(iter(alarms), None), [str(each) for each in next(iter(kinds), [])], not lost


def delays(n_seeds: int) -> None:
    """Print how often the alarm of a gain of 10 points comes within a factor of 1.5 of its forecast."""
    share, all_within = CHANGES[1], []
    for epsilon, n, cells in SETTINGS[1:]:
        made = forecast_series(ShiftedGrid(epsilon=epsilon, cells=cells), n_features=2, target_reports=n, cycle=1)
        (expected,) = (each.windows for each in made.delays if each.share == share)
        found = [
            _delay(population, change, (epsilon, n, cells), seed)
            for change in ("grows", "born")
            for population in POPULATIONS
            for seed in range(n_seeds)
        ]
        within = [expected is not None and expected / 1.5 <= each <= 1.5 * expected for each in found]
        all_within += within
        print(
            f"epsilon {epsilon:g}, {n:,} reports: forecast {expected}, found {np.median(found):g} (median), "
            f"{sorted(found)}, within a factor of 1.5 {np.mean(within):.2f}",
            flush=True,
        )
    print(f"within a factor of 1.5 in {np.mean(all_within):.2f}")


def _delay(population: Population, change: str, setting: tuple[float, int, int], seed: int) -> float:
    """Return the windows from a change after `QUIET` quiet windows to its alarm; infinite after `MOST_WINDOWS`."""
    epsilon, n, cells = setting
    spec, rng = round_spec(epsilon, cells), np.random.default_rng([seed, n, cells, int(10 * epsilon), len(change)])
    readings: list[Reading] = []
    for window in range(QUIET + MOST_WINDOWS):
        place = max(0, window - QUIET + CHANGED)  # nothing differs between the windows before the change
        readings.append(Measured(draw(population, change, place if window >= QUIET else 0, spec, n, rng)).reading)
        if window < QUIET:
            continue
        values = np.array([each.values for each in readings])
        found = evidence(range(len(readings)), values, variances(readings), test_from=0)
        if found is not None and found.is_alarm:
            return window - QUIET + 1
    return np.inf


def records(n_seeds: int) -> None:
    """Print the figures of series over records: maps of window 11, ids, false alarms, and the alarm of a gain."""
    for rate in RATES:
        one: list[float] = []
        pooled: list[float] = []
        kept: list[bool] = []
        gains: list[float] = []
        alarms = 0
        for population in POPULATIONS:
            for seed in range(n_seeds):
                steps = list(_follow_records(population, "none", rate, 52, seed))
                alarms += any(step.event is not None for step in steps)
                kept += [set(a.map.ids) == set(b.map.ids) for a, b in pairwise(steps[3:12])]
                pooled.append(agreement(steps[11].map.labels, population, "none", 11))
                (alone,) = _follow_records(population, "none", rate, 1, seed + 100)
                one.append(agreement(alone.map.labels, population, "none", 0))
                changed = _follow_records(population, "grows", rate, 30, seed + 200)
                found = next((window for window, step in enumerate(changed, 1) if step.event is not None), None)
                gains.append(np.inf if found is None else found)
        print(
            f"epsilon per record {rate:g}: one window {np.mean(one):.2f}, pooled {np.mean(pooled):.2f}, ids kept in "
            f"windows 4 to 11 {np.mean(kept):.2f}, {alarms} of {len(one)} series of 52 windows with a false alarm, "
            f"alarm of a gain in window {np.median(gains):g} (median), {sorted(gains)}",
            flush=True,
        )


def _follow_records(population: Population, change: str, rate: float, n_windows: int, seed: int) -> Iterator[Step]:
    """Yield the steps of a series over records, with `rate` as the epsilon of a record."""
    params = DensityMap(epsilon=rate)
    params = replace(params, cells=series_cells(params, 2, RECORDS))
    rng, numbers, scale = np.random.default_rng([seed, int(1000 * rate)]), count(), count_scale(params.epsilon_nano, 1)
    memory, earlier = Memory(), None
    windows: dict[int, Counted] = {}
    for window in range(n_windows):
        windows[window] = _count_records(density(population, change, window), params.cells or 0, scale, rng)
        step = follow(params, windows, window, memory, earlier, lambda kind: f"{kind}_{next(numbers)}")
        memory, earlier = step.memory, step.map
        yield step


def _count_records(found: Density, cells: int, scale: float, rng: np.random.Generator) -> Counted:
    """Return the noisy counts of the records of a window."""
    factor = RESOLUTION // cells
    shares = found[: factor * cells, : factor * cells].reshape(cells, factor, cells, factor).sum(axis=(1, 3))
    counts = rng.multinomial(RECORDS, (shares / shares.sum()).ravel())
    noise = rng.geometric(-np.expm1(-1 / scale), (2, counts.size))
    return Counted(FEATURES, (counts + noise[0] - noise[1]).reshape(cells, cells), scale)


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
        "delays": delays, "records": records,
    }  # fmt: skip
    parser.add_argument("measure", choices=measures, help="what to measure")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="series of each population, or of all")
    options = parser.parse_args(arguments)
    partial(measures[options.measure], options.seeds)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
