"""`sfumato audit-trail` and `sfumato ledger`: hash chains in the database, or verified through the API."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import AsJson, CommandFailed, DatasetArgument, emit, open_database
from service.cli.connection import Key, Service, calls_service, connect

if TYPE_CHECKING:
    from sfumato.privacy.ledger import Head, Verification

audit_app = typer.Typer(help="Read the audit trail, directly in the database.", no_args_is_help=True)
ledger_app = typer.Typer(help="List and verify entries, and change budgets in the database.", no_args_is_help=True)

_PAGE_EVENTS = 1000  # events per query

TenantOption = Annotated[str, typer.Option(help="Name of the tenant.")]


@audit_app.command("list")
def list_events(
    tenant: TenantOption = "default",
    dataset: Annotated[
        str | None, typer.Option(help="List only events of the dataset with this id.", show_default="all")
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="List only events of this kind, for example key.created.", show_default="all")
    ] = None,
    actor: Annotated[
        str | None, typer.Option(help="List only events by this key id, or by `operator`.", show_default="all")
    ] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", help="List only events of the object with this id.", show_default="all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the events of a tenant, newest first: number, time, actor, act, subject, details.

    The time of `records.uploaded` is the start of the day (UTC). Such an event stands for one or more uploads of its
    key to the dataset on that day, because their number and times are private.
    """
    from models.identity import audit_trail, tenants
    from service.schemas import serializers

    with open_database() as database, database.reading() as session:
        owner, after_seq = tenants.find_tenant(session, tenant), 0
        while owner is not None and (
            rows := audit_trail.page(
                session,
                owner.id,
                after_seq=after_seq,
                limit=_PAGE_EVENTS,
                dataset_id=dataset,
                act=action,
                actor=actor,
                subject_id=object_id,
                newest_first=True,
            )
        ):
            for event in map(serializers.audit_event, rows):
                line = [str(event[name]) for name in ("seq", "at", "actor", "act", "subject_id")]
                emit(as_json, event, "  ".join([*line, json.dumps(event["details"])]))
            after_seq = rows[-1].seq


@audit_app.command("verify")
def verify_audit_trail(tenant: TenantOption = "default", as_json: AsJson = False) -> None:
    """Verify the hash chain of a tenant's audit trail.

    If the chain is broken, prints the position and exits with status 1.
    """
    from models.identity import audit_trail, tenants

    with open_database() as database, database.reading() as session:
        owner = tenants.find_tenant(session, tenant)
        if owner is None:
            raise CommandFailed("no such tenant")
        check = audit_trail.verify(session, owner.id)
    state = "ok" if check.ok else f"BROKEN at event {check.broken_at}: {check.reason}"
    text = f"{tenant}: {check.n_entries} events, head {check.head_hash[:16]}: {state}"
    emit(as_json, {"tenant": tenant, "ok": check.ok, **asdict(check)}, text)
    raise typer.Exit(0 if check.ok else 1)


@ledger_app.command("list")
@calls_service
def list_entries(
    service: Service,
    dataset_id: DatasetArgument,
    kind: Annotated[
        str | None,
        typer.Option(help="List only entries of this kind: grant, reserve, charge or release.", show_default="all"),
    ] = None,
) -> None:
    """List the ledger entries of a dataset, newest first. The key needs the scope `ledger`."""
    from service.cli import output

    found = service.client.ledger(dataset_id, kind=kind)
    service.show_list(f"datasets/{dataset_id}/ledger", output.print_entries, found, kind=kind)


