"""A round: how full it is, what it asks of devices, and what an answer costs them."""

from typing import Any

from starlette.responses import Response

from models.tenant import Scope
from service.console.rendering import go, show
from service.console.visits import Page, Visit

Json = dict[str, Any]


async def round_page(visit: Visit) -> Response:
    """`GET /console/rounds/{round_id}`."""
    return show(visit, "round.html", **await _shown(visit))


async def round_live(visit: Visit) -> Response:
    """`GET /console/rounds/{round_id}/live`: what moves, alone."""
    return show(visit, "round_live.html", **await _shown(visit))


async def _shown(visit: Visit) -> Json:
    found = await visit.api.get(f"/rounds/{visit.id('round_id')}")
    is_live = found["state"] in ("open", "closed")
    watched = found["job_id"] is not None and visit.may(Scope.JOBS)
    return {
        "round": found,
        "is_live": is_live,
        "events": f"/console/jobs/{found['job_id']}/events" if is_live and watched else None,
        "may_close": found["state"] == "open" and visit.may(Scope.DATASETS, Scope.JOBS),
        "may_see_dataset": visit.may(Scope.DATASETS, Scope.RECORDS, Scope.JOBS, Scope.LEDGER),
        "may_see_job": visit.may(Scope.JOBS),
    }


async def close(visit: Visit) -> Response:
    """`POST /console/rounds/{round_id}/close`."""
    await visit.api.post(f"/rounds/{visit.id('round_id')}/close", once=visit.said("once"))
    return go(f"/rounds/{visit.id('round_id')}")


PAGES: list[Page] = [
    ("GET", "/rounds/{round_id}", round_page),
    ("GET", "/rounds/{round_id}/live", round_live),
    ("POST", "/rounds/{round_id}/close", close),
]
