"""Run the demo: `python -m demo`. Perturbed reports of many devices become clusters, through a private service."""

import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.pool import Pool
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import numpy as np
import structlog
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from demo import cities, output, summary, weeks
from demo import data_file as data
from demo.production import Production, compare
from demo.scenario import DemoError, DemoResult, Scene, play
from demo.service import LocalService
from devservers.servers import DevServerError
from sfumato.errors import SfumatoError
from sfumato.model.geography import is_map
from sfumato.plotting.figures import Panel
from sfumato.specs import ShiftedGrid

N_DEVICES = 200_000
EPSILON = {"local": 3.0, "shuffled": 0.5}
# Local reports show the five largest cities with their surroundings. Shuffled reports have less noise, so that a finer
# map also shows Canberra and Hobart. Decision 0034 and docs/shuffler.md state how often.
COUNTRY_MAPS = {
    "local": ShiftedGrid(epsilon=EPSILON["local"], clusters=5, cells=10, length_scale=0.04),
    "shuffled": ShiftedGrid(epsilon=EPSILON["shuffled"], clusters=7, cells=20, length_scale=0.02),
}
MIN_REPORTS = 100  # default minimum of a dataset

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 130, 143


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    reports: int | None
    singles: int
    seed: int
    out: Path
    data: Path | None
    features: str | None
    bounds: str | None
    epsilon: float
    clusters: str
    production: bool = False
    trust: Literal["local", "shuffled"] = "local"
    weeks: int | None = None


