"""Helpers that several commands share: errors, output, settings and the database."""

import csv
import json
import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from models.database.engine import Database
    from runtime.settings import Settings
    from sfumato.api.resources import AttributeCounts


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each object.")]
MinBatch = Annotated[
    int | None,
    typer.Option(min=1, help="Shuffled: minimum number of reports in a release.", show_default="none"),
]
HonestShare = Annotated[
    float | None,
    typer.Option(help="Shuffled: share of the reports of a release from honest devices.", show_default="none"),
]
ShuffledDelta = Annotated[
    float | None,
    typer.Option(help="Shuffled: δ of each release towards the service, 1e-15 to 1e-3.", show_default="1e-6"),
]
DatasetArgument = Annotated[str, typer.Argument(help="Id of the dataset (ds_...).")]


class CommandFailed(typer.Exit):
    """The end of a command with one sentence on stderr and an exit status, without a traceback."""

    def __init__(self, message: str, status: int = 1) -> None:
        typer.echo(f"sfumato: {message}", err=True)
        super().__init__(status)


def print_json(document: "Mapping[str, Any]") -> None:
    """Print an object as one line of JSON."""
    typer.echo(json.dumps(document, separators=(",", ":"), ensure_ascii=False))


def split_names(text: str) -> list[str]:
    """Return the names of a list with commas between, as a line of CSV: a name with a comma has quotes around it."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def emit(as_json: bool, document: "Mapping[str, Any]", text: str) -> None:
    """Print an object as JSON, or its text."""
    if as_json:
        print_json(document)
    else:
        typer.echo(text)


def warn_of_undeclared(attributes: "Iterable[AttributeCounts]") -> None:
    """Print the numbers of undeclared values of each attribute that has some."""
    for each in attributes:
        if each.n_other or each.n_missing or each.n_outside:
            counts = f"{each.n_other} other, {each.n_missing} missing, {each.n_outside} outside its bins"
            typer.echo(f"warning: values of {each.name}: {counts}", err=True)


def load_settings(**options: Any) -> "Settings":
    """Return the settings, where options that are not None override the environment."""
    from pydantic import ValidationError

    from runtime.settings import Settings

    for name, value in options.items():
        if value is not None:
            os.environ[f"SFUMATO_{name.upper()}"] = str(value)  # the worker process inherits the environment
    try:
        return Settings()
    except ValidationError as error:
        wrong = ", ".join(f"SFUMATO_{str(item['loc'][0]).upper()}: {item['msg']}" for item in error.errors())
        raise CommandFailed(f"settings: {wrong}", 2) from None


def _reason(error: Exception) -> str:
    """Return the message of the database without the password, or the kind of an error that may contain values."""
    from sqlalchemy.engine import make_url

    from models.database.failures import failure_reason

    return failure_reason(error, make_url(load_settings().resolved_database_url))


@contextmanager
def explain_failures() -> "Iterator[None]":
    """End the command with a sentence if the database cannot be used or rejects a change."""
    from sqlalchemy.exc import SQLAlchemyError

    from sfumato.errors import SfumatoError

    try:
        yield
    except SQLAlchemyError as error:
        raise CommandFailed(f"the database cannot be used: {_reason(error)}", 2) from None
    except SfumatoError as error:
        raise CommandFailed(str(error)) from None


@contextmanager
def open_database() -> "Iterator[Database]":
    """Open the database of the settings, and end the command with a sentence on every refusal.

    The database must exist and have the newest schema.
    """
    from models.database.engine import Database
    from models.database.schema import find_schema_problem

    settings = load_settings()
    if settings.database_url is None and not (settings.home / "sfumato.db").exists():
        raise CommandFailed(f"no database in {settings.home}; `sfumato serve` creates one", 2)
    database = Database.from_settings(settings)
    with closing(database), explain_failures():
        if (problem := find_schema_problem(database)) is not None:
            raise CommandFailed(problem.text, 2)
        yield database
