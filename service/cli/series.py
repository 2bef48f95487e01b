"""`sfumato series`: commands that call the HTTP API."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from service.cli.common import DatasetArgument
from service.cli.connection import Service, calls_service

if TYPE_CHECKING:
    from sfumato.api.series import Every

series_app = typer.Typer(help="Measure a dataset in windows: create, list, pause and end series.", no_args_is_help=True)

SeriesArgument = Annotated[str, typer.Argument(help="Id of the series (ser_...).")]


@series_app.command("create")
@calls_service
def create_series(
    service: Service,
    dataset_id: DatasetArgument,
    name: Annotated[str, typer.Option(help="Name of the series.")],
    epsilon: Annotated[float, typer.Option(help="Privacy cost of a window, and of a cycle, for one device.")],
    count: Annotated[int, typer.Option(min=1, help="Number of windows.")],
    cycle: Annotated[int, typer.Option(min=1, help="Windows of a cycle; a device answers in one of them.")],
    target_reports: Annotated[int, typer.Option(min=1, help="Number of devices expected to take part in a cycle.")],
    every: Annotated[str, typer.Option(help="Length of a window: day, week or month.")] = "week",
    time_zone: Annotated[str, typer.Option(help="Time zone in which windows begin at midnight.")] = "UTC",
    first: Annotated[
        str | None,
        typer.Option(help="Day on which the first window begins, such as 2027-01-04.", show_default="the next one"),
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(min=1, help="Number of clusters.", show_default="estimated from the data")
    ] = None,
    min_reports: Annotated[int, typer.Option(min=0, help="Minimum number of reports of a window.")] = 0,
    epsilon_total: Annotated[
        float | None,
        typer.Option(help="Most that all cycles may cost one person.", show_default="the cost of all cycles"),
    ] = None,
    allow_insufficient: Annotated[
        bool, typer.Option("--allow-insufficient", help="Create the series even if its windows are too small.")
    ] = False,
) -> None:
    """Create a series over a local dataset and print its id."""
    algorithm = {"type": "shifted_grid", "epsilon": epsilon} | ({} if clusters is None else {"clusters": clusters})
    series = service.client.create_series(
        dataset_id,
        name,
        algorithm,
        every=cast("Every", every),  # the service checks it
        count=count,
        cycle=cycle,
        target_reports=target_reports,
        time_zone=time_zone,
        first=first,
        min_reports=min_reports,
        epsilon_total=epsilon_total,
        allow_insufficient=allow_insufficient,
    )
    service.show(f"series/{series.id}", lambda: typer.echo(series.id))


@series_app.command("list")
@calls_service
def list_series(
    service: Service,
    dataset: Annotated[
        str | None, typer.Option(help="List only series of the dataset with this id.", show_default="all")
    ] = None,
) -> None:
    """List the series visible to the key, newest first, with their cost for one person."""
    from service.cli import output

    found = service.client.series(dataset)
    service.show_list("series", lambda: output.print_series(output.open_console(), found), dataset_id=dataset)


@series_app.command("show")
@calls_service
def show_series(service: Service, series_id: SeriesArgument) -> None:
    """Show a series: its plan and what it costs one person."""
    from service.cli import output

    found = service.client.get_series(series_id)
    service.show(f"series/{series_id}", lambda: output.print_series(output.open_console(), [found]))


@series_app.command("windows")
@calls_service
def list_windows(service: Service, series_id: SeriesArgument) -> None:
    """List the windows of a series up to the next one, newest first."""
    from service.cli import output

    found = service.client.windows(series_id)
    service.show_list(f"series/{series_id}/windows", lambda: output.print_windows(output.open_console(), found))


@series_app.command("pause")
@calls_service
def pause_series(service: Service, series_id: SeriesArgument) -> None:
    """Pause a series. An open window is completed, and the windows of the pause are missed."""
    service.client.update_series(series_id, state="paused")
    service.show(f"series/{series_id}", lambda: typer.echo("paused"))


@series_app.command("continue")
@calls_service
def continue_series(service: Service, series_id: SeriesArgument) -> None:
    """Continue a paused series with its next window."""
    service.client.update_series(series_id, state="active")
    service.show(f"series/{series_id}", lambda: typer.echo("active"))


@series_app.command("end")
@calls_service
def end_series(service: Service, series_id: SeriesArgument) -> None:
    """End a series for good. An open window is completed, and its cycle expires afterwards."""
    service.client.update_series(series_id, state="ended")
    service.show(f"series/{series_id}", lambda: typer.echo("ended"))
