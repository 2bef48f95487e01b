"""What is made by hand: a dataset, a round of its own, an upload of records."""

import csv
from typing import Any

from starlette.responses import Response

from models.tenant import Scope
from service.auth import check
from service.console.forms import numeric, refused, refused_within
from service.console.rendering import amount, go, show
from service.console.visits import MAX_FILE_BYTES, Page, Visit
from service.problems import Forbidden, Problem, ValidationFailed

DAY_SECONDS = 86_400
ENCODINGS = ("grid", "shifted_grid")  # those a person can name; the others come from plans
MECHANISMS = ("auto", "grr", "ss", "oue", "olh", "hr")
# By the end of a file's name.
MEDIA_TYPES = {
    "csv": "text/csv",
    "json": "application/json",
    "npy": "application/x-npy",
    "arrow": "application/vnd.apache.arrow.stream",
    "arrows": "application/vnd.apache.arrow.stream",
}

Json = dict[str, Any]

# ---- a dataset ----


async def dataset_form(visit: Visit, *, problem: Problem | None = None) -> Response:
    """`GET /console/datasets/new`."""
    check(visit.caller, Scope.DATASETS)
    if visit.caller.dataset_id is not None:
        raise Forbidden("this needs a key that is not bound to one dataset")
    return show(
        visit,
        "new_dataset.html",
        status=problem.status if problem else 200,
        refusal=refused_within(problem, "features", "feature"),
        said=visit.said,
    )


async def make_dataset(visit: Visit) -> Response:
    """`POST /console/datasets`."""
    trust = visit.said("trust") or "local"
    body: Json = {"name": visit.said("name"), "trust": trust, "epsilon": numeric(visit.said("epsilon"))}
    if trust == "local":
        if visit.said("min_reports"):
            body["min_reports"] = numeric(visit.said("min_reports"))
        body["keep_reports"] = visit.said("keep_reports") == "true"
    else:
        body["out_of_bounds"] = visit.said("out_of_bounds") or "clip"
        for name in ("delta", "max_records_per_user"):
            if visit.said(name):
                body[name] = numeric(visit.said(name))
        if visit.said("user_feature"):
            body["user_feature"] = visit.said("user_feature")
    try:
        body["features"] = _features(visit.said("features"))
        made = await visit.api.post("/datasets", body, once=visit.said("once"))
    except Problem as problem:
        return await dataset_form(visit, problem=problem)
    return go(f"/datasets/{made['id']}")


def _features(text: str) -> list[Json]:
    """A feature a line: name, lower, upper, unit; but for longer lines, what cannot be is for the API to refuse."""
    found: list[Json] = []
    for cells in csv.reader(text.splitlines(), skipinitialspace=True):
        name, lower, upper, unit, *more = [*(cell.strip() for cell in cells), "", "", "", ""]
        if any((name, lower, upper, unit)):
            if any(more):
                message = "a line is name, lower, upper, unit; what holds a comma stands in double quotes"
                raise ValidationFailed(errors=[{"pointer": f"/features/{len(found)}", "message": message}])
            found.append({"name": name, "lower": numeric(lower), "upper": numeric(upper), "unit": unit})
    return found


# ---- a round ----


async def round_form(visit: Visit, *, problem: Problem | None = None) -> Response:
    """`GET /console/datasets/{dataset_id}/rounds/new`."""
    check(visit.caller, Scope.DATASETS)
    dataset = await visit.api.get(f"/datasets/{visit.id('dataset_id')}")
    return show(
        visit,
        "new_round.html",
        status=problem.status if problem else 200,
        dataset=dataset,
        budget=await visit.api.get_there(f"/datasets/{dataset['id']}/budget"),
        encodings=ENCODINGS,
        mechanisms=MECHANISMS,
        refusal=refused(problem),
        said=visit.said,
    )


async def open_round(visit: Visit) -> Response:
    """`POST /console/datasets/{dataset_id}/rounds`: says what it spends, then opens, as its button says."""
    path = f"/datasets/{visit.id('dataset_id')}"
    if visit.said("step") == "review":
        return await _confirmation(visit, path)
    if visit.said("step") != "submit":
        return await round_form(visit)
    try:
        opened = await visit.api.post(f"{path}/rounds", await _round(visit, path), once=visit.said("once"))
    except Problem as problem:
        return await round_form(visit, problem=problem)
    return go(f"/rounds/{opened['id']}")


