"""Put a folder's rows into a page: between `<!-- begin: speed-GROUP -->` and its end, and the pictures beside it."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.quality.page import filled
from benchmarks.speed import machine, table


def main(arguments: Sequence[str]) -> int:
    """Fill the blocks of every group that there are rows of."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed page", description=__doc__)
    parser.add_argument("--results", type=Path, metavar="DIR", required=True, help="what a run wrote")
    parser.add_argument("--page", type=Path, metavar="FILE", required=True, help="Markdown with marked blocks")
    parser.add_argument("--images", type=Path, metavar="DIR", help="pictures go here; left out, none is copied")
    options = parser.parse_args(arguments)
    bodies = blocks(options.results)
    if not bodies:
        parser.error(f"there are no results in {options.results}")
    text = options.page.read_text(encoding="utf-8")
    try:
        for name, body in bodies.items():
            text = filled(text, name, body)
    except ValueError as error:
        parser.error(str(error))
    options.page.write_text(text, encoding="utf-8")
    if options.images is not None:
        for picture in sorted(options.results.glob("speed-*.svg")):
            shutil.copyfile(picture, options.images / picture.name)
    return 0


def blocks(folder: Path) -> dict[str, str]:
    """By its name, what each block holds."""
    rows = table.read(folder)
    if not rows:
        return {}
    groups = dict.fromkeys(row.group for row in rows)
    tables = {f"speed-{group}": table.markdown([row for row in rows if row.group == group]) for group in groups}
    return {"speed-machine": machine.markdown(machine.read(folder)), **tables, "speed-unmet": table.unmet(rows)}
