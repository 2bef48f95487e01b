"""Pages of a dataset (budget, rounds, ledger and settings) and of a round (progress, cost, specification)."""

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from models import datasets
from models.database.types import SECOND
from models.errors import NotFound as Missing
from models.hash_chain import ChainVerification
from models.ledger import ledger
from models.tables.identity import Scope
from models.tables.ledger import Kind, LedgerEntry
from models.tables.rounds import RoundState
from service.console import queries
from service.console.forms import Json, describe_settings, parse_number
from service.console.rendering import HEADERS, redirect, show
from service.console.request import Page, Visit
from service.http.auth import check
from service.http.mount import mounted
from service.http.problems import NotFound, Problem
from service.schemas import serializers
from sfumato.privacy.accounting import NANO

ENTRIES = 20  # ledger entries per page
NEWEST = 10  # jobs on the overview, and rounds among which open ones are shown
ROUNDS = 20  # rounds per page
COURSE = 240  # points of the budget chart
PAGE = 1000  # entries of a download that are loaded at once
CSV_COLUMNS = (
    "seq", "at", "kind", "epsilon", "epsilon_nano", "delta", "delta_atto", "reference", "reservation", "actor",
    "granted_nano", "reserved_nano", "charged_nano", "mu2_pico", "granted_mu2_pico", "reserved_mu2_pico",
    "charged_mu2_pico", "prev_hash", "hash",
)  # fmt: skip


async def dataset_page(visit: Visit, *, problem: Problem | None = None) -> Response:
    """Serve `GET /console/datasets/{dataset_id}`: the budget, open rounds and newest jobs."""
    path = f"/datasets/{visit.id('dataset_id')}"
    dataset, budget = await visit.api.get_existing(path), await visit.api.get_existing(f"{path}/budget")
    if dataset is None and budget is None:
        await visit.api.get(path)  # raises the reason
    shown = await run_in_threadpool(_load_related, visit, dataset is not None)
    return _show_tab(
        visit,
        "Overview",
        dataset,
        problem,
        budget=budget,
        may_grant=dataset is not None and visit.may(Scope.GRANTS),
        may_see_source=visit.caller.dataset_id is None and visit.may(Scope.LEDGER, Scope.GRANTS),
        **shown,
    )


async def rounds_page(visit: Visit) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/rounds`: newest first."""
    check(visit.caller, Scope.DATASETS, Scope.JOBS)
    dataset = await visit.api.get(f"/datasets/{visit.id('dataset_id')}")
    rounds = await run_in_threadpool(_load_rounds, visit, ROUNDS + 1)
    older = rounds[ROUNDS - 1]["id"] if len(rounds) > ROUNDS else None
    return _show_tab(
        visit,
        "Rounds",
        dataset,
        rounds=rounds[:ROUNDS],
        older=older,
        may_open=visit.may(Scope.DATASETS),
        state=visit.query_value("state"),
        states=[each.value for each in RoundState],
    )


async def ledger_page(visit: Visit, *, verification: ChainVerification | None = None) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/ledger`: the entries, also of a deleted dataset, newest first.

    The query parameter `kind` selects entries of one kind, and `before` those before an entry.
    """
    check(visit.caller, Scope.LEDGER)
    path = f"/datasets/{visit.id('dataset_id')}"
    dataset, budget = await visit.api.get_existing(path), await visit.api.get(f"{path}/budget")
    kind = next((each for each in Kind if each == visit.query_value("kind")), None)
    if kind is None:
        entries = await visit.newest_first(f"{path}/ledger", budget["ledger_seq"], ENTRIES)
    else:
        entries = {"items": await run_in_threadpool(_load_entries, visit, kind, ENTRIES + 1)}
    older = entries["items"][ENTRIES - 1]["seq"] if len(entries["items"]) > ENTRIES else None
    entries["items"] = entries["items"][:ENTRIES]
    causes = await run_in_threadpool(_find_causes, visit, entries["items"])
    return _show_tab(
        visit,
        "Ledger",
        dataset,
        budget=budget,
        verification=verification,
        entries=entries,
        causes=causes,
        older=older,
        kind=kind,
        kinds=list(Kind),
    )


async def settings_page(visit: Visit) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/settings`: what was declared when the dataset was created."""
    dataset = await visit.api.get(f"/datasets/{visit.id('dataset_id')}")
    return _show_tab(visit, "Settings", dataset, settings=describe_settings(dataset))


