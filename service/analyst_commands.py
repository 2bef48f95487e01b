"""`sfumato datasets`, `jobs`, `plot`, `report`: a service asked over HTTP, its answers as tables and bars.

The service's address and key come from SFUMATO_URL and SFUMATO_KEY, or from the home of `sfumato serve`.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sfumato.client import Client

jobs_app = typer.Typer(help="Jobs of a service: listed, watched.", no_args_is_help=True)

JobArgument = Annotated[str, typer.Argument(help="job_...")]


def add_to(app: typer.Typer) -> None:
    """The commands that stand by themselves."""
    app.command("datasets")(list_datasets)
    app.command("plot")(plot)
    app.command("report")(report)


@contextmanager
def _service() -> "Iterator[Client]":
    """A client; whatever the service refuses is the command's end, in a sentence."""
    from service import reporting
    from service.cli import _Failed, _settings
    from sfumato.client import Client
    from sfumato.errors import SfumatoError

    try:
        with Client(*reporting.service(_settings().home)) as client:
            yield client
    except (SfumatoError, reporting.Unusable) as error:
        raise _Failed(str(error)) from None


def list_datasets() -> None:
    """Every dataset the key sees, with a bar of its budget: spent, held, left."""
    from service import terminal

    with _service() as client:
        terminal.datasets(terminal.console(), client)


@jobs_app.command("list")
def list_jobs(
    dataset: Annotated[str | None, typer.Option(help="Only of this dataset.", show_default="all")] = None,
) -> None:
    """Every job the key sees, oldest first."""
    from service import terminal

    with _service() as client:
        terminal.jobs(terminal.console(), client.jobs(dataset))


@jobs_app.command("watch")
def watch_job(
    job_id: JobArgument,
    timeout_seconds: Annotated[
        float | None, typer.Option(min=0, help="Longest to watch.", show_default="until it is over")
    ] = None,
) -> None:
    """How far a job is, until it is over; then its clusters. Exit status 1 where it did not succeed."""
    from service import terminal

    with _service() as client:
        done = terminal.watch(terminal.console(), client, job_id, timeout_seconds)
    raise typer.Exit(0 if done else 1)


def plot(
    job_id: JobArgument,
    out: Annotated[
        Path | None, typer.Option(help="A file .svg or .png.", show_default="the job's id and .svg, here")
    ] = None,
) -> None:
    """Keep a result's picture: density, borders, centres with their 95 % ellipses, coasts where there are any."""
    from service.cli import _Failed

    path = out or Path(f"{job_id}.svg")
    if path.suffix not in (".svg", ".png"):
        raise _Failed("a picture is a file .svg or .png", 2)
    with _service() as client:
        drawn = client.plot_png(job_id) if path.suffix == ".png" else client.plot_svg(job_id).encode()
    try:
        path.write_bytes(drawn)
    except OSError as error:
        raise _Failed(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(str(path))


def report(
    dataset_id: Annotated[str, typer.Argument(help="ds_...")],
    source: Annotated[
        Path, typer.Option("--from", exists=True, dir_okay=False, help="CSV file; its header names the features.")
    ],
) -> None:
    """Perturb each row of a CSV file as one device would, and send the reports to the open round.

    The service's address and key come from SFUMATO_URL and SFUMATO_KEY, or from the home of `sfumato serve`.
    Whoever sends the same file twice has every person answer twice.
    """
    from service import reporting, terminal

    with _service() as client:
        sent = reporting.send(dataset_id, source, client)
        terminal.sent(terminal.console(stderr=True), sent)
    typer.echo(f"{sum(each.n_sent for each in sent)} reports are stored")
