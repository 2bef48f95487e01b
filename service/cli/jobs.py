"""`sfumato jobs` and `plot`: commands that call the HTTP API."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.common import (
    CommandFailed,
    DatasetArgument,
    HonestShare,
    MinBatch,
    ShuffledDelta,
    split_names,
)
from service.cli.connection import Service, calls_service

jobs_app = typer.Typer(help="Submit, list and watch the jobs of a service, and show results.", no_args_is_help=True)

JobArgument = Annotated[str, typer.Argument(help="Id of the job (job_...).")]


def _parse_parameter(text: str) -> tuple[str, Any]:
    """Return (name, value) of `name=value`. The value is JSON, or else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandFailed(f"write the parameter {name!r} as NAME=VALUE", 2)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@jobs_app.command("submit")
@calls_service
def submit_job(
    service: Service,
    dataset_id: DatasetArgument,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget of the job: for one device, or over all records.")
    ] = None,
    mu: Annotated[
        float | None, typer.Option(help="Privacy budget of a job over records as μ, instead of --epsilon and a delta.")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="Type of the algorithm.")] = "auto",
    clusters: Annotated[
        int | None, typer.Option(min=1, help="Number of clusters.", show_default="estimated from the data")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(help="Names of the features and clustering attributes that the job uses.", show_default="all"),
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(help="Further parameter of the algorithm, as NAME=VALUE. Repeatable.")
    ] = None,
    target_reports: Annotated[
        int | None, typer.Option(min=1, help="Number of devices expected to participate; not for records.")
    ] = None,
    min_reports: Annotated[int, typer.Option(min=0, help="Minimum number of devices.")] = 0,
    collect_seconds: Annotated[int, typer.Option(min=1, help="Time that a round accepts reports.")] = 604_800,
    round_id: Annotated[
        list[str] | None, typer.Option("--round", help="Id of an earlier round to use. Repeatable.")
    ] = None,
    min_batch: MinBatch = None,
    honest_share: HonestShare = None,
    shuffled_delta: ShuffledDelta = None,
    allow_insufficient: Annotated[
        bool, typer.Option("--allow-insufficient", help="Submit the job even if its reports are insufficient.")
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Key that makes a repeated submission return the same job.", show_default="none")
    ] = None,
) -> None:
    """Submit a job and print its id."""
    parameters = dict(map(_parse_parameter, parameter or []))
    if (epsilon is None) == (mu is None):
        raise CommandFailed("give exactly one of --epsilon and --mu", 2)
    options = {"epsilon": epsilon, "mu": mu, "clusters": clusters}
    given = {"type": algorithm} | {name: value for name, value in options.items() if value is not None}
    job = service.client.submit_job(
        dataset_id,
        given | parameters,
        features=None if features is None else split_names(features),
        target_reports=target_reports,
        min_reports=min_reports,
        collect_seconds=collect_seconds,
        round_ids=round_id or (),
        min_batch=min_batch,
        honest_share=honest_share,
        shuffled_delta=shuffled_delta,
        allow_insufficient=allow_insufficient,
        idempotency_key=idempotency_key,
    )
    service.show(f"jobs/{job.id}", job.id)


@jobs_app.command("list")
@calls_service
def list_jobs(
    service: Service,
    dataset: Annotated[
        str | None, typer.Option(help="List only jobs of the dataset with this id.", show_default="all")
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="List only jobs in this state, for example running.", show_default="all")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="List only jobs with this type of algorithm.", show_default="all")
    ] = None,
    created_after: Annotated[
        datetime | None, typer.Option(help="List only jobs submitted after this time (UTC).", show_default="all")
    ] = None,
    created_before: Annotated[
        datetime | None, typer.Option(help="List only jobs submitted before this time (UTC).", show_default="all")
    ] = None,
) -> None:
    """List the jobs visible to the key, newest first, with their cost, use and verdict."""
    from service.cli import output

    after, before = (each and each.replace(tzinfo=UTC) for each in (created_after, created_before))
    found = service.client.jobs(dataset, state=state, algorithm=algorithm, created_after=after, created_before=before)
    filters = {
        "dataset_id": dataset,
        "state": state,
        "algorithm": algorithm,
        "created_after": after.isoformat() if after else None,
        "created_before": before.isoformat() if before else None,
    }
    service.show_list("jobs", output.print_jobs, found, **filters)


@jobs_app.command("watch")
@calls_service
def watch_job(
    service: Service,
    job_id: JobArgument,
    timeout_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Maximum number of seconds to watch the job.", show_default="until the job ends"),
    ] = None,
) -> None:
    """Show the progress of a job until it ends, then its clusters.

    Exits with status 1 if the job did not succeed.
    """
    from service.cli import output
    from service.cli.tables import open_console

    if service.as_json:
        succeeded = service.client.wait_for_job(job_id, timeout_seconds=timeout_seconds).state == "succeeded"
        service.show(f"jobs/{job_id}", "")
    else:
        succeeded = output.watch_job(open_console(), service.client, job_id, timeout_seconds)
    raise typer.Exit(0 if succeeded else 1)


