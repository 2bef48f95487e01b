"""The command `sfumato`. Each command imports its heavy modules itself, so that the others start fast."""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from connections.streams import guard_streams
from service.cli.administration import keys_app, tenant_app
from service.cli.collection import datasets_app, rounds_app, send_reports
from service.cli.common import AsJson, CommandFailed, emit, explain_failures, load_settings
from service.cli.hash_chains import audit_app, ledger_app
from service.cli.jobs import jobs_app, profile_clusters, save_plot
from service.cli.records import records_app
from service.cli.series import series_app

if TYPE_CHECKING:
    from runtime.settings import Settings
    from sfumato.forecast.families import Family

app = typer.Typer(help="Private clustering as a service.", no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(keys_app, name="keys")
app.add_typer(ledger_app, name="ledger")
app.add_typer(records_app, name="records")
app.add_typer(audit_app, name="audit-trail")
app.add_typer(tenant_app, name="tenant")
app.add_typer(datasets_app, name="datasets")
app.add_typer(rounds_app, name="rounds")
app.add_typer(jobs_app, name="jobs")
app.add_typer(series_app, name="series")
app.command("plot")(save_plot)
app.command("profile")(profile_clusters)
app.command("report")(send_reports)

Host = Annotated[str | None, typer.Option(help="Address to bind.", show_default="127.0.0.1, or SFUMATO_HOST")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port to bind; 0 selects a free port.", show_default="8000")
]
Home = Annotated[
    Path | None, typer.Option(help="Directory of the database and of the first admin key.", show_default=".sfumato")
]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def main() -> None:
    """Run the command `sfumato`."""
    guard_streams(stdout=False)  # progress and messages never hold a command
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        typer.echo(f"sfumato {version('sfumato-server')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Private clustering as a service."""


# ---- processes ----


@app.command()
def serve(host: Host = None, port: Port = None, home: Home = None) -> None:
    """Run everything on this machine: migrations, a gateway, one worker, and a first admin key."""
    from runtime.process import gc_paused

    with gc_paused():
        from models.database.engine import Database
        from models.database.schema import migrate
        from runtime import logging
        from runtime.private_files import write_private
        from runtime.process import end_with_starter
        from service.app import create_app
        from service.cli import serve as local
        from service.server import server

    end_with_starter()
    settings = load_settings(host=host, port=port, home=home)
    local.refuse_emptied_database(settings)
    lock = local.open_home(settings.home)
    bound, url = _bound(settings)
    address_file = settings.home / local.URL
    address_file.unlink(missing_ok=True)  # a killed run leaves the file behind
    logging.configure_logging()
    with explain_failures():
        migrate(settings.resolved_database_url)
        database = Database.from_settings(settings, pool_size=settings.database_pool_size)
        secret = local.create_first_key(database, settings.home)
        local.create_records_key(settings, database)
    worker = local.WorkerProcess(settings)

    def announce() -> None:
        write_private(address_file, url + "\n")
        _welcome(url, settings.home, secret)

    worker.start()
    try:
        server.run(create_app(settings, database), bound, announce)
    finally:
        worker.stop()
        address_file.unlink(missing_ok=True)
        database.close()
        os.close(lock)


@app.command()
def gateway(host: Host = None, port: Port = None) -> None:
    """Run a gateway. Takes the database and everything else from the SFUMATO_* settings."""
    from runtime.process import gc_paused

    with gc_paused():
        import structlog

        from models.database.engine import Database
        from models.database.schema import check_start
        from runtime import logging
        from service.app import create_app
        from service.server import server

    settings = load_settings(host=host, port=port)
    bound, url = _bound(settings)
    logging.configure_logging()
    with explain_failures(), closing(Database.from_settings(settings)) as database:
        not_ready = check_start(database, is_pooled=settings.database_pooler)
    if not_ready is not None:
        structlog.get_logger(__name__).warning("gateway_not_ready", reason=not_ready)
    server.run(create_app(settings), bound, lambda: typer.echo(f"Sfumato listens on {url}"))


def _bound(settings: "Settings") -> tuple[Any, str]:
    from connections.server import address, bind

    try:
        bound = bind(settings.host, settings.port)
    except OSError as error:
        raise CommandFailed(f"cannot bind {settings.host}:{settings.port}: {error.strerror}") from None
    return bound, address(bound, settings.public_url)


def _welcome(url: str, home: Path, secret: str | None) -> None:
    key_file = home / "admin.key"
    lines = [f"Sfumato listens on {url}", f"  console      {url}/console", f"  reference    {url}/docs"]
    if secret is not None and sys.stdout.isatty():  # a log would keep it
        lines.append(f"  admin key    {secret}\n               shown only once; stored in {key_file}")
    elif key_file.exists():
        lines.append(f"  admin key    in {key_file}")
    else:
        lines.append(
            f"  admin key    not in {home}: restore {key_file.name}, or create a key with `sfumato keys create`"
        )
    lines.append(f'  try          curl -s {url}/v1/datasets -H "Authorization: Bearer $(cat {key_file})"')
    typer.echo("\n".join(lines))
    sys.stdout.flush()


@app.command(context_settings=PASS_ON)
def worker(context: typer.Context) -> None:
    """Run a worker. `sfumato worker --help` lists its options."""
    load_settings()  # explains settings that the worker would reject
    os.execv(sys.executable, [sys.executable, "-P", "-m", "workers", *context.args])  # noqa: S606 - our own program


@app.command(context_settings=PASS_ON)
def shuffler(context: typer.Context) -> None:
    """Run a shuffler, which an organisation other than the operator does. `sfumato shuffler --help` lists commands."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "shuffler", *context.args])  # noqa: S606 - our own program


@app.command(context_settings=PASS_ON)
def demo(context: typer.Context) -> None:
    """Run the complete path from 200,000 devices to clusters on a map. `sfumato demo --help` lists the options."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "demo", *context.args])  # noqa: S606 - our own program


@app.command(context_settings=PASS_ON)
def audit(context: typer.Context) -> None:
    """Check every privacy claim, or plant every known leak. `sfumato audit --help` lists the options."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "audit", *context.args])  # noqa: S606 - our own program


@app.command(context_settings=PASS_ON)
def conformance(context: typer.Context) -> None:
    """Test a device in another language: `sfumato conformance -- COMMAND`. `--help` lists the options."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "audit.conformance", *context.args])  # noqa: S606 - our own program


@app.command()
def migrate(
    check: Annotated[bool, typer.Option("--check", help="Only check whether the schema is the newest.")] = False,
) -> None:
    """Migrate the database to the newest schema."""
    from models.database.engine import Database
    from models.database.schema import find_schema_problem
    from models.database.schema import migrate as migrate_database
    from service.cli.serve import refuse_emptied_database

    settings = load_settings()
    with explain_failures():
        if not check:
            refuse_emptied_database(settings)
            migrate_database(settings.resolved_database_url)
        elif settings.database_url is None and not (settings.home / "sfumato.db").exists():
            raise CommandFailed("there is no database")
        with closing(Database.from_settings(settings)) as database:
            problem = find_schema_problem(database)
    if problem is not None:
        raise CommandFailed(problem.text)
    typer.echo("the database has the newest schema")


# ---- forecasts ----

_Quality = Annotated[
    float | None, typer.Option(help="Print how many reports are needed to reach this adjusted Rand index.")
]
_SizeError = Annotated[
    float | None,
    typer.Option(help="Print how many reports are needed to reach this standard error of a cluster's share."),
]
_DetectableMass = Annotated[
    float | None, typer.Option(help="Print how many reports are needed to detect a cluster with this share.")
]
_Family = Annotated[
    str | None, typer.Option(help="Family of the data, if known: `compact`, `elongated`, `curved` or `many_small`.")
]
_OccupiedShare = Annotated[
    float | None,
    typer.Option(help="With --records: part of the bounds that the data occupy along their widest feature, if known."),
]


@app.command()
def budget(
    epsilon: Annotated[float, typer.Option(help="Grant of ε.")],
    job_epsilon: Annotated[float, typer.Option(help="Cost of each job in ε.")],
    delta: Annotated[float, typer.Option(help="Grant of δ.")] = 0.0,
    job_delta: Annotated[
        float, typer.Option(help="Cost of each job in δ, as one concentrated block. With 0, it is pure.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Print how many equal jobs over records a grant allows, under additive and Gaussian accounting."""
    from sfumato.errors import InvalidSpec
    from sfumato.privacy.accountant import forecast_budget
    from sfumato.privacy.accounting import parse_delta, parse_epsilon

    try:
        grant, job = (
            (parse_epsilon(one), parse_delta(other)) for one, other in ((epsilon, delta), (job_epsilon, job_delta))
        )
        found = forecast_budget(*grant, *job)
    except InvalidSpec as error:
        raise CommandFailed(str(error), 2) from None
    gaussian = f"{found.gaussian:,} jobs with Gaussian accounting" if delta else "Gaussian accounting needs a delta"
    counts = {"additive": found.additive, "gaussian": found.gaussian}
    emit(as_json, counts, f"{found.additive:,} jobs with additive accounting; {gaussian}")


@app.command()
def forecast(
    features: Annotated[int, typer.Option(min=1, help="Number of features.")],
    periodic: Annotated[int, typer.Option(min=0, help="Number of the features that are periodic.")] = 0,
    categories: Annotated[
        list[int] | None,
        typer.Option(min=2, help="With --reports: number of categories of a clustering attribute; once for each."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget of one device; with --records, privacy budget of the job.")
    ] = None,
    reports: Annotated[int | None, typer.Option(min=1, help="Expected number of reporting devices.")] = None,
    records: Annotated[
        int | None, typer.Option(min=1, help="Expected number of records, in place of --reports.")
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(help="Number of clusters.", show_default="estimated from the data")
    ] = None,
    delta: Annotated[float, typer.Option(help="Privacy parameter δ of the job; only with --records.")] = 0.0,
    algorithm: Annotated[str, typer.Option(help="Type of the algorithm, which gets its default parameters.")] = "auto",
    shape: Annotated[
        str | None,
        typer.Option(help="Shape of the clusters of interest, `any` or `round`; only for auto.", show_default="any"),
    ] = None,
    quality: _Quality = None,
    size_error: _SizeError = None,
    detectable_mass: _DetectableMass = None,
    family: _Family = None,
    occupied_share: _OccupiedShare = None,
    honest_share: Annotated[
        float | None,
        typer.Option(help="Print the cost of shuffled reports towards the service, with this share of honest devices."),
    ] = None,
    min_batch: Annotated[
        int | None,
        typer.Option(help="Number of devices with reports in releases; with --honest-share.", show_default="--reports"),
    ] = None,
    shuffled_delta: Annotated[
        float, typer.Option(help="Privacy parameter δ of each release; with --honest-share.")
    ] = 1e-6,
    shuffled_epsilon: Annotated[
        float | None,
        typer.Option(help="Find the privacy budget of one device for this cost of releases, in place of --epsilon."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the cost and the accuracy of an algorithm. Needs no service and no privacy budget."""
    from rich.console import Console

    from service.cli.forecast import ReleaseOptions, print_forecast
    from sfumato.errors import SfumatoError

    try:
        print_forecast(
            algorithm,
            epsilon,
            clusters,
            features,
            n_periodic=periodic,
            n_categories=categories or (),
            n_reports=reports,
            n_records=records,
            delta=delta,
            shape=shape,
            family=cast("Family | None", family),  # `forecast` checks it
            occupied_share=occupied_share,
            as_json=as_json,
            console=Console(markup=False, highlight=False, soft_wrap=True),
            quality=quality,
            size_error=size_error,
            detectable_mass=detectable_mass,
            releases=ReleaseOptions(honest_share, min_batch, shuffled_delta, shuffled_epsilon),
        )
    except SfumatoError as error:
        raise CommandFailed(str(error)) from None
