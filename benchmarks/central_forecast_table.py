"""Measure the table of forecasts over records: `python -m benchmarks.central_forecast_table` writes `families.json`.

`private_kmeans` runs through `simulate_central` on drawn sets of each family. A place of the table is an amount of
information of a route (`sfumato.forecast.families.Route`). It is reached with the smallest of several numbers of
records for which epsilon is moderate. A row has the 10 %, 50 % and 90 % quantiles of the excess: the mean squared
distance to the nearest centre, divided by that of k-means without noise, less 1. More information cannot increase the
excess, so isotonic regression (pooling) makes the quantiles monotone. Equal seeds give equal tables.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.isotonic import IsotonicRegression

from clustering.simulate import simulate_central
from sfumato.forecast.families import FAMILIES, ROUTES, TABLE_FILE, Excess, Family, Key, RouteName
from sfumato.specs import PrivateKmeans

Points = NDArray[np.float64]

LOG_INFORMATION = (-0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
SIZES = (2_000, 8_000, 32_000)
MODERATE_EPSILON = 2.0  # the smallest set that needs no more is used; the largest one takes up to MOST_EPSILON
MOST_EPSILON = 16.0
SEEDS = 4
DELTA = 1e-6
FEATURES: dict[RouteName, tuple[int, ...]] = {"grid": (2, 4), "steps": (6, 16), "block": (6, 16, 48)}
CLUSTERS: dict[Family, tuple[int, ...]] = {
    "compact": (3, 10),
    "elongated": (3, 10),
    "curved": (4, 8),
    "many_small": (32,),
}
QUANTILES = (0.1, 0.5, 0.9)
LARGEST = 99.0  # bound of an excess


def draw_centres(random: np.random.Generator, k: int, d: int) -> Points:
    """Return places that are far apart: each is the farthest of 40 from the earlier ones."""
    centres = [random.uniform(0.15, 0.85, d)]
    while len(centres) < k:
        tried = random.uniform(0.15, 0.85, (40, d))
        gaps = ((tried[:, None] - np.array(centres)) ** 2).sum(axis=2).min(axis=1)
        centres.append(tried[gaps.argmax()])
    return np.array(centres)


def compact(random: np.random.Generator, n: int, d: int, k: int) -> Points:
    """Return round clusters of different sizes and widths."""
    labels = random.choice(k, n, p=random.dirichlet(np.full(k, 4.0)))
    widths = 0.04 * np.exp(random.normal(0, 0.3, k))
    return draw_centres(random, k, d)[labels] + random.normal(size=(n, d)) * widths[labels][:, None]


def elongated(random: np.random.Generator, n: int, d: int, k: int) -> Points:
    """Return clusters that are six times longer in one direction, and overlap."""
    labels = random.integers(0, k, n)
    lines = random.normal(size=(k, d))
    lines /= np.sqrt((lines**2).sum(axis=1, keepdims=True))
    along = random.normal(0, 0.15, (n, 1)) * lines[labels]
    return draw_centres(random, k, d)[labels] + along + random.normal(0, 0.025, (n, d))


def curved(random: np.random.Generator, n: int, d: int, _: int) -> Points:
    """Return two nested rings in two features. The number of clusters is only that of the centres."""
    radii = np.where(random.random(n) < 0.3, 0.12, 0.35) + random.normal(0, 0.015, n)
    angles = random.uniform(0, 2 * np.pi, n)
    points = 0.5 + random.normal(0, 0.015, (n, d))
    points[:, 0] += radii * np.cos(angles)
    points[:, 1] += radii * np.sin(angles)
    return points


def many_small(random: np.random.Generator, n: int, d: int, k: int) -> Points:
    """Return tight clusters of very different sizes."""
    labels = random.choice(k, n, p=random.dirichlet(np.full(k, 1.0)))
    return draw_centres(random, k, d)[labels] + random.normal(0, 0.012, (n, d))


DRAW: dict[Family, Callable[[np.random.Generator, int, int, int], Points]] = {
    "compact": compact,
    "elongated": elongated,
    "curved": curved,
    "many_small": many_small,
}


@lru_cache(maxsize=4)
def draw_set(family: Family, n: int, d: int, k: int, seed: int) -> tuple[Points, float]:
    """Return a set and the mean squared distance of k-means without noise, cached while it is used."""
    points = np.clip(DRAW[family](np.random.default_rng([seed, n, d, k]), n, d, k), 0.0, 1.0)
    return points, float(KMeans(k, n_init=3, random_state=seed).fit(points).inertia_) / n


def choose_run(route: RouteName, place: float, d: int, k: int) -> tuple[int, float] | None:
    """Return the number of records and the epsilon of a place, or None if it cannot be reached."""
    for n in SIZES:
        epsilon = 10**place / ROUTES[route](float(n), d, k)
        if epsilon <= (MODERATE_EPSILON if n < SIZES[-1] else MOST_EPSILON):
            return n, max(round(epsilon, 9), 1e-6)
    return None


def measure(route: RouteName, family: Family) -> Excess:
    """Return the quantiles of the excess at each place. A place that no run reaches has those of the place before."""
    found: dict[float, list[float]] = {place: [] for place in LOG_INFORMATION}
    for d in FEATURES[route]:
        for k in CLUSTERS[family]:
            for seed in range(SEEDS):
                for place in LOG_INFORMATION:
                    run = choose_run(route, place, d, k)
                    if run is None:
                        continue
                    points, best = draw_set(family, run[0], d, k, seed)
                    params = PrivateKmeans(run[1], k, delta=DELTA if route == "block" else 0.0)
                    centroids = np.asarray(simulate_central(params, points, seed=seed).centroids)
                    found[place].append(_mean_square(points, centroids) / best - 1)
    rows = [np.quantile(np.clip(found[place], 0, LARGEST), QUANTILES) for place in LOG_INFORMATION if found[place]]
    rows += [rows[-1]] * (len(LOG_INFORMATION) - len(rows))
    lower, median, upper = (_decreasing([float(row[column]) for row in rows]) for column in range(3))
    return Excess(min(len(runs) for runs in found.values() if runs), lower, median, upper)


def _mean_square(points: Points, centroids: Points) -> float:
    nearest = np.full(len(points), np.inf)
    for centre in centroids:
        nearest = np.minimum(nearest, ((points - centre) ** 2).sum(axis=1))
    return float(nearest.mean())


def _decreasing(values: Sequence[float]) -> tuple[float, ...]:
    """Return the nearest non-increasing sequence by least squares, of at least .001."""
    fitted = IsotonicRegression(increasing=False).fit_transform(range(len(values)), values)
    return tuple(round(max(float(value), 0.001), 3) for value in fitted)


def text(table: dict[Key, Excess]) -> str:
    """Return the JSON document of the table, with one row per line."""
    rows = ",\n".join(f"  {json.dumps([*key, *table[key]])}" for key in sorted(table))
    return f'{{"log_information": {json.dumps(LOG_INFORMATION)}, "rows": [\n{rows}\n]}}\n'


def main(arguments: Sequence[str]) -> None:
    """Read the command line, measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TABLE_FILE, help="file to write")
    options = parser.parse_args(arguments)
    table: dict[Key, Excess] = {}
    for route in ROUTES:
        for family in FAMILIES:
            began = time.process_time()
            table[route, family] = measure(route, family)
            print(f"{route}, {family}: {time.process_time() - began:.0f} s of one core", flush=True)
    options.out.write_text(text(table))


if __name__ == "__main__":
    main(sys.argv[1:])