async def source_page(visit: Visit) -> Response:
    """Serve `GET /console/sources/{source}`: the costs of all datasets over the same people; `?name=` as in the API."""
    check(visit.caller, Scope.LEDGER, Scope.GRANTS)
    path = f"/sources/{quote(visit.id('source'), safe='')}"
    return show(visit, "source.html", source=await visit.api.get(path, **visit.filters("name")))


def _show_tab(visit: Visit, tab: str, dataset: Json | None, problem: Problem | None = None, **shown: Any) -> Response:
    template = "dataset.html" if tab == "Overview" else f"dataset_{tab.lower()}.html"
    return show(visit, template, problem, dataset_id=visit.id("dataset_id"), dataset=dataset, tab=tab, **shown)


def _load_related(visit: Visit, is_there: bool) -> Json:
    """Return open rounds, newest jobs and the budget chart, each None if the key does not permit it."""
    caller, dataset_id = visit.caller, visit.id("dataset_id")
    found = dict[str, Any](open_rounds=None, jobs=None, course=None)
    if visit.may(Scope.DATASETS, Scope.JOBS) and is_there:
        found["open_rounds"] = [each for each in _load_rounds(visit, NEWEST) if each["state"] == "open"]
    with visit.services.database.reading() as session:
        if visit.may(Scope.JOBS) and is_there:
            newest = queries.newest_jobs(session, caller, dataset_ids=[dataset_id], limit=NEWEST)
            found["jobs"] = queries.describe_jobs(session, newest)["jobs"]
        if visit.may(Scope.LEDGER):
            found["course"] = _course(queries.ledger_course(session, caller, dataset_id, limit=COURSE))
    return found


def _load_rounds(visit: Visit, limit: int) -> list[Json]:
    before, state = (visit.query_value(name) or None for name in ("before", "state"))
    with visit.services.database.reading() as session:
        rows = queries.newest_rounds(
            session, visit.caller, visit.id("dataset_id"), limit=limit, state=state, before=before
        )
        return [serializers.round_(row) for row in rows]


def _load_entries(visit: Visit, kind: Kind, limit: int) -> list[Json]:
    before = parse_number(visit.query_value("before"))
    with visit.services.database.reading() as session:
        rows = queries.newest_entries(
            session,
            visit.caller,
            visit.id("dataset_id"),
            kind=kind,
            limit=limit,
            before=before if isinstance(before, int) else None,
        )
        return [serializers.ledger_entry(row) for row in rows]


def _find_causes(visit: Visit, entries: list[Json]) -> Json:
    with visit.services.database.reading() as session:
        return queries.find_causes(session, visit.caller, entries, with_keys=visit.may(Scope.ADMIN))


def _course(entries: list[LedgerEntry]) -> Json:
    """Return the series of the budget chart: time in seconds, and granted, charged and reserved ε after each entry."""
    return {
        "seq": [entry.seq for entry in entries],
        "at": [entry.at / SECOND for entry in entries],
        "granted": [entry.granted_nano / NANO for entry in entries],
        "charged": [entry.charged_nano / NANO for entry in entries],
        "charged_and_reserved": [(entry.charged_nano + entry.reserved_nano) / NANO for entry in entries],
    }


