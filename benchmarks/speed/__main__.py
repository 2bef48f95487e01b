"""`python -m benchmarks.speed all|GROUP... --out DIR`: ours beside its reference, row by row; `page` fills a page.

Each row is added to DIR/rows.csv as it is made; a group that is run again is measured anew as a whole. From all rows
there are, speed.md and a picture for each group are written, and machine.json says what they were measured on.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rich.console import Console

from benchmarks.speed import machine, table
from benchmarks.speed.peer import COMMAND, PeerFailed
from benchmarks.speed.row import Group, Missing, Row, Setting

TURNS, QUICK_TURNS = 5, 2
DOCUMENT = "speed.md"
DEVELOPMENT = "make .venv/.ready"


@dataclass(frozen=True)
class Source:
    """Where a group's rows come from.

    Attributes
    ----------
    module : str
        Imported by who runs it alone: what it needs may not be installed.
    installed_by : str
        The command that puts what it imports there.
    """

    module: str
    installed_by: str = DEVELOPMENT


GROUPS = {
    "ingest": Source("benchmarks.speed.ingest"),
    "cold": Source("benchmarks.speed.cold"),
    "jobs": Source("benchmarks.speed.jobs"),
    "fold": Source("benchmarks.speed.fold"),
    "kernels": Source("benchmarks.speed.kernels", COMMAND),
    "growth": Source("benchmarks.speed.growth"),
    "scale": Source("benchmarks.speed.scale"),
}


def loaded(name: str) -> Group:
    """A group's module. Raises Missing where it, or what it imports, is not there."""
    source = GROUPS[name]
    try:
        return cast(Group, importlib.import_module(source.module))
    except ModuleNotFoundError as error:
        raise Missing(f"the group {name} needs the module {error.name}", source.installed_by) from error


def measure(names: Sequence[str], setting: Setting, folder: Path) -> list[str]:
    """Run these groups one after the other; what could not be measured, one sentence each."""
    failed = []
    for name in names:
        began = time.monotonic()
        try:
            group = loaded(name)
            table.begin_anew(folder, [name])
            for row in group.rows(setting):
                table.add(folder, row)
                setting.progress(_line(row))
        except (Missing, PeerFailed) as error:
            failed.append(f"{name}: {error}")
        setting.progress(f"{name}: {time.monotonic() - began:.0f} s")
    return failed


def heads(names: Sequence[str]) -> dict[str, str]:
    """By group, what its module says of itself; of those that can be loaded."""
    found = {}
    for name in names:
        try:
            found[name] = (loaded(name).__doc__ or "").split("\n", 1)[0]
        except Missing:
            found[name] = ""
    return found


def write(folder: Path) -> list[Row]:
    """Everything that is made from the rows there are."""
    from benchmarks.speed import chart  # loads matplotlib

    rows = table.read(folder)
    present = [name for name in GROUPS if any(row.group == name for row in rows)]
    text = table.document(rows, heads(present), machine.markdown(machine.read(folder)))
    (folder / DOCUMENT).write_text(text, encoding="utf-8")
    chart.write(folder, rows)
    return rows


def _line(row: Row) -> str:
    ours, theirs = (table.figure(value, row.unit) for value in (row.ours, row.theirs))
    bar = "" if row.bar is None else f" (bar {row.bar:g}{'' if row.is_met else ', NOT MET'})"
    return f"  {row.group}: {row.name}: {ours}, {row.reference}: {theirs}; {row.ratio:.3g}{bar}"


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        epilog="`python -m benchmarks.speed page --help` tells how a page is filled.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="+", choices=["all", *GROUPS], metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where everything is written")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work or less, two turns")
    parser.add_argument("--turns", type=int, metavar="N", help=f"{TURNS} by default; --quick: {QUICK_TURNS}")
    parser.add_argument("--json", action="store_true", help="end with one line: a list of {name, ratio, bar}")
    options = parser.parse_args(arguments)
    if options.turns is not None and options.turns < 1:
        parser.error("at least one turn is measured")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure; 1 where something could not be. A bar that is not reached is told, and no failure."""
    if arguments[:1] == ["page"]:
        from benchmarks.speed import page

        return page.main(arguments[1:])
    options = read(arguments)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    names = list(GROUPS) if "all" in options.groups else [name for name in GROUPS if name in options.groups]
    turns = options.turns or (QUICK_TURNS if options.quick else TURNS)
    options.out.mkdir(parents=True, exist_ok=True)
    machine.write(options.out)
    failed = measure(names, Setting(options.quick, turns, console.print, options.out), options.out)
    rows = [row for row in write(options.out) if row.group in names]
    for sentence in failed:
        console.print(f"not measured: {sentence}")
    if options.json:
        sys.stdout.write(table.json_line(rows) + "\n")
    else:
        sys.stdout.write(table.markdown(rows) + "\n" + table.unmet(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
