"""Page that compares results with the first one: maps with one scale, and tables of matched clusters."""

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models.tables.identity import Scope
from models.tables.jobs import JobState
from service.console import queries
from service.console.forms import Json
from service.console.maps import finite_or_none, layers_of, map_of, peak_of, plane_of, shown_features
from service.console.rendering import as_json, job_name, show
from service.console.request import Page, Visit
from service.http.problems import Conflict, Problem, ValidationFailed
from sfumato.errors import InvalidSpec
from sfumato.model.category_maps import category_maps
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.separation import Comparison, compare
from sfumato.plotting.shading import colour
from sfumato.records.encodings import scale_many

SHOWN = 200
CHOICES = 100  # results that are offered by name
MOST = 6  # results in one comparison
MOVES = 3  # features in which a centre moved most
REACH = 1.959964  # standard errors of a 95 % confidence interval

Pair = tuple[ClusterModel, ClusterModel]


async def compare_page(visit: Visit) -> Response:
    """Serve `GET /console/compare?of=job_...&of=job_...`, and the form alone for fewer than two results."""
    chosen = _chosen(visit)
    shown: Json = {"comparisons": [], "plane": None, "names": [], "controls": []}
    problem: Problem | None = None
    if len(chosen) > 1:
        results = await _results(visit, chosen)
        try:
            shown |= await run_in_threadpool(_compare_models, results)
        except Conflict as error:
            problem = error
    offered = await run_in_threadpool(offer_results, visit)
    offered += [(each, each) for each in chosen if each not in dict(offered)]
    return show(
        visit, "compare.html", problem, chosen=chosen, offered=offered, labels=dict(offered), most=MOST, **shown
    )


