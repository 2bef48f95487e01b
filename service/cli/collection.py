"""`sfumato datasets`, `rounds` and `report`: commands that call the HTTP API."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from service.cli.common import (
    CommandFailed,
    DatasetArgument,
    HonestShare,
    MinBatch,
    ShuffledDelta,
    print_json,
    split_names,
    warn_of_undeclared,
)
from service.cli.connection import Service, calls_service
from service.cli.dataset_options import (
    Accounting,
    Bins,
    Categories,
    ClusterBy,
    Dimensions,
    Features,
    FirstDelta,
    FirstShuffledDelta,
    Missing,
    Norm,
    ShuffledEpsilon,
    ShufflerKey,
    ShufflerName,
    ShufflerUrl,
    Source,
    Trust,
    Unknown,
    takes_settings,
)
from sfumato.kinds import MechanismKind

if TYPE_CHECKING:
    from sfumato.specs.attributes import Attribute

datasets_app = typer.Typer(help="Create and show the datasets of a service.", no_args_is_help=True)
rounds_app = typer.Typer(help="Open, list and close the rounds of a dataset.", no_args_is_help=True)

# ---- datasets ----


def _parse_feature(text: str) -> tuple[Any, ...]:
    """Return the values of a feature from `name:lower:upper[:unit[:shape]]`."""
    name, *rest = text.split(":")
    try:
        lower, upper, unit, shape = [*rest, *[""] * (4 - len(rest))]
        if shape not in ("", "periodic", "latitude", "longitude"):
            raise ValueError
        coordinate = shape if shape in ("latitude", "longitude") else None
        return (name, float(lower), float(upper), unit, shape == "periodic", coordinate)
    except ValueError:
        raise CommandFailed(
            f"write the feature {name!r} as name:lower:upper[:unit[:shape]] with the shape periodic, latitude or "
            "longitude",
            2,
        ) from None


def _parse_attributes(
    categories: list[str],
    bins: list[str],
    unknown: "Literal['refuse', 'other']",
    missing: "Literal['refuse', 'category']",
    cluster_by: list[str],
) -> "list[Attribute]":
    """Return attributes from texts `name=value,value,...` and `name=edge,edge,...`."""
    from sfumato.specs.attributes import Categorical, Numeric

    found: list[Attribute] = []
    weights = {name: weight or "1" for name, _, weight in (text.partition("=") for text in cluster_by)}
    for text in categories:
        name, _, values = text.partition("=")
        use: Literal["describe", "cluster"] = "cluster" if name in weights else "describe"
        try:
            weight = float(weights.pop(name, "1"))
        except ValueError:
            raise CommandFailed(f"write the weight of {name!r} as NAME=NUMBER", 2) from None
        found.append(Categorical(name, tuple(split_names(values)), unknown, missing, use, weight))
    if weights:
        raise CommandFailed(f"--cluster-by names no attribute of --category: {', '.join(weights)}", 2)
    for text in bins:
        name, _, values = text.partition("=")
        try:
            found.append(Numeric(name, tuple(map(float, split_names(values))), missing))
        except ValueError:
            raise CommandFailed(f"write the bins of {name!r} as NAME=EDGE,EDGE,... with numbers", 2) from None
    return found


@datasets_app.command("create")
@calls_service
@takes_settings
def create_dataset(
    service: Service,
    name: Annotated[str, typer.Argument(help="Name of the dataset.")],
    epsilon: Annotated[float, typer.Option(help="First grant of the privacy budget ε, 0.000001 to 32.")],
    feature: Features = None,
    trust: Trust = "local",
    delta: FirstDelta = 0.0,
    accounting: Accounting = None,
    dimensions: Dimensions = None,
    norm: Norm = 1.0,
    source: Source = None,
    shuffler_name: ShufflerName = None,
    shuffler_url: ShufflerUrl = None,
    shuffler_key: ShufflerKey = None,
    shuffled_epsilon: ShuffledEpsilon = None,
    shuffled_delta: FirstShuffledDelta = 1e-5,
    category: Categories = None,
    bins: Bins = None,
    unknown: Unknown = "refuse",
    missing: Missing = "refuse",
    cluster_by: ClusterBy = None,
    **settings: Any,
) -> None:
    """Create a dataset and print its id. For a shuffled dataset, also print the trust statement for its users."""
    from sfumato.privacy.shuffling import TRUST_STATEMENT
    from sfumato.settings import Shuffler
    from sfumato.specs import Embedding

    if (feature is None) == (dimensions is None):
        raise CommandFailed("pass either --feature, once for each feature, or --dimensions", 2)
    terms = (shuffler_name, shuffler_url, shuffler_key, shuffled_epsilon)
    if any((each is None) == (trust == "shuffled") for each in terms):
        raise CommandFailed(
            "pass --shuffler-name, --shuffler-url, --shuffler-key and --shuffled-epsilon with --trust shuffled, "
            "and without it none of them",
            2,
        )
    created = service.client.create_dataset(
        name,
        [_parse_feature(each) for each in feature or []] if dimensions is None else Embedding(dimensions, norm),
        epsilon=epsilon,
        trust=trust,
        delta=delta,
        accounting=accounting,
        source=source,
        shuffled=None if shuffled_epsilon is None else (shuffled_epsilon, shuffled_delta),
        shuffler=Shuffler(shuffler_name, shuffler_url, shuffler_key)
        if shuffler_name and shuffler_url and shuffler_key
        else None,
        attributes=_parse_attributes(category or [], bins or [], unknown, missing, cluster_by or []),
        **settings,
    )
    for warning in created.warnings:
        typer.echo(warning, err=True)
    if trust == "shuffled":
        typer.echo(TRUST_STATEMENT, err=True)
    service.show(f"datasets/{created.id}", created.id)


@datasets_app.command("list")
@calls_service
def list_datasets(
    service: Service,
    name: Annotated[str | None, typer.Option(help="List only datasets with this name.", show_default="all")] = None,
    source: Annotated[str | None, typer.Option(help="List only datasets of this source.", show_default="all")] = None,
    trust: Annotated[
        str | None, typer.Option(help="List only datasets with this trust model.", show_default="all")
    ] = None,
) -> None:
    """List the datasets visible to the key, newest first, with a bar of the charged, reserved and free budget."""
    from service.cli import output

    filters = {"name": name, "source": source, "trust": trust}
    service.show_list(
        "datasets", lambda console, client: output.print_datasets(console, client, **filters), service.client, **filters
    )


@datasets_app.command("source")
@calls_service
def show_source(
    service: Service,
    label: Annotated[str, typer.Argument(help="Label of the people; `-` for the datasets without a label.")],
    name: Annotated[
        str | None, typer.Option(help="Only datasets with this name, without a label.", show_default="all")
    ] = None,
) -> None:
    """Show what all datasets over the same people spent and may spend, deleted ones included."""
    from service.cli import output

    service.show(
        f"sources/{quote(label, safe='')}",
        lambda console: output.print_source(console, service.client, None if label == "-" else label, name),
        **({} if name is None else {"name": name}),
    )


@datasets_app.command("show")
@calls_service
def show_dataset(service: Service, dataset_id: DatasetArgument) -> None:
    """Show a dataset with its features, budget and rounds."""
    from service.cli import output

    service.show(f"datasets/{dataset_id}", lambda console: output.print_dataset(console, service.client, dataset_id))


# ---- rounds ----


@rounds_app.command("open")
@calls_service
def open_round(
    service: Service,
    dataset_id: DatasetArgument,
    encoding: Annotated[
        str,
        typer.Option(
            help='Encoding of the reports as JSON: \'{"type": "shifted_grid", "cells": 8, "shifts": 4}\'. '
            "The number of features is that of the dataset."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Cost of a report for its device.")],
    target_reports: Annotated[int, typer.Option(min=1, help="Number of reports at which the round closes.")],
    mechanism: Annotated[MechanismKind, typer.Option(help="Mechanism that perturbs.")] = "auto",
    min_reports: Annotated[int, typer.Option(min=0, help="Minimum number of reports; at least the dataset's.")] = 0,
    collect_seconds: Annotated[int, typer.Option(min=1, help="Time that the round accepts reports.")] = 604_800,
    min_batch: MinBatch = None,
    honest_share: HonestShare = None,
    shuffled_delta: ShuffledDelta = None,
) -> None:
    """Open a round for later jobs and print its id. Its cost is charged first."""
    from sfumato.specs import encoding_from_wire

    try:
        wire = json.loads(encoding)
    except ValueError:
        raise CommandFailed("the encoding must be JSON", 2) from None
    if isinstance(wire, dict) and wire.get("type") != "grid":
        wire = {"n_features": len(service.client.get_dataset(dataset_id).features)} | wire
    opened = service.client.open_round(
        dataset_id,
        encoding_from_wire(wire),
        epsilon=epsilon,
        target_reports=target_reports,
        mechanism=mechanism,
        min_reports=min_reports,
        collect_seconds=collect_seconds,
        min_batch=min_batch,
        honest_share=honest_share,
        shuffled_delta=shuffled_delta,
    )
    service.show(f"rounds/{opened.id}", opened.id)


@rounds_app.command("list")
@calls_service
def list_rounds(
    service: Service,
    dataset_id: DatasetArgument,
    state: Annotated[
        str | None, typer.Option(help="List only rounds in this state, for example open.", show_default="all")
    ] = None,
) -> None:
    """List the rounds of a dataset, newest first."""
    from service.cli import output

    found = service.client.rounds(dataset_id, state=state)
    service.show_list(f"datasets/{dataset_id}/rounds", output.print_rounds, found, state=state)


@rounds_app.command("close")
@calls_service
def close_round(
    service: Service,
    round_id: Annotated[str, typer.Argument(help="Id of the round (rnd_...).")],
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Close the round even if it has no reports and so gives no result.")
    ] = False,
) -> None:
    """Close a round. Its cost stays charged."""
    closed = service.client.close_round(round_id, allow_empty=allow_empty)
    service.show(f"rounds/{round_id}", f"{round_id} is {closed.state} with {closed.n_received} reports")


# ---- reports ----


@calls_service
def send_reports(
    service: Service,
    dataset_id: DatasetArgument,
    source: Annotated[
        Path,
        typer.Option("--from", exists=True, dir_okay=False, help="CSV file with a header row of names."),
    ],
) -> None:
    """Perturb each row of a CSV file as one device would, and send the reports to the open round.

    The file has a column for each feature, and for each attribute that the round reads. A receipt beside the file
    (PATH.receipt) prevents a second report of a person to a round. After an interruption, run the command again. Keep
    the receipt as private as the file, and keep both together.
    """
    from service.cli import output, report
    from service.cli.tables import open_console

    sent = report.send(dataset_id, source, service.client)
    if service.as_json:
        for each in sent.rounds:
            counts = {"n_sent": each.n_sent, "n_received": each.round.n_received, "n_clipped": sent.n_clipped}
            more = {"attributes": [asdict(each) for each in sent.attributes]} if sent.attributes else {}
            print_json({"round_id": each.round.id} | counts | more)
        return
    output.print_reported(open_console(stderr=True), sent.rounds)
    if sent.n_clipped:
        message = f"{sent.n_clipped} of {sent.n_records} records have a value outside of its bounds, and were clipped"
        typer.echo(message, err=True)
    warn_of_undeclared(sent.attributes)
    typer.echo(f"{sum(each.n_sent for each in sent.rounds)} reports are stored")
