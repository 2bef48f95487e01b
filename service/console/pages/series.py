"""Pages of series: the list, a form for a new one, and one series with its windows."""

from starlette.responses import Response

from models.tables.identity import Scope
from service.console.forms import Json, parse_number
from service.console.rendering import redirect, show
from service.console.request import Page, Visit
from service.http.auth import check
from service.http.problems import Problem

ROWS = 50
WINDOWS = 60  # windows on a page
EVERY = ("week", "day", "month")


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


async def new_page(visit: Visit, *, problem: Problem | None = None) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/series/new`."""
    check(visit.caller, Scope.JOBS)
    check(visit.caller, Scope.GRANTS)
    dataset = await visit.api.get(f"/datasets/{visit.id('dataset_id')}")
    return show(visit, "new_series.html", problem, dataset=dataset, every=EVERY)


async def create(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/series`."""
    windows: Json = visit.filled("every", "time_zone", "first") | {"count": parse_number(visit.form_value("count"))}
    algorithm: Json = {"type": "shifted_grid"} | visit.numbers("epsilon", "clusters")
    body: Json = {
        "dataset_id": visit.id("dataset_id"),
        "name": visit.form_value("name"),
        "algorithm": algorithm,
        "windows": windows,
        **visit.numbers("cycle", "target_reports", "min_reports", "epsilon_total"),
    }
    if visit.form_value("allow_insufficient"):
        body["allow_insufficient"] = True
    try:
        created = await visit.api.post("/series", body, once=visit.form_value("once"))
    except Problem as problem:
        return await new_page(visit, problem=problem)
    return redirect(f"/series/{created['id']}")


async def series_page(visit: Visit) -> Response:
    """Serve `GET /console/series/{series_id}`: its cost, and its windows with their results."""
    path = f"/series/{visit.id('series_id')}"
    series = await visit.api.get(path)
    windows = await visit.api.get(f"{path}/windows", limit=WINDOWS, cursor=visit.query_value("cursor") or None)
    return show(
        visit,
        "series.html",
        series=series,
        windows=windows["items"],
        older=windows["next_cursor"],
        dataset=await visit.api.get_existing(f"/datasets/{series['dataset_id']}"),
        may_change=visit.may(Scope.JOBS) and series["state"] != "ended",
    )


async def change(visit: Visit) -> Response:
    """Serve `POST /console/series/{series_id}/state`."""
    await visit.api.patch(f"/series/{visit.id('series_id')}", {"state": visit.form_value("state")})
    return redirect(f"/series/{visit.id('series_id')}")


PAGES: list[Page] = [
    Page("GET", "/series", list_page, ("dataset_id", "cursor")),
    Page("GET", "/datasets/{dataset_id}/series/new", new_page),
    Page("POST", "/datasets/{dataset_id}/series", create),
    Page("GET", "/series/{series_id}", series_page, ("cursor",)),
    Page("POST", "/series/{series_id}/state", change),
]
