"""Page of a result: map, clusters with standard errors, costs, and the privacy of each field."""

import csv
import io
import json
import math
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from service.console.forms import Json
from service.console.maps import finite_or_none, layers_of, map_of, plane_of, shown_features
from service.console.pages.compare import offer_results
from service.console.pages.profile import cards
from service.console.ratings import find_distinctions, find_doubts
from service.console.rendering import HEADERS, as_json, download, redirect, show
from service.console.request import Page, Visit
from service.http.problems import NotFound, ValidationFailed
from sfumato.api.parsers import parse_result
from sfumato.api.result_page import html_page
from sfumato.model.category_maps import CategoryMap, category_maps
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.feature_shares import by_column
from sfumato.model.geography import shown_values
from sfumato.model.levels import describe_levels
from sfumato.model.separation import Separation, separation
from sfumato.plotting import geojson
from sfumato.plotting.shading import colour, planes

SHOWN_CLUSTERS = 200
SHOWN_SHARES = 12  # features in the table of shares
MANY_CLUSTERS = 12  # with more clusters the map shows confidence ellipses on demand
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates a cell that starts with one of these


async def result_page(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/result`."""
    return await _show_result(visit)


async def name_clusters(visit: Visit) -> Response:
    """Serve `POST /console/jobs/{job_id}/names`: name the clusters, and show the result."""
    job_id = visit.id("job_id")
    names = [name.strip() for name in visit.form.get("name", ())]
    try:
        await visit.api.patch(f"/jobs/{job_id}/result", {"names": names if any(names) else []})
    except ValidationFailed as problem:
        return await _show_result(visit, problem, names)
    return redirect(f"/jobs/{job_id}/result#clusters")


async def _show_result(
    visit: Visit, problem: ValidationFailed | None = None, names: Sequence[str] | None = None
) -> Response:
    """Show a result. `names` are those that a form gave and the API rejected."""
    result = await visit.api.get(f"/jobs/{visit.id('job_id')}/result")
    model = await run_in_threadpool(model_from_wire, result["model"])
    apart = await run_in_threadpool(separation, model)
    shown, maps = shown_features(model), category_maps(model)
    plane = plane_of(maps[0].model, "", "")
    return show(
        visit,
        "result.html",
        problem,
        given_names=names or model.names or [""] * model.n_clusters,
        result=result,
        model=result["model"],
        names=shown,
        profile=result["profile"],
        cards=[]
        if result["profile"] is None
        else cards(result["profile"], [colour(place)[1] for place in range(model.n_clusters)]),
        n_features=len(model.features),
        plane=plane,
        axes=shown_features(maps[0].model),
        drawings=_drawings(maps),
        has_places=geojson.places_of(model) is not None,
        pairs=planes(model) if len(maps) == 1 else [],
        clusters=clusters(model, apart, list(shown))[:SHOWN_CLUSTERS],
        n_clusters=model.n_clusters,
        further_figures=model.further_figures,
        has_ellipses=model.n_clusters <= MANY_CLUSTERS,
        controls=[] if plane is None else layers_of([maps[0].model], plane),
        levels=model.levels if len(model.levels) > 1 else (),
        nested=describe_levels(model.levels),
        silhouette=finite_or_none(apart.silhouette),
        has_separation=model.centroids is not None and model.n_clusters > 1,
        shares=feature_rows(model),
        dataset=await visit.api.get_existing(f"/datasets/{result['dataset_id']}"),
        others=[
            (job_id, label)
            for job_id, label in await run_in_threadpool(offer_results, visit, [result["dataset_id"]])
            if job_id != result["job_id"]
        ],
    )


def clusters(model: ClusterModel, apart: Separation, shown: list[int]) -> list[Json]:
    """Return the table rows of the clusters: bar lengths from 0 to 100, the shown features, and separation.

    Longitudes of places are in [-180, 180].
    """
    sizes, errors = model.sizes.tolist(), model.size_errors.tolist()
    largest = max([size + error for size, error in zip(sizes, errors, strict=True) if math.isfinite(error)], default=0)
    scale = 100 / largest if largest > 0 else 0.0
    doubts, distinctions = find_doubts(model, apart), find_distinctions(model)
    found = []
    for index, (size, error) in enumerate(zip(sizes, errors, strict=True)):
        centre: list[float] = []
        if model.centroids is not None:
            centre = shown_values([model.features[axis] for axis in shown], model.centroids[index, shown].tolist())
        around = [None] * len(centre) if model.centroid_errors is None else model.centroid_errors[index, shown].tolist()
        found.append(
            {
                "index": index,
                "name": model.names[index] if model.names else "",
                "id": (model.ids[index] or "none") if model.ids else "",
                "colour": colour(index)[1],
                "doubt": doubts[index],
                "distinction": distinctions[index],
                "size": size,
                "error": finite_or_none(error),
                "bar": _within(scale * size),
                "low": _within(scale * (size - error)),
                "high": _within(scale * (size + error)),
                "centre": [
                    (value, None if each is None else finite_or_none(each))
                    for value, each in zip(centre, around, strict=True)
                ],
                "silhouette": finite_or_none(float(apart.silhouettes[index])),
                "nearest": int(apart.nearest[index]),
                "distance": finite_or_none(float(apart.distances[index])),
                "distance_error": finite_or_none(float(apart.distance_errors[index])),
            }
        )
    return found


def feature_rows(model: ClusterModel) -> list[Json]:
    """Return the table rows of the features and attributes that separate the clusters most."""
    shares, check = model.column_shares, model.feature_check
    if len(shares) < 2:
        return []
    gapless = {} if check is None else by_column(model.features, model.attributes, check.gapless_shares)
    scores = {}
    if check is not None and check.is_conclusive:
        numeric = model.features[: model.n_numeric]
        scores = {each.name: float(score) for each, score in zip(numeric, check.peak_scores, strict=False)}
    return [
        {
            "name": name,
            "share": share,
            "gapless": gapless.get(name),
            "score": scores.get(name),
            "is_irrelevant": check is not None and name in check.irrelevant,
        }
        for name, share in sorted(shares.items(), key=lambda each: -each[1])[:SHOWN_SHARES]
    ]


def _within(value: float) -> float:
    return round(min(max(value, 0.0), 100.0), 2) if math.isfinite(value) else 0.0


def _drawings(maps: Sequence[CategoryMap]) -> list[tuple[str, str]]:
    """Return the query and the heading of each map: one for each category of the attribute that formed the clusters."""
    if len(maps) == 1:
        return [("", "")]
    return [(f"?category={place}", f"{each.attribute} = {each.category}") for place, each in enumerate(maps)]


async def map_json(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/map.json?across=&up=&category=`: the data of the map for two features."""
    result = await visit.api.get(f"/jobs/{visit.id('job_id')}/result")
    given = (visit.query_value(name) for name in ("across", "up", "category"))
    return as_json(await run_in_threadpool(_build_map, result["model"], *given))


def _build_map(wire: Json, across: str, up: str, category: str) -> Json | None:
    whole = model_from_wire(wire)
    maps = category_maps(whole)
    if (category or "0") not in map(str, range(len(maps))):
        raise NotFound("choose a category of the result")
    place = int(category or 0)
    plane = plane_of(maps[place].model, across, up)
    return None if plane is None else map_of(whole, plane, category=place)


async def picture(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/plot.svg`."""
    return await _picture(visit, "svg", "image/svg+xml")


async def picture_png(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/plot.png`."""
    return await _picture(visit, "png", "image/png")


async def _picture(visit: Visit, suffix: str, media_type: str) -> Response:
    response = await visit.api.file(f"/jobs/{visit.id('job_id')}/plot.{suffix}")
    policy = {"content-security-policy": response.headers["content-security-policy"]}
    return Response(response.body, headers=HEADERS | policy, media_type=media_type)


async def result_json(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/result.json`: the response of the API."""
    response = await visit.api.file(f"/jobs/{visit.id('job_id')}/result")
    return download(response.body, "application/json", f"result-{visit.id('job_id')}.json")


async def result_html(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/result.html`: the result as one page without scripts."""
    job_id = visit.id("job_id")
    result = parse_result(await visit.api.get(f"/jobs/{job_id}/result"))
    plot = await visit.api.file(f"/jobs/{job_id}/plot.svg")
    page = await run_in_threadpool(html_page, result, plot.body.decode())
    return download(page.encode(), "text/html; charset=utf-8", f"result-{job_id}.html")


async def result_geojson(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/result.geojson`: regions and centres of places on Earth."""
    job_id = visit.id("job_id")
    result = await visit.api.get(f"/jobs/{job_id}/result")
    text = await run_in_threadpool(_geojson, result["model"])
    return download(text.encode(), geojson.MEDIA_TYPE, f"result-{job_id}.geojson")


def _geojson(wire: Json) -> str:
    model = model_from_wire(wire)
    if geojson.places_of(model) is None:
        raise NotFound("this result has no features longitude and latitude in degrees, and so no GeoJSON document")
    return json.dumps(geojson.to_geojson(model), ensure_ascii=False, allow_nan=False)


async def clusters_csv(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/clusters.csv`: one line per cluster."""
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
            *(["name"] if model.names else []),
            *(["id"] if model.ids else []),
            "size",
            "size_error",
            *names,
            *(f"{name} error" for name in names),
            "silhouette",
            "nearest",
            "distance",
        ]
    )
    for each in clusters(model, separation(model), list(range(len(model.features)))):
        centre, errors = [value for value, _ in each["centre"]], [error for _, error in each["centre"]]
        nearest = each["nearest"] if each["nearest"] >= 0 else None
        apart = [each["silhouette"], nearest, each["distance"]]
        name = [_harmless(each["name"])] if model.names else []
        own_id = [model.ids[each["index"]] or ""] if model.ids else []
        writer.writerow([each["index"], *name, *own_id, each["size"], each["error"], *centre, *errors, *apart])
    return lines.getvalue()


def _harmless(name: str) -> str:
    """Return a name that a spreadsheet does not evaluate as a formula."""
    return f"'{name}" if name.startswith(_FORMULA) else name


PAGES: list[Page] = [
    Page("GET", "/jobs/{job_id}/result", result_page),
    Page("POST", "/jobs/{job_id}/names", name_clusters),
    Page("GET", "/jobs/{job_id}/map.json", map_json, ("across", "up", "category")),
    Page("GET", "/jobs/{job_id}/plot.svg", picture),
    Page("GET", "/jobs/{job_id}/plot.png", picture_png),
    Page("GET", "/jobs/{job_id}/result.json", result_json),
    Page("GET", "/jobs/{job_id}/result.html", result_html),
    Page("GET", "/jobs/{job_id}/result.geojson", result_geojson),
    Page("GET", "/jobs/{job_id}/clusters.csv", clusters_csv),
]
