"""Forms for a new dataset, a standalone round, and an upload of records."""

import csv

from starlette.responses import Response

from models.tables.identity import Scope
from service.console.forms import (
    Json,
    collect_errors,
    collect_item_errors,
    parse_number,
    parse_seconds,
    setting_fields,
    settings_body,
)
from service.console.rendering import amount, redirect, show
from service.console.request import MAX_FILE_BYTES, Page, Visit
from service.http.auth import check
from service.http.problems import Forbidden, Problem, ValidationFailed
from sfumato.mechanisms import COUNTED
from sfumato.privacy.shuffling import TRUST_STATEMENT
from sfumato.settings import all_settings

DAY_SECONDS = 86_400
_USES = {"categorical": "describe", "clustering": "cluster"}  # kinds of attributes with a vocabulary, in a form
PERIODIC, COORDINATES = "periodic", ("latitude", "longitude")  # shapes, the fifth value of a line
_ITEMS = {"features": "feature", "attributes": "attribute"}  # lists of a form, with the noun for an item
ENCODINGS = ("grid", "shifted_grid")  # shown in the form; plans alone use the other encodings
MECHANISMS = ("auto", *COUNTED)
_FIELDS_OF_UPLOADS = {"duplicate_content": "allow_duplicates", "mostly_clipped": "accept_clipping"}  # else the file
# Media types by file extension.
MEDIA_TYPES = {
    "csv": "text/csv",
    "json": "application/json",
    "npy": "application/x-npy",
    "arrow": "application/vnd.apache.arrow.stream",
    "arrows": "application/vnd.apache.arrow.stream",
}


# ---- a dataset ----


async def dataset_form(visit: Visit, *, problem: Problem | None = None) -> Response:
    """Serve `GET /console/datasets/new`."""
    check(visit.caller, Scope.DATASETS)
    if visit.caller.dataset_id is not None:
        raise Forbidden("this needs a key that is not bound to one dataset")
    return show(
        visit,
        "new_dataset.html",
        problem,
        refusal=collect_item_errors(problem, _ITEMS, within=("shuffler", "shuffled")),
        trust_statement=TRUST_STATEMENT,
        settings=setting_fields(),
    )


async def create_dataset(visit: Visit) -> Response:
    """Serve `POST /console/datasets`."""
    trust = visit.form_value("trust") or "local"
    body: Json = {
        "name": visit.form_value("name"),
        "trust": trust,
        "epsilon": parse_number(visit.form_value("epsilon")),
        **visit.filled("source"),
        **settings_body(trust, visit.filled(*all_settings())),
    }
    if trust != "local":
        body |= visit.filled("accounting")
    if trust == "shuffled":
        names = ("name", "url", "public_key")
        body["shuffler"] = {name: visit.form_value(f"shuffler_{name}") for name in names}
        body["shuffled"] = {name: parse_number(visit.form_value(f"shuffled_{name}")) for name in ("epsilon", "delta")}
    elif trust == "central":
        body |= visit.numbers("delta")
    try:
        if visit.form_value("attributes"):
            body["attributes"] = _attributes(visit)
        body["features"] = visit.numbers("dimensions", "norm") or _features(visit.form_value("features"))
        created = await visit.api.post("/datasets", body, once=visit.form_value("once"))
    except Problem as problem:
        return await dataset_form(visit, problem=problem)
    return redirect(f"/datasets/{created['id']}")


