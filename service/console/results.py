"""A result: its map, its clusters with what is uncertain of them, what it cost, and what each field is."""

import csv
import io
import math
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models import glance
from models.tenant import Scope
from service.console.maps import map_of, plane_of
from service.console.rendering import HEADERS, as_json, download, show
from service.console.visits import Page, Visit
from sfumato.cluster_model import ClusterModel, model_from_wire
from sfumato.separation import Separation, separation

SHOWN_CLUSTERS = 200
OTHERS = 50  # jobs that are offered beside this one
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run, where a name begins so

Json = dict[str, Any]


async def result_page(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/result`."""
    result = await visit.api.get(f"/jobs/{visit.id('job_id')}/result")
    model = await run_in_threadpool(model_from_wire, result["model"])
    apart = await run_in_threadpool(separation, model)
    plane = plane_of(model, "", "")
    return show(
        visit,
        "result.html",
        result=result,
        model=result["model"],
        names=[feature.name for feature in model.features],
        plane=plane,
        clusters=clusters(model, apart)[:SHOWN_CLUSTERS],
        n_clusters=model.n_clusters,
        silhouette=_known(apart.silhouette),
        tells_apart=model.centroids is not None and model.n_clusters > 1,
        dataset=await visit.api.get_there(f"/datasets/{result['dataset_id']}"),
        others=await run_in_threadpool(_others, visit, result),
    )


def _others(visit: Visit, result: Json) -> list[Json]:
    """The newest other jobs of the dataset that have results."""
    if not visit.may(Scope.JOBS):
        return []
    with visit.services.database.reading() as session:
        rows = glance.newest_jobs(session, visit.caller, dataset_id=result["dataset_id"], limit=OTHERS)
        return [
            {"id": row.id, "type": row.algorithm["type"]}
            for row in rows
            if row.state == "succeeded" and row.id != result["job_id"]
        ]


def clusters(model: ClusterModel, apart: Separation) -> list[Json]:
    """Each cluster with its share, where the bars of both end on a scale from 0 to 100, and how far the others are."""
    sizes, errors = model.sizes.tolist(), model.size_errors.tolist()
    largest = max([size + error for size, error in zip(sizes, errors, strict=True) if math.isfinite(error)], default=0)
    scale = 100 / largest if largest > 0 else 0.0
    found = []
    for index, (size, error) in enumerate(zip(sizes, errors, strict=True)):
        centre = model.centroids[index].tolist() if model.centroids is not None else []
        around = [None] * len(centre) if model.centroid_errors is None else model.centroid_errors[index].tolist()
        found.append(
            {
                "index": index,
                "size": size,
                "error": _known(error),
                "bar": _within(scale * size),
                "low": _within(scale * (size - error)),
                "high": _within(scale * (size + error)),
                "centre": [
                    (value, None if each is None else _known(each)) for value, each in zip(centre, around, strict=True)
                ],
                "silhouette": _known(float(apart.silhouettes[index])),
                "nearest": int(apart.nearest[index]),
                "distance": _known(float(apart.distances[index])),
                "distance_error": _known(float(apart.distance_errors[index])),
            }
        )
    return found


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _within(value: float) -> float:
    return round(min(max(value, 0.0), 100.0), 2) if math.isfinite(value) else 0.0


async def map_json(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/map.json?across=&up=`: what the browser draws of two features."""
    result = await visit.api.get(f"/jobs/{visit.id('job_id')}/result")
    return as_json(await run_in_threadpool(_drawn, result["model"], visit.asked("across"), visit.asked("up")))


def _drawn(wire: Json, across: str, up: str) -> Json | None:
    model = model_from_wire(wire)
    plane = plane_of(model, across, up)
    return None if plane is None else map_of(model, plane)


async def picture(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/plot.svg`."""
    return await _picture(visit, "svg", "image/svg+xml")


async def picture_png(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/plot.png`."""
    return await _picture(visit, "png", "image/png")


async def _picture(visit: Visit, suffix: str, media_type: str) -> Response:
    answer = await visit.api.file(f"/jobs/{visit.id('job_id')}/plot.{suffix}")
    policy = {"content-security-policy": answer.headers["content-security-policy"]}
    return Response(answer.body, headers=HEADERS | policy, media_type=media_type)


async def result_json(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/result.json`: as the API tells it."""
    answer = await visit.api.file(f"/jobs/{visit.id('job_id')}/result")
    return download(answer.body, "application/json", f"result-{visit.id('job_id')}.json")


async def clusters_csv(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/clusters.csv`: a line a cluster."""
    result = await visit.api.get(f"/jobs/{visit.id('job_id')}/result")
    text = await run_in_threadpool(_csv, result["model"])
    return download(text.encode(), "text/csv; charset=utf-8", f"clusters-{visit.id('job_id')}.csv")


def _csv(wire: Json) -> str:
    model = model_from_wire(wire)
    names = [_harmless(feature.name) for feature in model.features] if model.centroids is not None else []
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(
        [
            "cluster",
            "size",
            "size_error",
            *names,
            *(f"{name} error" for name in names),
            "silhouette",
            "nearest",
            "distance",
        ]
    )
    for each in clusters(model, separation(model)):
        centre, errors = [value for value, _ in each["centre"]], [error for _, error in each["centre"]]
        nearest = each["nearest"] if each["nearest"] >= 0 else None
        apart = [each["silhouette"], nearest, each["distance"]]
        writer.writerow([each["index"], each["size"], each["error"], *centre, *errors, *apart])
    return lines.getvalue()


def _harmless(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(_FORMULA) else name


PAGES: list[Page] = [
    ("GET", "/jobs/{job_id}/result", result_page),
    ("GET", "/jobs/{job_id}/map.json", map_json),
    ("GET", "/jobs/{job_id}/plot.svg", picture),
    ("GET", "/jobs/{job_id}/plot.png", picture_png),
    ("GET", "/jobs/{job_id}/result.json", result_json),
    ("GET", "/jobs/{job_id}/clusters.csv", clusters_csv),
]