async def verify_ledger(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/verify`: verify the whole hash chain."""
    return await ledger_page(visit, verification=await run_in_threadpool(_verify, visit))


def _verify(visit: Visit) -> ChainVerification:
    check(visit.caller, Scope.LEDGER)
    dataset_id = visit.id("dataset_id")
    with visit.services.database.reading() as session:
        try:
            datasets.get(session, visit.caller, dataset_id, deleted=True)
        except Missing:
            raise NotFound("there is no such dataset") from None
        return ledger.verify(session, dataset_id)


async def grant(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/grants`."""
    body: Json = {"epsilon": 0} | visit.numbers("epsilon", "delta")
    try:
        await visit.api.post(f"/datasets/{visit.id('dataset_id')}/grants", body, once=visit.form_value("once"))
    except NotFound:
        raise
    except Problem as problem:
        return await dataset_page(visit, problem=problem)
    return redirect(f"/datasets/{visit.id('dataset_id')}")


async def ledger_csv(visit: Visit) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/ledger.csv`: all entries of the API as CSV."""
    lines = _csv_lines(_ledger_items(visit, await _first_page(visit)))
    return _download(visit, lines, "csv", "text/csv; charset=utf-8")


async def ledger_json(visit: Visit) -> Response:
    """Serve `GET /console/datasets/{dataset_id}/ledger.json`: all entries of the API as a JSON array."""
    return _download(visit, _json_lines(_ledger_items(visit, await _first_page(visit))), "json", "application/json")


def _download(visit: Visit, lines: AsyncIterator[str], ending: str, media_type: str) -> Response:
    name = f"ledger-{visit.id('dataset_id')}.{ending}"
    headers = HEADERS | {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines, headers=headers, media_type=media_type)


async def _first_page(visit: Visit) -> Json:
    return await visit.api.get(f"/datasets/{visit.id('dataset_id')}/ledger", limit=PAGE, order="oldest")


async def _ledger_items(visit: Visit, page: Json) -> AsyncIterator[list[Json]]:
    """Yield the entries of each page, of which the first is given."""
    yield page["items"]
    while page["next_cursor"] is not None:
        path = f"/datasets/{visit.id('dataset_id')}/ledger"
        page = await visit.api.get(path, limit=PAGE, order="oldest", cursor=page["next_cursor"])
        yield page["items"]


async def _csv_lines(pages: AsyncIterator[list[Json]]) -> AsyncIterator[str]:
    yield ",".join(CSV_COLUMNS) + "\n"
    async for items in pages:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([item[name] for name in CSV_COLUMNS] for item in items)
        yield lines.getvalue()


async def _json_lines(pages: AsyncIterator[list[Json]]) -> AsyncIterator[str]:
    start = "["
    async for items in pages:
        for item in items:
            yield start + json.dumps(item)
            start = ",\n"
    yield "]\n"


# ---- a round ----


async def round_page(visit: Visit) -> Response:
    """Serve `GET /console/rounds/{round_id}`."""
    return show(visit, "round.html", **await _load_round(visit))


async def round_live(visit: Visit) -> Response:
    """Serve `GET /console/rounds/{round_id}/live`: the live part of the page."""
    return show(visit, "round_live.html", **await _load_round(visit))


async def _load_round(visit: Visit) -> Json:
    found = await visit.api.get(f"/rounds/{visit.id('round_id')}")
    is_live = found["state"] in ("open", "closed")
    watched = found["job_id"] is not None and visit.may(Scope.JOBS)
    may_see_dataset = visit.may(Scope.DATASETS, Scope.RECORDS, Scope.JOBS, Scope.LEDGER)
    return {
        "round": found,
        "dataset": await visit.api.get_existing(f"/datasets/{found['dataset_id']}") if may_see_dataset else None,
        "is_live": is_live,
        "events": mounted(f"/console/jobs/{found['job_id']}/events") if is_live and watched else None,
        "may_close": found["state"] == "open" and visit.may(Scope.DATASETS, Scope.JOBS),
        "may_see_job": visit.may(Scope.JOBS),
    }


async def close_round(visit: Visit) -> Response:
    """Serve `POST /console/rounds/{round_id}/close`."""
    path, once = f"/rounds/{visit.id('round_id')}/close", visit.form_value("once")
    await visit.api.post(path, once=once, allow_empty=visit.form_value("allow_empty") or None)
    return redirect(f"/rounds/{visit.id('round_id')}")


PAGES: list[Page] = [
    Page("GET", "/sources/{source}", source_page, ("name",)),
    Page("GET", "/datasets/{dataset_id}", dataset_page),
    Page("GET", "/datasets/{dataset_id}/rounds", rounds_page, ("state", "before")),
    Page("GET", "/datasets/{dataset_id}/ledger", ledger_page, ("kind", "page", "before")),
    Page("GET", "/datasets/{dataset_id}/settings", settings_page),
    Page("POST", "/datasets/{dataset_id}/verify", verify_ledger),
    Page("POST", "/datasets/{dataset_id}/grants", grant),
    Page("GET", "/datasets/{dataset_id}/ledger.csv", ledger_csv),
    Page("GET", "/datasets/{dataset_id}/ledger.json", ledger_json),
    Page("GET", "/rounds/{round_id}", round_page),
    Page("GET", "/rounds/{round_id}/live", round_live),
    Page("POST", "/rounds/{round_id}/close", close_round),
]