def _attributes(visit: Visit) -> list[Json]:
    """Parse attributes, one per line: name, kind, and values or edges.

    The kind is `categorical`, `numeric`, or `clustering` with an optional weight.
    """
    found: list[Json] = []
    missing = "category" if visit.form_value("missing_category") else "refuse"
    for cells in csv.reader(visit.form_value("attributes").splitlines(), skipinitialspace=True):
        name, kind, *values = [*(cell.strip() for cell in cells), "", ""][: max(2, len(cells))]
        kind, _, weight = kind.partition(" ")
        if kind in _USES:
            unknown = "other" if visit.form_value("unknown_other") else "refuse"
            each = {"name": name, "kind": "categorical", "values": values, "unknown": unknown, "missing": missing}
            found.append(each | {"use": _USES[kind]} | ({"weight": parse_number(weight)} if weight else {}))
        elif kind == "numeric":
            bins = [parse_number(value) for value in values]
            found.append({"name": name, "kind": kind, "bins": bins, "missing": missing})
        elif any((name, kind)):
            message = (
                "a line must be: name, categorical, value, value, … or: name, clustering, value, value, … or: name, "
                "numeric, edge, edge, …"
            )
            raise ValidationFailed(errors=[{"pointer": f"/attributes/{len(found)}", "message": message}])
    return found


_SHAPES: dict[str, Json] = {"": {}, PERIODIC: {"periodic": True}} | {name: {"coordinate": name} for name in COORDINATES}


def _features(text: str) -> list[Json]:
    """Parse features, one per line: name, lower, upper, unit, shape. Reject longer lines.

    The API rejects invalid values.
    """
    found: list[Json] = []
    for cells in csv.reader(text.splitlines(), skipinitialspace=True):
        name, lower, upper, unit, shape, *more = [*(cell.strip() for cell in cells), "", "", "", "", ""]
        if any((name, lower, upper, unit, shape)):
            if any(more) or shape not in _SHAPES:
                message = (
                    f"a line must be: name, lower, upper, unit, and {PERIODIC} for a circle, or latitude or longitude "
                    "for a place. Put a name that contains a comma in double quotes."
                )
                raise ValidationFailed(errors=[{"pointer": f"/features/{len(found)}", "message": message}])
            feature = {"name": name, "lower": parse_number(lower), "upper": parse_number(upper), "unit": unit}
            found.append(feature | _SHAPES[shape])
    return found


# ---- a round ----


