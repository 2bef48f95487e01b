"""``python -m benchmarks.quality local|centroids|central|page``: measure quality, or put results into a page."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.output import run_page_command
from benchmarks.quality.central.benchmark import CENTRAL
from benchmarks.quality.centroids.benchmark import CENTROIDS
from benchmarks.quality.local.benchmark import LOCAL

PROGRAM = "python -m benchmarks.quality"
BENCHMARKS = {"local": LOCAL, "centroids": CENTROIDS, "central": CENTRAL}
IMAGES = ("ari-given.svg", "ari-auto.svg", "maps.png", "centroids-rmse.svg", "centroids-nicv.svg", "central-nicv.svg")


def blocks(folder: Path) -> dict[str, str]:
    """Return the blocks of every benchmark that the folder has results of."""
    bodies: dict[str, str] = {}
    for benchmark in BENCHMARKS.values():
        rows = benchmark.rows(folder)
        bodies |= {} if rows.empty else benchmark.blocks(rows)
    return bodies


def pictures(folder: Path) -> Iterator[tuple[Path, str]]:
    """Draw the charts of every benchmark again; yield the pictures with the names of their copies."""
    for benchmark in BENCHMARKS.values():
        rows = benchmark.rows(folder)
        if not rows.empty:
            benchmark.draw(folder, benchmark.summary(rows))
    for image in IMAGES:
        if (folder / image).exists():
            yield folder / image, f"benchmark-{image}"


def main(arguments: Sequence[str]) -> int:
    """Read the command line and run the command."""
    if arguments[:1] == ["page"]:
        return run_page_command(PROGRAM, arguments[1:], blocks, pictures)
    parser = argparse.ArgumentParser(prog=PROGRAM, epilog=f"See `{PROGRAM} page --help` for filling a page.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, benchmark in BENCHMARKS.items():
        benchmark.add_to(commands.add_parser(name, help=benchmark.help, description=benchmark.help))
    options = parser.parse_args(arguments)
    try:
        return BENCHMARKS[options.command].run(options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
