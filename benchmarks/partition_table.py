"""Calibrate the agreement of centroids: `python -m benchmarks.partition_table RUNS.jsonl --write counts`, or `--quick`.

Each set is clustered several times with other noise and other public seeds. The true agreement of a run is the mean
adjusted Rand index of its partition with those of the other runs. `--write` gives ranges of the index of refits the
quantiles of the true agreement over all runs of the file, and the share of poor agreement. Judge a table by the report
on a file with another `--draw`, which has other points and other seeds. New runs are appended to RUNS.jsonl.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from benchmarks.output import append_runs, read_runs
from benchmarks.verdicts import describe_intervals, describe_verdicts
from clustering.centroids.partition_agreement import BELOW_ALL, POOR, TABLE_FILE, AgreementRanges, Source
from clustering.density.map_agreement import adjusted_rand
from clustering.simulate import simulate, simulate_central
from sfumato.specs import GridKmeans, LdpKmeans, NoisyFcm, PhaseSketch, PrivateKmeans
from sfumato.specs.central import DpBisectingKmeans, DpDensityPeaks, DpKmeans, DpQuadtreeKmeans, DpUniformGridKmeans

EPSILONS = (0.5, 1.0, 2.0, 4.0)
RECORDS, DEVICES = 20_000, 60_000
BELOW = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99, BELOW_ALL)  # upper limits of the ranges of the index
LEAST_RUNS = 20  # a range with fewer runs is joined with the next higher one
# Sources with an index of the same meaning have one table, from runs of all methods with these sources.
GROUPS: dict[tuple[Source, ...], tuple[str, ...]] = {
    ("cells", "moments"): ("private_kmeans", "private_kmeans, delta", "private_kmeans, K counted"),
    ("grid",): ("grid_kmeans",),
    ("synopsis",): ("dp_uniform_grid_kmeans", "dp_quadtree_kmeans", "dp_density_peaks"),
    ("counts",): ("private_kmeans, K counted",),
    ("spreads",): ("private_kmeans",),
    ("sketch",): ("phase_sketch",),
    ("rounds",): ("ldp_kmeans",),
    ("centres",): ("dp_kmeans", "dp_bisecting_kmeans", "noisy_fcm"),
}  # fmt: skip
SEEDS_APART = 1000  # between the seeds of two draws
QUICK = ("right_2_3", "one_2_2", "even_2_3", "irrelevant_2_1_k3")

Points = NDArray[np.float64]
Rng = np.random.Generator
Row = dict[str, Any]


class Data(NamedTuple):
    """A set: the requested number of clusters, and a function that draws n points."""

    clusters: int
    draw: Callable[[Rng, int], Points]
    in_ball: bool = False


def blobs(
    rng: Rng,
    n: int,
    clusters: int,
    d: int,
    *,
    spread: float | None = None,
    apart: float | None = None,
    shares: Sequence[float] | None = None,
    widths: float | Sequence[float] = 1.0,
) -> Points:
    """Return normal clusters with a least distance between centres, seven spreads by default."""
    apart = apart or 0.72 * clusters ** (-1 / d) * max(1.0, (d / 4) ** 0.5)
    centres: list[Points] = []
    least = apart
    while len(centres) < clusters:
        place = rng.uniform(0.12, 0.88, d)
        if all(np.linalg.norm(place - other) > least for other in centres):
            centres.append(place)
        least *= 0.9998  # the box may have no room for so many
    labels = rng.choice(clusters, n, p=shares)
    return np.asarray(np.array(centres)[labels] + rng.normal(size=(n, d)) * np.asarray(widths) * (spread or apart / 7))


def embeddings(rng: Rng, n: int, clusters: int, d: int, largest: float) -> Points:
    """Return unit vectors of clusters of which one has the share `largest`, scaled into the ball of the box."""
    mean, centres = rng.normal(size=d), rng.normal(size=(clusters, d))
    centres /= np.linalg.norm(centres, axis=1)[:, None]
    shares = np.r_[largest, np.full(clusters - 1, (1 - largest) / (clusters - 1))]
    points = centres[rng.choice(clusters, n, p=shares)] + 0.5 * mean / np.linalg.norm(mean)
    points += 0.8 * rng.normal(size=(n, d)) / np.sqrt(d)
    return np.asarray(points / np.linalg.norm(points, axis=1)[:, None] / 2 + 0.5)


def even(rng: Rng, n: int, d: int) -> Points:
    """Return points of the box without a margin of .05."""
    return rng.uniform(0.05, 0.95, (n, d))


def skewed(rng: Rng, n: int, d: int, kind: str) -> Points:
    """Return one cluster with a tail."""
    if kind == "student":
        return np.asarray(0.5 + 0.06 * rng.standard_t(3, (n, d)))
    drawn = {
        "lognormal": lambda: np.exp(rng.normal(0, 0.6, (n, d))) / 8,
        "exponential": lambda: rng.exponential(0.12, (n, d)),
        "pareto": lambda: rng.pareto(3, (n, d)) / 6,
    }
    return np.asarray(drawn[kind]())


def irrelevant(rng: Rng, n: int, clusters: int, d: int, more: int) -> Points:
    """Return clusters in d features, beside even features."""
    return np.column_stack([blobs(rng, n, clusters, d), even(rng, n, more)])


def dominated(rng: Rng, n: int, clusters: int, d: int, *, is_even: bool) -> Points:
    """Return clusters in d features, beside one that is far wider and has none."""
    wide = even(rng, n, 1) if is_even else rng.normal(0.5, 0.2, (n, 1))
    return np.column_stack([wide, 0.4 + 0.2 * blobs(rng, n, clusters, d, spread=0.05)])


def small(rng: Rng, n: int, clusters: int, d: int, factor: float) -> Points:
    """Return clusters in a small part of the box."""
    return np.asarray((blobs(rng, n, clusters, d) - 0.5) / factor + 0.37)


def one(rng: Rng, n: int, d: int) -> Points:
    """Return one normal cluster."""
    return rng.normal(0.5, 0.12, (n, d))


def _sets() -> dict[str, Data]:
    sets: dict[str, Data] = {}
    for name, extra, sizes in (
        ("right", 0, ((2, 3), (2, 8), (2, 15), (3, 5), (4, 6), (8, 4), (8, 10), (16, 6))),
        ("many", 1, ((2, 3), (2, 5), (3, 4), (4, 5), (8, 4), (8, 8))),
        ("few", -1, ((2, 4), (2, 6), (3, 5), (8, 5), (4, 6))),
    ):
        sets |= {f"{name}_{d}_{k}": Data(k + extra, partial(blobs, clusters=k, d=d)) for d, k in sizes}
    sets |= {f"one_{d}_{k}": Data(k, partial(one, d=d)) for d, k in ((2, 2), (2, 4), (3, 3), (8, 2), (8, 4))}
    sets |= {f"even_{d}_{k}": Data(k, partial(even, d=d)) for d, k in ((2, 3), (2, 5), (3, 4), (8, 3))}
    for kind, d, k in (
        ("lognormal", 2, 2), ("exponential", 2, 3), ("pareto", 3, 2), ("student", 2, 3), ("exponential", 8, 3),
    ):  # fmt: skip
        sets[f"{kind}_{d}"] = Data(k, partial(skewed, d=d, kind=kind))
    for asked, k, d, more in ((3, 3, 2, 1), (4, 3, 2, 1), (4, 3, 3, 2), (4, 4, 3, 1), (3, 3, 3, 3)):
        sets[f"irrelevant_{d}_{more}_k{asked}"] = Data(asked, partial(irrelevant, clusters=k, d=d, more=more))
    for d, k, is_even in ((2, 3, True), (8, 4, True), (6, 3, False)):
        sets[f"scale_{d}"] = Data(k, partial(dominated, clusters=k, d=d - 1, is_even=is_even))
    for d, k, largest in ((64, 20, 0.3), (128, 30, 0.3), (384, 50, 0.3), (96, 12, 1 / 12)):
        sets[f"embeddings_{d}_{k}"] = Data(k, partial(embeddings, clusters=k, d=d, largest=largest), in_ball=True)
    for d, k, factor in ((2, 5, 10), (2, 5, 100), (3, 4, 10), (8, 6, 10), (8, 6, 100), (32, 8, 100)):
        sets[f"wide_{d}_{k}_{factor}"] = Data(k, partial(small, clusters=k, d=d, factor=factor))
    for d, k, apart in ((2, 4, 0.25), (3, 5, 0.27), (8, 4, 0.35)):
        sets[f"touch_{d}_{k}"] = Data(k, partial(blobs, clusters=k, d=d, spread=0.1, apart=apart))
    sets["long_2_4"] = Data(4, partial(blobs, clusters=4, d=2, spread=0.02, apart=0.3, widths=(5, 1)))
    shares = (0.5, 0.2, 0.1, 0.1, 0.06, 0.04)
    sets["unequal_2_6"] = Data(6, partial(blobs, clusters=6, d=2, shares=shares))
    return sets


SETS = _sets()


def choose_methods(data: Data, d: int, epsilon: float) -> Iterator[tuple[str, Any]]:
    """Yield the name and the parameters of each method that takes so many features and clusters."""
    k = data.clusters
    if not data.in_ball:
        yield "private_kmeans", PrivateKmeans(epsilon, clusters=k)
    if d > 4 or k > 8:
        yield "private_kmeans, delta", PrivateKmeans(epsilon, clusters=k, delta=1e-6)
    yield "private_kmeans, K counted", PrivateKmeans(epsilon, delta=1e-6 if d > 4 else 0)
    if d <= 16:
        yield "dp_kmeans", DpKmeans(epsilon, clusters=k)
        yield "dp_bisecting_kmeans", DpBisectingKmeans(epsilon, clusters=k)
        yield "ldp_kmeans", LdpKmeans(epsilon, clusters=k)
        yield "phase_sketch", PhaseSketch(epsilon, clusters=k)
    if d <= 4:
        yield "dp_uniform_grid_kmeans", DpUniformGridKmeans(epsilon, clusters=k)
        yield "dp_quadtree_kmeans", DpQuadtreeKmeans(epsilon, clusters=k)
        yield "dp_density_peaks", DpDensityPeaks(epsilon, clusters=k)
        yield "grid_kmeans", GridKmeans(epsilon, clusters=k)
        yield "noisy_fcm", NoisyFcm(epsilon, clusters=k)


def measure(name: str, epsilon: float, runs: int, is_chosen: Callable[[str], bool], draw_number: int) -> Iterator[Row]:
    """Yield one row per run of each chosen method on one draw of a set."""
    data, place = SETS[name], list(SETS).index(name)
    drawn: dict[int, Points] = {}
    first = SEEDS_APART * draw_number

    def draw(n: int) -> Points:
        if n not in drawn:
            drawn[n] = np.clip(data.draw(np.random.default_rng([place, 11 + draw_number]), n), 0, 1)
        return drawn[n]

    d = draw(RECORDS).shape[1]
    for method, params in choose_methods(data, d, epsilon):
        if not is_chosen(method):
            continue
        is_local = not params.definition.needs_records
        points = draw(DEVICES if is_local and not params.definition.reads_vectors else RECORDS)
        models = [
            simulate(each, points, seed=seed)
            if is_local
            else simulate_central(each, points, seed=seed, in_ball=data.in_ball)
            for seed, each in ((seed, _reseed(params, seed)) for seed in range(first, first + runs))
        ]
        labels, weights = [model.assign(points) for model in models], np.full(len(points), 1 / len(points))
        for i, model in enumerate(models):
            true = [adjusted_rand(labels[i], other, weights) for j, other in enumerate(labels) if j != i]
            again, loss = model.expected_agreement, model.expected_loss
            yield {
                "set": name, "method": method, "epsilon": epsilon, "seed": first + i, "agreement": float(np.mean(true)),
                "clusters": model.n_clusters, "verdict": model.verdict.value, **model.diagnostics["refits"],
                "expected": None if again is None else [again.value, again.lower, again.upper],
                "loss": None if loss is None else [loss.value, loss.lower, loss.upper],
            }  # fmt: skip


def _reseed(params: Any, seed: int) -> Any:
    """Return the parameters with another public seed, so that runs differ in all that they draw."""
    return replace(params, seed=seed) if hasattr(params, "seed") else params


def calibrate(rows: Sequence[Row]) -> AgreementRanges:
    """Return the quantiles of the agreement in ranges of the index, and the share of poor agreement.

    Quantiles increase with the index, and the share decreases: ranges that do not are pooled by isotonic regression
    (Barlow et al. 1972), weighted by their runs.
    """
    index, agreement = (np.array([row[name] for row in rows]) for name in ("index", "agreement"))
    below: list[float] = []
    found: list[list[float]] = []
    sizes: list[int] = []
    least = -np.inf
    for limit in BELOW:
        inside = agreement[(index >= least) & (index < limit)]
        if len(inside) < LEAST_RUNS and limit < BELOW[-1]:
            continue  # the range grows upwards
        inside = inside if len(inside) else agreement
        found.append([*np.quantile(inside, (0.5, 0.1, 0.9)).clip(0, 1), float(np.mean(inside < POOR))])
        below.append(limit)
        sizes.append(len(inside))
        least = limit
    places = np.arange(len(below))
    pooled = [
        IsotonicRegression(increasing=increases).fit_transform(places, figures, sample_weight=sizes)
        for figures, increases in zip(zip(*found, strict=True), (True, True, True, False), strict=True)
    ]
    value, lower, upper = np.round(pooled[:3], 2).tolist()
    return AgreementRanges(below, value, lower, upper, np.round(pooled[3], 3).tolist())


def report(rows: Sequence[Row]) -> Iterable[str]:
    """Return the figures of the runs, for each method, for each source of the expected agreement, and for all."""
    for key in ("method", "source"):
        for name in sorted({row[key] for row in rows}):
            yield f"{key} {name}, {_describe([row for row in rows if row[key] == name])}"
    yield f"all, {_describe(rows)}"


def _describe(rows: Sequence[Row]) -> str:
    true, expected = [row["agreement"] for row in rows], np.array([row["expected"] for row in rows])
    intervals = describe_intervals(true, expected[:, 1], expected[:, 2])
    return f"{len(rows)} runs: {intervals}; {describe_verdicts('agreement', true, [row['verdict'] for row in rows])}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the runs that are not in the file, report, and write tables on demand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method on a set")
    parser.add_argument(
        "--draw", type=int, default=0, help="number of the draw of points and seeds, the same in a file"
    )
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS, metavar="SET")
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--quick", action="store_true", help="measure four sets at one epsilon")
    parser.add_argument(
        "--write",
        nargs="+",
        default=(),
        choices=[group[0] for group in GROUPS],
        metavar="SOURCE",
        help=f"write the tables of these groups of sources: {', '.join('/'.join(group) for group in GROUPS)}",
    )
    options = parser.parse_args(arguments)
    rows = read_runs(options.runs)
    done = {(row["set"], row["epsilon"], row["method"]) for row in rows}

    def is_chosen(name: str, epsilon: float, method: str) -> bool:
        return (not options.methods or method in options.methods) and (name, epsilon, method) not in done

    missing = (
        row
        for epsilon in (EPSILONS[1:2] if options.quick else options.epsilons)
        for name in (QUICK if options.quick else options.sets)
        for row in measure(name, epsilon, options.seeds, partial(is_chosen, name, epsilon), options.draw)
    )
    rows += append_runs(options.runs, missing)
    print("\n".join(report(rows)))
    tables: dict[str, Any] = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    for sources, methods in GROUPS.items():
        if sources[0] in options.write:
            own = [row for row in rows if row["source"] in sources]
            if lacking := set(methods) - {row["method"] for row in own}:  # a table replaces the former one
                parser.error(f"{sources[0]} needs runs of {', '.join(sorted(lacking))}: measure these first")
            tables |= dict.fromkeys(sources, calibrate(own)._asdict())
    if options.write:
        TABLE_FILE.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
