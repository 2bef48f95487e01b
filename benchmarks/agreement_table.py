"""Measure the trust in label maps: `python -m benchmarks.agreement_table RUNS.jsonl --write` writes the calibration.

The 22 sets are those of decision record 0029. A sample has 100,000 points drawn with replacement, with a jitter
of .005 of the range, in a box with a margin of a tenth. Each round is divided twice, with an automatic and with a given
number of clusters. Eleven sets with one mode follow. The environment variable SFUMATO_DATA names the folder with the
files of the sets. New runs are appended to RUNS.jsonl; existing runs are not repeated.

The estimate is a ridge regression of the adjusted Rand index on the mean agreement A and the gap g. Each set is
predicted by the other sets. The interval has the quantiles of the residuals of these predictions.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from benchmarks.output import append_runs, read_runs
from benchmarks.quality.data import Labels, Points, read_file
from benchmarks.verdicts import describe_intervals, describe_verdicts
from clustering.density.map_agreement import Agreement
from clustering.density.map_division import DOUBTFUL, RELIABLE, TABLE_FILE
from clustering.grids.shifted_grid import fit, shifted_grid
from clustering.metrics import adjusted_rand_index
from clustering.simulate import SeededEntropy, collect
from sfumato.specs import Feature, ShiftedGrid

# The first set and each second one after it are the tuning half of the study, the others the other half.
SETS = (
    "syn_moons_15k", "syn_circles_15k", "sipu_s1", "sipu_s3", "sipu_unbalance", "sipu_aggregation",
    "other_chameleon_t4_8k", "fcps_target", "wut_smile", "wut_mk2", "sipu_spiral", "other_chameleon_t5_8k",
    "wut_isolation", "wut_windows", "graves_ring", "wut_stripes", "sipu_d31", "wut_x3", "sipu_jain", "wut_graph",
    "other_hdbscan", "fcps_lsun",
)  # fmt: skip
UNIMODAL = (
    "gauss", "uniform", "ring", "bar", "skew", "wide", "diagonal", "crescent", "student", "tail", "triangle",
)  # fmt: skip
EPSILONS = (0.5, 1.0, 2.0, 4.0, 7.0)
N = 100_000
FEATURES = (Feature("x", 0, 1), Feature("y", 0, 1))
PLACES = (0.4, 0.55, 0.7, 0.85, 2.0)  # upper limits of the ranges of the estimate

Row = dict[str, Any]


def sample(name: str, seed: int) -> tuple[Points, Labels]:
    """Return points of a set in [0, 1]^2 with their labels from 0."""
    if name in UNIMODAL:
        return _unimodal(name, np.random.default_rng(seed + 100)).clip(0, 1), np.zeros(N, dtype=np.int64)
    rng = np.random.default_rng(seed)
    points, labels = read_file(Path(os.environ["SFUMATO_DATA"]) / f"{name}.npz")
    points, labels = points[labels > 0], labels[labels > 0]
    drawn = rng.integers(0, len(points), N)
    places = (points[drawn] - points.min(axis=0)) / np.ptp(points, axis=0) + rng.normal(0, 0.005, (N, 2))
    return np.asarray(((places + 0.1) / 1.2).clip(0, 1)), labels[drawn] - 1


def _unimodal(name: str, rng: np.random.Generator) -> Points:
    if name in ("gauss", "wide"):
        return rng.normal(0.5, 0.13 if name == "gauss" else 0.22, (N, 2))
    if name == "student":
        return 0.5 + 0.07 * rng.standard_t(3, (N, 2))
    if name in ("uniform", "triangle"):
        x, y = rng.uniform(0.08, 0.92, (2, N))
        is_outside = (x + y > 1) & (name == "triangle")
        return np.column_stack([np.where(is_outside, 1 - x, x), np.where(is_outside, 1 - y, y)])
    if name == "ring":
        angle, radius = rng.uniform(0, 2 * np.pi, N), 0.33 + rng.normal(0, 0.04, N)
        return np.asarray(0.5 + radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]))
    if name == "crescent":
        angle = rng.uniform(0, np.pi, N)
        return np.column_stack([0.5 + 0.35 * np.cos(angle), 0.25 + 0.5 * np.sin(angle)]) + rng.normal(0, 0.03, (N, 2))
    if name == "bar":
        return np.column_stack([rng.uniform(0.1, 0.9, N), rng.normal(0.5, 0.05, N)])
    if name == "diagonal":
        return 0.5 + rng.normal(0, 0.18, (N, 1)) + rng.normal(0, 0.05, (N, 2))
    if name == "tail":
        x = rng.exponential(0.15, N)
        return np.column_stack([0.15 + x, 0.5 + (0.04 + 0.3 * x) * rng.normal(0, 1, N)])
    return rng.exponential(0.12, (N, 2)) + 0.08


def measure(name: str, seed: int, epsilons: Sequence[float]) -> Iterable[Row]:
    """Run both divisions of one sample at each epsilon."""
    if not epsilons:
        return
    points, labels = sample(name, seed)
    for epsilon in epsilons:
        entropy = SeededEntropy(10_000 * seed + round(100 * epsilon))
        spec = next(shifted_grid(ShiftedGrid(epsilon), FEATURES, N))
        collected = collect(spec, points, entropy, entropy.words(N))
        true_clusters = int(labels.max()) + 1
        for clusters in (None, true_clusters) if true_clusters > 1 else (None,):
            start = time.process_time()
            model = fit(ShiftedGrid(epsilon, clusters), collected)
            seconds = time.process_time() - start
            names = ("stability", "halves", "between_halves", "scales", "gap", "cluster_interval")
            yield {
                "set": name, "seed": seed, "epsilon": epsilon, "given": clusters is not None,
                "true_clusters": true_clusters, "clusters": model.n_clusters, "verdict": model.verdict.value,
                "ari": adjusted_rand_index(model.assign(points), labels), "seconds": seconds,
                **{key: model.diagnostics[key] for key in names},
            }  # fmt: skip


# ---- the estimate ----


def agreement_of(row: Row) -> Agreement:
    """Return the agreement of a run."""
    return Agreement(*(row[name] for name in ("stability", "halves", "between_halves", "scales", "gap")))


def regress(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the intercept and the coefficients of A and g, with a ridge penalty of 1 on the coefficients."""
    x = np.array([(agreement_of(row).mean, row["gap"]) for row in rows])
    y = np.array([row["ari"] for row in rows])
    centred = x - x.mean(axis=0)
    slopes = np.linalg.solve(centred.T @ centred + np.eye(2), centred.T @ (y - y.mean()))
    return np.array([y.mean() - x.mean(axis=0) @ slopes, *slopes])


