"""Methods of the local model, against the papers', their comparators and non-private ceilings.

Writes results.csv (one row a run), summary.csv, results.md and pictures into a folder. Rows
that the same software has made already are not made again.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.quality import charts, maps, rows, tables
from benchmarks.quality.data import RESAMPLED_SIZE, SHAPE_SIZES, find
from benchmarks.quality.measure import Task, measure_all, tasks
from benchmarks.quality.methods import METHODS
from benchmarks.quality.rows import Row, Run
from benchmarks.quality.versions import software_version

EPSILONS = (0.5, 1.0, 2.0, 4.0)
QUICK_EPSILONS = (1.0, 4.0)
MAP_EPSILON = 1.0
MAP_SEED = 0


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="files of sets; without it, the shapes alone")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where everything is written")
    parser.add_argument("--quick", action="store_true", help="the short form: few sets, two seeds, two epsilons")
    parser.add_argument("--sets", type=_names, metavar="A,B", help="sets, or groups: shapes, ten, plane, geo, ..., all")
    parser.add_argument("--sizes", type=_whole, metavar="N,M", help="of the shapes; 15000,150000,1000000 by default")
    parser.add_argument("--methods", type=_names, metavar="A,B", help="of: " + ", ".join(METHODS))
    parser.add_argument("--epsilons", type=_numbers, metavar="A,B", help="0.5,1,2,4 by default")
    parser.add_argument("--seeds", type=int, metavar="N", help="5 by default")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes; 1 by default, 2 with --quick")
    parser.add_argument("--no-maps", action="store_true", help="leave out the picture of label maps")


def run(options: argparse.Namespace) -> int:
    """Make what is missing, and write everything anew from all rows there are."""
    console = Console(stderr=True)
    todo = tasks(
        find(options.data, options.sets or _default_sets(options), options.sizes or _default_sizes(options)),
        options.methods or list(METHODS),
        options.epsilons or (QUICK_EPSILONS if options.quick else EPSILONS),
        options.seeds or (2 if options.quick else 5),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.csv"
    made = {(row.run, row.version) for row in rows.read(results)}
    missing = [task for task in todo if (task.run, software_version(METHODS[task.run.method].module)) not in made]
    console.print(f"{len(todo):,} runs, {len(todo) - len(missing):,} of them made before")
    began = time.perf_counter()
    _make(missing, results, options.jobs or (2 if options.quick else 1), console)
    found = newest(rows.read(results))
    summaries = rows.summarise(found)
    rows.write_summary(options.out / "summary.csv", summaries)
    (options.out / "results.md").write_text(tables.document(summaries, found), encoding="utf-8")
    charts.write(options.out, summaries)
    if not options.no_maps:
        maps.write(options.out, options.methods or list(METHODS), _map_size(options), MAP_EPSILON, MAP_SEED)
    console.print(f"{time.perf_counter() - began:.0f} s; written to {options.out}")
    sys.stdout.write(tables.ten_sets(summaries))
    return 0


def newest(found: Sequence[Row]) -> list[Row]:
    """Rows that may be averaged: of what differs by the seed alone, those of one software.

    That is the software as it is now, or else the one that made the last row.
    """
    groups: dict[Run, list[Row]] = {}
    for row in found:
        if row.method in METHODS:  # else it is no longer in the table
            groups.setdefault(replace(row.run, seed=0), []).append(row)
    kept: dict[Run, Row] = {}
    for group in groups.values():
        now = software_version(METHODS[group[0].method].module)
        chosen = now if any(row.version == now for row in group) else group[-1].version
        kept |= {row.run: row for row in group if row.version == chosen}
    return list(kept.values())


def _make(missing: Sequence[Task], results: Path, jobs: int, console: Console) -> None:
    columns = (
        TextColumn("{task.description:<44}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(missing))
        for row in measure_all(missing, jobs):
            rows.add(results, row)
            score = "refused" if row.ari is None else f"ARI {row.ari:.2f}"
            progress.update(bar, advance=1, description=f"{row.method} · {row.set} · {score}")


def _default_sets(options: argparse.Namespace) -> list[str]:
    if options.data is None:
        return ["shapes"]
    return ["shapes", "quick"] if options.quick else ["all"]


def _default_sizes(options: argparse.Namespace) -> Sequence[int]:
    return SHAPE_SIZES[:1] if options.quick else SHAPE_SIZES


def _map_size(options: argparse.Namespace) -> int:
    return min(max(options.sizes or _default_sizes(options)), RESAMPLED_SIZE)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[float]:
    return [float(name) for name in _names(text)]


def _whole(text: str) -> list[int]:
    return [int(name) for name in _names(text)]
