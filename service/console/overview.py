"""The first page: every dataset with its budget and what fills, the jobs that move, and what wants attention."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models import glance
from models import round as rounds
from models.tenant import Scope
from service import views
from service.console.rendering import amount, show
from service.console.visits import Visit

DATASETS = 12  # on a page
JOBS = 12
LOW_SHARE = 0.1  # of a budget: less is told

Json = dict[str, Any]


async def overview(visit: Visit) -> Response:
    """`GET /console/`."""
    listed = await visit.api.get_allowed("/datasets", limit=DATASETS, cursor=visit.asked("cursor") or None)
    cards = [await _card(visit, dataset) for dataset in (listed or {}).get("items", [])]
    jobs = await run_in_threadpool(_jobs, visit) if visit.may(Scope.JOBS) else None
    return show(
        visit,
        "overview.html",
        cards=cards,
        may_list=listed is not None,
        may_make=listed is not None and visit.caller.dataset_id is None and visit.may(Scope.DATASETS),
        next_cursor=(listed or {}).get("next_cursor"),
        jobs=jobs,
        alerts=[alert for card in cards for alert in _alerts(card)] + _failed(jobs),
    )


async def _card(visit: Visit, dataset: Json) -> Json:
    path = f"/datasets/{dataset['id']}"
    budget = await visit.api.get_there(f"{path}/budget")
    open_rounds = []
    if visit.may(Scope.DATASETS, Scope.JOBS, Scope.DEVICE):
        asked = await visit.api.get_there(f"{path}/round")
        found = [await visit.api.get_there(f"/rounds/{each['id']}") for each in (asked or {"rounds": []})["rounds"]]
        open_rounds = [each for each in found if each is not None]
    return {"dataset": dataset, "budget": budget, "rounds": open_rounds}


def _jobs(visit: Visit) -> dict[str, list[Json]]:
    """Those under way, and the newest of all."""
    with visit.services.database.reading() as session:
        moving = glance.newest_jobs(session, visit.caller, limit=JOBS, unfinished=True)
        newest = glance.newest_jobs(session, visit.caller, limit=JOBS)
        own = rounds.of_jobs(session, [row.id for row in [*moving, *newest]])
        shown = {row.id: views.job(row, own[row.id]) for row in [*moving, *newest]}
        return {"moving": [shown[row.id] for row in moving], "newest": [shown[row.id] for row in newest]}


def _alerts(card: Json) -> list[Json]:
    dataset, budget = card["dataset"], card["budget"]
    path = f"/datasets/{dataset['id']}"
    found = []
    if budget is not None and budget["remaining_nano"] < LOW_SHARE * budget["granted_nano"]:
        text = f"{amount(budget['remaining'])} of {amount(budget['granted'])} ε is left"
        found.append({"path": path, "name": dataset["name"], "text": text})
    return found


def _failed(jobs: dict[str, list[Json]] | None) -> list[Json]:
    newest = (jobs or {"newest": []})["newest"]
    return [
        {"path": f"/jobs/{job['id']}", "name": job["id"], "text": f"failed: {job['error']['code']}"}
        for job in newest
        if job["state"] == "failed" and job["error"] is not None
    ]
