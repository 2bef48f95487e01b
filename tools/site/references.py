"""The references that are generated from the code: command line, settings, tables of the database, Python package."""

import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Any, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

import sfumato
from models import tables
from models.database.types import Base
from runtime.settings import Settings

TYPER_PROGRAMS = {"demo": "demo.__main__"}  # subcommands that are typer programs of their own
ARGPARSE_COMMANDS = ("worker", "audit")  # subcommands with argparse

_HEADING = re.compile(r"^#+ `sfumato ([a-z -]+)`$", flags=re.MULTILINE)
_LINE = re.compile(r"^\* `([^`]+)`(?:: (.*))?$", flags=re.MULTILINE)
_PLAIN_LINE = re.compile(r"^  (--[^ ]+(?: [A-Z]+)?)\s+(\S.*)$", flags=re.MULTILINE)

_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", SecretStr: "text"}

# (heading, modules of the package)
PARTS = (
    (
        "On a device",
        (
            "device.device",
            "device.outcomes",
            "device.shuffled",
            "device.store",
            "device.checks",
            "device.dry_runs",
            "device.bulk",
        ),
    ),
    (
        "For an analyst",
        (
            "api.client",
            "api.submitted_jobs",
            "forecast.sweeps",
            "model.cluster_model",
            "model.frames",
            "profiles.cluster_profile",
            "plotting.figures",
        ),
    ),
    ("Algorithms over devices' reports", ("specs.algorithms",)),
    ("Algorithms over records", ("specs.central",)),
    ("Datasets and rounds", ("specs.rounds", "specs.attributes", "specs.encodings", "specs.phases")),
    ("Errors", ("errors",)),
)


# ---- the command line ----


def commands_page() -> str:
    """Return the page as Markdown."""
    parts = ["# Command line", "[Operations](operations.md#commands) explains the commands."]
    for name, text in list_commands().items():
        parts += [f"## sfumato {name} {{ #{name.replace(' ', '-')} }}", text]
    return "\n\n".join(parts) + "\n"


@cache
def list_commands() -> dict[str, str]:
    """Return the help of each command as Markdown. Groups of commands, such as `keys`, are omitted."""
    found = _document("service.cli.main")
    for name, module in TYPER_PROGRAMS.items():
        (found[name],) = _document(module, f"sfumato {name}").values()
    for name in ARGPARSE_COMMANDS:
        found[name] = f"```text\n{_run('service.cli', name, '--help')}\n```"
    return found


def parse_options(text: str) -> list[tuple[str, str]]:
    """Return (syntax, help) of each argument and option of a command."""
    return _LINE.findall(text) + _PLAIN_LINE.findall(text)


def _document(module: str, name: str = "sfumato") -> dict[str, str]:
    """Return the documentation of a typer program, by command."""
    text = _run("typer", module, "utils", "docs", "--name", name)
    _, *pieces = _HEADING.split("\n" + text) if name == "sfumato" else ("", name, text.partition("\n")[2])
    sections = zip(pieces[::2], pieces[1::2], strict=True)
    return {title: _remove_common_options(body) for title, body in sections if "**Commands**" not in body}


def _remove_common_options(body: str) -> str:
    """Remove the options that all commands have."""
    body = re.sub(r"^\* `--(?:help|install-completion|show-completion)`.*\n?", "", body, flags=re.MULTILINE)
    body = re.sub(r"\*\*Options\*\*:\s*(?=\*\*|\Z)", "", body)
    return body.replace("```console\n$ ", "```text\n").strip()


def _run(*command: str) -> str:
    output = subprocess.run(
        [sys.executable, "-m", *command],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"},
    ).stdout
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


# ---- settings ----


def settings_page() -> str:
    """Return the page as Markdown."""
    rows = [
        f"| `SFUMATO_{name.upper()}` | {describe_type(field)} | {describe_default(field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return (
        "# Settings\n\nEnvironment variables of gateways, workers and the command line. "
        "[Operations](operations.md#settings)\nexplains how to choose them.\n\n"
        "| variable | type | default | description |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


# ---- tables of the database ----


def data_model_page() -> str:
    """Return the page as Markdown, with a section for each module of `models.tables` and a table for each class."""
    parts = [
        "# Data model",
        "The SQL database is the only durable store. [Migrations](development.md#migrations) create its tables. "
        "Amounts are integers, times are microseconds since the epoch, and columns of JSON contain canonical JSON.",
    ]
    modules = [import_module(f"{tables.__name__}.{each.name}") for each in pkgutil.iter_modules(tables.__path__)]
    for module in modules:
        heading, _, rest = cleandoc(module.__doc__ or "").partition("\n")
        parts += [f"## {module.__name__.rpartition('.')[2].capitalize()}", heading, _as_markdown(rest)]
        for row in vars(module).values():
            if isinstance(row, type) and issubclass(row, Base) and row.__module__ == module.__name__:
                parts += [f"### `{row.__tablename__}`", _as_markdown(cleandoc(row.__doc__ or "")), _columns(row)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _as_markdown(text: str) -> str:
    """Return a docstring as Markdown: drawings of states become code."""
    passages = [passage.strip("\n") for passage in re.split(r"\n\s*\n", text) if passage.strip()]
    return "\n\n".join(f"```text\n{each}\n```" if "──" in each else each for each in passages)


def _columns(row: type[Base]) -> str:
    """Return the columns of a table with their type, meaning and reference."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for column in row.__table__.columns:
        kind = type(column.type).__name__ + (", may be null" if column.nullable else "")
        meaning = [f"reference to `{key.target_fullname}`" for key in column.foreign_keys]
        meaning += ["part of the primary key"] if column.primary_key else []
        lines.append(f"| `{column.name}` | {kind} | {'; '.join([*filter(None, [column.comment]), *meaning])} |")
    return "\n".join(lines)


def describe_type(field: FieldInfo) -> str:
    """Return the type and range of a setting."""
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    return ", ".join([*(_NAMES.get(kind, "path") for kind in kinds), *_bounds(field.metadata)])


def describe_default(field: FieldInfo) -> str:
    """Return the default of a setting as Markdown."""
    if field.default in (None, ""):
        return "none"
    return f"`{format_value(field.default)}`"


def format_value(value: object) -> str:
    """Return a value in the form used in the environment."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for name, sign in _SIGNS.items():
        for each in metadata:
            if (limit := getattr(each, name, None)) is not None:
                yield f"{sign} {format_value(limit)}"


# ---- the Python package ----


def python_page() -> str:
    """Return the page as Markdown. The site build replaces lines that begin with `:::`."""
    parts = [
        "# Python",
        f"Names exported by `sfumato` {sfumato.__version__}. See [introduction](sdk/python.md).",
    ]
    for heading, modules in PARTS:
        parts += [f"## {heading}"]
        parts += [f"::: sfumato.{module}.{name}" for module in modules for name in list_exports(module)]
    return "\n\n".join(parts) + "\n"


def list_exports(module: str) -> list[str]:
    """Return the names that the package exports from a module."""
    return [name for name in sfumato.__all__ if sfumato._homes().get(name) == module]
