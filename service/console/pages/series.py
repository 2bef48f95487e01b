"""Pages of series: the list, a form for a new one, and one series with its windows."""

from collections.abc import Sequence

from starlette.responses import Response

from models.tables.datasets import Trust
from models.tables.identity import Scope
from service.console.api_client import Api
from service.console.forms import Json, parse_number
from service.console.pages import series_chart
from service.console.rendering import HEADERS, redirect, show
from service.console.request import Page, Visit
from service.http.auth import check
from service.http.problems import Problem
from sfumato.specs import DensityMap, ShiftedGrid

ROWS = 50
WINDOWS = 60  # windows on a page
MAPS = 12  # small maps on a page
CLUSTERS = 200  # clusters on a page
EVENTS = 100  # events on a page
EVERY = ("week", "day", "month")
RELEASES = ("min_batch", "honest_share", "shuffled_delta")  # fields for shuffled datasets
FORECAST = ("dataset_id", "algorithm", "cycle", "target_reports", "least_change", *RELEASES)


async def list_page(visit: Visit) -> Response:
    """Serve `GET /console/series`: newest first, with `?dataset_id=` those of a dataset."""
    dataset_id, cursor = visit.query_id("dataset_id"), visit.query_value("cursor") or None
    listed = await visit.api.get("/series", limit=ROWS, cursor=cursor, dataset_id=dataset_id or None)
    dataset = await visit.api.get_existing(f"/datasets/{dataset_id}") if dataset_id else None
    return show(
        visit,
        "series_list.html",
        series=listed["items"],
        next_cursor=listed["next_cursor"],
        dataset=dataset,
        dataset_id=dataset_id,
        may_create=visit.may(Scope.JOBS) and visit.may(Scope.GRANTS),
    )


