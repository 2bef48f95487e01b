"""Calibrate the expected loss ratio: `python -m benchmarks.ratio_table RUNS.jsonl --data DIR --write`.

Each run compares the centroids of an algorithm with k-means without privacy on the same points. A calibration is a
line in the logarithms of two predictors. Its interval covers 80 % of the runs on sets that were left out.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import append_runs, read_runs
from benchmarks.quality.centroids.data import draw, find
from benchmarks.quality.scores import best_k_means, nicv
from clustering.centroids import expected_ratio
from clustering.centroids.verdict import BAD_LOSS, GOOD_LOSS
from clustering.simulate import simulate
from sfumato.specs import GridKmeans, LdpKmeans, PhaseSketch

ALGORITHMS = {"phase_sketch": PhaseSketch, "grid_kmeans": GridKmeans, "ldp_kmeans": LdpKmeans}
MOST_FEATURES = {"phase_sketch": 64, "grid_kmeans": 4, "ldp_kmeans": 64}
SETS = (
    *("blobs_2", "blobs_4", "blobs_8", "iris", "wine", "digits_pca8", "news20_svd8", "credit_pca4", "statlog", "mall"),
    *("taxi_od", "hepta", "xclara", "s1", "s3", "unbalance", "uber", "mnist_pca8", "a1", "credit", "earthquakes"),
)
EPSILONS = (0.5, 1.0, 2.0, 4.0)
SIZES = (50_000, 20_000)
START_POINTS, STARTS = 10_000, 3


def measure(folder: Path, methods: list[str], seeds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per run: set, method, epsilon, predictors and ratio."""
    for seed in range(seeds):
        for index, data in enumerate(find(folder, SETS, SIZES)):
            points = draw(data, seed).points
            least = nicv(points, best_k_means(points, points[:START_POINTS], data.clusters, STARTS, seed))
            for method in methods:
                if data.n_features > MOST_FEATURES[method]:
                    continue
                for epsilon in EPSILONS[index % 2 :: 2]:
                    params = ALGORITHMS[method](epsilon=epsilon, clusters=data.clusters, seed=seed)
                    model = simulate(params, points, seed=seed)
                    assert model.centroids is not None
                    yield {
                        "set": data.name,
                        "method": method,
                        "n": data.n,
                        "epsilon": epsilon,
                        "seed": seed,
                        "predictors": model.diagnostics["expected_ratio"]["predictors"],
                        "low": model.diagnostics["low_confidence"],
                        "ratio": nicv(points, model.centroids) / least,
                    }


def calibrate(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the calibration of a method's runs, and its figures on sets that were left out."""
    sets = np.array([row["set"] for row in rows])
    design = np.array([[1.0, *row["predictors"]] for row in rows])
    ratios = np.array([row["ratio"] for row in rows])
    target = np.log(np.maximum(ratios - 1, 0.0) + expected_ratio.FLOOR)
    predicted = np.empty(len(rows))
    for name in np.unique(sets):
        out = sets == name
        predicted[out] = design[out] @ np.linalg.lstsq(design[~out], target[~out], rcond=None)[0]
    below, above = np.quantile(target - predicted, [0.1, 0.9])
    line = np.linalg.lstsq(design, target, rcond=None)[0]
    upper = 1 - expected_ratio.FLOOR + np.exp(predicted + above)
    low = np.array([row["low"] for row in rows])
    reliable, doubtful = ~low & (upper <= GOOD_LOSS), low | (upper >= BAD_LOSS)
    table = {
        "constant": round(line[0], 4),
        "slopes": [round(slope, 4) for slope in line[1:]],
        "below": round(min(below, 0.0), 4),
        "above": round(max(above, 0.0), 4),
    }
    return table, {
        "runs": len(rows),
        "correlation": float(np.corrcoef(predicted, target)[0, 1]),
        "reliable": float(reliable.mean()),
        "reliable with a ratio of at most 1.3": float((ratios[reliable] <= GOOD_LOSS).mean()),
        "doubtful": float(doubtful.mean()),
        "ratio above 2 that is not doubtful": float((~doubtful[ratios > BAD_LOSS]).mean()),
        "ratio below 1.3 that is doubtful": float(doubtful[ratios < GOOD_LOSS].mean()),
    }


def main() -> None:
    """Measure the runs that are not in the file, print the figures, and write the table on demand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--data", type=Path, help="folder of data sets; without it, stored runs are calibrated")
    parser.add_argument("--methods", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.data is not None:
        list(append_runs(args.runs, measure(args.data, args.methods, args.seeds)))
    rows = read_runs(args.runs)
    tables = {}
    for method in ALGORITHMS:
        tables[method], figures = calibrate([row for row in rows if row["method"] == method])
        print(method, {name: round(value, 3) for name, value in figures.items()})
    if args.write:
        expected_ratio.TABLE_FILE.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
