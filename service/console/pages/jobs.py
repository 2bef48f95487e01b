"""Pages of jobs: the list, one job with live updates, and cancellation."""

import asyncio
from datetime import datetime
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from models.collection import rounds
from models.database.failures import is_database_unavailable
from models.ledger.amounts import Amounts
from models.tables.identity import Scope as KeyScope
from models.tables.jobs import UNFINISHED
from models.tables.ledger import Kind, LedgerEntry
from service.console import queries
from service.console.forms import Json, fields
from service.console.pages.new_job import duplicate_link
from service.console.rendering import HEADERS, redirect, show
from service.console.request import Page, Visit, find_session
from service.console.snippets import snippets
from service.http.auth import check
from service.http.mount import mounted
from service.schemas import serializers
from service.schemas.algorithms import JOB_SCHEMAS
from sfumato.privacy.accounting import parse_epsilon

JOBS = 20
FILTERS = ("state", "dataset_id", "algorithm", "created_after", "created_before")
DATASETS = 200  # maximum number of datasets in the filter of the list
ENTRIES = 20  # ledger entries on the page of a job
SESSION_CHECK_SECONDS = 1.0
FINAL = ("succeeded", "failed", "canceled", "expired")


async def list_page(visit: Visit) -> Response:
    """Serve `GET /console/jobs`: newest first."""
    check(visit.caller, KeyScope.JOBS)
    filters = visit.filters(*FILTERS)
    days = {name: f"{filters[name]}T00:00:00Z" for name in ("created_after", "created_before") if name in filters}
    listed = await visit.api.get("/jobs", limit=JOBS, cursor=visit.query_value("cursor") or None, **filters | days)
    older = urlencode(filters | {"cursor": listed["next_cursor"]}) if listed["next_cursor"] else None
    dataset_id = visit.query_id("dataset_id")
    return show(
        visit,
        "jobs.html",
        jobs=listed["items"],
        older=older,
        filters=filters,
        states=[*UNFINISHED, *FINAL],
        algorithms=sorted(JOB_SCHEMAS),
        dataset=await visit.api.get(f"/datasets/{dataset_id}") if dataset_id else None,
        **await run_in_threadpool(_names, visit, [job["dataset_id"] for job in listed["items"]]),
    )


def _names(visit: Visit, dataset_ids: list[str]) -> Json:
    """Return the names of the datasets of a list, and the datasets of the filter."""
    with visit.services.database.reading() as session:
        datasets = [(each.id, each.name) for each in queries.find_datasets(session, visit.caller, "", limit=DATASETS)]
        return {"names": queries.dataset_names(session, dataset_ids), "datasets": datasets}


