"""Measures what forecasts of quality go by: ``python -m benchmarks.forecast_table`` writes `sfumato/forecast/table.py`.

Algorithms run, with their default parameters and through `simulate`, over shapes that are
drawn here, at as much information as the table's rows: N / (1/signal + .02), by several
numbers of reports and the epsilon that makes them come to it. A row keeps the quartiles of
the adjusted Rand index over all of them. What more information cannot make worse is not let
fall: quartiles are made to rise by pooling (isotonic regression). `--only shifted_grid`
measures one algorithm anew and keeps the others' rows. The same seeds give the same table.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from math import asinh, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.reference_shapes import SHAPES, Labels, Points, Shape
from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate
from sfumato import forecast
from sfumato.errors import SfumatoError
from sfumato.forecast.limits import SAMPLING_VARIANCE
from sfumato.forecast.quality import cluster_class, feature_class
from sfumato.forecast.table import TABLE
from sfumato.specs import local_algorithm_from_wire

Key = tuple[str, str, str]
Quartile = tuple[float, ...]  # at each row
Measured = tuple[int, Quartile, Quartile, Quartile]

TARGET = Path(forecast.__file__).with_name("table.py")
LOG_INFORMATION = (2.5, 3.25, 4.0, 4.75, 5.5, 6.25)
SIZES = (8_000, 32_000, 128_000)
MOST_EPSILON = 8.0


class Scope(NamedTuple):
    """What of an algorithm is measured."""

    fewest_features: int
    most_features: int
    seeds: int = 2  # of each shape at each row
    counts: bool = True  # with the number of clusters open, too
    blobs: bool = False  # of the shapes only those: what finds centroids is not asked for rings
    most_coordinates: int = 1024  # of all centroids

    def takes(self, shape: Shape) -> bool:
        """Whether it is run over a shape."""
        return (
            self.fewest_features <= shape.n_features <= self.most_features
            and (shape.is_blobs or not self.blobs)
            and shape.n_features * shape.n_clusters <= self.most_coordinates
        )


PLANS = {
    "shifted_grid": Scope(1, 3, seeds=1),  # ten times slower than the other grids
    "uniform_grid": Scope(1, 8),
    "adaptive_grid_iterative": Scope(1, 8, seeds=1),  # slow in many features
    "adaptive_grid_tree": Scope(1, 8),
    "phase_sketch": Scope(4, 64, seeds=1, blobs=True, most_coordinates=100),  # a run takes seconds
    "grid_kmeans": Scope(1, 3, counts=False, blobs=True),
    "ldp_kmeans": Scope(1, 64, counts=False, blobs=True),
}


def sizes_at(log_information: float) -> list[tuple[int, float]]:
    """Numbers of reports and epsilons of so much information."""
    found = []
    for n_reports in SIZES:
        per_report = n_reports / 10**log_information - SAMPLING_VARIANCE
        if per_report <= 0:
            continue
        epsilon = round(2 * asinh(sqrt(1 / per_report)), 6)
        if epsilon <= MOST_EPSILON:
            found.append((n_reports, epsilon))
    return found[:2]


@lru_cache(maxsize=8)
def people(shape: Shape, n_reports: int, seed: int) -> tuple[Points, Labels]:
    """A sample, kept while its shape is worked on."""
    return shape.sample(n_reports, seed)


def score(algorithm: str, shape: Shape, clusters: int | None, n_reports: int, epsilon: float, seed: int) -> float:
    """ARI of one run, at least 0."""
    points, labels = people(shape, n_reports, seed)
    asked: dict[str, object] = {"type": algorithm, "epsilon": epsilon}
    params = local_algorithm_from_wire(asked if clusters is None else asked | {"clusters": clusters})
    try:
        model = simulate(params, points, seed=seed)
    except SfumatoError:  # too few reports for anything: nothing was found
        return 0.0
    return max(0.0, adjusted_rand_index(model.assign(points), labels))


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls, by least squares: neighbours that do are pooled."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            before, n_before = pools.pop()
            mean, size = (before * n_before + mean * size) / (n_before + size), n_before + size
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def measure(algorithm: str) -> dict[Key, Measured]:
    """The rows of one algorithm."""
    scope = PLANS[algorithm]
    shapes = [each for each in SHAPES if scope.takes(each)]
    scores: dict[Key, dict[float, list[float]]] = {}
    for number, shape in enumerate(shapes):
        for clusters in (shape.n_clusters, None) if scope.counts else (shape.n_clusters,):
            key = (algorithm, feature_class(shape.n_features), cluster_class(clusters))
            for place in LOG_INFORMATION:
                row = scores.setdefault(key, {}).setdefault(place, [])
                sizes = sizes_at(place)
                for seed in range(scope.seeds):
                    n_reports, epsilon = sizes[(number + seed) % len(sizes)]  # half of the runs have more reports
                    row.append(score(algorithm, shape, clusters, n_reports, epsilon, number + 1000 * seed))
    return {key: _quartiles(rows) for key, rows in scores.items()}


def _quartiles(rows: dict[float, list[float]]) -> Measured:
    quartiles = [np.quantile(found, (0.25, 0.5, 0.75)) for found in rows.values()]
    columns = [rising([float(row[column]) for row in quartiles]) for column in range(3)]
    lower, median, upper = (tuple(round(value, 3) for value in column) for column in columns)
    return min(len(found) for found in rows.values()), lower, median, upper


def text(table: dict[Key, Measured]) -> str:
    """The table as a module."""
    lines = [
        '"""Quartiles of the adjusted Rand index over reference sets, by `python -m benchmarks.forecast_table`."""',
        "",
        f"PLACES = {LOG_INFORMATION!r}  # log10 of the information, of each row",
        "",
        "Quartile = tuple[float, ...]  # a value for each row",
        "",
        "# (algorithm, features, clusters): (runs a row, lower, median, upper quartile)",
        "# fmt: off",
        "TABLE: dict[tuple[str, str, str], tuple[int, Quartile, Quartile, Quartile]] = {",
    ]
    for key in sorted(table):
        named = ", ".join(f'"{part}"' for part in key)
        n_runs, *quartiles = table[key]
        lines += [f"    ({named}): ({n_runs},", *(f"        {quartile!r}," for quartile in quartiles)]
        lines[-1] = lines[-1].removesuffix(",") + "),"
    return "\n".join([*lines, "}", ""])


def main(arguments: Sequence[str]) -> None:
    """Read the options, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(PLANS), action="append", help="keep the rows of all others")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args(arguments)
    chosen = options.only or sorted(PLANS)
    table = {key: rows for key, rows in TABLE.items() if key[0] in PLANS and key[0] not in chosen}
    for algorithm in chosen:
        began = time.process_time()
        table |= measure(algorithm)
        print(f"{algorithm}: {time.process_time() - began:.0f} s of one core", flush=True)
        options.out.write_text(text(table))


if __name__ == "__main__":
    main(sys.argv[1:])