async def round_form(visit: Visit, *, problem: Problem | None = None) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/rounds/new`."""
    check(visit.caller, Scope.DATASETS)
    dataset = await visit.api.get(f"/datasets/{visit.id('dataset_id')}")
    return show(
        visit,
        "new_round.html",
        problem,
        dataset=dataset,
        budget=await visit.api.get_existing(f"/datasets/{dataset['id']}/budget"),
        encodings=ENCODINGS,
        mechanisms=MECHANISMS,
    )


async def open_round(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/rounds`: show the cost or open the round, depending on the button."""
    path = f"/datasets/{visit.id('dataset_id')}"
    if visit.form_value("step") == "review":
        return await _confirmation(visit, path)
    if visit.form_value("step") != "submit":
        return await round_form(visit)
    try:
        opened = await visit.api.post(f"{path}/rounds", await _round(visit, path), once=visit.form_value("once"))
    except Problem as problem:
        return await round_form(visit, problem=problem)
    return redirect(f"/rounds/{opened['id']}")


async def _confirmation(visit: Visit, path: str) -> Response:
    check(visit.caller, Scope.DATASETS)
    epsilon = parse_number(visit.form_value("epsilon"))
    if not isinstance(epsilon, int | float) or not 0 < epsilon <= 32:
        wrong = [{"pointer": "/epsilon", "message": "epsilon must lie in [0.000001, 32]"}]
        return await round_form(visit, problem=ValidationFailed(errors=wrong))
    dataset, budget = await visit.api.get(path), await visit.api.get_existing(f"{path}/budget")
    remaining = None if budget is None else budget["remaining"]
    opening = "when it opens, even if no device sends a report"
    if remaining is None:
        text = f"This round spends at most ε {amount(epsilon)} {opening}."
    elif epsilon > remaining:
        text = f"This round would spend ε {amount(epsilon)}, but {amount(remaining)} remains. It will be rejected."
    else:
        text = f"This round spends at most ε {amount(epsilon)} of the remaining ε {amount(remaining)} {opening}."
    values = {name: visit.form_value(name) for name in visit.form if name not in ("csrf", "once", "step")}
    is_over = remaining is not None and epsilon > remaining
    return show(visit, "confirm_round.html", dataset=dataset, values=values, text=text, is_over=is_over)


async def _round(visit: Visit, path: str) -> Json:
    """Return the round that the form describes, as an API request."""
    n_features = len((await visit.api.get(path))["features"])
    cells = parse_number(visit.form_value("cells") or "16")
    if visit.form_value("encoding") == "shifted_grid":
        shifts = parse_number(visit.form_value("shifts") or "4")
        encoding: Json = {"type": "shifted_grid", "n_features": n_features, "cells": cells, "shifts": shifts}
    else:
        encoding = {"type": "grid", "cells": [cells] * n_features}
    body: Json = {
        "encoding": encoding,
        "mechanism": visit.form_value("mechanism") or "auto",
        "epsilon": parse_number(visit.form_value("epsilon")),
        "target_reports": parse_number(visit.form_value("target_reports")),
        "collect_seconds": parse_seconds(visit.form_value("collect_days") or "7", DAY_SECONDS),
    }
    return body | visit.numbers("min_reports", "min_batch", "honest_share", "shuffled_delta")


# ---- records ----


async def upload_form(
    visit: Visit, *, problem: Problem | None = None, field: str = "", stored: Json | None = None, deleted: str = ""
) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/records`. `field` shows the messages of a refused upload."""
    check(visit.caller, Scope.RECORDS)
    path = f"/datasets/{visit.id('dataset_id')}"
    dataset = await visit.api.get(path)
    return show(
        visit,
        "upload.html",
        problem,
        dataset=dataset,
        counts=await visit.api.get_existing(f"{path}/records") if dataset["trust"] == "central" else None,
        max_mebibytes=MAX_FILE_BYTES >> 20,
        stored=stored,
        deleted=deleted,
        refusal={field: "; ".join(collect_errors(problem).values())} if field else collect_errors(problem),
    )


async def delete_records(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/records/delete`: delete one user's records, or all after a check."""
    user, is_all = visit.form_value("user"), visit.form_value("all") == "true"
    try:
        path = f"/datasets/{visit.id('dataset_id')}/records"
        await visit.api.delete(path, **({"all": "true"} if is_all else {"user": user}))
    except Problem as problem:
        return await upload_form(visit, problem=problem)
    return await upload_form(visit, deleted="all" if is_all else "user")


async def upload(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/records`: store one file completely or not at all."""
    name, content = visit.files.get("file", ("", b""))
    kind = MEDIA_TYPES.get(name.rpartition(".")[2].lower())
    try:
        if kind is None:
            message = f"choose a file with one of the extensions {', '.join(f'.{end}' for end in MEDIA_TYPES)}"
            raise ValidationFailed(errors=[{"pointer": "/file", "message": message}])
        path = f"/datasets/{visit.id('dataset_id')}/records"
        chosen = visit.filled("allow_duplicates", "accept_clipping")
        stored = await visit.api.post_bytes(path, content, kind, once=visit.form_value("once"), **chosen)
    except Problem as problem:
        return await upload_form(visit, problem=problem, field=_FIELDS_OF_UPLOADS.get(problem.code, "file"))
    return await upload_form(visit, stored=stored)


PAGES: list[Page] = [
    Page("GET", "/datasets/new", dataset_form),
    Page("POST", "/datasets", create_dataset),
    Page("GET", "/datasets/{dataset_id}/rounds/new", round_form),
    Page("POST", "/datasets/{dataset_id}/rounds", open_round),
    Page("GET", "/datasets/{dataset_id}/records", upload_form),
    Page("POST", "/datasets/{dataset_id}/records", upload, takes_files=True),
    Page("POST", "/datasets/{dataset_id}/records/delete", delete_records),
]
