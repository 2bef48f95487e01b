"""The command line: `sfumato`. Everything heavy is loaded by the command that needs it."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.analyst_commands import add_to, jobs_app
from service.audit_commands import audit_app
from service.key_commands import keys_app, ledger_app
from service.tenant_commands import tenant_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from models.db import Database
    from models.settings import Settings

app = typer.Typer(
    help="Private clustering as a service.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
records_app = typer.Typer(help="Records of central datasets, and the keys that encrypt them.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
app.add_typer(ledger_app, name="ledger")
app.add_typer(records_app, name="records")
app.add_typer(audit_app, name="audit-trail")
app.add_typer(tenant_app, name="tenant")
app.add_typer(jobs_app, name="jobs")

Host = Annotated[str | None, typer.Option(help="Address to bind.", show_default="127.0.0.1, or SFUMATO_HOST")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port to bind; 0 takes a free one.", show_default="8000")
]
Home = Annotated[
    Path | None, typer.Option(help="Directory of the database and the first admin key.", show_default=".sfumato")
]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def main() -> None:
    """What the command `sfumato` runs."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


class _Failed(typer.Exit):
    """An end with a sentence instead of a traceback."""

    def __init__(self, message: str, status: int = 1) -> None:
        typer.echo(f"sfumato: {message}", err=True)
        super().__init__(status)


def _settings(**given: Any) -> "Settings":
    """The settings, with what the command line says over what the environment does."""
    from pydantic import ValidationError

    from models.settings import Settings

    for name, value in given.items():
        if value is not None:
            os.environ[f"SFUMATO_{name.upper()}"] = str(value)  # for the worker too
    try:
        return Settings()
    except ValidationError as error:
        wrong = ", ".join(f"SFUMATO_{str(item['loc'][0]).upper()}: {item['msg']}" for item in error.errors())
        raise _Failed(f"settings: {wrong}", 2) from None


@contextmanager
def _database() -> "Iterator[Database]":
    """The database of the settings, if it is there and has the newest schema."""
    from sqlalchemy.exc import SQLAlchemyError

    from models.db import Database, is_migrated

    settings = _settings()
    if settings.database_url is None and not (settings.home / "sfumato.db").exists():
        raise _Failed(f"no database in {settings.home}; `sfumato serve` makes one", 2)
    database = Database(settings.resolved_database_url, pool_size=2)
    try:
        if not is_migrated(database):
            raise _Failed("the database has another schema; run `sfumato migrate`", 2)
        yield database
    except SQLAlchemyError as error:
        raise _Failed(f"the database cannot be used ({type(error).__name__})", 2) from None
    finally:
        database.close()


# ---- processes ----


@app.command()
def serve(host: Host = None, port: Port = None, home: Home = None) -> None:
    """Everything on this machine: migrations, gateway, one worker, a first admin key."""
    from models.loading import loading

    with loading():
        from sqlalchemy.exc import SQLAlchemyError

        from models.db import Database, SchemaInUse, migrate
        from models.process import end_with_starter
        from service import embedded, logs, server
        from service.app import create_app

    end_with_starter()
    settings = _settings(host=host, port=port, home=home)
    bound, url = _bound(settings)
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    address_file = settings.home / embedded.URL
    address_file.unlink(missing_ok=True)  # of a run that was killed
    logs.configure()
    try:
        migrate(settings.resolved_database_url)
    except SchemaInUse as error:
        raise _Failed(str(error)) from None
    except SQLAlchemyError as error:
        raise _Failed(f"the database cannot be used ({type(error).__name__})", 2) from None
    database = Database(
        settings.resolved_database_url,
        pool_size=settings.database_pool_size,
        wait_seconds=settings.database_wait_seconds,
    )
    secret = embedded.first_key(database, settings.home)
    embedded.records_key(settings)
    worker = embedded.WorkerProcess(settings)

    def announce() -> None:
        embedded.write_private(address_file, url + "\n")
        _welcome(url, settings.home, secret)

    worker.start()
    try:
        server.run(create_app(settings, database), bound, announce)
    finally:
        worker.stop()
        address_file.unlink(missing_ok=True)
        database.close()


@app.command()
def gateway(host: Host = None, port: Port = None) -> None:
    """A gateway alone, over the database of the settings."""
    from models.loading import loading

    with loading():
        from service import logs, server
        from service.app import create_app

    settings = _settings(host=host, port=port)
    bound, url = _bound(settings)
    logs.configure()
    server.run(create_app(settings), bound, lambda: typer.echo(f"Sfumato listens on {url}"))


def _bound(settings: "Settings") -> tuple[Any, str]:
    from service import server

    try:
        bound = server.bind(settings.host, settings.port)
    except OSError as error:
        raise _Failed(f"cannot bind {settings.host}:{settings.port}: {error.strerror}") from None
    return bound, server.address(bound, settings.public_url)


def _welcome(url: str, home: Path, secret: str | None) -> None:
    key_file = home / "admin.key"
    lines = [f"Sfumato listens on {url}", f"  reference    {url}/docs"]
    if secret is not None:
        lines.append(f"  admin key    {secret}\n               shown this once; kept in {key_file}")
    else:
        lines.append(f"  admin key    in {key_file}")
    lines.append(f'  try          curl -s {url}/v1/datasets -H "Authorization: Bearer $(cat {key_file})"')
    typer.echo("\n".join(lines))
    sys.stdout.flush()


