"""Pages of a dataset (features, budget, ledger, rounds and jobs) and of a round (progress, cost, specification)."""

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from models import datasets
from models.database.types import SECOND
from models.errors import NotFound as Missing
from models.hash_chain import ChainVerification
from models.ledger import ledger
from models.tables.identity import Scope
from models.tables.ledger import LedgerEntry
from service.console import queries
from service.console.forms import Json
from service.console.rendering import HEADERS, redirect, show
from service.console.request import Page, Visit
from service.http.auth import check
from service.http.mount import mounted
from service.http.problems import NotFound, Problem
from service.schemas import serializers
from sfumato.privacy.accounting import NANO

ENTRIES = 20  # ledger entries per page
NEWEST = 10  # rounds and jobs on the page
COURSE = 240  # points of the budget chart
CSV_PAGE = 1000
CSV_COLUMNS = (
    "seq", "at", "kind", "epsilon", "epsilon_nano", "delta", "delta_atto", "reference", "reservation", "actor",
    "granted_nano", "reserved_nano", "charged_nano", "prev_hash", "hash",
)  # fmt: skip


async def dataset_page(
    visit: Visit, *, verification: ChainVerification | None = None, problem: Problem | None = None
) -> Response:
    """Serve `GET /console/datasets/{dataset_id}`; for a deleted dataset, its ledger only."""
    dataset_id = visit.id("dataset_id")
    path = f"/datasets/{dataset_id}"
    dataset = await visit.api.get_existing(path)
    budget = await visit.api.get_existing(f"{path}/budget")
    if dataset is None and budget is None:
        await visit.api.get(path)  # raises the reason
    shown = await run_in_threadpool(_load_related, visit, dataset_id, dataset is not None)
    entries = await _entries(visit, path, budget)
    causes = await run_in_threadpool(_find_causes, visit, entries["items"] if entries else [])
    return show(
        visit,
        "dataset.html",
        problem,
        dataset_id=dataset_id,
        dataset=dataset,
        budget=budget,
        entries=entries,
        causes=causes,
        verification=verification,
        may_grant=dataset is not None and visit.may(Scope.GRANTS),
        may_open=dataset is not None and visit.may(Scope.DATASETS),
        may_upload=dataset is not None and visit.may(Scope.RECORDS),
        **shown,
    )


def _load_related(visit: Visit, dataset_id: str, is_there: bool) -> Json:
    """Return newest rounds, newest jobs and the budget chart, each None if the key does not permit it."""
    caller, found = visit.caller, dict[str, Any](rounds=None, jobs=None, course=None)
    with visit.services.database.reading() as session:
        if visit.may(Scope.DATASETS, Scope.JOBS) and is_there:
            rows = queries.newest_rounds(session, caller, dataset_id, limit=NEWEST)
            found["rounds"] = [serializers.round_(row) for row in rows]
        if visit.may(Scope.JOBS):
            newest = queries.newest_jobs(session, caller, dataset_ids=[dataset_id], limit=NEWEST)
            found["jobs"] = queries.describe_jobs(session, newest)["jobs"]
        if visit.may(Scope.LEDGER):
            found["course"] = _course(queries.ledger_course(session, caller, dataset_id, limit=COURSE))
    return found


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


async def _entries(visit: Visit, path: str, budget: Json | None) -> Json | None:
    """Return a page of the ledger, newest first."""
    if budget is None or not visit.may(Scope.LEDGER):
        return None
    return await visit.newest_first(f"{path}/ledger", budget["ledger_seq"], ENTRIES)


async def verify_ledger(visit: Visit) -> Response:
    """Serve `POST /console/datasets/{dataset_id}/verify`: verify the whole hash chain."""
    return await dataset_page(visit, verification=await run_in_threadpool(_verify, visit))


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
    """Serve `GET /console/datasets/{dataset_id}/ledger.csv`: return all entries of the API as CSV."""
    path = f"/datasets/{visit.id('dataset_id')}/ledger"
    first = await visit.api.get(path, limit=CSV_PAGE)
    name = f"ledger-{visit.id('dataset_id')}.csv"
    headers = HEADERS | {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_csv(visit, path, first), headers=headers, media_type="text/csv; charset=utf-8")


async def _csv(visit: Visit, path: str, page: Json) -> AsyncIterator[str]:
    yield ",".join(CSV_COLUMNS) + "\n"
    while True:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([item[name] for name in CSV_COLUMNS] for item in page["items"])
        yield lines.getvalue()
        if page["next_cursor"] is None:
            return
        page = await visit.api.get(path, limit=CSV_PAGE, cursor=page["next_cursor"])


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
    ("GET", "/datasets/{dataset_id}", dataset_page),
    ("POST", "/datasets/{dataset_id}/verify", verify_ledger),
    ("POST", "/datasets/{dataset_id}/grants", grant),
    ("GET", "/datasets/{dataset_id}/ledger.csv", ledger_csv),
    ("GET", "/rounds/{round_id}", round_page),
    ("GET", "/rounds/{round_id}/live", round_live),
    ("POST", "/rounds/{round_id}/close", close_round),
]