def offer_results(visit: Visit, dataset_ids: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the newest jobs with results: id, and a text with name, dataset, day and end of the id."""
    if not visit.may(Scope.JOBS):
        return []
    with visit.services.database.reading() as session:
        rows = queries.newest_jobs(
            session, visit.caller, dataset_ids=dataset_ids, limit=CHOICES, states=[JobState.SUCCEEDED.value]
        )
        found = queries.describe_jobs(session, rows)
    return [(each["id"], _label(each, found["names"].get(each["dataset_id"], ""))) for each in found["jobs"]]


def _label(job: Json, dataset: str) -> str:
    parts = (job_name(job), dataset, job["created_at"][:10], f"…{job['id'][-4:]}")
    return " · ".join(part for part in parts if part)


async def compare_map(visit: Visit) -> Response:
    """Serve `GET /console/compare.json?of=&of=&at=&across=&up=`: the data of the map of the result at a position."""
    chosen, at = _chosen(visit), visit.query_value("at")
    if at not in [str(place) for place in range(len(chosen))]:
        raise ValidationFailed(
            errors=[{"pointer": "", "parameter": "at", "message": "expected the position of a result"}]
        )
    results = await _results(visit, chosen)
    across, up = visit.query_value("across"), visit.query_value("up")
    return as_json(await run_in_threadpool(_build_map, results, int(at), across, up))


def _chosen(visit: Visit) -> list[str]:
    chosen = visit.query_ids("of")
    if len(chosen) > MOST:
        message = f"compare at most {MOST} results"
        raise ValidationFailed(errors=[{"pointer": "", "parameter": "of", "message": message}])
    return chosen


async def _results(visit: Visit, chosen: list[str]) -> list[Json]:
    return [await visit.api.get(f"/jobs/{job_id}/result") for job_id in chosen]


def _models(results: list[Json]) -> list[ClusterModel]:
    return [model_from_wire(each["model"]) for each in results]


def _match(pair: Pair) -> Comparison:
    try:
        return compare(*pair)
    except InvalidSpec as error:
        raise Conflict(str(error)) from None


def _compare_models(results: list[Json]) -> Json:
    first, *others = models = _models(results)
    plane = plane_of(first, "", "") if all(len(category_maps(each)) == 1 for each in models) else None
    return {
        "comparisons": [_comparison((first, each)) for each in others],
        "plane": plane,
        "controls": [] if plane is None else layers_of(models, plane),
        "names": shown_features(first),
    }


def _comparison(pair: Pair) -> Json:
    found = _match(pair)
    return {
        "rows": [_row(pair, each.left, each.right, each.overlap) for each in found.matches[:SHOWN]],
        "agreement": finite_or_none(found.agreement),
        "is_by_people": math.isfinite(found.agreement),
    }


def _row(pair: Pair, left: int | None, right: int | None, overlap: float) -> Json:
    row: Json = {"left": left, "right": right, "overlap": finite_or_none(overlap), "moved": None, "difference": None}
    row["moves"] = []
    for side, model, cluster in (("left", pair[0], left), ("right", pair[1], right)):
        row[f"{side}_size"] = None if cluster is None else float(model.sizes[cluster])
        row[f"{side}_name"] = model.names[cluster] if cluster is not None and model.names else ""
        row[f"{side}_error"] = None if cluster is None else finite_or_none(float(model.size_errors[cluster]))
    if left is None or right is None:
        return row
    row["difference"] = row["right_size"] - row["left_size"]
    errors = (row["left_error"], row["right_error"])
    known = None not in errors
    row["difference_error"] = math.hypot(*errors) if known else None
    row["is_beyond_noise"] = known and abs(row["difference"]) > REACH * row["difference_error"]
    if pair[0].centroids is not None and pair[1].centroids is not None:
        ends = [
            scale_many(model.features, model.centroids[[cluster]])  # type: ignore[index]  # neither is None
            for model, cluster in ((pair[0], left), (pair[1], right))
        ]
        row["moved"] = float(np.sqrt(((ends[1] - ends[0]) ** 2).sum()))
        row["moves"] = _moves(pair, left, right, np.abs(ends[1] - ends[0])[0])
    return row


def _moves(pair: Pair, left: int, right: int, scaled: NDArray[np.float64]) -> list[Json]:
    """Return the largest moves of a centre: feature, difference in its unit, and error if known."""
    moves = []
    for feature in np.argsort(-scaled, kind="stable")[:MOVES].tolist():
        ends = [model.centroids[at, feature] for model, at in zip(pair, (left, right), strict=True)]  # type: ignore[index]
        known = [model.centroid_errors for model in pair if model.centroid_errors is not None]
        errors = [errors[at, feature] for errors, at in zip(known, (left, right), strict=False)]
        error = finite_or_none(math.hypot(*errors)) if len(errors) == len(pair) else None
        named = pair[0].features[feature]
        moves.append({"name": named.name, "unit": named.unit, "by": float(ends[1] - ends[0]), "error": error})
    return moves


def _build_map(results: list[Json], at: int, across: str, up: str) -> Json | None:
    models = _models(results)
    is_drawn = all(model.n_clusters and len(category_maps(model)) == 1 for model in models)
    plane = plane_of(models[0], across, up) if is_drawn else None
    if plane is None:
        return None
    peak = max(peak_of(model, plane) for model in models)
    pair = (models[0], models[at])
    colours = _colours(pair, _match(pair)) if at else None
    return map_of(models[at], plane, colours=colours, peak=peak)


def _colours(pair: Pair, found: Comparison) -> list[str]:
    """Return the colours of the right model. A cluster has the colour of its left match, or an unused colour."""
    colours = [""] * pair[1].n_clusters
    further = pair[0].n_clusters
    for each in found.matches:
        if each.right is not None:
            colours[each.right] = colour(further if each.left is None else each.left)[1]
            further += each.left is None
    return colours


PAGES: list[Page] = [
    Page("GET", "/compare", compare_page, ("of",)),
    Page("GET", "/compare.json", compare_map, ("of", "at", "across", "up")),
]
