"""`sfumato records`: upload files over HTTP, and manage the encryption keys directly in the database."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import (
    AsJson,
    CommandFailed,
    DatasetArgument,
    emit,
    load_settings,
    open_database,
    warn_of_undeclared,
)
from service.cli.connection import Service, calls_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from models.database.engine import Database
    from models.encryption import Keyring, SealedRow
    from sfumato.api.client import Client
    from sfumato.api.resources import RecordUpload

records_app = typer.Typer(
    help="Manage the records of central datasets, and the keys that encrypt them.", no_args_is_help=True
)

RETRY_SECONDS = 120.0
KEYS_PER_TRANSACTION = 50


@records_app.command("upload")
@calls_service(retry_seconds=RETRY_SECONDS, timeout_seconds=RETRY_SECONDS)
def upload_records(
    service: Service,
    dataset_id: DatasetArgument,
    source: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="File that ends in .csv (with a header row), .npy, .arrow or .feather."
        ),
    ],
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Append the records even if the dataset already has them.")
    ] = False,
    accept_clipping: Annotated[
        bool, typer.Option("--accept-clipping", help="Append the records even if more than half of them are clipped.")
    ] = False,
) -> None:
    """Append the records of a file to a central dataset. Repeating the upload within a day changes nothing.

    Later, an upload of records that the dataset already has is rejected.
    """
    stored = _upload(service.client, dataset_id, source, (allow_duplicates, accept_clipping))
    text = f"{stored.n_records} records are stored, {stored.n_clipped} of them clipped to the bounds"
    emit(service.as_json, asdict(stored), text)
    warn_of_undeclared(stored.attributes)
    for warning in stored.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if stored.n_zeros:
        typer.echo(f"warning: {stored.n_zeros} records are zero vectors; embeddings may be missing", err=True)
    if stored.n_constant:
        typer.echo(f"warning: {stored.n_constant} features are constant; check their columns and bounds", err=True)
    if stored.n_repeated:
        text = f"warning: {stored.n_repeated} of the records were in the dataset already; check for a repeated upload"
        typer.echo(text, err=True)
    if stored.n_lacking:
        text = f"warning: a useful job needs at least {stored.n_lacking} more records, or a larger epsilon"
        typer.echo(text, err=True)


@records_app.command("delete")
@calls_service
def delete_records(
    service: Service,
    dataset_id: DatasetArgument,
    user: Annotated[str | None, typer.Option(help="Delete the records of the user with this id.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete the records of all users.")] = False,
) -> None:
    """Delete the records of one user, or all records. Released results stay, and no budget is charged.

    The output is the same whether or not the user had records.
    """
    if (user is None) != everything:
        raise CommandFailed("pass either --user ID or --all", 2)
    service.client.delete_records(dataset_id, user=user, everything=everything)
    text = "all records are deleted" if everything else "the user has no records in this dataset now"
    emit(service.as_json, {"dataset_id": dataset_id, "deleted": "all" if everything else "user"}, text)


@records_app.command("new-key")
def print_new_key(as_json: AsJson = False) -> None:
    """Print a new random key for SFUMATO_RECORDS_KEY."""
    from models import encryption

    key = encryption.encode_key(encryption.new_secret())
    emit(as_json, {"key": key}, key)


@records_app.command("rotate-keys")
def rotate_keys(as_json: AsJson = False) -> None:
    """Encrypt every data key and webhook secret with the newest key of SFUMATO_RECORDS_KEY.

    The command can be interrupted and repeated. It exits with status 1 if SFUMATO_RECORDS_KEY lacks a key in use.
    """
    from models import encryption
    from sfumato.errors import SfumatoError

    with open_database() as database:
        try:
            keyring = encryption.load_keyring(load_settings())
        except SfumatoError as error:
            raise CommandFailed(str(error), 2) from None
        n_done, failures = rotate(database, keyring, lambda n_keys: typer.echo(f"{n_keys} keys", err=True))
    for line in failures:
        typer.echo(line, err=True)
    text = f"{n_done} data keys and webhook secrets are now encrypted with the newest key, {keyring.newest_id}"
    emit(as_json, {"n_keys": n_done, "newest_key_id": keyring.newest_id, "failures": failures}, text)
    raise typer.Exit(1 if failures else 0)


def _upload(client: "Client", dataset_id: str, source: Path, accepted: tuple[bool, bool]) -> "RecordUpload":
    """Upload a file, and show the progress if stderr is a terminal. Raise SfumatoError or OSError."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("uploading", total=source.stat().st_size)
        return client.upload_file(
            dataset_id,
            source,
            allow_duplicates=accepted[0],
            accept_clipping=accepted[1],
            on_progress=lambda sent: progress.update(task, completed=sent),
        )


def rotate(database: "Database", keyring: "Keyring", on_progress: "Callable[[int], None]") -> tuple[int, list[str]]:
    """Encrypt every dataset's key and every webhook's secret with the newest master key.

    Several keys share a transaction. Committed ones stay done, so that an interrupted rotation can be repeated.
    Uploads continue, and the keys that they create with an older master key are encrypted again too.

    Parameters
    ----------
    on_progress : callable
        Called with the number of keys done in the current table, after each transaction.

    Returns
    -------
    n_done : int
    failures : list of str
        Datasets and webhooks that could not be decrypted, each with the reason.
    """
    from models.encryption import SEALED

    results = [_rotate_table(database, keyring, on_progress, table) for table in SEALED]
    return sum(n_done for n_done, _ in results), [line for _, failures in results for line in failures]


def _rotate_table(
    database: "Database", keyring: "Keyring", on_progress: "Callable[[int], None]", table: "type[SealedRow]"
) -> tuple[int, list[str]]:
    from models import encryption
    from models.errors import ChangeRejected

    n_done = 0
    while True:
        n_before, failures, after = n_done, list[str](), ""
        while True:
            with database.reading() as session:
                ids = encryption.list_outdated(session, table, keyring, after=after, limit=KEYS_PER_TRANSACTION)
            if not ids:
                break
            with database.transaction() as session:
                for id_ in ids:
                    try:
                        encryption.reseal(session, table, id_, keyring)
                        n_done += 1
                    except ChangeRejected as error:  # raised before any change, so the transaction stays usable
                        failures.append(f"{id_}: {error}")
            on_progress(n_done)
            after = ids[-1]
        # Repeat until a pass finds nothing: a gateway without the newest key may have created another one.
        if n_done == n_before:
            return n_done, failures