@jobs_app.command("result")
@calls_service
def show_result(service: Service, job_id: JobArgument) -> None:
    """Show the clusters of a job with their errors, the verdict and the cost."""
    from service.cli import output

    service.show(f"jobs/{job_id}/result", lambda console: output.print_result(console, service.client.result(job_id)))


@jobs_app.command("name")
@calls_service
def name_clusters(
    service: Service,
    job_id: JobArgument,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="CLUSTER=NAME", help="Number and name of a cluster. An empty name removes its name."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all names.")] = False,
) -> None:
    """Name clusters of a result, at no cost. Each reader of the result sees the names."""
    from service.cli import output

    if bool(names) == clear:
        raise CommandFailed("give names as CLUSTER=NAME, or --clear alone", 2)
    given: dict[int, str] = {}
    for text in names or []:
        cluster, equals, name = text.partition("=")
        if not equals or not (cluster.isascii() and cluster.isdigit()) or len(cluster) > 9:
            raise CommandFailed(f"write the name {text!r} as CLUSTER=NAME, such as 0=Commuters", 2)
        given[int(cluster)] = name
    result = service.client.name_clusters(job_id, [] if clear else given)
    service.show(f"jobs/{job_id}/result", lambda console: output.print_result(console, result))


@calls_service
def profile_clusters(
    service: Service,
    job_id: JobArgument,
    attributes: Annotated[
        str, typer.Option(help="Names of attributes or features of the dataset, with commas between.")
    ],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of the profile: over all records, or for one device.")],
    delta: Annotated[float, typer.Option(help="Maximum δ of the profile, over records.")] = 0.0,
    target_reports: Annotated[
        int | None, typer.Option(min=1, help="Number of devices expected to participate; not for records.")
    ] = None,
    collect_seconds: Annotated[int, typer.Option(min=1, help="Time that the round accepts reports.")] = 604_800,
    min_batch: MinBatch = None,
    honest_share: HonestShare = None,
    shuffled_delta: ShuffledDelta = None,
    allow_insufficient: Annotated[
        bool, typer.Option("--allow-insufficient", help="Submit the profile even if its reports are insufficient.")
    ] = False,
    forecast: Annotated[
        int | None,
        typer.Option(
            min=1, help="Print the forecast for this number of records or devices; submit nothing.", show_default="no"
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for the profile and print it.")] = False,
) -> None:
    """Describe the clusters of a job by the values of attributes, as a job with a cost of its own."""
    from service.cli import output

    names = split_names(attributes)
    if forecast is not None:
        from sfumato.forecast import profile_forecast_to_wire

        dataset = service.client.get_dataset(service.client.get_job(job_id).dataset_id)
        expected = {"expected_records" if dataset.trust == "central" else "expected_reports": forecast}
        found = service.client.forecast_profile(job_id, names, epsilon=epsilon, delta=delta, **expected)
        service.show_forecast(output.print_profile_forecast, found, profile_forecast_to_wire)
        return
    job = service.client.profile(
        job_id,
        names,
        epsilon=epsilon,
        delta=delta,
        target_reports=target_reports,
        collect_seconds=collect_seconds,
        allow_insufficient=allow_insufficient,
        min_batch=min_batch,
        honest_share=honest_share,
        shuffled_delta=shuffled_delta,
    )
    if not follow:
        service.show(f"jobs/{job.id}", job.id)
        return
    done = job.wait()
    if done.state != "succeeded":
        reason = "" if done.error is None else f": {done.error.detail}"
        raise CommandFailed(f"the profile {job.id} did not succeed: its state is {done.state}{reason}")
    service.show(f"jobs/{job.id}/result", lambda console: output.print_result(console, done.result()))


@calls_service
def save_plot(
    service: Service,
    job_id: JobArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, ending in .svg, .png, .html or .geojson.", show_default="JOB_ID.svg in this directory"
        ),
    ] = None,
) -> None:
    """Save the plot of a result: density, borders, centres with 95 % ellipses, and coastlines for places on Earth.

    A file that ends in .html has the whole result: plot, clusters, cards of a profile, warnings and cost.
    A file that ends in .geojson has the regions and centres of places on Earth, for maps and geographic software.
    """
    from service.cli.common import emit
    from sfumato.api.result_page import html_page

    path = out or Path(f"{job_id}.svg")
    if path.suffix not in (".svg", ".png", ".html", ".geojson"):
        raise CommandFailed("the name of the file must end in .svg, .png, .html or .geojson", 2)
    client = service.client
    if path.suffix == ".geojson":
        content = json.dumps(client.result(job_id).to_geojson(), ensure_ascii=False, allow_nan=False).encode()
    else:
        content = client.plot_png(job_id) if path.suffix == ".png" else client.plot_svg(job_id).encode()
    if path.suffix == ".html":
        content = html_page(client.result(job_id), content.decode()).encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from None
    emit(service.as_json, {"path": str(path)}, str(path))
