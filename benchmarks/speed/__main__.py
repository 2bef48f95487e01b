"""`python -m benchmarks.speed all|GROUP... --out DIR`: compare ours with references; `page` fills a page.

The command appends each row to DIR/rows.csv. A group that runs again replaces all its rows.
machine.json describes the machine.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from rich.console import Console

from benchmarks.output import MissingTool, run_page_command
from benchmarks.peers.peer import COMMAND, PeerFailed
from benchmarks.speed.harness import results
from benchmarks.speed.harness.measurement import Group, Measurement, Setting

PROGRAM = "python -m benchmarks.speed"
TURNS, QUICK_TURNS = 5, 2
DEVELOPMENT = "make .venv/.ready"

# (module, command that installs its dependencies). A module is imported when its group runs, because its dependencies
# may be missing.
GROUPS = {
    "ingest": ("benchmarks.speed.ingest", DEVELOPMENT),
    "cold": ("benchmarks.speed.cold", DEVELOPMENT),
    "jobs": ("benchmarks.speed.jobs", DEVELOPMENT),
    "fold": ("benchmarks.speed.fold", COMMAND),
    "shuffling": ("benchmarks.speed.shuffling", DEVELOPMENT),
    "kernels": ("benchmarks.speed.kernels.k_means", COMMAND),
    "scale": ("benchmarks.speed.scale", DEVELOPMENT),
}


def load_group(name: str) -> Group:
    """Import the module of a group. Raise MissingTool if it, or one of its dependencies, is missing."""
    module, installed_by = GROUPS[name]
    try:
        return cast(Group, importlib.import_module(module))
    except ModuleNotFoundError as error:
        raise MissingTool(f"the group {name} needs the module {error.name}", installed_by) from error


def measure(names: Sequence[str], setting: Setting, folder: Path) -> list[str]:
    """Run these groups one after the other; return a sentence for each group that failed."""
    failed = []
    for name in names:
        began = time.monotonic()
        try:
            group = load_group(name)
            results.drop_groups(folder, [name])
            for row in group.rows(setting):
                results.add(folder, name, row)
                setting.progress(f"  {name}: {_progress_line(row)}")
        except (MissingTool, PeerFailed) as error:
            failed.append(f"{name}: {error}")
        setting.progress(f"{name}: {time.monotonic() - began:.0f} s")
    return failed


def _progress_line(row: Measurement) -> str:
    ours, theirs = (results.figure(value, row.unit) for value in (row.ours, row.theirs))
    bar = "" if row.bar is None else f" (bar {row.bar:g}{'' if row.is_met else ', MISSED'})"
    return f"{row.name}: {ours}, {row.reference}: {theirs}; {row.ratio:.3g}{bar}"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=__doc__,
        epilog=f"See `{PROGRAM} page --help` for filling a page.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="+", choices=["all", *GROUPS], metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder of results")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the work, two turns, no rows that take minutes"
    )
    turns = f"number of turns; default {TURNS}, with --quick {QUICK_TURNS}"
    parser.add_argument("--turns", type=int, metavar="N", help=turns)
    line = "print one line of JSON, a list of {name, ratio, bar}, instead of tables"
    parser.add_argument("--json", action="store_true", help=line)
    options = parser.parse_args(arguments)
    if options.turns is not None and options.turns < 1:
        parser.error("--turns must be at least 1")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure and report. Return 1 if a group failed; a missed bar is reported and is no failure."""
    if arguments[:1] == ["page"]:
        return run_page_command(PROGRAM, arguments[1:], results.blocks)
    options = parse(arguments)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    names = list(GROUPS) if "all" in options.groups else [name for name in GROUPS if name in options.groups]
    turns = options.turns or (QUICK_TURNS if options.quick else TURNS)
    options.out.mkdir(parents=True, exist_ok=True)
    results.write_machine(options.out)
    failed = measure(names, Setting(options.quick, turns, console.print, options.out), options.out)
    rows = results.read(options.out)
    rows = rows[rows.group.isin(names)]
    for sentence in failed:
        console.print(f"not measured: {sentence}")
    if options.json:
        sys.stdout.write(results.json_line(rows) + "\n")
    else:
        sys.stdout.write(results.markdown(rows) + "\n" + results.missed_bars(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