async def job_page(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}`."""
    shown = await _load(visit)
    job = shown["job"]
    defaults = {each["name"]: each["default"] for each in fields(job["algorithm"]["type"])}
    parameters = [
        (name, value, name in defaults and value == defaults[name])
        for name, value in job["algorithm"].items()
        if name != "type"
    ]
    more = {"parameters": parameters, "snippets": snippets(job), "duplicate_link": duplicate_link(job)}
    return show(visit, "job.html", **shown | more)


async def job_live(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/live`: the live part of the page."""
    return show(visit, "job_live.html", **await _load(visit))


async def _load(visit: Visit) -> Json:
    job = await visit.api.get(f"/jobs/{visit.id('job_id')}")
    is_live = job["state"] not in FINAL
    over_records = job["target_reports"] is None and not job["round_ids"]
    own = await run_in_threadpool(_rounds, visit, job["id"])
    log = await run_in_threadpool(_charges, visit, job) if visit.may(KeyScope.LEDGER) else None
    descriptions: dict[str, str] = {}
    if log and over_records and job["state"] == "succeeded":  # until then the API does not publish the queries
        result = await visit.api.get_existing(f"/jobs/{job['id']}/result")
        descriptions = {charge["reference"]: charge["description"] for charge in (result or {}).get("odometer", ())}
    return {
        "job": job,
        "phases": phases(job, own),
        "dataset": await visit.api.get_existing(f"/datasets/{job['dataset_id']}"),
        "rounds": own,
        "over_records": over_records,
        "log": None if log is None else log[:ENTRIES],
        "is_cut": log is not None and len(log) > ENTRIES,
        "descriptions": descriptions,
        "indices": {each["id"]: each["index"] for each in own},
        "is_live": is_live,
        "is_polled": is_live and over_records and log is not None,  # a query causes no event in the stream of the job
        "events": mounted(f"/console/jobs/{job['id']}/events") if is_live else None,
    }


def phases(job: Json, own: list[Json]) -> list[Json]:
    """Return the phases of a job that have begun: name, start, and duration in seconds, None for the current phase.

    The times of jobs over records are coarse, as in the API.
    """
    began = [("Queued", job["created_at"])]
    if own:
        began.append(("Collecting", own[0]["opened_at"]))
        if all(each["closed_at"] is not None for each in own):
            began.append(("Computing", max(each["closed_at"] for each in own)))
    elif job["started_at"] is not None:
        began.append(("Computing", job["started_at"]))
    if job["finished_at"] is not None:
        began.append((job["state"].capitalize(), job["finished_at"]))
    ends = [*(datetime.fromisoformat(at) for _, at in began[1:]), None]
    return [
        {"name": name, "at": at, "seconds": None if end is None else (end - datetime.fromisoformat(at)).total_seconds()}
        for (name, at), end in zip(began, ends, strict=True)
    ]


def _rounds(visit: Visit, job_id: str) -> list[Json]:
    """Return the rounds of a job. The caller has already been authorised for the job."""
    with visit.services.database.reading() as session:
        return [serializers.round_(row) for row in rounds.list_for_job(session, job_id)]


def _charges(visit: Visit, job: Json) -> list[Json]:
    """Return the newest ledger entries of a job, newest first, and one more if there are more than `ENTRIES`."""
    with visit.services.database.reading() as session:
        entries, left = queries.newest_charges(session, visit.caller, job["dataset_id"], job["id"], limit=ENTRIES + 1)
    return running(entries, left, parse_epsilon(job["epsilon"])) if entries else []


def running(entries: list[LedgerEntry], left: Amounts, reserved_nano: int) -> list[Json]:
    """Return ledger entries of a reservation, newest first, with the spent and the remaining ε after each entry.

    `left` is what the reservation holds after the newest. What is given back comes last, so it is among them.
    """
    left_nano = left.epsilon_nano
    returned_nano = sum(entry.epsilon_nano for entry in entries if entry.kind == Kind.RELEASE)
    spent_nano = reserved_nano - left_nano - returned_nano
    found = []
    for entry in entries:
        found.append(
            serializers.ledger_entry(entry)
            | {"spent": serializers.epsilon(spent_nano), "left": serializers.epsilon(left_nano)}
        )
        left_nano += -entry.epsilon_nano if entry.kind == Kind.RESERVE else entry.epsilon_nano
        spent_nano -= entry.epsilon_nano if entry.kind == Kind.CHARGE else 0
    return found


async def cancel(visit: Visit) -> Response:
    """Serve `POST /console/jobs/{job_id}/cancel`."""
    await visit.api.post(f"/jobs/{visit.id('job_id')}/cancel", once=visit.form_value("once"))
    return redirect(f"/jobs/{visit.id('job_id')}")


async def events(visit: Visit) -> Response:
    """Serve `GET /console/jobs/{job_id}/events`: the event stream of the API, until the session ends."""
    return _Events(visit, f"/jobs/{visit.id('job_id')}/events")


class _Events(Response):
    """Event stream of the API. It ends with the job or the key, or within a second after sign-out."""

    def __init__(self, visit: Visit, path: str) -> None:
        super().__init__()
        self._visit, self._path = visit, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        is_begun = False

        async def sending(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        stream = asyncio.create_task(self._visit.api.stream(self._path, receive, sending))
        session = asyncio.create_task(self._session_end())
        try:
            await asyncio.wait({stream, session}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_over = stream.done()
            for task in (stream, session):
                task.cancel()
            ended = await asyncio.gather(stream, session, return_exceptions=True)
        if was_over and isinstance(ended[0], BaseException):
            raise ended[0]
        if not was_over and is_begun:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _session_end(self) -> None:
        while True:
            await asyncio.sleep(SESSION_CHECK_SECONDS)
            try:
                if await find_session(self._visit.request, self._visit.services) is None:
                    return
            except Exception as error:
                if not is_database_unavailable(error):
                    raise


PAGES: list[Page] = [
    Page("GET", "/jobs", list_page, (*FILTERS, "cursor")),
    Page("GET", "/jobs/{job_id}", job_page),
    Page("GET", "/jobs/{job_id}/live", job_live),
    Page("GET", "/jobs/{job_id}/events", events),
    Page("POST", "/jobs/{job_id}/cancel", cancel),
]
