"""`python -m demo`: blurred reports of many devices become clusters, through a service of its own."""

import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import numpy as np
import structlog
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from demo import data, show, world
from demo.errors import DemoError
from demo.later import Later
from demo.own_service import OwnService
from demo.production import Production, prove
from demo.story import Ending, Scene, play
from sfumato.errors import SfumatoError
from sfumato.geography import is_map
from sfumato.specs import ShiftedGrid

WORLD_REPORTS = 200_000
WORLD_CLUSTERS = 6
# Chosen on this very world: of 30 simulated demos the clusters agreed with those of exact counts to an ARI of .95 in
# 93 % with these (median .98); with 13 or 15 coarse cells, or the smoothness the plan takes by itself, in 60 % at most.
# In the others South-East Asia, the Middle East or Africa is parted or joined another way.
WORLD_CELLS = 14
WORLD_LENGTH_SCALE = 0.11
MIN_REPORTS = 100  # what a dataset asks for at least, unless told otherwise

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 130, 143


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

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


def run(options: Options, console: Console) -> dict[str, object]:
    """The whole demo.

    Returns
    -------
    dict
        The summary, with the paths of what was written.

    Raises
    ------
    DemoError, SfumatoError
        With a sentence for the person at the terminal.
    """
    began = time.perf_counter()
    scene, labels = _scene(options, console)
    exact = Later(lambda: _exact(scene, options.seed))
    bars = show.Bars(console)
    with bars.progress:
        production = Production(max(1, scene.singles // 2)) if options.production else None
        ending = play(scene, bars, production or OwnService())
    from demo import verdict

    proof = None
    if production is not None:
        with console.status("The same job by an embedded twin"):
            proof = prove(scene, ending, production)

    with console.status("Comparing with exact counts"):
        agreed = verdict.agreement(scene, ending, exact.result(), labels)
    names = _cities(scene, ending)
    paths = verdict.draw(options.out, scene, ending, names)
    told = verdict.summary(scene, ending, agreed, names, time.perf_counter() - began) | paths
    told["result"] = verdict.store(options.out, ending, told, proof)
    show.clusters(console, ending, names)
    show.ledger(console, ending)
    if proof is not None:
        show.accidents(console, proof)
    show.last_word(console, told)
    if proof is not None and proof.complaints:
        raise DemoError("; ".join(proof.complaints))
    return told


def _exact(scene: Scene, seed: int) -> NDArray[np.int64]:
    from demo import verdict  # loads numba and compiles kernels, which is not for the main thread to wait for

    return verdict.exact_labels(scene, seed)


def _scene(options: Options, console: Console) -> tuple[Scene, NDArray[np.int64] | None]:
    """Who reports what, and the records' own labels if they have some."""
    scene, labels = (_world(options), None) if options.data is None else _file(options, options.data, console)
    if len(scene.records) < MIN_REPORTS:
        raise DemoError(f"there are {len(scene.records)} records; a round is not tallied with fewer than {MIN_REPORTS}")
    return scene, labels


def _world(options: Options) -> Scene:
    for given in ("features", "bounds"):
        if getattr(options, given) is not None:
            raise DemoError(f"--{given} goes with --data; the world has its own")
    n_devices = WORLD_REPORTS if options.reports is None else options.reports
    clusters = _clusters(options.clusters, WORLD_CLUSTERS)
    algorithm = ShiftedGrid(
        epsilon=options.epsilon, clusters=clusters, cells=WORLD_CELLS, length_scale=WORLD_LENGTH_SCALE
    )
    records = world.devices(world.cities(), n_devices, options.seed)
    return Scene("The world", world.FEATURES, records, algorithm, min(options.singles, n_devices))


def _file(options: Options, path: Path, console: Console) -> tuple[Scene, NDArray[np.int64] | None]:
    if options.reports is not None:
        raise DemoError("--reports is for the world; a file has one device for each of its records")
    algorithm = ShiftedGrid(epsilon=options.epsilon, clusters=_clusters(options.clusters, None))
    names = None if options.features is None else [name.strip() for name in options.features.split(",")]
    read = data.read(path, names)
    if options.bounds is None:
        bounds = data.ranges(read.values)
        console.print(
            "[bold yellow]Warning:[/] no --bounds were given, so the data's own range is taken. Bounds must "
            "be public and chosen without looking at the data: a range shows the values of its extreme people."
        )
    else:
        bounds = data.parse_bounds(options.bounds)
    singles = min(options.singles, len(read.values))
    return Scene(path.stem, data.features(read.names, bounds), read.values, algorithm, singles), read.labels


def _clusters(text: str, default: int | None) -> int | None:
    if text == "auto":
        return None
    if text == "":
        return default
    if not text.isdecimal():
        raise DemoError("--clusters is a number or auto")
    return int(text)


def _cities(scene: Scene, ending: Ending) -> Sequence[str]:
    """Cities to know the clusters by, where the features are longitude and latitude."""
    if len(scene.features) != 2 or not is_map(*scene.features):
        return ()
    return world.landmarks(world.cities(), ending.model)


def main(
    reports: Annotated[int | None, typer.Option(min=MIN_REPORTS, help="Devices in the world.")] = None,
    singles: Annotated[int, typer.Option(min=0, help="How many of them report by themselves.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Where the world's people are; never what their devices draw.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the pictures and the result go.")] = Path("demo-out"),
    data_file: Annotated[
        Path | None, typer.Option("--data", help="CSV with a header or NPZ with X (and y): one device for each record.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Columns of the CSV, or names for those of X, with commas between.")
    ] = None,
    bounds: Annotated[str | None, typer.Option(help="Public bounds of each feature: lo:hi,lo:hi.")] = None,
    epsilon: Annotated[float, typer.Option(help="What a report may cost its person.")] = 2.0,
    clusters: Annotated[str, typer.Option(help="How many, or auto; 6 for the world, auto for a file.")] = "",
    production: Annotated[
        bool, typer.Option(help="PostgreSQL, Redis, two gateways, two workers; one of each of these is killed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object as the last line; all else goes to stderr.")
    ] = False,
) -> None:
    """Blurred reports of many devices become clusters, through a Sfumato service of the demo's own.

    Without options: 200,000 devices at the world's cities, epsilon 2, six clusters.
    """
    signal.signal(signal.SIGTERM, _terminated)
    # A request that is sent again is a warning elsewhere; here it is what is shown, in figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console = Console(stderr=as_json, highlight=False)
    options = Options(reports, singles, seed, out, data_file, features, bounds, epsilon, clusters, production)
    try:
        told = run(options, console)
    except (DemoError, SfumatoError, OSError) as error:
        Console(stderr=True, highlight=False).print(
            f"[bold red]The demo failed:[/] {escape(str(error))}", soft_wrap=True
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the service is stopped.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    if not told["ledger_verified"]:
        raise typer.Exit(EXIT_FAILED)


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)  # through every `with`, which ends the service


if __name__ == "__main__":
    typer.run(main)