async def new_page(visit: Visit, *, problem: Problem | None = None, forecast: Json | None = None) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/series/new`."""
    check(visit.caller, Scope.JOBS)
    check(visit.caller, Scope.GRANTS)
    dataset = await visit.api.get(f"/datasets/{visit.id('dataset_id')}")
    return show(visit, "new_series.html", problem, dataset=dataset, every=EVERY, forecast=forecast)


async def create(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/series`."""
    windows: Json = visit.filled("every", "time_zone", "first") | {"count": parse_number(visit.form_value("count"))}
    dataset = await visit.api.get(f"/datasets/{visit.id('dataset_id')}")
    over_records = dataset["trust"] == Trust.CENTRAL
    kind = DensityMap if over_records else ShiftedGrid
    algorithm: Json = {"type": kind.type} | visit.numbers("epsilon", "clusters")
    of_forecast = visit.numbers("cluster_width")
    body: Json = {
        "dataset_id": visit.id("dataset_id"),
        "name": visit.form_value("name"),
        "algorithm": algorithm,
        "windows": windows,
        **visit.numbers("cycle", "target_reports", "min_reports", "epsilon_total", "season", "least_change", *RELEASES),
    }
    if over_records:
        body["cycle"] = windows["count"]  # all windows are one cycle
    if visit.form_value("allow_insufficient"):
        body["allow_insufficient"] = True
    if visit.form_value("step") == "forecast":
        wanted = {name: body.get(name) for name in FORECAST}
        asked = wanted | of_forecast | {"every": windows.get("every")}
        try:
            found = await visit.api.post(
                "/forecasts/series", {name: value for name, value in asked.items() if value is not None}
            )
        except Problem as problem:
            return await new_page(visit, problem=problem)
        return await new_page(visit, forecast=found)
    try:
        created = await visit.api.post("/series", body, once=visit.form_value("once"))
    except Problem as problem:
        return await new_page(visit, problem=problem)
    return redirect(f"/series/{created['id']}")


async def series_page(visit: Visit, *, problem: Problem | None = None) -> Response:
    """Serve `GET /console/series/{series_id}`: its cost, and its windows with their results."""
    path = f"/series/{visit.id('series_id')}"
    series = await visit.api.get(path)
    clusters: list[Json] = []
    events: list[Json] = []
    if visit.may(Scope.JOBS):
        clusters = (await visit.api.get(f"{path}/clusters", limit=CLUSTERS, order="oldest"))["items"]
        events = (await visit.api.get(f"{path}/events", limit=EVENTS))["items"]
    shown = series_chart.with_colours(clusters)
    revisions = (await visit.api.get(f"{path}/revisions", limit=ROWS))["items"]
    cursor = visit.query_value("cursor") or None
    windows = await visit.api.get(f"{path}/windows", limit=WINDOWS, cursor=cursor)
    mapped = [each["index"] for each in windows["items"] if each["clusters"] and visit.may(Scope.JOBS)][:MAPS][::-1]
    newest = await visit.api.get(f"{path}/map", window=mapped[-1]) if mapped else None
    return show(
        visit,
        "series.html",
        problem,
        series=series,
        revisions=revisions,
        former=await find_former_terms(visit.api, series),
        windows=windows["items"],
        stream=series_chart.stream(windows["items"][::-1], shown, events),
        clusters=shown,
        titles={each["id"]: each["title"] for each in shown},
        events=events,
        mapped=mapped,
        warnings=newest["model"]["warnings"] if newest else [],
        older=windows["next_cursor"],
        dataset=await visit.api.get_existing(f"/datasets/{series['dataset_id']}"),
        may_name=visit.may(Scope.JOBS),
        may_revise=visit.may(Scope.JOBS) and visit.may(Scope.GRANTS) and has_later_cycle(series, windows["items"]),
        may_change=visit.may(Scope.JOBS) and series["state"] != "ended",
    )


async def find_former_terms(api: Api, series: Json) -> Json | None:
    """Return the open window, its ε, and the window from which on the terms of the series apply.

    Return None if the open window has these terms, or if none is open. A series has the terms of its next window.
    """
    path = f"/series/{series['id']}"
    newest = await api.get(f"{path}/windows", limit=1)
    if newest["next_cursor"] and newest["items"][0]["state"] == "planned":
        newest = await api.get(f"{path}/windows", limit=1, cursor=newest["next_cursor"])
    window = newest["items"][0] if newest["items"] else None
    if window is None or window["state"] != "open" or window["revision"] == series["revision"]:
        return None
    of_window, of_series = [
        (await api.get(f"{path}/revisions", limit=1, order="oldest", cursor=str(number)))["items"][0]
        for number in (window["revision"], series["revision"])
    ]
    return {
        "window": window["index"],
        "epsilon": of_window["epsilon_per_cycle"],
        "applies_from": of_series["first_window"],
    }


def has_later_cycle(series: Json, newest: Sequence[Json]) -> bool:
    """Return whether a cycle has not begun, so that a revision can change it."""
    planned = [each for each in newest if each["state"] == "planned"]
    if not planned or series["state"] == "ended":
        return False
    cycle = planned[0]["cycle"]
    has_begun = any(each["cycle"] == cycle and each["state"] not in ("planned", "missed") for each in newest)
    return not has_begun or (cycle + 1) * series["cycle"] < series["windows"]["count"]


async def map_picture(visit: Visit) -> Response:
    """Serve `GET /console/series/{series_id}/map.svg`: the pooled map of a window, in the colours of the page."""
    path = f"/series/{visit.id('series_id')}"
    clusters = (await visit.api.get(f"{path}/clusters", limit=CLUSTERS, order="oldest"))["items"]
    window = parse_number(visit.query_value("window"))
    found = await visit.api.get(f"{path}/map", window=window if isinstance(window, int) else None)
    text = series_chart.map_svg(found, series_chart.with_colours(clusters))
    return Response(text, media_type="image/svg+xml", headers=HEADERS)


async def name(visit: Visit) -> Response:
    """Serve `POST /console/series/{series_id}/clusters/{cluster_id}`: name one cluster."""
    path = f"/series/{visit.id('series_id')}/clusters/{visit.id('cluster_id')}"
    await visit.api.patch(path, {"name": visit.form_value("name")})
    return redirect(f"/series/{visit.id('series_id')}")


async def revise(visit: Visit) -> Response:
    """Serve `POST /console/series/{series_id}/revisions`: new terms from the next cycle on."""
    path = f"/series/{visit.id('series_id')}"
    body = visit.numbers("target_reports", "season", "least_change", *RELEASES)
    if visit.form_value("epsilon"):
        kind = (await visit.api.get(path))["algorithm"]["type"]
        body["algorithm"] = {"type": kind} | visit.numbers("epsilon", "clusters")
    try:
        await visit.api.post(f"{path}/revisions", body, once=visit.form_value("once"))
    except Problem as problem:
        return await series_page(visit, problem=problem)
    return redirect(path)


async def change(visit: Visit) -> Response:
    """Serve `POST /console/series/{series_id}/state`."""
    await visit.api.patch(f"/series/{visit.id('series_id')}", {"state": visit.form_value("state")})
    return redirect(f"/series/{visit.id('series_id')}")


PAGES: list[Page] = [
    Page("GET", "/series", list_page, ("dataset_id", "cursor")),
    Page("GET", "/datasets/{dataset_id}/series/new", new_page),
    Page("POST", "/datasets/{dataset_id}/series", create),
    Page("GET", "/series/{series_id}", series_page, ("cursor",)),
    Page("GET", "/series/{series_id}/map.svg", map_picture, ("window",)),
    Page("POST", "/series/{series_id}/clusters/{cluster_id}", name),
    Page("POST", "/series/{series_id}/state", change),
    Page("POST", "/series/{series_id}/revisions", revise),
]