@app.command(context_settings=PASS_ON)
def worker(context: typer.Context) -> None:
    """A worker alone, over the database of the settings."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "workers", *context.args])  # noqa: S606 - our own program


@app.command(context_settings=PASS_ON)
def demo(context: typer.Context) -> None:
    """The whole way from 200,000 devices to clusters on a map; `sfumato demo --help` has its options."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "demo", *context.args])  # noqa: S606 - our own program


@app.command(context_settings=PASS_ON)
def audit(context: typer.Context) -> None:
    """Look at every claim of privacy, or plant every leak; `sfumato audit --help` has its options."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "audit", *context.args])  # noqa: S606 - our own program


@app.command()
def migrate(
    check: Annotated[bool, typer.Option("--check", help="Only say whether the schema is the newest.")] = False,
) -> None:
    """Bring the database to the newest schema."""
    from sqlalchemy.exc import SQLAlchemyError

    from models.db import Database, SchemaInUse, is_migrated
    from models.db import migrate as bring_up

    settings = _settings()
    try:
        if not check:
            bring_up(settings.resolved_database_url)
        elif settings.database_url is None and not (settings.home / "sfumato.db").exists():
            raise _Failed("there is no database")
        database = Database(settings.resolved_database_url, pool_size=2)
        newest = is_migrated(database)
        database.close()
    except SchemaInUse as error:
        raise _Failed(str(error)) from None
    except SQLAlchemyError as error:
        raise _Failed(f"the database cannot be used ({type(error).__name__})", 2) from None
    if not newest:
        raise _Failed("the database has another schema; run `sfumato migrate`")
    typer.echo("the database has the newest schema")


# ---- records ----


@records_app.command("upload")
def upload_records(
    dataset_id: Annotated[str, typer.Argument(help="ds_...")],
    source: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="A file .csv (with header), .npy, .arrow.")
    ],
) -> None:
    """Append a file's records to a central dataset; the same file again within a day changes nothing.

    The service's address and key come from SFUMATO_URL and SFUMATO_KEY, or from the home of `sfumato serve`.
    """
    from service import record_commands, reporting
    from sfumato.errors import SfumatoError

    try:
        stored = record_commands.upload(dataset_id, source, *reporting.service(_settings().home))
    except (SfumatoError, reporting.Unusable) as error:
        raise _Failed(str(error)) from None
    typer.echo(f"{stored.n_records} records are stored, {stored.n_clipped} of them clipped to the bounds")


@records_app.command("new-key")
def new_records_key() -> None:
    """Print a fresh key for SFUMATO_RECORDS_KEY."""
    from models import sealing

    typer.echo(sealing.write_key(sealing.new_secret()))


@records_app.command("rotate-keys")
def rotate_records_keys() -> None:
    """Have the newest key of SFUMATO_RECORDS_KEY open every dataset's records, and no older one.

    May be stopped and begun again; exit status 1 where a key in use is not there.
    """
    from models import sealing
    from service import record_commands
    from sfumato.errors import SfumatoError

    with _database() as database:
        try:
            keyring = sealing.keyring_of(_settings())
        except SfumatoError as error:
            raise _Failed(str(error), 2) from None
        n_done, left = record_commands.rotate(database, keyring, lambda done: typer.echo(f"{done} datasets", err=True))
    for line in left:
        typer.echo(line, err=True)
    typer.echo(f"{n_done} datasets and webhook secrets have the newest key now, {keyring.newest_id}")
    raise typer.Exit(1 if left else 0)


# ---- forecasts ----


@app.command()
def forecast(
    epsilon: Annotated[float, typer.Option(help="What one device may spend; over records, what the job may.")],
    features: Annotated[int, typer.Option(min=1, help="How many.")],
    reports: Annotated[int | None, typer.Option(min=1, help="Devices expected to take part.")] = None,
    records: Annotated[int | None, typer.Option(min=1, help="In place of --reports: records, by your guess.")] = None,
    clusters: Annotated[int | None, typer.Option(help="How many.", show_default="counted")] = None,
    delta: Annotated[float, typer.Option(help="Over records: what the job may spend of it.")] = 0.0,
    algorithm: Annotated[str, typer.Option(help="Its type, with its default parameters.")] = "auto",
    quality: Annotated[float | None, typer.Option(help="Reports for such an adjusted Rand index?")] = None,
    size_error: Annotated[float | None, typer.Option(help="Reports for such an error of a size?")] = None,
    detectable_mass: Annotated[float | None, typer.Option(help="Reports for so small a cluster?")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As the service answers it.")] = False,
) -> None:
    """What an algorithm will cost and how well it will do; asks no service, spends nothing."""
    from rich.console import Console

    from service import forecasting
    from sfumato.errors import SfumatoError

    console = Console(markup=False, highlight=False, soft_wrap=True)
    wish = {"quality": quality, "size_error": size_error, "detectable_mass": detectable_mass}
    try:
        forecasting.tell(
            algorithm, epsilon, clusters, features,
            n_reports=reports, n_records=records, delta=delta, as_json=as_json, console=console, **wish,
        )  # fmt: skip
    except SfumatoError as error:
        raise _Failed(str(error)) from None


add_to(app)


if __name__ == "__main__":
    main()