@ledger_app.command("verify")
def verify_ledger(
    dataset_id: Annotated[
        str | None, typer.Argument(help="Id of the dataset (ds_...).", show_default="every dataset")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of a service to verify from outside.", show_default="read the database")
    ] = None,
    key: Key = None,
    noted: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="File with the output of an earlier `sfumato ledger verify --json`."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the hash chain of one dataset's ledger, or of all ledgers.

    Prints the ε and δ that all charges certify together, computed from the entries.

    Reads the database, and also computes the cost of shuffled rounds again. With --url it reads the ledgers through the
    API and verifies them on this machine. The key needs the scope `ledger`.

    An older copy of a ledger is a valid chain too. Only heads that were noted earlier, elsewhere, detect it: keep the
    output of `sfumato ledger verify --json`, and pass it later with --noted.

    If a chain is broken, a charge is wrong or a noted head is missing, prints the position and exits with status 1.
    """
    if key and not url:
        raise typer.BadParameter("--key needs --url: without --url the command reads the database")
    broken, n_unnoted = False, 0
    heads = _read_noted(noted)
    every = _verify_over_http(url, key, dataset_id, heads) if url else _verify_in_database(dataset_id, heads)
    for each, found, wrong in every:
        broken |= not found.ok or bool(wrong)
        state = f"WRONG CHARGE: {wrong}" if wrong else "ok"
        state = state if found.ok else f"BROKEN at entry {found.broken_at}: {found.reason}"
        document = {
            "dataset_id": each,
            "n_entries": found.head.seq,
            "head_hash": found.head.hash,
            "broken_at": found.broken_at,
            "reason": wrong or found.reason,
            "ok": found.ok and not wrong,
            "certified_epsilon": found.certified_epsilon if found.ok and not wrong else None,
            "certified_delta": found.certified_delta if found.ok and not wrong else None,
            "certified_shuffled_epsilon": found.certified_shuffled_epsilon if found.ok and not wrong else None,
        }
        text = f"{each}: {found.head.seq} entries, head {found.head.hash[:16]}: {state}"
        emit(as_json, document, f"{text}; {_describe_certified(found)}" if document["ok"] else text)
        n_unnoted += heads.pop(each, None) is None
    for missing in heads if dataset_id is None else ():
        broken = True
        emit(as_json, {"dataset_id": missing, "ok": False, "reason": "missing"}, f"{missing}: the ledger is MISSING")
    if n_unnoted and (noted is not None or not as_json):  # output without a noted head is the file for --noted
        of = "a ledger" if noted is None else f"{n_unnoted} of the ledgers"
        typer.echo(f"no head of {of} was noted before, so an older copy is not detected; see --noted", err=True)
    raise typer.Exit(1 if broken else 0)


def _describe_certified(found: "Verification") -> str:
    shown = "more than ε 32" if found.certified_epsilon is None else f"ε {found.certified_epsilon:g}"
    text = f"all charges together certify {shown} at δ {found.certified_delta:g}"
    if found.balance.granted_shuffled_delta_atto:
        released = found.certified_shuffled_epsilon
        text += f", and all releases {'more than ε 32' if released is None else f'ε {released:g}'} towards the service"
    return text


def _read_noted(path: Path | None) -> dict[str, "Head"]:
    """Return the heads of an earlier output by dataset."""
    from sfumato.privacy.ledger import Head

    try:
        lines = [] if path is None else [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return {line["dataset_id"]: Head(int(line["n_entries"]), str(line["head_hash"])) for line in lines}
    except (ValueError, KeyError, TypeError):
        raise CommandFailed(f"{path} must be the output of `sfumato ledger verify --json`", 2) from None


def _verify_in_database(dataset_id: str | None, heads: dict[str, "Head"]) -> Iterator[tuple[str, "Verification", str]]:
    """Yield (dataset, verification, reason of a wrong charge)."""
    from models.collection.releases import find_wrong_charge
    from models.ledger import ledger
    from sfumato.errors import SfumatoError
    from sfumato.privacy.ledger import Balance, Head, Verification

    with open_database() as database, database.reading() as session:
        for each in [dataset_id] if dataset_id else ledger.dataset_ids(session):
            try:
                check = ledger.verify(session, each)
                wrong = find_wrong_charge(session, each) if check.ok else ""
            except SfumatoError as error:
                raise CommandFailed(f"{each}: {error}") from None
            sums = ledger.balance(session, each) if check.ok else Balance()  # equal to the sums of all entries
            found = Verification(Head(check.n_entries, check.head_hash), check.broken_at, check.reason, sums)
            if found.ok and each in heads and not ledger.has_entry(session, each, heads[each]):
                seq = min(heads[each].seq, check.n_entries + 1)
                found = replace(found, broken_at=seq, reason="the chain does not contain the noted head")
            yield each, found, wrong


def _verify_over_http(
    url: str, key: str | None, dataset_id: str | None, heads: dict[str, "Head"]
) -> Iterator[tuple[str, "Verification", str]]:
    """Yield (dataset, verification, ""). The API has no data for the cost of shuffled rounds."""
    with connect(url, key) as client:
        for each in [dataset_id] if dataset_id else [dataset.id for dataset in client.datasets()]:
            yield each, client.verify_ledger(each, noted=[heads[each]] if each in heads else []), ""


@ledger_app.command("grant")
def grant_budget(
    dataset_id: DatasetArgument,
    epsilon: Annotated[str, typer.Argument(help="Additional ε, 0 or 0.000001 to 32.")],
    delta: Annotated[str, typer.Option(help="Additional δ of a central dataset, 0 or 1e-15 to 1e-3.")] = "0",
    as_json: AsJson = False,
) -> None:
    """Grant a dataset more budget as the operator. The limit per dataset does not apply."""
    from models import datasets
    from models.identity.caller import operator
    from sfumato.privacy.accounting import format_delta, format_epsilon, parse_delta, parse_epsilon

    with open_database() as database:
        delta_atto = parse_delta(delta)
        epsilon_nano = 0 if delta_atto and epsilon == "0" else parse_epsilon(epsilon)
        with database.transaction() as session:
            caller = operator(datasets.get_live(session, dataset_id).tenant_id)
            entry = datasets.grant(
                session, caller, dataset_id, epsilon_nano=epsilon_nano, delta_atto=delta_atto, now=database.clock()
            )
    granted = (format_epsilon(entry.granted_nano), format_delta(entry.granted_delta_atto))
    text = f"{dataset_id}: granted epsilon {granted[0]}, delta {granted[1]} in total"
    amounts = {"granted_nano": entry.granted_nano, "granted_delta_atto": entry.granted_delta_atto}
    emit(as_json, {"dataset_id": dataset_id, **amounts}, text)


@ledger_app.command("set-source")
def set_source(
    dataset_id: DatasetArgument,
    source: Annotated[str, typer.Argument(help="Label of the people in the data.")],
    as_json: AsJson = False,
) -> None:
    """Set the source of a dataset as the operator. Charges to all datasets of one source add up."""
    from models import datasets
    from models.identity.caller import operator
    from models.ledger import sources
    from sfumato.privacy.accounting import format_delta, format_epsilon

    with open_database() as database, database.transaction() as session:
        caller = operator(datasets.get_live(session, dataset_id).tenant_id)
        datasets.set_source(session, caller, dataset_id, source, now=database.clock())
        spent = sources.spent_of_source(session, dataset_id)
    amounts = f"epsilon {format_epsilon(spent.epsilon_nano)}, delta {format_delta(spent.delta_atto)}"
    nano = {"epsilon_nano": spent.epsilon_nano, "delta_atto": spent.delta_atto}
    emit(as_json, {"source": source, **nano}, f"{source}: charged or reserved {amounts}")


@ledger_app.command("close-after-restore")
def close_after_restore(
    dataset_ids: Annotated[list[str] | None, typer.Argument(help="Ids of datasets (ds_...).")] = None,
    every: Annotated[bool, typer.Option("--all", help="Close the budgets of all datasets.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs and charge the whole remaining budget, after the restore of an older backup.

    Run it before any gateway or worker starts. Charges are permanent, so never run it on a complete database.
    """
    from models.ledger import ledger
    from models.maintenance import close_budget
    from sfumato.errors import SfumatoError
    from sfumato.privacy.accounting import format_delta, format_epsilon

    if bool(dataset_ids) == every:
        raise typer.BadParameter("pass either dataset ids or --all")
    with open_database() as database:
        with database.reading() as session:
            ids = dataset_ids or ledger.dataset_ids(session)
        for each in ids:
            try:
                with database.transaction() as session:
                    epsilon_nano, delta_atto, *_ = close_budget(session, each, now=database.clock())
            except SfumatoError as error:
                raise CommandFailed(f"{each}: {error}") from None
            text = f"{each}: charged epsilon {format_epsilon(epsilon_nano)}, delta {format_delta(delta_atto)}"
            emit(as_json, {"dataset_id": each, "epsilon_nano": epsilon_nano, "delta_atto": delta_atto}, text)
