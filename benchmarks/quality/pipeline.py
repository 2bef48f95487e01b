"""The command of a quality benchmark: plan runs, measure those that are missing, and report all of them."""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.quality import results
from benchmarks.quality.data import DataSet
from benchmarks.quality.results import software_version
from benchmarks.quality.runs import Method, Run, plan
from sfumato.errors import SfumatoError

Measures = dict[str, Any]
_COLUMNS = (TextColumn("{task.description:<56}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@dataclass(frozen=True)
class Section:
    """A block of a page; its body takes the summary and returns Markdown."""

    block: str  # name of the block
    body: Callable[[pd.DataFrame], str]
    is_printed: bool = False  # the command prints the section at its end


@dataclass(frozen=True)
class Defaults:
    """The values of options that the command line leaves out."""

    sets: Sequence[str]
    epsilons: Sequence[float]
    seeds: int
    sizes: Sequence[int] = ()
    jobs: int = 1


@dataclass(frozen=True)
class Benchmark:
    """A quality benchmark: its sets, methods, measures and report."""

    help: str  # one line for the command line
    methods: Mapping[str, Method]
    sources: tuple[str, ...]  # modules that every row depends on, besides those of its method
    score: str  # the measure that a run lacks if its method refused
    measures: tuple[str, ...]
    spread: tuple[str, ...]  # measures with a reported standard deviation
    find: Callable[[Path | None, Sequence[str], Sequence[int]], list[DataSet]]  # (folder, names, sizes)
    measure: Callable[[Run, DataSet], Measures]  # function of a module, so that other processes find it
    sections: tuple[Section, ...]
    draw: Callable[[Path, pd.DataFrame], object]  # (folder, summary) writes the charts
    full: Defaults
    quick: Defaults
    prefix: str = ""  # start of the names of files and blocks; empty for the main benchmark
    options: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # more options: keywords of `add_argument`
    # Takes the command line before any run, and returns the methods that run if it names none.
    prepare: Callable[[argparse.Namespace], list[str]] | None = None
    finish: Callable[[argparse.Namespace, Defaults], object] | None = None  # runs after the report

    @property
    def stem(self) -> str:
        """Return the name of the file of rows, without its ending."""
        return self.prefix or "results"

    def version_of(self, method: str) -> str:
        """Return the software version that rows of a method have now."""
        return software_version(self.methods[method].module, *self.sources)

    def rows(self, folder: Path) -> pd.DataFrame:
        """Read the rows of a folder that may be averaged."""
        rows = results.read(folder / f"{self.stem}.csv", self.measures)
        return results.newest(rows, self.methods, self.version_of)

    def summary(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return means over seeds."""
        return results.summarise(rows, self.measures, self.score, self.spread)

    def blocks(self, rows: pd.DataFrame) -> dict[str, str]:
        """Return the blocks of a page by their names."""
        start, summary = self.prefix and f"{self.prefix}-", self.summary(rows)
        bodies = {f"{start}{section.block}": section.body(summary) for section in self.sections}
        return {f"{start}run": run_line(rows), **bodies}

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        full = self.full
        parser.add_argument("--data", type=Path, metavar="DIR", help="folder of .npz files with data sets")
        parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder of results")
        parser.add_argument("--quick", action="store_true", help="run fewer sets, seeds and epsilons")
        parser.add_argument("--sets", type=_list_of(str), metavar="A,B", help="names of data sets, or groups of them")
        if full.sizes:
            parser.add_argument(
                "--sizes", type=_list_of(int), metavar="N,M", help=f"reports; default {_joined(full.sizes)}"
            )
        parser.add_argument("--methods", type=_list_of(str), metavar="A,B", help="some of: " + ", ".join(self.methods))
        epsilons = f"privacy budgets of a person; default {_joined(full.epsilons)}"
        parser.add_argument("--epsilons", type=_list_of(float), metavar="A,B", help=epsilons)
        parser.add_argument("--seeds", type=int, metavar="N", help=f"number of seeds; default {full.seeds}")
        for name, keywords in self.options.items():
            parser.add_argument(name, **keywords)

    def run(self, options: argparse.Namespace) -> int:
        """Measure the runs that are missing, then write the report from all rows of the folder."""
        defaults = self.quick if options.quick else self.full
        default_names = list(self.methods) if self.prepare is None else self.prepare(options)
        sets = self.find(options.data, options.sets or defaults.sets, getattr(options, "sizes", None) or defaults.sizes)
        names = options.methods or default_names
        todo = plan(sets, names, options.epsilons or defaults.epsilons, options.seeds or defaults.seeds, self.methods)
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{self.stem}.csv"
        done = results.done(results.read(path, self.measures))
        missing = [task for task in todo if (*astuple(task[0]), self.version_of(task[0].method)) not in done]
        console = Console(stderr=True)
        console.print(f"{len(todo):,} runs, {len(todo) - len(missing):,} of them measured before")
        began = time.perf_counter()
        self._measure(missing, path, getattr(options, "jobs", None) or defaults.jobs, console)
        self.write(options.out)
        if self.finish is not None:
            self.finish(options, defaults)
        console.print(f"{time.perf_counter() - began:.0f} s; results are in {options.out}")
        return 0

    def write(self, folder: Path) -> None:
        """Write summary and charts of a folder, and print the main tables."""
        rows = self.rows(folder)
        summary = self.summary(rows)
        path = folder / f"{self.prefix and self.prefix + '-'}summary.csv"
        summary.to_csv(path, index=False, float_format=results.FLOATS, lineterminator="\n")
        self.draw(folder, summary)
        print("\n".join(section.body(summary) for section in self.sections if section.is_printed), end="")

    def _measure(self, missing: Sequence[tuple[Run, DataSet]], path: Path, jobs: int, console: Console) -> None:
        with Progress(*_COLUMNS, console=console) as progress:
            bar = progress.add_task("", total=len(missing))
            for row in self._measured(missing, jobs):
                score = f"{self.score} {row[self.score]:.4g}" if self.score in row else "refused"
                progress.update(bar, advance=1, description=f"{row['method']} · {row['set']} · {score}")
                results.append(path, dict.fromkeys(self.measures) | row | {"version": self.version_of(row["method"])})

    def _measured(self, tasks: Sequence[tuple[Run, DataSet]], jobs: int) -> Iterator[Measures]:
        measure = partial(measured_row, self.measure)
        if jobs == 1:
            yield from map(measure, tasks)
            return
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:  # OpenMP kills forked processes
            yield from pool.imap_unordered(measure, tasks)


def measured_row(measure: Callable[[Run, DataSet], Measures], task: tuple[Run, DataSet]) -> Measures:
    """Measure a run and return its row; the row of a run that its method refused has a note and no measures."""
    run, data = task
    row = {**asdict(run), "n_features": data.n_features, "clusters": data.clusters, "mark": data.mark, "note": ""}
    try:
        return row | measure(run, data)
    except (SfumatoError, ValueError) as refusal:
        return row | {"note": " ".join(f"{type(refusal).__name__}: {refusal}".split())}


def run_line(rows: pd.DataFrame) -> str:
    """Return how many rows there are, of how many seeds, and the software that made them."""
    versions = ", ".join(f"`{version}`" for version in sorted(rows.version.unique()))
    n_seeds = rows.seed.nunique()
    return f"{len(rows):,} runs, up to {n_seeds} seed{'s' * (n_seeds != 1)}; software {versions or 'none'}.\n"


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser of comma-separated values."""
    return lambda text: [kind(part.strip()) for part in text.split(",") if part.strip()]


def _joined(values: Sequence[float]) -> str:
    return ",".join(f"{value:.7g}" for value in values)
