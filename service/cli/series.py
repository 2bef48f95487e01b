"""`sfumato series`: commands that call the HTTP API."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from service.cli.common import CommandFailed, DatasetArgument, HonestShare, MinBatch, ShuffledDelta
from service.cli.connection import Service, calls_service

if TYPE_CHECKING:
    from sfumato.api.series_resources import Every

series_app = typer.Typer(help="Measure a dataset in windows: create, list, pause and end series.", no_args_is_help=True)

TARGET = "Number of devices expected to take part in a cycle; over records, of records in all windows."
AlgorithmOption = Annotated[str, typer.Option(help="Algorithm: shifted_grid over reports, density_map over records.")]
SeriesArgument = Annotated[str, typer.Argument(help="Id of the series (ser_...).")]


@series_app.command("create")
@calls_service
def create_series(
    service: Service,
    dataset_id: DatasetArgument,
    name: Annotated[str, typer.Option(help="Name of the series.")],
    epsilon: Annotated[float, typer.Option(help="Privacy cost of a window, and of a cycle, for one device.")],
    count: Annotated[int, typer.Option(min=1, help="Number of windows.")],
    target_reports: Annotated[int, typer.Option(min=1, help=TARGET)],
    cycle: Annotated[
        int | None,
        typer.Option(min=1, help="Windows of a cycle; a device answers in one of them.", show_default="all windows"),
    ] = None,
    algorithm: AlgorithmOption = "shifted_grid",
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
    season: Annotated[int, typer.Option(min=1, help="Windows of a season; 1 for none.")] = 1,
    least_change: Annotated[
        float | None, typer.Option(help="Least change of a share that raises an alarm.", show_default="0.01")
    ] = None,
    min_batch: MinBatch = None,
    honest_share: HonestShare = None,
    shuffled_delta: ShuffledDelta = None,
    allow_insufficient: Annotated[
        bool, typer.Option("--allow-insufficient", help="Create the series even if its windows are too small.")
    ] = False,
) -> None:
    """Create a series over a dataset and print its id."""
    parameters = {"type": algorithm, "epsilon": epsilon} | ({} if clusters is None else {"clusters": clusters})
    series = service.client.create_series(
        dataset_id,
        name,
        parameters,
        every=cast("Every", every),  # the service checks it
        count=count,
        cycle=cycle,
        target_reports=target_reports,
        time_zone=time_zone,
        first=first,
        min_reports=min_reports,
        epsilon_total=epsilon_total,
        season=season,
        least_change=least_change,
        min_batch=min_batch,
        honest_share=honest_share,
        shuffled_delta=shuffled_delta,
        allow_insufficient=allow_insufficient,
    )
    service.show(f"series/{series.id}", series.id)


@series_app.command("forecast")
@calls_service
def forecast_series(
    service: Service,
    dataset_id: DatasetArgument,
    epsilon: Annotated[float, typer.Option(help="Privacy cost of a window, and of a cycle, for one device.")],
    cycle: Annotated[int, typer.Option(min=1, help="Windows of a cycle; over records, all windows.")],
    target_reports: Annotated[int, typer.Option(min=1, help=TARGET)],
    algorithm: AlgorithmOption = "shifted_grid",
    every: Annotated[str, typer.Option(help="Length of a window: day, week or month.")] = "week",
    least_change: Annotated[
        float | None, typer.Option(help="Least change of a share that raises an alarm.", show_default="0.01")
    ] = None,
    cluster_width: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the cluster that changes, as a share of a feature's range.",
            show_default="0.045",
        ),
    ] = None,
    min_batch: MinBatch = None,
    honest_share: HonestShare = None,
    shuffled_delta: ShuffledDelta = None,
) -> None:
    """Forecast what a series costs one person, and which changes it finds."""
    from service.cli import series_output as output
    from sfumato.forecast import series_forecast_to_wire

    found = service.client.forecast_series(
        {"type": algorithm, "epsilon": epsilon},
        dataset_id=dataset_id,
        target_reports=target_reports,
        cycle=cycle,
        every=cast("Every", every),  # the service checks it
        least_change=least_change,
        cluster_width=cluster_width,
        min_batch=min_batch,
        honest_share=honest_share,
        shuffled_delta=shuffled_delta,
    )
    service.show_forecast(output.print_series_forecast, found, series_forecast_to_wire)


@series_app.command("list")
@calls_service
def list_series(
    service: Service,
    dataset: Annotated[
        str | None, typer.Option(help="List only series of the dataset with this id.", show_default="all")
    ] = None,
) -> None:
    """List the series visible to the key, newest first, with their cost for one person."""
    from service.cli import series_output as output

    service.show_list("series", output.print_series, service.client.series(dataset), dataset_id=dataset)


@series_app.command("show")
@calls_service
def show_series(service: Service, series_id: SeriesArgument) -> None:
    """Show a series: its plan and what it costs one person."""
    from service.cli import series_output as output

    found = service.client.get_series(series_id)
    service.show(f"series/{series_id}", lambda console: output.print_one_series(console, found))


@series_app.command("windows")
@calls_service
def list_windows(service: Service, series_id: SeriesArgument) -> None:
    """List the windows of a series up to the next one, newest first."""
    from service.cli import series_output as output

    service.show_list(f"series/{series_id}/windows", output.print_windows, service.client.windows(series_id))


@series_app.command("clusters")
@calls_service
def list_clusters(service: Service, series_id: SeriesArgument) -> None:
    """List the clusters that a series has had, with their shares in the last window."""
    from service.cli import series_output as output

    history = service.client.series_history(series_id)
    service.show_list(f"series/{series_id}/clusters", output.print_clusters, history)


@series_app.command("events")
@calls_service
def list_events(service: Service, series_id: SeriesArgument) -> None:
    """List the changes of a series that raised an alarm, newest first."""
    from service.cli import series_output as output

    service.show_list(f"series/{series_id}/events", output.print_events, service.client.series_events(series_id))


@series_app.command("map")
@calls_service
def show_map(
    service: Service,
    series_id: SeriesArgument,
    window: Annotated[
        int | None, typer.Option(min=0, help="Number of the window.", show_default="the last one with a map")
    ] = None,
    single: Annotated[bool, typer.Option("--single", help="Show the map of the window alone.")] = False,
) -> None:
    """Show the clusters of the map of a window, which earlier windows make sharper."""
    from service.cli import series_output as output

    found = service.client.series_map(series_id, window, pooled=not single)
    of = {"pooled": str(not single).lower(), "window": str(found.window)}
    service.show(f"series/{series_id}/map", lambda console: output.print_map(console, found), **of)


@series_app.command("name")
@calls_service
def name_cluster(
    service: Service,
    series_id: SeriesArgument,
    cluster_id: Annotated[str, typer.Argument(help="Id of the cluster (clu_...).")],
    name: Annotated[str, typer.Argument(help="Name of the cluster; an empty text removes it.")],
) -> None:
    """Name a cluster of a series. The name stays with its id in all windows."""
    service.client.name_series_cluster(series_id, cluster_id, name)
    service.show(f"series/{series_id}/clusters/{cluster_id}", name)


@series_app.command("revise")
@calls_service
def revise_series(
    service: Service,
    series_id: SeriesArgument,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy cost of a window, and of a cycle.", show_default="unchanged")
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(min=1, help="Number of clusters, with --epsilon.", show_default="estimated")
    ] = None,
    target_reports: Annotated[
        int | None,
        typer.Option(min=1, help="Number of devices expected to take part in a cycle.", show_default="unchanged"),
    ] = None,
    min_reports: Annotated[
        int | None, typer.Option(min=0, help="Minimum number of reports of a window.", show_default="unchanged")
    ] = None,
    season: Annotated[
        int | None, typer.Option(min=1, help="Windows of a season; 1 for none.", show_default="unchanged")
    ] = None,
    least_change: Annotated[
        float | None, typer.Option(help="Least change of a share that raises an alarm.", show_default="unchanged")
    ] = None,
    min_batch: MinBatch = None,
    honest_share: HonestShare = None,
    shuffled_delta: ShuffledDelta = None,
    allow_insufficient: Annotated[
        bool, typer.Option("--allow-insufficient", help="Accept windows that are too small.")
    ] = False,
) -> None:
    """Change terms of a series from its next cycle on, and print the first window with them."""
    if clusters is not None and epsilon is None:
        raise CommandFailed("--clusters needs --epsilon, because both belong to the algorithm: give both")
    algorithm = None
    if epsilon is not None:
        algorithm = {"type": "shifted_grid", "epsilon": epsilon} | ({} if clusters is None else {"clusters": clusters})
    found = service.client.revise_series(
        series_id,
        algorithm,
        target_reports=target_reports,
        min_reports=min_reports,
        season=season,
        least_change=least_change,
        min_batch=min_batch,
        honest_share=honest_share,
        shuffled_delta=shuffled_delta,
        allow_insufficient=allow_insufficient,
    )
    text = f"revision {found.number} begins with window {found.first_window}"
    service.show_list(f"series/{series_id}/revisions", lambda _, text: typer.echo(text), text)


@series_app.command("revisions")
@calls_service
def list_revisions(service: Service, series_id: SeriesArgument) -> None:
    """List the terms that a series has had, and those that begin later, newest first."""
    from service.cli import series_output as output

    found = service.client.series_revisions(series_id)
    service.show_list(f"series/{series_id}/revisions", output.print_revisions, found)


@series_app.command("pause")
@calls_service
def pause_series(service: Service, series_id: SeriesArgument) -> None:
    """Pause a series. An open window is completed, and the windows of the pause are missed."""
    service.client.update_series(series_id, state="paused")
    service.show(f"series/{series_id}", "paused")


@series_app.command("continue")
@calls_service
def continue_series(service: Service, series_id: SeriesArgument) -> None:
    """Continue a paused series with its next window."""
    service.client.update_series(series_id, state="active")
    service.show(f"series/{series_id}", "active")


@series_app.command("end")
@calls_service
def end_series(service: Service, series_id: SeriesArgument) -> None:
    """End a series for good. An open window is completed, and its cycle expires afterwards."""
    service.client.update_series(series_id, state="ended")
    service.show(f"series/{series_id}", "ended")
