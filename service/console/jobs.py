"""Jobs: all of them, one of them as it moves, and its end by hand."""

import asyncio
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from models import glance
from models import round as rounds
from models.ledger import Amounts, Kind, LedgerEntry
from models.tenant import Scope as KeyScope
from service import views
from service.auth import check
from service.console.rendering import HEADERS, go, show
from service.console.visits import Page, Visit, signed_in
from service.problems import is_database_away
from sfumato.accounting import parse_epsilon

JOBS = 20
DRAWS = 20  # entries of a job's log on its page
SESSION_CHECK_SECONDS = 1.0
FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})

Json = dict[str, Any]


async def list_page(visit: Visit) -> Response:
    """`GET /console/jobs`: newest first."""
    jobs, before = await run_in_threadpool(_listed, visit)
    return show(visit, "jobs.html", jobs=jobs, before=before)


def _listed(visit: Visit) -> tuple[list[Json], str | None]:
    check(visit.caller, KeyScope.JOBS)
    with visit.services.database.reading() as session:
        before = visit.asked("before") or None
        rows = glance.newest_jobs(session, visit.caller, limit=JOBS + 1, before=before)
        shown = rows[:JOBS]
        own = rounds.of_jobs(session, [row.id for row in shown])
        return [views.job(row, own[row.id]) for row in shown], shown[-1].id if len(rows) > JOBS else None


async def job_page(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}`."""
    return show(visit, "job.html", **await _shown(visit))


async def job_live(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/live`: what moves, alone."""
    return show(visit, "job_live.html", **await _shown(visit))


async def _shown(visit: Visit) -> Json:
    job = await visit.api.get(f"/jobs/{visit.id('job_id')}")
    is_live = job["state"] not in FINAL
    over_records = job["target_reports"] is None and not job["round_ids"]
    own = await run_in_threadpool(_rounds, visit, job["id"])
    log = await run_in_threadpool(_charges, visit, job) if visit.may(KeyScope.LEDGER) else None
    asked: dict[str, str] = {}
    if log and over_records and job["state"] == "succeeded":  # before that the API does not tell what was asked
        result = await visit.api.get_there(f"/jobs/{job['id']}/result")
        asked = {charge["reference"]: charge["what"] for charge in (result or {}).get("odometer", ())}
    return {
        "job": job,
        "rounds": own,
        "over_records": over_records,
        "log": None if log is None else log[:DRAWS],
        "is_cut": log is not None and len(log) > DRAWS,
        "asked": asked,
        "indices": {each["id"]: each["index"] for each in own},
        "is_live": is_live,
        "is_polled": is_live and over_records and log is not None,  # a question is no event of the job's stream
        "events": f"/console/jobs/{job['id']}/events" if is_live else None,
    }


def _rounds(visit: Visit, job_id: str) -> list[Json]:
    """The rounds of a job that the caller was shown."""
    with visit.services.database.reading() as session:
        return [views.round_(row) for row in rounds.of_job(session, job_id)]


def _charges(visit: Visit, job: Json) -> list[Json]:
    """The newest entries under a job's reservation, and one more where there are more; newest first."""
    with visit.services.database.reading() as session:
        entries, left = glance.newest_charges(session, visit.caller, job["dataset_id"], job["id"], limit=DRAWS + 1)
    return running(entries, left, parse_epsilon(job["epsilon"])) if entries else []


def running(entries: list[LedgerEntry], left: Amounts, reserved_nano: int) -> list[Json]:
    """Entries of one reservation, newest first, each with what was spent and what was left after it.

    `left` is what the reservation holds after the newest. What is given back comes last, so it is among them.
    """
    left_nano = left.epsilon_nano
    returned_nano = sum(entry.epsilon_nano for entry in entries if entry.kind == Kind.RELEASE)
    spent_nano = reserved_nano - left_nano - returned_nano
    found = []
    for entry in entries:
        shown = views.ledger_entry(entry).model_dump(include={"seq", "kind", "reference", "epsilon", "delta"})
        found.append(shown | {"spent": views.epsilon(spent_nano), "left": views.epsilon(left_nano)})
        left_nano += -entry.epsilon_nano if entry.kind == Kind.RESERVE else entry.epsilon_nano
        spent_nano -= entry.epsilon_nano if entry.kind == Kind.POST else 0
    return found


async def cancel(visit: Visit) -> Response:
    """`POST /console/jobs/{job_id}/cancel`."""
    await visit.api.post(f"/jobs/{visit.id('job_id')}/cancel", once=visit.said("once"))
    return go(f"/jobs/{visit.id('job_id')}")


async def events(visit: Visit) -> Response:
    """`GET /console/jobs/{job_id}/events`: the API's own stream, as long as the session lasts."""
    return _Events(visit, f"/jobs/{visit.id('job_id')}/events")


class _Events(Response):
    """Handed on from the API; ends with the job, the key, or within a second of signing out."""

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
                if await signed_in(self._visit.request, self._visit.services) is None:
                    return
            except Exception as error:
                if not is_database_away(error):
                    raise


PAGES: list[Page] = [
    ("GET", "/jobs", list_page),
    ("GET", "/jobs/{job_id}", job_page),
    ("GET", "/jobs/{job_id}/live", job_live),
    ("GET", "/jobs/{job_id}/events", events),
    ("POST", "/jobs/{job_id}/cancel", cancel),
]
