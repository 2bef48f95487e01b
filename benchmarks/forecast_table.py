"""Measure the quality table: `python -m benchmarks.forecast_table` writes `sfumato/forecast/quality.json`.

Every algorithm runs with its default parameters, through `simulate`, on the reference shapes. Each place of the table
is an amount of information N / (1/signal + .02), reached with several numbers of reports and the epsilon that fits. A
row has the quartiles of the adjusted Rand index, over all shapes and for each family of shapes. More information cannot
lower the quality, so isotonic regression (pooling) makes the quartiles monotone. `--only shifted_grid` measures one
algorithm again and keeps the other rows. Equal seeds give equal tables.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import asinh, ceil, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.isotonic import IsotonicRegression

from benchmarks.reference_shapes import SHAPES, Labels, Points, Shape
from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate
from sfumato.errors import SfumatoError
from sfumato.forecast.noise import SAMPLING_VARIANCE
from sfumato.forecast.quality import TABLE, TABLE_FILE, Key, Row, cluster_class, feature_class
from sfumato.specs import local_algorithm_from_wire

LOG_INFORMATION = (2.5, 3.25, 4.0, 4.75, 5.5, 6.25)
SIZES = (8_000, 32_000, 128_000)
MOST_EPSILON = 8.0
LEAST_RUNS = 4  # runs of each family at each amount of information


class Scope(NamedTuple):
    """The range in which an algorithm is measured."""

    fewest_features: int
    most_features: int
    seeds: int = 2  # per shape and amount of information
    counts: bool = True  # also run without the number of clusters
    blobs: bool = False  # run on blobs only, because centroids cannot describe rings
    most_coordinates: int = 1024  # features times clusters

    def takes(self, shape: Shape) -> bool:
        """Return whether the algorithm runs on a shape."""
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
    """Return up to two numbers of reports, and the epsilons with which they have this information."""
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
    """Return a sample, cached while its shape is measured."""
    return shape.sample(n_reports, seed)


def score(algorithm: str, shape: Shape, clusters: int | None, n_reports: int, epsilon: float, seed: int) -> float:
    """Return the ARI of one run, at least 0."""
    points, labels = people(shape, n_reports, seed)
    wire: dict[str, object] = {"type": algorithm, "epsilon": epsilon}
    params = local_algorithm_from_wire(wire if clusters is None else wire | {"clusters": clusters})
    try:
        model = simulate(params, points, seed=seed)
    except SfumatoError:  # too few reports to find anything
        return 0.0
    return max(0.0, adjusted_rand_index(model.assign(points), labels))


def monotone(values: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing sequence by least squares (pool adjacent violators)."""
    found = IsotonicRegression().fit_transform(range(len(values)), values)
    return [float(value) for value in found]


def measure(algorithm: str) -> dict[Key, Row]:
    """Return the rows of one algorithm."""
    scope = PLANS[algorithm]
    shapes = [each for each in SHAPES if scope.takes(each)]
    scores: dict[Key, dict[float, list[float]]] = {}
    cases = [
        (number, shape, clusters, (algorithm, feature_class(shape.n_features), cluster_class(clusters), shape.family))
        for number, shape in enumerate(shapes)
        for clusters in ((shape.n_clusters, None) if scope.counts else (shape.n_clusters,))
    ]
    n_shapes = Counter(key for *_, key in cases)
    for number, shape, clusters, key in cases:
        for place in LOG_INFORMATION:
            sizes = sizes_at(place)
            for seed in range(max(scope.seeds, ceil(LEAST_RUNS / n_shapes[key]))):
                n_reports, epsilon = sizes[(number + seed) % len(sizes)]  # both sizes take turns
                found = score(algorithm, shape, clusters, n_reports, epsilon, number + 1000 * seed)
                for each in (key, (*key[:3], "all")):
                    scores.setdefault(each, {}).setdefault(place, []).append(found)
    return {key: _quartiles(rows) for key, rows in scores.items()}


def _quartiles(rows: dict[float, list[float]]) -> Row:
    quartiles = [np.quantile(found, (0.25, 0.5, 0.75)) for found in rows.values()]
    columns = [monotone([float(row[column]) for row in quartiles]) for column in range(3)]
    lower, median, upper = (tuple(round(value, 3) for value in column) for column in columns)
    return min(len(found) for found in rows.values()), lower, median, upper


def text(table: dict[Key, Row]) -> str:
    """Return the JSON document of the table, with one row per line."""
    rows = ",\n".join(f"  {json.dumps([*key, *table[key]])}" for key in sorted(table))
    return f'{{"log_information": {json.dumps(LOG_INFORMATION)}, "rows": [\n{rows}\n]}}\n'


def main(arguments: Sequence[str]) -> None:
    """Read the command line, measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=sorted(PLANS), action="append", help="algorithm to measure; the rows of all others stay"
    )
    parser.add_argument("--out", type=Path, default=TABLE_FILE, help="file to write")
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
