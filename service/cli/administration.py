"""`sfumato keys` and `sfumato tenant`: API keys, tenants and quotas, changed directly in the database."""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import AsJson, CommandFailed, emit, open_database, print_json

if TYPE_CHECKING:
    from models.tables.identity import TenantQuota

keys_app = typer.Typer(help="Manage API keys, directly in the database.", no_args_is_help=True)
tenant_app = typer.Typer(help="Manage tenants and their quotas, directly in the database.", no_args_is_help=True)

MAX_NAME = 100  # characters
_NUMBER = re.compile(r"[0-9]{1,10}(\.[0-9]{1,18})?([eE]-[0-9]{1,2})?", re.ASCII)
DEFAULT = "default"  # value that removes a tenant's own quota, so that the setting applies again

TenantOption = Annotated[str, typer.Option(help="Name of the tenant that owns the keys.")]
TenantArgument = Annotated[str, typer.Argument(help="Name of the tenant.")]


def _check_names(*names: str) -> None:
    for name in names:
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise CommandFailed(f"a name must have 1 to {MAX_NAME} printable characters")


# ---- keys ----


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Name of the key, shown in lists.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="Permission of the key: admin, datasets, grants, records, jobs, device or ledger. May be repeated."
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Id of the only dataset that the key can access.", show_default="all")
    ] = None,
    expires_days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Number of days until the key expires.", show_default="never")
    ] = None,
    tenant: TenantOption = "default",
    as_json: AsJson = False,
) -> None:
    """Create an API key, and its tenant if the name is new.

    Prints the secret to stdout, only this time, and everything else to stderr.
    """
    from models.database.types import SECOND
    from models.errors import NotFound
    from models.identity import keys, tenants
    from models.tables.datasets import Dataset
    from models.tables.identity import Scope
    from service.schemas import serializers

    _check_names(name, tenant)
    for unknown in set(scope) - set(Scope):
        raise CommandFailed(f"unknown scope {unknown!r}; valid scopes: {', '.join(Scope)}")
    with open_database() as database, database.transaction() as session:
        now = database.clock()
        owner = tenants.get_or_create_tenant(session, tenant, now=now)
        if dataset is not None:
            bound_to = session.get(Dataset, dataset)
            if bound_to is None or bound_to.tenant_id != owner.id or bound_to.deleted_at is not None:
                raise NotFound("dataset")
        key, secret = keys.create_key(
            session,
            owner.id,
            name=name,
            scopes=[Scope(each) for each in scope],
            dataset_id=dataset,
            expires_at=None if expires_days is None else now + expires_days * 86_400 * SECOND,
            now=now,
        )
        document, scopes = serializers.key(key) | {"secret": secret}, ", ".join(key.scopes)
    typer.echo(f"{document['id']}: {scopes}; the secret is shown only once", err=True)
    emit(as_json, document, secret)


@keys_app.command("list")
def list_keys(tenant: TenantOption = "default", as_json: AsJson = False) -> None:
    """List every key of a tenant, without secrets."""
    from rich.console import Console
    from rich.table import Table

    from models.identity import keys, tenants
    from service.schemas import serializers
    from service.schemas.base import optional_timestamp

    table = Table("id", "name", "scopes", "dataset", "expires", "revoked", box=None, pad_edge=False)
    with open_database() as database, database.reading() as session:
        owner = tenants.find_tenant(session, tenant)
        for key in [] if owner is None else keys.list_keys(session, owner.id):
            times = (optional_timestamp(key.expires_at), optional_timestamp(key.revoked_at))
            cells = (key.id, key.name, " ".join(key.scopes), key.dataset_id, *times)
            table.add_row(*(cell or "-" for cell in cells))
            if as_json:
                print_json(serializers.key(key))
    if not as_json:
        Console(markup=False, highlight=False, soft_wrap=True).print(table)


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="Id of the key (key_...).")],
    tenant: TenantOption = "default",
    as_json: AsJson = False,
) -> None:
    """Revoke a key. Gateways reject it within a second."""
    from models.errors import NotFound
    from models.identity import keys, tenants

    with open_database() as database, database.transaction() as session:
        owner = tenants.find_tenant(session, tenant)
        if owner is None:
            raise NotFound("key")
        keys.revoke_key(session, owner.id, key_id, now=database.clock())
    emit(as_json, {"id": key_id, "state": "revoked"}, f"{key_id} is revoked")


# ---- tenants ----


@tenant_app.command("create")
def create_tenant(name: TenantArgument, as_json: AsJson = False) -> None:
    """Create a tenant and its first key, with the scope admin.

    Prints the secret of the key to stdout, only this time, and everything else to stderr.
    """
    from models.identity import keys, tenants
    from models.tables.identity import Scope

    _check_names(name)
    with open_database() as database, database.transaction() as session:
        now = database.clock()
        tenant_id = tenants.create_tenant(session, name, now=now).id
        _, secret = keys.create_key(session, tenant_id, name="first", scopes=[Scope.ADMIN], now=now)
    typer.echo(f"{tenant_id}: its admin key is shown only once", err=True)
    emit(as_json, {"id": tenant_id, "name": name, "secret": secret}, secret)


@tenant_app.command("list")
def list_tenants(as_json: AsJson = False) -> None:
    """List id, name and own quotas of every tenant, oldest first."""
    from models.identity import tenants
    from models.tables.identity import TenantQuota

    with open_database() as database, database.reading() as session:
        for each in tenants.list_tenants(session):
            own = _own_quotas(session.get(TenantQuota, each.id))
            document = {"id": each.id, "name": each.name, "quotas": own}
            emit(as_json, document, "  ".join((each.id, each.name, _format_quotas(own))).rstrip())


@tenant_app.command("set-quota")
def set_tenant_quota(
    name: TenantArgument,
    quotas: Annotated[
        list[str], typer.Argument(help="Quota as NAME=NUMBER, or NAME=default to remove it: max_active_jobs=100.")
    ],
    as_json: AsJson = False,
) -> None:
    """Set a tenant's own quotas of datasets, jobs, rounds, records or privacy budgets. They override the settings."""
    from models.errors import NotFound
    from models.identity import tenants
    from models.identity.tenants import set_quotas

    changes = dict(map(_parse_quota, quotas))
    with open_database() as database, database.transaction() as session:
        tenant = tenants.find_tenant(session, name)
        if tenant is None:
            raise NotFound("tenant")
        own = _own_quotas(set_quotas(session, tenant.id, changes, now=database.clock()))
    emit(as_json, {"name": name, "quotas": own}, f"{name}: {_format_quotas(own) or 'no quotas of its own'}")


def _parse_quota(text: str) -> tuple[str, Decimal | None]:
    """Return (name, value) of `name=number`, or (name, None) of `name=default`."""
    name, equals, value = text.partition("=")
    if not equals or not (value == DEFAULT or _NUMBER.fullmatch(value)):
        raise CommandFailed("write a quota as max_active_jobs=100, or max_active_jobs=default")
    return name, None if value == DEFAULT else Decimal(value)


def _own_quotas(own: "TenantQuota | None") -> dict[str, str]:
    """Return a tenant's own quotas as decimal numbers by name."""
    from models.identity.tenants import SETTABLE

    stored = {name: getattr(own, quota.column, None) for name, quota in SETTABLE.items()}
    shown = {name: Decimal(value) / SETTABLE[name].one for name, value in stored.items() if value is not None}
    return {name: f"{value.normalize():f}" for name, value in shown.items()}


def _format_quotas(own: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in own.items())
