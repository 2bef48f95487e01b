"""Centroids of records: ours beside the papers' methods and a peer, over the non-private k-means.

Writes central.csv (one row a run), central-summary.csv, central.md and a picture into a folder.
Rows that the same software has made already are not made again.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score

from benchmarks.quality import central_charts, central_rows, central_tables, rows
from benchmarks.quality.central_data import CentralSet, load, wanted
from benchmarks.quality.central_methods import GRID, Method, k_means, with_peer
from benchmarks.quality.central_rows import CentralRow, CentralRun
from benchmarks.quality.centroid_scores import Points, f_measure, nearest, nicv
from benchmarks.quality.versions import software_version
from clustering.metrics import adjusted_rand_index
from sfumato.errors import SfumatoError

EPSILONS = (1.0, 0.1, 0.05)
SEEDS, QUICK_SEEDS = 10, 2
RESULTS, SUMMARY, DOCUMENT = "central.csv", "central-summary.csv", "central.md"
SCORED_POINTS = 5_000  # silhouette takes their square
BEHIND = ("benchmarks.quality.central_data", "benchmarks.quality.centroid_scores", "clustering.curator")


@dataclass(frozen=True)
class Task:
    """A run, its method, and where its set lies."""

    run: CentralRun
    method: Method
    folder: Path | None

    @property
    def version(self) -> str:
        """Which software makes its row."""
        return software_version(self.method.module, BEHIND)


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="files of sets; without it, what needs none")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where everything is written")
    parser.add_argument("--quick", action="store_true", help="the short form: two sets, two seeds")
    parser.add_argument("--sets", type=_names, metavar="A,B", help="sets, or groups: blobs, real, quick, all")
    parser.add_argument("--methods", type=_names, metavar="A,B", help="by default all of them")
    parser.add_argument("--epsilons", type=_numbers, metavar="A,B", help="1,0.1,0.05 by default")
    parser.add_argument("--seeds", type=int, metavar="N", help="10 by default, one after another")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="an interpreter that has diffprivlib")


def run(options: argparse.Namespace) -> int:
    """Make what is missing, and write everything anew from all rows there are."""
    console = Console(stderr=True)
    methods = with_peer(options.peer)
    sets = wanted(options.data, options.sets or (["quick"] if options.quick else ["all"]))
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    todo = tasks(sets, options.methods or list(methods), options.epsilons or EPSILONS, seeds, methods, options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / RESULTS
    made = {(row.run, row.version) for row in central_rows.read(results)}
    missing = [task for task in todo if (task.run, task.version) not in made]
    console.print(f"{len(todo):,} runs, {len(todo) - len(missing):,} of them made before")
    _make(missing, results, console)
    found = [row for row in central_rows.newest(central_rows.read(results)) if row.method in with_peer(Path())]
    summaries = central_rows.summarise(found)
    rows.write_summary(options.out / SUMMARY, summaries)
    (options.out / DOCUMENT).write_text(central_tables.document(summaries, found), encoding="utf-8")
    central_charts.write(options.out, summaries)
    sys.stdout.write(central_tables.nicv_tables(summaries) + "\n" + central_tables.judged(summaries))
    return 0


def tasks(
    sets: Sequence[str],
    names: Sequence[str],
    epsilons: Sequence[float],
    n_seeds: int,
    methods: Mapping[str, Method],
    folder: Path | None = None,
) -> list[Task]:
    """Every run, set by set; what is not private is run once.

    Raises
    ------
    ValueError
        A name that is no method.
    """
    unknown = [name for name in names if name not in methods]
    if unknown:
        raise ValueError(f"no method is called {unknown[0]}; there are {', '.join(methods)}")
    return [
        Task(CentralRun(name, set_name, epsilon, seed), methods[name], folder)
        for set_name in sets
        for seed in range(n_seeds)
        for name in names
        if methods[name].is_private or seed == 0
        for epsilon in (epsilons if methods[name].is_private else [None])
    ]


def measure(task: Task) -> CentralRow:
    """Make a run and score it; what the method refuses becomes a row without measures."""
    run, data = task.run, load(task.run.set, task.folder)
    n, d = data.points.shape
    began = time.process_time()
    try:
        centres = task.method.run(data.points, run.epsilon or 0.0, data.clusters, run.seed)
    except (SfumatoError, ValueError) as refusal:
        note = f"{type(refusal).__name__}: {refusal}"
        return CentralRow(
            run.method, run.set, n, d, data.clusters, run.epsilon, run.seed, version=task.version, note=note
        )
    seconds = time.process_time() - began
    measured = scores(data, centres, task.folder)
    grid = _grid_nicv(run.set, run.epsilon, run.seed, task.folder) if run.epsilon is not None else None
    return CentralRow(
        run.method,
        run.set,
        n,
        d,
        data.clusters,
        run.epsilon,
        run.seed,
        rcp=None if grid is None else (grid - measured["sse"] / n) / grid,
        seconds=seconds,
        version=task.version,
        **measured,  # type: ignore[arg-type]
    )


def scores(data: CentralSet, centres: Points, folder: Path | None) -> dict[str, float]:
    """What centres are worth; what takes two clusters is left out where one centre has all points."""
    labels = nearest(data.points, centres)
    own, truth = _open(data.name, folder)
    scored = truth > 0
    spread = nicv(data.points, centres)
    found = {
        "nicv_ratio": spread / own,
        "sse": spread * len(data.points),
        "f_measure": f_measure(truth[scored], labels[scored]),
        "ari": adjusted_rand_index(truth[scored], labels[scored]),
    }
    few = np.random.default_rng(0).permutation(len(data.points))[:SCORED_POINTS]
    if 1 < len(np.unique(labels[few])) < len(few):
        points, named = data.points[few], labels[few]
        found |= {
            "silhouette": float(silhouette_score(points, named)),
            "davies_bouldin": float(davies_bouldin_score(points, named)),
            "calinski_harabasz": float(calinski_harabasz_score(points, named)),
        }
    return found


@lru_cache(maxsize=2)
def _open(name: str, folder: Path | None) -> tuple[float, "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    """NICV of the best non-private k-means, and the labels that are scored against."""
    data = load(name, folder)
    centres = min((k_means(data.points, data.clusters, seed) for seed in (1, 2)), key=lambda c: nicv(data.points, c))
    truth = data.labels if data.labels is not None else nearest(data.points, centres) + 1
    return nicv(data.points, centres), truth


@lru_cache(maxsize=64)
def _grid_nicv(name: str, epsilon: float, seed: int, folder: Path | None) -> float:
    data = load(name, folder)
    return nicv(data.points, with_peer(None)[GRID].run(data.points, epsilon, data.clusters, seed))


def _make(missing: Sequence[Task], results: Path, console: Console) -> None:
    columns = (
        TextColumn("{task.description:<56}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(missing))
        for task in missing:
            row = measure(task)
            rows.add(results, row)
            score = "refused" if row.nicv_ratio is None else f"{row.nicv_ratio:.3f}"
            progress.update(bar, advance=1, description=f"{row.method} · {row.set} · {score}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[float]:
    return [float(name) for name in _names(text)]
