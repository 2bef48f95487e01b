"""Search page for datasets by name and any object by its id, and the glossary."""

import re

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models.tables.identity import Scope
from service.console import queries
from service.console.forms import Json
from service.console.rendering import read_glossary, redirect, show
from service.console.request import Page, Visit

LIMIT = 20
MAX_LENGTH = 100
FOLDERS = {"ds": "datasets", "job": "jobs", "rnd": "rounds"}

_ID = re.compile("(ds|job|rnd)_[0-9a-z]{26}")


async def search(visit: Visit) -> Response:
    """Serve `GET /console/search?q=`. An id leads to its page, which checks the access."""
    text = visit.query_value("q").strip()[:MAX_LENGTH]
    if found := _ID.fullmatch(text):
        return redirect(f"/{FOLDERS[found[1]]}/{text}")
    return show(visit, "search.html", **await run_in_threadpool(_find, visit, text))


def _find(visit: Visit, text: str) -> Json:
    """Return the datasets with the text in their names, and the newest jobs on them."""
    if not text or not visit.may(Scope.DATASETS, Scope.GRANTS, Scope.RECORDS, Scope.JOBS, Scope.LEDGER):
        return {"found": [], "jobs": [], "names": {}}
    with visit.services.database.reading() as session:
        found = queries.find_datasets(session, visit.caller, text, limit=LIMIT)
        rows = []
        if visit.may(Scope.JOBS) and found:
            ids = [each.id for each in found]
            rows = queries.newest_jobs(session, visit.caller, limit=LIMIT, dataset_ids=ids)
        return {"found": [(each.id, each.name, each.trust) for each in found], **queries.describe_jobs(session, rows)}


async def glossary(visit: Visit) -> Response:
    """Serve `GET /console/glossary`."""
    return show(visit, "glossary.html", terms=read_glossary())


PAGES: list[Page] = [Page("GET", "/search", search, ("q",)), Page("GET", "/glossary", glossary)]