async def _confirmation(visit: Visit, path: str) -> Response:
    check(visit.caller, Scope.DATASETS)
    epsilon = numeric(visit.said("epsilon"))
    if not isinstance(epsilon, int | float) or not 0 < epsilon <= 32:
        wrong = [{"pointer": "/epsilon", "message": "epsilon lies in [0.000001, 32]"}]
        return await round_form(visit, problem=ValidationFailed(errors=wrong))
    dataset, budget = await visit.api.get(path), await visit.api.get_there(f"{path}/budget")
    left = None if budget is None else budget["remaining"]
    whom = "of each person who answers, at once and whether or not anybody does"
    if left is None:
        text = f"This spends at most ε {amount(epsilon)} {whom}."
    elif epsilon > left:
        text = f"This would spend ε {amount(epsilon)}, and {amount(left)} is left: it will be refused."
    else:
        text = f"This spends at most {amount(epsilon)} of the ε {amount(left)} left, {whom}."
    said = {name: visit.said(name) for name in visit.form if name not in ("csrf", "once", "step")}
    is_over = left is not None and epsilon > left
    return show(visit, "confirm_round.html", dataset=dataset, said=said, text=text, is_over=is_over)


async def _round(visit: Visit, path: str) -> Json:
    """The round a form describes, as the API takes it."""
    n_features = len((await visit.api.get(path))["features"])
    cells = numeric(visit.said("cells") or "16")
    if visit.said("encoding") == "shifted_grid":
        shifts = numeric(visit.said("shifts") or "4")
        encoding: Json = {"type": "shifted_grid", "n_features": n_features, "cells": cells, "shifts": shifts}
    else:
        encoding = {"type": "grid", "cells": [cells] * n_features}
    days = numeric(visit.said("collect_days") or "7")
    body: Json = {
        "encoding": encoding,
        "mechanism": visit.said("mechanism") or "auto",
        "epsilon": numeric(visit.said("epsilon")),
        "target_reports": numeric(visit.said("target_reports")),
        "collect_seconds": round(days * DAY_SECONDS) if isinstance(days, int | float) else days,
    }
    return body | ({"min_reports": numeric(visit.said("min_reports"))} if visit.said("min_reports") else {})


# ---- records ----


async def upload_form(visit: Visit, *, problem: Problem | None = None, stored: Json | None = None) -> Response:
    """`GET /console/datasets/{dataset_id}/records`."""
    check(visit.caller, Scope.RECORDS)
    path = f"/datasets/{visit.id('dataset_id')}"
    dataset = await visit.api.get(path)
    return show(
        visit,
        "upload.html",
        status=problem.status if problem else 200,
        dataset=dataset,
        counts=await visit.api.get_there(f"{path}/records") if dataset["trust"] == "central" else None,
        max_mebibytes=MAX_FILE_BYTES >> 20,
        stored=stored,
        refusal=refused(problem),
    )


async def upload(visit: Visit) -> Response:
    """`POST /console/datasets/{dataset_id}/records`: one file, whole or not at all."""
    name, content = visit.files.get("file", ("", b""))
    kind = MEDIA_TYPES.get(name.rpartition(".")[2].lower())
    try:
        if kind is None:
            message = f"a file is needed whose name ends in {', '.join(f'.{end}' for end in MEDIA_TYPES)}"
            raise ValidationFailed(errors=[{"pointer": "/file", "message": message}])
        path = f"/datasets/{visit.id('dataset_id')}/records"
        stored = await visit.api.post_bytes(path, content, kind, once=visit.said("once"))
    except Problem as problem:
        return await upload_form(visit, problem=problem)
    return await upload_form(visit, stored=stored)


PAGES: list[Page] = [
    ("GET", "/datasets/new", dataset_form),
    ("POST", "/datasets", make_dataset),
    ("GET", "/datasets/{dataset_id}/rounds/new", round_form),
    ("POST", "/datasets/{dataset_id}/rounds", open_round),
    ("GET", "/datasets/{dataset_id}/records", upload_form),
    ("POST", "/datasets/{dataset_id}/records", upload),
]
