"""A dataset: its features, budget and ledger, rounds and jobs."""

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from models import dataset as datasets
from models import glance, ledger
from models import round as rounds
from models.errors import NotFound as Missing
from models.ledger import Verification
from models.tenant import Scope
from service import views
from service.auth import check
from service.clock import timestamp
from service.console.forms import numeric, refused
from service.console.rendering import HEADERS, go, show
from service.console.visits import Page, Visit
from service.dependencies import cursor_of
from service.problems import NotFound, Problem
from sfumato.accounting import NANO

ENTRIES = 20  # of the ledger on a page
NEWEST = 10  # rounds, jobs
COURSE = 240  # points of the burn-down
CSV_PAGE = 1000
CSV_COLUMNS = (
    "seq", "at", "kind", "epsilon", "epsilon_nano", "delta", "delta_atto", "reference", "reservation", "actor",
    "granted_nano", "reserved_nano", "posted_nano", "prev_hash", "hash",
)  # fmt: skip

Json = dict[str, Any]


async def dataset_page(
    visit: Visit, *, verification: Verification | None = None, problem: Problem | None = None
) -> Response:
    """`GET /console/datasets/{dataset_id}`; of a deleted one what stays: its ledger."""
    dataset_id = visit.id("dataset_id")
    path = f"/datasets/{dataset_id}"
    dataset = await visit.api.get_there(path)
    budget = await visit.api.get_there(f"{path}/budget")
    if dataset is None and budget is None:
        await visit.api.get(path)  # which says why
    shown = await run_in_threadpool(_beside, visit, dataset_id, dataset is not None)
    return show(
        visit,
        "dataset.html",
        status=problem.status if problem else 200,
        dataset_id=dataset_id,
        dataset=dataset,
        budget=budget,
        entries=await _entries(visit, path, budget),
        verification=verification,
        refusal=refused(problem),
        said=visit.said,
        may_grant=dataset is not None and visit.may(Scope.DATASETS),
        may_upload=dataset is not None and visit.may(Scope.RECORDS),
        **shown,
    )


def _beside(visit: Visit, dataset_id: str, is_there: bool) -> Json:
    """Newest rounds and jobs, and the ledger's course; None where the key's scopes do not go so far."""
    caller, found = visit.caller, dict[str, Any](rounds=None, jobs=None, course=None)
    with visit.services.database.reading() as session:
        if visit.may(Scope.DATASETS, Scope.JOBS) and is_there:
            rows = glance.newest_rounds(session, caller, dataset_id, limit=NEWEST)
            found["rounds"] = [views.round_(row) for row in rows]
        if visit.may(Scope.JOBS):
            newest = glance.newest_jobs(session, caller, dataset_id=dataset_id, limit=NEWEST)
            own = rounds.of_jobs(session, [row.id for row in newest])
            found["jobs"] = [views.job(row, own[row.id]) for row in newest]
        if visit.may(Scope.LEDGER):
            found["course"] = _course(glance.ledger_course(session, caller, dataset_id, limit=COURSE))
    return found


def _course(entries: list[ledger.LedgerEntry]) -> Json:
    """What the chart draws: granted, posted and reserved after each entry."""
    return {
        "x": [entry.seq for entry in entries],
        "at": [timestamp(entry.at) for entry in entries],
        "granted": [entry.granted_nano / NANO for entry in entries],
        "posted": [entry.posted_nano / NANO for entry in entries],
        "held": [(entry.posted_nano + entry.reserved_nano) / NANO for entry in entries],
    }


async def _entries(visit: Visit, path: str, budget: Json | None) -> Json | None:
    """A page of the ledger, newest first: pages are counted from the end."""
    if budget is None:
        return None
    last = budget["ledger_seq"]
    size = min(ENTRIES, visit.services.settings.max_page)
    n_pages = -(-last // size)
    number = visit.page(n_pages)
    before = last - size * (number - 1)
    after = max(0, before - size)
    answer = await visit.api.get(f"{path}/ledger", cursor=cursor_of(str(after)), limit=before - after)
    return {"items": answer["items"][::-1], "page": number, "n_pages": n_pages, "n_entries": last}


async def verify_ledger(visit: Visit) -> Response:
    """`POST /console/datasets/{dataset_id}/verify`: walks the whole chain."""
    return await dataset_page(visit, verification=await run_in_threadpool(_verify, visit))


def _verify(visit: Visit) -> Verification:
    check(visit.caller, Scope.LEDGER)
    dataset_id = visit.id("dataset_id")
    with visit.services.database.reading() as session:
        try:
            datasets.get(session, visit.caller, dataset_id, deleted=True)
        except Missing:
            raise NotFound("there is no such dataset") from None
        return ledger.verify(session, dataset_id)


async def grant(visit: Visit) -> Response:
    """`POST /console/datasets/{dataset_id}/grants`."""
    body: Json = {"epsilon": numeric(visit.said("epsilon") or "0")}
    if visit.said("delta"):
        body["delta"] = numeric(visit.said("delta"))
    try:
        await visit.api.post(f"/datasets/{visit.id('dataset_id')}/grants", body, once=visit.said("once"))
    except NotFound:
        raise
    except Problem as problem:
        return await dataset_page(visit, problem=problem)
    return go(f"/datasets/{visit.id('dataset_id')}")


async def ledger_csv(visit: Visit) -> Response:
    """`GET /console/datasets/{dataset_id}/ledger.csv`: every entry, as the API tells it, page after page."""
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


PAGES: list[Page] = [
    ("GET", "/datasets/{dataset_id}", dataset_page),
    ("POST", "/datasets/{dataset_id}/verify", verify_ledger),
    ("POST", "/datasets/{dataset_id}/grants", grant),
    ("GET", "/datasets/{dataset_id}/ledger.csv", ledger_csv),
]
