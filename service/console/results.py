"""A result: its picture, its clusters with what is uncertain of them, what it cost, and what each field is."""

import csv
import io
import math
from typing import Any

from starlette.responses import Response

from service.console.rendering import HEADERS, download, show
from service.console.visits import Page, Visit

SHOWN_CLUSTERS = 200
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run, where a name begins so

Json = dict[str, Any]


async def result_page(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/result`."""
    result = await visit.api.get(f"/jobs/{visit.id('job_id')}/result")
    model = result["model"]
    return show(
        visit,
        "result.html",
        result=result,
        model=model,
        names=[feature["name"] for feature in model["features"]],
        clusters=_clusters(model)[:SHOWN_CLUSTERS],
        n_clusters=len(model["sizes"]),
        dataset=await visit.api.get_there(f"/datasets/{result['dataset_id']}"),
    )


def _clusters(model: Json) -> list[Json]:
    """Each cluster with its share, and where the bars of both end on a scale from 0 to 100."""
    sizes, errors = model["sizes"], model["size_errors"]
    largest = max([size + error for size, error in zip(sizes, errors, strict=True) if math.isfinite(error)], default=0)
    scale = 100 / largest if largest > 0 else 0.0
    centroids, centroid_errors = model["centroids"], model.get("centroid_errors")
    found = []
    for index, (size, error) in enumerate(zip(sizes, errors, strict=True)):
        centre = centroids[index] if centroids is not None else []
        around = centroid_errors[index] if centroid_errors is not None else [None] * len(centre)
        found.append(
            {
                "index": index,
                "size": size,
                "error": error,
                "bar": _within(scale * size),
                "low": _within(scale * (size - error)),
                "high": _within(scale * (size + error)),
                "centre": list(zip(centre, around, strict=True)),
            }
        )
    return found


def _within(value: float) -> float:
    return round(min(max(value, 0.0), 100.0), 2) if math.isfinite(value) else 0.0


async def picture(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/plot.svg`."""
    answer = await visit.api.file(f"/jobs/{visit.id('job_id')}/plot.svg")
    policy = {"content-security-policy": answer.headers["content-security-policy"]}
    return Response(answer.body, headers=HEADERS | policy, media_type="image/svg+xml")


async def result_json(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/result.json`: as the API tells it."""
    answer = await visit.api.file(f"/jobs/{visit.id('job_id')}/result")
    return download(answer.body, "application/json", f"result-{visit.id('job_id')}.json")


async def clusters_csv(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/clusters.csv`: a line a cluster."""
    model = (await visit.api.get(f"/jobs/{visit.id('job_id')}/result"))["model"]
    names = [_harmless(feature["name"]) for feature in model["features"]] if model["centroids"] is not None else []
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["cluster", "size", "size_error", *names, *(f"{name} error" for name in names)])
    for each in _clusters(model):
        centre, errors = [value for value, _ in each["centre"]], [error for _, error in each["centre"]]
        writer.writerow([each["index"], each["size"], each["error"], *centre, *errors])
    return download(lines.getvalue().encode(), "text/csv; charset=utf-8", f"clusters-{visit.id('job_id')}.csv")


def _harmless(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(_FORMULA) else name


PAGES: list[Page] = [
    ("GET", "/jobs/{job_id}/result", result_page),
    ("GET", "/jobs/{job_id}/plot.svg", picture),
    ("GET", "/jobs/{job_id}/result.json", result_json),
    ("GET", "/jobs/{job_id}/clusters.csv", clusters_csv),
]