def predict(rows: Sequence[Row], coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the estimate of each run."""
    x = np.array([(1.0, agreement_of(row).mean, row["gap"]) for row in rows])
    return np.asarray((x @ coefficients).clip(0, 1), dtype=np.float64)


def left_out(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the estimate of each run by the runs of the other sets."""
    found = np.empty(len(rows))
    for name in {row["set"] for row in rows}:
        own = np.array([row["set"] == name for row in rows])
        rest = [row for row in rows if row["set"] != name]
        found[own] = predict([row for row in rows if row["set"] == name], regress(rest))
    return found


def bounds(rows: Sequence[Row], estimates: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """Return the 10 % and 90 % quantiles of the residuals in each range of the estimate."""
    residuals = np.array([row["ari"] for row in rows]) - estimates
    place = np.searchsorted(PLACES, estimates, side="right")
    quantiles = [np.quantile(residuals[place == p] if (place == p).any() else residuals, (0.1, 0.9)) for p in range(5)]
    return [round(float(low), 2) for low, _ in quantiles], [round(float(high), 2) for _, high in quantiles]


def table_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the calibration that the runs give."""
    intercept, agreement, gap = (round(float(value), 3) for value in regress(rows))
    lower, upper = bounds(rows, left_out(rows))
    return {
        "intercept": intercept, "agreement": agreement, "gap": gap,
        "below": list(PLACES), "lower": lower, "upper": upper,
    }  # fmt: skip


# ---- the report ----


def report(rows: Sequence[Row]) -> Iterable[str]:
    """Return the figures of the runs as lines."""
    labelled = [row for row in rows if row["true_clusters"] > 1]
    for given in (False, True):
        for half, names in (("tuning", SETS[0::2]), ("held back", SETS[1::2])):
            cells = [
                _mean_over_sets(
                    [r for r in labelled if r["given"] == given and r["set"] in names and r["epsilon"] == e]
                )
                for e in EPSILONS
            ]
            yield f"ARI, K {'given' if given else 'automatic'}, {half}: " + "  ".join(cells)
    for epsilon in EPSILONS:
        auto = [row for row in rows if row["epsilon"] == epsilon and not row["given"]]
        own = [row for row in auto if row["true_clusters"] > 1]
        single = [row for row in auto if row["true_clusters"] == 1]
        if not own or not single:
            continue
        split = [row for row in single if row["clusters"] > 1]
        inside = [row["cluster_interval"][0] <= row["true_clusters"] <= row["cluster_interval"][1] for row in own]
        yield (
            f"epsilon {epsilon}: one-cluster answers {np.mean([r['clusters'] == 1 for r in own]):.3f}, "
            f"K exact {np.mean([r['clusters'] == r['true_clusters'] for r in own]):.2f}, "
            f"interval covers K {np.mean(inside):.2f}, "
            f"unimodal split {len(split)}/{len(single)} (verdicts {sorted(r['verdict'] for r in split)}), "
            f"seconds mean {np.mean([r['seconds'] for r in auto]):.2f} most {max(r['seconds'] for r in auto):.2f}"
        )
    for given in (False, True):
        yield from _report_trust(f"K {'given' if given else 'automatic'}", [r for r in labelled if r["given"] == given])
    yield from _report_trust("both", labelled)


def _mean_over_sets(rows: Sequence[Row]) -> str:
    means = [np.mean([row["ari"] for row in rows if row["set"] == name]) for name in sorted({r["set"] for r in rows})]
    return f"{np.mean(means):.3f} ± {np.std(means, ddof=1) / len(means) ** 0.5:.3f}" if len(means) > 1 else "–"


def _report_trust(title: str, rows: Sequence[Row]) -> Iterable[str]:
    ari, estimates = np.array([row["ari"] for row in rows]), left_out(rows)
    lowest, highest = np.empty(len(rows)), np.empty(len(rows))
    for name in {row["set"] for row in rows}:
        own = np.array([row["set"] == name for row in rows])
        rest = [row for row in rows if row["set"] != name]
        lower, upper = (np.array(bound) for bound in bounds(rest, estimates[~own]))
        place = np.searchsorted(PLACES, estimates[own], side="right")
        lowest[own] = (estimates[own] + lower[place]).clip(0)
        highest[own] = (estimates[own] + upper[place]).clip(None, 1)
    low = ari < 0.6
    ranks = rankdata(-estimates)
    auc = (ranks[low].sum() - low.sum() * (low.sum() + 1) / 2) / (low.sum() * (~low).sum())
    yield (
        f"{title}, {len(rows)} runs: correlation {np.corrcoef(estimates, ari)[0, 1]:.3f}, MAE "
        f"{np.abs(estimates - ari).mean():.3f}, AUC for ARI < .6 {auc:.3f}, {describe_intervals(ari, lowest, highest)}"
    )
    verdicts = describe_verdicts("ARI", ari, [row["verdict"] for row in rows])
    yield f"{title}: {verdicts}; cut-offs {DOUBTFUL}, {RELIABLE}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--sets", nargs="*", default=[*SETS, *UNIMODAL])
    parser.add_argument("--epsilons", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--write", action="store_true", help="write the table of the calibration")
    options = parser.parse_args(arguments)
    rows = read_runs(options.runs)
    done = {(row["set"], row["seed"], row["epsilon"]) for row in rows}
    missing = (
        row
        for seed in options.seeds
        for name in options.sets
        for row in measure(name, seed, [each for each in options.epsilons if (name, seed, each) not in done])
    )
    rows += append_runs(options.runs, missing)
    print("\n".join(report(rows)))
    if options.write:
        labelled = [row for row in rows if row["true_clusters"] > 1]
        TABLE_FILE.write_text(json.dumps(table_of(labelled), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
