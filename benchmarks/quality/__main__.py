"""``python -m benchmarks.quality <command>``: one module a command, each with `add_to` and `run`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from benchmarks.quality import central, centroids, local, page


class Command(Protocol):
    """What a command's module holds; the first line of its docstring is its help."""

    __doc__: str | None

    def add_to(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int: ...


COMMANDS = {
    "local": cast(Command, local),
    "centroids": cast(Command, centroids),
    "central": cast(Command, central),
    "page": cast(Command, page),
}


def main(arguments: Sequence[str]) -> int:
    """Read the command and run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").split("\n", 1)[0]
        module.add_to(commands.add_parser(name, help=summary, description=summary))
    options = parser.parse_args(arguments)
    try:
        return COMMANDS[options.command].run(options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
