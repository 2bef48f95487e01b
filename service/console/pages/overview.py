"""Overview page: alerts, datasets with budgets and open rounds, and jobs."""

from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from models.tables.datasets import Trust
from models.tables.identity import Scope
from models.tables.jobs import UNFINISHED
from service.console import queries
from service.console.forms import Json
from service.console.pages.jobs import FINAL
from service.console.rendering import amount, job_name, show
from service.console.request import Visit

DATASETS = 12  # datasets per page
JOBS = 12
FILTERS = ("name", "source", "trust")
LOW_SHARE = 0.1  # an alert appears below this share of the budget


async def overview(visit: Visit) -> Response:
    """Serve `GET /console/`."""
    filters, cursor = visit.filters(*FILTERS), visit.query_value("cursor") or None
    listed = await visit.api.get_allowed("/datasets", limit=DATASETS, cursor=cursor, **filters)
    following = (listed or {}).get("next_cursor")
    cards = [await _card(visit, dataset) for dataset in (listed or {}).get("items", [])]
    jobs = await run_in_threadpool(_jobs, visit) if visit.may(Scope.JOBS) else None
    return show(
        visit,
        "overview.html",
        cards=cards,
        may_list=listed is not None,
        may_create=listed is not None and visit.caller.dataset_id is None and visit.may(Scope.DATASETS),
        more=urlencode(filters | {"cursor": following}) if following else None,
        filters=filters,
        trusts=list(Trust),
        jobs=jobs,
        alerts=[alert for card in cards for alert in _alerts(card)] + _failed(jobs),
    )


async def _card(visit: Visit, dataset: Json) -> Json:
    path = f"/datasets/{dataset['id']}"
    budget = await visit.api.get_existing(f"{path}/budget")
    open_rounds = []
    if visit.may(Scope.DATASETS, Scope.JOBS, Scope.DEVICE):
        listed = await visit.api.get_existing(f"{path}/round")
        found = [await visit.api.get_existing(f"/rounds/{each['id']}") for each in (listed or {"rounds": []})["rounds"]]
        open_rounds = [each for each in found if each is not None]
    return {"dataset": dataset, "budget": budget, "rounds": open_rounds}


def _jobs(visit: Visit) -> Json:
    """Return active jobs and the newest jobs that have ended, with the names of their datasets."""
    with visit.services.database.reading() as session:
        active = queries.newest_jobs(session, visit.caller, limit=JOBS, states=UNFINISHED)
        ended = queries.newest_jobs(session, visit.caller, limit=JOBS, states=FINAL)
        found = queries.describe_jobs(session, [*active, *ended])
        jobs = found["jobs"]
        return {"active": jobs[: len(active)], "ended": jobs[len(active) :], "names": found["names"]}


def _alerts(card: Json) -> list[Json]:
    dataset, budget = card["dataset"], card["budget"]
    path = f"/datasets/{dataset['id']}"
    found = []
    if budget is not None and budget["accounting"] == "gaussian" and not budget["granted_shuffled_nano"]:
        if budget["remaining_share"] < LOW_SHARE:
            share = 100 * budget["remaining_share"]
            found.append({"path": path, "name": dataset["name"], "text": f"only {share:.1f} % of the budget remains"})
    elif budget is not None and budget["remaining_nano"] < LOW_SHARE * budget["granted_nano"]:
        text = f"only ε {amount(budget['remaining'])} of {amount(budget['granted'])} remains"
        found.append({"path": path, "name": dataset["name"], "text": text})
    shuffled_share = None if budget is None else budget["remaining_shuffled_share"]
    if shuffled_share is not None and shuffled_share < LOW_SHARE:
        text = f"only {100 * shuffled_share:.1f} % of the budget towards the service remains"
        found.append({"path": path, "name": dataset["name"], "text": text})
    return found


def _failed(jobs: Json | None) -> list[Json]:
    return [
        {"path": f"/jobs/{job['id']}", "name": job_name(job), "text": f"failed. {job['error']['detail']}"}
        for job in (jobs or {"ended": []})["ended"]
        if job["state"] == "failed" and job["error"] is not None
    ]
