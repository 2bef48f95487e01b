"""`sfumato audit-trail`: acts of administration, read and checked directly in the database."""

import json
from typing import Annotated

import typer

audit_app = typer.Typer(help="Who did which act of administration, directly in the database.", no_args_is_help=True)

_AT_ONCE = 1000

Tenant = Annotated[str, typer.Option(help="Whose.")]


@audit_app.command("list")
def list_events(
    tenant: Tenant = "default",
    dataset: Annotated[str | None, typer.Option(help="Only of this dataset.", show_default="all")] = None,
    act: Annotated[str | None, typer.Option(help="Only such acts, as key.created.", show_default="all")] = None,
    actor: Annotated[str | None, typer.Option(help="Only of this key, or operator.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Whole events, a line each, as the service answers.")] = False,
) -> None:
    """Every act in order: number, time, who, what, to what."""
    from models import audit
    from models import tenant as tenants
    from service import views
    from service.cli import _database

    with _database() as database, database.reading() as session:
        owner, after_seq = tenants.find_tenant(session, tenant), 0
        while owner is not None and (
            rows := audit.page(
                session, owner.id, after_seq=after_seq, limit=_AT_ONCE, dataset_id=dataset, act=act, actor=actor
            )
        ):
            for event in map(views.audit_event, rows):
                line = [str(event.seq), event.at, event.actor, event.act, event.subject_id, json.dumps(event.details)]
                typer.echo(event.model_dump_json() if as_json else "  ".join(line))
            after_seq = rows[-1].seq


@audit_app.command("verify")
def verify_chain(tenant: Tenant = "default") -> None:
    """Walk the chain of hashes; exit status 1 and the place where it is broken."""
    from models import audit
    from models import tenant as tenants
    from service.cli import _database

    with _database() as database, database.reading() as session:
        owner = tenants.find_tenant(session, tenant)
        if owner is None:
            typer.echo("sfumato: no such tenant", err=True)
            raise typer.Exit(1)
        found = audit.verify(session, owner.id)
    state = "ok" if found.ok else f"BROKEN at event {found.broken_at}: {found.reason}"
    typer.echo(f"{tenant}: {found.n_events} events, head {found.head_hash[:16]}: {state}")
    raise typer.Exit(0 if found.ok else 1)
