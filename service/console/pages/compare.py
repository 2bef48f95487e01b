"""Page that compares two results: maps with one scale, and a table of matched clusters."""

import math

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models.tables.identity import Scope
from service.console import queries
from service.console.forms import Json
from service.console.maps import finite_or_none, map_of, peak_of, plane_of, shown_features
from service.console.rendering import as_json, job_name, show
from service.console.request import Page, Visit
from service.http.problems import Conflict, Problem
from sfumato.errors import InvalidSpec
from sfumato.mechanisms.encodings import scale_many
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.separation import Comparison, compare
from sfumato.plotting.shading import colour

SHOWN = 200
CHOICES = 100  # results that are offered by name
MOVES = 3  # features in which a centre moved most
REACH = 1.959964  # standard errors of a 95 % confidence interval

Pair = tuple[ClusterModel, ClusterModel]


async def compare_page(visit: Visit) -> Response:
    """Serve `GET /console/compare?left=job_...&right=job_...`; without parameters, the form only."""
    left, right = visit.query_value("left").strip(), visit.query_value("right").strip()
    shown: Json = {"results": None, "rows": [], "agreement": None, "plane": None, "names": [], "is_by_people": False}
    problem: Problem | None = None
    if left and right:
        results = await _results(visit)
        try:
            shown |= await run_in_threadpool(_compare_models, results)
        except Conflict as error:
            problem = error
    choices = await run_in_threadpool(_finished, visit)
    return show(visit, "compare.html", problem, left=left, right=right, choices=choices, **shown)


def _finished(visit: Visit) -> list[tuple[str, str, str]]:
    """Return the newest jobs with results: id, name, and the name of the dataset."""
    if not visit.may(Scope.JOBS):
        return []
    with visit.services.database.reading() as session:
        rows = queries.newest_jobs(session, visit.caller, limit=CHOICES, states=["succeeded"])
        found = queries.describe_jobs(session, rows)
    return [(each["id"], job_name(each), found["names"].get(each["dataset_id"], "")) for each in found["jobs"]]


async def compare_map(visit: Visit) -> Response:
    """Serve `GET /console/compare.json?left=&right=&side=&across=&up=`: the data of one map."""
    results = await _results(visit)
    side = 1 if visit.query_value("side") == "right" else 0
    return as_json(
        await run_in_threadpool(_build_map, results, side, visit.query_value("across"), visit.query_value("up"))
    )


async def _results(visit: Visit) -> list[Json]:
    ids = [visit.query_id(name) or "job_" for name in ("left", "right")]  # no job has the id job_
    return [await visit.api.get(f"/jobs/{job_id}/result") for job_id in ids]


def _models(results: list[Json]) -> Pair:
    return model_from_wire(results[0]["model"]), model_from_wire(results[1]["model"])


def _match(pair: Pair) -> Comparison:
    try:
        return compare(*pair)
    except InvalidSpec as error:
        raise Conflict(str(error)) from None


def _compare_models(results: list[Json]) -> Json:
    pair = _models(results)
    found = _match(pair)
    return {
        "results": results,
        "rows": [_row(pair, each.left, each.right, each.overlap) for each in found.matches[:SHOWN]],
        "agreement": finite_or_none(found.agreement),
        "is_by_people": math.isfinite(found.agreement),
        "plane": plane_of(pair[0], "", ""),
        "names": shown_features(pair[0]),
    }


def _row(pair: Pair, left: int | None, right: int | None, overlap: float) -> Json:
    row: Json = {"left": left, "right": right, "overlap": finite_or_none(overlap), "moved": None, "difference": None}
    row["moves"] = []
    for side, model, cluster in (("left", pair[0], left), ("right", pair[1], right)):
        row[f"{side}_size"] = None if cluster is None else float(model.sizes[cluster])
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


def _build_map(results: list[Json], side: int, across: str, up: str) -> Json | None:
    pair = _models(results)
    plane = plane_of(pair[0], across, up) if pair[0].n_clusters and pair[1].n_clusters else None
    if plane is None:
        return None
    peak = max(peak_of(model, plane) for model in pair)
    return map_of(pair[side], plane, colours=_colours(pair, _match(pair), side), peak=peak)


def _colours(pair: Pair, found: Comparison, side: int) -> list[str]:
    """Return the colours of a side. A right cluster has the colour of its left match, or an unused colour."""
    if side == 0:
        return [colour(cluster)[1] for cluster in range(pair[0].n_clusters)]
    colours = [""] * pair[1].n_clusters
    further = pair[0].n_clusters
    for each in found.matches:
        if each.right is not None:
            colours[each.right] = colour(further if each.left is None else each.left)[1]
            further += each.left is None
    return colours


PAGES: list[Page] = [
    ("GET", "/compare", compare_page),
    ("GET", "/compare.json", compare_map),
]