def run(options: Options, console: Console) -> dict[str, object]:
    """Run the whole demo.

    Returns
    -------
    dict
        The summary, with the paths of the written files.

    Raises
    ------
    DemoError, DevServerError, SfumatoError
        The message is a sentence for the person at the terminal.
    """
    if options.weeks is not None:
        return weeks.run_weeks(options.weeks, options.seed, options.out, console)
    if options.trust == "shuffled":
        return _run_shuffled(options, console)
    began = time.perf_counter()
    scene, labels = _make_scene(options, console)
    with _child_process() as pool:
        exact = pool.apply_async(summary.compute_exact_labels, (scene, options.seed))
        bars = output.ProgressBars(console)
        with bars.progress:
            production = Production(max(1, scene.singles // 2)) if options.production else None
            outcome = play(scene, bars, production or LocalService())
        comparison = None
        if production is not None:
            with console.status("Repeating the job in an embedded reference run"):
                comparison = compare(scene, outcome, production)

        with console.status("Comparing with exact counts"):
            agreement = summary.measure_agreement(scene, outcome, exact.get(), labels)
    names = _find_cities(scene, outcome)
    paths = summary.write_maps(options.out, scene, outcome, names)
    document = summary.summarize(scene, outcome, agreement, names, time.perf_counter() - began) | paths
    document["result"] = summary.write_result(options.out, outcome, document, comparison)
    output.print_clusters(console, outcome, names)
    output.print_ledger(console, outcome)
    if comparison is not None:
        output.print_kills(console, comparison)
    output.print_conclusion(console, document)
    if comparison is not None and comparison.complaints:
        raise DemoError("; ".join(comparison.complaints))
    return document


def _run_shuffled(options: Options, console: Console) -> dict[str, object]:
    """Run the demo of the trust model `shuffled`, and return the summary with the paths of the written files."""
    from demo.shuffled import play_shuffled

    began = time.perf_counter()
    if options.production:
        raise DemoError("--production cannot be used with --trust shuffled")
    scene, _ = _make_scene(options, console)
    local_options = replace(options, trust="local", epsilon=EPSILON["local"])
    local_algorithm = _choose_map(local_options) if options.data is None else scene.algorithm
    local_scene = replace(scene, algorithm=replace(local_algorithm, epsilon=EPSILON["local"]))
    with _child_process() as pool:
        exact = [pool.apply_async(summary.compute_exact_labels, (each, options.seed)) for each in (scene, local_scene)]
        with console.status("Devices report to the service, and to the shuffler"):
            outcome = play_shuffled(scene, local_scene, os.cpu_count() or 1)
        with console.status("Comparing with exact counts"):
            shuffled, local = (
                summary.measure_agreement(scene, each, labels.get(), None).with_unperturbed
                for each, labels in zip((outcome.shuffled, outcome.local), exact, strict=True)
            )
    document = summary.summarize_shuffled(scene, outcome, shuffled, local, time.perf_counter() - began)
    titles = (
        f"Local reports, ε = {EPSILON['local']:g}",
        f"Shuffled reports, ε = {outcome.epsilon:.3g} towards the service",
    )
    panels = [
        Panel(each.model, title, each.n_reports, _find_cities(scene, each))
        for title, each in zip(titles, (outcome.local, outcome.shuffled), strict=True)
    ]
    document |= summary.write_panels(options.out, scene.name, panels)
    output.print_parties(console, document)
    return document


def _child_process() -> Pool:
    """Return a pool of one process. Its context kills the process at the end.

    A thread that compiles kernels could not be stopped: Ctrl-C would wait for the compiler, or abort the interpreter.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child inherits this, so it prints nothing at Ctrl-C
    try:
        return multiprocessing.get_context("spawn").Pool(1)
    finally:
        signal.signal(signal.SIGINT, handler)


def _make_scene(options: Options, console: Console) -> tuple[Scene, NDArray[np.int64] | None]:
    """Return the scene, and the labels of its records if they have some."""
    scene, labels = (
        (_make_country(options), None) if options.data is None else _read_file(options, options.data, console)
    )
    if len(scene.records) < MIN_REPORTS:
        raise DemoError(f"the data have {len(scene.records)} records, but a round needs at least {MIN_REPORTS}")
    return scene, labels


def _choose_map(options: Options) -> ShiftedGrid:
    """Return the parameters of the job over the devices of the country."""
    chosen = COUNTRY_MAPS[options.trust]
    return replace(chosen, epsilon=options.epsilon, clusters=_parse_clusters(options.clusters, chosen.clusters))


def _make_country(options: Options) -> Scene:
    for given in ("features", "bounds"):
        if getattr(options, given) is not None:
            raise DemoError(f"--{given} requires --data")
    n_devices = N_DEVICES if options.reports is None else options.reports
    records = cities.place_devices(cities.load_cities(cities.COUNTRY), n_devices, options.seed)
    singles = min(options.singles, n_devices)
    return Scene(cities.COUNTRY_NAME, cities.FEATURES, records, _choose_map(options), singles)


def _read_file(options: Options, path: Path, console: Console) -> tuple[Scene, NDArray[np.int64] | None]:
    if options.reports is not None:
        raise DemoError("--reports cannot be used with --data: a file has one device per record")
    algorithm = ShiftedGrid(epsilon=options.epsilon, clusters=_parse_clusters(options.clusters, None))
    names = None if options.features is None else [name.strip() for name in options.features.split(",")]
    read = data.read(path, names)
    if options.bounds is None:
        bounds = data.find_ranges(read.values)
        console.print(
            "[bold yellow]Warning:[/] without --bounds, the range of the data is used. Bounds must be public and "
            "independent of the data, because a range reveals the values of the most extreme people."
        )
    else:
        bounds = data.parse_bounds(options.bounds)
    singles = min(options.singles, len(read.values))
    return Scene(path.stem, data.make_features(read.names, bounds), read.values, algorithm, singles), read.labels


def _parse_clusters(text: str, default: int | None) -> int | None:
    if text == "auto":
        return None
    if text == "":
        return default
    if not text.isdecimal():
        raise DemoError("--clusters must be a number or auto")
    return int(text)


def _find_cities(scene: Scene, outcome: DemoResult) -> Sequence[str]:
    """Return a city for each cluster, if the features are longitude and latitude."""
    if len(scene.features) != 2 or not is_map(*scene.features):
        return ()
    return cities.find_landmarks(cities.load_cities(), outcome.model)


def main(
    reports: Annotated[int | None, typer.Option(min=MIN_REPORTS, help="Number of devices (without --data).")] = None,
    singles: Annotated[int, typer.Option(min=0, help="Number of devices that report individually.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the positions; noise is never seeded.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the result.")] = Path("demo-out"),
    data_file: Annotated[
        Path | None,
        typer.Option("--data", help="CSV file with a header, or NPZ file with X (and y)."),
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Comma-separated columns of the CSV file, or names for the columns of X.")
    ] = None,
    bounds: Annotated[str | None, typer.Option(help="Public bounds of the features: lo:hi,lo:hi.")] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Privacy cost (epsilon) of a report; with --trust shuffled, of a release towards the service.",
            show_default="3, or 0.5 with --trust shuffled",
        ),
    ] = None,
    trust: Annotated[
        Literal["local", "shuffled"],
        typer.Option(help="Trust model. With `shuffled`, a shuffler process is between devices and service."),
    ] = "local",
    clusters: Annotated[str, typer.Option(help="Number of clusters, or auto.")] = "",
    production: Annotated[
        bool,
        typer.Option(help="Run PostgreSQL, Redis and two of each process; kill one of each."),
    ] = False,
    n_weeks: Annotated[
        int | None,
        typer.Option("--weeks", min=4, max=52, help="Play so many weeks of a series instead, with a clock of its own."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line, and everything else to stderr.")
    ] = False,
) -> None:
    """Cluster the perturbed reports of many devices, through a private Sfumato service.

    By default: 200,000 devices at the cities of Australia, epsilon 3, five clusters.
    """
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    # A background process of a shell inherits that SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The SDK logs a warning for each repeated request. The demo counts them instead.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console = Console(stderr=as_json, highlight=False)
    cost = EPSILON[trust] if epsilon is None else epsilon
    options = Options(
        reports, singles, seed, out, data_file, features, bounds, cost, clusters, production, trust, n_weeks
    )
    try:
        document = run(options, console)
    except (DemoError, DevServerError, SfumatoError, OSError) as error:
        Console(stderr=True, highlight=False).print(
            f"[bold red]The demo failed:[/] {escape(str(error))}", soft_wrap=True
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the service is stopped.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    if not document["ledger_verified"]:
        raise typer.Exit(EXIT_FAILED)


def _exit_on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)  # leaves every `with` block, which stops the service


if __name__ == "__main__":
    typer.run(main)
