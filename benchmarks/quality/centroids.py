"""Centroids under local privacy: how near to the true ones, beside the papers' methods and the information bound.

Writes centroids.csv (one row a run), centroids-summary.csv, centroids.md and pictures into a
folder. Rows that the same software has made already are not made again.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.quality import centroid_charts, centroid_rows, centroid_tables, rows
from benchmarks.quality.centroid_data import find
from benchmarks.quality.centroid_measure import Task, measure, tasks, version_of
from benchmarks.quality.centroid_methods import METHODS
from benchmarks.quality.centroid_rows import CentroidRow, CentroidRun

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
QUICK_EPSILONS = (1.0, 4.0)
SIZE, QUICK_SIZE = 100_000, 30_000
SEEDS, QUICK_SEEDS = 5, 2
RESULTS, SUMMARY, DOCUMENT = "centroids.csv", "centroids-summary.csv", "centroids.md"


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="files of sets; without it, what needs none")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where everything is written")
    parser.add_argument("--quick", action="store_true", help="the short form: three sets, two seeds, two epsilons")
    parser.add_argument("--sets", type=_names, metavar="A,B", help="sets, or groups: blobs, real, all")
    parser.add_argument("--sizes", type=_whole, metavar="N,M", help="reports; 100000 by default")
    parser.add_argument("--methods", type=_names, metavar="A,B", help="of: " + ", ".join(METHODS))
    parser.add_argument("--epsilons", type=_numbers, metavar="A,B", help="0.25,0.5,1,2,4 by default")
    parser.add_argument("--seeds", type=int, metavar="N", help="5 by default, one after another")


def run(options: argparse.Namespace) -> int:
    """Make what is missing, and write everything anew from all rows there are."""
    console = Console(stderr=True)
    names = options.sets or (["quick"] if options.quick else ["all"])
    todo = tasks(
        find(options.data, names, options.sizes or [QUICK_SIZE if options.quick else SIZE]),
        options.methods or list(METHODS),
        options.epsilons or (QUICK_EPSILONS if options.quick else EPSILONS),
        range(options.seeds or (QUICK_SEEDS if options.quick else SEEDS)),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / RESULTS
    made = {(row.run, row.version) for row in centroid_rows.read(results)}
    missing = [task for task in todo if (task.run, version_of(task.run.method)) not in made]
    console.print(f"{len(todo):,} runs, {len(todo) - len(missing):,} of them made before")
    began = time.perf_counter()
    _make(missing, results, console)
    found = newest(centroid_rows.read(results))
    summaries = centroid_rows.summarise(found)
    rows.write_summary(options.out / SUMMARY, summaries)
    (options.out / DOCUMENT).write_text(centroid_tables.document(summaries, found), encoding="utf-8")
    centroid_charts.write(options.out, summaries)
    console.print(f"{time.perf_counter() - began:.0f} s; written to {options.out}")
    sys.stdout.write(centroid_tables.judged(summaries))
    return 0


def newest(found: Sequence[CentroidRow]) -> list[CentroidRow]:
    """Rows that may be averaged: of what differs by the seed alone, those of one software.

    That is the software as it is now, or else the one that made the last row.
    """
    groups: dict[CentroidRun, list[CentroidRow]] = {}
    for row in found:
        if row.method in METHODS:  # else it is no longer in the table
            groups.setdefault(replace(row.run, seed=0), []).append(row)
    kept: dict[CentroidRun, CentroidRow] = {}
    for group in groups.values():
        now = version_of(group[0].method)
        chosen = now if any(row.version == now for row in group) else group[-1].version
        kept |= {row.run: row for row in group if row.version == chosen}
    return list(kept.values())


def _make(missing: Sequence[Task], results: Path, console: Console) -> None:
    columns = (
        TextColumn("{task.description:<48}"),
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
            score = "refused" if row.rmse is None else f"RMSE {row.rmse:.4f}"
            progress.update(bar, advance=1, description=f"{row.method} · {row.set} · {score}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[float]:
    return [float(name) for name in _names(text)]


def _whole(text: str) -> list[int]:
    return [int(float(name)) for name in _names(text)]
