"""`sfumato keys` and `sfumato ledger`: directly in the database."""

from typing import Annotated

import typer

keys_app = typer.Typer(help="Keys, directly in the database.", no_args_is_help=True)
ledger_app = typer.Typer(help="Ledgers, directly in the database.", no_args_is_help=True)

Tenant = Annotated[str, typer.Option(help="Whose.")]

# ---- keys ----


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="For people.")],
    scope: Annotated[
        list[str], typer.Option(help="What it may do: admin, datasets, records, jobs, device, ledger. May be repeated.")
    ],
    dataset: Annotated[str | None, typer.Option(help="The only dataset it sees.", show_default="all")] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, max=36_500, help="No use after so many days.")] = None,
    tenant: Tenant = "default",
) -> None:
    """Make a key. Its secret goes to stdout, this once; what else there is to say to stderr."""
    from service import administration
    from service.cli import _database, _Failed
    from sfumato.errors import SfumatoError

    with _database() as database:
        try:
            made, secret = administration.create_key(
                database, tenant, name=name, scopes=scope, dataset_id=dataset, expires_days=expires_days
            )
        except (SfumatoError, ValueError) as error:
            raise _Failed(str(error)) from None
    typer.echo(f"{made.id}: {', '.join(made.scopes)}; the secret is shown this once", err=True)
    typer.echo(secret)


@keys_app.command("list")
def list_keys(tenant: Tenant = "default") -> None:
    """Every key of a tenant, without secrets."""
    from rich.console import Console
    from rich.table import Table

    from service import administration
    from service.cli import _database

    with _database() as database:
        rows = administration.list_keys(database, tenant)
    table = Table("id", "name", "scopes", "dataset", "expires", "revoked", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(cell or "-" for cell in row))
    Console(markup=False, highlight=False, soft_wrap=True).print(table)


@keys_app.command("revoke")
def revoke_key(key_id: Annotated[str, typer.Argument(help="key_...")], tenant: Tenant = "default") -> None:
    """End a key; gateways notice within a second."""
    from service import administration
    from service.cli import _database, _Failed
    from sfumato.errors import SfumatoError

    with _database() as database:
        try:
            administration.revoke_key(database, tenant, key_id)
        except SfumatoError as error:
            raise _Failed(str(error)) from None
    typer.echo(f"{key_id} is revoked")


# ---- ledger ----


@ledger_app.command("verify")
def verify_ledger(
    dataset_id: Annotated[str | None, typer.Argument(help="ds_...", show_default="every dataset")] = None,
) -> None:
    """Walk hash chains; exit status 1 and the place where one is broken."""
    from models import ledger
    from service.cli import _database, _Failed
    from sfumato.errors import SfumatoError

    broken = False
    with _database() as database, database.reading() as session:
        for each in [dataset_id] if dataset_id else ledger.dataset_ids(session):
            try:
                found = ledger.verify(session, each)
            except SfumatoError as error:
                raise _Failed(f"{each}: {error}") from None
            broken |= not found.ok
            state = "ok" if found.ok else f"BROKEN at entry {found.broken_at}: {found.reason}"
            typer.echo(f"{each}: {found.n_entries} entries, head {found.head_hash[:16]}: {state}")
    raise typer.Exit(1 if broken else 0)
