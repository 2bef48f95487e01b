"""`sfumato tenant`: tenants, their first keys and their own limits, directly in the database."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from models.db import Database
    from models.quota import TenantQuota

tenant_app = typer.Typer(help="Tenants and their quotas, directly in the database.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The tenant's.")]

OPERATORS = "default"  # takes a quota back, so that the operator's setting holds again


@tenant_app.command("create")
def create_tenant(name: Name) -> None:
    """Make a tenant. The secret of its admin key goes to stdout, this once; what else there is to say to stderr."""
    from service.cli import _database, _Failed
    from sfumato.errors import SfumatoError

    with _database() as database:
        try:
            tenant_id, secret = create(database, name)
        except (SfumatoError, ValueError) as error:
            raise _Failed(str(error)) from None
    typer.echo(f"{tenant_id}: its admin key is shown this once", err=True)
    typer.echo(secret)


@tenant_app.command("list")
def list_tenants() -> None:
    """Every tenant, and the limits of its own where it has any."""
    from service.cli import _database

    with _database() as database:
        for row in rows(database):
            typer.echo("  ".join(row).rstrip())


@tenant_app.command("set-quota")
def set_tenant_quota(
    name: Name,
    quotas: Annotated[list[str], typer.Argument(help="max_active_jobs=100, or max_active_jobs=default.")],
) -> None:
    """Set limits of a tenant's own in place of the settings: of datasets, jobs, rounds or records."""
    from service.cli import _database, _Failed
    from sfumato.errors import SfumatoError

    with _database() as database:
        try:
            told = set_quota(database, name, quotas)
        except (SfumatoError, ValueError) as error:
            raise _Failed(str(error)) from None
    typer.echo(f"{name}: {told or 'no quotas of its own'}")


def create(database: "Database", name: str) -> tuple[str, str]:
    """A new tenant and the secret of its first key, of the scope `admin`: (id, secret).

    Raises
    ------
    Conflict
        There is such a tenant.
    ValueError
        It cannot be called so.
    """
    from models import tenant
    from models.tenant import Scope
    from service.administration import MAX_NAME

    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ValueError(f"a name has 1 to {MAX_NAME} printable characters")
    with database.transaction() as session:
        now = database.clock()
        made = tenant.create_tenant(session, name, now=now)
        _, secret = tenant.create_key(session, made.id, name="first", scopes=[Scope.ADMIN], now=now)
        return made.id, secret


def rows(database: "Database") -> list[list[str]]:
    """Id, name and own limits of every tenant, the oldest first."""
    from models import tenant
    from models.quota import TenantQuota

    with database.reading() as session:
        return [[each.id, each.name, _told(session.get(TenantQuota, each.id))] for each in tenant.list_tenants(session)]


def set_quota(database: "Database", name: str, given: Sequence[str]) -> str:
    """Set quotas written as `name=number`, or `name=default`; all that the tenant has now.

    Raises
    ------
    NotFound, LimitExceeded
        There is no such tenant or quota, or it is out of its range.
    ValueError
        One is written otherwise.
    """
    from models import tenant
    from models.errors import NotFound
    from models.quota import set_own

    changes = dict(map(_parsed, given))
    with database.transaction() as session:
        found = tenant.find_tenant(session, name)
        if found is None:
            raise NotFound("tenant")
        return _told(set_own(session, found.id, changes, now=database.clock()))


def _parsed(given: str) -> tuple[str, int | None]:
    name, equals, value = given.partition("=")
    if not equals or not (value == OPERATORS or (value.isascii() and value.isdigit() and len(value) <= 10)):
        raise ValueError("write a quota as max_active_jobs=100, or max_active_jobs=default")
    return name, None if value == OPERATORS else int(value)


def _told(own: "TenantQuota | None") -> str:
    from models.quota import SETTABLE

    return " ".join(f"{name}={getattr(own, name)}" for name in SETTABLE if getattr(own, name, None) is not None)
